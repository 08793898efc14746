/* Messages of the command: on stderr, each in one piece and on one line. */
#ifndef SAY_H
#define SAY_H

enum { FAILED = 1, CANNOT_EXECUTE = 126, NOT_FOUND = 127 }; /* exit codes; the last two as a shell has them */

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
