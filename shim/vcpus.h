/* CPUs of this guest that the containers of its pod own, from the pod's status annotation. */
#ifndef VCPUS_H
#define VCPUS_H

#include "cpus.h"
#include "json.h"

struct vcpus {
    struct cpus own;    /* CPUs of the container's vCPUs */
    struct cpus owned;  /* CPUs of the vCPUs of all containers */
    struct cpus online;
    bool is_claimed;    /* the container claims CPUs */
    bool is_final;      /* the reason for unknown CPUs is final */
};

/* Read the annotation status.corepin.io/cpus. `container` may be NULL where only one has vCPUs. Return NULL, or why
   the CPUs of the container are not known (yet). */
const char *vcpus_read(struct json status, const char *container, struct vcpus *vcpus);

#endif
