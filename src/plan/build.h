/* What the files of src/plan share; nobody else includes it. */
#ifndef SL_PLAN_BUILD_H
#define SL_PLAN_BUILD_H

#include "plan/plan.h"

enum { SL_POOL_ALIGNMENT = 64 }; /* of each weight in its pool */

/* The numeric class that the first lowered bucket chose, per program op and part of a split LINEAR; NULL
 * where it chose none. */
typedef struct sl_classes {
    const char **op, **quantize; /* [program ops * SL_LINEAR_SEGMENTS] */
    const char *reason; /* why a kernel of another class is declined; NULL: classes are not required */
} sl_classes;

/* Fills deployment.buckets[bucket], whose rows are set: values, ops and kernels, and appends to
 * plan->declined. Memory is the plan's arena. `record`: write the classes chosen into `classes`, else require
 * those in it. */
int sl_lower(sl_plan *plan, int32_t bucket, sl_classes *classes, bool record, sl_error *error);

/* tail.c: fills plan->tail, and gives the deployment the program with its values. On several devices these
 * are all ops there are. */
int sl_plan_find_tail(sl_plan *plan, sl_error *error);
/* Whether the bucket runs these ops. */
bool sl_has_tail(const sl_plan *plan, int32_t bucket);

/* plan.c, for segments.c: bytes of pages; their numbers for `full` pages of a full group, and the cache pool,
 * false when they pass 64 bits; the pools that do not depend on kernels, and the step's layout. */
int sl_plan_geometry(sl_plan *plan, sl_error *error);
bool sl_plan_set_pages(sl_plan *plan, uint64_t full);
int sl_plan_fixed_pools(sl_plan *plan, sl_error *error);
/* segments.c: all behind the options, for a backend of several devices. */
int sl_plan_segments(sl_plan *plan, sl_error *error);

/* observe.c: where each LINEAR's weights have their sums, for a plan that observes, and the bytes of their
 * pool. */
int sl_plan_observe(sl_plan *plan, sl_error *error);

/* plan.c: makes a plan as sl_plan_create, of which host_experts, host_layers and expert_slots are known. */
int sl_plan_make(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                 sl_plan **plan, sl_error *error);

/* plan.c: tokens of a cache for whole contexts of all sequences, which a plan has where it fits; 0: such a
 * plan has less. */
uint64_t sl_plan_usual_cache(const sl_plan_options *options);

/* host_layers.c, for a device that is not the host: the same, of which they may be chosen yet. */
int sl_plan_with_fetches(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                         sl_plan **plan, sl_error *error);
/* fetches.c. Does the op read weights that lie in host memory, and of which set? SL_NONE: no. */
int32_t sl_fetch_set_of(const sl_plan *plan, const sl_op *op);
/* How experts come, in steps of up to so many rows. */
sl_fetch_way sl_fetch_way_of(const sl_plan *plan, int32_t rows);
/* Of a layer's experts, how many so many rows choose when they choose at random. */
double sl_experts_chosen(const sl_program *program, int32_t rows);
/* The layers that can be a set without experts, rising: [*count] in `arena`. Their LINEARs follow one
 * another, and nobody else reads those weights. */
int sl_list_layers_to_fetch(const sl_program *program, sl_arena *arena, int32_t **layers, int32_t *count,
                            sl_error *error);
/* The i-th of `count` layers in host memory, as an index of such a list with `all` layers. The copies for one
 * run while the layers in front of it compute, from its predecessor on, as there are two buffers: so each is
 * the last of as many layers as can be. Layers in host memory that follow one another would leave the bus
 * idle while all the others compute. */
static inline int32_t sl_spread_layer(int32_t i, int32_t count, int32_t all) {
    return (int32_t)(((int64_t)i + 1) * all / count - 1);
}
/* Lists the sets, before anything is lowered. */
int sl_list_fetch_sets(sl_plan *plan, sl_error *error);
/* Bytes of host memory that may be pinned, of which so many were asked for; 0: what is free. */
uint64_t sl_plan_host_limit(uint64_t asked);
/* Where all lies in SL_POOL_FETCHED, when buckets are lowered and weights are listed, and what is in slots
 * before the first step. */
int sl_lay_out_fetches(sl_plan *plan, sl_error *error);

