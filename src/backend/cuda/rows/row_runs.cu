/* Runs of row-wise ops in one launch: what stands in front of a norm, the norm, and the norm's output as a
 * linear reads it. */
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/rows/row_ops.cuh"

enum { MOST_QUADS = 4 };

/* Up to `MOST_QUADS` quads a thread. */
template <sl_norm_source SOURCE, sl_norm_form FORM = SL_NORM_PLAIN>
static cudaError_t run_norm(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                            const sl_norm_args &args) {
    switch (sl_norm_shape_of(args.norm.width).quads) {
    case 1:
        return sl_norm_launch<1, true, FORM, SOURCE>(context, op, stream, args);
    case 2:
        return sl_norm_launch<2, true, FORM, SOURCE>(context, op, stream, args);
    default:
        return sl_norm_launch<MOST_QUADS, true, FORM, SOURCE>(context, op, stream, args);
    }
}

static sl_cuda_operand unless_unread(const sl_cuda_op *op, int output) {
    sl_cuda_operand operand = op->out[output];
    operand.data = op->unread[output] ? NULL : operand.data;
    return operand;
}

/* The norm at op[at], and the QUANTIZE behind it if the run has one. */
static sl_norm_args norm_args(const sl_cuda_op *op, int32_t at) {
    sl_norm_args args = sl_norm_args_of(&op[at]);
    args.keep_y = !op[at].unread[0];
    args.sum = unless_unread(&op[at], 1);
    if (op->run_length > at + 1) {
        args.q = op[at + 1].out[0];
    }
    return args;
}

static SL_CUDA_RUN(run_embed_norm) {
    sl_norm_args args = norm_args(op, 1);
    args.embed = {op->weights[0], op->out[0], op->op->u.embed.scale, SL_EMBED_TOKEN, 0, {}};
    args.kept = unless_unread(op, 0);
    return run_norm<SL_NORM_OF_EMBED>(context, op, stream, args);
}

static SL_CUDA_RUN(run_combine_norm) {
    sl_norm_args args = norm_args(op, 1);
    args.combine = sl_combine_args_of(op);
    args.kept = unless_unread(op, 0);
    return run_norm<SL_NORM_OF_COMBINE>(context, op, stream, args);
}

static SL_CUDA_RUN(run_gather_norm) {
    sl_norm_args args = norm_args(op, 1);
    args.x = op->in[0];
    args.kept = unless_unread(op, 0);
    return run_norm<SL_NORM_OF_GATHER>(context, op, stream, args);
}

/* The residual, then the branch, at op[at] and behind. */
static sl_norm_args gather_args(const sl_cuda_op *op, int32_t at) {
    sl_norm_args args = norm_args(op, at + 2);
    args.residual = op[at].in[0];
    args.kept_residual = unless_unread(&op[at], 0);
    args.gathers_residual = true;
    args.x = op[at + 1].in[0];
    args.kept = unless_unread(&op[at + 1], 0);
    return args;
}

static SL_CUDA_RUN(run_gather_gather_norm) {
    return run_norm<SL_NORM_OF_GATHER>(context, op, stream, gather_args(op, 0));
}

static SL_CUDA_RUN(run_ranges_gather_norm) {
    sl_norm_args args = gather_args(op, 1);
    const cudaError_t code = sl_cuda_run_ranges(context, op, stream, &args.ranges);
    args.x.data = args.ranges.data;
    return code ? code : run_norm<SL_NORM_OF_GATHER>(context, op, stream, args);
}

static SL_CUDA_RUN(run_ranges_norm) {
    sl_norm_args args = norm_args(op, 1);
    args.kept = unless_unread(op, 0);
    const cudaError_t code = sl_cuda_run_ranges(context, op, stream, &args.ranges);
    if (code) {
        return code;
    }
    args.x.data = args.ranges.data;
    switch (sl_norm_form_of(args)) {
    case SL_NORM_PLAIN:
        return run_norm<SL_NORM_OF_RANGES>(context, op + 1, stream, args);
    case SL_NORM_ANY:
        return run_norm<SL_NORM_OF_RANGES, SL_NORM_ANY>(context, op + 1, stream, args);
    default:
        return run_norm<SL_NORM_OF_RANGES, SL_NORM_SCALED>(context, op + 1, stream, args);
    }
}

/* ---- what they take ---- */

static bool same(const sl_operand &a, const sl_operand &b) {
    return a.value == b.value && a.column == b.column;
}

