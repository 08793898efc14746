/* The verbs that print reports of the agent: describe, node-report, reconcile. */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>

bool is_report(const char *verb);

/* Print the agent's report, repeatedly with --interval. Return an exit code, or USAGE. */
int report(const char *verb, char **words);

#endif
