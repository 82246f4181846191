#include "interpret.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct machine {
    const sl_program *program;
    double **values;                                         /* [value][row][width] */
    double *keys[SL_CACHE_GROUPS], *cached[SL_CACHE_GROUPS]; /* [layer][row][kv_heads * size] */
    const sl_op *op;
} machine;

/* ---- memory ---- */

static int32_t rows_of(const sl_program *program, sl_rows rows) {
    return rows == SL_ROWS_EXPERT ? INTERPRET_ROWS * program->experts_used : INTERPRET_ROWS;
}

static void *zeroed(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (!memory) {
        abort();
    }
    return memory;
}

static void begin(machine *m, const sl_program *program) {
    m->program = program;
    m->values = zeroed((size_t)program->value_count, sizeof *m->values);
    for (int32_t v = 0; v < program->value_count; v++) {
        const sl_value *value = &program->values[v];
        m->values[v] = zeroed((size_t)rows_of(program, value->rows) * (size_t)value->width, sizeof(double));
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_group *group = &program->groups[g];
        const size_t rows = (size_t)group->layers * INTERPRET_ROWS * (size_t)group->kv_heads;
        m->keys[g] = zeroed(rows * (size_t)group->key_size, sizeof(double));
        m->cached[g] = zeroed(rows * (size_t)group->value_size, sizeof(double));
    }
}

static void end(machine *m) {
    for (int32_t v = 0; v < m->program->value_count; v++) {
        free(m->values[v]);
    }
    for (int32_t g = 0; g < m->program->group_count; g++) {
        free(m->keys[g]);
        free(m->cached[g]);
    }
    free(m->values);
}

static double *at(const machine *m, sl_operand operand, int32_t row) {
    return operand.value == SL_NONE
               ? NULL
               : m->values[operand.value] + (size_t)row * (size_t)m->program->values[operand.value].width +
                     operand.column;
}

static double *in(const machine *m, int index, int32_t row) {
    return at(m, m->op->in[index], row);
}

static double *out(const machine *m, int index, int32_t row) {
    return at(m, m->op->out[index], row);
}

static int32_t op_rows(const machine *m) {
    const int32_t value = m->op->out[0].value != SL_NONE ? m->op->out[0].value : m->op->in[0].value;
    return rows_of(m->program, m->program->values[value].rows);
}

/* Row `row` of all of a weight's, experts and rows counted through. */
static void decode(const sl_weight *weight, int64_t row, float *to) {
    uint64_t bytes;
    sl_qtype_bytes(weight->type, (uint64_t)weight->columns, &bytes);
    sl_qtype_get(weight->type)
        ->decode((const unsigned char *)weight->data + (uint64_t)row * bytes, to, (uint64_t)weight->columns);
}

static float *vector_of(const machine *m, int32_t weight) {
    return weight == SL_NONE ? NULL : (float *)(uintptr_t)m->program->weights[weight].data;
}

/* ---- ops ---- */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static void run_embed(const machine *m) {
    const sl_weight *table = &m->program->weights[m->op->u.embed.weight];
    float *row = zeroed((size_t)table->columns, sizeof *row);
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        decode(table, m->op->u.embed.source == SL_EMBED_FIRST ? 0 : (r * 7 + 3) % table->rows, row);
        for (int32_t i = 0; i < table->columns; i++) {
            out(m, 0, r)[i] = row[i] * m->op->u.embed.scale + (m->op->in[0].value >= 0 ? in(m, 0, r)[i] : 0);
        }
    }
    free(row);
}

