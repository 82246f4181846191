/* What is kept of a sequence. */
#include "cases.h"

#include <string.h>

bool kt_make_compact(kt_case *c, int32_t index, kt_random *random) {
    static const struct {
        attention_shape of;
        int32_t window, keep, pool;
        float sharpness; /* of its softmax */
    } shapes[] = {
        {{200, 1, 4, 2, 64, 64, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 0, false}, 16, 80, 7, 1},
        {{330, 1, 8, 2, 128, 128, 0, 0, false, false, SL_QTYPE_BF16, NORMAL, 0, false}, 64, 128, 7, 1},
        {{131, 1, 3, 3, 32, 48, 0, 0, true, true, SL_QTYPE_F32, NORMAL, 0, false}, 3, 70, 1, 1},
        {{260, 1, 6, 1, 96, 64, 0, 30.0f, false, false, SL_QTYPE_Q8_0, OUTLIERS, 0, false}, 33, 65, 5, 1},
        {{190, 1, 4, 2, 64, 64, 0, 0, true, false, SL_QTYPE_FP8, NORMAL, 0, false}, 1, 2, 9, 1},
        /* A few keys that get most, some of them the rows' own. */
        {{220, 1, 4, 2, 64, 64, 0, 0, false, false, SL_QTYPE_F32, NORMAL, 0, false}, 60, 100, 1, 5},
        {{200, 1, 8, 4, 64, 64, 0, 0, true, false, SL_QTYPE_F16, NORMAL, 0, false}, 20, 90, 3, 4},
        /* Few keys, beside sinks that differ from head to head. */
        {{90, 1, 16, 2, 64, 64, 0, 0, true, false, SL_QTYPE_F32, NORMAL, 0, false}, 2, 45, 1, 1},
        /* The first of equal ones, and all but one. */
        {{150, 1, 4, 2, 64, 64, 0, 0, false, false, SL_QTYPE_F16, TIES, 0, false}, 8, 64, 7, 1},
        {{150, 1, 4, 2, 64, 64, 0, 0, false, false, SL_QTYPE_F16, ZEROS, 0, false}, 8, 63, 3, 1},
        {{140, 1, 5, 1, 64, 64, 0, 0, false, true, SL_QTYPE_F16, NORMAL, 0, false}, 20, 139, 7, 1},
        /* More than there are: all, in new places. */
        {{100, 1, 2, 2, 64, 64, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 0, false}, 30, 120, 7, 1},
        /* Values that are the first part of the keys, and wide heads. */
        {{170, 1, 16, 1, 576, 512, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 0, true}, 24, 90, 7, 1},
        {{140, 1, 4, 2, 256, 256, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 0, false}, 40, 77, 31, 1},
        {{700, 1, 8, 2, 64, 64, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 0, false}, 64, 333, 7, 1},
        /* So many keys of one query that eleven bits of these choose others. */
        {{2500, 1, 4, 4, 64, 64, 0, 0, false, false, SL_QTYPE_F32, NORMAL, 0, false}, 1, 1200, 1, 5},
        /* Heads that are no whole quads. */
        {{130, 1, 6, 2, 66, 62, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 0, false}, 9, 50, 5, 1},
    };
    if (index >= (int32_t)(sizeof shapes / sizeof *shapes)) {
        return false;
    }
    kt_build_attention(c, &shapes[index].of, SL_OP_ATTENTION, false, random);
    sl_op *op = &c->program.ops[c->op];
    sl_op_attention attention = op->u.attention;
    attention.scale *= shapes[index].sharpness;
    op->kind = SL_OP_COMPACT;
    op->in[1].value = op->out[0].value = SL_NONE;
    memset(&op->u, 0, sizeof op->u);
    op->u.compact = (sl_op_compact){attention, shapes[index].keep, shapes[index].pool};
    c->keep = shapes[index].keep;
    c->window = shapes[index].window;
    char detail[96];
    snprintf(detail, sizeof detail, "%d/%d heads of %d/%d, %s, %d of %d for %d, pool %d",
             shapes[index].of.heads, shapes[index].of.kv_heads, shapes[index].of.key_size,
             shapes[index].of.value_size, sl_qtype_get(shapes[index].of.cache)->name, c->keep, c->rows,
             c->window, shapes[index].pool);
    kt_name_case(c, SL_OP_COMPACT, index, detail);
    return true;
}

