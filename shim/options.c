#include "options.h"

#include "say.h"

#include <string.h>

/* Return the option of a word, by its name or a unique prefix; NULL for none. */
static struct option *find(const char *word, size_t length, struct option *options)
{
    struct option *found = NULL;
    bool is_ambiguous = false;
    for (struct option *option = options; option->name; option++) {
        if (strncmp(option->name, word, length) != 0)
            continue;
        if (option->name[length] == '\0')
            return option;
        is_ambiguous = found != NULL;
        found = option;
    }
    if (is_ambiguous)
        say("%.*s is not a unique beginning of an option", (int)length, word);
    else if (!found)
        say("%.*s is not an option of cmk: arguments of the command follow after --", (int)length, word);
    return is_ambiguous ? NULL : found;
}

/* Parse one option with its value; return its last word, NULL for an error. */
static char **take(char **word, struct option *options)
{
    const char *equals = strchr(*word, '=');
    size_t length = equals ? (size_t)(equals - *word) : strlen(*word);
    struct option *option = find(*word, length, options);
    if (!option)
        return NULL;
    if (!option->has_value && equals) {
        say("%s must not have an argument", option->name);
        return NULL;
    }
    option->value = equals ? equals + 1 : "";
    if (option->has_value && !equals) {
        if (!word[1] || strcmp(word[1], "--") == 0) {
            say("%s requires argument", option->name);
            return NULL;
        }
        option->value = *++word;
    }
    if (option->obsolete)
        say("%s does nothing: %s", option->name, option->obsolete);
    return word;
}

bool options_parse(char **words, struct option *options)
{
    char **kept = words;
    bool is_option = true;
    for (; *words; words++) {
        if (strcmp(*words, "--") == 0)
            is_option = false;
        if (is_option && (*words)[0] == '-' && (*words)[1] != '\0') {
            if (!(words = take(words, options)))
                return false;
        } else {
            *kept++ = *words;
        }
    }
    *kept = NULL;
    return true;
}

static bool is_flag(const char *word, const char *const flags[])
{
    for (; *flags; flags++)
        if (strncmp(*flags, word, strlen(word)) == 0)
            return true;
    return false;
}

char *options_take_verb(char **words, const char *const flags[])
{
    while (*words && (*words)[0] == '-' && strcmp(*words, "--") != 0) {
        bool is_alone = strncmp(*words, "--", 2) != 0 || strchr(*words, '=') || is_flag(*words, flags);
        words += is_alone || !words[1] ? 1 : 2;
    }
    if (!*words || strcmp(*words, "--") == 0)
        return NULL;
    char *verb = *words;
    for (; *words; words++)
        words[0] = words[1];
    return verb;
}
