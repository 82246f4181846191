/* Products of eight-bit numbers (src/backend/cuda/linear/narrow) against plain loops: of whole numbers, whose
 * sums every order of adding makes alike, bit by bit; of any E4M3 numbers within what the tensor cores drop.
 * Every shape of tile gives the same bits, and so does every number of rows. Needs a GPU with compute
 * capability 9.0.
 *
 *     test_narrow [--only CASE]
 *     test_narrow --bench        times of every shape of tile, and of the one that is chosen */
#include "backend/cuda/linear/narrow/narrow.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct narrow_case {
    const char *name;
    sl_narrow_kind kind;
    int32_t rows, outputs, columns, experts;
    bool any_numbers; /* E4M3 of all sizes; else whole numbers */
    bool has_bias, has_residual;
    bool has_blocks; /* of 128 outputs with one scale */
    bool is_gated;   /* half of the outputs are gates, the others their values */
    bool odd;        /* rows of y, residual and bias begin at no multiple of 16 bytes */
    bool not_numbers;
    bool zero_scales;
} narrow_case;

#define E4M3(of_x, of_weights, length)                                                                       \
    .kind = SL_NARROW_E4M3, .rows = of_x, .outputs = of_weights, .columns = length
#define S8(of_x, of_weights, length)                                                                         \
    .kind = SL_NARROW_S8, .rows = of_x, .outputs = of_weights, .columns = length

static const narrow_case cases[] = {
    {"E4M3, one group, one output", E4M3(3, 1, 128)},
    {"E4M3, more than a slot of scales", E4M3(70, 200, 640), .has_bias = true},
    {"E4M3, several tiles, rows that lie odd", E4M3(300, 195, 256), .has_bias = true, .has_residual = true,
     .odd = true},
    {"E4M3, several tiles of rows", E4M3(300, 260, 1152), .has_residual = true},
    {"E4M3, many tiles", E4M3(129, 1030, 128)},
    {"E4M3, any numbers", E4M3(65, 197, 512), .any_numbers = true, .has_bias = true},
    {"E4M3, what is no number", E4M3(66, 130, 256), .any_numbers = true, .not_numbers = true},
    {"E4M3, scales of 0", E4M3(40, 70, 384), .zero_scales = true, .has_bias = true},
    {"E4M3, blocks of outputs", E4M3(140, 460, 640), .has_blocks = true},
    {"E4M3, blocks, experts", E4M3(140, 384, 256), .has_blocks = true, .experts = 3, .has_bias = true},
    {"E4M3, experts", E4M3(300, 200, 256), .experts = 5, .has_bias = true, .has_residual = true},
    {"E4M3, many experts, any numbers", E4M3(160, 70, 128), .experts = 67, .any_numbers = true},
    {"E4M3, gates and values", E4M3(300, 2 * 104, 640), .is_gated = true},
    {"E4M3, gates and values, blocks", E4M3(140, 2 * 384, 640), .is_gated = true, .has_blocks = true},
    {"int8, gates and values", S8(300, 2 * 296, 1280), .is_gated = true},
    {"int8, one group, one output", S8(3, 1, 256)},
    {"int8, more than a slot of scales", S8(70, 200, 1280), .has_bias = true},
    {"int8, several tiles, rows that lie odd", S8(300, 195, 512), .has_bias = true, .has_residual = true,
     .odd = true},
    {"int8, several tiles of rows", S8(300, 260, 768), .has_residual = true},
    {"int8, many tiles", S8(129, 1030, 256)},
    {"int8, what is no number", S8(66, 130, 512), .not_numbers = true},
    {"int8, experts, rows that lie odd", S8(300, 195, 512), .experts = 7, .has_bias = true, .odd = true},
    {"int8, scales of 0", S8(40, 70, 768), .zero_scales = true, .has_bias = true},
};

#define CHECK_CUDA(call)                                                                                     \
    do {                                                                                                     \
        const cudaError_t code_ = (call);                                                                    \
        if (code_ != cudaSuccess) {                                                                          \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_));                            \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static void *allocated(void *memory) {
    if (!memory) {
        printf("out of memory\n");
        exit(1);
    }
    return memory;
}

/* ---- numbers ---- */

static uint64_t random_state;

static uint32_t random_bits(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33);
}

