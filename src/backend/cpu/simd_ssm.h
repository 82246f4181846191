/* Mamba2's scan, for one tier: included once by its delta.c, after its simd.h. Row after row, as the plain
 * kernel does; columns of the state never meet, so a thread takes some of a head's. */
#ifndef SL_BACKEND_CPU_SIMD_SSM_H
#define SL_BACKEND_CPU_SIMD_SSM_H

#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { SSM_VECTORS = 4 /* columns of a unit: with AVX-512 and 128 keys their state is 32 KiB */ };

/* Class "f32/fused": with S the state before the row and d its decay, per column
 *     S = fused(B (step x) + d S),   y = fused(skip x + S^T C),   sums over keys in order, fused */
SL_TIER_DECLINES(ssm_scan) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    const sl_state_layer *shape = &query->program->states[query->op->u.ssm_scan.state];
    return needs ? needs : shape->value_size % VN ? "takes heads that fill its vectors" : NULL;
}

/* What all columns of a head share in one row. */
typedef struct ssm_row {
    const float *write, *read; /* B and C, [keys] */
    int32_t keys;
    float decay, step, skip;
} ssm_row;

static void ssm_prepare(const sl_cpu_op *op, const sl_state_layer *shape, int32_t row, int32_t head,
                        ssm_row *prepared) {
    const sl_op_ssm_scan *scan = &op->op->u.ssm_scan;
    const float *const weights[] = {(const float *)(const void *)op->weights[0].data,
                                    (const float *)(const void *)op->weights[1].data,
                                    (const float *)(const void *)op->weights[2].data};
    const int32_t group = head / (scan->heads / scan->groups);
    prepared->keys = shape->key_size;
    prepared->write = sl_cpu_f32(&op->in[0], row) + scan->heads * shape->value_size + group * shape->key_size;
    prepared->read = prepared->write + scan->groups * shape->key_size;
    const float rate = scan->decay_is_negated ? weights[0][head] : -expf(weights[0][head]);
    const float x = sl_cpu_f32(&op->in[1], row)[head] + weights[1][head];
    const float wanted = x > 20.0f ? x : log1pf(expf(x));
    prepared->step = sl_cpu_clamp(wanted, scan->step_least, scan->step_most);
    prepared->decay = expf(rate * prepared->step);
    prepared->skip = weights[2][head];
}

/* `vectors` vectors of columns from x, y and state, [keys][stride], on. */
SL_ALWAYS_INLINE void ssm_columns(const int vectors, const ssm_row *row, float *state, int32_t stride,
                                  const float *x, float *y) {
    const int32_t keys = row->keys;
    vf added[SSM_VECTORS], sums[SSM_VECTORS];
    const vf decay = vf_set1(row->decay), skip = vf_set1(row->skip), step = vf_set1(row->step);
    SL_UNROLL for (int c = 0; c < vectors; c++) {
        added[c] = vf_mul(step, vf_load(x + c * VN));
        sums[c] = vf_zero();
    }
    for (int32_t i = 0; i < keys; i++) {
        const vf write = vf_set1(row->write[i]), read = vf_set1(row->read[i]);
        SL_UNROLL for (int c = 0; c < vectors; c++) {
            float *at = state + i * stride + c * VN;
            const vf s = vf_fma(write, added[c], vf_mul(decay, vf_load(at)));
            vf_store(at, s);
            sums[c] = vf_fma(s, read, sums[c]);
        }
    }
    SL_UNROLL for (int c = 0; c < vectors; c++) {
        vf_store(y + c * VN, vf_fma(skip, vf_load(x + c * VN), sums[c]));
    }
}

SL_TIER_WORKSPACE(ssm_scan) {
    (void)kernel;
    const int32_t keys = query->program->states[query->op->u.ssm_scan.state].key_size;
    return sl_cpu_scratch_bytes(query, (uint64_t)keys * SSM_VECTORS * VN * sizeof(float));
}

/* Some columns of a head. */
typedef struct ssm_strip {
    const sl_step_span *span;
    int32_t head, first, count;
    float *state; /* [keys][count]: a copy that lies together */
} ssm_strip;

static void ssm_scan_strip(const sl_cpu_context *context, const sl_cpu_op *op, const ssm_strip *strip) {
    const sl_state_layer *shape = &context->program->states[op->op->u.ssm_scan.state];
    const sl_step_span *span = strip->span;
    const int32_t keys = shape->key_size, values = shape->value_size, count = strip->count;
    const size_t bytes = (size_t)count * sizeof(float);
    const int64_t column = (int64_t)strip->head * values + strip->first;
    const int64_t at = (int64_t)strip->head * keys * values + strip->first;
    const float *old = sl_cpu_old_state(context, span, shape->delta_offset);
    for (int32_t i = 0; i < keys && old; i++) {
        memcpy(strip->state + i * count, old + at + i * values, bytes);
    }
    if (!old) {
        memset(strip->state, 0, bytes * (size_t)keys);
    }
    ssm_row row;
    for (int32_t r = span->first_row; r < span->first_row + span->row_count; r++) {
        const float *x = sl_cpu_f32(&op->in[0], r) + column;
        float *y = sl_cpu_f32(&op->out[0], r) + column;
        ssm_prepare(op, shape, r, strip->head, &row);
        if (count == SSM_VECTORS * VN) {
            ssm_columns(SSM_VECTORS, &row, strip->state, count, x, y);
        } else {
            for (int32_t c = 0; c < count; c += VN) {
                ssm_columns(1, &row, strip->state + c, count, x + c, y + c);
            }
        }
        float *kept = sl_cpu_new_state(context, span, r - span->first_row, shape->delta_offset);
        for (int32_t i = 0; kept && i < keys; i++) {
            memcpy(kept + at + i * values, strip->state + i * count, bytes);
        }
    }
}

SL_TIER_RUN(ssm_scan) {
    const sl_op_ssm_scan *scan = &op->op->u.ssm_scan;
    const int32_t values = context->program->states[scan->state].value_size;
    const int32_t width = SSM_VECTORS * VN, strips = (values + width - 1) / width;
    const int32_t per_span = scan->heads * strips, units = per_span * context->header->spans;
    ssm_strip strip = {.state = sl_cpu_scratch(op, thread, threads)};
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < units; unit = sl_cpu_take(op, 0, 1)) {
        strip.span = &context->spans[unit / per_span];
        strip.head = unit % per_span / strips;
        strip.first = unit % strips * width;
        strip.count = strip.first + width < values ? width : values - strip.first;
        ssm_scan_strip(context, op, &strip);
    }
}

#endif