static void norm_group(const machine *m, int32_t r, int32_t g) {
    const sl_op_rmsnorm *norm = &m->op->u.rmsnorm;
    const bool in_place = m->op->in[0].value == m->op->out[0].value;
    const int32_t from = g * norm->stride, to = g * (in_place ? norm->stride : norm->width);
    const double *x = in(m, 0, r) + from;
    const double *gate = in(m, 2, r);
    const float *weight = vector_of(m, norm->weight);
    double sums[4096], squares = 0;
    for (int32_t i = 0; i < norm->width; i++) {
        sums[i] = norm->x_factor * x[i];
        sums[i] += norm->residual == SL_RESIDUAL_BEFORE ? in(m, 1, r)[from + i] : 0;
        squares += sums[i] * sums[i];
    }
    const double factor = 1 / sqrt(squares / norm->width + norm->epsilon);
    for (int32_t i = 0; i < norm->width; i++) {
        const double w =
            weight ? weight[(norm->own_weights ? g * norm->width : 0) + i] + norm->weight_offset : 1;
        double y = sums[i] * factor * w;
        if (gate) {
            const double z = gate[g * norm->gate_stride + i];
            y *= z * sigmoid(z);
        }
        y += norm->residual == SL_RESIDUAL_AFTER ? in(m, 1, r)[to + i] : 0;
        if (m->op->out[1].value != SL_NONE) {
            out(m, 1, r)[from + i] = sums[i];
        }
        out(m, 0, r)[to + i] = norm->y_factor * y;
    }
}

static void run_rmsnorm(const machine *m) {
    for (int32_t r = 0; r < op_rows(m); r++) {
        for (int32_t g = 0; g < m->op->u.rmsnorm.groups; g++) {
            norm_group(m, r, g);
        }
    }
}

static void run_layernorm(const machine *m) {
    const sl_op_layernorm *norm = &m->op->u.layernorm;
    const float *weight = vector_of(m, norm->weight), *bias = vector_of(m, norm->bias);
    for (int32_t r = 0; r < op_rows(m); r++) {
        double sums[4096], mean = 0, variance = 0;
        for (int32_t i = 0; i < norm->width; i++) {
            sums[i] = in(m, 0, r)[i] + (m->op->in[1].value >= 0 ? in(m, 1, r)[i] : 0);
            mean += sums[i] / norm->width;
        }
        for (int32_t i = 0; i < norm->width; i++) {
            variance += (sums[i] - mean) * (sums[i] - mean) / norm->width;
        }
        for (int32_t i = 0; i < norm->width; i++) {
            if (m->op->out[1].value != SL_NONE) {
                out(m, 1, r)[i] = sums[i];
            }
            out(m, 0, r)[i] =
                (sums[i] - mean) / sqrt(variance + norm->epsilon) * weight[i] + (bias ? bias[i] : 0);
        }
    }
}

static void run_segment(const machine *m, const sl_linear_segment *segment, double *y, int32_t y_width) {
    const sl_weight *weight = &m->program->weights[segment->weight];
    const float *bias = vector_of(m, segment->bias);
    const bool experts = m->op->in[1].value != SL_NONE;
    const bool spread = experts && m->program->values[m->op->in[0].value].rows == SL_ROWS_STEP;
    const int32_t used = m->program->experts_used;
    float *row = zeroed((size_t)weight->columns, sizeof *row);
    for (int32_t e = 0; e < weight->experts; e++) {
        for (int32_t i = 0; i < weight->rows; i++) {
            decode(weight, (int64_t)e * weight->rows + i, row);
            for (int32_t r = 0; r < op_rows(m); r++) {
                if (experts && in(m, 1, r / used)[r % used] != e) {
                    continue;
                }
                const double *x = in(m, 0, spread ? r / used : r);
                double sum = bias ? bias[e * weight->rows + i] : 0;
                for (int32_t c = 0; c < weight->columns; c++) {
                    sum += x[c] * row[c];
                }
                sum += m->op->in[3].value >= 0 ? in(m, 3, r)[segment->column + i] : 0;
                y[r * y_width + segment->column + i] = sum;
            }
        }
    }
    free(row);
}

/* Of y it writes its segments alone, and may write what it reads. */
static void run_linear(const machine *m) {
    const sl_op_linear *linear = &m->op->u.linear;
    const int32_t width = (int32_t)sl_operand_width(m->program, m->op, true, 0);
    double *y = zeroed((size_t)width * (size_t)op_rows(m), sizeof *y);
    for (int32_t s = 0; s < linear->segment_count; s++) {
        run_segment(m, &linear->segments[s], y, width);
    }
    for (int32_t s = 0; s < linear->segment_count; s++) {
        const sl_linear_segment *segment = &linear->segments[s];
        for (int32_t r = 0; r < op_rows(m); r++) {
            memcpy(out(m, 0, r) + segment->column, y + r * width + segment->column,
                   (size_t)m->program->weights[segment->weight].rows * sizeof *y);
        }
    }
    free(y);
}

