/* Ops that treat each row by itself, for one tier: included once by its rows.c, after its simd.h. Where
 * nothing else is said, an element is computed as by the plain kernel, with products fused into sums and
 * simd_math.h's functions. Widths must fill whole vectors; the plain kernels take the others. */
#ifndef SL_BACKEND_CPU_SIMD_ROWS_H
#define SL_BACKEND_CPU_SIMD_ROWS_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/simd_math.h"
#include "program/temperature.h"

#include <math.h>
#include <string.h>

static const char *const odd_width = "takes widths that fill its vectors";

/* ---- rmsnorm: squares added to VN sums in turn, then vf_sum ---- */

SL_TIER_DECLINES(rmsnorm) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    return needs ? needs : query->op->u.rmsnorm.width % VN ? odd_width : NULL;
}

/* One group of one row. Some of these may be the same memory: an element is written after it is read. */
typedef struct norm {
    const float *x, *before, *after, *gate, *weight;
    float *y, *sum;
    int32_t width;
    float offset, epsilon, x_factor, y_factor;
} norm;

SL_ALWAYS_INLINE vf norm_input(const norm *n, int32_t i) {
    const vf x = vf_mul(vf_load(n->x + i), vf_set1(n->x_factor));
    return n->before ? vf_add(x, vf_load(n->before + i)) : x;
}

static void norm_group(const norm *n) {
    vf squares = vf_zero();
    for (int32_t i = 0; i < n->width; i += VN) {
        const vf x = norm_input(n, i);
        squares = vf_fma(x, x, squares);
    }
    const vf factor = vf_set1(1.0f / sqrtf(vf_sum(squares) / (float)n->width + n->epsilon));
    const vf offset = vf_set1(n->offset);
    for (int32_t i = 0; i < n->width; i += VN) {
        const vf x = norm_input(n, i);
        vf result = vf_mul(x, factor);
        if (n->weight) {
            result = vf_mul(result, vf_add(vf_load(n->weight + i), offset));
        }
        if (n->gate) {
            result = vf_mul(result, vf_silu(vf_load(n->gate + i)));
        }
        if (n->after) {
            result = vf_add(result, vf_load(n->after + i));
        }
        result = vf_mul(result, vf_set1(n->y_factor));
        if (n->sum) {
            vf_store(n->sum + i, n->after ? result : x);
        }
        vf_store(n->y + i, result);
    }
}

SL_TIER_RUN(rmsnorm) {
    const sl_op_rmsnorm *p = &op->op->u.rmsnorm;
    const bool in_place = op->op->in[0].value == op->op->out[0].value;
    const int32_t y_stride = in_place ? p->stride : p->width;
    norm n = {.width = p->width,
              .offset = p->weight_offset,
              .epsilon = p->epsilon,
              .x_factor = p->x_factor,
              .y_factor = p->y_factor};
    const float *weights = (const float *)(const void *)op->weights[0].data;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        for (int32_t g = 0; g < p->groups; g++) {
            const int32_t at = g * p->stride;
            const int32_t residual_at = p->residual == SL_RESIDUAL_AFTER ? g * y_stride : at;
            const float *residual =
                p->residual != SL_RESIDUAL_NONE ? sl_cpu_f32(&op->in[1], row) + residual_at : NULL;
            n.weight = weights && p->own_weights ? weights + g * p->width : weights;
            n.x = sl_cpu_f32(&op->in[0], row) + at;
            n.before = p->residual == SL_RESIDUAL_BEFORE ? residual : NULL;
            n.after = p->residual == SL_RESIDUAL_AFTER ? residual : NULL;
            n.gate = op->in[2].data ? sl_cpu_f32(&op->in[2], row) + g * p->gate_stride : NULL;
            n.y = sl_cpu_f32(&op->out[0], row) + g * y_stride;
            n.sum = op->out[1].data ? sl_cpu_f32(&op->out[1], row) + at : NULL;
            norm_group(&n);
        }
    }
}

/* ---- quantize: the bits of quant/activation.h and sl_f32_to_bf16 ---- */

SL_TIER_DECLINES(quantize) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    const sl_op *op = query->op;
    sl_codes codes;
    const bool is_codes = sl_value_codes(query->values[op->out[0].value].type, &codes);
    return needs                                                           ? needs
           : is_codes && codes != SL_CODES_Q8_256                          ? "makes q8_32, q8_256 and bf16"
           : is_codes && op->u.quantize.width % SL_Q8_256_GROUP != 0       ? "makes whole groups of 256"
           : op->u.quantize.width % VN != 0                                ? odd_width
           : query->values[op->out[0].value].width != op->u.quantize.width ? "writes no zeros behind a row"
                                                                           : NULL;
}

