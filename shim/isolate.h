/* `cmk isolate`: CPUs first, then the command in this process. */
#ifndef ISOLATE_H
#define ISOLATE_H

enum { USAGE = -1 };

/* Execute the command. Return an exit code if that fails; USAGE for wrong arguments. */
int isolate(char **words);

#endif
