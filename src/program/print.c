/* Programs as text. The text of a family's program is its golden test, so it holds nothing that varies by
 * machine. */
#include "program/program.h"

#include <math.h>

static void print_operand(const sl_program *program, const sl_value *values, const sl_op *op, bool output,
                          int i, sl_buffer *out) {
    const sl_operand *operand = output ? &op->out[i] : &op->in[i];
    const sl_value *value = &values[operand->value];
    const int64_t width = sl_operand_width(program, op, output, i);
    sl_buffer_text(out, value->name);
    if (operand->column != 0 || width != value->width) {
        sl_buffer_printf(out, "[%d:%lld]", operand->column, (long long)(operand->column + width));
    }
}

static void print_operands(const sl_program *program, const sl_value *values, const sl_op *op, bool output,
                           sl_buffer *out) {
    const int count = output ? SL_OP_OUTPUTS : SL_OP_INPUTS;
    const char *separator = output ? "" : " = ";
    for (int i = 0; i < count; i++) {
        if ((output ? op->out[i].value : op->in[i].value) < 0) {
            continue;
        }
        const sl_view role = sl_op_role(op->kind, output, i);
        sl_buffer_text(out, separator);
        const bool plain = op->kind == SL_OP_CACHE_WRITE; /* keys, then values if there are any */
        if (role.length > 0 && role.data[role.length - 1] == '?' && !plain) {
            sl_buffer_append(out, role.data, role.length - 1);
            sl_buffer_text(out, " ");
        }
        print_operand(program, values, op, output, i, out);
        separator = ", ";
    }
}

static void print_weight(const sl_program *program, int32_t index, sl_buffer *out) {
    const sl_weight *weight = &program->weights[index];
    sl_buffer_printf(out, "%s %s ", weight->name, sl_qtype_get(weight->type)->name);
    if (weight->experts != 1) {
        sl_buffer_printf(out, "%dx", weight->experts);
    }
    sl_buffer_printf(out, "%dx%d", weight->rows, weight->columns);
}

/* A vector's name is enough: its shape follows from the op. */
static void print_vector(const sl_program *program, const char *label, int32_t index, sl_buffer *out) {
    if (index != SL_NONE) {
        sl_buffer_printf(out, ", %s%s", label, program->weights[index].name);
    }
}

static void print_linear(const sl_program *program, const sl_op *op, sl_buffer *out) {
    int32_t next = 0;
    sl_buffer_text(out, " . [");
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        const sl_linear_segment *segment = &op->u.linear.segments[s];
        sl_buffer_text(out, s ? ", " : "");
        print_weight(program, segment->weight, out);
        if (segment->bias != SL_NONE) {
            sl_buffer_printf(out, " + %s", program->weights[segment->bias].name);
        }
        if (segment->column != next) {
            sl_buffer_printf(out, " at %d", segment->column);
        }
        next = segment->column + program->weights[segment->weight].rows;
    }
    sl_buffer_text(out, "]");
}

static void print_rmsnorm(const sl_program *program, const sl_op *op, sl_buffer *out) {
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    if (norm->residual != SL_RESIDUAL_NONE) {
        sl_buffer_printf(out, " %s", norm->residual == SL_RESIDUAL_BEFORE ? "before" : "after");
    }
    print_vector(program, "", norm->weight, out);
    if (norm->weight_offset != 0) {
        sl_buffer_printf(out, " + %g", (double)norm->weight_offset);
    }
    if (norm->x_factor != 1) {
        sl_buffer_printf(out, ", x times %g", (double)norm->x_factor);
    }
    if (norm->y_factor != 1) {
        sl_buffer_printf(out, ", y times %g", (double)norm->y_factor);
    }
    if (norm->groups != 1) {
        sl_buffer_printf(out, ", %d groups of %d", norm->groups, norm->width);
        if (norm->stride != norm->width) {
            sl_buffer_printf(out, " every %d", norm->stride);
        }
        sl_buffer_text(out, norm->own_weights ? " with weights of their own" : "");
    }
    if (op->in[2].value != SL_NONE && norm->groups != 1 && norm->gate_stride != norm->width) {
        sl_buffer_printf(out, ", gate every %d", norm->gate_stride);
    }
    sl_buffer_printf(out, ", epsilon %g", (double)norm->epsilon);
}