static float random_float(void) {
    return (float)(int32_t)(random_bits() % 2001u - 1000u) / 512.0f;
}

/* OCP 8-bit floating point, E4M3: no infinities, exponent bias 7. */
static double e4m3(unsigned char code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) {
        return NAN;
    }
    const double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -value : value;
}

static unsigned char random_code(const narrow_case *test) {
    static const unsigned char whole[] = {0x00, 0x38, 0x40, 0x44, 0x48}; /* 0 .. 4 */
    if (test->kind == SL_NARROW_S8) {
        return (unsigned char)random_bits();
    }
    if (test->any_numbers) {
        const unsigned char code = (unsigned char)random_bits();
        return (code & 0x7f) == 0x7f ? 0x7e : code;
    }
    return (unsigned char)(whole[random_bits() % 5] | (random_bits() & 1) << 7);
}

static double code_value(const narrow_case *test, unsigned char code) {
    return test->kind == SL_NARROW_S8 ? (double)(int8_t)code : e4m3(code);
}

/* ---- operands on the host ---- */

typedef struct operands {
    int32_t groups, group; /* columns of one */
    uint64_t x_row_bytes, x_scales, x_bytes, weights_bytes, scales_bytes, y_floats, residual_floats;
    uint64_t weight_row_bytes, scale_row; /* scale_row: floats */
    uint64_t y_row, residual_row, first;  /* floats: of a row; in front of the first one */
    unsigned char *x, *weights;
    float *weight_scales, *bias, *residual;
    int32_t experts, bias_floats; /* experts: one without */
    int32_t *offsets, *list;      /* the schedule; without experts row i's result is row i */
} operands;

static float *x_scale(const operands *host, int32_t row, int32_t group) {
    return (float *)(void *)(host->x + (uint64_t)row * host->x_row_bytes + host->x_scales) + group;
}

/* Outputs of an expert that have room for scales. */
static int32_t scaled_outputs(const narrow_case *test) {
    return test->kind == SL_NARROW_S8 ? (test->outputs + 1) / 2 * 2 : test->outputs;
}

/* row: of all experts' groups. */
static float *weight_scale(const operands *host, const narrow_case *test, int32_t row, int32_t output) {
    const int32_t expert = row / host->groups, group = row % host->groups;
    const uint64_t first = (uint64_t)expert * (uint64_t)scaled_outputs(test) * host->scale_row;
    if (test->kind == SL_NARROW_E4M3) {
        return &host->weight_scales[first + (uint64_t)output * host->scale_row + (uint64_t)group];
    }
    /* Of two outputs and four groups: the even row has groups 0 and 1 of both, the odd one 2 and 3. */
    const int32_t of_row = group / 4 * 4 + group % 2 * 2 + output % 2;
    const int32_t to = output - output % 2 + group % 4 / 2;
    return &host->weight_scales[first + (uint64_t)to * host->scale_row + (uint64_t)of_row];
}

static int32_t expert_of(const operands *host, int32_t row) {
    int32_t expert = 0;
    while (expert + 1 < host->experts && host->offsets[expert + 1] <= row) {
        expert++;
    }
    return expert;
}

/* Some experts have many rows, some none. */
static void fill_schedule(const narrow_case *test, operands *host) {
    for (int32_t i = 0; i < test->rows; i++) {
        host->list[i] = i;
    }
    for (int32_t i = test->rows - 1; i > 0 && test->experts; i--) {
        const int32_t other = (int32_t)(random_bits() % (uint32_t)(i + 1)), row = host->list[i];
        host->list[i] = host->list[other];
        host->list[other] = row;
    }
    for (int32_t i = 0; i < test->rows; i++) {
        const uint32_t experts = (uint32_t)host->experts;
        const uint32_t expert = i % 2 ? random_bits() % experts : experts / 2;
        for (uint32_t e = expert + 1; e <= experts; e++) {
            host->offsets[e]++;
        }
    }
}

