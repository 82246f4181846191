/* The recurrent ops, the causal convolution and the scan of a gated-delta-net layer, for one tier: included
 * once by its delta.c, after its simd.h. Row after row, as the plain kernels do; columns of the state never
 * meet, so a thread takes some of a head's. */
#ifndef SL_BACKEND_CPU_SIMD_DELTA_H
#define SL_BACKEND_CPU_SIMD_DELTA_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/simd_math.h"

#include <math.h>
#include <string.h>

enum {
    MOST_TAPS = 8,
    CONV_VECTORS = 4,  /* channels of a unit of work, in vectors */
    STRIP_VECTORS = 4, /* columns of a unit: with AVX-512 and 128 keys their state is 32 KiB */
    MOST_KEYS = 512,
};

/* ---- convolution: class "f32/fused", from the oldest tap to the newest, then the bias ---- */

SL_TIER_DECLINES(conv) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    const int32_t taps = query->program->states[query->op->u.conv.state].taps;
    return needs ? needs : taps > MOST_TAPS ? "takes at most 8 taps" : NULL;
}

/* Channels [channel, channel + VN) of one sequence. */
typedef struct conv {
    const sl_cpu_op *op;
    const sl_state_layer *shape;
    const sl_step_span *span;
    const float *state; /* [taps - 1][channels]; NULL: zeros */
    int32_t channel;
} conv;

/* Element `index` of the time line: the rows follow the taps - 1 elements of the state. */
static vf conv_input(const conv *c, int32_t index) {
    const int32_t kept = c->shape->taps - 1, left = c->shape->channels - c->channel;
    if (index >= kept) {
        return vf_load_part(sl_cpu_f32(&c->op->in[0], c->span->first_row + index - kept) + c->channel, left);
    }
    return c->state ? vf_load_part(c->state + (int64_t)index * c->shape->channels + c->channel, left)
                    : vf_zero();
}

static void conv_channels(const sl_cpu_context *context, const conv *c) {
    const int32_t taps = c->shape->taps, channels = c->shape->channels, left = channels - c->channel;
    const sl_op_conv *conv = &c->op->op->u.conv;
    const float *weights = (const float *)(const void *)c->op->weights[0].data;
    const float *biases = (const float *)(const void *)c->op->weights[1].data;
    const vf bias = conv->bias == SL_NONE ? vf_zero() : vf_load_part(biases + c->channel, left);
    float by_tap[MOST_TAPS][VN] = {{0}};
    for (int32_t lane = 0; lane < VN && lane < left; lane++) {
        for (int32_t tap = 0; tap < taps; tap++) {
            by_tap[tap][lane] = weights[(int64_t)(c->channel + lane) * taps + tap];
        }
    }
    for (int32_t i = 0; i < c->span->row_count; i++) {
        vf sum = vf_zero();
        for (int32_t tap = 0; tap < taps; tap++) {
            sum = vf_fma(vf_load(by_tap[tap]), conv_input(c, i + tap), sum);
        }
        sum = vf_add(sum, bias);
        vf_store_part(sl_cpu_f32(&c->op->out[0], c->span->first_row + i) + c->channel,
                      conv->function == SL_ACTIVATION_SILU ? vf_silu(sum) : sum, left);
        float *kept = sl_cpu_new_state(context, c->span, i, c->shape->conv_offset);
        for (int32_t k = 0; kept && k < taps - 1; k++) {
            vf_store_part(kept + (int64_t)k * channels + c->channel, conv_input(c, i + 1 + k), left);
        }
    }
}

SL_TIER_RUN(conv) {
    const sl_state_layer *shape = &context->program->states[op->op->u.conv.state];
    const int32_t width = CONV_VECTORS * VN, blocks = (shape->channels + width - 1) / width;
    const int32_t units = blocks * context->header->spans;
    conv c = {.op = op, .shape = shape};
    (void)thread, (void)threads;
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < units; unit = sl_cpu_take(op, 0, 1)) {
        c.span = &context->spans[unit / blocks];
        c.state = sl_cpu_old_state(context, c.span, shape->conv_offset);
        const int32_t first = unit % blocks * width;
        for (c.channel = first; c.channel < first + width && c.channel < shape->channels; c.channel += VN) {
            conv_channels(context, &c);
        }
    }
}

/* ---- scan: class "f32/fused": with S the state before the row and d its decay, per column
 *     change = beta (v - d (S^T k)),   S = fused(k change + d S),   y = S^T q,   sums over keys in order ----
 */

SL_TIER_DECLINES(delta_scan) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    const sl_state_layer *shape = &query->program->states[query->op->u.delta_scan.state];
    if (needs) {
        return needs;
    }
    return shape->key_size % VN || shape->value_size % VN || shape->key_size > MOST_KEYS
               ? "takes head sizes that fill its vectors, and at most 512 keys"
               : NULL;
}

/* What all columns of a head share in one row. */
typedef struct scan_row {
    int32_t keys;
    float q[MOST_KEYS], k[MOST_KEYS]; /* [keys] */
    float decay, beta;
} scan_row;

static void scan_normalise(const float *x, int32_t size, float scale, float *y) {
    vf squares = vf_zero();
    for (int32_t i = 0; i < size; i += VN) {
        squares = vf_fma(vf_load(x + i), vf_load(x + i), squares);
    }
    const vf factor = vf_set1(1.0f / sqrtf(vf_sum(squares) + 1e-6f) * scale);
    for (int32_t i = 0; i < size; i += VN) {
        vf_store(y + i, vf_mul(vf_load(x + i), factor));
    }
}

