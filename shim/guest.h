/* `cmk isolate` in the guest of a Kata pod, where no agent can be reached. */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>

/* Return whether this is a container of a Kata pod, which has a file with the pod's status. */
bool guest_is_here(void);

/* Pin this process to CPUs of its container as soon as the status says which these are, and set CMK's environment.
   After the timeout, warn that the command starts unpinned. If there is no claim, print that and return false. */
bool guest_isolate(bool is_exclusive, bool is_pinned);

#endif