static void run_head_linear(const machine *m) {
    const sl_op_head_linear *linear = &m->op->u.head_linear;
    const sl_weight *weight = &m->program->weights[linear->weight];
    const int32_t inputs = linear->turned ? weight->rows : weight->columns;
    const int32_t outputs = linear->turned ? weight->columns : weight->rows;
    float *row = zeroed((size_t)weight->columns, sizeof *row);
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        for (int32_t h = 0; h < weight->experts; h++) {
            const double *x = in(m, 0, r) + h * linear->x_stride;
            double *y = out(m, 0, r) + h * (outputs + linear->tail);
            memset(y, 0, (size_t)outputs * sizeof *y);
            for (int32_t k = 0; k < weight->rows; k++) {
                decode(weight, (int64_t)h * weight->rows + k, row);
                for (int32_t c = 0; c < weight->columns; c++) {
                    y[linear->turned ? c : k] += row[c] * x[linear->turned ? k : c];
                }
            }
            memcpy(y + outputs, x + inputs, (size_t)linear->tail * sizeof *y);
        }
    }
    free(row);
}

static void run_rope(const machine *m) {
    const sl_op_rope *rope = &m->op->u.rope;
    const float *frequencies = vector_of(m, rope->frequencies);
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        for (int32_t h = 0; h < rope->heads; h++) {
            double *x = out(m, 0, r) + h * rope->stride;
            for (int32_t i = 0; i < rope->dims / 2; i++) {
                const bool halves = rope->layout == SL_ROPE_HALVES;
                double *a = x + (halves ? i : 2 * i), *b = x + (halves ? i + rope->dims / 2 : 2 * i + 1);
                const double angle = r * (double)frequencies[i], before = *a;
                *a = (before * cos(angle) - *b * sin(angle)) * rope->magnitude;
                *b = (before * sin(angle) + *b * cos(angle)) * rope->magnitude;
            }
            for (int32_t i = 0; i < rope->temperature.width; i++) {
                x[i] *= 1 + rope->temperature.scale * r;
            }
        }
    }
}

/* Of a row, all heads of one layer. */
static double *cached(const machine *m, sl_cache_place place, bool values, int32_t row) {
    const sl_cache_group *group = &m->program->groups[place.group];
    const int32_t size = values ? group->value_size : group->key_size;
    return (values ? m->cached : m->keys)[place.group] +
           ((size_t)place.layer * INTERPRET_ROWS + (size_t)row) * (size_t)group->kv_heads * (size_t)size;
}

static void run_cache_write(const machine *m) {
    const sl_cache_place place = m->op->u.cache_write.place;
    const sl_cache_group *group = &m->program->groups[place.group];
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        const double *value = in(m, group->values_are_keys ? 0 : 1, r);
        memcpy(cached(m, place, false, r), in(m, 0, r),
               (size_t)group->kv_heads * (size_t)group->key_size * sizeof *value);
        memcpy(cached(m, place, true, r), value,
               (size_t)group->kv_heads * (size_t)group->value_size * sizeof *value);
    }
}

static void attend(const machine *m, int32_t r, int32_t h) {
    const sl_op_attention *a = &m->op->u.attention;
    const sl_cache_group *group = &m->program->groups[a->place.group];
    const int32_t kv = h / (a->heads / group->kv_heads), last = a->both_sides ? INTERPRET_ROWS - 1 : r;
    const double *q = in(m, 0, r) + h * a->q_stride, *gate = in(m, 1, r);
    const float *sinks = vector_of(m, a->sinks);
    double *y = out(m, 0, r) + h * group->value_size, total = sinks ? exp((double)sinks[h]) : 0;
    memset(y, 0, (size_t)group->value_size * sizeof *y);
    for (int32_t k = 0; k <= last; k++) {
        const double *key = cached(m, a->place, false, k) + kv * group->key_size;
        const double *value = cached(m, a->place, true, k) + kv * group->value_size;
        double score = 0;
        for (int32_t i = 0; i < group->key_size; i++) {
            score += q[i] * key[i];
        }
        score = exp(score * a->scale);
        total += score;
        for (int32_t i = 0; i < group->value_size; i++) {
            y[i] += score * value[i];
        }
    }
    for (int32_t i = 0; i < group->value_size; i++) {
        y[i] *= (gate ? sigmoid(gate[h * a->gate_stride + i]) : 1) / total;
    }
}

