/* Matrices of a warp: ldmatrix, stmatrix, movmatrix, mma. Where a matrix's elements lie in the lanes'
 * registers is said by the PTX ISA, "Matrix fragments for mma". */
#include "ptx_matrix.h"
#include "ptx_state.h"

#include <algorithm>

static constexpr emu_group WHOLE_WARP = {EMU_LANES, 0xffffffffu};

template <typename DEPOSIT>
static const DEPOSIT *meet(const DEPOSIT &own, const ptx_instruction &instruction) {
    return (const DEPOSIT *)emu_gather(WHOLE_WARP, &own, sizeof own, instruction.text.c_str());
}

static const ptx_operand &part(const ptx_operand &operand, size_t i) {
    return operand.kind == PTX_VECTOR ? operand.parts[i] : operand;
}

/* ---- matrices of 8 rows of 16 bytes ---- */

struct matrix_row {
    uint16_t elements[8];
};

/* b: how many matrices, c: transposed. Lanes 8 i and on point at the rows of matrix i; they read them as they
 * come, which is all that a program may count on. */
static void run_ldmatrix(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t lane = emu_self()->lane;
    const uint32_t count = (uint32_t)instruction.b;
    matrix_row own = {};
    if (lane < 8 * count) {
        const ptx_operand &from = instruction.operands[1];
        memcpy(&own, ptx_pointer(call, instruction, from, (ptx_space)instruction.a, 16), sizeof own);
    }
    const matrix_row *rows = meet(own, instruction);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t pair = 0;
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t major = lane / 4, minor = lane % 4 * 2 + half;
            const uint32_t row = instruction.c ? minor : major, column = instruction.c ? major : minor;
            pair |= (uint32_t)rows[8 * i + row].elements[column] << 16 * half;
        }
        ptx_set(call, part(instruction.operands[0], i), pair, 4);
    }
}

struct four_registers {
    uint32_t values[4];
};

static void run_stmatrix(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t lane = emu_self()->lane;
    const uint32_t count = (uint32_t)instruction.b;
    four_registers own = {};
    for (uint32_t i = 0; i < count; i++) {
        own.values[i] = ptx_get32(call, part(instruction.operands[1], i));
    }
    const four_registers *all = meet(own, instruction);
    if (lane >= 8 * count) {
        return;
    }
    matrix_row row;
    for (uint32_t column = 0; column < 8; column++) {
        const uint32_t major = instruction.c ? column : lane % 8, minor = instruction.c ? lane % 8 : column;
        row.elements[column] = (uint16_t)(all[4 * major + minor / 2].values[lane / 8] >> 16 * (minor % 2));
    }
    memcpy(ptx_pointer(call, instruction, instruction.operands[0], (ptx_space)instruction.a, 16), &row,
           sizeof row);
}

static void run_movmatrix(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t lane = emu_self()->lane;
    const uint32_t own = ptx_get32(call, instruction.operands[1]);
    const uint32_t *all = meet(own, instruction);
    uint32_t pair = 0;
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = lane % 4 * 2 + half, column = lane / 4;
        pair |= (all[4 * row + column / 2] >> 16 * (column % 2) & 0xffff) << 16 * half;
    }
    ptx_set(call, instruction.operands[0], pair, 4);
}

static bool decode_move(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    const bool load = decoder.name == "ldmatrix", store = decoder.name == "stmatrix";
    if (!load && !store && decoder.name != "movmatrix") {
        return false;
    }
    const bool known = ptx_take(decoder, "sync") && ptx_take(decoder, "aligned") &&
                       ptx_take(decoder, "m8n8") && ptx_take(decoder, "b16");
    instruction.c = ptx_take(decoder, "trans");
    ptx_count(decoder, 2, -1);
    if (!load && !store) {
        if (!known || !instruction.c) {
            ptx_unknown(decoder, "not supported");
        }
        instruction.run = run_movmatrix;
        return true;
    }
    static const int COUNTS[] = {1, 2, 4};
    const int count = ptx_take_choice(decoder, "x1 x2 x4");
    instruction.a = ptx_take_space(decoder);
    const ptx_operand &registers = instruction.operands[load ? 0 : 1];
    const size_t parts = registers.kind == PTX_VECTOR ? registers.parts.size() : 1;
    if (!known || count < 0 || parts != (size_t)COUNTS[count]) {
        ptx_unknown(decoder, "not supported");
    }
    instruction.b = COUNTS[count];
    instruction.run = load ? run_ldmatrix : run_stmatrix;
    return true;
}

/* ---- products ---- */

/* What a lane leaves for the others. Register r of A has row lane / 4 + 8 (r % 2) and bytes 4 (lane % 4) + 16
 * (r / 2) of it; register r of B has the same bytes of column lane / 4, with r for r / 2. */
struct fragments {
    uint32_t a[4], b[2];
};

