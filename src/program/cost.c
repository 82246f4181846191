/* The work of an op, for percent-of-peak figures and cost models; none of it steers correctness. */
#include "program/program.h"

#include <math.h>

static double weight_bytes(const sl_program *program, int32_t index) {
    return index < 0 ? 0 : (double)program->weights[index].bytes;
}

static double operand_bytes(const sl_program *program, const sl_op *op, const int32_t *rows, bool output,
                            int i) {
    const int32_t index = output ? op->out[i].value : op->in[i].value;
    if (index < 0) {
        return 0;
    }
    const sl_value *value = &program->values[index];
    const int64_t width = sl_operand_width(program, op, output, i);
    return (double)sl_value_row_bytes(value->type, (int32_t)width) * rows[value->rows] +
           (double)sl_value_row_bytes(value->type, value->fixed);
}

static void linear_cost(const sl_program *program, const sl_op *op, const int32_t *rows, sl_cost *cost) {
    const double count = rows[program->values[op->out[0].value].rows];
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        const sl_linear_segment *segment = &op->u.linear.segments[s];
        const sl_weight *weight = &program->weights[segment->weight];
        const double reached = count < weight->experts ? count : weight->experts;
        cost->operations += 2.0 * count * weight->rows * weight->columns;
        cost->weight_bytes += (double)weight->bytes / weight->experts * reached;
        cost->weight_bytes += weight_bytes(program, segment->bias) / weight->experts * reached;
    }
}

/* Of a token in the cache. */
static double cached_elements(const sl_cache_group *group) {
    return (double)group->kv_heads * (group->key_size + (group->values_are_keys ? 0 : group->value_size));
}

static void attention_cost(const sl_program *program, const sl_op *op, double rows, int32_t context,
                           sl_cost *cost) {
    const sl_cache_group *group = &program->groups[op->u.attention.place.group];
    const double keys = group->window > 0 && group->window < context ? group->window : context;
    cost->operations = 2.0 * op->u.attention.heads * (group->key_size + group->value_size) * keys * rows;
    cost->value_bytes += 2.0 * cached_elements(group) * keys * rows;
    cost->weight_bytes = weight_bytes(program, op->u.attention.sinks);
}

/* Scores take two passes over the keys of the sequence. */
static void compact_cost(const sl_program *program, const sl_op *op, double rows, int32_t context,
                         sl_cost *cost) {
    const sl_op_attention *attention = &op->u.compact.attention;
    const sl_cache_group *group = &program->groups[attention->place.group];
    const int32_t kept = op->u.compact.keep < context ? op->u.compact.keep : context;
    cost->operations = 4.0 * attention->heads * group->key_size * context * rows;
    cost->value_bytes +=
        4.0 * group->kv_heads * group->key_size * (double)context + 4.0 * cached_elements(group) * kept;
    cost->weight_bytes = weight_bytes(program, attention->sinks);
}

static double state_elements(const sl_program *program, int32_t layer) {
    const sl_state_layer *state = &program->states[layer];
    return (double)state->heads * state->key_size * state->value_size;
}

static void conv_cost(const sl_program *program, const sl_op *op, double rows, sl_cost *cost) {
    const sl_state_layer *state = &program->states[op->u.conv.state];
    cost->operations = 2.0 * state->channels * state->taps * rows;
    cost->weight_bytes = weight_bytes(program, op->u.conv.weight) + weight_bytes(program, op->u.conv.bias);
}

/* What the other ranks have is read too. */
static void exchange_cost(const sl_program *program, const sl_op *op, const int32_t *rows, sl_cost *cost) {
    const bool gathers = op->kind == SL_OP_ALL_GATHER;
    const int32_t ranks = gathers ? op->u.all_gather.ranks : program->ranks > 0 ? program->ranks : 1;
    const int32_t width = gathers ? op->u.all_gather.width : op->u.all_reduce.width;
    const double elements = (double)(ranks - 1) * width * rows[program->values[op->in[0].value].rows];
    cost->operations = gathers ? 0 : elements;
    cost->value_bytes += sizeof(float) * elements;
}

static double row_bytes(const sl_weight *weight) {
    return (double)weight->bytes / weight->rows;
}

