/* Several devices as one backend: a step runs on them one after the other, and the next one follows it from
 * device to device (stages.h). A plan on it is a plan for each device (sl_plan.segments), of a part of the
 * program; what lives at a border is sent from device to device where both can, or goes through host memory,
 * and only the border waits. */
#ifndef SL_PLAN_SPLIT_H
#define SL_PLAN_SPLIT_H

#include "plan/plan.h"

typedef enum sl_split_kind {
    SL_SPLIT_LAYERS,  /* each device has some of the layers (stages.h) */
    SL_SPLIT_TENSORS, /* each has a share of all layers (ranks.h) */
} sl_split_kind;

/* `devices`: names as sl_backend_open takes them, with + between: "cuda+cpu". The host comes first in a step,
 * whatever the order: embeddings are looked up there, and the head is large. SL_ERR_INVALID for less than two
 * or more than SL_MOST_DEVICES names; SL_ERR_UNSUPPORTED for tensors on devices of different kinds. */
int sl_split_open(const char *devices, sl_split_kind kind, const sl_backend_options *options,
                  sl_backend **backend, sl_error *error);
/* 0 for a backend of one device. */
int32_t sl_split_count(const sl_backend *backend);
/* Of one of several. */
sl_split_kind sl_split_kind_of(const sl_backend *backend);
/* Owned by the split one. */
sl_backend *sl_split_part(const sl_backend *backend, int32_t index);
/* "cpu", "cuda", or of several GPUs "cuda:1"; owned likewise. */
const char *sl_split_part_name(const sl_backend *backend, int32_t index);
/* Called by the plan: what deploy is about. The plan must outlive its executors. */
void sl_split_use(sl_backend *backend, const sl_plan *plan);

#endif
