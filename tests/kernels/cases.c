/* Random and worst-case shapes for every kind of op. */
#include "cases.h"

#include "quant/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

static void begin_case(kt_case *c, int32_t rows, int32_t span_count, kt_random *random) {
    memset(c, 0, sizeof *c);
    c->program.name = "kernel test";
    c->program.width = 32;
    c->program.vocabulary = 64;
    c->program.hidden = c->program.logits = c->program.tokens = SL_NONE;
    c->ids_value = c->schedule_value = SL_NONE;
    c->tolerance = 2e-5;
    c->rows = rows;
    c->span_count = span_count < rows ? span_count : rows;
    for (int32_t s = 0, left = rows; s < c->span_count; s++) {
        const int32_t after = c->span_count - 1 - s;
        c->span_rows[s] = after == 0 ? left : 1 + kt_below(random, left - after);
        left -= c->span_rows[s];
    }
    c->tokens = kt_alloc((size_t)rows, sizeof *c->tokens);
    for (int32_t i = 0; i < rows; i++) {
        c->tokens[i] = kt_below(random, c->program.vocabulary);
    }
}

static float draw(style how, kt_random *random) {
    const float x = kt_normal(random, 1.0f);
    switch (how) {
    case OUTLIERS:
        return kt_below(random, 100) == 0 ? 40 * x : x;
    case ZEROS:
        return kt_below(random, 3) == 0 ? x : 0.0f;
    case LARGE:
        return 3e4f * x;
    case TIES:
        return (float)kt_below(random, 3);
    case SATURATED:
        return kt_below(random, 4) == 0 ? -2.0f : 2.0f;
    default:
        return x;
    }
}

static float *random_floats(size_t count, style how, kt_random *random) {
    float *data = kt_alloc(count, sizeof *data);
    for (size_t i = 0; i < count && random && !random->only_shapes; i++) {
        data[i] = draw(how, random);
    }
    return data;
}

static int32_t typed(kt_case *c, const char *name, sl_value_type type, sl_rows rows, int32_t width) {
    const sl_value value = {.name = name, .type = type, .rows = rows, .width = width};
    return sl_program_typed_value(&c->program, &value);
}

static size_t row_count(const kt_case *c, sl_rows rows) {
    return (size_t)(rows == SL_ROWS_OUTPUT   ? c->output_count
                    : rows == SL_ROWS_EXPERT ? c->rows * c->program.experts_used
                                             : c->rows);
}

/* An f32 value that is given, not computed. */
static int32_t input(kt_case *c, const char *name, sl_rows rows, int32_t width, style how,
                     kt_random *random) {
    const int32_t v = typed(c, name, SL_VALUE_F32, rows, width);
    c->inputs[v] = random_floats(row_count(c, rows) * (size_t)width, how, random);
    return v;
}

/* Numbers from middle - spread to middle + spread. */
typedef struct interval {
    float middle, spread;
} interval;

/* [experts][size] */
static int32_t vector(kt_case *c, const char *name, int32_t experts, int32_t size, interval values,
                      kt_random *random) {
    float *data = kt_alloc((size_t)experts * (size_t)size, sizeof *data);
    for (int32_t i = 0; i < experts * size; i++) {
        data[i] = values.middle + kt_uniform(random, values.spread);
    }
    const sl_weight weight = {name, SL_QTYPE_F32, experts, 1, size, data, 4ull * experts * size, 0};
    return sl_program_weight(&c->program, &weight);
}

/* Where a type's blocks keep their scale and their minimum, or the scale of the minima: 2 bytes each. */
static const struct {
    size_t scale, min;
} scale_offsets[SL_QTYPE_COUNT] = {
    [SL_QTYPE_Q8_0] = {offsetof(sl_block_q8_0, scale), SIZE_MAX},
    [SL_QTYPE_Q4_0] = {offsetof(sl_block_q4_0, scale), SIZE_MAX},
    [SL_QTYPE_Q4_K] = {offsetof(sl_block_q4_k, scale), offsetof(sl_block_q4_k, min_scale)},
    [SL_QTYPE_Q6_K] = {offsetof(sl_block_q6_k, scale), SIZE_MAX},
    [SL_QTYPE_Q5_K] = {offsetof(sl_block_q5_k, scale), offsetof(sl_block_q5_k, min_scale)},
    [SL_QTYPE_Q4_1] = {offsetof(sl_block_q4_1, scale), offsetof(sl_block_q4_1, min)},
    [SL_QTYPE_Q5_0] = {offsetof(sl_block_q5_0, scale), SIZE_MAX},
    [SL_QTYPE_Q5_1] = {offsetof(sl_block_q5_1, scale), offsetof(sl_block_q5_1, min)},
    [SL_QTYPE_Q2_K] = {offsetof(sl_block_q2_k, scale), offsetof(sl_block_q2_k, min_scale)},
    [SL_QTYPE_Q3_K] = {offsetof(sl_block_q3_k, scale), SIZE_MAX},
    [SL_QTYPE_IQ4_NL] = {offsetof(sl_block_iq4_nl, scale), SIZE_MAX},
    [SL_QTYPE_IQ4_XS] = {offsetof(sl_block_iq4_xs, scale), SIZE_MAX},
    [SL_QTYPE_TQ1_0] = {offsetof(sl_block_tq1_0, scale), SIZE_MAX},
    [SL_QTYPE_TQ2_0] = {offsetof(sl_block_tq2_0, scale), SIZE_MAX},
    [SL_QTYPE_IQ3_XXS] = {offsetof(sl_block_iq3_xxs, scale), SIZE_MAX},
    [SL_QTYPE_IQ3_S] = {offsetof(sl_block_iq3_s, scale), SIZE_MAX},
    [SL_QTYPE_IQ2_XXS] = {offsetof(sl_block_iq2_xxs, scale), SIZE_MAX},
    [SL_QTYPE_IQ2_XS] = {offsetof(sl_block_iq2_xs, scale), SIZE_MAX},
    [SL_QTYPE_IQ2_S] = {offsetof(sl_block_iq2_s, scale), SIZE_MAX},
    [SL_QTYPE_IQ1_S] = {offsetof(sl_block_iq1_s, scale), SIZE_MAX},
};

/* Ordinary scales, so that sums stay finite. */
static void set_scale(unsigned char *block, sl_qtype type, kt_random *random) {
    const uint16_t scale = sl_f32_to_f16_plain(kt_uniform(random, 0.01f));
    const uint16_t min = sl_f32_to_f16_plain(kt_uniform(random, 0.01f));
    if (type == SL_QTYPE_MXFP4) {
        block[0] = (unsigned char)(115 + kt_below(random, 10));
        return;
    }
    if (type == SL_QTYPE_NVFP4) {
        return; /* all scales are ordinary ones */
    }
    if (type == SL_QTYPE_NVFP4_128 || type == SL_QTYPE_FP8_128) {
        const float wide = kt_uniform(random, 0.01f);
        memcpy(block, &wide, sizeof wide);
        for (size_t i = 0; type == SL_QTYPE_FP8_128 && i < SL_FP8_128_ELEMENTS; i++) {
            block[4 + i] &= (block[4 + i] & 127) == 127 ? 0xfe : 0xff; /* no NaNs: of numbers, all */
        }
        return;
    }
    if (type == SL_QTYPE_IQ1_M) { /* four bits of it at a time, in bytes 49, 51, 53 and 55 */
        for (int i = 0; i < 4; i++) {
            unsigned char *byte = block + offsetof(sl_block_iq1_m, scales) + 2 * i + 1;
            *byte = (unsigned char)((*byte & 15) | (scale >> 4 * i & 15) << 4);
        }
        return;
    }
    memcpy(block + scale_offsets[type].scale, &scale, 2);
    if (scale_offsets[type].min != SIZE_MAX) {
        memcpy(block + scale_offsets[type].min, &min, 2);
    }
}

typedef struct matrix_shape {
    int32_t experts, rows, columns;
} matrix_shape;

enum { ENCODED = 16384 };

/* Blocks of the type with what it makes of random numbers. To search for the best scales takes long, so they
 * are that for the first ENCODED numbers, and then copies of those blocks in any order. */
static void encode_blocks(sl_qtype type, unsigned char *data, size_t count, kt_random *random) {
    const sl_qtype_info *info = sl_qtype_get(type);
    const size_t some = info->block_elements > 1 && count > ENCODED ? ENCODED : count;
    const size_t encoded = some / info->block_elements, blocks = count / info->block_elements;
    float *floats = random_floats(some, NORMAL, random);
    info->encode(floats, data, some);
    free(floats);
    for (size_t i = encoded; i < blocks; i++) {
        const size_t from = (size_t)kt_below(random, (int32_t)encoded);
        memcpy(data + i * info->block_bytes, data + from * info->block_bytes, info->block_bytes);
    }
}

/* As checkpoints have them: rows from each multiple of 128 on have the same scales. */
enum { ROWS_OF_A_SCALE = 128 };
static void share_scales(matrix_shape shape, sl_block_fp8_128 *blocks) {
    const int32_t across = shape.columns / SL_FP8_128_ELEMENTS;
    for (int32_t i = 0; i < shape.experts * shape.rows * across; i++) {
        blocks[i].scale = blocks[i - i / across % shape.rows % ROWS_OF_A_SCALE * across].scale;
    }
}

/* `raw`: blocks of random bits, so that every value of every field occurs, the extreme ones too. */
static int32_t matrix(kt_case *c, sl_qtype type, matrix_shape shape, bool raw, kt_random *random) {
    const size_t count = (size_t)shape.experts * (size_t)shape.rows * (size_t)shape.columns;
    const sl_qtype_info *info = sl_qtype_get(type);
    const size_t bytes = count / info->block_elements * info->block_bytes;
    unsigned char *data = kt_alloc(random ? bytes : 0, 1);
    if (!random) {
        /* in shape only */
    } else if (raw && info->block_elements > 1) {
        for (size_t i = 0; i < bytes; i++) {
            data[i] = kt_below(random, 4) == 0 ? (unsigned char)(kt_below(random, 2) ? 0x80 : 0xff)
                                               : (unsigned char)kt_next(random);
        }
        for (size_t i = 0; i < bytes; i += info->block_bytes) {
            set_scale(data + i, type, random);
        }
    } else {
        encode_blocks(type, data, count, random);
    }
    const bool shared = type == SL_QTYPE_FP8_128 && !raw;
    if (shared && random) {
        share_scales(shape, (sl_block_fp8_128 *)(void *)data);
    }
    const sl_weight weight = {"w",           type, shape.experts, shape.rows,
                              shape.columns, data, bytes,         shared ? ROWS_OF_A_SCALE : 0};
    return sl_program_weight(&c->program, &weight);
}