static void fill_numbers(const narrow_case *test, operands *host) {
    for (int32_t row = 0; row < test->rows; row++) {
        for (int32_t i = 0; i < test->columns; i++) {
            host->x[(uint64_t)row * host->x_row_bytes + (uint64_t)i] = random_code(test);
        }
        for (int32_t i = 0; i < host->groups; i++) {
            *x_scale(host, row, i) = test->zero_scales && row % 3 == 1 ? 0.0f : random_float();
        }
    }
    for (uint64_t i = 0; i < host->weights_bytes; i++) {
        host->weights[i] = random_code(test);
    }
    for (uint64_t i = 0; i < host->scales_bytes / 4; i++) {
        host->weight_scales[i] = test->zero_scales && i % 5 == 2 ? 0.0f : random_float();
    }
    for (int32_t row = 0; row < host->experts * host->groups && test->has_blocks; row++) {
        for (int32_t i = 0; i < test->outputs; i++) {
            *weight_scale(host, test, row, i) = *weight_scale(host, test, row, i / 128 * 128);
        }
    }
    for (int32_t i = 0; i < host->bias_floats; i++) {
        host->bias[i] = random_float();
    }
    for (uint64_t i = 0; i < host->residual_floats; i++) {
        host->residual[i] = random_float();
    }
}

/* A row, an output, a scale of each, that are not numbers: rows and outputs beside them are. */
static void fill_not_numbers(const narrow_case *test, operands *host) {
    if (test->kind == SL_NARROW_E4M3) {
        host->x[5 * host->x_row_bytes + 7] = 0x7f;
        host->weights[9 * host->weight_row_bytes + 200] = 0xff;
    }
    *x_scale(host, 64, 1) = NAN;
    *x_scale(host, 2, 0) = INFINITY;
    *weight_scale(host, test, 1, 66) = NAN;
}

static operands make_operands(const narrow_case *test) {
    operands host = {.group = sl_narrow_group(test->kind), .experts = test->experts ? test->experts : 1};
    host.groups = test->columns / host.group;
    host.x_scales = (uint64_t)test->columns;
    host.x_row_bytes = (host.x_scales + (uint64_t)host.groups * 4 + 15) / 16 * 16 + 16;
    host.x_bytes = host.x_row_bytes * (uint64_t)test->rows;
    /* Something else lies between rows. */
    host.scale_row = (uint64_t)sl_narrow_scales(test->kind, test->columns) + 4;
    host.weight_row_bytes = (uint64_t)test->columns + 48;
    host.weights_bytes = (uint64_t)host.experts * (uint64_t)test->outputs * host.weight_row_bytes;
    host.scales_bytes = (uint64_t)host.experts * (uint64_t)scaled_outputs(test) * host.scale_row * 4;
    host.bias_floats = host.experts * test->outputs + 1;
    host.first = test->odd ? 1 : 0;
    host.y_row = (uint64_t)(test->outputs + 3) / 4 * 4 + (test->odd ? 5 : 8);
    host.residual_row = host.y_row + (test->odd ? 3 : 4);
    host.y_floats = host.first + host.y_row * (uint64_t)test->rows;
    host.residual_floats = host.first + host.residual_row * (uint64_t)test->rows;
    host.x = allocated(calloc(1, host.x_bytes));
    host.weights = allocated(malloc(host.weights_bytes));
    host.weight_scales = allocated(malloc(host.scales_bytes));
    host.bias = allocated(malloc((size_t)host.bias_floats * 4));
    host.offsets = allocated(calloc((size_t)host.experts + 1, 4));
    host.list = allocated(malloc((size_t)test->rows * 4));
    host.residual = allocated(malloc(host.residual_floats * 4));
    fill_schedule(test, &host);
    fill_numbers(test, &host);
    if (test->not_numbers) {
        fill_not_numbers(test, &host);
    }
    return host;
}

static void free_operands(operands *host) {
    free(host->x);
    free(host->weights);
    free(host->weight_scales);
    free(host->bias);
    free(host->residual);
    free(host->offsets);
    free(host->list);
}

/* ---- what is expected ---- */

/* row: of x. Of one element: the chain of floats with exact sums of groups; the same in double; and the root
 * of the sum of squares of all that is added. */
typedef struct expectation {
    float chain;
    double sum, size;
} expectation;