static void scan_prepare(const sl_cpu_op *op, const sl_state_layer *shape, int32_t row, int32_t head,
                         scan_row *prepared) {
    const sl_op_delta_scan *scan = &op->op->u.delta_scan;
    const int32_t keys = shape->key_size;
    const int32_t key_head =
        scan->keys_cycle ? head % scan->key_heads : head / (scan->value_heads / scan->key_heads);
    const float *qkv = sl_cpu_f32(&op->in[0], row);
    prepared->keys = keys;
    scan_normalise(qkv + key_head * keys, keys, 1.0f / sqrtf((float)keys), prepared->q);
    scan_normalise(qkv + (scan->key_heads + key_head) * keys, keys, 1.0f, prepared->k);
    const float a_log = ((const float *)(const void *)op->weights[0].data)[head];
    const float x =
        sl_cpu_f32(&op->in[1], row)[head] + ((const float *)(const void *)op->weights[1].data)[head];
    const float rate = scan->decay_is_negated ? a_log : -expf(a_log);
    prepared->decay = expf(rate * (x > 20.0f ? x : log1pf(expf(x))));
    prepared->beta = 1.0f / (1.0f + expf(-sl_cpu_f32(&op->in[2], row)[head]));
}

/* `vectors` vectors of columns from v, y and state, [keys][stride], on. */
SL_ALWAYS_INLINE void scan_columns(const int vectors, const scan_row *row, float *state, int32_t stride,
                                   const float *v, float *y) {
    const int32_t keys = row->keys;
    vf change[STRIP_VECTORS], sums[STRIP_VECTORS];
    const vf decay = vf_set1(row->decay), beta = vf_set1(row->beta);
    SL_UNROLL for (int c = 0; c < vectors; c++) {
        change[c] = sums[c] = vf_zero();
    }
    for (int32_t i = 0; i < keys; i++) {
        const vf k = vf_set1(row->k[i]);
        SL_UNROLL for (int c = 0; c < vectors; c++) {
            change[c] = vf_fma(vf_load(state + i * stride + c * VN), k, change[c]);
        }
    }
    SL_UNROLL for (int c = 0; c < vectors; c++) {
        change[c] = vf_mul(beta, vf_fnma(decay, change[c], vf_load(v + c * VN)));
    }
    for (int32_t i = 0; i < keys; i++) {
        const vf k = vf_set1(row->k[i]), q = vf_set1(row->q[i]);
        SL_UNROLL for (int c = 0; c < vectors; c++) {
            float *at = state + i * stride + c * VN;
            const vf s = vf_fma(k, change[c], vf_mul(decay, vf_load(at)));
            vf_store(at, s);
            sums[c] = vf_fma(s, q, sums[c]);
        }
    }
    SL_UNROLL for (int c = 0; c < vectors; c++) {
        vf_store(y + c * VN, sums[c]);
    }
}

SL_TIER_WORKSPACE(delta_scan) {
    (void)kernel;
    const int32_t keys = query->program->states[query->op->u.delta_scan.state].key_size;
    return sl_cpu_scratch_bytes(query, (uint64_t)keys * STRIP_VECTORS * VN * sizeof(float));
}

/* Some columns of a head. */
typedef struct strip {
    const sl_step_span *span;
    int32_t head, first, count;
    float *
        state; /* [keys][count]: a copy, since columns cut out of whole rows would fight for few cache sets */
} strip;

static void scan_strip(const sl_cpu_context *context, const sl_cpu_op *op, const strip *strip) {
    const sl_op_delta_scan *scan = &op->op->u.delta_scan;
    const sl_state_layer *shape = &context->program->states[scan->state];
    const sl_step_span *span = strip->span;
    const int32_t keys = shape->key_size, values = shape->value_size, count = strip->count;
    const size_t bytes = (size_t)count * sizeof(float);
    const int64_t at = (int64_t)strip->head * keys * values + strip->first;
    const float *old = sl_cpu_old_state(context, span, shape->delta_offset);
    for (int32_t i = 0; i < keys && old; i++) {
        memcpy(strip->state + i * count, old + at + i * values, bytes);
    }
    if (!old) {
        memset(strip->state, 0, bytes * (size_t)keys);
    }
    scan_row row;
    for (int32_t r = span->first_row; r < span->first_row + span->row_count; r++) {
        const float *v =
            sl_cpu_f32(&op->in[0], r) + 2 * scan->key_heads * keys + strip->head * values + strip->first;
        float *y = sl_cpu_f32(&op->out[0], r) + strip->head * values + strip->first;
        scan_prepare(op, shape, r, strip->head, &row);
        if (count == STRIP_VECTORS * VN) {
            scan_columns(STRIP_VECTORS, &row, strip->state, count, v, y);
        } else {
            for (int32_t c = 0; c < count; c += VN) {
                scan_columns(1, &row, strip->state + c, count, v + c, y + c);
            }
        }
        float *kept = sl_cpu_new_state(context, span, r - span->first_row, shape->delta_offset);
        for (int32_t i = 0; kept && i < keys; i++) {
            memcpy(kept + at + i * values, strip->state + i * count, bytes);
        }
    }
}

SL_TIER_RUN(delta_scan) {
    const sl_op_delta_scan *scan = &op->op->u.delta_scan;
    const int32_t values = context->program->states[scan->state].value_size;
    const int32_t width = STRIP_VECTORS * VN, strips = (values + width - 1) / width;
    const int32_t per_span = scan->value_heads * strips, units = per_span * context->header->spans;
    strip strip = {.state = sl_cpu_scratch(op, thread, threads)};
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < units; unit = sl_cpu_take(op, 0, 1)) {
        strip.span = &context->spans[unit / per_span];
        strip.head = unit % per_span / strips;
        strip.first = unit % strips * width;
        strip.count = strip.first + width < values ? width : values - strip.first;
        scan_strip(context, op, &strip);
    }
}

#endif
