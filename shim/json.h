/* Find values in a JSON text without copying anything. Pure. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

/* One value: its first byte, and the one after its last. No value: both NULL. */
struct json {
    const char *start, *end;
};

/* The value of a whole text; none where the text is not JSON, or nested deeper than 16 levels. */
struct json json_text(const char *text, size_t length);

/* Whether a string, e.g. a member's name, is this text, which needs no escapes. */
bool json_is(struct json string, const char *text);

/* The value of a member of an object; none where there is no such member, or no object. */
struct json json_member(struct json object, const char *name);

/* The next element of an array, or the next value of an object with its name. `at` is NULL before the first. */
bool json_next(struct json whole, const char **at, struct json *name, struct json *value);

/* A whole number from 0 to `most`; false for every other value. */
bool json_number(struct json value, int most, int *number);

#endif