static expectation expect(const narrow_case *test, const operands *host, int32_t row, int32_t output) {
    expectation result = {0.0f, 0.0, 0.0};
    const unsigned char *x = host->x + (uint64_t)row * host->x_row_bytes;
    const int32_t expert = expert_of(host, row);
    const unsigned char *weights =
        host->weights +
        ((uint64_t)expert * (uint64_t)test->outputs + (uint64_t)output) * host->weight_row_bytes;
    for (int32_t group = 0; group < host->groups; group++) {
        const float scale =
            *x_scale(host, row, group) * *weight_scale(host, test, expert * host->groups + group, output);
        double sum = 0.0, squares = 0.0;
        for (int32_t i = group * host->group; i < (group + 1) * host->group; i++) {
            const double product = code_value(test, x[i]) * code_value(test, weights[i]);
            sum += product;
            squares += product * product;
        }
        result.chain = fmaf(scale, (float)sum, result.chain);
        result.sum += (double)scale * sum;
        result.size += (double)scale * (double)scale * squares;
    }
    result.size = sqrt(result.size);
    float more = result.chain;
    double more_sum = result.sum;
    if (test->has_bias) {
        const float bias =
            host->bias[host->first + (uint64_t)expert * (uint64_t)test->outputs + (uint64_t)output];
        more += bias;
        more_sum += (double)bias;
    }
    if (test->has_residual) {
        const float residual =
            host->residual[host->first + (uint64_t)host->list[row] * host->residual_row + (uint64_t)output];
        more += residual;
        more_sum += (double)residual;
    }
    result.chain = more;
    result.sum = more_sum;
    return result;
}

/* What Hopper's tensor cores drop of E4M3: they align the products of an instruction, and what they add them
 * to, to the largest, and keep some 13 bits behind its first. */
static const double most_dropped = 1.0 / 256.0;

static bool is_expected(const narrow_case *test, const expectation *expected, float got) {
    if (isnan(expected->chain)) {
        return isnan(got);
    }
    if (test->any_numbers && isfinite(expected->chain)) {
        return fabs((double)got - expected->sum) <= most_dropped * expected->size + 1e-30;
    }
    return memcmp(&expected->chain, &got, 4) == 0 || (got == 0.0f && expected->chain == 0.0f);
}

/* ---- on the device ---- */

typedef struct device_operands {
    unsigned char *x, *weights;
    float *weight_scales, *bias, *residual, *y;
    int32_t *rows, *offsets, *list;
} device_operands;

static void *on_device(const void *from, uint64_t bytes) {
    void *memory = NULL;
    CHECK_CUDA(cudaMalloc(&memory, bytes));
    if (from) {
        CHECK_CUDA(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    }
    return memory;
}

static device_operands to_device(const narrow_case *test, const operands *host) {
    return (device_operands){.x = on_device(host->x, host->x_bytes),
                             .weights = on_device(host->weights, host->weights_bytes),
                             .weight_scales = on_device(host->weight_scales, host->scales_bytes),
                             .bias = on_device(host->bias, (uint64_t)host->bias_floats * 4),
                             .residual = on_device(host->residual, host->residual_floats * 4),
                             .y = on_device(NULL, host->y_floats * 4),
                             .rows = on_device(NULL, 4),
                             .offsets = on_device(host->offsets, (uint64_t)(host->experts + 1) * 4),
                             .list = on_device(host->list, (uint64_t)test->rows * 4)};
}

static void free_device(device_operands *device) {
    void *all[] = {device->x, device->weights, device->weight_scales, device->bias, device->residual,
                   device->y, device->rows,    device->offsets,       device->list};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_CUDA(cudaFree(all[i]));
    }
}

static sl_narrow_product product_of(const narrow_case *test, const operands *host,
                                    const device_operands *device) {
    const int32_t width = test->outputs / 2;
    return (sl_narrow_product){
        .kind = test->kind,
        .rows = test->rows,
        .outputs = test->is_gated ? width : test->outputs,
        .columns = test->columns,
        .x = device->x,
        .x_row_bytes = host->x_row_bytes,
        .x_scales = host->x_scales,
        .weights = device->weights,
        .weight_row_bytes = host->weight_row_bytes,
        .weight_scales = device->weight_scales,
        .scale_row_bytes = host->scale_row * 4,
        .has_blocks = test->has_blocks,
        .values = test->is_gated ? device->weights + (uint64_t)width * host->weight_row_bytes : NULL,
        .value_scales = device->weight_scales + (uint64_t)width * host->scale_row,
        .activated = (uint16_t *)(void *)device->y,
        .activated_row_bytes = host->y_row * 4,
        .activation = SL_ACTIVATION_SILU,
        .y = device->y + host->first,
        .y_row_bytes = host->y_row * 4,
        .bias = test->has_bias ? device->bias + host->first : NULL,
        .residual = test->has_residual ? device->residual + host->first : NULL,
        .residual_row_bytes = host->residual_row * 4,
        .true_rows = device->rows,
        .experts = test->experts,
        .offsets = test->experts ? device->offsets : NULL,
        .list = test->experts ? device->list : NULL};
}

