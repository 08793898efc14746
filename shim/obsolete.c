#include "obsolete.h"

#include <stddef.h>
#include <string.h>

const char *obsolete_verb(const char *verb)
{
    static const char *const verbs[][2] = {
        {"cluster-init", "run `corepin cmk cluster-init` where kubectl works"},
        {"init", "`pools` in the agents' configuration say it; `corepin cmk init --dry-run` prints what they make"},
        {"discover", "the agent keeps label, taint and resources up to date; `corepin cmk discover` prints them"},
        {"install", "the agent installs this command, with the component `cmk`"},
        {"uninstall", "run `corepin cmk uninstall` where kubectl works"},
        {"webhook", "`corepin webhook` runs in the cluster already"},
        {"reconfigure", "change `pools` in the ConfigMap corepin-agent, and start the agents again"},
        {"reconfigure_setup", "change `pools` in the ConfigMap corepin-agent, and start the agents again"},
        {"reaffinitize", "the agent moves containers by itself"},
    };
    for (size_t at = 0; at < sizeof verbs / sizeof *verbs; at++)
        if (strcmp(verb, verbs[at][0]) == 0)
            return verbs[at][1];
    return NULL;
}
