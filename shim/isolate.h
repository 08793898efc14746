/* `cmk isolate`: CPUs first, then the command in this process. */
#ifndef ISOLATE_H
#define ISOLATE_H

enum { USAGE = -1 };

/* Become the command. Return an exit code where that is not possible; USAGE where the words are wrong. */
int isolate(char **words);

#endif