static const uint32_t untouched = 0xdeadbeefu;

/* Of a row of y that is written. */
static uint64_t written_floats(const narrow_case *test) {
    return (uint64_t)test->outputs / (test->is_gated ? 4 : 1);
}

static int32_t shapes_of(const narrow_case *test) {
    return test->is_gated ? SL_NARROW_GATED_SHAPES : SL_NARROW_SHAPES;
}

typedef struct narrow_run {
    const narrow_case *test;
    const operands *host;
    const device_operands *device;
    const sl_cuda_context *context;
    cudaStream_t stream;
} narrow_run;

/* y of the first `rows` rows; the others are not written. */
static bool multiply(const narrow_run *run, int32_t shape, int32_t rows, float *y) {
    const operands *host = run->host;
    const sl_narrow_product product = product_of(run->test, host, run->device);
    sl_narrow_plan *plan = allocated(aligned_alloc(64, sizeof *plan));
    sl_error error;
    if (sl_narrow_prepare_shape(&product, shape, plan, &error)) {
        printf("FAILED %s: %s\n", run->test->name, error.message);
        exit(1);
    }
    uint32_t *fill = allocated(malloc(host->y_floats * 4));
    for (uint64_t i = 0; i < host->y_floats; i++) {
        fill[i] = untouched;
    }
    CHECK_CUDA(cudaMemcpy(run->device->y, fill, host->y_floats * 4, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemcpy(run->device->rows, &rows, 4, cudaMemcpyHostToDevice));
    CHECK_CUDA(sl_narrow_launch(run->context, plan, run->stream));
    CHECK_CUDA(cudaStreamSynchronize(run->stream));
    CHECK_CUDA(cudaMemcpy(y, run->device->y, host->y_floats * 4, cudaMemcpyDeviceToHost));
    bool kept = true;
    for (uint64_t i = 0; i < host->y_floats; i++) {
        const bool between = i < host->first || (i - host->first) % host->y_row >= written_floats(run->test);
        if (between || (i - host->first) / host->y_row >= (uint64_t)rows) {
            kept = kept && memcmp(&y[i], &untouched, 4) == 0;
        }
    }
    if (!kept) {
        printf("FAILED %s, shape %d, %d rows: written outside of y\n", run->test->name, (int)shape,
               (int)rows);
    }
    free(fill);
    free(plan);
    return kept;
}

/* BF16 numbers, which have eight bits. */
static bool check_activated(const narrow_case *test, const operands *host, const float *y) {
    const int32_t width = test->outputs / 2;
    for (int32_t row = 0; row < test->rows; row++) {
        for (int32_t output = 0; output < width; output++) {
            const double gate = (double)expect(test, host, row, output).chain;
            const double wanted =
                gate / (1 + exp(-gate)) * (double)expect(test, host, row, width + output).chain;
            uint16_t half;
            memcpy(&half, (const char *)(y + (uint64_t)row * host->y_row) + 2 * output, 2);
            const uint32_t bits = (uint32_t)half << 16;
            float got;
            memcpy(&got, &bits, 4);
            if (!(fabs((double)got - wanted) <= fabs(wanted) / 255 + 1e-30)) {
                printf("FAILED %s: row %d, output %d: %.9g, expected %.9g\n", test->name, (int)row,
                       (int)output, (double)got, wanted);
                return false;
            }
        }
    }
    return true;
}

static bool check_values(const narrow_case *test, const operands *host, const float *y) {
    for (int32_t row = 0; row < test->rows; row++) {
        for (int32_t output = 0; output < test->outputs; output++) {
            const float got = y[host->first + (uint64_t)host->list[row] * host->y_row + (uint64_t)output];
            const expectation expected = expect(test, host, row, output);
            if (!is_expected(test, &expected, got)) {
                printf("FAILED %s: row %d, output %d: %.9g, expected %.9g (%.9g, size %.3g)\n", test->name,
                       (int)row, (int)output, (double)got, (double)expected.chain, expected.sum,
                       expected.size);
                return false;
            }
        }
    }
    return true;
}

/* The first rows' bits. */
static bool same_rows(const narrow_run *run, const float *y, const float *other, int32_t rows) {
    const operands *host = run->host;
    for (int32_t row = 0; row < rows; row++) {
        const uint64_t at = host->first + (uint64_t)row * host->y_row;
        if (memcmp(&y[at], &other[at], written_floats(run->test) * 4) != 0) {
            printf("FAILED %s: row %d of %d has other bits\n", run->test->name, (int)row, (int)rows);
            return false;
        }
    }
    return true;
}

static bool run_case(const narrow_case *test, const sl_cuda_context *context, cudaStream_t stream) {
    static const int32_t counts[] = {1, 8, 64, 65, 129, 257};
    random_state = (uint64_t)(test - cases) + 1;
    operands host = make_operands(test);
    device_operands device = to_device(test, &host);
    const narrow_run run = {test, &host, &device, context, stream};
    float *y = allocated(malloc(host.y_floats * 4)), *other = allocated(malloc(host.y_floats * 4));
    bool passed = multiply(&run, 0, test->rows, y) &&
                  (test->is_gated ? check_activated(test, &host, y) : check_values(test, &host, y));
    for (int32_t shape = 1; shape < shapes_of(test) && passed; shape++) {
        passed = multiply(&run, shape, test->rows, other) && same_rows(&run, y, other, test->rows);
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts && passed; i++) {
        if (counts[i] < test->rows && !test->experts) {
            passed = multiply(&run, (int32_t)i % shapes_of(test), counts[i], other) &&
                     same_rows(&run, y, other, counts[i]);
        }
    }
    free(y);
    free(other);
    free_device(&device);
    free_operands(&host);
    return passed;
}

/* ---- times ---- */

enum { BENCH_LAUNCHES = 10, BENCH_REPEATS = 5 };

/* Microseconds of one launch: the least of several runs of some. */
static double time_of(const sl_cuda_context *context, const sl_narrow_plan *plan, cudaStream_t stream) {
    cudaEvent_t start, end;
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&end));
    float least = INFINITY;
    for (int i = 0; i < BENCH_REPEATS; i++) {
        CHECK_CUDA(sl_narrow_launch(context, plan, stream));
        CHECK_CUDA(cudaEventRecord(start, stream));
        for (int k = 0; k < BENCH_LAUNCHES; k++) {
            CHECK_CUDA(sl_narrow_launch(context, plan, stream));
        }
        CHECK_CUDA(cudaEventRecord(end, stream));
        CHECK_CUDA(cudaEventSynchronize(end));
        float milliseconds;
        CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start, end));
        least = milliseconds < least ? milliseconds : least;
    }
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(end));
    return (double)least * 1000.0 / BENCH_LAUNCHES;
}