bool kt_make_more_attention(kt_case *c, int32_t index, kt_random *random) {
    /* Chunks of fewer keys than a page, of one, of some; steps that end in a chunk and behind one; one row.
     */
    static const attention_shape shapes[] = {
        {150, 1, 4, 2, 64, 64, 16, 0, false, false, SL_QTYPE_F16, NORMAL, 0, false},
        {150, 3, 4, 1, 128, 128, 64, 0, false, false, SL_QTYPE_BF16, NORMAL, 0, false},
        {300, 2, 5, 5, 64, 64, 128, 0, true, false, SL_QTYPE_F16, NORMAL, 0, false},
        {260, 1, 8, 2, 128, 128, 128, 30, false, true, SL_QTYPE_F32, NORMAL, 0, false},
        {200, 2, 40, 8, 128, 128, 32, 0, false, false, SL_QTYPE_Q8_0, NORMAL, 0, false},
        {129, 1, 4, 2, 64, 64, 64, 0, false, false, SL_QTYPE_F16, NORMAL, 1, false},
        {330, 2, 10, 2, 128, 128, 64, 0, false, false, SL_QTYPE_F16, NORMAL, 2, false},
        {200, 2, 8, 4, 128, 128, 32, 0, false, false, SL_QTYPE_FP8, NORMAL, 100, false},
        /* Values that are the first part of the keys, many keys before few rows, spans of several tiles. */
        {261, 1, 4, 1, 576, 512, 0, 0, false, true, SL_QTYPE_F16, NORMAL, 15, true},
        {140, 3, 20, 1, 576, 512, 0, 30, true, false, SL_QTYPE_BF16, NORMAL, 65, true},
        {265, 1, 4, 1, 320, 256, 0, 0, false, false, SL_QTYPE_FP8, NORMAL, 50, true},
        {300, 4, 8, 2, 128, 64, 130, 0, false, true, SL_QTYPE_BF16, NORMAL, 52, true},
        /* The same not from the first key on. */
        {40, 2, 5, 1, 576, 512, 0, 0, false, false, SL_QTYPE_F16, NORMAL, 14, true},
        {76, 1, 4, 1, 320, 256, 0, 0, true, false, SL_QTYPE_Q8_0, NORMAL, 0, true},
        {140, 1, 4, 1, 128, 64, 0, 0, false, false, SL_QTYPE_BF16, NORMAL, 60, true},
        {80, 1, 5, 1, 576, 512, 30, 30, false, true, SL_QTYPE_FP8, NORMAL, 40, true},
    };
    enum { CHUNKED = 8, LATE = 12 }; /* of these, the first ones; and from here on */
    if (index >= (int32_t)(sizeof shapes / sizeof *shapes)) {
        return false;
    }
    char detail[96];
    const bool chunked = index < CHUNKED;
    const attention_shape *shape = &shapes[index];
    kt_build_attention(c, shape, SL_OP_ATTENTION, chunked && index % 2 == 1, random);
    c->program.groups[1].chunked = chunked; /* the other one is not what is read */
    c->program.ops[c->op].u.attention.first = index < LATE ? 0 : index % 2 == 0 ? 1 : 70;
    if (chunked) {
        snprintf(detail, sizeof detail, "chunks of %d, %s", shape->window, sl_qtype_get(shape->cache)->name);
    } else {
        snprintf(detail, sizeof detail, "%d/%d heads of %d/%d, window %d, %s%s", shape->heads,
                 shape->kv_heads, shape->key_size, shape->value_size, shape->window,
                 sl_qtype_get(shape->cache)->name, index < LATE ? "" : ", not from the first on");
    }
    kt_name_case(c, SL_OP_ATTENTION, 1000 + index, detail);
    return true;
}