/* Of the uses that options.expert_uses counts in the layers whose experts are in host memory, the share of
 * experts that are in slots before the first step, 0 to 1. */
double sl_plan_first_share(const sl_plan *plan);

/* Whether the name begins with one of those in a list with commas; a NULL list has none. */
bool sl_name_is_listed(const char *name, const char *list);

/* Appends to plan->declined. */
int sl_note_declined(sl_plan *plan, const sl_declined *declined, sl_error *error);

/* Fills fusions and unread of a lowered bucket: at every op that no run covers yet, the first fusion that
 * takes it and those behind it. Then sorts what was noted about the bucket by op. */
int sl_fuse(sl_plan *plan, int32_t bucket, sl_error *error);

/* No weight is packed: all are read where the file is mapped. */
static inline bool sl_plan_maps_all(const sl_plan *plan) {
    return plan->backend->maps_weights && plan->backend->options.no_repack;
}

/* Ops of the run that begins at op `index`; 1 when none does. */
static inline int32_t sl_run_length(const sl_lowered *lowered, int32_t index) {
    return lowered->fusions[index] ? lowered->fusions[index]->count : 1;
}

/* The fusion whose run covers the op; NULL when it stands alone. */
static inline const sl_fusion *sl_run_fusion(const sl_lowered *lowered, int32_t index) {
    for (int32_t first = index; first >= 0 && first > index - SL_FUSED_OPS; first--) {
        if (lowered->fusions[first]) {
            return lowered->fusions[first]->count > index - first ? lowered->fusions[first] : NULL;
        }
    }
    return NULL;
}

/* Is the op the first of a section behind the first one? */
static inline bool sl_begins_section(const sl_lowered *lowered, int32_t index) {
    const sl_op *op = &lowered->ops[index];
    if (op->kind != SL_OP_TRANSFER || op->u.transfer.section == 0) {
        return false;
    }
    for (int32_t i = index - 1; i >= 0; i--) {
        if (lowered->ops[i].kind == SL_OP_TRANSFER) {
            return lowered->ops[i].u.transfer.section != op->u.transfer.section;
        }
    }
    return true;
}

/* Do other parts of the program read the value behind that section of this one? */
static inline bool sl_is_kept(const sl_program *program, int32_t value, int32_t section) {
    for (int32_t i = 0; program->partition && i < program->partition->border_count; i++) {
        const sl_border *border = &program->partition->borders[i];
        if (border->from == program->part && border->kept == section && border->value == value) {
            return true;
        }
    }
    return false;
}

/* Fills value_offsets and scratch_offsets of a lowered bucket; *bytes: what the workspace needs for it. Every
 * value and scratch begins at a multiple of 64, with at least 64 bytes of nothing before and behind it. */
int sl_place(sl_plan *plan, int32_t bucket, uint64_t *bytes, sl_error *error);

/* print.c: what kernels choose by: kind and shape, without names and layers. */
void sl_plan_print_shape(const sl_plan *plan, const sl_lowered *lowered, const sl_op *op, sl_buffer *out);

static inline sl_kernel_query sl_plan_query(const sl_plan *plan, const sl_lowered *lowered, const sl_op *op) {
    const sl_kernel_query query = {.backend = plan->backend,
                                   .program = plan->deployment.program,
                                   .values = lowered->values,
                                   .op = op,
                                   .rows = sl_rows_of_op(lowered, op),
                                   .span_rows = sl_span_rows_of_op(lowered, op),
                                   .limits = &plan->deployment.limits,
                                   .cache_type = plan->options.cache_type};
    return query;
}

/* Of the run of ops from `first` on. */
static inline sl_fusion_query sl_plan_fusion_query(const sl_plan *plan, const sl_lowered *lowered,
                                                   int32_t first) {
    const sl_fusion_query query = {.backend = plan->backend,
                                   .program = plan->deployment.program,
                                   .values = lowered->values,
                                   .ops = &lowered->ops[first],
                                   .kernels = &lowered->kernels[first],
                                   .unread = (const bool(*)[SL_OP_OUTPUTS]) & lowered->unread[first],
                                   .rows = sl_rows_of_op(lowered, &lowered->ops[first]),
                                   .limits = &plan->deployment.limits,
                                   .cache_type = plan->options.cache_type};
    return query;
}

#endif
