/* Ranks of one program on this backend (sl_backend_functions.join): where their ALL_REDUCEs and ALL_GATHERs
 * meet. All lie in one address space, so each reads what the others have where it is. */
#ifndef SL_BACKEND_CPU_GROUP_H
#define SL_BACKEND_CPU_GROUP_H

#include "backend/cpu/cpu.h"

#include <pthread.h>

struct sl_cpu_group {
    int32_t ranks, members; /* members: executors that are left */
    pthread_mutex_t mutex;
    pthread_cond_t met;
    int32_t here; /* ranks that wait for the others */
    uint64_t meetings;
    const float *shown[SL_MOST_RANKS]; /* what each rank has for the others */
};

/* SL_ERR_NOMEM. */
int sl_cpu_group_create(int32_t ranks, sl_cpu_group **group, sl_error *error);
/* By each member when it ends; the last one frees it. */
void sl_cpu_group_leave(sl_cpu_group *group);

#endif
