/* Command lines in the forms of CMK's docopt: `--pool=P`, `--pool P`, unique beginnings, options anywhere before
   `--`. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>

struct option {
    const char *name;     /* with dashes */
    bool has_value;
    const char *obsolete; /* the warning for an option without effect; NULL: it has an effect */
    const char *value;    /* as given; NULL: the option is absent; "" for one without a value */
};

/* Fill in the values of options, the last of which has no name. What is left of `words` are the positional ones,
   ended by NULL; `--` stays among them. For an unknown option, print an error
   and return false. */
bool options_parse(char **words, struct option *options);

/* Take the first word out that is neither an option nor the value of one, and return it; NULL where there is none.
   Every option has a value but those in `flags`, which NULL ends; a beginning of one of these is one too. */
char *options_take_verb(char **words, const char *const flags[]);

#endif
