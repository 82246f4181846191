/* The C API: limits of memory by device, and what is taken of each. */
#include "api/plans.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

/* "cpu", "cuda" or "cuda:N", N as sl_backend_open takes it. */
static bool is_device(const char *name) {
    const char *digits = name + strlen("cuda:");
    return strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0 ||
           (strncmp(name, "cuda:", strlen("cuda:")) == 0 && strlen(digits) > 0 && strlen(digits) <= 4 &&
            strspn(digits, "0123456789") == strlen(digits) && (digits[0] != '0' || !digits[1]));
}

/* Is the device one of those that a plan for `device` may use? The host is, as experts may lie there. */
static bool may_be_used(const char *name, const char *device) {
    const size_t length = strlen(name);
    if (!device || strcmp(device, "auto") == 0 || strcmp(name, "cpu") == 0) {
        return true;
    }
    for (const char *at = device; *at; at += *at != '\0') {
        const size_t other = strcspn(at, "+,");
        const bool is_first_gpu = other == strlen("cuda") && strcmp(name, "cuda:0") == 0;
        if (strncmp(at, name, length < other ? length : other) == 0 &&
            (other == length || is_first_gpu || (other > length && at[length] == ':'))) {
            return true;
        }
        at += other;
    }
    return false;
}

int sl_api_take_limits(const sluice_engine_options *options, sl_plan_options *plan, sl_error *error) {
    const sluice_memory_limit *limits = options->memory_limits;
    _Static_assert((int)SLUICE_MEMORY_LIMITS == (int)SL_DEVICE_LIMITS &&
                       sizeof limits->device == sizeof plan->limits[0].device,
                   "the same list");
    for (int i = 0; i < SLUICE_MEMORY_LIMITS && limits[i].device[0]; i++) {
        const char *name = limits[i].device;
        if (!memchr(name, '\0', sizeof limits[i].device) || !is_device(name)) {
            return sl_fail(error, SL_ERR_INVALID,
                           "memory limit: \"%.*s\" is no device: there are cpu, cuda and cuda:N",
                           (int)sizeof limits[i].device, name);
        }
        for (int k = 0; k < i; k++) {
            if (strcmp(limits[k].device, name) == 0) {
                return sl_fail(error, SL_ERR_INVALID, "memory limit: %s is given twice", name);
            }
        }
        if (strcmp(name, "cpu") == 0 && options->host_memory_limit > 0) {
            return sl_fail(error, SL_ERR_INVALID,
                           "memory limit: that of cpu is also given as the host's memory limit");
        }
        if (!may_be_used(name, options->device)) {
            sl_log(SL_LOG_WARNING, "memory limit: %s is none of the devices, which are %s", name,
                   options->device);
        }
        snprintf(plan->limits[i].device, sizeof plan->limits[i].device, "%s", name);
        plan->limits[i].bytes = limits[i].bytes;
    }
    return 0;
}

/* ---- what is taken ---- */

static void add(const sl_backend *backend, uint64_t bytes, sluice_memory_limit *taken) {
    char name[sizeof taken->device];
    const bool is_host = strcmp(backend->name, "cpu") == 0;
    snprintf(name, sizeof name, is_host ? "%s" : "%s:%d", backend->name, (int)backend->options.device);
    for (int i = 0; i < SLUICE_MEMORY_LIMITS && bytes > 0; i++) {
        if (!taken[i].device[0]) {
            memcpy(taken[i].device, name, sizeof name);
        }
        if (strcmp(taken[i].device, name) == 0) {
            taken[i].bytes += bytes;
            return;
        }
    }
}

void sl_api_add_memory(const sl_plan *plan, sluice_memory_limit taken[SLUICE_MEMORY_LIMITS]) {
    static const sl_backend host = {.name = "cpu"};
    for (int32_t s = 0; s < plan->segment_count; s++) {
        sl_api_add_memory(plan->segments[s].plan, taken);
    }
    add(&host, plan->flight_bytes, taken);
    if (plan->segment_count == 0) {
        add(plan->backend, sl_plan_bytes(plan), taken);
        add(&host, plan->deployment.pool_bytes[SL_POOL_HOST_WEIGHTS], taken);
    }
}

/* The most that one of the devices which the limit is for has taken: each may take as much. */
static uint64_t taken_of(const sluice_memory_limit *limits, const char *name,
                         const sluice_memory_limit *taken) {
    const size_t length = strlen(name);
    uint64_t most = 0;
    for (int i = 0; i < SLUICE_MEMORY_LIMITS && taken[i].device[0]; i++) {
        bool is_its = strcmp(taken[i].device, name) == 0;
        if (!is_its && strncmp(taken[i].device, name, length) == 0 && taken[i].device[length] == ':') {
            is_its = true;
            for (int k = 0; k < SLUICE_MEMORY_LIMITS && limits[k].device[0]; k++) {
                is_its = is_its && strcmp(limits[k].device, taken[i].device) != 0;
            }
        }
        most = is_its && taken[i].bytes > most ? taken[i].bytes : most;
    }
    return most;
}

void sluice_memory_limits_leave(sluice_memory_limit limits[SLUICE_MEMORY_LIMITS],
                                const sluice_memory_limit taken[SLUICE_MEMORY_LIMITS]) {
    for (int i = 0; limits && taken && i < SLUICE_MEMORY_LIMITS && limits[i].device[0]; i++) {
        const uint64_t gone = taken_of(limits, limits[i].device, taken), all = limits[i].bytes;
        limits[i].bytes = all == 0 ? 0 : all > gone ? all - gone : 1; /* as 0 is no limit */
    }
}