static sl_op *add(kt_case *c, sl_op_kind kind, const int32_t *in, int in_count, const int32_t *out,
                  int out_count) {
    sl_op *op = sl_program_op(&c->program, kind, SL_NONE);
    for (int i = 0; i < in_count; i++) {
        op->in[i].value = in[i];
    }
    for (int i = 0; i < out_count; i++) {
        op->out[i].value = out[i];
    }
    c->op = c->program.op_count - 1;
    return op;
}

#define LIST(...)                                                                                            \
    (const int32_t[]){__VA_ARGS__}, (int)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

void kt_name_case(kt_case *c, sl_op_kind kind, int32_t index, const char *detail) {
    snprintf(c->name, sizeof c->name, "%s #%d (%d rows, %d sequences%s%s)", sl_op_name(kind), index, c->rows,
             c->span_count, detail[0] ? ", " : "", detail);
}

static const int32_t row_counts[] = {1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17, 31, 64, 129};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

/* ---- linear ---- */

typedef struct linear_shape {
    int32_t rows, columns;
    int32_t outputs[SL_LINEAR_SEGMENTS]; /* of each segment; 0 ends */
    int32_t shift;                       /* columns of y before the first segment */
    bool bias, residual, in_place, raw;
    bool aligned;          /* y has a multiple of 8 columns, where the outputs and the shift have */
    int32_t experts, used; /* 0: no experts */
    bool expert_x;         /* x has expert rows */
    bool single;           /* rows one by one, in a bucket of one */
    bool full;             /* a bucket of just these rows */
    style how;
} linear_shape;

static const linear_shape linear_shapes[] = {
    {.rows = 1, .columns = 256, .outputs = {32}},
    {.rows = 1, .columns = 1024, .outputs = {1, 100, 64}, .shift = 8, .bias = true, .how = OUTLIERS},
    {.rows = 5, .columns = 512, .outputs = {33, 16, 1}, .shift = 3, .bias = true},
    {.rows = 17, .columns = 1024, .outputs = {64}, .residual = true, .in_place = true, .how = OUTLIERS},
    {.rows = 64, .columns = 512, .outputs = {96, 31}, .residual = true, .shift = 5, .how = ZEROS},
    {.rows = 129, .columns = 256, .outputs = {40}},
    {.rows = 300, .columns = 512, .outputs = {96, 40, 128}, .shift = 8, .bias = true, .aligned = true},
    {.rows = 290, .columns = 256, .outputs = {160, 8}, .aligned = true},
    {.rows = 257, .columns = 96, .outputs = {24, 48}, .aligned = true},
    {.rows = 8, .columns = 2048, .outputs = {70}, .raw = true, .how = SATURATED},
    {.rows = 13, .columns = 1280, .outputs = {128, 64, 64, 2}, .raw = true, .how = LARGE},
    {.rows = 2, .columns = 768, .outputs = {65}},
    {.rows = 3, .columns = 256, .outputs = {130}, .raw = true},
    {.rows = 4, .columns = 256, .outputs = {32}, .how = SATURATED, .raw = true},
    {.rows = 6, .columns = 512, .outputs = {48}},
    {.rows = 7, .columns = 256, .outputs = {32, 32}, .bias = true, .residual = true, .full = true},
    {.rows = 9, .columns = 256, .outputs = {63}},
    {.rows = 16, .columns = 3072, .outputs = {35}},
    {.rows = 19, .columns = 256, .outputs = {48, 40}, .bias = true, .experts = 8, .used = 3},
    {.rows = 1, .columns = 512, .outputs = {33}, .experts = 8, .used = 2},
    {.rows = 70, .columns = 512, .outputs = {64}, .bias = true, .experts = 5, .used = 2, .expert_x = true},
    {.rows = 33, .columns = 768, .outputs = {160, 17}, .bias = true, .residual = true, .how = OUTLIERS},
    {.rows = 150, .columns = 1024, .outputs = {200}, .raw = true},
    {.rows = 40, .columns = 1280, .outputs = {72}, .experts = 3, .used = 2, .raw = true},
    {.rows = 5, .columns = 4352, .outputs = {40, 24}, .bias = true, .residual = true}, /* phases of matvec */
    {.rows = 3, .columns = 2816, .outputs = {200}},
    {.rows = 133, .columns = 2304, .outputs = {72, 40}, .shift = 8, .bias = true, .aligned = true},
    {.rows = 132, .columns = 8704, .outputs = {24}, .aligned = true, .how = OUTLIERS},
    {.rows = 4, .columns = 8448, .outputs = {40}, .residual = true},
    {.rows = 8, .columns = 8704, .outputs = {136, 24}, .residual = true, .full = true}, /* two ranges */
    {.rows = 7, .columns = 160, .outputs = {50}},              /* types with blocks of 32 or less */
    {.rows = 5, .columns = 35, .outputs = {21}, .bias = true}, /* types without blocks, f32 activations */
    {.rows = 1, .columns = 2880, .outputs = {70, 33}, .bias = true}, /* rows end with zeros, of x too */
    {.rows = 2, .columns = 960, .outputs = {40, 64}, .residual = true, .single = true},
    {.rows = 7, .columns = 1184, .outputs = {96}, .how = OUTLIERS},
    {.rows = 60, .columns = 704, .outputs = {48, 40}, .shift = 8, .bias = true},
    {.rows = 140, .columns = 704, .outputs = {40, 24}, .aligned = true},
    {.rows = 3, .columns = 704, .outputs = {50, 64}, .bias = true, .experts = 5, .used = 2},
    {.rows = 45, .columns = 704, .outputs = {72}, .bias = true, .experts = 6, .used = 3, .expert_x = true},
    {.rows = 3, .columns = 2048, .outputs = {300, 70}, .shift = 4, .bias = true, .single = true},
    {.rows = 2, .columns = 4096, .outputs = {2100}, .residual = true, .single = true, .how = OUTLIERS},
    {.rows = 3, .columns = 256, .outputs = {5, 300}, .raw = true, .single = true, .how = SATURATED},
    {.rows = 2, .columns = 9216, .outputs = {70, 33, 1}, .bias = true, .residual = true, .single = true},
    {.rows = 2, .columns = 32768, .outputs = {40}, .raw = true, .single = true}, /* the longest of ring */
    {.rows = 5, .columns = 3328, .outputs = {330, 70, 1}, .bias = true, .residual = true, .how = OUTLIERS},
    {.rows = 4, .columns = 4096, .outputs = {700}, .raw = true}, /* every warp of wide has a chunk */
    {.rows = 3, .columns = 3072, .outputs = {33, 100}, .shift = 3},
    {.rows = 8, .columns = 4096, .outputs = {330, 70, 1}, .bias = true, .full = true}, /* in one range */
    {.rows = 5, .columns = 12288, .outputs = {130}, .residual = true},                 /* its phases */
    {.rows = 2, .columns = 8192, .outputs = {1700}}, /* and groups of tiles, on a device of few processors */
    /* 14 tiles a processor */
    {.rows = 1, .columns = 512, .outputs = {25400, 5100}, .raw = true, .single = true},
    {.rows = 128, .columns = 160, .outputs = {500, 200}, .bias = true, .residual = true}, /* tiles of 128 */
};
enum { LINEAR_SHAPES = sizeof linear_shapes / sizeof *linear_shapes };

/* Ids with one expert overfull and some without rows; no row takes an expert twice. */
static int32_t make_ids(kt_case *c, kt_random *random) {
    const int32_t used = c->program.experts_used, experts = c->program.experts;
    const int32_t v = typed(c, "ids", SL_VALUE_I32, SL_ROWS_STEP, used);
    int32_t *ids = kt_alloc((size_t)(c->rows * used), sizeof *ids);
    for (int32_t row = 0; row < c->rows; row++) {
        const int32_t first = kt_below(random, 10) < 8 ? 3 : kt_below(random, experts);
        for (int32_t rank = 0; rank < used; rank++) {
            ids[row * used + rank] = (first + rank * (1 + kt_below(random, 1))) % experts;
        }
    }
    c->inputs[v] = ids;
    return v;
}

static int32_t column_multiple;

void kt_set_column_multiple(int32_t multiple) {
    column_multiple = multiple;
}

static bool without_nans;

void kt_set_without_nans(bool without) {
    without_nans = without;
}

/* x as the kernel reads it: the f32 input, or that through QUANTIZE. */
static int32_t activations(kt_case *c, int32_t x, sl_value_type format) {
    const sl_value value = c->program.values[x];
    if (format == SL_VALUE_F32) {
        return x;
    }
    const int32_t q = typed(c, "q", format, value.rows, sl_stored_width(column_multiple, value.width));
    add(c, SL_OP_QUANTIZE, LIST(x), LIST(q))->u.quantize.width = value.width;
    return q;
}

static void build_linear(kt_case *c, const linear_shape *shape, sl_qtype type, sl_value_type format,
                         kt_random *random) {
    int32_t ids = SL_NONE, schedule = SL_NONE, residual = SL_NONE, width = shape->shift;
    const int32_t experts = shape->experts ? shape->experts : 1;
    begin_case(c, shape->rows, shape->single ? 1 : 3, random);
    c->step_rows = shape->single;
    c->tight = shape->single || shape->full;
    c->program.experts = shape->experts;
    c->program.experts_used = shape->used;
    const sl_rows y_rows = shape->experts ? SL_ROWS_EXPERT : SL_ROWS_STEP;
    const int32_t spare = shape->aligned ? 8 : 2;
    int32_t x =
        input(c, "x", shape->expert_x ? SL_ROWS_EXPERT : SL_ROWS_STEP, shape->columns, shape->how, random);
    if (shape->rows > 2) { /* a row of nothing */
        memset((float *)c->inputs[x] + shape->columns, 0, (size_t)shape->columns * sizeof(float));
    }
    x = activations(c, x, format);
    if (shape->experts) {
        const sl_value value = {"schedule", SL_VALUE_I32, SL_ROWS_EXPERT, 1, shape->experts + 1, false};
        ids = c->ids_value = make_ids(c, random);
        schedule = c->schedule_value = sl_program_typed_value(&c->program, &value);
    }
    for (int s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        width += shape->outputs[s];
    }
    if (shape->residual) {
        residual = input(c, "residual", y_rows, width + spare, NORMAL, random);
    }
    const int32_t y = shape->in_place ? residual : sl_program_value(&c->program, "y", y_rows, width + spare);
    int32_t weights[SL_LINEAR_SEGMENTS], biases[SL_LINEAR_SEGMENTS], segments = 0;
    for (; segments < SL_LINEAR_SEGMENTS && shape->outputs[segments]; segments++) {
        const int32_t outputs = shape->outputs[segments];
        weights[segments] =
            matrix(c, type, (matrix_shape){experts, outputs, shape->columns}, shape->raw, random);
        biases[segments] = shape->bias && segments != 1
                               ? vector(c, "bias", experts, outputs, (interval){0, 1}, random)
                               : SL_NONE;
    }
    sl_op *op = add(c, SL_OP_LINEAR, LIST(x, ids, schedule, residual), LIST(y));
    op->out[0].column = shape->shift;
    op->in[3].column = shape->residual ? shape->shift : 0;
    op->u.linear.segment_count = segments;
    for (int32_t s = 0, column = 0; s < segments; column += shape->outputs[s++]) {
        op->u.linear.segments[s] = (sl_linear_segment){weights[s], biases[s], column};
    }
}

