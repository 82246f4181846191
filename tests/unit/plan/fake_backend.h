/* A backend of fake kernels for tests of plans: nothing of it computes. */
#ifndef SLUICE_TESTS_FAKE_BACKEND_H
#define SLUICE_TESTS_FAKE_BACKEND_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/plan.h"
#include "unit/program/tiny.h"

typedef struct fake_kernel {
    sl_kernel base;
    int type; /* of a LINEAR's weights; -1: any */
    int32_t least_rows;
    uint64_t scratch;
} fake_kernel;

typedef struct fake_backend {
    sl_backend base;
    uint64_t available;
    int32_t hidden; /* this many kernels at the front are not there */
} fake_backend;

static const char *fake_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const fake_kernel *fake = (const fake_kernel *)kernel;
    if (fake->type >= 0 &&
        (int)query->program->weights[query->op->u.linear.segments[0].weight].type != fake->type) {
        return "another weight type";
    }
    return query->rows[SL_ROWS_STEP] < fake->least_rows ? "too few rows" : NULL;
}

static uint64_t fake_packed_bytes(const sl_weight *weight) {
    return weight->bytes + 7;
}

static void fake_pack(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    (void)weight, (void)packed, (void)first, (void)count;
}

static uint64_t fake_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    return ((const fake_kernel *)kernel)->scratch * (uint64_t)query->rows[SL_ROWS_STEP];
}

#define KERNEL(label, kind, class_name, format, weight_type, rows, scratch_bytes, ...)                       \
    {                                                                                                        \
        {.name = label,                                                                                      \
         .op = SL_OP_##kind,                                                                                 \
         .numeric_class = class_name,                                                                        \
         .activation = SL_VALUE_##format,                                                                    \
         .declines = fake_declines,                                                                          \
         .workspace = fake_workspace,                                                                        \
         __VA_ARGS__},                                                                                       \
            weight_type, rows, scratch_bytes                                                                 \
    }
#define PACKED .packed_bytes = fake_packed_bytes, .pack = fake_pack
static const fake_kernel FAKES[] = {
    KERNEL("linear/q4_0/wide", LINEAR, "int8-wide", Q8_32, SL_QTYPE_Q4_0, 4, 1000),
    KERNEL("linear/q4_0/many", LINEAR, "int8", Q8_32, SL_QTYPE_Q4_0, 8, 100),
    KERNEL("linear/q4_0", LINEAR, "int8", Q8_32, SL_QTYPE_Q4_0, 0, 0),
    KERNEL("linear/q8_0", LINEAR, "int8", Q8_32, SL_QTYPE_Q8_0, 0, 0, PACKED),
    KERNEL("linear/f16", LINEAR, "f32", F32, SL_QTYPE_F16, 0, 0),
    KERNEL("linear/f32", LINEAR, "f32", F32, SL_QTYPE_F32, 0, 33),
    KERNEL("begin", BEGIN, "exact", F32, -1, 0, 0),
    KERNEL("embed", EMBED, "exact", F32, -1, 0, 0),
    KERNEL("rmsnorm", RMSNORM, "f32", F32, -1, 0, 0),
    KERNEL("quantize", QUANTIZE, "exact", F32, -1, 0, 0),
    KERNEL("rope/steady", ROPE, "steady", F32, -1, 0, 0, .deterministic = true),
    KERNEL("rope", ROPE, "f32", F32, -1, 0, 0),
    KERNEL("cache_write", CACHE_WRITE, "exact", F32, -1, 0, 0),
    KERNEL("attention/narrow", ATTENTION, "f16", F32, -1, 0, 0, .precisions = SL_PRECISION_BIT(INT8)),
    KERNEL("attention", ATTENTION, "f32", F32, -1, 0, 4096),
    KERNEL("attention/asked", ATTENTION, "f16", F32, -1, 0, 0, .on_request = true),
    KERNEL("attention/cut", ATTENTION, "f16", F32, -1, 0, 0, .cut_dependent = true),
    KERNEL("router", ROUTER, "f32", F32, -1, 0, 0),
    KERNEL("combine", COMBINE, "f32", F32, -1, 0, 0),
    KERNEL("activate", ACTIVATE, "f32", F32, -1, 0, 0),
    KERNEL("conv", CONV, "f32", F32, -1, 0, 0),
    KERNEL("delta_scan", DELTA_SCAN, "f32", F32, -1, 0, 0),
    KERNEL("ssm_scan", SSM_SCAN, "f32", F32, -1, 0, 0),
    KERNEL("gather", GATHER, "exact", F32, -1, 0, 0),
    KERNEL("softcap", SOFTCAP, "f32", F32, -1, 0, 0),
    KERNEL("sample", SAMPLE, "f32", F32, -1, 0, 0),
    KERNEL("fetch", FETCH, "exact", F32, -1, 0, 0),
};
enum { FAKE_COUNT = sizeof FAKES / sizeof *FAKES };

static const sl_kernel *const *fake_kernels(const sl_backend *backend, int32_t *count) {
    static const sl_kernel *list[FAKE_COUNT];
    const int32_t hidden = ((const fake_backend *)backend)->hidden;
    for (int32_t i = 0; i < FAKE_COUNT; i++) {
        list[i] = &FAKES[i].base;
    }
    *count = FAKE_COUNT - hidden;
    return list + hidden;
}

static uint64_t fake_available(const sl_backend *backend) {
    return ((const fake_backend *)backend)->available;
}

static const sl_backend_functions FAKE_FUNCTIONS = {.kernels = fake_kernels,
                                                    .memory_available = fake_available};

static fake_backend fake(bool fixed_buckets, bool maps_weights) {
    return (fake_backend){.base = {.functions = &FAKE_FUNCTIONS,
                                   .name = "fake",
                                   .description = "no device",
                                   .steps_in_flight = 1,
                                   .chunk = 512,
                                   .fixed_buckets = fixed_buckets,
                                   .maps_weights = maps_weights},
                          .available = UINT64_MAX};
}

static const tiny_types TYPES = {SL_QTYPE_Q8_0, SL_QTYPE_Q8_0, SL_QTYPE_F16, SL_QTYPE_Q4_0};

static sl_plan *make(sl_program *program, fake_backend *backend, const sl_plan_options *options) {
    sl_error error;
    sl_plan *plan = NULL;
    if (sl_plan_create(program, &backend->base, options, &plan, &error)) {
        fail_msg("%s", error.message);
    }
    return plan;
}

/* Bytes of all pools, which the memory table must have. */
static inline uint64_t total_of(const sl_plan *plan) {
    uint64_t pools = 0;
    for (int p = 0; p < SL_POOL_COUNT; p++) {
        uint64_t rows = 0;
        for (int32_t i = 0; i < plan->memory_count; i++) {
            rows += plan->memory[i].pool == (sl_pool_kind)p ? plan->memory[i].bytes : 0;
        }
        assert_true(rows == plan->deployment.pool_bytes[p]);
        pools += rows;
    }
    return pools;
}

#endif
