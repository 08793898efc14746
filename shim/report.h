/* The verbs that print what the agent knows: describe, node-report, reconcile. */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>

bool is_report(const char *verb);

/* Print the agent's text, again and again with --interval. Return an exit code, or USAGE. */
int report(const char *verb, char **words);

#endif
