#include "json.h"

#include <string.h>

enum { DEEPEST = 16 };

static const char *skip_value(const char *at, const char *end, int depth);

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && memchr(" \t\r\n", *at, 4))
        at++;
    return at;
}

static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '"')
            return at + 1;
        if (*at == '\\')
            at++;
    }
    return NULL;
}

/* Numbers and words are skipped here, and checked when one is read. */
static const char *skip_word(const char *at, const char *end)
{
    static const char letters[] = "0123456789+-.Eabcdefghijklmnopqrstuvwxyz";
    const char *start = at;
    while (at < end && memchr(letters, *at, sizeof letters - 1))
        at++;
    return at == start ? NULL : at;
}

/* Skip `"name" :` and the space after it. */
static const char *skip_name(const char *at, const char *end)
{
    if (at == end || *at != '"' || !(at = skip_string(at, end)))
        return NULL;
    at = skip_space(at, end);
    return at < end && *at == ':' ? skip_space(at + 1, end) : NULL;
}

static const char *skip_members(const char *at, const char *end, int depth)
{
    bool is_object = *at == '{';
    char closing = is_object ? '}' : ']';
    at = skip_space(at + 1, end);
    if (at < end && *at == closing)
        return at + 1;
    for (;;) {
        if (is_object && !(at = skip_name(at, end)))
            return NULL;
        if (!(at = skip_value(at, end, depth)))
            return NULL;
        at = skip_space(at, end);
        if (at == end || (*at != ',' && *at != closing))
            return NULL;
        if (*at == closing)
            return at + 1;
        at = skip_space(at + 1, end);
    }
}

/* Return the position after a value; NULL without a value. */
static const char *skip_value(const char *at, const char *end, int depth)
{
    if (at == end || depth == DEEPEST)
        return NULL;
    if (*at == '"')
        return skip_string(at, end);
    if (*at == '{' || *at == '[')
        return skip_members(at, end, depth + 1);
    return skip_word(at, end);
}

struct json json_text(const char *text, size_t length)
{
    const char *end = text + length, *start = skip_space(text, end);
    const char *after = skip_value(start, end, 0);
    if (!after || skip_space(after, end) != end)
        return (struct json){NULL, NULL};
    return (struct json){start, after};
}

/* Below, every value is part of a text that json_text() has checked, so that skipping never passes its end. */

bool json_next(struct json whole, const char **at, struct json *name, struct json *value)
{
    if (!whole.start || (*whole.start != '{' && *whole.start != '['))
        return false;
    const char *next = skip_space(*at ? *at : whole.start + 1, whole.end);
    if (*at && *next == ',')
        next = skip_space(next + 1, whole.end);
    if (*next == '}' || *next == ']')
        return false;
    *name = (struct json){next, next};
    if (*whole.start == '{') {
        name->end = skip_string(next, whole.end);
        next = skip_name(next, whole.end);
    }
    *value = (struct json){next, skip_value(next, whole.end, 0)};
    *at = value->end;
    return true;
}

bool json_is(struct json string, const char *text)
{
    size_t length = strlen(text);
    return (size_t)(string.end - string.start) == length + 2 && memcmp(string.start + 1, text, length) == 0;
}

struct json json_member(struct json object, const char *name)
{
    const char *at = NULL;
    struct json found, value;
    if (object.start && *object.start == '{')
        while (json_next(object, &at, &found, &value))
            if (json_is(found, name))
                return value;
    return (struct json){NULL, NULL};
}

bool json_number(struct json value, int most, int *number)
{
    *number = 0;
    for (const char *digit = value.start; digit != value.end; digit++) {
        if (*digit < '0' || *digit > '9')
            return false;
        *number = 10 * *number + (*digit - '0');
        if (*number > most)
            return false;
    }
    return value.start != value.end;
}