static void run_attention(const machine *m) {
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        for (int32_t h = 0; h < m->op->u.attention.heads; h++) {
            attend(m, r, h);
        }
    }
}

static void run_router(const machine *m) {
    const sl_op_router *router = &m->op->u.router;
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        double *ids = out(m, 0, r), *weights = out(m, 1, r), sum = 0;
        for (int32_t k = 0; k < router->used; k++) {
            int32_t best = SL_NONE;
            for (int32_t e = 0; e < router->experts; e++) {
                bool taken = false;
                for (int32_t before = 0; before < k; before++) {
                    taken |= ids[before] == e;
                }
                best = !taken && (best < 0 || in(m, 0, r)[e] > in(m, 0, r)[best]) ? e : best;
            }
            ids[k] = best;
            weights[k] = sigmoid(in(m, 0, r)[best]);
            sum += weights[k];
        }
        for (int32_t k = 0; k < router->used; k++) {
            weights[k] *= router->scale / sum;
        }
    }
}

static void run_combine(const machine *m) {
    const sl_op_combine *combine = &m->op->u.combine;
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        for (int32_t i = 0; i < combine->width; i++) {
            double sum = 0;
            for (int32_t k = 0; k < combine->used; k++) {
                sum += in(m, 0, r * combine->used + k)[i] * (m->op->in[1].value >= 0 ? in(m, 1, r)[k] : 1);
            }
            if (m->op->in[3].value >= 0) {
                sum += in(m, 3, r)[i] * (m->op->in[4].value >= 0 ? sigmoid(in(m, 4, r)[0]) : 1);
            }
            out(m, 0, r)[i] = sum + (m->op->in[2].value >= 0 ? in(m, 2, r)[i] : 0);
        }
    }
}

static void run_activate(const machine *m) {
    for (int32_t r = 0; r < op_rows(m); r++) {
        const int32_t used = m->program->experts_used;
        const double weight = m->op->in[2].value >= 0 ? in(m, 2, r / used)[r % used] : 1;
        for (int32_t i = 0; i < m->op->u.activate.width; i++) {
            const double g = in(m, 0, r)[i] * weight;
            out(m, 0, r)[i] = g * sigmoid(g) * (m->op->in[1].value >= 0 ? in(m, 1, r)[i] * weight : 1);
        }
    }
}

static void run_softcap(const machine *m) {
    const sl_op_softcap *softcap = &m->op->u.softcap;
    for (int32_t r = 0; r < op_rows(m); r++) {
        for (int32_t i = 0; i < softcap->width; i++) {
            double *x = out(m, 0, r) + i;
            *x *= softcap->scale;
            *x = softcap->cap > 0 ? softcap->cap * tanh(*x / softcap->cap) : *x;
        }
    }
}

/* In front of the first row the state is zeros. From the last row on, as y may be x. */
static void run_conv(const machine *m) {
    const sl_op_conv *conv = &m->op->u.conv;
    const sl_weight *weight = &m->program->weights[conv->weight];
    const float *taps = weight->data, *bias = vector_of(m, conv->bias);
    for (int32_t r = INTERPRET_ROWS - 1; r >= 0; r--) {
        for (int32_t c = 0; c < weight->rows; c++) {
            double sum = bias ? bias[c] : 0;
            for (int32_t t = 0; t < weight->columns; t++) {
                const int32_t row = r - (weight->columns - 1) + t;
                sum += row < 0 ? 0 : (double)taps[c * weight->columns + t] * in(m, 0, row)[c];
            }
            out(m, 0, r)[c] = conv->function == SL_ACTIVATION_SILU ? sum * sigmoid(sum) : sum;
        }
    }
}

static double softplus(double x) {
    return log1p(exp(x));
}

/* Of a head: by how much its state decays in a step of that size. */
static double decay_of(float a_log, bool is_negated, double step) {
    return exp((is_negated ? (double)a_log : -exp((double)a_log)) * step);
}