static void print_head_linear(const sl_program *program, const sl_op *op, sl_buffer *out) {
    const sl_op_head_linear *linear = &op->u.head_linear;
    const sl_weight *weight = &program->weights[linear->weight];
    sl_buffer_text(out, " . ");
    print_weight(program, linear->weight, out);
    sl_buffer_text(out, linear->turned ? " turned" : "");
    if (linear->x_stride != (linear->turned ? weight->rows : weight->columns)) {
        sl_buffer_printf(out, ", every %d", linear->x_stride);
    }
    if (linear->tail > 0) {
        sl_buffer_printf(out, ", and %d as they are", linear->tail);
    }
}

static void print_rope(const sl_program *program, const sl_op *op, sl_buffer *out) {
    const sl_op_rope *rope = &op->u.rope;
    print_vector(program, "", rope->frequencies, out);
    sl_buffer_printf(out, ", %d heads of %d every %d, %s", rope->heads, rope->dims, rope->stride,
                     rope->layout == SL_ROPE_HALVES ? "halves" : "pairs");
    if (rope->magnitude != 1) {
        sl_buffer_printf(out, ", magnitude %g", (double)rope->magnitude);
    }
    if (rope->temperature.width > 0) {
        sl_buffer_printf(out, ", temperature %g per ln of %d", (double)rope->temperature.scale,
                         rope->temperature.length);
        if (rope->temperature.offset > 0) {
            sl_buffer_printf(out, " behind %d", rope->temperature.offset);
        }
    }
}

/* What is said of a kind's attention in front of what only that kind has. */
static void print_queries(const sl_program *program, const sl_op_attention *attention, sl_buffer *out) {
    const sl_cache_group *group = &program->groups[attention->place.group];
    sl_buffer_printf(out, ", %s %d, %d heads", group->name, attention->place.layer, attention->heads);
    if (attention->q_stride != group->key_size) {
        sl_buffer_printf(out, " every %d", attention->q_stride);
    }
}

static void print_scores(const sl_program *program, const sl_op_attention *attention, sl_buffer *out) {
    sl_buffer_printf(out, ", scale %g", (double)attention->scale);
    if (attention->softcap != 0) {
        sl_buffer_printf(out, ", softcap %g", (double)attention->softcap);
    }
    print_vector(program, "sinks ", attention->sinks, out);
}

static void print_attention(const sl_program *program, const sl_op *op, sl_buffer *out) {
    const sl_op_attention *attention = &op->u.attention;
    const sl_cache_group *group = &program->groups[attention->place.group];
    print_queries(program, attention, out);
    if (op->in[1].value != SL_NONE && attention->gate_stride != group->value_size) {
        sl_buffer_printf(out, ", gate every %d", attention->gate_stride);
    }
    print_scores(program, attention, out);
    if (attention->first > 0) {
        sl_buffer_printf(out, ", from %d on", attention->first);
    }
    sl_buffer_text(out, attention->both_sides ? ", to both sides" : "");
}

static void print_compact(const sl_program *program, const sl_op *op, sl_buffer *out) {
    print_queries(program, &op->u.compact.attention, out);
    print_scores(program, &op->u.compact.attention, out);
    sl_buffer_printf(out, ", keep %d, pool %d", op->u.compact.keep, op->u.compact.pool);
}

static void print_router(const sl_program *program, const sl_op *op, sl_buffer *out) {
    const sl_op_router *router = &op->u.router;
    sl_buffer_printf(out, ", %s, %d of %d", router->kind == SL_ROUTER_SOFTMAX ? "softmax" : "sigmoid",
                     router->used, router->experts);
    print_vector(program, "bias ", router->bias, out);
    print_vector(program, "factors ", router->factors, out);
    if (router->groups > 1) {
        sl_buffer_printf(out, ", %d of %d groups by %s", router->groups_used, router->groups,
                         router->group_by_best ? "the best" : "the two best");
    }
    sl_buffer_printf(out, "%s, scale %g", router->normalise ? ", normalised" : "", (double)router->scale);
}

static void print_ssm_scan(const sl_program *program, const sl_op *op, sl_buffer *out) {
    const sl_op_ssm_scan *scan = &op->u.ssm_scan;
    print_vector(program, scan->decay_is_negated ? "-exp(a_log) " : "a_log ", scan->a_log, out);
    print_vector(program, "dt_bias ", scan->dt_bias, out);
    print_vector(program, "skip ", scan->skip, out);
    sl_buffer_printf(out, ", %d groups, %d heads, state %d", scan->groups, scan->heads, scan->state);
    if (scan->step_least > 0 || isfinite(scan->step_most)) {
        sl_buffer_printf(out, ", steps of %g to %g", (double)scan->step_least, (double)scan->step_most);
    }
}

