/* The command `cmk` inside of containers: see README.md. */
#include "isolate.h"
#include "obsolete.h"
#include "options.h"
#include "report.h"
#include "say.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char USAGE_TEXT[] =
    "Usage:\n"
    "  cmk (-h | --help)\n"
    "  cmk --version\n"
    "  cmk isolate [--socket-id=<num>] --pool=<pool> <command> [-- <args> ...]\n"
    "              [--no-affinity] [--namespace=<name>] [--conf-dir=<dir>]\n"
    "  cmk describe [--namespace=<name>] [--conf-dir=<dir>]\n"
    "  cmk node-report [--publish] [--interval=<seconds>] [--namespace=<name>]\n"
    "                  [--conf-dir=<dir>]\n"
    "  cmk reconcile [--publish] [--interval=<seconds>] [--namespace=<name>]\n"
    "                [--conf-dir=<dir>]\n";

static const char HELP_TEXT[] =
    "cmk: run a command on CPUs of its pool, as Intel CMK did; corepin's agent on\n"
    "this node assigns them.\n\n"
    "%s\n"
    "Options:\n"
    "  -h --help             Show this text.\n"
    "  --version             Show the version.\n"
    "  --pool=<pool>         exclusive, exclusive-non-isolcpus, shared or infra.\n"
    "  --socket-id=<num>     Take cores of this socket; -1, the default: of any.\n"
    "  --no-affinity         Set the environment alone, and let the command choose.\n"
    "  --interval=<seconds>  Print again after so long, e.g. 30, 1.5s or 500ms;\n"
    "                        0, the default: print once.\n"
    "  --publish, --namespace, --conf-dir\n"
    "                        Accepted, and without effect.\n\n"
    "Environment:\n"
    "  CMK_NUM_CORES         How many cores of an exclusive pool; 1.\n"
    "  CMK_LOCK_TIMEOUT      How many seconds to wait for the agent; 30.\n"
    "  CMK_INIT              1: stay as process 1 of the container, and run the\n"
    "                        command as a child, which SIGTERM ends as under CMK.\n"
    "  CMK_MAP_SECONDS       How many seconds to wait in a Kata guest; 100.\n"
    "The command gets CMK_CPUS_ASSIGNED, CMK_CPUS_ASSIGNED_MASK, CMK_CPUS_SHARED and\n"
    "CMK_CPUS_INFRA. Its exit code is the command's own.\n";

static void end(int number)
{
    _exit(128 + number);
}

/* The kernel does not end process 1 of a container by a signal without a handler, so install handlers. Ignored signals
   stay ignored; the command itself starts with the default handlers. */
static void end_on_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        struct sigaction before, handled = {.sa_handler = end};
        if (sigaction(numbers[at], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[at], &handled, NULL);
    }
}

static int usage(void)
{
    fputs(USAGE_TEXT, stderr);
    return FAILED;
}

/* Return whether an option is before the arguments of a command. */
static int has_option(char **words, const char *name)
{
    for (; *words && strcmp(*words, "--") != 0; words++)
        if (strcmp(*words, name) == 0)
            return 1;
    return 0;
}

int main(int count, char **words)
{
    if (count < 2)
        return usage();
    if (has_option(words, "-h") || has_option(words, "--help"))
        return printf(HELP_TEXT, USAGE_TEXT) < 0;
    if (has_option(words, "--version"))
        return puts("CMK v1.5.2 (corepin " COREPIN_VERSION ")") < 0;
    prctl(PR_SET_NAME, "corepin-cmk"); /* `corepin doctor` warns of Intel's program, which is called cmk */
    end_on_signals();
    static const char *const flags[] = {"--no-affinity", "--publish", NULL};
    const char *verb = options_take_verb(++words, flags);
    int code = USAGE;
    if (!verb)
        return usage();
    if (strcmp(verb, "isolate") == 0)
        code = isolate(words);
    else if (is_report(verb))
        code = report(verb, words);
    else if (obsolete_verb(verb)) {
        say("%s is not needed any more: %s", verb, obsolete_verb(verb));
        return FAILED;
    }
    return code == USAGE ? usage() : code;
}
