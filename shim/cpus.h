/* Sets of CPUs. Pure. */
#ifndef CPUS_H
#define CPUS_H

#include <stdbool.h>
#include <stddef.h>

enum { CPUS_MOST = 1024, LIST_MOST = 5 * CPUS_MOST + 1, MASK_MOST = CPUS_MOST / 4 + 1 };

struct cpus {
    bool has[CPUS_MOST];
};

/* Parse a kernel CPU list, e.g. "0-3,8"; false for any other text, and for numbers that are too high. */
bool cpus_parse(const char *text, struct cpus *cpus);

bool cpus_is_empty(const struct cpus *cpus);

/* Write CMK's forms: "0,1,8" in numeric order, and the mask in upper-case hexadecimal without 0x. */
void cpus_list(const struct cpus *cpus, char list[LIST_MOST]);
void cpus_mask(const struct cpus *cpus, char mask[MASK_MOST]);

#endif
