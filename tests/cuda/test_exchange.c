/* ALL_REDUCE and ALL_GATHER between ranks (src/backend/cuda/exchange), bit by bit, and sums whose norm is in
 * the same launch, against the norm's own kernels.
 *
 * A rank alone is played its part by hand: what the others would have written lies in its memory before it
 * begins, as exchange.h says, and what it writes to theirs is compared with that text too. Ranks together
 * run calls in graphs, on two devices, or on one if there is no other (of the emulated GPU on two alone).
 *
 *     test_exchange [--only CASE]
 *     test_exchange --absent     a rank that never comes; takes as long as others wait for it
 *     test_exchange --bench      microseconds of a call; needs two devices */
#include "backend/cuda/exchange/exchange.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const sl_cuda_family sl_cuda_family_exchange, sl_cuda_family_reduce_norm, sl_cuda_family_row_ops;

enum { SKIPPED = 77, RANKS = 3, CALLS = 7, BENCH_CALLS = 200, BENCH_RUNS = 7, SHARED_PROCESSORS = 8 };

#define CHECK_CUDA(call)                                                                                     \
    do {                                                                                                     \
        const cudaError_t code_ = (call);                                                                    \
        if (code_ != cudaSuccess) {                                                                          \
            printf("FAILED %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_));          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

typedef struct exchange_case {
    const char *name;
    sl_op_kind kind;
    int32_t bucket, rows;          /* of the bucket, and of its steps */
    int32_t width, stride, column; /* of x in its rows */
    int32_t ranks;
    /* A sum's norm behind it, of rows that begin at column 0, and what that is quantized to. */
    bool has_norm, is_quantized;
    sl_value_type format;
    sl_residual residual;
    bool is_unread; /* the sum, and the norm where it is quantized */
    bool is_apart;  /* the sum by a launch of its own */
} exchange_case;

#define REDUCE .kind = SL_OP_ALL_REDUCE
#define NORM .has_norm = true
#define TO(type) .is_quantized = true, .format = SL_VALUE_##type
#define BEFORE .residual = SL_RESIDUAL_BEFORE
#define GATHER .kind = SL_OP_ALL_GATHER
static const exchange_case cases[] = {
    {"sum, one row", REDUCE, 1, 1, 256, 256, 0, 2},
    {"sum, one row of three ranks", REDUCE, 1, 1, 1028, 1028, 0, 3},
    {"sum, fewer rows than the bucket", REDUCE, 8, 5, 260, 260, 0, 2},
    {"sum, columns of wider rows", REDUCE, 6, 6, 64, 100, 8, 2},
    {"sum, rows that lie odd", REDUCE, 5, 5, 37, 41, 3, 2},
    {"sum, large", REDUCE, 40, 40, 4096, 4096, 0, 2},
    {"sum, large, fewer rows, three ranks", REDUCE, 40, 33, 4096, 4100, 4, 3},
    {"sum, large, rows that lie odd", REDUCE, 33, 33, 4099, 4101, 1, 2},
    {"sum, large, few rows of a large bucket", REDUCE, 64, 1, 2052, 2052, 0, 3},
    {"norm, one row", REDUCE, 1, 1, 4096, 4096, 0, 2, NORM, TO(Q8_32), BEFORE},
    {"norm, unread, three ranks", REDUCE, 8, 5, 4096, 4096, 0, 3, NORM, TO(BF16), BEFORE, .is_unread = true},
    {"norm, unread, narrow", REDUCE, 40, 33, 256, 260, 0, 2, NORM, TO(Q8_32), .is_unread = true},
    {"norm, not quantized, residual behind", REDUCE, 3, 3, 2560, 2560, 0, 2, NORM,
     .residual = SL_RESIDUAL_AFTER},
    {"norm, codes", REDUCE, 4, 3, 2048, 2048, 0, 2, NORM, TO(Q8_256), BEFORE},
    {"norm, wide", REDUCE, 2, 2, 8192, 8192, 0, 3, NORM, TO(Q8_32), BEFORE},
    {"norm, two quads a lane", REDUCE, 2, 1, 192, 192, 0, 2, NORM, TO(Q8_32), BEFORE},
    {"columns, one row", GATHER, 1, 1, 256, 256, 0, 2},
    {"columns, three ranks", GATHER, 4, 3, 132, 132, 0, 3},
    {"columns, rows that lie odd", GATHER, 3, 3, 33, 35, 1, 2},
    {"columns, large", GATHER, 9, 8, 16388, 16388, 0, 2},
    {"columns, large, three ranks, rows that lie odd", GATHER, 5, 5, 14001, 14001, 0, 3},
};

/* ---- ranks ---- */

enum { LAUNCHES = 3 };

/* Parts of the memory of norms, of part_bytes each. */
typedef enum norm_part {
    PART_RESIDUAL,
    PART_WEIGHT,
    PART_X,      /* the norm's alone */
    PART_RESULT, /* y, sum, q */
    PART_EXPECTED = PART_RESULT + 3,
    PART_COUNT = PART_EXPECTED + 3
} norm_part;

typedef struct rank {
    int device;
    cudaStream_t stream;
    unsigned char *pool;        /* on the device */
    sl_cuda_exchange *exchange; /* likewise */
    sl_step_header *header;
    float *x, *y;
    sl_cuda_meeting *meeting; /* pinned */
    float *host_x;
    uint64_t x_bytes, y_bytes;
    unsigned char *norm; /* [PART_COUNT], or NULL */
    sl_op ops[LAUNCHES];
    sl_program program;
    int32_t rows[SL_ROWS_COUNT];
    sl_cuda_op launches[LAUNCHES];
    int32_t apart; /* of them the first is a run of its own */
    sl_cuda_context context;
} rank;

static uint64_t slot_bytes(const exchange_case *c) {
    return sl_exchange_need(c->ranks, sl_exchange_x_bytes(c->bucket, c->width));
}

static uint64_t pool_bytes(const exchange_case *c) {
    return SL_EXCHANGE_FLAGS + SL_EXCHANGE_TURNS * (uint64_t)c->ranks * slot_bytes(c);
}

/* Every rank its own numbers, of both signs and many sizes. */
static float number(uint32_t seed) {
    uint32_t z = seed * 2654435769u + 12345u;
    z = (z ^ z >> 15) * 0x2c1b3c6du;
    z = (z ^ z >> 12) * 0x297a2d39u;
    z ^= z >> 15;
    return ((float)(z & 0xffffffu) - 8388608.0f) * (z >> 24 & 1 ? 1.0f : 3.7252903e-09f);
}

static void fill(const exchange_case *c, float *x, int32_t of_rank) {
    for (int32_t i = 0; i < c->bucket * c->stride; i++) {
        x[i] = number((uint32_t)(of_rank * 10000019 + i));
    }
}

static sl_cuda_operand operand(const void *data, int32_t width, int32_t column) {
    return (sl_cuda_operand){.data = (unsigned char *)(uintptr_t)data,
                             .row_bytes = (uint64_t)width * sizeof(float),
                             .width = width,
                             .column = column,
                             .type = SL_VALUE_F32,
                             .rows = SL_ROWS_STEP};
}

static const sl_cuda_kernel *kernel_of(const sl_cuda_family *family, sl_op_kind kind) {
    size_t i = 0;
    while (family->kernels[i].kernel.op != kind) {
        i++;
    }
    return &family->kernels[i];
}

static const sl_cuda_fusion *fusion_of(const sl_cuda_family *family, int32_t count, sl_op_kind first) {
    size_t i = 0;
    while (family->fusions[i].fusion.count != count || family->fusions[i].fusion.ops[0] != first) {
        i++;
    }
    return &family->fusions[i];
}

static uint64_t part_bytes(const exchange_case *c) {
    return ((uint64_t)c->bucket * (uint64_t)c->width * sizeof(float) + 255) / 256 * 256;
}

static unsigned char *part(const exchange_case *c, const rank *r, int at) {
    return r->norm + (uint64_t)at * part_bytes(c);
}

static void set_rows(const rank *r, int32_t rows) {
    const sl_step_header header = {.rows = rows};
    CHECK_CUDA(cudaSetDevice(r->device));
    CHECK_CUDA(cudaMemcpy(r->header, &header, sizeof header, cudaMemcpyHostToDevice));
}

/* The norm at launches[1] and the QUANTIZE behind it, with results from part `results` on. */
static void resolve_norm(const exchange_case *c, rank *r, int results) {
    sl_cuda_op *norm = &r->launches[1], *quantize = &r->launches[2];
    const bool has_residual = c->residual != SL_RESIDUAL_NONE;
    r->ops[1] = (sl_op){.kind = SL_OP_RMSNORM, .in = {{0, 0}, {1, 0}, {SL_NONE, 0}}, .out = {{2, 0}, {3, 0}}};
    r->ops[1].u.rmsnorm = (sl_op_rmsnorm){.width = c->width,
                                          .stride = c->width,
                                          .groups = 1,
                                          .epsilon = 1e-5f,
                                          .x_factor = 1,
                                          .y_factor = 1,
                                          .residual = c->residual};
    r->ops[2] = (sl_op){.kind = SL_OP_QUANTIZE, .u.quantize.width = c->width};
    for (int i = 1; i < LAUNCHES; i++) {
        r->launches[i] = (sl_cuda_op){
            .op = &r->ops[i], .rows = r->rows, .program = &r->program, .run_length = LAUNCHES - i};
        r->launches[i].kernel = kernel_of(&sl_cuda_family_row_ops, r->ops[i].kind);
    }
    norm->in[0] = r->launches[0].out[0];
    norm->weights[0].data = part(c, r, PART_WEIGHT);
    norm->out[0] = operand(part(c, r, results), c->width, 0);
    if (has_residual) {
        norm->in[1] = operand(part(c, r, PART_RESIDUAL), c->width, 0);
        norm->out[1] = operand(part(c, r, results + 1), c->width, 0);
    }
    quantize->in[0] = norm->out[0];
    quantize->out[0] = operand(part(c, r, results + 2), c->width, 0);
    quantize->out[0].type = c->format;
    quantize->out[0].row_bytes = sl_value_row_bytes(c->format, c->width);
    norm->unread[0] = c->is_unread && c->is_quantized;
    r->launches[0].unread[0] = c->is_unread;
}

static void make_norm(const exchange_case *c, rank *r) {
    const uint64_t count = part_bytes(c) / sizeof(float);
    float *numbers = malloc(part_bytes(c));
    if (!numbers) {
        exit(1);
    }
    CHECK_CUDA(cudaMalloc((void **)&r->norm, PART_COUNT * part_bytes(c)));
    CHECK_CUDA(cudaMemset(r->norm, 255, PART_COUNT * part_bytes(c)));
    for (int at = PART_RESIDUAL; at <= PART_WEIGHT; at++) {
        for (uint64_t i = 0; i < count; i++) {
            numbers[i] = number((uint32_t)(at * 7919 + 31 + (int32_t)i)) * (at == PART_WEIGHT ? 1e-7f : 1.0f);
        }
        CHECK_CUDA(cudaMemcpy(part(c, r, at), numbers, part_bytes(c), cudaMemcpyHostToDevice));
    }
    free(numbers);
    resolve_norm(c, r, PART_RESULT);
    r->apart = c->is_apart;
    sl_cuda_op *first = &r->launches[c->is_apart];
    first->run_length = (c->is_quantized ? 3 : 2) - c->is_apart;
    first->fusion = fusion_of(c->is_apart ? &sl_cuda_family_row_ops : &sl_cuda_family_reduce_norm,
                              first->run_length, first->op->kind);
}

static void resolve(const exchange_case *c, rank *r) {
    const bool sums = c->kind == SL_OP_ALL_REDUCE;
    sl_cuda_op *launch = &r->launches[0];
    r->ops[0] = (sl_op){.kind = c->kind};
    if (sums) {
        r->ops[0].u.all_reduce.width = c->width;
    } else {
        r->ops[0].u.all_gather = (sl_op_all_gather){.width = c->width, .ranks = c->ranks};
    }
    r->program.ranks = c->ranks;
    r->rows[SL_ROWS_STEP] = c->bucket;
    *launch = (sl_cuda_op){.op = &r->ops[0], .rows = r->rows, .program = &r->program, .run_length = 1};
    launch->kernel = kernel_of(&sl_cuda_family_exchange, c->kind);
    launch->in[0] = operand(r->x, c->stride, c->column);
    launch->out[0] = sums ? launch->in[0] : operand(r->y, c->ranks * c->width, 0);
    if (c->has_norm) {
        make_norm(c, r);
    }
}

static void make_rank(const exchange_case *c, rank *r, int device, int32_t index) {
    struct cudaDeviceProp properties;
    memset(r, 0, sizeof *r);
    r->device = device;
    r->x_bytes = (uint64_t)c->bucket * (uint64_t)c->stride * sizeof(float);
    r->y_bytes = (uint64_t)c->bucket * (uint64_t)c->ranks * (uint64_t)c->width * sizeof(float);
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
    CHECK_CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc((void **)&r->pool, pool_bytes(c)));
    CHECK_CUDA(cudaMalloc((void **)&r->exchange, sizeof *r->exchange));
    CHECK_CUDA(cudaMalloc((void **)&r->header, sizeof *r->header));
    CHECK_CUDA(cudaMalloc((void **)&r->x, r->x_bytes));
    CHECK_CUDA(cudaMalloc((void **)&r->y, r->y_bytes));
    CHECK_CUDA(cudaMallocHost((void **)&r->meeting, sizeof *r->meeting));
    *r->meeting = (sl_cuda_meeting){0};
    CHECK_CUDA(cudaMemset(r->pool, 0, pool_bytes(c)));
    CHECK_CUDA(cudaMemset(r->exchange, 0, sizeof *r->exchange));
    CHECK_CUDA(cudaMemset(r->y, 255, r->y_bytes));
    r->host_x = malloc(r->x_bytes);
    if (!r->host_x) {
        exit(1);
    }
    fill(c, r->host_x, index);
    CHECK_CUDA(cudaMemcpy(r->x, r->host_x, r->x_bytes, cudaMemcpyHostToDevice));
    set_rows(r, c->rows);
    resolve(c, r);
    r->context.header = r->header;
    r->context.exchange = r->exchange;
    r->context.processors = properties.multiProcessorCount;
    r->context.dependent_launches = properties.major >= 9;
    CHECK_CUDA(cudaDeviceSynchronize());
}

static void join_ranks(const exchange_case *c, rank *ranks, unsigned char *const *pools) {
    for (int32_t i = 0; i < c->ranks; i++) {
        sl_cuda_exchange exchange = {.rank = i, .ranks = c->ranks, .slot_bytes = slot_bytes(c)};
        exchange.meeting = ranks[i].meeting;
        for (int32_t k = 0; k < c->ranks; k++) {
            exchange.pools[k] = pools ? pools[k] : ranks[k].pool;
        }
        CHECK_CUDA(cudaSetDevice(ranks[i].device));
        CHECK_CUDA(cudaMemcpy(ranks[i].exchange, &exchange, sizeof exchange, cudaMemcpyHostToDevice));
        CHECK_CUDA(cudaDeviceSynchronize());
    }
}

static void free_rank(rank *r) {
    CHECK_CUDA(cudaSetDevice(r->device));
    CHECK_CUDA(cudaStreamDestroy(r->stream));
    CHECK_CUDA(cudaFree(r->pool));
    CHECK_CUDA(cudaFree(r->exchange));
    CHECK_CUDA(cudaFree(r->header));
    CHECK_CUDA(cudaFree(r->x));
    CHECK_CUDA(cudaFree(r->y));
    CHECK_CUDA(cudaFree(r->norm));
    CHECK_CUDA(cudaFreeHost(r->meeting));
    free(r->host_x);
}

static void launch(const rank *r) {
    for (int32_t i = 0; i <= r->apart; i++) {
        CHECK_CUDA(sl_cuda_run_of(&r->launches[i])(&r->context, &r->launches[i], r->stream));
    }
}

/* ---- what is expected ---- */

static int wrong(const exchange_case *c, const char *what, uint64_t at) {
    printf("FAILED %s: %s, at %llu\n", c->name, what, (unsigned long long)at);
    return 1;
}

/* The next call's x, in place, of a sum: of all ranks. Columns and rows beside it stay as they are. */
static void add_up(const exchange_case *c, float *const *x) {
    for (int32_t row = 0; row < c->rows; row++) {
        for (int32_t i = 0; i < c->width; i++) {
            const int64_t at = (int64_t)row * c->stride + c->column + i;
            volatile float sum = x[0][at];
            for (int32_t r = 1; r < c->ranks; r++) {
                sum = sum + x[r][at];
            }
            for (int32_t r = 0; r < c->ranks; r++) {
                x[r][at] = sum;
            }
        }
    }
}

/* What the device has of a rank, against x (of a sum its result), and all ranks' x of columns. */
static int check_result(const exchange_case *c, const rank *r, float *const *x, int32_t own) {
    int failed = 0;
    float *got = malloc(r->x_bytes > r->y_bytes ? r->x_bytes : r->y_bytes);
    if (!got) {
        exit(1);
    }
    CHECK_CUDA(cudaSetDevice(r->device));
    CHECK_CUDA(cudaMemcpy(got, r->x, r->x_bytes, cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < r->x_bytes / sizeof *got && !failed; i++) {
        failed = memcmp(&got[i], &x[own][i], sizeof *got) ? wrong(c, "x", i) : 0;
    }
    CHECK_CUDA(cudaMemcpy(got, r->y, r->y_bytes, cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < r->y_bytes / sizeof *got && !failed; i++) {
        const uint64_t all = (uint64_t)c->ranks * (uint64_t)c->width;
        const int32_t row = (int32_t)(i / all), from = (int32_t)(i % all) / c->width;
        const int64_t at = (int64_t)row * c->stride + c->column + (int32_t)(i % all) % c->width;
        const uint32_t untouched = UINT32_MAX;
        const bool written = c->kind == SL_OP_ALL_GATHER && row < c->rows;
        failed = memcmp(&got[i], written ? (const void *)&x[from][at] : &untouched, sizeof *got)
                     ? wrong(c, "y", i)
                     : 0;
    }
    free(got);
    return failed;
}

/* What the norm left, against what its own kernels make of the sums in x. */
static int check_norm(const exchange_case *c, rank *r, const float *x) {
    const uint64_t row_bytes = (uint64_t)c->width * sizeof *x, bytes = 3 * part_bytes(c);
    unsigned char *got = malloc(bytes), *expected = malloc(bytes);
    sl_cuda_op kept[LAUNCHES];
    int failed = 0;
    if (!got || !expected) {
        exit(1);
    }
    memcpy(kept, r->launches, sizeof kept);
    CHECK_CUDA(cudaSetDevice(r->device));
    for (int32_t row = 0; row < c->rows; row++) {
        CHECK_CUDA(cudaMemcpy(part(c, r, PART_X) + (uint64_t)row * row_bytes, x + (int64_t)row * c->stride,
                              row_bytes, cudaMemcpyHostToDevice));
    }
    CHECK_CUDA(cudaMemset(part(c, r, PART_EXPECTED), 255, bytes));
    CHECK_CUDA(cudaDeviceSynchronize()); /* ranks' streams do not wait for the default one */
    resolve_norm(c, r, PART_EXPECTED);
    r->launches[1].in[0] = operand(part(c, r, PART_X), c->width, 0);
    for (int32_t i = 1; i <= (c->is_quantized ? 2 : 1); i++) {
        CHECK_CUDA(r->launches[i].kernel->run(&r->context, &r->launches[i], r->stream));
        CHECK_CUDA(cudaStreamSynchronize(r->stream));
    }
    if (kept[1].unread[0]) {
        CHECK_CUDA(cudaMemset(part(c, r, PART_EXPECTED), 255, part_bytes(c)));
    }
    CHECK_CUDA(cudaMemcpy(got, part(c, r, PART_RESULT), bytes, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(expected, part(c, r, PART_EXPECTED), bytes, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemset(part(c, r, PART_RESULT), 255, bytes));
    CHECK_CUDA(cudaDeviceSynchronize());
    for (uint64_t i = 0; i < bytes && !failed; i++) {
        failed = got[i] != expected[i] ? wrong(c, "y, sum and quantized", i) : 0;
    }
    memcpy(r->launches, kept, sizeof kept);
    free(got);
    free(expected);
    return failed;
}

/* What rank `from` leaves of x in a pool by call `call`, as exchange.h says; bytes that it does not write
 * stay as they are. Every flag of a large call is set. */
static void leave(const exchange_case *c, const float *x, int32_t from, uint64_t call, unsigned char *pool) {
    unsigned char *slot =
        pool + SL_EXCHANGE_FLAGS + ((call % 2) * (uint64_t)c->ranks + (uint64_t)from) * slot_bytes(c);
    const int32_t quads = (c->width + 3) / 4;
    const bool small = sl_exchange_is_small(c->ranks, sl_exchange_x_bytes(c->bucket, c->width));
    const uint32_t mark = (uint32_t)call | 1u;
    for (int32_t row = 0; row < c->rows; row++) {
        for (int32_t i = 0; i < 4 * quads; i++) {
            const float element = i < c->width ? x[(int64_t)row * c->stride + c->column + i] : 0.0f;
            const int64_t at = (int64_t)row * 4 * quads + i;
            if (small) {
                memcpy(slot + 8 * at, &element, sizeof element);
                memcpy(slot + 8 * at + 4, &mark, sizeof mark);
            } else {
                memcpy(slot + 2 * SL_EXCHANGE_SMALL + 4 * at, &element, sizeof element);
            }
        }
    }
    for (int32_t block = 0; block < SL_CUDA_EXCHANGE_BLOCKS && !small; block++) {
        const uint64_t at = (uint64_t)(from * SL_CUDA_EXCHANGE_BLOCKS + block) * SL_CUDA_FLAG_BYTES;
        memcpy(pool + at, &call, sizeof call);
    }
}

/* ---- a rank whose others are played ---- */

/* What it wrote to another's pool: the elements, and the flags of those of its blocks that have any. */
static int check_left(const exchange_case *c, const unsigned char *got, unsigned char *expected,
                      int32_t rank) {
    bool some = false;
    for (int32_t block = 0; block < SL_CUDA_EXCHANGE_BLOCKS; block++) {
        const uint64_t at = (uint64_t)(rank * SL_CUDA_EXCHANGE_BLOCKS + block) * SL_CUDA_FLAG_BYTES;
        uint64_t flag;
        memcpy(&flag, got + at, sizeof flag);
        some = some || flag > 0;
        if (flag == 0) { /* there are fewer blocks */
            memset(expected + at, 0, sizeof flag);
        }
    }
    for (uint64_t i = 0; i < pool_bytes(c); i++) {
        if (got[i] != expected[i]) {
            return wrong(c, "what it left for another rank", i);
        }
    }
    const bool small = sl_exchange_is_small(c->ranks, sl_exchange_x_bytes(c->bucket, c->width));
    return !small && !some ? wrong(c, "no flag", 0) : 0;
}

/* One rank: calls one after the other, each with what the others have left for it. */
static int play(const exchange_case *c, rank *ranks, int32_t own, float *const *x) {
    rank *r = &ranks[own];
    unsigned char *pools[RANKS] = {NULL}, *mine = calloc(1, pool_bytes(c)), *left = calloc(1, pool_bytes(c)),
                  *got = malloc(pool_bytes(c));
    int failed = 0;
    if (!mine || !left || !got) {
        exit(1);
    }
    for (int32_t i = 0; i < c->ranks; i++) {
        pools[i] = ranks[i].pool;
        CHECK_CUDA(cudaMemset(pools[i], 0, pool_bytes(c)));
        fill(c, x[i], i);
    }
    join_ranks(c, ranks, pools);
    set_rows(r, 0); /* a step without rows is no call */
    launch(r);
    CHECK_CUDA(cudaStreamSynchronize(r->stream));
    set_rows(r, c->rows);
    for (uint64_t call = 1; call <= 3 && !failed; call++) {
        for (int32_t i = 0; i < c->ranks; i++) {
            if (i != own) {
                leave(c, x[i], i, call, mine);
            }
        }
        leave(c, x[own], own, call, left);
        CHECK_CUDA(cudaMemcpy(r->pool, mine, pool_bytes(c), cudaMemcpyHostToDevice));
        CHECK_CUDA(cudaDeviceSynchronize());
        launch(r);
        CHECK_CUDA(cudaStreamSynchronize(r->stream));
        for (int32_t i = 0; i < c->ranks && !failed; i++) {
            if (i != own) {
                CHECK_CUDA(cudaMemcpy(got, pools[i], pool_bytes(c), cudaMemcpyDeviceToHost));
                failed = check_left(c, got, left, own);
            }
        }
        failed = failed || (c->is_unread && check_result(c, r, x, own));
        if (c->kind == SL_OP_ALL_REDUCE) {
            add_up(c, x);
        }
        if (c->is_unread) { /* the next call's x */
            CHECK_CUDA(cudaMemcpy(r->x, x[own], r->x_bytes, cudaMemcpyHostToDevice));
        }
        failed = failed || check_result(c, r, x, own) || (c->has_norm && check_norm(c, r, x[own]));
    }
    free(mine);
    free(left);
    free(got);
    return failed;
}

static int run_played(const exchange_case *c) {
    rank ranks[RANKS];
    float *x[RANKS] = {NULL};
    int failed = 0;
    for (int32_t i = 0; i < c->ranks; i++) {
        make_rank(c, &ranks[i], 0, i);
        x[i] = malloc(ranks[i].x_bytes);
        if (!x[i]) {
            exit(1);
        }
        fill(c, x[i], i);
    }
    launch(&ranks[0]); /* not joined yet: a sum stays, columns are the first rank's */
    CHECK_CUDA(cudaStreamSynchronize(ranks[0].stream));
    exchange_case alone = *c;
    alone.ranks = 1;
    if (c->kind == SL_OP_ALL_REDUCE) {
        failed = check_result(&alone, &ranks[0], x, 0) || (c->has_norm && check_norm(c, &ranks[0], x[0]));
    }
    CHECK_CUDA(cudaMemset(ranks[0].y, 255, ranks[0].y_bytes));
    for (int32_t own = 0; own < c->ranks && !failed; own++) {
        failed = play(c, ranks, own, x);
    }
    for (int32_t i = 0; i < c->ranks; i++) {
        free_rank(&ranks[i]);
        free(x[i]);
    }
    return failed;
}

/* ---- ranks together ---- */

static int devices;

/* Rank i's device; on one device there are few blocks of each, so that those of all have room. */
static int device_of(int32_t i, int32_t ranks) {
    return devices >= ranks ? i : 0;
}

/* SKIPPED when some two of the devices do not reach each other. */
static int reach_peers(int32_t ranks) {
    for (int32_t i = 0; i < ranks; i++) {
        CHECK_CUDA(cudaSetDevice(device_of(i, ranks)));
        for (int32_t k = 0; k < ranks; k++) {
            int can = 1;
            if (device_of(i, ranks) == device_of(k, ranks)) {
                continue;
            }
            CHECK_CUDA(cudaDeviceCanAccessPeer(&can, i, k));
            if (!can) {
                printf("skipped: devices %d and %d do not reach each other's memory\n", (int)i, (int)k);
                return SKIPPED;
            }
            const cudaError_t code = cudaDeviceEnablePeerAccess(k, 0);
            if (code == cudaErrorPeerAccessAlreadyEnabled) {
                cudaGetLastError();
            } else {
                CHECK_CUDA(code);
            }
        }
    }
    return 0;
}

static cudaGraphExec_t capture(const rank *r, int32_t calls) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK_CUDA(cudaSetDevice(r->device));
    launch(r); /* loads the kernel; alone, so that it waits for nobody */
    CHECK_CUDA(cudaStreamSynchronize(r->stream));
    CHECK_CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    for (int32_t i = 0; i < calls; i++) {
        launch(r);
    }
    CHECK_CUDA(cudaStreamEndCapture(r->stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CHECK_CUDA(cudaGraphUpload(executable, r->stream));
    CHECK_CUDA(cudaStreamSynchronize(r->stream));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return executable;
}

static void start(const rank *ranks, const cudaGraphExec_t *graphs, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        CHECK_CUDA(cudaSetDevice(ranks[i].device));
        CHECK_CUDA(cudaGraphLaunch(graphs[i], ranks[i].stream));
    }
}

static void finish(const rank *ranks, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        CHECK_CUDA(cudaSetDevice(ranks[i].device));
        CHECK_CUDA(cudaStreamSynchronize(ranks[i].stream));
    }
}

/* Graphs of calls, three times; the ranks begin in turns one after the other. */
static int run_together(const exchange_case *c) {
    rank ranks[RANKS];
    cudaGraphExec_t graphs[RANKS];
    float *x[RANKS];
    int failed = 0;
    if (c->is_unread || reach_peers(c->ranks)) { /* every call would be the same */
        return 0;
    }
    for (int32_t i = 0; i < c->ranks; i++) {
        make_rank(c, &ranks[i], device_of(i, c->ranks), i);
        if (devices < c->ranks) {
            ranks[i].context.processors = SHARED_PROCESSORS;
        }
        x[i] = ranks[i].host_x;
        graphs[i] = capture(&ranks[i], CALLS);
    }
    join_ranks(c, ranks, NULL);
    for (int32_t run = 0; run < 3 && !failed; run++) {
        start(ranks, graphs, c->ranks);
        finish(ranks, c->ranks);
        for (int32_t call = 0; call < CALLS && c->kind == SL_OP_ALL_REDUCE; call++) {
            add_up(c, x);
        }
        for (int32_t i = 0; i < c->ranks && !failed; i++) {
            failed = check_result(c, &ranks[i], x, i) || (c->has_norm && check_norm(c, &ranks[i], x[i]));
        }
    }
    for (int32_t i = 0; i < c->ranks; i++) {
        CHECK_CUDA(cudaSetDevice(ranks[i].device));
        CHECK_CUDA(cudaGraphExecDestroy(graphs[i]));
        free_rank(&ranks[i]);
    }
    return failed;
}

/* ---- a rank that never comes ---- */

static int run_absent(void) {
    rank ranks[2];
    const exchange_case *c = &cases[0];
    for (int32_t i = 0; i < 2; i++) {
        make_rank(c, &ranks[i], 0, i);
    }
    join_ranks(c, ranks, NULL);
    launch(&ranks[0]);
    const cudaError_t code = cudaStreamSynchronize(ranks[0].stream);
    const bool good = code != cudaSuccess && ranks[0].meeting->absent == 2;
    printf("%s: %s, absent: %u\n", good ? "passed" : "FAILED", cudaGetErrorString(code),
           ranks[0].meeting->absent);
    return !good;
}

/* ---- times ---- */

/* Milliseconds of the graphs of both, the fastest of some runs. */
static float fastest(const rank *ranks, const cudaGraphExec_t *graphs) {
    float best = 0;
    cudaEvent_t begin[2], end[2];
    for (int i = 0; i < 2; i++) {
        CHECK_CUDA(cudaSetDevice(ranks[i].device));
        CHECK_CUDA(cudaEventCreate(&begin[i]));
        CHECK_CUDA(cudaEventCreate(&end[i]));
    }
    for (int run = 0; run < BENCH_RUNS; run++) {
        float slower = 0;
        for (int i = 0; i < 2; i++) {
            CHECK_CUDA(cudaSetDevice(ranks[i].device));
            CHECK_CUDA(cudaGraphLaunch(graphs[i], ranks[i].stream)); /* both are under way then */
            CHECK_CUDA(cudaEventRecord(begin[i], ranks[i].stream));
            CHECK_CUDA(cudaGraphLaunch(graphs[i], ranks[i].stream));
            CHECK_CUDA(cudaEventRecord(end[i], ranks[i].stream));
        }
        finish(ranks, 2);
        for (int i = 0; i < 2; i++) {
            float milliseconds = 0;
            CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin[i], end[i]));
            slower = milliseconds > slower ? milliseconds : slower;
        }
        best = run == 0 || slower < best ? slower : best;
    }
    for (int i = 0; i < 2; i++) {
        CHECK_CUDA(cudaEventDestroy(begin[i]));
        CHECK_CUDA(cudaEventDestroy(end[i]));
    }
    return best;
}

static void bench_case(const exchange_case *c) {
    rank ranks[2];
    cudaGraphExec_t graphs[2];
    const uint64_t bytes = sl_exchange_x_bytes(c->rows, c->width);
    for (int32_t i = 0; i < 2; i++) {
        make_rank(c, &ranks[i], i, i);
        CHECK_CUDA(cudaMemset(ranks[i].x, 0, ranks[i].x_bytes)); /* sums that do not grow */
        CHECK_CUDA(cudaDeviceSynchronize());
        graphs[i] = capture(&ranks[i], BENCH_CALLS);
    }
    const double alone = 1e3 * (double)fastest(ranks, graphs) / BENCH_CALLS;
    join_ranks(c, ranks, NULL);
    const double joined = 1e3 * (double)fastest(ranks, graphs) / BENCH_CALLS;
    printf("%-10s %5d x %6d %9.1f KB %s %8.2f us a call, %7.2f GB/s each way (alone %.2f us)\n",
           c->is_apart                   ? "two"
           : c->has_norm                 ? "with norm"
           : c->kind == SL_OP_ALL_REDUCE ? "all_reduce"
                                         : "all_gather",
           (int)c->rows, (int)c->width, (double)bytes / 1024,
           sl_exchange_is_small(2, bytes) ? "small" : "large", joined, 1e-3 * (double)bytes / joined, alone);
    fflush(stdout);
    for (int32_t i = 0; i < 2; i++) {
        CHECK_CUDA(cudaSetDevice(ranks[i].device));
        CHECK_CUDA(cudaGraphExecDestroy(graphs[i]));
        free_rank(&ranks[i]);
    }
}

static int bench(void) {
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 33, 64, 128, 256, 512, 2048};
    if (devices < 2) {
        printf("skipped: there is one device; times are those of two\n");
        return SKIPPED;
    }
    if (reach_peers(2)) {
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const exchange_case reduce = {"", REDUCE, rows[i], rows[i], 4096, 4096, 0, 2};
        bench_case(&reduce);
    }
    for (int32_t count = 1; count <= 32; count *= 2) { /* with the norm, by one launch and by two */
        exchange_case norm = {"", REDUCE, count, count, 4096, 4096, 0, 2, NORM, TO(Q8_32), BEFORE};
        norm.is_unread = true;
        bench_case(&norm);
        norm.is_apart = true;
        bench_case(&norm);
    }
    for (int32_t outputs = 1; outputs <= 64; outputs *= 8) {
        const exchange_case gather = {"", GATHER, outputs, outputs, 75968, 75968, 0, 2};
        bench_case(&gather);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : NULL;
    const bool absent = argc == 2 && strcmp(argv[1], "--absent") == 0;
    const bool times = argc == 2 && strcmp(argv[1], "--bench") == 0;
    if (argc > 1 && !only && !absent && !times) {
        printf("usage: test_exchange [--only CASE | --absent | --bench]\n");
        return 2;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: there is no GPU\n");
        return SKIPPED;
    }
    if (absent || times) {
        return absent ? run_absent() : bench();
    }
#ifdef SLUICE_EMULATED
    const int32_t most = devices, elements = 20000; /* more, and what ranks of one device share, takes long */
#else
    const int32_t most = RANKS, elements = INT32_MAX;
#endif
    int passed = 0, failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!only || strstr(cases[i].name, only)) {
            const int wrong_alone = run_played(&cases[i]);
            const bool meet = cases[i].ranks <= most && cases[i].bucket * cases[i].width <= elements;
            const int wrong_together = meet ? run_together(&cases[i]) : 0;
            passed += !wrong_alone && !wrong_together;
            failed += wrong_alone || wrong_together;
        }
    }
    printf("%d passed, %d failed; ranks %s\n", passed, failed,
           most < RANKS  ? "of two devices met, but for many elements"
           : devices < 2 ? "met on one device"
           : devices < 3 ? "met on two devices, three of them on one"
                         : "met on devices of their own");
    return failed > 0;
}