SL_ALWAYS_INLINE void quantize_group(const float *x, sl_q8_32 row, int32_t group) {
    enum { VECTORS = SL_Q8_32_GROUP / VN };
    vf values[VECTORS];
    vi magnitudes = vi_zero(), sums = vi_zero();
    SL_UNROLL for (int v = 0; v < VECTORS; v++) {
        values[v] = vf_load(x + v * VN);
        magnitudes = vi_max_unsigned(magnitudes, vi_and(vi_bits(values[v]), vi_set1(0x7fffffff)));
    }
    const float largest = sl_f32_from_bits(vi_largest_unsigned(magnitudes));
    if (!(largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f)) {
        row.scales[group] = largest < SL_Q8_32_ZERO_BELOW ? 0.0f : sl_f32_from_bits(0x7fc00000u);
        row.sums[group] = 0;
        memset(row.values + group * SL_Q8_32_GROUP, 0, SL_Q8_32_GROUP);
        return;
    }
    const vf inverse = vf_set1(127.0f / largest);
    row.scales[group] = largest / 127.0f;
    SL_UNROLL for (int v = 0; v < VECTORS; v++) {
        const vi rounded = vi_from_float(vf_mul(values[v], inverse));
        sums = vi_add(sums, rounded);
        vi_store_i8(row.values + group * SL_Q8_32_GROUP + v * VN, rounded);
    }
    row.sums[group] = vi_sum(sums);
}

/* 256 columns, and their scale. */
SL_ALWAYS_INLINE float quantize_codes(const float *x, unsigned char *codes) {
    vi magnitudes = vi_zero();
    for (int i = 0; i < SL_Q8_256_GROUP; i += VN) {
        magnitudes = vi_max_unsigned(magnitudes, vi_and(vi_bits(vf_load(x + i)), vi_set1(0x7fffffff)));
    }
    const float largest = sl_f32_from_bits(vi_largest_unsigned(magnitudes));
    if (!(largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f)) {
        memset(codes, 0, SL_Q8_256_GROUP);
        return largest < SL_Q8_32_ZERO_BELOW ? 0.0f : sl_f32_from_bits(0x7fc00000u);
    }
    const vf inverse = vf_set1(127.0f / largest);
    for (int i = 0; i < SL_Q8_256_GROUP; i += VN) {
        vi_store_i8(codes + i, vi_from_float(vf_mul(vf_load(x + i), inverse)));
    }
    return largest / 127.0f;
}

SL_TIER_RUN(quantize) {
    const int32_t width = op->op->u.quantize.width;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *x = sl_cpu_f32(&op->in[0], row);
        if (op->out[0].type == SL_VALUE_Q8_32) {
            const sl_q8_32 planes = sl_cpu_q8_32(&op->out[0], row);
            for (int32_t g = 0; g < width / SL_Q8_32_GROUP; g++) {
                quantize_group(x + g * SL_Q8_32_GROUP, planes, g);
            }
            continue;
        }
        if (op->out[0].type == SL_VALUE_Q8_256) {
            unsigned char *codes = sl_cpu_codes(&op->out[0], row);
            float *scales = (float *)(void *)(codes + width);
            for (int32_t i = 0; i < width; i += SL_Q8_256_GROUP) {
                *scales++ = quantize_codes(x + i, codes + i);
            }
            continue;
        }
        uint16_t *y = sl_cpu_bf16(&op->out[0], row);
        for (int32_t i = 0; i < width; i += VN) {
            vf_store_bf16(y + i, vf_load(x + i));
        }
    }
}

/* ---- rope ---- */

SL_TIER_DECLINES(rope) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    return needs                                                                         ? needs
           : query->op->u.rope.dims / 2 % VN || query->op->u.rope.temperature.width % VN ? odd_width
                                                                                         : NULL;
}

static void scale_heads(const sl_op_rope *rope, float *x, int32_t position) {
    const vf factor = vf_set1(sl_rope_temperature_factor(&rope->temperature, position));
    for (int32_t head = 0; head < rope->heads; head++, x += rope->stride) {
        for (int32_t i = 0; i < rope->temperature.width; i += VN) {
            vf_store(x + i, vf_mul(vf_load(x + i), factor));
        }
    }
}

/* Pairs [i, i + VN) of all heads. */
static void rotate_halves(const sl_op_rope *rope, float *x, vf sine, vf cosine) {
    for (int32_t head = 0; head < rope->heads; head++, x += rope->stride) {
        const vf a = vf_load(x), b = vf_load(x + rope->dims / 2);
        vf_store(x, vf_fnma(b, sine, vf_mul(a, cosine)));
        vf_store(x + rope->dims / 2, vf_fma(a, sine, vf_mul(b, cosine)));
    }
}