static void print_activate(const sl_op_activate *activate, sl_buffer *out) {
    sl_buffer_printf(out, ", %s", sl_activation_name(activate->function));
    if (activate->function == SL_ACTIVATION_SWIGLU_OAI) {
        sl_buffer_printf(out, ", alpha %g, limit %g", (double)activate->alpha, (double)activate->limit);
    } else if (activate->function == SL_ACTIVATION_XIELU) {
        sl_buffer_printf(out, ", alpha %g, negative %g, beta %g, limit %g", (double)activate->alpha,
                         (double)activate->negative, (double)activate->beta, (double)activate->limit);
    }
}

static void print_softcap(const sl_op_softcap *softcap, sl_buffer *out) {
    if (softcap->cap != 0) {
        sl_buffer_printf(out, ", cap %g", (double)softcap->cap);
    }
    if (softcap->scale != 1) {
        sl_buffer_printf(out, ", scale %g", (double)softcap->scale);
    }
}

static void print_place(const sl_program *program, sl_cache_place place, sl_buffer *out) {
    sl_buffer_printf(out, ", %s %d", program->groups[place.group].name, place.layer);
}

static void print_embed(const sl_program *program, const sl_op_embed *embed, sl_buffer *out) {
    sl_buffer_text(out, " = ");
    print_weight(program, embed->weight, out);
    if (embed->scale != 1) {
        sl_buffer_printf(out, ", scale %g", (double)embed->scale);
    }
    sl_buffer_text(out, embed->source == SL_EMBED_POSITION ? ", by position"
                        : embed->source == SL_EMBED_FIRST  ? ", row 0"
                                                           : "");
}

const char *sl_fetch_way_name(sl_fetch_way way) {
    static const char *const names[] = {[SL_FETCH_ALL] = "all experts to a buffer",
                                        [SL_FETCH_TO_SLOTS] = "chosen experts to slots",
                                        [SL_FETCH_TO_BUFFER] = "chosen experts to a buffer"};
    return names[way];
}

static void print_parameters(const sl_program *program, const sl_op *op, sl_buffer *out) {
    switch (op->kind) {
    case SL_OP_EMBED:
        print_embed(program, &op->u.embed, out);
        break;
    case SL_OP_LAYERNORM:
        print_vector(program, "", op->u.layernorm.weight, out);
        print_vector(program, "bias ", op->u.layernorm.bias, out);
        sl_buffer_printf(out, ", epsilon %g", (double)op->u.layernorm.epsilon);
        break;
    case SL_OP_RMSNORM:
        print_rmsnorm(program, op, out);
        break;
    case SL_OP_LINEAR:
        print_linear(program, op, out);
        break;
    case SL_OP_HEAD_LINEAR:
        print_head_linear(program, op, out);
        break;
    case SL_OP_ROPE:
        print_rope(program, op, out);
        break;
    case SL_OP_CACHE_WRITE:
        print_place(program, op->u.cache_write.place, out);
        break;
    case SL_OP_RECALL:
        print_place(program, op->u.recall.place, out);
        break;
    case SL_OP_ATTENTION:
    case SL_OP_COMPACT:
        (op->kind == SL_OP_COMPACT ? print_compact : print_attention)(program, op, out);
        break;
    case SL_OP_ROUTER:
        print_router(program, op, out);
        break;
    case SL_OP_ACTIVATE:
        print_activate(&op->u.activate, out);
        break;
    case SL_OP_CONV:
        print_vector(program, "", op->u.conv.weight, out);
        print_vector(program, "bias ", op->u.conv.bias, out);
        sl_buffer_printf(out, ", %s, state %d", sl_activation_name(op->u.conv.function), op->u.conv.state);
        break;
    case SL_OP_DELTA_SCAN:
        print_vector(program, op->u.delta_scan.decay_is_negated ? "-exp(a_log) " : "a_log ",
                     op->u.delta_scan.a_log, out);
        print_vector(program, "dt_bias ", op->u.delta_scan.dt_bias, out);
        sl_buffer_printf(out, ", %d key heads%s, %d value heads, state %d", op->u.delta_scan.key_heads,
                         op->u.delta_scan.keys_cycle ? " in turn" : "", op->u.delta_scan.value_heads,
                         op->u.delta_scan.state);
        break;
    case SL_OP_SSM_SCAN:
        print_ssm_scan(program, op, out);
        break;
    case SL_OP_ALL_GATHER:
        sl_buffer_printf(out, ", of %d ranks", op->u.all_gather.ranks);
        break;
    case SL_OP_SOFTCAP:
        print_softcap(&op->u.softcap, out);
        break;
    case SL_OP_FETCH:
        if (op->u.fetch.used == 0) {
            sl_buffer_text(out, " weights of the layer");
        } else if (op->u.fetch.slots == 0) {
            sl_buffer_printf(out, ", %s", sl_fetch_way_name(op->u.fetch.way));
        } else {
            sl_buffer_printf(out, ", %s, %d slots", sl_fetch_way_name(op->u.fetch.way), op->u.fetch.slots);
        }
        break;
    case SL_OP_OBSERVE:
        sl_buffer_text(out, " for ");
        print_weight(program, op->u.observe.weight, out);
        break;
    default: /* all is in the operands */
        break;
    }
}

