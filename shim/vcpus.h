/* Which CPUs of this guest the containers of its pod own, as the agent wrote it on the pod. */
#ifndef VCPUS_H
#define VCPUS_H

#include "cpus.h"
#include "json.h"

struct vcpus {
    struct cpus own;    /* of one container */
    struct cpus owned;  /* of all of them together */
    struct cpus online;
    bool is_claimed;    /* the container asks for CPUs of its own */
    bool is_final;      /* why its CPUs are not known stays so */
};

/* Read the annotation status.corepin.io/cpus. `container` may be NULL where only one has vCPUs. Return NULL, or why
   the CPUs of the container are not known (yet). */
const char *vcpus_read(struct json status, const char *container, struct vcpus *vcpus);

#endif