static void rotate_pairs(const sl_op_rope *rope, float *x, vf sine, vf cosine) {
    float sines[VN], cosines[VN], own[2 * VN], other[2 * VN];
    vf_store(sines, sine);
    vf_store(cosines, cosine);
    for (int i = 0; i < VN; i++) {
        own[2 * i] = own[2 * i + 1] = cosines[i];
        other[2 * i] = -sines[i];
        other[2 * i + 1] = sines[i];
    }
    for (int32_t head = 0; head < rope->heads; head++, x += rope->stride) {
        SL_UNROLL for (int v = 0; v < 2; v++) {
            const vf a = vf_load(x + v * VN);
            const vf turned = vf_mul(a, vf_load(own + v * VN));
            vf_store(x + v * VN, vf_fma(vf_swap_pairs(a), vf_load(other + v * VN), turned));
        }
    }
}

SL_TIER_RUN(rope) {
    const sl_op_rope *rope = &op->op->u.rope;
    const float *frequencies = (const float *)(const void *)op->weights[0].data;
    const vf magnitude = vf_set1(rope->magnitude);
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_STEP], thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        float *x = sl_cpu_f32(&op->out[0], row);
        const vf position = vf_set1((float)context->rows[row].position);
        for (int32_t i = 0; i < rope->dims / 2; i += VN) {
            vf sine, cosine;
            vf_sincos(vf_mul(position, vf_load(frequencies + i)), &sine, &cosine);
            sine = vf_mul(sine, magnitude);
            cosine = vf_mul(cosine, magnitude);
            if (rope->layout == SL_ROPE_HALVES) {
                rotate_halves(rope, x + i, sine, cosine);
            } else {
                rotate_pairs(rope, x + 2 * i, sine, cosine);
            }
        }
        if (rope->temperature.width > 0) {
            scale_heads(rope, x, context->rows[row].position);
        }
    }
}

/* ---- activate, combine, softcap ---- */

SL_TIER_DECLINES(activate) {
    (void)kernel;
    return sl_cpu_needs(query, SL_TIER_ISA);
}

SL_ALWAYS_INLINE vf activated(const sl_op_activate *activate, vf gate) {
    switch (activate->function) {
    case SL_ACTIVATION_SILU:
        return vf_silu(gate);
    case SL_ACTIVATION_GELU_TANH:
        return vf_gelu_tanh(gate);
    case SL_ACTIVATION_GELU:
        return vf_gelu(gate);
    case SL_ACTIVATION_RELU_SQUARED: {
        const vf positive = vf_max(vf_zero(), gate);
        return vf_mul(positive, positive);
    }
    case SL_ACTIVATION_IDENTITY:
        return gate;
    case SL_ACTIVATION_XIELU: {
        const vf beta = vf_set1(activate->beta);
        const vf power = vf_exp(vf_min(vf_set1(activate->limit), gate));
        const vf bent = vf_sub(vf_sub(power, vf_set1(1.0f)), gate);
        const vf below = vf_fma(vf_set1(activate->negative), bent, vf_mul(beta, gate));
        const vf above = vf_mul(vf_fma(vf_set1(activate->alpha), gate, beta), gate);
        return vf_where_positive(gate, above, below);
    }
    default: {
        const vf clamped = vf_min(vf_set1(activate->limit), gate);
        return vf_mul(clamped, vf_sigmoid(vf_mul(vf_set1(activate->alpha), clamped)));
    }
    }
}

SL_ALWAYS_INLINE vf up_factor(const sl_op_activate *activate, vf up) {
    if (activate->function != SL_ACTIVATION_SWIGLU_OAI) {
        return up;
    }
    const vf clamped = vf_min(vf_set1(activate->limit), vf_max(vf_set1(-activate->limit), up));
    return vf_add(clamped, vf_set1(1.0f));
}

SL_TIER_RUN(activate) {
    const sl_op_activate *activate = &op->op->u.activate;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *gate = sl_cpu_f32(&op->in[0], row);
        const float *up = op->in[1].data ? sl_cpu_f32(&op->in[1], row) : NULL;
        const vf weight = vf_set1(op->in[2].data ? sl_cpu_f32(&op->in[2], 0)[row] : 1.0f);
        float *y = sl_cpu_f32(&op->out[0], row);
        for (int32_t i = 0; i < activate->width; i += VN) {
            const int32_t left = activate->width - i;
            const vf f = activated(activate, vf_mul(weight, vf_load_part(gate + i, left)));
            const vf factor = up ? up_factor(activate, vf_mul(weight, vf_load_part(up + i, left))) : weight;
            vf_store_part(y + i, up ? vf_mul(f, factor) : f, left);
        }
    }
}

SL_TIER_DECLINES(combine) {
    (void)kernel;
    return sl_cpu_needs(query, SL_TIER_ISA);
}