void sl_op_print(const sl_program *program, const sl_value *values, const sl_op *op, sl_buffer *out) {
    bool operands = false;
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        operands |= op->in[i].value != SL_NONE;
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        operands |= op->out[i].value != SL_NONE;
    }
    sl_buffer_printf(out, operands ? "%-11s " : "%s", sl_op_name(op->kind));
    print_operands(program, values, op, true, out);
    print_operands(program, values, op, false, out);
    print_parameters(program, op, out);
}

void sl_program_print(const sl_program *program, sl_buffer *out) {
    sl_buffer_printf(out, "program %s: width %d, vocabulary %d", program->name ? program->name : "?",
                     program->width, program->vocabulary);
    if (program->experts > 0) {
        sl_buffer_printf(out, ", %d of %d experts", program->experts_used, program->experts);
    }
    if (program->ranks > 0) {
        sl_buffer_printf(out, ", rank %d of %d", program->rank, program->ranks);
    }
    sl_buffer_text(out, "\n");
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_group *group = &program->groups[g];
        sl_buffer_printf(out, "group %d %s: %d layers, %d heads, keys of %d, values of %d%s", g, group->name,
                         group->layers, group->kv_heads, group->key_size, group->value_size,
                         group->values_are_keys ? " in them" : "");
        if (group->window > 0) {
            sl_buffer_printf(out, ", %s %d", group->chunked ? "chunks of" : "window", group->window);
        }
        sl_buffer_text(out, "\n");
    }
    for (int32_t s = 0; s < program->state_count; s++) {
        const sl_state_layer *state = &program->states[s];
        sl_buffer_printf(out, "state %d: conv %d taps of %d channels", s, state->taps, state->channels);
        if (state->heads > 0) {
            sl_buffer_printf(out, ", delta %d heads of %dx%d", state->heads, state->key_size,
                             state->value_size);
        }
        sl_buffer_text(out, "\n");
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        const sl_value *value = &program->values[v];
        sl_buffer_printf(out, "value %-3d %-16s %-5s %-6s rows of %d", v, value->name,
                         sl_value_type_name(value->type), sl_rows_name(value->rows), value->width);
        if (value->fixed > 0) {
            sl_buffer_printf(out, " after %d", value->fixed);
        }
        sl_buffer_text(out, value->tail ? ", of outputs" : "");
        const bool result = v == program->hidden && program->logits == SL_NONE;
        sl_buffer_text(out, v == program->logits   ? ", logits\n"
                            : v == program->tokens ? ", tokens\n"
                            : result               ? ", hidden\n"
                                                   : "\n");
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (program->draft_ops > 0 && i == program->op_count - program->draft_ops) {
            sl_buffer_text(out, "drafts:\n");
        }
        sl_buffer_printf(out, "%4d ", i);
        if (op->layer >= 0) {
            sl_buffer_printf(out, "%3d  ", op->layer);
        } else {
            sl_buffer_text(out, "  .  ");
        }
        sl_op_print(program, program->values, op, out);
        sl_buffer_text(out, "\n");
    }
}