/* Codes as weights and activations have them: about normal. */
static void fill_codes(unsigned char *memory, uint64_t bytes, sl_narrow_kind kind) {
    enum { PIECE = 1 << 22 };
    unsigned char *piece = allocated(malloc(PIECE));
    for (size_t i = 0; i < PIECE; i++) {
        int32_t sum = 0;
        for (int k = 0; k < 4; k++) {
            sum += (int32_t)(random_bits() % 65) - 32;
        }
        const int32_t exponent = 15 - (31 - __builtin_clz((uint32_t)(128 / (abs(sum) + 1)) | 1));
        piece[i] =
            kind == SL_NARROW_S8
                ? (unsigned char)(int8_t)(sum > 127 ? 127 : sum)
                : (unsigned char)((sum < 0 ? 0x80 : 0) | (exponent - 1) << 3 | (int32_t)(random_bits() & 7));
    }
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        const uint64_t count = bytes - at < PIECE ? bytes - at : PIECE;
        CHECK_CUDA(cudaMemcpy(memory + at, piece, count, cudaMemcpyHostToDevice));
    }
    free(piece);
}

static void fill_floats(void *memory, uint64_t bytes) {
    float *values = allocated(malloc(bytes));
    for (uint64_t i = 0; i < bytes / 4; i++) {
        values[i] = 0.01f;
    }
    CHECK_CUDA(cudaMemcpy(memory, values, bytes, cudaMemcpyHostToDevice));
    free(values);
}