static bool make_linear(kt_case *c, int32_t index, sl_value_type format, kt_random *random) {
    const linear_shape *shape = &linear_shapes[index % LINEAR_SHAPES];
    const sl_qtype type = (sl_qtype)(index / LINEAR_SHAPES);
    if (index / LINEAR_SHAPES >= SL_QTYPE_COUNT) {
        return false;
    }
    memset(c, 0, sizeof *c);
    if ((uint32_t)shape->columns % sl_qtype_get(type)->block_elements != 0 ||
        (format != SL_VALUE_F32 && shape->columns % 32 != 0)) {
        return true; /* an empty case */
    }
    build_linear(c, shape, type, format, random);
    char detail[64];
    snprintf(detail, sizeof detail, "%s, %d columns%s", sl_qtype_get(type)->name, shape->columns,
             shape->experts ? ", experts" : "");
    kt_name_case(c, SL_OP_LINEAR, index, detail);
    return true;
}

/* ---- a matrix for each head ---- */

typedef struct head_shape {
    int32_t rows, heads, inputs, outputs, tail, gap; /* gap: columns between heads of x */
    bool turned, raw;
    style how;
} head_shape;

/* shifts: columns in front of the heads of x and of y. */
static void build_head_linear(kt_case *c, const head_shape *shape, sl_qtype type, const int32_t shifts[2],
                              kt_random *random) {
    const int32_t inputs = shape->inputs, outputs = shape->outputs;
    const int32_t stride = inputs + shape->tail + shape->gap;
    const matrix_shape matrices = {shape->heads, shape->turned ? inputs : outputs,
                                   shape->turned ? outputs : inputs};
    begin_case(c, shape->rows, 2, random);
    const int32_t x = input(c, "x", SL_ROWS_STEP, shifts[0] + shape->heads * stride, shape->how, random);
    const int32_t y =
        sl_program_value(&c->program, "y", SL_ROWS_STEP, shape->heads * (outputs + shape->tail) + shifts[1]);
    const int32_t w = matrix(c, type, matrices, shape->raw, random);
    sl_op *op = add(c, SL_OP_HEAD_LINEAR, LIST(x), LIST(y));
    op->in[0].column = shifts[0];
    op->out[0].column = shifts[1];
    op->u.head_linear =
        (sl_op_head_linear){.weight = w, .x_stride = stride, .tail = shape->tail, .turned = shape->turned};
}

static bool make_head_linear(kt_case *c, int32_t index, kt_random *random) {
    static const head_shape shapes[] = {
        {1, 3, 128, 512, 64, 0, true, false, NORMAL},  {9, 2, 512, 128, 0, 0, false, false, NORMAL},
        {35, 3, 256, 40, 0, 32, false, true, NORMAL},  {17, 3, 64, 256, 32, 0, true, true, OUTLIERS},
        {2, 5, 35, 256, 1, 3, true, false, NORMAL},    {5, 1, 256, 1, 7, 0, false, false, LARGE},
        {7, 2, 768, 33, 8, 8, false, false, ZEROS},    {3, 7, 1, 256, 0, 2, true, false, NORMAL},
        {140, 2, 256, 8, 64, 0, false, false, NORMAL}, {4, 3, 24, 40, 8, 0, false, false, NORMAL},
        {6, 4, 16, 24, 8, 0, true, false, NORMAL},
    };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    const head_shape *shape = &shapes[index % SHAPES];
    const sl_qtype type = (sl_qtype)(index / SHAPES);
    if (index / SHAPES >= SL_QTYPE_COUNT) {
        return false;
    }
    memset(c, 0, sizeof *c);
    if ((uint32_t)(shape->turned ? shape->outputs : shape->inputs) % sl_qtype_get(type)->block_elements !=
        0) {
        return true; /* an empty case */
    }
    build_head_linear(c, shape, type, (const int32_t[]){3, 5}, random);
    char detail[64];
    snprintf(detail, sizeof detail, "%s, %d heads, %d to %d%s", sl_qtype_get(type)->name, shape->heads,
             shape->inputs, shape->outputs, shape->turned ? ", turned" : "");
    kt_name_case(c, SL_OP_HEAD_LINEAR, index, detail);
    return true;
}

/* ---- attention and cache writes ---- */

static const attention_shape attention_shapes[] = {
#include "attention_shapes.inc"
};
enum {
    ATTENTION_SHAPES = sizeof attention_shapes / sizeof *attention_shapes,
    WHOLE_SHAPES = 20,                    /* of these, the first ones, in one step */
    LATE_SHAPES = 30,                     /* and these with keys that nobody sees */
    RECALLED = 20,                        /* and of what rows left */
    UNEVEN_SHAPES = ATTENTION_SHAPES - 5, /* and the last ones, from here on, with uneven spans */
};

/* Span s ends with one row in step s, if steps take as many of each; the first has what is left. */
static void make_uneven(kt_case *c) {
    const int32_t each = c->step_rows / c->span_count;
    int32_t left = c->rows;
    for (int32_t s = 1; s < c->span_count && each > 0; s++) {
        c->span_rows[s] = s * each + 1;
        left -= c->span_rows[s];
        c->span_rows[0] = left;
    }
}

/* `aligned`: operands fill their values; else columns lie in front of them. */
void kt_build_attention(kt_case *c, const attention_shape *shape, sl_op_kind kind, bool aligned,
                        kt_random *random) {
    begin_case(c, shape->rows, shape->spans, random);
    c->tolerance = 1e-4; /* an error of a score is one of its exponential */
    c->cache_type = shape->cache;
    c->step_rows = shape->step_rows;
    const sl_cache_group group = {
        "all", 2, shape->kv_heads, shape->key_size, shape->value_size, shape->window, shape->values_are_keys,
        false};
    const bool wide = shape->key_size > 256;
    /* So that the group's number matters; beside wide heads as models have it, with a window. */
    const sl_cache_group other = {"other",       1,     1,    wide ? 256 : 32, wide ? 256 : 32,
                                  wide ? 70 : 0, false, false};
    sl_program_group(&c->program, &other);
    sl_program_group(&c->program, &group);
    const sl_cache_place place = {1, 1};
    const int32_t keys = shape->kv_heads * shape->key_size, values = shape->kv_heads * shape->value_size;
    const int32_t q_stride = shape->key_size + (shape->gate ? shape->value_size : 0);
    const int32_t five = aligned ? 0 : 5, three = aligned ? 0 : 3; /* columns in front */
    const int32_t q = input(c, "q", SL_ROWS_STEP, shape->heads * q_stride + five, shape->how, random);
    const int32_t kv = input(c, "kv", SL_ROWS_STEP, three + keys + values, shape->how, random);
    const bool nans = shape->how == NANS && !without_nans;
    for (int32_t row = shape->rows / 3; nans && row < shape->rows; row += shape->rows / 4) {
        float *data = c->inputs[kv];
        data[(int64_t)row * (three + keys + values) + three + keys + row % values] = NAN;
    }
    const int32_t y =
        sl_program_value(&c->program, "y", SL_ROWS_STEP, shape->heads * shape->value_size + three);
    add(c, SL_OP_BEGIN, NULL, 0, NULL, 0);
    sl_op *op = add(c, SL_OP_CACHE_WRITE, LIST(kv, shape->values_are_keys ? SL_NONE : kv), NULL, 0);
    op->in[0].column = three;
    op->in[1].column = shape->values_are_keys ? 0 : three + keys;
    op->u.cache_write.place = place;
    if (kind == SL_OP_RECALL) {
        op = add(c, SL_OP_RECALL, NULL, 0,
                 LIST(sl_program_value(&c->program, "row", SL_ROWS_STEP, keys + three)));
        op->out[0].column = three;
        op->u.recall.place = place;
    }
    if (kind != SL_OP_ATTENTION) {
        return;
    }
    if (wide) {
        op = add(c, SL_OP_CACHE_WRITE, LIST(kv, kv), NULL, 0);
        op->in[1].column = 1;
        op->u.cache_write.place = (sl_cache_place){0, 0};
    }
    const int32_t sinks =
        shape->sinks ? vector(c, "sinks", 1, shape->heads, (interval){0, 3}, random) : SL_NONE;
    op = add(c, SL_OP_ATTENTION, LIST(q, shape->gate ? q : SL_NONE), LIST(y));
    op->in[0].column = five;
    op->in[1].column = shape->gate ? five + shape->key_size : 0;
    op->out[0].column = three;
    op->u.attention = (sl_op_attention){.place = place,
                                        .heads = shape->heads,
                                        .q_stride = q_stride,
                                        .gate_stride = q_stride,
                                        .scale = 1.0f / sqrtf((float)shape->key_size),
                                        .softcap = shape->softcap,
                                        .sinks = sinks};
}

/* Any bits at all for some elements, numbers on and around the middles of E4M3's for others. */
static void disturb_for_e4m3(kt_case *c, int32_t value, kt_random *random) {
    float *data = c->inputs[value];
    const int64_t count = (int64_t)c->rows * c->program.values[value].width;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t word = (uint32_t)kt_below(random, 1 << 16) << 16 | (uint32_t)kt_below(random, 1 << 16);
        if (i % 4 == 0) {
            data[i] = sl_f32_from_bits(word);
        } else if (i % 4 == 1) {
            const float middle = ((float)(word % 16) + 8.5f) * ldexpf(1.0f, (int)(word >> 8) % 18 - 9);
            data[i] = sl_f32_from_bits(sl_f32_bits(i % 8 == 1 ? middle : -middle) + word % 3 - 1);
        } else if (i % 4 == 2) {
            data[i] = ((float)(word % 20) - 9.5f) * 0x1p-9f;
        }
    }
}

