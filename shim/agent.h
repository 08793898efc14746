/* Client of the node's agent. */
#ifndef AGENT_H
#define AGENT_H

#include "answer.h"

/* Send a request, and return the answer; ask again while the agent starts. Where the kind is neither ANSWER_OK nor
   ANSWER_ERROR it has printed what is wrong. */
struct answer agent_ask(const char *request);

/* Return whether an agent can be reached now. */
int agent_is_there(void);

#endif
