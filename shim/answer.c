#include "answer.h"

#include <stdlib.h>
#include <string.h>

static struct answer nothing(enum answer_kind kind)
{
    return (struct answer){kind, NULL, 0};
}

static int has_word(char **at, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0)
        return 0;
    *at += length;
    return 1;
}

struct answer answer_read(char *bytes, size_t length)
{
    char *newline = memchr(bytes, '\n', length < HEAD_MOST ? length : HEAD_MOST);
    if (!newline)
        return nothing(length < HEAD_MOST ? ANSWER_PARTIAL : ANSWER_GARBLED);
    char *at = bytes, *end;
    enum answer_kind kind = has_word(&at, "ok ") ? ANSWER_OK : ANSWER_ERROR;
    if (kind == ANSWER_ERROR && !has_word(&at, "error "))
        return nothing(ANSWER_GARBLED);
    if (*at < '0' || *at > '9')
        return nothing(ANSWER_GARBLED);
    unsigned long promised = strtoul(at, &end, 10);
    if (end != newline || promised > BODY_MOST)
        return nothing(ANSWER_GARBLED);
    char *body = newline + 1;
    size_t came = length - (size_t)(body - bytes);
    if (came < promised)
        return nothing(ANSWER_PARTIAL);
    if (came > promised || strlen(body) != came)
        return nothing(ANSWER_GARBLED);
    return (struct answer){kind, body, came};
}

char *answer_line(char **body, char **value)
{
    char *line = *body;
    if (*line == '\0')
        return NULL;
    *body = strchr(line, '\n');
    if (*body)
        *(*body)++ = '\0';
    else
        *body = line + strlen(line);
    *value = strchr(line, '=');
    if (*value)
        *(*value)++ = '\0';
    return line;
}