static bool make_attention(kt_case *c, sl_op_kind kind, int32_t index, kt_random *random) {
    /* Each shape that is one step once more, with attention to both sides. */
    const bool more = index >= ATTENTION_SHAPES && kind == SL_OP_ATTENTION;
    const bool both = more && index < ATTENTION_SHAPES + WHOLE_SHAPES, late = more && !both;
    if (index >= ATTENTION_SHAPES + (more ? WHOLE_SHAPES + LATE_SHAPES : 0) ||
        (kind == SL_OP_RECALL && index >= RECALLED)) {
        return more &&
               kt_make_more_attention(c, index - ATTENTION_SHAPES - WHOLE_SHAPES - LATE_SHAPES, random);
    }
    const attention_shape *shape =
        &attention_shapes[index - (more ? ATTENTION_SHAPES : 0) - (late ? WHOLE_SHAPES : 0)];
    char detail[96];
    kt_build_attention(c, shape, kind, false, random);
    if (index >= UNEVEN_SHAPES && !more) {
        make_uneven(c);
    }
    if (both) {
        c->program.both_sides = c->program.ops[c->op].u.attention.both_sides = true;
    }
    if (late) {
        c->program.ops[c->op].u.attention.first = index % 3 == 2 ? 70 : 1;
    }
    if (kind == SL_OP_BEGIN) {
        c->op = 0;
    }
    if (kind != SL_OP_ATTENTION) {
        c->step_rows = 0; /* what checks them takes pages as one step deals them out */
    }
    if (kind == SL_OP_CACHE_WRITE && shape->cache == SL_QTYPE_FP8) {
        disturb_for_e4m3(c, c->program.ops[1].in[0].value, random);
    }
    snprintf(detail, sizeof detail, "%d/%d heads of %d/%d, window %d, %s%s", shape->heads, shape->kv_heads,
             shape->key_size, shape->value_size, shape->window, sl_qtype_get(shape->cache)->name,
             both   ? ", to both sides"
             : late ? ", not from the first on"
                    : "");
    kt_name_case(c, kind, index, detail);
    return true;
}

/* ---- rows ---- */

static bool make_rmsnorm(kt_case *c, int32_t index, kt_random *random) {
    static const struct {
        int32_t groups, width, stride;
        sl_residual residual;
        bool weight, gate, sum, in_place;
        style how;
    } shapes[] = {
        {1, 1024, 1024, SL_RESIDUAL_NONE, true, false, false, false, NORMAL},
        {1, 576, 576, SL_RESIDUAL_BEFORE, true, false, true, false, OUTLIERS},
        {1, 64, 64, SL_RESIDUAL_AFTER, true, false, false, false, NORMAL},
        /* Of 1 and 2 rows, and in whole quads as it is in place: what a GPU spreads over most blocks. */
        {1, 4096, 4096, SL_RESIDUAL_NONE, true, false, false, true, NORMAL},
        {4, 128, 130, SL_RESIDUAL_NONE, false, true, false, false, NORMAL},
        {1, 37, 37, SL_RESIDUAL_BEFORE, true, false, false, false, ZEROS},
        {1, 2560, 2560, SL_RESIDUAL_NONE, true, false, false, true, LARGE},
        {2, 256, 256, SL_RESIDUAL_NONE, true, true, false, false, ZEROS},
        {1, 896, 896, SL_RESIDUAL_BEFORE, true, false, true, true, NORMAL},
        {3, 64, 70, SL_RESIDUAL_AFTER, true, false, false, false, NORMAL},
        {5, 32, 48, SL_RESIDUAL_NONE, true, false, false, true, NORMAL},
    };
    /* Of x and y: each shape once without, then with all of these. */
    static const float factors[][2] = {{0.22f, 1}, {1, 0.6f}, {-1.75f, 0.3f}};
    const int32_t count = (int32_t)(sizeof shapes / sizeof *shapes), scaled = index - ROW_COUNTS - count;
    if (scaled >= 3 * count) {
        return false;
    }
    const int32_t s = index % count, rows = row_counts[(index * 5) % ROW_COUNTS];
    begin_case(c, rows, 2, random);
    const int32_t groups = shapes[s].groups, width = shapes[s].width, stride = shapes[s].stride;
    const int32_t x = input(c, "x", SL_ROWS_STEP, 4 + groups * stride, shapes[s].how, random);
    const int32_t residual = shapes[s].residual != SL_RESIDUAL_NONE
                                 ? input(c, "residual", SL_ROWS_STEP, 1 + groups * stride, NORMAL, random)
                                 : SL_NONE;
    const int32_t gate =
        shapes[s].gate ? input(c, "gate", SL_ROWS_STEP, groups * (width + 1), NORMAL, random) : SL_NONE;
    const int32_t y =
        shapes[s].in_place ? x : sl_program_value(&c->program, "y", SL_ROWS_STEP, 2 + groups * width);
    /* The sum may lie on the residual. */
    const int32_t sum = shapes[s].sum ? residual : SL_NONE;
    const bool own = scaled >= 0 && shapes[s].weight && index % 2;
    const int32_t weights = own ? groups * width : width;
    const int32_t weight =
        shapes[s].weight ? vector(c, "w", 1, weights, (interval){1, 0.5f}, random) : SL_NONE;
    sl_op *op = add(c, SL_OP_RMSNORM, LIST(x, residual, gate), LIST(y, sum));
    op->in[0].column = 4;
    op->in[1].column = residual == SL_NONE ? 0 : 1;
    op->out[0].column = shapes[s].in_place ? 4 : 2;
    op->out[1].column = op->in[1].column;
    op->u.rmsnorm = (sl_op_rmsnorm){.weight = weight,
                                    .own_weights = own,
                                    .weight_offset = index % 2 ? 1.0f : 0.0f,
                                    .epsilon = 1e-6f,
                                    .groups = groups,
                                    .width = width,
                                    .stride = stride,
                                    .gate_stride = width + 1,
                                    .residual = shapes[s].residual,
                                    .x_factor = scaled < 0 ? 1 : factors[index % 3][0],
                                    .y_factor = scaled < 0 ? 1 : factors[index % 3][1]};
    kt_name_case(c, SL_OP_RMSNORM, index, scaled < 0 ? "" : "factors");
    return true;
}

static bool make_layernorm(kt_case *c, int32_t index, kt_random *random) {
    static const struct {
        int32_t width;
        bool residual, sum, bias, in_place;
        style how;
    } shapes[] = {{64, true, false, true, false, NORMAL},   {384, true, true, true, false, OUTLIERS},
                  {768, false, false, true, true, NORMAL},  {1024, true, false, true, false, LARGE},
                  {37, true, false, false, false, NORMAL},  {1, false, false, true, false, NORMAL},
                  {1000, true, true, true, true, NORMAL},   {256, false, false, true, false, ZEROS},
                  {4096, true, false, false, false, NORMAL}};
    const int32_t count = (int32_t)(sizeof shapes / sizeof *shapes);
    if (index >= 2 * count) {
        return false;
    }
    const int32_t s = index % count, width = shapes[s].width;
    begin_case(c, row_counts[(index * 5) % ROW_COUNTS], 2, random);
    const int32_t x = input(c, "x", SL_ROWS_STEP, 3 + width, shapes[s].how, random);
    const int32_t residual =
        shapes[s].residual ? input(c, "residual", SL_ROWS_STEP, 1 + width, NORMAL, random) : SL_NONE;
    const int32_t y = shapes[s].in_place ? x : sl_program_value(&c->program, "y", SL_ROWS_STEP, 2 + width);
    const int32_t weight = vector(c, "w", 1, width, (interval){1, 0.5f}, random);
    const int32_t bias = shapes[s].bias ? vector(c, "b", 1, width, (interval){0, 0.5f}, random) : SL_NONE;
    sl_op *op = add(c, SL_OP_LAYERNORM, LIST(x, residual), LIST(y, shapes[s].sum ? residual : SL_NONE));
    op->in[0].column = 3;
    op->in[1].column = op->out[1].column = 1;
    op->out[0].column = shapes[s].in_place ? 3 : 2;
    op->u.layernorm = (sl_op_layernorm){
        .weight = weight, .bias = bias, .epsilon = index < count ? 1e-12f : 1e-5f, .width = width};
    kt_name_case(c, SL_OP_LAYERNORM, index, "");
    return true;
}

static bool make_quantize(kt_case *c, int32_t index, kt_random *random) {
    static const style styles[] = {NORMAL, OUTLIERS, ZEROS, LARGE, TIES, SATURATED};
    static const sl_value_type formats[] = {SL_VALUE_Q8_32, SL_VALUE_BF16, SL_VALUE_E4M3_128,
                                            SL_VALUE_Q8_256};
    if (index >= 4 * ROW_COUNTS) {
        return false;
    }
    const sl_value_type type = formats[index / ROW_COUNTS];
    const int32_t rows = row_counts[index % ROW_COUNTS], odd = index < 2 * ROW_COUNTS ? 0 : index % 4;
    const int32_t width = 32 * (1 + kt_below(random, 40)) + odd;
    begin_case(c, rows, 1, random);
    const int32_t x = input(c, "x", SL_ROWS_STEP, width + 7, styles[index % 6], random);
    float *data = c->inputs[x];
    if (rows > 2) { /* what a broken model makes */
        data[7] = NAN;
        data[width + 7 + 7] = INFINITY;
        data[2 * (width + 7) + 9] = 1e-38f;
    }
    const int32_t q = typed(c, "q", type, SL_ROWS_STEP, sl_stored_width(column_multiple, width));
    sl_op *op = add(c, SL_OP_QUANTIZE, LIST(x), LIST(q));
    op->in[0].column = 7;
    op->u.quantize.width = width;
    kt_name_case(c, SL_OP_QUANTIZE, index, sl_value_type_name(type));
    return true;
}

/* Lengths that rows pass within a step, and those of models; with and without rotation, and on more or fewer
 * columns than rotate. */
static void add_temperature(sl_op_rope *rope, int32_t index, int32_t size) {
    static const int32_t lengths[] = {3, 16, 1, 8192};
    const int32_t widths[] = {rope->dims, size, size, size / 4 + index / 4 % 2};
    rope->temperature = (sl_rope_temperature){.scale = index % 3 ? 0.1f : 1.0f,
                                              .offset = index / 2 % 2,
                                              .length = lengths[index / 2 % 4],
                                              .width = widths[index % 4]};
    if (index % 4 == 1) {
        rope->dims = 0;
        rope->frequencies = SL_NONE;
    }
}

