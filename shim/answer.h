/* Parser of the agent's answers. Pure. The protocol is described in agent/wrappers/protocol.py. */
#ifndef ANSWER_H
#define ANSWER_H

#include <stddef.h>

enum {
    HEAD_MOST = 24, /* bytes of the first line */
    BODY_MOST = 4 << 20,
};

enum answer_kind {
    ANSWER_PARTIAL, /* the agent exited in the middle: ask again */
    ANSWER_GARBLED, /* not of this protocol */
    ANSWER_OK,
    ANSWER_ERROR,
};

struct answer {
    enum answer_kind kind;
    char *body; /* zero-terminated, without other zeros */
    size_t length;
};

/* Parse `length` received bytes, followed by a zero; the body is not copied. */
struct answer answer_read(char *bytes, size_t length);

/* Cut the next line `NAME=VALUE` off a body, and return its name; NULL at the end. A line without `=` has no value:
   NULL. */
char *answer_line(char **body, char **value);

#endif
