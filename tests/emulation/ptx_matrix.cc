/* Matrices of a warp: ldmatrix, stmatrix, movmatrix, mma. Where a matrix's elements lie in the lanes'
 * registers is said by the PTX ISA, "Matrix fragments for mma". */
#include "ptx_matrix.h"

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

/* What a lane leaves for the others: its registers of A and B, as numbers. Register r of A has row lane / 4 +
 * 8 (r % 2) and bytes 4 (lane % 4) + 16 (r / 2) of it; register r of B has the same bytes of column lane / 4,
 * with r for r / 2. */
template <typename NUMBER> struct fragments { NUMBER a[4][4], b[2][4]; /* [register][element] */ };

/* The factors' types, and how many registers A has: 2 or 4. */
struct mma_kind {
    ptx_factor a, b;
    uint32_t registers;
};

static mma_kind kind_of(const ptx_instruction &instruction) {
    mma_kind kind = {};
    ptx_find_factor(instruction.type, &kind.a);
    ptx_find_factor(instruction.from, &kind.b);
    kind.registers = (uint32_t)instruction.operands[1].parts.size();
    return kind;
}

template <typename NUMBER>
static fragments<NUMBER> read_fragments(const ptx_call &call, const ptx_instruction &instruction,
                                        const mma_kind &kind) {
    fragments<NUMBER> own = {};
    for (uint32_t r = 0; r < kind.registers; r++) {
        const uint32_t bits = ptx_get32(call, part(instruction.operands[1], r));
        ptx_factors(kind.a, (const unsigned char *)&bits, 4, own.a[r]);
    }
    for (uint32_t r = 0; r < kind.registers / 2; r++) {
        const uint32_t bits = ptx_get32(call, part(instruction.operands[2], r));
        ptx_factors(kind.b, (const unsigned char *)&bits, 4, own.b[r]);
    }
    return own;
}

/* Products of a row and a column, added one after the other. The device's own order is not documented; it
 * also cuts off where this rounds. */
template <typename NUMBER>
static NUMBER dot(const fragments<NUMBER> *all, const mma_kind &kind, uint32_t row, uint32_t column) {
    NUMBER sum = 0;
    for (uint32_t r = 0; r < kind.registers / 2; r++) {
        for (uint32_t i = 0; i < 4; i++) {
            const NUMBER *a = all[4 * (row % 8) + i].a[row / 8 + 2 * r], *b = all[4 * column + i].b[r];
            for (int e = 0; e < 4 / kind.a.bytes; e++) {
                sum += a[e] * b[e];
            }
        }
    }
    return sum;
}

static void run_mma_floats(ptx_call &call, const ptx_instruction &instruction) {
    const mma_kind kind = kind_of(instruction);
    const fragments<float> *all = meet(read_fragments<float>(call, instruction, kind), instruction);
    const uint32_t lane = emu_self()->lane;
    float sums[4];
    for (uint32_t i = 0; i < 4; i++) {
        sums[i] = dot(all, kind, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
    }
    const std::vector<ptx_operand> &to = instruction.operands[0].parts, &from = instruction.operands[3].parts;
    if (instruction.a == 0) {
        for (uint32_t i = 0; i < 4; i++) {
            sums[i] = ptx_get_float(call, from[i]) + sums[i];
        }
        for (uint32_t i = 0; i < 4; i++) {
            ptx_set_float(call, to[i], sums[i]);
        }
        return;
    }
    for (uint32_t i = 0; i < 2; i++) { /* f16: two to a register */
        const uint32_t pair = ptx_get32(call, from[i]);
        const uint32_t low = ptx_to_f16(ptx_from_f16(pair & 0xffff) + sums[2 * i]);
        const uint32_t high = ptx_to_f16(ptx_from_f16(pair >> 16) + sums[2 * i + 1]);
        ptx_set(call, to[i], high << 16 | low, 4);
    }
}

static void run_mma_integers(ptx_call &call, const ptx_instruction &instruction) {
    const mma_kind kind = kind_of(instruction);
    const fragments<int32_t> *all = meet(read_fragments<int32_t>(call, instruction, kind), instruction);
    const uint32_t lane = emu_self()->lane;
    uint32_t results[4];
    for (uint32_t i = 0; i < 4; i++) {
        const int64_t sum = (int64_t)dot(all, kind, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2) +
                            (int32_t)ptx_get32(call, instruction.operands[3].parts[i]);
        const int64_t kept = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
        results[i] = (uint32_t)(instruction.c ? kept : sum);
    }
    for (uint32_t i = 0; i < 4; i++) {
        ptx_set(call, instruction.operands[0].parts[i], results[i], 4);
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
    instruction.a = to_f16;
    instruction.run = a.integer ? run_mma_integers : run_mma_floats;
    return true;
}

bool ptx_decode_matrix(ptx_decoder &decoder) {
    return decode_move(decoder) || decode_mma(decoder);
}