static bool make_rope(kt_case *c, int32_t index, kt_random *random) {
    if (index >= 3 * ROW_COUNTS) {
        return false;
    }
    static const int32_t sizes[] = {64, 128, 32, 256, 80};
    const int32_t size = sizes[index % 5], heads = 1 + kt_below(random, 9);
    const int32_t dims = index % 3 == 0 ? size : size / 2;
    begin_case(c, row_counts[index % ROW_COUNTS], 2, random);
    c->position_base = index % 4 == 3 ? 100000 : 0;
    c->tolerance = 1e-3; /* the angle is rounded to f32: at position 100000 by 0.004 */
    if (c->position_base) {
        c->tolerance = 2e-2;
    }
    float *frequencies = kt_alloc((size_t)dims / 2, sizeof *frequencies);
    for (int32_t i = 0; i < dims / 2; i++) {
        frequencies[i] = powf(10000.0f, -2.0f * (float)i / (float)dims);
    }
    const sl_weight weight = {"frequencies", SL_QTYPE_F32,       1, 1, dims / 2,
                              frequencies,   (uint64_t)dims * 2, 0};
    const int32_t w = sl_program_weight(&c->program, &weight);
    const int32_t x = input(c, "x", SL_ROWS_STEP, 3 + heads * (size + 2), NORMAL, random);
    sl_op *op = add(c, SL_OP_ROPE, LIST(x), LIST(x));
    op->in[0].column = op->out[0].column = 3;
    op->u.rope = (sl_op_rope){.frequencies = w,
                              .heads = heads,
                              .stride = size + 2,
                              .dims = dims,
                              .layout = index % 2 ? SL_ROPE_PAIRS : SL_ROPE_HALVES,
                              .magnitude = index % 5 == 4 ? 1.2f : 1.0f};
    if (index >= ROW_COUNTS) {
        add_temperature(&op->u.rope, index, size);
    }
    char detail[64];
    snprintf(detail, sizeof detail, "%s%s", index % 2 ? "pairs" : "halves",
             index < ROW_COUNTS ? "" : ", temperature");
    kt_name_case(c, SL_OP_ROPE, index, detail);
    return true;
}

static bool make_embed(kt_case *c, int32_t index, kt_random *random) {
    /* Then positions and first rows, with a residual that may lie on y. */
    const int32_t other = index - 2 * SL_QTYPE_COUNT;
    if (other >= 12) {
        return false;
    }
    const sl_qtype type =
        other >= 0 ? (other % 3 ? SL_QTYPE_F16 : SL_QTYPE_F32) : (sl_qtype)(index % SL_QTYPE_COUNT);
    begin_case(c, row_counts[(index * 3 + 2) % ROW_COUNTS], 3, random);
    c->last_tokens = index >= SL_QTYPE_COUNT && other < 0;
    const int32_t w = matrix(c, type, (matrix_shape){1, c->program.vocabulary, 512}, true, random);
    const int32_t residual = other >= 0 ? input(c, "residual", SL_ROWS_STEP, 514, NORMAL, random) : SL_NONE;
    const int32_t y = other % 2 == 1 ? residual : sl_program_value(&c->program, "y", SL_ROWS_STEP, 514);
    sl_op *op = add(c, SL_OP_EMBED, LIST(residual), LIST(y));
    op->in[0].column = 1;
    op->out[0].column = 1;
    op->u.embed = (sl_op_embed){.weight = w, .scale = index % 2 ? 22.5f : 1.0f};
    if (other >= 0) {
        op->u.embed.source = other / 2 % 2 ? SL_EMBED_FIRST : SL_EMBED_POSITION;
        op->u.embed.offset = other / 4;
    }
    kt_name_case(c, SL_OP_EMBED, index, sl_qtype_get(type)->name);
    return true;
}

/* Every function, with a value and, but for the one that needs it, without. */
static bool make_other_activation(kt_case *c, int32_t index, int32_t number, kt_random *random) {
    if (number >= 8 * SL_ACTIVATION_COUNT) {
        return false;
    }
    const sl_activation function = (sl_activation)(number % SL_ACTIVATION_COUNT);
    const int32_t round = number / SL_ACTIVATION_COUNT, front = round % 4 < 2 ? 0 : 1;
    const int32_t width = front ? 1 + kt_below(random, 700) : 4 * (1 + kt_below(random, 175));
    const bool has_up = function == SL_ACTIVATION_SWIGLU_OAI || round % 2 == 0, in_place = round >= 6;
    begin_case(c, row_counts[number % ROW_COUNTS], 1, random);
    c->program.experts = 4;
    c->program.experts_used = 2;
    const sl_rows rows = number % 3 ? SL_ROWS_STEP : SL_ROWS_EXPERT;
    const int32_t gate = input(c, "gate", rows, width + 4 * front, round == 5 ? LARGE : NORMAL, random);
    const int32_t up =
        has_up ? input(c, "up", rows, width + 4 * front, round == 2 ? LARGE : NORMAL, random) : SL_NONE;
    const int32_t y = in_place ? gate : sl_program_value(&c->program, "y", rows, (width + front + 3) / 4 * 4);
    if (c->rows > 1) { /* what a broken model makes */
        ((float *)c->inputs[gate])[width + 5 * front] = NAN;
    }
    const bool weighs = rows == SL_ROWS_EXPERT && round % 3 == 1;
    const int32_t weights = weighs ? input(c, "weights", SL_ROWS_STEP, 2, NORMAL, random) : SL_NONE;
    sl_op *op = add(c, SL_OP_ACTIVATE, LIST(gate, up, weights), LIST(y));
    op->in[0].column = front;
    op->in[1].column = has_up ? 2 * front : 0;
    op->out[0].column = front;
    const float most = round % 4 == 3 ? 7 : 1.25f, limit = function == SL_ACTIVATION_XIELU ? -most / 8 : most;
    op->u.activate = (sl_op_activate){function, width, 1.702f, limit, .beta = 0.5f, .negative = 0.875f};
    kt_name_case(c, SL_OP_ACTIVATE, index, sl_activation_name(function));
    return true;
}

static bool make_activate(kt_case *c, int32_t index, kt_random *random) {
    if (index >= ROW_COUNTS) {
        return make_other_activation(c, index, index - ROW_COUNTS, random);
    }
    const int32_t width = 1 + kt_below(random, 700);
    begin_case(c, row_counts[index], 1, random);
    c->program.experts = 4;
    c->program.experts_used = 2;
    const sl_rows rows = index % 3 ? SL_ROWS_STEP : SL_ROWS_EXPERT;
    const int32_t x = input(c, "gate_up", rows, 2 * width + 3, index % 4 == 3 ? LARGE : NORMAL, random);
    const int32_t y = index % 2 ? x : sl_program_value(&c->program, "y", rows, width + 1);
    sl_op *op = add(c, SL_OP_ACTIVATE, LIST(x, x), LIST(y));
    op->in[0].column = 1;
    op->in[1].column = width + 2;
    op->out[0].column = index % 2 ? 1 : 0;
    op->u.activate.function = index % 4 < 2 ? SL_ACTIVATION_SILU : SL_ACTIVATION_GELU_TANH;
    op->u.activate.width = width;
    kt_name_case(c, SL_OP_ACTIVATE, index, "");
    return true;
}

static bool make_gather_or_softcap(kt_case *c, sl_op_kind kind, int32_t index, kt_random *random) {
    static const float caps[][2] = {{30, 1}, {0, 0.125f}, {5, 0.5f}, {0, 13}, {1.5f, 3}}; /* and scales */
    if (index >= (kind == SL_OP_GATHER ? 1 : 3) * ROW_COUNTS) {
        return false;
    }
    const float *cap = caps[index < ROW_COUNTS ? 0 : index % 5];
    const int32_t width = 1 + kt_below(random, index % 4 == 0 ? 9000 : 300);
    begin_case(c, row_counts[index % ROW_COUNTS], 4, random);
    c->outputs = kt_alloc((size_t)c->rows, sizeof *c->outputs);
    for (int32_t i = 0; i < c->rows; i++) {
        if (kt_below(random, 2) == 0 || (i == c->rows - 1 && c->output_count == 0)) {
            c->outputs[c->output_count++] = (sl_step_output){.row = i, .mask = SL_NONE};
        }
    }
    if (kind == SL_OP_GATHER) {
        const int32_t x = input(c, "x", SL_ROWS_STEP, width + 2, NORMAL, random);
        const int32_t y = sl_program_value(&c->program, "y", SL_ROWS_OUTPUT, width + 1);
        sl_op *op = add(c, kind, LIST(x), LIST(y));
        op->in[0].column = 2;
        op->u.gather.width = width;
    } else {
        const int32_t x = input(c, "x", SL_ROWS_OUTPUT, width + 2, index % 2 ? LARGE : NORMAL, random);
        sl_op *op = add(c, kind, LIST(x), LIST(x));
        op->in[0].column = op->out[0].column = 2;
        op->u.softcap = (sl_op_softcap){cap[0], cap[1], width};
    }
    kt_name_case(c, kind, index, "");
    return true;
}

bool kt_make_transfer(kt_case *c, int32_t index, kt_random *random) {
    if (index >= 2 * ROW_COUNTS) {
        return false;
    }
    const int32_t width = 1 + kt_below(random, index % 4 == 0 ? 9000 : 300);
    begin_case(c, row_counts[index % ROW_COUNTS], 4, random);
    const int32_t x = input(c, "x", SL_ROWS_STEP, width + 2, index % 2 ? LARGE : NORMAL, random);
    const int32_t y = sl_program_value(&c->program, "y", SL_ROWS_STEP, width + 1);
    sl_op *op = add(c, SL_OP_TRANSFER, LIST(x), LIST(y));
    op->in[0].column = index % 3;
    op->out[0].column = index % 2;
    op->u.transfer.width = width;
    kt_name_case(c, SL_OP_TRANSFER, index, "");
    return true;
}

/* ---- experts ---- */

/* Groups, factors of experts, and what sums of weights are divided by, as models have them and at their
 * edges. */
static const struct router_shape {
    sl_router_kind kind;
    int32_t experts, used, groups, groups_used;
    bool by_best, normalise, bias, factors;
    float epsilon, least_sum, scale;
    style how;
} router_shapes[] = {
    {SL_ROUTER_SIGMOID, 256, 8, 8, 4, false, true, true, false, 1e-20f, 0, 2.5f, NORMAL}, /* DeepSeek V3 */
    {SL_ROUTER_SOFTMAX, 160, 6, 8, 3, true, false, false, false, 0, 0, 16, NORMAL},       /* DeepSeek V2 */
    {SL_ROUTER_SOFTMAX, 128, 8, 1, 1, false, true, false, true, 0, 0, 1, NORMAL},         /* Gemma 4 */
    {SL_ROUTER_SIGMOID, 64, 6, 8, 2, false, true, false, false, 0, 0, 1, TIES},
    {SL_ROUTER_SOFTMAX, 60, 4, 5, 2, true, false, false, true, 0, 0, 1.5f, TIES},
    {SL_ROUTER_SIGMOID, 32, 7, 32, 7, false, true, true, false, 0, 0, 1, NORMAL}, /* groups of one */
    {SL_ROUTER_SOFTMAX, 8, 2, 4, 1, false, true, false, false, 0, 0, 1, NORMAL},  /* a whole group */
    {SL_ROUTER_SIGMOID, 72, 6, 1, 1, false, true, true, true, 0.5f, 0, 1, NORMAL},
    {SL_ROUTER_SOFTMAX, 16, 2, 1, 1, false, true, false, false, 0, 0.375f, 1, NORMAL}, /* above and below */
    {SL_ROUTER_SOFTMAX, 16, 2, 2, 2, false, true, true, true, 0.125f, 0.5f, 3, NORMAL},
    {SL_ROUTER_SIGMOID, 512, 12, 16, 5, false, true, true, false, 1e-20f, 0, 1, NORMAL},
    {SL_ROUTER_SIGMOID, 129, 5, 3, 1, false, false, true, true, 0, 0, 1, TIES},
    {SL_ROUTER_SOFTMAX, 384, 8, 1, 1, false, true, true, false, 1e-20f, 0, 2.5f, TIES},
};
enum { ROUTER_SHAPES = sizeof router_shapes / sizeof *router_shapes };