/* The warp's whole product, by the first of its lanes to ask for it. */
static const float *multiply(const ptx_instruction &instruction, const fragments *all) {
    enum { ROWS = 16, COLUMNS = 8, MOST = 32 };
    ptx_warp &warp = ptx_block_of(emu_self()->block)->warps[emu_self()->warp];
    const uint64_t round = ++ptx_thread_now()->matrix_products;
    if (warp.matrix_products == round) {
        return warp.sums;
    }
    warp.matrix_products = round;
    ptx_factor a_factor = {}, b_factor = {};
    ptx_find_factor(instruction.type, &a_factor);
    ptx_find_factor(instruction.from, &b_factor);
    const uint32_t registers = (uint32_t)instruction.operands[1].parts.size();
    const uint32_t row_bytes = 8 * registers, depth = row_bytes / (uint32_t)a_factor.bytes;
    unsigned char a_bytes[ROWS * MOST], b_bytes[COLUMNS * MOST];
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        const uint32_t at = lane % 4 * 4;
        for (uint32_t r = 0; r < registers; r++) {
            memcpy(&a_bytes[(lane / 4 + r % 2 * 8) * row_bytes + at + r / 2 * 16], &all[lane].a[r], 4);
        }
        for (uint32_t r = 0; r < registers / 2; r++) {
            memcpy(&b_bytes[lane / 4 * row_bytes + at + r * 16], &all[lane].b[r], 4);
        }
    }
    float a[ROWS * MOST], b_columns[COLUMNS * MOST], b[COLUMNS * MOST];
    ptx_factors(a_factor, a_bytes, ROWS * row_bytes, a);
    ptx_factors(b_factor, b_bytes, COLUMNS * row_bytes, b_columns);
    for (uint32_t i = 0; i < COLUMNS * depth; i++) {
        b[i % depth * COLUMNS + i / depth] = b_columns[i];
    }
    ptx_multiply(a, b, warp.sums, {ROWS, COLUMNS, depth});
    return warp.sums;
}

static uint32_t add_integers(uint32_t x, float product, bool saturate) {
    const int64_t sum = (int64_t)(int32_t)x + (int64_t)product;
    return (uint32_t)(saturate ? std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX) : sum);
}

/* a: what the sums are */
enum { TO_F32, TO_F16, TO_S32 };

static void run_mma(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t lane = emu_self()->lane;
    const std::vector<ptx_operand> &operands = instruction.operands;
    fragments own = {};
    for (uint32_t r = 0; r < operands[1].parts.size(); r++) {
        own.a[r] = ptx_get32(call, operands[1].parts[r]);
        own.b[r / 2] = r % 2 ? own.b[r / 2] : ptx_get32(call, part(operands[2], r / 2));
    }
    const float *sums = multiply(instruction, meet(own, instruction));
    const float *places[4];
    for (uint32_t i = 0; i < 4; i++) {
        places[i] = &sums[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
    }
    const std::vector<ptx_operand> &to = operands[0].parts, &from = operands[3].parts;
    for (uint32_t i = 0; i < to.size(); i++) {
        const uint32_t before = ptx_get32(call, from[i]);
        uint32_t after;
        if (instruction.a == TO_F32) {
            after = ptx_bits(ptx_float(before) + *places[i]);
        } else if (instruction.a == TO_S32) {
            after = add_integers(before, *places[i], instruction.c);
        } else { /* two to a register */
            const uint32_t low = ptx_to_f16(ptx_from_f16(before & 0xffff) + *places[2 * i]);
            after = low | ptx_to_f16(ptx_from_f16(before >> 16) + *places[2 * i + 1]) << 16;
        }
        ptx_set(call, to[i], after, 4);
    }
}

/* Row of bytes of A for each shape: half of them to a register. */
static bool is_shape(int k, const ptx_factor &factor, size_t registers) {
    const int bytes = k * factor.bytes;
    return (bytes == 16 && registers == 2) || (bytes == 32 && registers == 4);
}

/* mma.sync.aligned.m16n8k*.row.col.D.A.B.C */
static bool decode_mma(ptx_decoder &decoder) {
    static const int DEPTHS[] = {4, 8, 16, 32};
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name != "mma") {
        return false;
    }
    const bool known = ptx_take(decoder, "sync") && ptx_take(decoder, "aligned") &&
                       ptx_take(decoder, "row") && ptx_take(decoder, "col");
    const int depth = ptx_take_choice(decoder, "m16n8k4 m16n8k8 m16n8k16 m16n8k32");
    instruction.c = ptx_take(decoder, "satfinite");
    const ptx_type *to = ptx_take_type(decoder);
    instruction.type = ptx_take_type(decoder);
    instruction.from = ptx_take_type(decoder);
    const ptx_type *sum = ptx_take_type(decoder);
    ptx_count(decoder, 4, -1);
    ptx_factor a, b;
    if (!known || depth < 0 || !ptx_find_factor(instruction.type, &a) ||
        !ptx_find_factor(instruction.from, &b)) {
        ptx_unknown(decoder, "not supported");
    }
    const size_t registers = instruction.operands[1].parts.size();
    const bool to_f16 = ptx_is(to, "f16");
    const size_t results = to_f16 ? 2 : 4, right = instruction.operands[2].kind == PTX_VECTOR
                                                       ? instruction.operands[2].parts.size()
                                                       : 1;
    const bool types = a.integer ? b.integer && ptx_is(to, "s32")
                                 : a.bytes == b.bytes && !b.integer && (to_f16 || ptx_is(to, "f32"));
    if (!types || sum != to || !is_shape(DEPTHS[depth], a, registers) || right != registers / 2 ||
        instruction.operands[0].parts.size() != results || instruction.operands[3].parts.size() != results) {
        ptx_unknown(decoder, "types or registers do not go with the shape");
    }
    instruction.a = a.integer ? TO_S32 : to_f16 ? TO_F16 : TO_F32;
    instruction.run = run_mma;
    return true;
}

bool ptx_decode_matrix(ptx_decoder &decoder) {
    return decode_move(decoder) || decode_mma(decoder);
}
