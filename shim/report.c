#include "report.h"

#include "agent.h"
#include "isolate.h"
#include "obsolete.h"
#include "options.h"
#include "say.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INTERVAL, DAY_SECONDS = 86400 };

bool is_report(const char *verb)
{
    return !strcmp(verb, "describe") || !strcmp(verb, "node-report") || !strcmp(verb, "reconcile");
}

static bool print_once(const char *verb)
{
    char request[64];
    snprintf(request, sizeof request, "cmk 1 %s\n\n", verb);
    struct answer answer = agent_ask(request);
    if (answer.kind == ANSWER_ERROR)
        say("%s", answer.body);
    if (answer.kind != ANSWER_OK)
        return false;
    return fwrite(answer.body, 1, answer.length, stdout) == answer.length && fflush(stdout) == 0;
}

/* Parse `30`, `1.5s` or `500ms`; negative for any other text. */
static double seconds_of(const char *text)
{
    char *unit;
    double number = strtod(text, &unit);
    if (unit == text || !(number >= 0 && number <= DAY_SECONDS))
        return -1;
    if (strcmp(unit, "ms") == 0)
        return number / 1000;
    return *unit == '\0' || strcmp(unit, "s") == 0 ? number : -1;
}

static void wait_seconds(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds};
    pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

int report(const char *verb, char **words)
{
    bool is_describe = strcmp(verb, "describe") == 0;
    struct option options[] = {
        [INTERVAL] = {"--interval", true, NULL, NULL},
        {"--publish", false, "the agent publishes at any time", NULL},
        {"--namespace", true, OBSOLETE_NAMESPACE, NULL},
        {"--conf-dir", true, OBSOLETE_CONF_DIR, NULL},
        {NULL, false, NULL, NULL},
    };
    if (!options_parse(words, is_describe ? options + 2 : options) || words[0])
        return USAGE;
    const char *interval = options[INTERVAL].value;
    double seconds = interval ? seconds_of(interval) : 0;
    if (seconds < 0) {
        say("--interval: %s is not a number of seconds from 0 to 86400: write for example 30, 1.5s or 500ms",
            interval);
        return FAILED;
    }
    bool is_printed;
    while ((is_printed = print_once(verb)) && seconds > 0)
        wait_seconds(seconds);
    return is_printed ? 0 : FAILED;
}