static void build_router(kt_case *c, const struct router_shape *shape, kt_random *random) {
    const int32_t e = c->program.experts = shape->experts, u = c->program.experts_used = shape->used;
    const int32_t x = input(c, "logits", SL_ROWS_STEP, e + 2, shape->how, random);
    const sl_value value = {"schedule", SL_VALUE_I32, SL_ROWS_EXPERT, 1, e + 1, false};
    const int32_t ids = typed(c, "ids", SL_VALUE_I32, SL_ROWS_STEP, u);
    const int32_t weights = sl_program_value(&c->program, "weights", SL_ROWS_STEP, u);
    const int32_t schedule = c->schedule_value = sl_program_typed_value(&c->program, &value);
    const int32_t bias = shape->bias ? vector(c, "bias", 1, e, (interval){0, 0.5f}, random) : SL_NONE;
    const int32_t factors =
        shape->factors ? vector(c, "factors", 1, e, (interval){1, 0.5f}, random) : SL_NONE;
    c->ids_value = ids;
    sl_op *op = add(c, SL_OP_ROUTER, LIST(x), LIST(ids, weights, schedule));
    op->in[0].column = 2;
    op->u.router = (sl_op_router){.kind = shape->kind,
                                  .experts = e,
                                  .used = u,
                                  .normalise = shape->normalise,
                                  .bias = bias,
                                  .factors = factors,
                                  .groups = shape->groups,
                                  .groups_used = shape->groups_used,
                                  .group_by_best = shape->by_best,
                                  .epsilon = shape->epsilon,
                                  .least_sum = shape->least_sum,
                                  .scale = shape->scale};
}

static bool make_router(kt_case *c, int32_t index, kt_random *random) {
    static const int32_t experts[] = {4, 8, 32, 60, 128, 129}, used[] = {1, 2, 4, 6, 8, 7};
    if (index >= ROW_COUNTS + 2 * ROUTER_SHAPES) {
        return false;
    }
    begin_case(c, row_counts[index % ROW_COUNTS], 2, random);
    if (index >= ROW_COUNTS) {
        const struct router_shape *shape = &router_shapes[(index - ROW_COUNTS) % ROUTER_SHAPES];
        char detail[64];
        snprintf(detail, sizeof detail, "%d of %d experts, %d of %d groups", shape->used, shape->experts,
                 shape->groups_used, shape->groups);
        build_router(c, shape, random);
        kt_name_case(c, SL_OP_ROUTER, index, detail);
        return true;
    }
    const struct router_shape shape = {.kind = index % 2 ? SL_ROUTER_SIGMOID : SL_ROUTER_SOFTMAX,
                                       .experts = experts[index % 6],
                                       .used = used[index % 6],
                                       .groups = 1,
                                       .groups_used = 1,
                                       .normalise = index % 3 != 1,
                                       .bias = index % 4 == 1,
                                       .scale = index % 5 == 4 ? 2.5f : 1.0f,
                                       .how = index % 3 == 2 ? TIES : NORMAL};
    build_router(c, &shape, random);
    kt_name_case(c, SL_OP_ROUTER, index, "");
    return true;
}

static bool make_combine(kt_case *c, int32_t index, kt_random *random) {
    if (index >= ROW_COUNTS) {
        return false;
    }
    const int32_t width = 32 + kt_below(random, 500);
    begin_case(c, row_counts[index], 2, random);
    c->program.experts = 16;
    const int32_t used = c->program.experts_used = 1 + index % 8;
    const int32_t x = input(c, "x", SL_ROWS_EXPERT, width + 1, NORMAL, random);
    const int32_t weights =
        index % 5 == 4 ? SL_NONE : input(c, "weights", SL_ROWS_STEP, used, NORMAL, random);
    const int32_t residual = index % 3 ? input(c, "residual", SL_ROWS_STEP, width, NORMAL, random) : SL_NONE;
    const int32_t shared =
        index % 4 > 1 ? input(c, "shared", SL_ROWS_STEP, width + 3, NORMAL, random) : SL_NONE;
    const int32_t gate = index % 4 == 3 ? input(c, "shared_gate", SL_ROWS_STEP, 2, NORMAL, random) : SL_NONE;
    const int32_t y = index % 3 == 2 ? residual : sl_program_value(&c->program, "y", SL_ROWS_STEP, width);
    sl_op *op = add(c, SL_OP_COMBINE, LIST(x, weights, residual, shared, gate), LIST(y));
    op->in[0].column = 1;
    op->in[3].column = shared == SL_NONE ? 0 : 3;
    op->in[4].column = gate == SL_NONE ? 0 : 1;
    op->u.combine = (sl_op_combine){used, width};
    kt_name_case(c, SL_OP_COMBINE, index, "");
    return true;
}

/* ---- convolution and gated delta net ---- */

/* `column`: where its operands begin. */
static void build_delta(kt_case *c, sl_op_kind kind, const sl_state_layer *shape, int32_t key_heads,
                        int32_t column, kt_random *random) {
    sl_state_layer other = {.channels = 16, .taps = 2, .heads = 1, .key_size = 8, .value_size = 8};
    sl_program_state(&c->program, &other);
    const int32_t state = sl_program_state(&c->program, shape);
    const int32_t y_width = kind == SL_OP_CONV ? shape->channels : shape->heads * shape->value_size;
    const int32_t x = input(c, "x", SL_ROWS_STEP, shape->channels + column, NORMAL, random);
    const int32_t y = sl_program_value(&c->program, "y", SL_ROWS_STEP, y_width + column);
    if (kind == SL_OP_CONV) {
        float *taps = random_floats((size_t)(shape->channels * shape->taps), NORMAL, random);
        const uint64_t bytes = (uint64_t)(shape->channels * shape->taps) * sizeof *taps;
        const sl_weight weight = {"conv", SL_QTYPE_F32, 1, shape->channels, shape->taps, taps, bytes, 0};
        const int32_t w = sl_program_weight(&c->program, &weight);
        const int32_t bias =
            key_heads == 2 ? SL_NONE : vector(c, "bias", 1, shape->channels, (interval){0.0f, 1.0f}, random);
        add(c, kind, LIST(x), LIST(y))->u.conv =
            (sl_op_conv){.weight = w,
                         .bias = bias,
                         .state = state,
                         .function = shape->heads > 0 ? SL_ACTIVATION_SILU : SL_ACTIVATION_IDENTITY};
    } else {
        const int32_t ab = input(c, "a_b", SL_ROWS_STEP, 2 * shape->heads + 1, NORMAL, random);
        const bool negated = key_heads % 2 == 0;
        const int32_t a_log =
            vector(c, "a_log", 1, shape->heads, (interval){negated ? -1.0f : 0.0f, 0.9f}, random);
        const int32_t dt_bias = vector(c, "dt_bias", 1, shape->heads, (interval){0.0f, 1.0f}, random);
        sl_op *op = add(c, kind, LIST(x, ab, ab), LIST(y));
        op->in[2].column = shape->heads + 1;
        op->u.delta_scan = (sl_op_delta_scan){.a_log = a_log,
                                              .dt_bias = dt_bias,
                                              .key_heads = key_heads,
                                              .value_heads = shape->heads,
                                              .state = state,
                                              .keys_cycle = key_heads % 2 == 1,
                                              .decay_is_negated = negated};
    }
    sl_op *op = &c->program.ops[c->op];
    op->in[0].column = op->out[0].column = column;
}

static bool make_delta(kt_case *c, sl_op_kind kind, int32_t index, kt_random *random) {
    static const int32_t rows[] = {1,  2,   3,  5,   9,  17,  63,  64,  65, 130, 150,
                                   33, 300, 96, 200, 49, 193, 300, 280, 4,  9,   40};
    static const int32_t sizes[] = {32, 64, 128, 256};
    if (index >= (int32_t)(sizeof rows / sizeof *rows)) {
        return false;
    }
    static const int32_t taps[] = {4, 3, 4, 2};
    const int32_t key_heads = 1 + index % 3, ratio = 1 + index % 2;
    sl_state_layer shape = {.taps = taps[index % 4],
                            .heads = key_heads * ratio,
                            .key_size = index < 11 ? sizes[index % 3] : sizes[1 + index % 3],
                            .value_size = index < 11 ? sizes[(index + index / 3) % 3] : sizes[index / 2 % 4]};
    shape.channels = 2 * key_heads * shape.key_size + shape.heads * shape.value_size;
    begin_case(c, rows[index], 1 + index % 4, random);
    c->tolerance = 1e-4;
    c->states = index % 3 == 1 ? 5 : 1;
    if (kind == SL_OP_CONV && index % 2) { /* a layer without a scan */
        shape.heads = shape.key_size = shape.value_size = 0;
    }
    build_delta(c, kind, &shape, key_heads, index < 19 ? 3 : 4, random);
    kt_name_case(c, kind, index, "");
    return true;
}

/* ---- Mamba2's scan ---- */

typedef struct ssm_shape {
    int32_t rows, spans, states, groups, ratio, keys, values;
    float decay; /* the middle of the heads' A_log */
    style how;
} ssm_shape;

