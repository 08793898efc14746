#include "isolate.h"

#include "agent.h"
#include "guest.h"
#include "init.h"
#include "obsolete.h"
#include "options.h"
#include "say.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POOL, SOCKET_ID, NO_AFFINITY, REQUEST_MOST = 1024 };

struct wish {
    const char *pool, *socket, *cores; /* cores may be NULL: not given */
    bool is_pinned;
};

static bool is_pool(const char *name)
{
    static const char *const pools[] = {"exclusive", "exclusive-non-isolcpus", "shared", "infra"};
    for (size_t at = 0; at < sizeof pools / sizeof *pools; at++)
        if (strcmp(name, pools[at]) == 0)
            return true;
    return false;
}

static bool is_exclusive(const struct wish *wish)
{
    return strncmp(wish->pool, "exclusive", strlen("exclusive")) == 0;
}

/* Return whether a text can be sent as a value. */
static bool is_plain(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

static bool is_valid(const struct wish *wish)
{
    if (!is_pool(wish->pool)) {
        say("Requested pool %s does not exist", wish->pool);
        return false;
    }
    if (!is_plain(wish->socket)) {
        say("--socket-id: %s is not the number of a socket", wish->socket);
        return false;
    }
    if (wish->cores && !is_plain(wish->cores)) {
        say("CMK_NUM_CORES: Requested numbers of cores must be positive integer");
        return false;
    }
    return true;
}

/* Set the environment variables of the agent's answer; false for a line outside of the protocol. */
static bool take_lines(char *body)
{
    char *name, *value;
    while ((name = answer_line(&body, &value))) {
        if (!value)
            return false;
        if (strcmp(name, "warning") == 0)
            say("%s", value);
        else if (strncmp(name, "CMK_", 4) == 0)
            setenv(name, value, 1);
    }
    return true;
}

static struct answer asked(const struct wish *wish)
{
    static const char format[] = "cmk 1 isolate\npool=%s\nsocket=%s\n%s%s%s%s\n";
    const char *cores = wish->cores;
    char request[REQUEST_MOST + 1];
    int length = snprintf(request, sizeof request, format, wish->pool, wish->socket, cores ? "cores=" : "",
                          cores ? cores : "", cores ? "\n" : "", wish->is_pinned ? "" : "affinity=no\n");
    if (length > REQUEST_MOST) {
        say("--socket-id or CMK_NUM_CORES is too long");
        return (struct answer){ANSWER_PARTIAL, NULL, 0};
    }
    return agent_ask(request);
}

static bool ask(const struct wish *wish)
{
    struct answer answer = asked(wish);
    if (answer.kind == ANSWER_ERROR)
        say("%s", answer.body);
    if (answer.kind != ANSWER_OK)
        return false;
    if (!take_lines(answer.body)) {
        say("the answer of the corepin agent cannot be read");
        return false;
    }
    return true;
}

/* Move this process off the cores that only the command may use: to its pool, or to the shared set. */
static bool step_aside(const struct wish *wish, bool is_in_guest)
{
    if (is_in_guest)
        return guest_isolate(false, true);
    bool is_shared = !is_exclusive(wish);
    struct wish aside = {.pool = is_shared ? wish->pool : "infra",
                         .socket = is_shared ? wish->socket : "-1",
                         .is_pinned = true};
    struct answer answer = asked(&aside);
    if (answer.kind == ANSWER_ERROR)
        say("CMK_INIT: process 1 stays on all CPUs of its container: %s", answer.body);
    return answer.kind == ANSWER_OK || answer.kind == ANSWER_ERROR;
}

static int become(char **command)
{
    execvp(command[0], command);
    int reason = errno;
    say("cannot execute %s: %s", command[0], strerror(reason));
    return reason == ENOENT ? NOT_FOUND : CANNOT_EXECUTE;
}

/* Drop the first `--` if it only ends the options: before the command, or between it and its arguments. */
static char **command_of(char **words)
{
    if (words[0] && strcmp(words[0], "--") == 0)
        return words + 1;
    if (words[0] && words[1] && strcmp(words[1], "--") == 0) {
        words[1] = words[0];
        return words + 1;
    }
    return words;
}

int isolate(char **words)
{
    struct option options[] = {
        [POOL] = {"--pool", true, NULL, NULL},
        [SOCKET_ID] = {"--socket-id", true, NULL, NULL},
        [NO_AFFINITY] = {"--no-affinity", false, NULL, NULL},
        {"--namespace", true, OBSOLETE_NAMESPACE, NULL},
        {"--conf-dir", true, OBSOLETE_CONF_DIR, NULL},
        {NULL, false, NULL, NULL},
    };
    if (!options_parse(words, options) || !options[POOL].value || !(words = command_of(words))[0])
        return USAGE;
    struct wish wish = {
        .pool = options[POOL].value,
        .socket = options[SOCKET_ID].value ? options[SOCKET_ID].value : "-1",
        .cores = getenv("CMK_NUM_CORES"),
        .is_pinned = !options[NO_AFFINITY].value,
    };
    if (strcmp(wish.pool, "infra") == 0)
        wish.socket = "-1"; /* CMK ignored --socket-id there */
    bool is_known, is_init = init_is_wanted(&is_known);
    if (!is_known || !is_valid(&wish))
        return FAILED;
    bool is_in_guest = guest_is_here() && !agent_is_there();
    if (is_init && !(step_aside(&wish, is_in_guest) && init_start()))
        return FAILED;
    if (!(is_in_guest ? guest_isolate(is_exclusive(&wish), wish.is_pinned) : ask(&wish)))
        return FAILED;
    return become(words);
}
