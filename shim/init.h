/* CMK_INIT: the shim stays as process 1 of the container and runs the command as its child. */
#ifndef INIT_H
#define INIT_H

#include <stdbool.h>

/* Return whether CMK_INIT is 1 and this is process 1; the default action of a signal ends any other process anyway. If
   the variable is neither 1, 0 nor empty, print that and set `is_valid` to false. */
bool init_is_wanted(bool *is_valid);

/* Continue in a child that may use all CPUs of the container. The parent forwards signals to it, collects processes
   that ended, and exits with the child's code (128 and the number after a signal). On failure, print the reason and
   return false. */
bool init_start(void);

#endif
