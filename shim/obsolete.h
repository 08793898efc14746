/* Replacements of CMK's obsolete verbs. */
#ifndef OBSOLETE_H
#define OBSOLETE_H

#define OBSOLETE_NAMESPACE "the agent keeps the state, not a ConfigMap in a namespace"
#define OBSOLETE_CONF_DIR "the agent keeps the state, not a directory"

/* Return the replacement of a verb of CMK; NULL for other words. */
const char *obsolete_verb(const char *verb);

#endif
