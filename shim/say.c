#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 2048 };

/* Replace control characters, because texts come from command lines and files. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

void say(const char *format, ...)
{
    static const char prefix[] = "cmk: ";
    char line[LONGEST];
    memcpy(line, prefix, sizeof prefix);
    va_list values;
    va_start(values, format);
    vsnprintf(line + strlen(prefix), sizeof line - sizeof prefix, format, values);
    va_end(values);
    make_plain(line);
    size_t length = strlen(line);
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0)
        return; /* stderr is closed, so the message is lost */
}
