/* Of a rank that is alone: what all have is what it has. */
#include "cases.h"

bool kt_make_exchange(kt_case *c, sl_op_kind kind, int32_t index, kt_random *random) {
    const bool sums = kind == SL_OP_ALL_REDUCE;
    if ((!sums && kind != SL_OP_ALL_GATHER) || !kt_make_transfer(c, index, random)) {
        return false;
    }
    sl_op *op = &c->program.ops[c->op];
    const int32_t width = op->u.transfer.width;
    op->kind = kind;
    if (sums) {
        op->out[0] = op->in[0];
        op->u.all_reduce = (sl_op_all_reduce){.width = width};
    } else {
        op->u.all_gather = (sl_op_all_gather){.width = width, .ranks = 1};
    }
    kt_name_case(c, kind, index, "");
    return true;
}