static void build_ssm(kt_case *c, const ssm_shape *shape, float step_most, kt_random *random) {
    const interval none = {0.0f, 1.0f};
    const int32_t groups = shape->groups, heads = groups * shape->ratio, values = shape->values;
    const sl_state_layer layer = {.channels = 2 * groups * shape->keys + heads * values,
                                  .taps = 4,
                                  .heads = heads,
                                  .key_size = shape->keys,
                                  .value_size = values};
    sl_state_layer other = {.channels = 16, .taps = 2, .heads = 1, .key_size = 8, .value_size = 8};
    sl_program_state(&c->program, &other);
    const int32_t state = sl_program_state(&c->program, &layer);
    const int32_t x = input(c, "xbc", SL_ROWS_STEP, layer.channels + 3, shape->how, random);
    const int32_t dt = input(c, "dt", SL_ROWS_STEP, heads + 1, NORMAL, random);
    const int32_t y = sl_program_value(&c->program, "y", SL_ROWS_STEP, heads * values + 2);
    const bool negated = groups % 2 == 0;
    const float rate = expf(shape->decay);
    const interval logs = {shape->decay, 0.9f}, rates = {-rate, 0.9f * rate};
    const int32_t a_log = vector(c, "a_log", 1, heads, negated ? rates : logs, random);
    const int32_t dt_bias = vector(c, "dt_bias", 1, heads, none, random);
    const int32_t skip = vector(c, "skip", 1, heads, none, random);
    sl_op *op = add(c, SL_OP_SSM_SCAN, LIST(x, dt), LIST(y));
    op->in[0].column = 3;
    op->in[1].column = 1;
    op->out[0].column = 2;
    op->u.ssm_scan = (sl_op_ssm_scan){.a_log = a_log,
                                      .dt_bias = dt_bias,
                                      .skip = skip,
                                      .groups = groups,
                                      .heads = heads,
                                      .state = state,
                                      .step_least = isfinite(step_most) ? 0.5f : 0.0f,
                                      .step_most = step_most,
                                      .decay_is_negated = negated};
}

enum { SMALL_SSM = 13 };

/* A head of 72 fills no vector, keys of 17 no part. */
static ssm_shape small_ssm(int32_t index) {
    static const int32_t rows[SMALL_SSM] = {1, 2, 3, 5, 9, 17, 63, 64, 65, 130, 150, 33, 300};
    static const int32_t values[] = {16, 32, 64, 128, 72}, keys[] = {16, 128, 64, 256, 17, 512};
    return (ssm_shape){.rows = rows[index],
                       .spans = 1 + index % 4,
                       .states = index % 3 == 1 ? 5 : 1,
                       .groups = 1 + index % 3,
                       .ratio = 1 + index % 4,
                       .keys = keys[index % 6],
                       .values = values[index % 5]};
}

/* Several chunks, that end anywhere. States last for hundreds of rows, or not for one; numbers that F16 does
 * not hold. */
static ssm_shape long_ssm(int32_t index) {
    static const ssm_shape shapes[] = {
        {200, 1, 1, 1, 3, 128, 64, -5, NORMAL}, {280, 3, 2, 2, 1, 128, 32, -5, NORMAL},
        {130, 2, 1, 2, 2, 64, 32, -5, LARGE},   {110, 1, 1, 2, 1, 256, 64, -5, NORMAL},
        {193, 2, 1, 1, 2, 128, 64, 4, NORMAL},  {300, 4, 1, 3, 1, 64, 96, -4, NORMAL},
        {54, 3, 1, 1, 1, 128, 32, -5, NORMAL}, /* 16 rows, 12 and 26: the last alone has a chunk */
        {7, 4, 1, 1, 3, 128, 128, -4, NORMAL},  {40, 3, 2, 2, 1, 64, 128, -5, NORMAL},
    };
    const bool there = index < (int32_t)(sizeof shapes / sizeof *shapes);
    return there ? shapes[index] : (ssm_shape){0};
}

static bool make_ssm(kt_case *c, int32_t index, kt_random *random) {
    const ssm_shape shape = index < SMALL_SSM ? small_ssm(index) : long_ssm(index - SMALL_SSM);
    if (shape.rows == 0) {
        return false;
    }
    begin_case(c, shape.rows, shape.spans, random);
    c->tolerance = 1e-4;
    c->states = shape.states;
    build_ssm(c, &shape, index % 3 == 2 ? 0.75f : INFINITY, random);
    kt_name_case(c, SL_OP_SSM_SCAN, index, "");
    return true;
}

/* ---- sampling ---- */

/* Of different tokens of an output whose adjustments come next: what bias, bans and penalties make, alone and
 * together. */
static void add_adjustments(kt_case *c, sl_step_output *output, int32_t count, kt_random *random) {
    static const float bias[] = {0, 0, 0, 1.5f, -2, 8, -INFINITY};
    static const float repetition[] = {1, 1, 1.3f, 0.7f};
    static const float after[] = {0, 0, -0.5f, -1.75f, 2};
    const int32_t start = kt_below(random, c->program.vocabulary);
    output->adjustment_first = c->adjustment_count;
    output->adjustment_count = count;
    for (int32_t i = 0; i < count; i++) {
        c->adjustments[c->adjustment_count++] =
            (sl_adjustment){.token = (start + 7 * i) % c->program.vocabulary, /* 7 divides no vocabulary */
                            .before = bias[kt_below(random, 7)],
                            .repetition = repetition[kt_below(random, 4)],
                            .after = after[kt_below(random, 5)]};
    }
}

/* What a grammar leaves: one token, a few, about half, all but a few, or none (nothing can be drawn then).
 * Outputs may share one, and bits past the vocabulary mean nothing. */
static void add_mask(kt_case *c, sl_step_output *output, kt_random *random) {
    const int32_t vocabulary = c->program.vocabulary, words = sl_mask_words(vocabulary);
    if (c->mask_count > 0 && kt_below(random, 4) == 0) {
        output->mask = kt_below(random, c->mask_count);
        return;
    }
    output->mask = c->mask_count++;
    uint32_t *mask = c->masks + (size_t)output->mask * (size_t)words;
    const int32_t kind = kt_below(random, 16);
    for (int32_t i = 0; i < words; i++) {
        mask[i] = kind < 6 ? 0 : kind < 10 ? (uint32_t)kt_next(random) : UINT32_MAX;
    }
    const int32_t others = kind == 0 ? 0 : kind == 1 ? 1 : 1 + kt_below(random, 20);
    for (int32_t i = 0; i < others; i++) {
        const int32_t id = kt_below(random, vocabulary);
        mask[id / 32] ^= 1u << id % 32;
    }
}

/* llama.cpp's order, or some stages in any order. */
static void choose_order(uint8_t *order, kt_random *random) {
    static const uint8_t usual[SL_SAMPLER_STAGES] = {SL_STAGE_TOP_N_SIGMA, SL_STAGE_TOP_K, SL_STAGE_TYPICAL_P,
                                                     SL_STAGE_TOP_P,       SL_STAGE_MIN_P, SL_STAGE_XTC,
                                                     SL_STAGE_TEMPERATURE};
    const int32_t stages = SL_STAGE_COUNT - 1;
    memcpy(order, usual, sizeof usual);
    for (int32_t i = kt_below(random, 2) ? stages - 1 : 0; i > 0; i--) {
        const int32_t other = kt_below(random, i + 1);
        const uint8_t stage = order[i];
        order[i] = order[other];
        order[other] = stage;
    }
    order[kt_below(random, 4) ? stages : 1 + kt_below(random, stages)] = SL_STAGE_END;
}

static void choose_sampler(sl_sampler *s, int32_t index, kt_random *random) {
    static const float typical[] = {0,     0,    1,    0.2f,
                                    0.53f, 0.9f, 0.97f}; /* no sum of equals reaches just these */
    *s = (sl_sampler){.temperature = kt_below(random, 4) ? 0.3f + kt_uniform(random, 0.2f) : 0.0f,
                      .top_p = kt_below(random, 2) ? 0.9f : 1.0f,
                      .min_p = kt_below(random, 3) ? 0.0f : 0.05f,
                      .typical_p = typical[kt_below(random, 7)],
                      .top_k = kt_below(random, 2) ? 1 + kt_below(random, 50) : 0,
                      .seed_low = (uint32_t)kt_next(random),
                      .seed_high = (uint32_t)kt_next(random),
                      .counter = (uint32_t)kt_below(random, 100000)};
    if (index % 3 != 1) {
        s->top_n_sigma = kt_below(random, 3) ? 0 : 1.5f + kt_uniform(random, 0.8f);
        s->xtc_probability = kt_below(random, 2) ? 0.6f : 0;
        s->xtc_threshold = 0.07f + kt_uniform(random, 0.06f);
        s->dynamic_range = kt_below(random, 3) ? 0 : 0.25f;
        s->dynamic_exponent = 1.0f + kt_uniform(random, 0.5f);
    }
    choose_order(s->order, random);
}

/* Some rows that nothing can be drawn from, and single tokens that cannot be. */
static void spoil_logits(float *logits, int32_t rows, int32_t vocabulary, kt_random *random) {
    for (int32_t row = 0; row < rows; row++) {
        float *of_row = logits + (size_t)row * (size_t)vocabulary;
        const int32_t what = kt_below(random, 8);
        for (int32_t i = 0; i < vocabulary; i++) {
            of_row[i] = what == 0 || kt_below(random, 4) == 0 ? -INFINITY : of_row[i];
        }
        if (what == 1 || what == 2) {
            of_row[kt_below(random, vocabulary)] = what == 1 ? NAN : INFINITY;
        } else if (what == 3) {
            of_row[vocabulary - 1] = -NAN;
        }
    }
}

static bool make_sample(kt_case *c, int32_t index, kt_random *random) {
    static const int32_t vocabularies[] = {64, 1000, 4099};
    if (index >= 96) {
        return false;
    }
    begin_case(c, 1 + kt_below(random, 40), 5, random);
    const int32_t vocabulary = c->program.vocabulary = vocabularies[index % 3];
    const int32_t many = vocabulary < 1500 ? vocabulary : 1500,
                  few = vocabulary / 3 < 80 ? vocabulary / 3 : 80;
    if (index % 2) { /* with table changes in front of the adjustments */
        sl_program_group(&c->program, &(sl_cache_group){"full", 1, 1, 32, 32, 0, false, false});
        c->cache_type = SL_QTYPE_F32;
    }
    c->outputs = kt_alloc((size_t)c->rows, sizeof *c->outputs);
    c->adjustments = kt_alloc((size_t)(many * c->rows), sizeof *c->adjustments);
    c->masks = kt_alloc((size_t)(sl_mask_words(vocabulary) * c->rows), sizeof *c->masks);
    for (int32_t i = 0; i < c->rows; i++) {
        sl_step_output *output = &c->outputs[c->output_count++];
        output->row = i;
        output->mask = SL_NONE;
        if ((index >= 48 || index % 4 == 2) && kt_below(random, 4)) {
            add_mask(c, output, random);
        }
        if (kt_below(random, 2)) {
            add_adjustments(c, output, kt_below(random, kt_below(random, 8) ? few : many + 1), random);
        }
        choose_sampler(&output->sampler, index, random);
    }
    const int32_t x = input(c, "logits", SL_ROWS_OUTPUT, vocabulary, index % 4 == 3 ? TIES : NORMAL, random);
    if (index % 5 == 4) {
        spoil_logits(c->inputs[x], c->rows, vocabulary, random);
    }
    const int32_t y = typed(c, "tokens", SL_VALUE_I32, SL_ROWS_OUTPUT, 1);
    c->program.logits = x;
    c->program.tokens = y;
    add(c, SL_OP_SAMPLE, LIST(x), LIST(y))->u.sample.vocabulary = vocabulary;
    kt_name_case(c, SL_OP_SAMPLE, index, "");
    return true;
}