/* The chosen experts in order, then the shared one. */
SL_TIER_RUN(combine) {
    const sl_op_combine *combine = &op->op->u.combine;
    const float *weights = op->in[1].data ? sl_cpu_f32(&op->in[1], 0) : NULL;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *residual = op->in[2].data ? sl_cpu_f32(&op->in[2], row) : NULL;
        const float *shared = op->in[3].data ? sl_cpu_f32(&op->in[3], row) : NULL;
        const vf shared_weight =
            op->in[4].data ? vf_sigmoid(vf_set1(*sl_cpu_f32(&op->in[4], row))) : vf_set1(1.0f);
        float *y = sl_cpu_f32(&op->out[0], row);
        for (int32_t i = 0; i < combine->width; i += VN) {
            const int32_t left = combine->width - i;
            vf sum = vf_zero();
            for (int32_t rank = 0; rank < combine->used; rank++) {
                const int32_t expert_row = row * combine->used + rank;
                const vf x = vf_load_part(sl_cpu_f32(&op->in[0], expert_row) + i, left);
                sum = vf_fma(vf_set1(weights ? weights[expert_row] : 1.0f), x, sum);
            }
            if (shared) {
                sum = vf_fma(vf_load_part(shared + i, left), shared_weight, sum);
            }
            vf_store_part(y + i, residual ? vf_add(sum, vf_load_part(residual + i, left)) : sum, left);
        }
    }
}

SL_TIER_DECLINES(softcap) {
    (void)kernel;
    return sl_cpu_needs(query, SL_TIER_ISA);
}

SL_TIER_RUN(softcap) {
    enum { CHUNK = 4096 }; /* by columns as well as rows: the head has few rows and many columns */
    const sl_op_softcap *softcap = &op->op->u.softcap;
    const int32_t chunks = (softcap->width + CHUNK - 1) / CHUNK;
    const vf cap = vf_set1(softcap->cap);
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]) * chunks, thread, threads, &first, &last);
    for (int32_t unit = first; unit < last; unit++) {
        float *x = sl_cpu_f32(&op->out[0], unit / chunks) + unit % chunks * CHUNK;
        const int32_t width = softcap->width - unit % chunks * CHUNK;
        for (int32_t i = 0; i < width && i < CHUNK; i += VN) {
            const vf value = vf_mul(vf_load_part(x + i, width - i), vf_set1(softcap->scale));
            vf_store_part(x + i, softcap->cap > 0 ? vf_mul(cap, vf_tanh(vf_div(value, cap))) : value,
                          width - i);
        }
    }
}

/* ---- cache write: the bits of the types' reference encode ---- */

SL_TIER_DECLINES(cache_write) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    const sl_cache_group *group = &query->program->groups[query->op->u.cache_write.place.group];
    return needs ? needs : group->key_size % VN || group->value_size % VN ? odd_width : NULL;
}

static void encode_head(sl_qtype type, const float *x, unsigned char *out, int32_t size) {
    switch (type) {
    case SL_QTYPE_F16:
        for (int32_t i = 0; i < size; i += VN) {
            vf_store_f16(out + i * 2, vf_load(x + i));
        }
        break;
    case SL_QTYPE_BF16:
        for (int32_t i = 0; i < size; i += VN) {
            vf_store_bf16(out + i * 2, vf_load(x + i));
        }
        break;
    case SL_QTYPE_FP8:
        for (int32_t i = 0; i < size; i += VN) {
            vf_store_e4m3(out + i, vf_load(x + i));
        }
        break;
    default:
        sl_qtype_get(type)->encode(x, out, (uint64_t)size);
        break;
    }
}

SL_TIER_RUN(cache_write) {
    const sl_cache_place place = op->op->u.cache_write.place;
    const sl_cache_group *group = &context->program->groups[place.group];
    const sl_qtype type = context->deployment->caches[place.group].type;
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_STEP], thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const sl_step_span *span = &context->spans[context->rows[row].span];
        const int32_t index = span->length[place.group] + row - span->first_row;
        const uint64_t at = (uint64_t)(index % SL_PAGE_TOKENS);
        const sl_cpu_cache cache = sl_cpu_cache_of(context, place, span->slot);
        for (int32_t head = 0; head < group->kv_heads; head++) {
            unsigned char *keys = sl_cpu_page_keys(&cache, index / SL_PAGE_TOKENS, head);
            unsigned char *values = sl_cpu_page_values(&cache, index / SL_PAGE_TOKENS, head);
            if (!keys) {
                continue; /* no page: the step's maker left it out; nothing else must be hurt */
            }
            encode_head(type, sl_cpu_f32(&op->in[0], row) + head * group->key_size,
                        keys + at * cache.key_bytes, group->key_size);
            if (!group->values_are_keys) {
                encode_head(type, sl_cpu_f32(&op->in[1], row) + head * group->value_size,
                            values + at * cache.value_bytes, group->value_size);
            }
        }
    }
}

#endif