static void unit_length(const double *from, int32_t size, double factor, double *to) {
    double squares = 1e-6;
    for (int32_t i = 0; i < size; i++) {
        squares += from[i] * from[i];
    }
    for (int32_t i = 0; i < size; i++) {
        to[i] = from[i] * factor / sqrt(squares);
    }
}

/* S: [key_size][value_size]. */
static void delta_row(const machine *m, int32_t r, int32_t h, double *s) {
    const sl_op_delta_scan *scan = &m->op->u.delta_scan;
    const sl_state_layer *state = &m->program->states[scan->state];
    const int32_t keys = state->key_size, values = state->value_size;
    const int32_t head = scan->keys_cycle ? h % scan->key_heads : h / (scan->value_heads / scan->key_heads);
    const double *q = in(m, 0, r) + head * keys, *k = q + scan->key_heads * keys;
    const double *v = in(m, 0, r) + 2 * scan->key_heads * keys + h * values;
    const double step = softplus(in(m, 1, r)[h] + vector_of(m, scan->dt_bias)[h]);
    const double decay = decay_of(vector_of(m, scan->a_log)[h], scan->decay_is_negated, step);
    const double beta = sigmoid(in(m, 2, r)[h]);
    double query[512], key[512];
    unit_length(q, keys, 1 / sqrt(keys), query);
    unit_length(k, keys, 1, key);
    for (int32_t j = 0; j < values; j++) {
        double known = 0, y = 0;
        for (int32_t i = 0; i < keys; i++) {
            s[i * values + j] *= decay;
            known += s[i * values + j] * key[i];
        }
        for (int32_t i = 0; i < keys; i++) {
            s[i * values + j] += key[i] * beta * (v[j] - known);
            y += s[i * values + j] * query[i];
        }
        out(m, 0, r)[h * values + j] = y;
    }
}

static void ssm_row(const machine *m, int32_t r, int32_t h, double *s) {
    const sl_op_ssm_scan *scan = &m->op->u.ssm_scan;
    const sl_state_layer *state = &m->program->states[scan->state];
    const int32_t keys = state->key_size, values = state->value_size;
    const int32_t group = h / (scan->heads / scan->groups);
    const double *x = in(m, 0, r) + h * values;
    const double *b = in(m, 0, r) + scan->heads * values + group * keys, *c = b + scan->groups * keys;
    const double step = fmin(
        fmax(softplus(in(m, 1, r)[h] + vector_of(m, scan->dt_bias)[h]), scan->step_least), scan->step_most);
    const double decay = decay_of(vector_of(m, scan->a_log)[h], scan->decay_is_negated, step);
    for (int32_t j = 0; j < values; j++) {
        double y = vector_of(m, scan->skip)[h] * x[j];
        for (int32_t i = 0; i < keys; i++) {
            s[i * values + j] = decay * s[i * values + j] + b[i] * step * x[j];
            y += s[i * values + j] * c[i];
        }
        out(m, 0, r)[h * values + j] = y;
    }
}

static void run_scan(const machine *m) {
    const bool delta = m->op->kind == SL_OP_DELTA_SCAN;
    const sl_state_layer *state =
        &m->program->states[delta ? m->op->u.delta_scan.state : m->op->u.ssm_scan.state];
    for (int32_t h = 0; h < state->heads; h++) {
        double *s = zeroed((size_t)state->key_size * (size_t)state->value_size, sizeof *s);
        for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
            (delta ? delta_row : ssm_row)(m, r, h, s);
        }
        free(s);
    }
}

/* Each column of the result depends on all of what is read. */
static void run_stand_in(const machine *m) {
    if (m->op->out[0].value == SL_NONE) {
        return;
    }
    for (int32_t r = 0; r < op_rows(m); r++) {
        double sum = 0;
        for (int i = 0; i < SL_OP_INPUTS; i++) {
            for (int32_t k = 0; k < sl_operand_width(m->program, m->op, false, i); k++) {
                sum += in(m, i, r)[k] / (1 + (k % 5));
            }
        }
        for (int32_t k = 0; k < sl_operand_width(m->program, m->op, true, 0); k++) {
            out(m, 0, r)[k] = sin(sum + k);
        }
    }
}

