#include "guest.h"

#include "say.h"
#include "vcpus.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PATIENCE_SECONDS = 100,  /* CMK_MAP_SECONDS overrides it; a kubelet may write 90 s late */
    STATUS_MOST = 256 << 10, /* of all annotations of an object */
    DAY_SECONDS = 86400,
    LOOKS_A_SECOND = 4,
};

static const char STATUS[] = "/run/corepin/cpus";

bool guest_is_here(void)
{
    return access(STATUS, F_OK) == 0;
}

/* Read the status again; no value if it does not exist or is being replaced. */
static struct json read_status(void)
{
    static char text[STATUS_MOST];
    FILE *file = fopen(STATUS, "re");
    if (!file)
        return (struct json){NULL, NULL};
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    return json_text(text, length);
}

static long patience(void)
{
    const char *text = getenv("CMK_MAP_SECONDS");
    char *end = NULL;
    long seconds = text ? strtol(text, &end, 10) : 0;
    bool is_number = text && end != text && *end == '\0' && seconds >= 0 && seconds <= DAY_SECONDS;
    return is_number ? seconds : PATIENCE_SECONDS;
}

/* Wait until the CPUs of this container are known; return the reason after the timeout. */
static const char *wait_for_vcpus(bool is_exclusive, struct vcpus *vcpus)
{
    const struct timespec pause = {.tv_nsec = 1000000000L / LOOKS_A_SECOND};
    long looks = patience() * LOOKS_A_SECOND;
    for (long look = 0;; look++) {
        const char *reason = vcpus_read(read_status(), getenv("COREPIN_CONTAINER"), vcpus);
        if (!reason && is_exclusive && vcpus->is_claimed && cpus_is_empty(&vcpus->own))
            reason = "its container has no vCPUs of its own (yet)";
        if (!reason || vcpus->is_final || look >= looks)
            return reason;
        if (look == LOOKS_A_SECOND)
            say("waiting up to %ld s for the CPUs of this container in %s: %s", patience(), STATUS, reason);
        nanosleep(&pause, NULL);
    }
}

static bool pin(const struct cpus *cpus)
{
    cpu_set_t mask, found;
    CPU_ZERO(&mask);
    for (size_t cpu = 0; cpu < CPUS_MOST; cpu++)
        if (cpus->has[cpu])
            CPU_SET(cpu, &mask);
    return sched_setaffinity(0, sizeof mask, &mask) == 0 && sched_getaffinity(0, sizeof found, &found) == 0 &&
           CPU_EQUAL(&mask, &found);
}

static struct cpus allowed(void)
{
    struct cpus cpus = {0};
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        for (size_t cpu = 0; cpu < CPUS_MOST; cpu++)
            cpus.has[cpu] = CPU_ISSET(cpu, &mask) != 0;
    return cpus;
}

static struct cpus less(struct cpus cpus, const struct cpus *others)
{
    for (int cpu = 0; cpu < CPUS_MOST; cpu++)
        cpus.has[cpu] = cpus.has[cpu] && !others->has[cpu];
    return cpus;
}

static void set_environment(const struct cpus *assigned, const struct cpus *others)
{
    char list[LIST_MOST], mask[MASK_MOST];
    cpus_list(assigned, list);
    cpus_mask(assigned, mask);
    setenv("CMK_CPUS_ASSIGNED", list, 1);
    setenv("CMK_CPUS_ASSIGNED_MASK", mask, 1);
    cpus_list(others, list);
    setenv("CMK_CPUS_SHARED", list, 1);
    setenv("CMK_CPUS_INFRA", list, 1);
}

bool guest_isolate(bool is_exclusive, bool is_pinned)
{
    struct vcpus vcpus;
    struct cpus assigned = allowed(), others = assigned;
    const char *reason = wait_for_vcpus(is_exclusive, &vcpus);
    if (!reason && is_exclusive && !vcpus.is_claimed) {
        say("this container claims no cores: give it the resource cmk.intel.com/exclusive-cores");
        return false;
    }
    if (!reason) {
        struct cpus rest = less(vcpus.online, &vcpus.owned);
        others = cpus_is_empty(&rest) ? vcpus.online : rest; /* none is unowned: they share all */
        assigned = is_exclusive ? vcpus.own : others;
        if (is_pinned && !pin(&assigned))
            reason = "the kernel of this guest does not let it run there alone";
    }
    if (reason)
        say("starts unpinned on all CPUs that it may use: %s", reason);
    set_environment(&assigned, &others);
    return true;
}