bool kt_make_case(kt_case *c, sl_op_kind kind, int32_t index, sl_value_type activation, kt_random *random) {
    switch (kind) {
    case SL_OP_LINEAR:
        return make_linear(c, index, activation, random);
    case SL_OP_HEAD_LINEAR:
        return make_head_linear(c, index, random);
    case SL_OP_BEGIN:
    case SL_OP_CACHE_WRITE:
    case SL_OP_RECALL:
    case SL_OP_ATTENTION:
        return make_attention(c, kind, index, random);
    case SL_OP_COMPACT:
        return kt_make_compact(c, index, random);
    case SL_OP_EMBED:
        return make_embed(c, index, random);
    case SL_OP_RMSNORM:
        return make_rmsnorm(c, index, random);
    case SL_OP_LAYERNORM:
        return make_layernorm(c, index, random);
    case SL_OP_QUANTIZE:
        return make_quantize(c, index, random);
    case SL_OP_ROPE:
        return make_rope(c, index, random);
    case SL_OP_ACTIVATE:
        return make_activate(c, index, random);
    case SL_OP_TRANSFER:
        return kt_make_transfer(c, index, random);
    case SL_OP_GATHER:
    case SL_OP_SOFTCAP:
        return make_gather_or_softcap(c, kind, index, random);
    case SL_OP_ROUTER:
        return make_router(c, index, random);
    case SL_OP_COMBINE:
        return make_combine(c, index, random);
    case SL_OP_CONV:
    case SL_OP_DELTA_SCAN:
        return make_delta(c, kind, index, random);
    case SL_OP_SSM_SCAN:
        return make_ssm(c, index, random);
    case SL_OP_SAMPLE:
        return make_sample(c, index, random);
    default:
        return kt_make_exchange(c, kind, index, random);
    }
}

/* ---- realistic shapes ---- */

static void bench_rows(kt_case *c, sl_op_kind kind, int32_t rows, kt_random *random) {
    begin_case(c, rows, 1, random);
    const int32_t x = input(c, "x", SL_ROWS_STEP, 8192, NORMAL, random);
    const int32_t y = sl_program_value(&c->program, "y", SL_ROWS_STEP, 4096);
    if (kind == SL_OP_RMSNORM) {
        const int32_t w = vector(c, "w", 1, 4096, (interval){1, 0.5f}, random);
        add(c, kind, LIST(x), LIST(y))->u.rmsnorm = (sl_op_rmsnorm){.weight = w,
                                                                    .epsilon = 1e-6f,
                                                                    .groups = 1,
                                                                    .width = 4096,
                                                                    .stride = 4096,
                                                                    .x_factor = 1,
                                                                    .y_factor = 1};
    } else if (kind == SL_OP_ACTIVATE) {
        sl_op *op = add(c, kind, LIST(x, x), LIST(y));
        op->in[1].column = 4096;
        op->u.activate.width = 4096;
    } else if (kind == SL_OP_QUANTIZE) {
        const int32_t q = typed(c, "q", SL_VALUE_Q8_32, SL_ROWS_STEP, 4096);
        add(c, kind, LIST(x), LIST(q))->u.quantize.width = 4096;
    } else {
        const int32_t w = vector(c, "frequencies", 1, 64, (interval){0.5f, 0.5f}, random);
        add(c, kind, LIST(x), LIST(x))->u.rope =
            (sl_op_rope){.frequencies = w, .heads = 32, .stride = 128, .dims = 128, .magnitude = 1.0f};
    }
}

enum { BEYOND_CACHES = 160 << 20, DEPTH = 16384 };

/* More ops like the one that was added last, each with a weight of its own in memory. */
static void add_copies(kt_case *c, int32_t copies) {
    const int32_t first = c->op;
    const sl_op like = c->program.ops[first];
    const sl_weight weight = c->program.weights[like.u.linear.segments[0].weight];
    for (int32_t i = 1; i < copies; i++) {
        const int32_t w = sl_program_weight(&c->program, &weight);
        sl_op *op = sl_program_op(&c->program, like.kind, SL_NONE);
        *op = like;
        op->u.linear.segments[0].weight = w;
    }
    c->op = first;
    c->copies = copies;
}

static void make_linear_work(kt_case *c, const kt_work *work, kt_random *random) {
    const linear_shape plain = {
        .rows = work->rows, .columns = 4096, .outputs = {24576}, .aligned = true, .full = true};
    const linear_shape experts = {.rows = work->rows,
                                  .columns = 2048,
                                  .outputs = {768},
                                  .aligned = true,
                                  .full = true,
                                  .experts = 128,
                                  .used = 8};
    build_linear(c, work->experts ? &experts : &plain, work->type, work->activation, random);
    if (work->experts) { /* no expert has more rows than chance gives it */
        int32_t *ids = c->inputs[c->ids_value];
        for (int32_t i = 0; i < c->rows * experts.used; i++) {
            ids[i] = i % experts.used == 0 ? kt_below(random, experts.experts)
                                           : (ids[i - 1] + 13) % experts.experts;
        }
    }
    const sl_op_linear *linear = &c->program.ops[c->op].u.linear;
    const sl_qtype_info *info = sl_qtype_get(work->type);
    const sl_weight *weight = &c->program.weights[linear->segments[0].weight];
    const uint64_t bytes = (uint64_t)weight->experts * (uint64_t)weight->rows * (uint64_t)weight->columns /
                           info->block_elements * info->block_bytes;
    const int32_t copies = (int32_t)(BEYOND_CACHES / bytes) + 1;
    add_copies(c, work->rows > 128 && copies > 4 ? 4 : copies); /* many rows: bound by arithmetic */
    snprintf(c->name, sizeof c->name, work->experts ? "8 of 128 experts, 768 x 2048 %s" : "24576 x 4096 %s",
             info->name);
}

bool kt_make_work(kt_case *c, const kt_work *work, kt_random *random) {
    if (work->kind == SL_OP_LINEAR) {
        make_linear_work(c, work, random);
    } else if (work->kind == SL_OP_ATTENTION) {
        const attention_shape shape = {work->rows, 1,     32,    8,          128,    128, 0,
                                       0,          false, false, work->type, NORMAL, 0,   false};
        kt_build_attention(c, &shape, SL_OP_ATTENTION, true, random);
        c->depth = DEPTH;
        snprintf(c->name, sizeof c->name, "32/8 heads of 128, %s, %d keys before",
                 sl_qtype_get(work->type)->name, DEPTH);
    } else if (work->kind == SL_OP_DELTA_SCAN || work->kind == SL_OP_SSM_SCAN) {
        return kt_make_bench(c, work->kind, 0, work->rows, SL_VALUE_F32, random) && (c->tight = true);
    } else {
        return false;
    }
    c->tight = true;
    return true;
}

bool kt_make_bench(kt_case *c, sl_op_kind kind, int32_t variant, int32_t rows, sl_value_type activation,
                   kt_random *random) {
    if (kind == SL_OP_LINEAR && variant < SL_QTYPE_COUNT) {
        const linear_shape shape = {.rows = rows, .columns = 2048, .outputs = {2048, 512, 512}};
        build_linear(c, &shape, (sl_qtype)variant, activation, random);
        snprintf(c->name, sizeof c->name, "3072 x 2048 %s", sl_qtype_get((sl_qtype)variant)->name);
        return true;
    }
    if (kind == SL_OP_ATTENTION && variant < 3) { /* few rows with many keys before them */
        const int32_t size = 128 << variant, kv_heads = variant == 0 ? 8 : 2;
        const attention_shape shape = {rows, 1,     16,    kv_heads,     size,   size, 0,
                                       0,    false, false, SL_QTYPE_F16, NORMAL, 0,    false};
        kt_build_attention(c, &shape, SL_OP_ATTENTION, variant > 0, random);
        c->depth = variant > 0 && rows <= 64 ? DEPTH : 0;
        snprintf(c->name, sizeof c->name, "16/%d heads of %d, f16", kv_heads, size);
        return true;
    }
    if (kind == SL_OP_ATTENTION && variant == 3) { /* values that are part of the keys */
        const attention_shape shape = {rows,  1,     16,           1,      576, 512, 0, 0,
                                       false, false, SL_QTYPE_F16, NORMAL, 0,   true};
        kt_build_attention(c, &shape, SL_OP_ATTENTION, true, random);
        c->depth = rows <= 64 ? DEPTH : 0;
        snprintf(c->name, sizeof c->name, "16/1 heads of 576/512, f16");
        return true;
    }
    if (kind == SL_OP_HEAD_LINEAR && variant < 2) {
        const head_shape shape = {
            rows,  16,    variant ? 512 : 128, variant ? 128 : 512, variant ? 0 : 64, 0, variant == 0,
            false, NORMAL};
        build_head_linear(c, &shape, SL_QTYPE_Q8_0, (const int32_t[]){0, 0}, random);
        snprintf(c->name, sizeof c->name, "16 heads, %d to %d q8_0", shape.inputs, shape.outputs);
        return true;
    }
    if (kind == SL_OP_DELTA_SCAN && variant == 0) {
        const sl_state_layer shape = {
            .channels = 8192, .taps = 4, .heads = 32, .key_size = 128, .value_size = 128};
        begin_case(c, rows, 1, random);
        build_delta(c, kind, &shape, 16, 4, random);
        snprintf(c->name, sizeof c->name, "16/32 heads of 128");
        return true;
    }
    if (kind == SL_OP_SSM_SCAN && variant == 0) {
        const ssm_shape shape = {.groups = 8, .ratio = 8, .keys = 128, .values = 64};
        begin_case(c, rows, 1, random);
        build_ssm(c, &shape, INFINITY, random);
        snprintf(c->name, sizeof c->name, "64 heads of 64, state 128");
        return true;
    }
    if (variant == 0 &&
        (kind == SL_OP_RMSNORM || kind == SL_OP_ACTIVATE || kind == SL_OP_QUANTIZE || kind == SL_OP_ROPE)) {
        bench_rows(c, kind, rows, random);
        snprintf(c->name, sizeof c->name, "4096");
        return true;
    }
    return false;
}
