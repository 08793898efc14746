/* CMK_INIT: the shim stays as process 1 of the container and runs the command as its child. */
#ifndef INIT_H
#define INIT_H

#include <stdbool.h>

/* Say whether CMK_INIT asks for it and this is process 1; elsewhere signals end a command without it. False in
   `is_valid`, having told why, where the variable is neither 1, 0 nor empty. */
bool init_is_wanted(bool *is_valid);

/* Go on as a child that may use all CPUs of the container. The parent forwards signals to it, collects processes that
   ended, and exits with the child's code (128 and the number after a signal). False, having told why: no child. */
bool init_start(void);

#endif
