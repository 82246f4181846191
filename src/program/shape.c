/* The shape rule of every op: how many columns it reads and writes. */
#include "program/program.h"

static int64_t span(int64_t count, int64_t stride, int64_t width) {
    return count > 0 ? (count - 1) * stride + width : 0;
}

static int64_t rmsnorm_width(const sl_op *op, bool output, int index) {
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const int64_t strided = span(norm->groups, norm->stride, norm->width);
    const int64_t packed = (int64_t)norm->groups * norm->width;
    const int64_t y = op->out[0].value == op->in[0].value ? strided : packed;
    if (output) {
        return index == 0 ? y : strided;
    }
    switch (index) {
    case 1:
        return norm->residual == SL_RESIDUAL_AFTER ? y : strided;
    case 2:
        return span(norm->groups, norm->gate_stride, norm->width);
    default:
        return strided;
    }
}

static int64_t linear_width(const sl_program *program, const sl_op *op, bool output, int index) {
    const sl_op_linear *linear = &op->u.linear;
    if (output || index == 3) {
        int64_t end = 0;
        for (int32_t i = 0; i < linear->segment_count; i++) {
            const int64_t segment_end =
                (int64_t)linear->segments[i].column + program->weights[linear->segments[i].weight].rows;
            end = segment_end > end ? segment_end : end;
        }
        return end;
    }
    if (index == 0) {
        return linear->segment_count > 0 ? program->weights[linear->segments[0].weight].columns : 0;
    }
    return index == 1 ? program->experts_used : 1;
}

static int64_t head_linear_width(const sl_program *program, const sl_op *op, bool output) {
    const sl_op_head_linear *linear = &op->u.head_linear;
    const sl_weight *weight = &program->weights[linear->weight];
    const bool rows = output != linear->turned;
    const int64_t head = (int64_t)(rows ? weight->rows : weight->columns) + linear->tail;
    return output ? weight->experts * head : span(weight->experts, linear->x_stride, head);
}

static int64_t attention_width(const sl_program *program, const sl_op *op, bool output, int index) {
    const sl_op_attention *attention = &op->u.attention;
    const sl_cache_group *group = &program->groups[attention->place.group];
    if (output) {
        return (int64_t)attention->heads * group->value_size;
    }
    return index == 0 ? span(attention->heads, attention->q_stride, group->key_size)
                      : span(attention->heads, attention->gate_stride, group->value_size);
}

static int64_t scan_width(const sl_program *program, const sl_op *op, bool output, int index) {
    const sl_op_delta_scan *scan = &op->u.delta_scan;
    const sl_state_layer *state = &program->states[scan->state];
    const int64_t values = (int64_t)scan->value_heads * state->value_size;
    if (output) {
        return values;
    }
    return index == 0 ? 2 * (int64_t)scan->key_heads * state->key_size + values : scan->value_heads;
}

static int64_t ssm_width(const sl_program *program, const sl_op *op, bool output, int index) {
    const sl_op_ssm_scan *scan = &op->u.ssm_scan;
    const sl_state_layer *state = &program->states[scan->state];
    const int64_t values = (int64_t)scan->heads * state->value_size;
    if (output) {
        return values;
    }
    return index == 0 ? values + 2 * (int64_t)scan->groups * state->key_size : scan->heads;
}

int64_t sl_operand_width(const sl_program *program, const sl_op *op, bool output, int index) {
    if ((output ? op->out[index].value : op->in[index].value) < 0) {
        return 0;
    }
    switch (op->kind) {
    case SL_OP_EMBED:
        return program->weights[op->u.embed.weight].columns;
    case SL_OP_RMSNORM:
        return rmsnorm_width(op, output, index);
    case SL_OP_LAYERNORM:
        return op->u.layernorm.width;
    case SL_OP_QUANTIZE:
        return op->u.quantize.width;
    case SL_OP_LINEAR:
        return linear_width(program, op, output, index);
    case SL_OP_HEAD_LINEAR:
        return head_linear_width(program, op, output);
    case SL_OP_ROPE:
        return span(op->u.rope.heads, op->u.rope.stride,
                    op->u.rope.dims > op->u.rope.temperature.width ? op->u.rope.dims
                                                                   : op->u.rope.temperature.width);
    case SL_OP_CACHE_WRITE: {
        const sl_cache_group *group = &program->groups[op->u.cache_write.place.group];
        return (int64_t)group->kv_heads * (index == 0 ? group->key_size : group->value_size);
    }
    case SL_OP_RECALL: {
        const sl_cache_group *group = &program->groups[op->u.recall.place.group];
        return (int64_t)group->kv_heads * group->key_size;
    }
    case SL_OP_ATTENTION:
        return attention_width(program, op, output, index);
    case SL_OP_COMPACT: {
        const sl_op_attention *attention = &op->u.compact.attention;
        return span(attention->heads, attention->q_stride, program->groups[attention->place.group].key_size);
    }
    case SL_OP_ROUTER:
        if (!output) {
            return op->u.router.experts;
        }
        return index == 2 ? 1 : op->u.router.used;
    case SL_OP_COMBINE:
        if (output) {
            return op->u.combine.width;
        }
        return index == 1 ? op->u.combine.used : index == 4 ? 1 : op->u.combine.width;
    case SL_OP_ACTIVATE:
        return !output && index == 2 ? program->experts_used : op->u.activate.width;
    case SL_OP_CONV:
        return program->states[op->u.conv.state].channels;
    case SL_OP_DELTA_SCAN:
        return scan_width(program, op, output, index);
    case SL_OP_SSM_SCAN:
        return ssm_width(program, op, output, index);
    case SL_OP_GATHER:
        return op->u.gather.width;
    case SL_OP_TRANSFER:
        return op->u.transfer.width;
    case SL_OP_ALL_REDUCE:
        return op->u.all_reduce.width;
    case SL_OP_ALL_GATHER:
        return (int64_t)op->u.all_gather.width * (output ? op->u.all_gather.ranks : 1);
    case SL_OP_SOFTCAP:
        return op->u.softcap.width;
    case SL_OP_SAMPLE:
        return output ? 1 : op->u.sample.vocabulary;
    case SL_OP_FETCH:
        return index == 0 ? op->u.fetch.used : 1;
    case SL_OP_OBSERVE:
        return index == 0 ? program->weights[op->u.observe.weight].columns : 1;
    default:
        return 0;
    }
}
