#include "cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_number(const char **text, long *number)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    *number = strtol(*text, &end, 10);
    *text = end;
    return *number < CPUS_MOST;
}

static bool parse_range(const char **text, struct cpus *cpus)
{
    long first, last;
    if (!parse_number(text, &first))
        return false;
    last = first;
    if (**text == '-') {
        (*text)++;
        if (!parse_number(text, &last))
            return false;
    }
    for (long cpu = first; cpu <= last; cpu++)
        cpus->has[cpu] = true;
    return first <= last;
}

bool cpus_parse(const char *text, struct cpus *cpus)
{
    memset(cpus, 0, sizeof *cpus);
    while (parse_range(&text, cpus)) {
        if (*text != ',')
            return *text == '\0' || strcmp(text, "\n") == 0;
        text++;
    }
    return false;
}

bool cpus_is_empty(const struct cpus *cpus)
{
    return memchr(cpus->has, true, sizeof cpus->has) == NULL;
}

void cpus_list(const struct cpus *cpus, char list[LIST_MOST])
{
    char *end = list;
    *end = '\0';
    for (int cpu = 0; cpu < CPUS_MOST; cpu++)
        if (cpus->has[cpu])
            end += sprintf(end, "%s%d", end == list ? "" : ",", cpu);
}

void cpus_mask(const struct cpus *cpus, char mask[MASK_MOST])
{
    char *end = mask;
    for (int digit = CPUS_MOST / 4 - 1; digit >= 0; digit--) {
        unsigned value = 0;
        for (int bit = 0; bit < 4; bit++)
            value |= (unsigned)cpus->has[4 * digit + bit] << bit;
        if (value || end != mask || digit == 0)
            *end++ = "0123456789ABCDEF"[value];
    }
    *end = '\0';
}