/* As sl_in_quads, before anything is placed. */
static bool in_quads(const sl_fusion_query *query, const sl_operand &operand) {
    if (operand.value == SL_NONE) {
        return true;
    }
    const sl_value *value = &query->values[operand.value];
    const uint64_t quad = value->type == SL_VALUE_BF16 ? 8 : 16;
    return value->type == SL_VALUE_Q8_32 ||
           (operand.column % SL_QUAD == 0 && sl_value_row_bytes(value->type, value->width) % quad == 0);
}

static bool op_in_quads(const sl_fusion_query *query, const sl_op *op) {
    bool good = true;
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        const bool is_f32 = op->in[i].value != SL_NONE && query->values[op->in[i].value].type == SL_VALUE_F32;
        good = good &&
               (!is_f32 || (op->kind == SL_OP_COMBINE && (i == 1 || i == 4)) || in_quads(query, op->in[i]));
    }
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        good = good && in_quads(query, op->out[o]);
    }
    return good;
}

#define NOT_IN_QUADS "takes operands that lie in whole quads"
#define NOT_PLAIN "takes a norm without a gate, a residual behind it and factors"
#define NOT_A_CHAIN "takes ops of which each reads the one before"

/* The norm at `at`, and a QUANTIZE behind it. */
static const char *norm_declines(const sl_fusion_query *query, int32_t at, int32_t count,
                                 int32_t most_quads) {
    const sl_op *op = &query->ops[at];
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const int32_t stride = op->in[0].value == op->out[0].value ? norm->stride : norm->width;
    if (norm->width % SL_QUAD != 0 || !op_in_quads(query, op) ||
        (norm->groups > 1 && (norm->stride % SL_QUAD != 0 || norm->gate_stride % SL_QUAD != 0))) {
        return NOT_IN_QUADS;
    }
    if (sl_norm_shape_of(norm->width).quads > most_quads) {
        return "takes narrower groups";
    }
    if (count == at + 1) {
        return NULL;
    }
    const sl_op *quantize = &query->ops[at + 1];
    const sl_value_type format = query->values[quantize->out[0].value].type;
    const int32_t group = format == SL_VALUE_E4M3_128 ? SL_E4M3_128_GROUP
                          : format == SL_VALUE_Q8_32  ? SL_Q8_32_GROUP
                                                      : 1;
    if (!same(quantize->in[0], op->out[0])) {
        return NOT_A_CHAIN;
    }
    if (quantize->u.quantize.width != norm->groups * norm->width ||
        (norm->groups > 1 && (stride != norm->width || norm->width % group != 0))) {
        return "takes a norm whose groups lie side by side";
    }
    return in_quads(query, quantize->out[0]) ? sl_quantize_pairs_reason(format, norm->groups) : NOT_IN_QUADS;
}

/* Whether a product of one weight has so many outputs. */
static bool is_whole(const sl_fusion_query *query, const sl_op *linear, int32_t width) {
    const sl_linear_segment *segment = &linear->u.linear.segments[0];
    return linear->u.linear.segment_count == 1 && segment->column == 0 &&
           query->program->weights[segment->weight].rows == width;
}

const char *sl_norm_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    return norm_declines(query, 0, fusion->count, SL_NORM_QUADS);
}

/* EMBED, COMBINE or GATHER in front of a norm of one group. */
static const char *source_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *source = &query->ops[0], *op = &query->ops[1];
    const int32_t width = source->kind == SL_OP_EMBED
                              ? query->program->weights[source->u.embed.weight].columns
                          : source->kind == SL_OP_COMBINE ? source->u.combine.width
                                                          : source->u.gather.width;
    const bool plain = source->kind != SL_OP_EMBED ||
                       (source->in[0].value == SL_NONE && source->u.embed.source == SL_EMBED_TOKEN);
    if (!plain || op->in[2].value != SL_NONE || op->u.rmsnorm.residual == SL_RESIDUAL_AFTER ||
        sl_norm_is_scaled(&op->u.rmsnorm)) {
        return NOT_PLAIN;
    }
    if (!same(source->out[0], op->in[0]) || op->in[1].value == source->out[0].value ||
        op->u.rmsnorm.groups != 1 || op->u.rmsnorm.width != width) {
        return NOT_A_CHAIN;
    }
    return op_in_quads(query, source) ? norm_declines(query, 1, fusion->count, MOST_QUADS) : NOT_IN_QUADS;
}

