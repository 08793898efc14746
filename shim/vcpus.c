#include "vcpus.h"

#include <stdio.h>
#include <string.h>

static const char SYSFS[] = "/sys/devices/system/cpu";

/* A CPU's place in the guest's topology; the guest's kernel has numbers of its own. */
struct place {
    int socket, core, thread;
};

struct guest {
    struct cpus online;
    struct place places[CPUS_MOST]; /* of the online ones */
};

static bool read_line(const char *path, char *line, int room)
{
    FILE *file = fopen(path, "re");
    bool is_read = file && fgets(line, room, file);
    if (file)
        fclose(file);
    return is_read;
}

static bool read_topology(int cpu, const char *name, char line[LIST_MOST])
{
    char path[128];
    snprintf(path, sizeof path, "%s/cpu%d/topology/%s", SYSFS, cpu, name);
    return read_line(path, line, LIST_MOST);
}

static bool read_place(int cpu, struct place *place)
{
    char line[LIST_MOST];
    struct cpus siblings;
    if (!read_topology(cpu, "physical_package_id", line) || sscanf(line, "%d", &place->socket) != 1)
        return false;
    if (!read_topology(cpu, "core_id", line) || sscanf(line, "%d", &place->core) != 1)
        return false;
    if (!read_topology(cpu, "thread_siblings_list", line) || !cpus_parse(line, &siblings))
        return false;
    place->thread = 0;
    for (int sibling = 0; sibling < cpu; sibling++)
        place->thread += siblings.has[sibling];
    return true;
}

static bool read_guest(struct guest *guest)
{
    char line[LIST_MOST], path[64];
    snprintf(path, sizeof path, "%s/online", SYSFS);
    if (!read_line(path, line, sizeof line) || !cpus_parse(line, &guest->online))
        return false;
    for (int cpu = 0; cpu < CPUS_MOST; cpu++)
        if (guest->online.has[cpu] && !read_place(cpu, &guest->places[cpu]))
            return false;
    return true;
}

/* Return the CPU at a place; -1 for none. */
static int find_cpu(const struct guest *guest, struct json wanted)
{
    struct place at;
    if (!json_number(json_member(wanted, "socket"), CPUS_MOST, &at.socket) ||
        !json_number(json_member(wanted, "core"), CPUS_MOST, &at.core) ||
        !json_number(json_member(wanted, "thread"), CPUS_MOST, &at.thread))
        return -1;
    for (int cpu = 0; cpu < CPUS_MOST; cpu++) {
        const struct place *place = &guest->places[cpu];
        bool is_there = place->socket == at.socket && place->core == at.core && place->thread == at.thread;
        if (guest->online.has[cpu] && is_there)
            return cpu;
    }
    return -1;
}

static struct json element(struct json array, int number)
{
    const char *at = NULL;
    struct json name, value;
    while (json_next(array, &at, &name, &value))
        if (number-- == 0)
            return value;
    return (struct json){NULL, NULL};
}

/* Add the CPUs of one container's vCPUs, which are numbered by their rank in `places`. */
static bool add_vcpus(const struct guest *guest, struct json places, struct json vcpus, struct cpus *cpus)
{
    const char *at = NULL;
    struct json name, vcpu;
    while (json_next(vcpus, &at, &name, &vcpu)) {
        int rank, cpu;
        if (!json_number(vcpu, CPUS_MOST, &rank) || (cpu = find_cpu(guest, element(places, rank))) < 0)
            return false;
        cpus->has[cpu] = true;
    }
    return true;
}

static const char *read_containers(const struct guest *guest, struct json status, const char *container,
                                   struct vcpus *vcpus)
{
    struct json places = json_member(json_member(status, "vm"), "guest"), name, value;
    const char *at = NULL;
    int with_vcpus = 0;
    while (json_next(json_member(status, "containers"), &at, &name, &value)) {
        struct json ranks = json_member(value, "vcpus");
        bool is_asked = container ? json_is(name, container) : ranks.start != NULL;
        if (!add_vcpus(guest, places, ranks, &vcpus->owned))
            return "this guest does not show the vCPUs that the status of the pod names";
        if (is_asked)
            add_vcpus(guest, places, ranks, &vcpus->own);
        vcpus->is_claimed = vcpus->is_claimed || (is_asked && json_member(value, "policy").start);
        with_vcpus += ranks.start != NULL;
    }
    if (!container && with_vcpus > 1)
        return "COREPIN_CONTAINER does not say which container this is, and several have CPUs of their own";
    return NULL;
}

/* Copy a string without its quotes; false for another value, and for one that is too long. */
static bool copy_string(struct json value, char *text, size_t room)
{
    size_t length = value.start ? (size_t)(value.end - value.start) : 0;
    if (length < 2 || *value.start != '"' || length - 2 >= room)
        return false;
    memcpy(text, value.start + 1, length - 2);
    text[length - 2] = '\0';
    return true;
}

/* Return the number of CPUs of all containers, including those that were not created yet. */
static int count_held(struct json status)
{
    struct json name, value;
    struct cpus held = {0}, cpus;
    char list[LIST_MOST];
    const char *at = NULL;
    int count = 0;
    while (json_next(json_member(status, "containers"), &at, &name, &value))
        if (copy_string(json_member(value, "cpus"), list, sizeof list) && cpus_parse(list, &cpus))
            for (int cpu = 0; cpu < CPUS_MOST; cpu++)
                held.has[cpu] = held.has[cpu] || cpus.has[cpu];
    for (int cpu = 0; cpu < CPUS_MOST; cpu++)
        count += held.has[cpu];
    return count;
}

static int count_elements(struct json array)
{
    struct json name, value;
    const char *at = NULL;
    int count = 0;
    while (json_next(array, &at, &name, &value))
        count++;
    return count;
}

/* Return why no vCPU has a CPU of its own, as the agent says it. Kata adds vCPUs while containers of a pod are made, so
   that too few may become enough; too many stay so. */
static const char *why_together(struct json status, bool *is_final)
{
    static char reason[512];
    struct json machine = json_member(status, "vm");
    *is_final = count_elements(json_member(machine, "vcpus")) > count_held(status);
    if (copy_string(json_member(machine, "reason"), reason, sizeof reason) && *reason)
        return reason;
    return "its vCPUs have no CPUs of their own (yet)";
}

const char *vcpus_read(struct json status, const char *container, struct vcpus *vcpus)
{
    static struct guest guest;
    memset(vcpus, 0, sizeof *vcpus);
    if (!json_member(status, "containers").start)
        return "the agent has not written yet which CPUs its containers have";
    if (!json_member(json_member(status, "vm"), "guest").start)
        return why_together(status, &vcpus->is_final);
    if (!read_guest(&guest))
        return "/sys does not tell which CPUs this guest has";
    vcpus->online = guest.online;
    return read_containers(&guest, status, container, vcpus);
}