static void run_gather(const machine *m) {
    for (int32_t r = 0; r < INTERPRET_ROWS; r++) {
        memmove(out(m, 0, r), in(m, 0, r), (size_t)m->op->u.gather.width * sizeof(double));
    }
}

static void run_op(const machine *m) {
    static void (*const runs[SL_OP_COUNT])(const machine *) = {
        [SL_OP_EMBED] = run_embed,         [SL_OP_RMSNORM] = run_rmsnorm,
        [SL_OP_LAYERNORM] = run_layernorm, [SL_OP_LINEAR] = run_linear,
        [SL_OP_ROPE] = run_rope,           [SL_OP_CACHE_WRITE] = run_cache_write,
        [SL_OP_ATTENTION] = run_attention, [SL_OP_ROUTER] = run_router,
        [SL_OP_COMBINE] = run_combine,     [SL_OP_ACTIVATE] = run_activate,
        [SL_OP_SOFTCAP] = run_softcap,     [SL_OP_GATHER] = run_gather,
        [SL_OP_CONV] = run_conv,           [SL_OP_DELTA_SCAN] = run_scan,
        [SL_OP_SSM_SCAN] = run_scan,       [SL_OP_HEAD_LINEAR] = run_head_linear,
    };
    (runs[m->op->kind] ? runs[m->op->kind] : run_stand_in)(m);
}

/* ---- ranks ---- */

static void sum_ranks(machine *machines, int32_t count) {
    const int32_t width = machines[0].op->u.all_reduce.width;
    for (int32_t r = 0; r < op_rows(&machines[0]); r++) {
        for (int32_t i = 0; i < width; i++) {
            double sum = 0;
            for (int32_t k = 0; k < count; k++) {
                sum += in(&machines[k], 0, r)[i];
            }
            for (int32_t k = 0; k < count; k++) {
                out(&machines[k], 0, r)[i] = sum;
            }
        }
    }
}

static void gather_ranks(machine *machines, int32_t count) {
    const int32_t width = machines[0].op->u.all_gather.width;
    for (int32_t r = 0; r < op_rows(&machines[0]); r++) {
        for (int32_t k = 0; k < count * count; k++) {
            memcpy(out(&machines[k % count], 0, r) + k / count * width, in(&machines[k / count], 0, r),
                   (size_t)width * sizeof(double));
        }
    }
}

static const char *run_all(machine *machines, int32_t count) {
    const sl_program *first = machines[0].program;
    for (int32_t i = 0; i < first->op_count; i++) {
        for (int32_t k = 0; k < count; k++) {
            if (i >= machines[k].program->op_count ||
                machines[k].program->ops[i].kind != first->ops[i].kind) {
                return "ranks have different ops";
            }
            machines[k].op = &machines[k].program->ops[i];
        }
        if (first->ops[i].kind == SL_OP_ALL_REDUCE) {
            sum_ranks(machines, count);
        } else if (first->ops[i].kind == SL_OP_ALL_GATHER) {
            gather_ranks(machines, count);
        } else {
            for (int32_t k = 0; k < count; k++) {
                run_op(&machines[k]);
            }
        }
    }
    return NULL;
}

bool interpret(const sl_program *programs, int32_t count, double **result, int32_t *width,
               const char **reason) {
    machine machines[SL_MOST_RANKS] = {{0}};
    for (int32_t k = 0; k < count; k++) {
        begin(&machines[k], &programs[k]);
    }
    *reason = run_all(machines, count);
    const int32_t value = programs[0].logits != SL_NONE ? programs[0].logits : programs[0].hidden;
    *width = programs[0].values[value].width;
    const size_t numbers = (size_t)*width * INTERPRET_ROWS;
    *result = zeroed(numbers, sizeof(double));
    memcpy(*result, machines[0].values[value], numbers * sizeof(double));
    for (int32_t k = 1; k < count && !*reason; k++) {
        const bool same = memcmp(*result, machines[k].values[value], numbers * sizeof(double)) == 0;
        *reason = same ? NULL : "ranks disagree";
    }
    for (int32_t k = 0; k < count; k++) {
        end(&machines[k]);
    }
    return !*reason;
}