/* The residual's GATHER, the branch's, and the norm of their sum, from op `at` on. */
static const char *gathers_decline(const sl_fusion *fusion, const sl_fusion_query *query, int32_t at) {
    const sl_op *residual = &query->ops[at], *branch = &query->ops[at + 1], *op = &query->ops[at + 2];
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    if (sl_norm_is_scaled(norm)) {
        return NOT_PLAIN;
    }
    if (!same(branch->out[0], op->in[0]) || !same(residual->out[0], op->in[1]) || norm->groups != 1 ||
        residual->out[0].value == branch->out[0].value || op->in[2].value != SL_NONE ||
        norm->residual != SL_RESIDUAL_BEFORE || residual->u.gather.width != norm->width ||
        branch->u.gather.width != norm->width) {
        return NOT_A_CHAIN;
    }
    return op_in_quads(query, residual) && op_in_quads(query, branch)
               ? norm_declines(query, at + 2, fusion->count, MOST_QUADS)
               : NOT_IN_QUADS;
}

static const char *gathers_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    return gathers_decline(fusion, query, 0);
}

/* A product, the residual's GATHER, the product's, and the norm of their sum. */
static const char *ranges_gather_norm_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *linear = &query->ops[0], *branch = &query->ops[2], *op = &query->ops[3];
    const char *reason = sl_cuda_run_ranges_reason(query);
    if (reason) {
        return reason;
    }
    if (!same(linear->out[0], branch->in[0]) || !query->unread[0][0] ||
        query->ops[1].in[0].value == linear->out[0].value || !is_whole(query, linear, op->u.rmsnorm.width)) {
        return NOT_A_CHAIN;
    }
    return gathers_decline(fusion, query, 1);
}

/* A product and the norm of it. */
static const char *ranges_norm_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *linear = &query->ops[0], *op = &query->ops[1];
    const char *reason = sl_cuda_run_ranges_reason(query);
    if (reason) {
        return reason;
    }
    if (!same(linear->out[0], op->in[0]) || op->in[1].value == linear->out[0].value ||
        op->in[2].value != SL_NONE || op->u.rmsnorm.groups != 1 ||
        !is_whole(query, linear, op->u.rmsnorm.width)) {
        return NOT_A_CHAIN;
    }
    return norm_declines(query, 1, fusion->count, MOST_QUADS);
}

const char *sl_activate_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    const sl_op *op = &query->ops[0], *quantize = &query->ops[1];
    if (!same(quantize->in[0], op->out[0]) || quantize->u.quantize.width != op->u.activate.width) {
        return NOT_A_CHAIN;
    }
    return op->u.activate.width % SL_QUAD == 0 && op_in_quads(query, op) && in_quads(query, quantize->out[0])
               ? NULL
               : NOT_IN_QUADS;
}

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run_ranges_gather_norm, ranges_gather_norm_declines,
                   "linear-ranges+gather+gather+rmsnorm+quantize", SL_OP_LINEAR, SL_OP_GATHER, SL_OP_GATHER,
                   SL_OP_RMSNORM, SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_ranges_norm, ranges_norm_declines, "linear-ranges+rmsnorm+quantize", SL_OP_LINEAR,
                   SL_OP_RMSNORM, SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_ranges_norm, ranges_norm_declines, "linear-ranges+rmsnorm", SL_OP_LINEAR,
                   SL_OP_RMSNORM),
    SL_CUDA_FUSION(run_gather_gather_norm, gathers_declines, "gather+gather+rmsnorm+quantize", SL_OP_GATHER,
                   SL_OP_GATHER, SL_OP_RMSNORM, SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_gather_gather_norm, gathers_declines, "gather+gather+rmsnorm", SL_OP_GATHER,
                   SL_OP_GATHER, SL_OP_RMSNORM),
    SL_CUDA_FUSION(run_gather_norm, source_declines, "gather+rmsnorm+quantize", SL_OP_GATHER, SL_OP_RMSNORM,
                   SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_gather_norm, source_declines, "gather+rmsnorm", SL_OP_GATHER, SL_OP_RMSNORM),
    SL_CUDA_FUSION(run_embed_norm, source_declines, "embed+rmsnorm+quantize", SL_OP_EMBED, SL_OP_RMSNORM,
                   SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_embed_norm, source_declines, "embed+rmsnorm", SL_OP_EMBED, SL_OP_RMSNORM),
    SL_CUDA_FUSION(run_combine_norm, source_declines, "combine+rmsnorm+quantize", SL_OP_COMBINE,
                   SL_OP_RMSNORM, SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_combine_norm, source_declines, "combine+rmsnorm", SL_OP_COMBINE, SL_OP_RMSNORM),
};

SL_CUDA_FAMILY(row_runs) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