static void bench_product(const sl_cuda_context *context, const sl_narrow_product *product,
                          cudaStream_t stream) {
    sl_narrow_plan *plan = allocated(aligned_alloc(64, sizeof *plan));
    sl_error error;
    const double operations = 2.0 * product->rows * (double)product->outputs * product->columns;
    sl_narrow_prepare(product, context->processors, plan, &error);
    const int32_t chosen = plan->shape;
    printf("%-11s%s %5d x %5d x %5d:",
           product->kind == SL_NARROW_S8 ? "s8"
           : product->has_blocks         ? "e4m3 blocks"
                                         : "e4m3",
           product->experts ? " experts" : "", (int)product->rows, (int)product->outputs,
           (int)product->columns);
    for (int32_t shape = 0; shape < SL_NARROW_SHAPES; shape++) {
        sl_narrow_prepare_shape(product, shape, plan, &error);
        const double time = time_of(context, plan, stream);
        printf("%s%8.1f us %5.0f T", shape == chosen ? "  *" : "   ", time, operations / time * 1e-6);
    }
    printf("\n");
    fflush(stdout);
    free(plan);
}

static void bench_shape(const sl_cuda_context *context, sl_narrow_kind kind, const int32_t sizes[2],
                        cudaStream_t stream) {
    static const int32_t counts[] = {128, 512, 2048, 8192};
    const int32_t outputs = sizes[0], columns = sizes[1], most = counts[3];
    const uint64_t groups = (uint64_t)(columns / sl_narrow_group(kind));
    const uint64_t x_row_bytes = (uint64_t)columns + (groups * 4 + 15) / 16 * 16;
    const uint64_t scale_row = (uint64_t)sl_narrow_scales(kind, columns);
    const uint64_t scales_bytes = scale_row * (uint64_t)outputs * 4;
    unsigned char *x = on_device(NULL, x_row_bytes * (uint64_t)most);
    unsigned char *weights = on_device(NULL, (uint64_t)outputs * (uint64_t)columns);
    float *scales = on_device(NULL, scales_bytes);
    float *y = on_device(NULL, (uint64_t)most * (uint64_t)outputs * 4);
    int32_t *rows = on_device(NULL, 4);
    fill_codes(x, x_row_bytes * (uint64_t)most, kind);
    fill_codes(weights, (uint64_t)outputs * (uint64_t)columns, kind);
    fill_floats(scales, scales_bytes);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        CHECK_CUDA(cudaMemcpy(rows, &counts[i], 4, cudaMemcpyHostToDevice));
        const sl_narrow_product product = {.kind = kind,
                                           .rows = counts[i],
                                           .outputs = outputs,
                                           .columns = columns,
                                           .x = x,
                                           .x_row_bytes = x_row_bytes,
                                           .x_scales = (uint64_t)columns,
                                           .weights = weights,
                                           .weight_row_bytes = (uint64_t)columns,
                                           .weight_scales = scales,
                                           .scale_row_bytes = scale_row * 4,
                                           .y = y,
                                           .y_row_bytes = (uint64_t)outputs * 4,
                                           .true_rows = rows};
        bench_product(context, &product, stream);
        if (kind == SL_NARROW_E4M3) {
            sl_narrow_product with_blocks = product;
            with_blocks.has_blocks = true;
            bench_product(context, &with_blocks, stream);
        }
    }
    void *all[] = {x, weights, scales, y, rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_CUDA(cudaFree(all[i]));
    }
}

