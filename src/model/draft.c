/* The head that drafts ("multi-token prediction", DeepSeek-AI: "DeepSeek-V3 Technical Report", 2024, 2.2;
 * vLLM's qwen3_5_mtp.py, SGLang's deepseek_nextn.py and glm4_moe_nextn.py): a layer behind the others reads
 * the token at a position joined with what the model's head reads of the row in front of it, and what it
 * leaves goes through the model's head. Its token is the one behind. What it leaves stands in for what the
 * model's head reads in the row behind, as long as the model has not come there.
 *
 * So two things are kept of each row: the layer's keys and values, as one more layer of its group, and what
 * the head reads, in a group of its own, of which a row needs the one in front alone. Both are written in the
 * model's own steps, and in those that draft. */
#include "model/build.h"

static void keep_rows(sl_builder *b, int32_t rows) {
    sl_op *op = sl_build_op(b, SL_OP_CACHE_WRITE);
    if (op) {
        op->in[0] = sl_at(rows, 0);
        op->u.cache_write.place = b->kept;
    }
}

static void norm_into(sl_builder *b, int32_t x, sl_tensor_id weight, sl_operand y) {
    const int32_t width = b->config->width;
    sl_op *op = sl_build_norm(b, sl_build_weight(b, weight), 1, width, width);
    if (op) {
        op->in[0] = sl_at(x, 0);
        op->out[0] = y;
    }
}

/* The stream that enters the layer. */
static void join_rows(sl_builder *b) {
    static const sl_tensor_id weight = SL_TENSOR_DRAFT_JOIN;
    const int32_t width = b->config->width;
    const int32_t before = sl_build_value(b, "before", SL_ROWS_STEP, width);
    sl_op *op = sl_build_op(b, SL_OP_RECALL);
    if (op) {
        op->out[0] = sl_at(before, 0);
        op->u.recall.place = b->kept;
    }
    const int32_t own = sl_build_weight(b, SL_TENSOR_DRAFT_EMBED);
    const int32_t table = own == SL_NONE ? b->binding->model[SL_TENSOR_EMBED] : own;
    const int32_t embed = sl_build_embed(b, table, "embed");
    const int32_t both = sl_build_value(b, "joined", SL_ROWS_STEP, 2 * width);
    norm_into(b, embed, SL_TENSOR_DRAFT_EMBED_NORM, sl_at(both, 0));
    norm_into(b, before, SL_TENSOR_DRAFT_HIDDEN_NORM, sl_at(both, width));
    b->stream = (sl_stream){sl_build_value(b, "hidden", SL_ROWS_STEP, width), SL_NONE};
    sl_build_linear(b,
                    &(sl_build_projection){.x = both, .y = b->stream.value, .weights = &weight, .count = 1});
}

int32_t sl_build_draft_keys(sl_builder *b) {
    const int32_t read = sl_build_value(b, "normed", SL_ROWS_STEP, b->config->width);
    sl_build_norm_stream(b, &b->stream, b->binding->model[SL_TENSOR_FINAL_NORM], (sl_stream){read, SL_NONE});
    keep_rows(b, read);
    b->layer = b->config->layers;
    join_rows(b);
    const int32_t x = sl_build_layer_norm(b);
    if (b->config->latent > 0) {
        sl_build_latent_keys(b, x);
    } else {
        sl_build_keys(b, x);
    }
    b->layer = SL_NONE;
    return read;
}

void sl_build_drafts(sl_builder *b) {
    const int32_t width = b->config->width, before = b->program->op_count;
    b->layer = SL_NONE;
    sl_build_op(b, SL_OP_BEGIN);
    b->layer = b->config->layers;
    join_rows(b);
    sl_build_layer(b);
    const int32_t own = sl_build_weight(b, SL_TENSOR_DRAFT_NORM);
    const int32_t norm = own == SL_NONE ? b->binding->model[SL_TENSOR_FINAL_NORM] : own;
    const int32_t read = sl_build_value(b, "normed", SL_ROWS_STEP, width);
    sl_build_norm_stream(b, &b->stream, norm, (sl_stream){read, SL_NONE});
    keep_rows(b, read);
    b->layer = SL_NONE;
    sl_op *op = sl_build_op(b, SL_OP_GATHER);
    if (op) {
        op->in[0] = sl_at(read, 0);
        op->out[0] = sl_at(b->program->hidden, 0);
        op->u.gather.width = width;
    }
    /* Its own head, or the model's. */
    const bool headed = b->binding->layers[b->config->layers][SL_TENSOR_DRAFT_HEAD] != SL_NONE;
    b->layer = headed ? b->config->layers : SL_NONE;
    sl_build_head(b, headed ? SL_TENSOR_DRAFT_HEAD : SL_TENSOR_HEAD);
    b->layer = SL_NONE;
    b->program->draft_ops = b->program->op_count - before;
}