static sl_cost cost_of(const sl_program *program, const sl_op *op, const int32_t rows[SL_ROWS_COUNT],
                       int32_t context) {
    sl_cost cost = {0};
    const double step = rows[SL_ROWS_STEP];
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        cost.value_bytes += operand_bytes(program, op, rows, false, i);
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        cost.value_bytes += operand_bytes(program, op, rows, true, i);
    }
    switch (op->kind) {
    case SL_OP_EMBED:
        cost.weight_bytes = row_bytes(&program->weights[op->u.embed.weight]) * step;
        break;
    case SL_OP_RMSNORM:
        cost.operations =
            4.0 * op->u.rmsnorm.groups * op->u.rmsnorm.width * rows[program->values[op->in[0].value].rows];
        cost.weight_bytes = weight_bytes(program, op->u.rmsnorm.weight);
        break;
    case SL_OP_LAYERNORM:
        cost.operations = 7.0 * op->u.layernorm.width * rows[program->values[op->in[0].value].rows];
        cost.weight_bytes =
            weight_bytes(program, op->u.layernorm.weight) + weight_bytes(program, op->u.layernorm.bias);
        break;
    case SL_OP_LINEAR:
        linear_cost(program, op, rows, &cost);
        break;
    case SL_OP_HEAD_LINEAR: {
        const sl_weight *weight = &program->weights[op->u.head_linear.weight];
        cost.operations = 2.0 * weight->experts * weight->rows * weight->columns *
                          rows[program->values[op->in[0].value].rows];
        cost.weight_bytes = (double)weight->bytes;
        break;
    }
    case SL_OP_ROPE:
        cost.operations = op->u.rope.heads * (3.0 * op->u.rope.dims + op->u.rope.temperature.width) * step;
        cost.weight_bytes = weight_bytes(program, op->u.rope.frequencies);
        break;
    case SL_OP_CACHE_WRITE:
        cost.value_bytes += 2.0 * cached_elements(&program->groups[op->u.cache_write.place.group]) * step;
        break;
    case SL_OP_RECALL:
        cost.value_bytes += 2.0 * cached_elements(&program->groups[op->u.recall.place.group]) * step;
        break;
    case SL_OP_ATTENTION:
        attention_cost(program, op, step, context, &cost);
        break;
    case SL_OP_COMPACT:
        compact_cost(program, op, step, context, &cost);
        break;
    case SL_OP_COMBINE:
        cost.operations = 2.0 * op->u.combine.used * op->u.combine.width * step;
        break;
    case SL_OP_ACTIVATE:
        cost.operations = 2.0 * op->u.activate.width * rows[program->values[op->in[0].value].rows];
        break;
    case SL_OP_OBSERVE: {
        const bool listed = op->in[1].value != SL_NONE;
        cost.operations = 2.0 * program->weights[op->u.observe.weight].columns *
                          rows[program->values[op->in[listed].value].rows];
        break;
    }
    case SL_OP_CONV:
        conv_cost(program, op, step, &cost);
        break;
    case SL_OP_DELTA_SCAN: /* per row, on the state: decay 1, S^T k 2, update 2, S^T q 2 */
        cost.operations = 7 * state_elements(program, op->u.delta_scan.state) * step;
        break;
    case SL_OP_ALL_REDUCE:
    case SL_OP_ALL_GATHER:
        exchange_cost(program, op, rows, &cost);
        break;
    case SL_OP_SSM_SCAN: /* decay 1, update 2, S^T C 2 */
        cost.operations = 5 * state_elements(program, op->u.ssm_scan.state) * step;
        break;
    default: /* moves values, nothing else to speak of */
        break;
    }
    return cost;
}

sl_cost sl_op_cost(const sl_program *program, const sl_op *op, const int32_t rows[SL_ROWS_COUNT],
                   int32_t context) {
    int32_t tail[SL_ROWS_COUNT];
    sl_tail_rows(rows, tail);
    return cost_of(program, op, sl_op_is_tail(program->values, op) ? tail : rows, context);
}

sl_cost sl_step_cost(const sl_program *program, const sl_op *op, const int32_t rows[SL_ROWS_COUNT],
                     int32_t keys, int32_t sequences) {
    const int32_t most = sequences > 0 ? keys + rows[SL_ROWS_STEP] / sequences / 2 : keys;
    const bool last = sl_op_is_tail(program->values, op); /* rows with outputs see the most */
    sl_cost cost = sl_op_cost(program, op, rows, last ? most : keys);
    if (op->kind == SL_OP_ATTENTION && sequences > 0) {
        const int32_t one[SL_ROWS_COUNT] = {1, 1, 1};
        sequences = last && rows[SL_ROWS_OUTPUT] < sequences ? rows[SL_ROWS_OUTPUT] : sequences;
        const double read =
            sl_op_cost(program, op, one, most).value_bytes - sl_op_cost(program, op, one, 0).value_bytes;
        cost.value_bytes = sl_op_cost(program, op, rows, 0).value_bytes + read * sequences;
    }
    return cost;
}

/* ---- against what a device can do
 * -------------------------------------------------------------------------------------- */

sl_arithmetic sl_qtype_arithmetic(sl_qtype type) {
    switch (type) {
    case SL_QTYPE_BF16:
        return SL_WITH_BF16;
    case SL_QTYPE_F32:
    case SL_QTYPE_F16:
    case SL_QTYPE_FP8_128: /* scales of whole rows and an exponent for each weight: no integers to sum */
        return SL_WITH_F32;
    default:
        return SL_WITH_INT8;
    }
}

bool sl_op_products(const sl_program *program, const sl_op *op, sl_arithmetic *arithmetic) {
    switch (op->kind) {
    case SL_OP_LINEAR:
        *arithmetic = sl_qtype_arithmetic(program->weights[op->u.linear.segments[0].weight].type);
        return true;
    case SL_OP_HEAD_LINEAR: /* weights are decoded to f32 */
        *arithmetic = SL_WITH_F32;
        return true;
    case SL_OP_COMPACT: /* queries and keys are f32 */
        *arithmetic = SL_WITH_F32;
        return true;
    case SL_OP_ATTENTION:
        *arithmetic = SL_WITH_BF16;
        return true;
    default:
        return false;
    }
}

double sl_rates_of(const sl_rates *rates, sl_arithmetic arithmetic) {
    const double own = rates->operations[arithmetic], bf16 = rates->operations[SL_WITH_BF16];
    return arithmetic == SL_WITH_BF16 ? fmax(own, rates->operations[SL_WITH_F32]) : own > 0 ? own : bf16;
}

double sl_rates_least(const sl_rates *rates, double bytes, sl_arithmetic arithmetic, double operations) {
    const double rate = sl_rates_of(rates, arithmetic);
    const double reading = rates->read_bytes > 0 ? bytes / rates->read_bytes : 0;
    return fmax(reading, rate > 0 ? operations / rate : 0);
}