/* Rows of a prompt, each with eight of 128 experts by chance. */
static void bench_experts(const sl_cuda_context *context, sl_narrow_kind kind, const int32_t sizes[2],
                          cudaStream_t stream) {
    enum { EXPERTS = 128, USED = 8 };
    static const int32_t counts[] = {128, 512, 2048, 8192};
    const int32_t outputs = sizes[0], columns = sizes[1], most = USED * counts[3];
    const uint64_t groups = (uint64_t)(columns / sl_narrow_group(kind));
    const uint64_t x_row_bytes = (uint64_t)columns + (groups * 4 + 15) / 16 * 16;
    const uint64_t weights_bytes = (uint64_t)EXPERTS * (uint64_t)outputs * (uint64_t)columns;
    const uint64_t scale_row = (uint64_t)sl_narrow_scales(kind, columns);
    const uint64_t scales_bytes = (uint64_t)EXPERTS * scale_row * (uint64_t)outputs * 4;
    int32_t *list = allocated(malloc((size_t)most * 4));
    for (int32_t i = 0; i < most; i++) {
        list[i] = i;
    }
    sl_narrow_product product = {.kind = kind,
                                 .outputs = outputs,
                                 .columns = columns,
                                 .x = on_device(NULL, x_row_bytes * (uint64_t)most),
                                 .x_row_bytes = x_row_bytes,
                                 .x_scales = (uint64_t)columns,
                                 .weights = on_device(NULL, weights_bytes),
                                 .weight_row_bytes = (uint64_t)columns,
                                 .weight_scales = on_device(NULL, scales_bytes),
                                 .scale_row_bytes = scale_row * 4,
                                 .y = on_device(NULL, (uint64_t)most * (uint64_t)outputs * 4),
                                 .y_row_bytes = (uint64_t)outputs * 4,
                                 .experts = EXPERTS,
                                 .list = on_device(list, (uint64_t)most * 4)};
    fill_codes((unsigned char *)product.x, x_row_bytes * (uint64_t)most, kind);
    fill_codes((unsigned char *)product.weights, weights_bytes, kind);
    fill_floats((float *)product.weight_scales, scales_bytes);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int32_t offsets[EXPERTS + 1] = {0};
        product.rows = USED * counts[i];
        for (int32_t row = 0; row < product.rows; row++) {
            for (uint32_t e = random_bits() % EXPERTS + 1; e <= EXPERTS; e++) {
                offsets[e]++;
            }
        }
        product.offsets = on_device(offsets, sizeof offsets);
        bench_product(context, &product, stream);
        CHECK_CUDA(cudaFree((void *)product.offsets));
    }
    const void *all[] = {product.x, product.weights, product.weight_scales, product.y, product.list};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_CUDA(cudaFree((void *)all[i]));
    }
    free(list);
}

static void bench(const sl_cuda_context *context, cudaStream_t stream) {
    static const int32_t sizes[][2] = {
        {24576, 4096}, {12288, 4096}, {4096, 12288}, {6144, 4096}, {4096, 4096}};
    static const int32_t experts[][2] = {{1536, 2048}, {2048, 768}};
    for (int kind = 0; kind < SL_NARROW_KINDS; kind++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            bench_shape(context, (sl_narrow_kind)kind, sizes[i], stream);
        }
        for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
            bench_experts(context, (sl_narrow_kind)kind, experts[i], stream);
        }
    }
}

/* ---- the program ---- */

static bool read_facts(sl_cuda_facts *facts) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("skipped: no GPU\n");
        return false;
    }
    CHECK_CUDA(cudaDeviceGetAttribute(&facts->major, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK_CUDA(cudaDeviceGetAttribute(&facts->minor, cudaDevAttrComputeCapabilityMinor, 0));
    CHECK_CUDA(cudaDeviceGetAttribute(&facts->processors, cudaDevAttrMultiProcessorCount, 0));
    facts->has_wgmma = facts->major == 9 && facts->minor == 0;
    if (!facts->has_wgmma) {
        printf("skipped: needs compute capability 9.0\n");
    }
    return facts->has_wgmma;
}

int main(int argc, char **argv) {
    sl_cuda_facts facts = {0};
    const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : NULL;
    const bool times = argc == 2 && strcmp(argv[1], "--bench") == 0;
    if (argc > 1 && !only && !times) {
        printf("usage: test_narrow [--only CASE | --bench]\n");
        return 2;
    }
    if (!read_facts(&facts)) {
        return 77;
    }
    CHECK_CUDA(sl_narrow_allow(&facts));
    sl_cuda_context context = {.processors = facts.processors, .dependent_launches = true};
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreate(&stream));
    if (times) {
        bench(&context, stream);
        return 0;
    }
    context.processors = 6; /* blocks have several tiles */
    int passed = 0, failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!only || strstr(cases[i].name, only)) {
            if (run_case(&cases[i], &context, stream)) {
                passed++;
            } else {
                failed++;
            }
        }
    }
    CHECK_CUDA(cudaStreamDestroy(stream));
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
