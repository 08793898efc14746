/* What CMK had and corepin does otherwise. */
#ifndef OBSOLETE_H
#define OBSOLETE_H

#define OBSOLETE_NAMESPACE "the agent keeps the state, not a ConfigMap in a namespace"
#define OBSOLETE_CONF_DIR "the agent keeps the state, not a directory"

/* What to use instead of a verb of CMK; NULL where it was none. */
const char *obsolete_verb(const char *verb);

#endif
