/* Ask the agent of the node. */
#ifndef AGENT_H
#define AGENT_H

#include "answer.h"

/* Send a request, and return the answer; ask again while the agent starts. Where the kind is neither ANSWER_OK nor
   ANSWER_ERROR it has told what is wrong. */
struct answer agent_ask(const char *request);

/* Say whether an agent can be reached at this moment. */
int agent_is_there(void);

#endif
