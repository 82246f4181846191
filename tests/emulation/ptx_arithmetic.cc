/* Arithmetic, logic, comparisons and moves between registers. */
#include "ptx.h"

#include <algorithm>
#include <cmath>

/* ---- integers: all are computed in 64 bits and cut off ---- */

enum {
    ADD,
    SUB,
    MUL_LO,
    MUL_HI,
    MUL_WIDE,
    MAD_LO,
    MAD_HI,
    MAD_WIDE,
    DIV,
    REM,
    MIN,
    MAX,
    NEG,
    ABS,
    AND,
    OR,
    XOR,
    NOT,
    CNOT,
    SHL,
    SHR,
    FMA
};

static int64_t high_half(const ptx_instruction &instruction, int64_t x, int64_t y) {
    const int bits = 8 * instruction.type->bytes;
    if (instruction.type->kind == PTX_SIGNED) {
        return (int64_t)((__int128)x * y >> bits);
    }
    return (int64_t)((unsigned __int128)(uint64_t)x * (uint64_t)y >> bits);
}

static int64_t divide(const ptx_instruction &instruction, int64_t x, int64_t y) {
    if (y == 0) {
        ptx_fail(instruction, "division by zero");
    }
    if (instruction.type->kind == PTX_SIGNED) {
        return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
    }
    return (int64_t)((uint64_t)x / (uint64_t)y);
}

static int64_t shift(const ptx_instruction &instruction, int64_t x, uint64_t by) {
    const uint64_t bits = 8 * (uint64_t)instruction.type->bytes;
    if (instruction.a == SHL) {
        return by >= bits ? 0 : (int64_t)((uint64_t)x << by);
    }
    if (instruction.type->kind == PTX_SIGNED) {
        return x >> (by >= bits ? bits - 1 : by);
    }
    return by >= bits ? 0 : (int64_t)((uint64_t)x >> by);
}

static int64_t combine(const ptx_instruction &instruction, int64_t x, int64_t y, int64_t z) {
    const bool is_signed = instruction.type->kind == PTX_SIGNED;
    const bool less = is_signed ? x < y : (uint64_t)x < (uint64_t)y;
    const uint64_t a = (uint64_t)x, b = (uint64_t)y;
    switch (instruction.a) {
    case ADD:
        return (int64_t)(a + b);
    case SUB:
        return (int64_t)(a - b);
    case MUL_LO:
    case MUL_WIDE:
        return (int64_t)(a * b);
    case MUL_HI:
        return high_half(instruction, x, y);
    case MAD_LO:
    case MAD_WIDE:
        return (int64_t)(a * b + (uint64_t)z);
    case MAD_HI:
        return (int64_t)((uint64_t)high_half(instruction, x, y) + (uint64_t)z);
    case DIV:
        return divide(instruction, x, y);
    case REM:
        return (int64_t)(a - (uint64_t)divide(instruction, x, y) * b);
    case MIN:
        return less ? x : y;
    case MAX:
        return less ? y : x;
    case NEG:
        return (int64_t)(0 - a);
    case ABS:
        return x < 0 ? (int64_t)(0 - a) : x;
    case AND:
        return x & y;
    case OR:
        return x | y;
    case XOR:
        return x ^ y;
    case NOT:
        return ~x;
    case CNOT:
        return x == 0;
    default:
        return 0;
    }
}

static int64_t read_integer(const ptx_call &call, const ptx_instruction &instruction, size_t index,
                            int bytes) {
    if (index >= instruction.operands.size()) {
        return 0;
    }
    const uint64_t value = ptx_get(call, instruction.operands[index], bytes);
    return instruction.type->kind == PTX_SIGNED ? ptx_sign_extend(value, bytes) : (int64_t)value;
}

static void run_integer(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    const bool wide = instruction.a == MUL_WIDE || instruction.a == MAD_WIDE;
    const int64_t x = read_integer(call, instruction, 1, bytes),
                  y = read_integer(call, instruction, 2, bytes);
    const int64_t z = read_integer(call, instruction, 3, wide ? 2 * bytes : bytes);
    ptx_set(call, instruction.operands[0], (uint64_t)combine(instruction, x, y, z), wide ? 2 * bytes : bytes);
}

static void run_predicate(ptx_call &call, const ptx_instruction &instruction) {
    const bool x = ptx_get(call, instruction.operands[1], 1) & 1;
    const bool y = instruction.operands.size() > 2 && (ptx_get(call, instruction.operands[2], 1) & 1);
    bool result = !x;
    result = instruction.a == AND   ? x && y
             : instruction.a == OR  ? x || y
             : instruction.a == XOR ? x != y
                                    : result;
    ptx_set(call, instruction.operands[0], result, 1);
}

static void run_shift(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    const int64_t x = read_integer(call, instruction, 1, bytes);
    const int64_t result = shift(instruction, x, ptx_get32(call, instruction.operands[2]));
    ptx_set(call, instruction.operands[0], (uint64_t)result, bytes);
}

/* ---- floating point ---- */

/* Flags of an instruction, in c. */
enum { FTZ = 1, SAT = 2, RELU = 4, NAN_WINS = 8 };

static float flush(float x) {
    return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x;
}

/* min and max ignore a NaN unless told otherwise, and take -0 for less than +0. */
template <typename NUMBER> static NUMBER smaller(NUMBER x, NUMBER y, bool nan_wins) {
    if (std::isnan(x) || std::isnan(y)) {
        return nan_wins ? (NUMBER)NAN : std::isnan(x) ? y : x;
    }
    return x < y || (x == y && std::signbit(x)) ? x : y;
}

/* In the type itself: what rounds must not round twice. */
template <typename NUMBER>
static NUMBER calculate(const ptx_instruction &instruction, NUMBER x, NUMBER y, NUMBER z) {
    const bool nan_wins = instruction.c & NAN_WINS;
    switch (instruction.a) {
    case ADD:
        return x + y;
    case SUB:
        return x - y;
    case MUL_LO:
        return x * y;
    case FMA:
        return std::fma(x, y, z);
    case DIV:
        return x / y;
    case MIN:
        return smaller(x, y, nan_wins);
    case MAX:
        return -smaller(-x, -y, nan_wins);
    case NEG:
        return -x;
    default:
        return std::fabs(x);
    }
}

static void run_f32(ptx_call &call, const ptx_instruction &instruction) {
    float values[3] = {};
    for (size_t i = 1; i < instruction.operands.size(); i++) {
        const float value = ptx_get_float(call, instruction.operands[i]);
        values[i - 1] = instruction.c & FTZ ? flush(value) : value;
    }
    float result = calculate(instruction, values[0], values[1], values[2]);
    result = instruction.c & FTZ ? flush(result) : result;
    if (instruction.c & SAT) {
        result = result > 0 ? (result < 1 ? result : 1.0f) : 0.0f;
    }
    const bool sign_only = instruction.a == NEG || instruction.a == ABS;
    ptx_set(call, instruction.operands[0], std::isnan(result) && !sign_only ? 0x7fffffffu : ptx_bits(result),
            4);
}

static void run_f64(ptx_call &call, const ptx_instruction &instruction) {
    double values[3] = {};
    for (size_t i = 1; i < instruction.operands.size(); i++) {
        const uint64_t bits = ptx_get(call, instruction.operands[i], 8);
        memcpy(&values[i - 1], &bits, sizeof bits);
    }
    const double result = calculate(instruction, values[0], values[1], values[2]);
    uint64_t bits;
    memcpy(&bits, &result, sizeof bits);
    ptx_set(call, instruction.operands[0], bits, 8);
}

/* f16, bf16: one or two in a register. A double holds a product exactly and a sum nearly always; rounded to
 * odd, what does not fit a float leaves the last bit set, so that rounding again gives the right number. */
static float to_odd(double value) {
    const float result = (float)value;
    if ((double)result == value || !std::isfinite(value)) {
        return result;
    }
    const uint32_t bits = ptx_bits(result);
    const bool away = std::fabs((double)result) > std::fabs(value);
    return ptx_float((away ? bits - 1 : bits) | 1);
}

static float calculate_half(const ptx_instruction &instruction, float x, float y, float z) {
    switch (instruction.a) {
    case ADD:
        return to_odd((double)x + y);
    case SUB:
        return to_odd((double)x - y);
    case MUL_LO:
        return x * y; /* exact, unless it is subnormal */
    case FMA:
        return to_odd((double)x * y + z);
    default:
        return calculate(instruction, x, y, z);
    }
}

static uint32_t run_half(const ptx_instruction &instruction, const uint32_t *from, bool is_bf16) {
    float values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = is_bf16 ? ptx_from_bf16(from[i]) : ptx_from_f16(from[i]);
    }
    float value = calculate_half(instruction, values[0], values[1], values[2]);
    if (instruction.c & SAT) {
        value = value > 0 ? std::min(value, 1.0f) : 0.0f;
    }
    if (instruction.c & RELU && value <= 0) {
        value = 0.0f;
    }
    return is_bf16 ? ptx_to_bf16(value) : ptx_to_f16(value);
}

static void run_halves(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    uint32_t registers[3] = {}, result = 0;
    for (size_t i = 1; i < instruction.operands.size(); i++) {
        registers[i - 1] = (uint32_t)ptx_get(call, instruction.operands[i], bytes);
    }
    for (int part = 0; part < bytes / 2; part++) {
        uint32_t from[3];
        for (int i = 0; i < 3; i++) {
            from[i] = registers[i] >> 16 * part & 0xffffu;
        }
        result |= run_half(instruction, from, instruction.type->name[0] == 'b') << 16 * part;
    }
    ptx_set(call, instruction.operands[0], result, bytes);
}

/* The most frequent ones: pairs, no modifiers. */
template <int OPERATION, bool IS_BF16>
static void run_pair(ptx_call &call, const ptx_instruction &instruction) {
    uint32_t registers[3] = {}, result = 0;
    for (int i = 0; i < (OPERATION == FMA ? 3 : 2); i++) {
        registers[i] = ptx_get32(call, instruction.operands[(size_t)i + 1]);
    }
    for (int half = 0; half < 2; half++) {
        float values[3];
        for (int i = 0; i < 3; i++) {
            const uint32_t bits = registers[i] >> 16 * half & 0xffffu;
            values[i] = IS_BF16 ? ptx_from_bf16(bits) : ptx_from_f16(bits);
        }
        const double x = values[0], y = values[1];
        const float value = OPERATION == MUL_LO ? values[0] * values[1]
                            : OPERATION == ADD  ? to_odd(x + y)
                            : OPERATION == SUB  ? to_odd(x - y)
                                                : to_odd(x * y + values[2]);
        result |= (IS_BF16 ? ptx_to_bf16(value) : ptx_to_f16(value)) << 16 * half;
    }
    ptx_set(call, instruction.operands[0], result, 4);
}

template <bool IS_BF16> static ptx_function pair_function(int64_t operation) {
    return operation == MUL_LO ? run_pair<MUL_LO, IS_BF16>
           : operation == ADD  ? run_pair<ADD, IS_BF16>
           : operation == SUB  ? run_pair<SUB, IS_BF16>
           : operation == FMA  ? run_pair<FMA, IS_BF16>
                               : run_halves;
}

static void run_half_signs(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    const uint32_t signs = bytes == 4 ? 0x80008000u : 0x8000u;
    const uint32_t from = (uint32_t)ptx_get(call, instruction.operands[1], bytes);
    ptx_set(call, instruction.operands[0], instruction.a == NEG ? from ^ signs : from & ~signs, bytes);
}

/* ---- functions of one number ---- */

static float approximate(int64_t function, float x) {
    switch (function) {
    case 0:
        return std::exp2(x);
    case 1:
        return std::log2(x);
    case 2:
        return 1.0f / x;
    case 3:
        return 1.0f / std::sqrt(x);
    case 4:
        return std::sqrt(x);
    case 5:
        return std::sin(x);
    case 6:
        return std::cos(x);
    default:
        return std::tanh(x);
    }
}

/* The device's tables are not known: the nearest float stands for them. */
static void run_approximate(ptx_call &call, const ptx_instruction &instruction) {
    float x = ptx_get_float(call, instruction.operands[1]);
    x = instruction.c & FTZ ? flush(x) : x;
    const float y = approximate(instruction.a, x);
    ptx_set_float(call, instruction.operands[0], instruction.c & FTZ ? flush(y) : y);
}

static bool decode_approximate(ptx_decoder &decoder) {
    static const char *const NAMES[] = {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"};
    for (int i = 0; i < 8; i++) {
        if (decoder.name != NAMES[i]) {
            continue;
        }
        if (ptx_take_choice(decoder, "approx rn") < 0) {
            ptx_unknown(decoder, "neither .approx nor .rn");
        }
        decoder.instruction->a = i;
        decoder.instruction->c = ptx_take(decoder, "ftz") ? FTZ : 0;
        if (!ptx_take(decoder, "f32")) {
            ptx_unknown(decoder, "type not supported");
        }
        ptx_count(decoder, 2, -1);
        decoder.instruction->run = run_approximate;
        return true;
    }
    return false;
}

/* ---- bits ---- */

static void run_bits(ptx_call &call, const ptx_instruction &instruction) {
    const int bits = 8 * instruction.type->bytes;
    const uint64_t x = ptx_get(call, instruction.operands[1], instruction.type->bytes);
    uint64_t result = 0;
    switch (instruction.a) {
    case 0: /* popc */
        result = (uint64_t)__builtin_popcountll(x);
        break;
    case 1: /* clz */
        result = x ? (uint64_t)(__builtin_clzll(x) - (64 - bits)) : (uint64_t)bits;
        break;
    default: /* brev */
        for (int i = 0; i < bits; i++) {
            result |= (x >> i & 1) << (bits - 1 - i);
        }
        break;
    }
    ptx_set(call, instruction.operands[0], result, instruction.a == 2 ? instruction.type->bytes : 4);
}

static void run_extract(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes, bits = 8 * bytes;
    const bool is_signed = instruction.type->kind == PTX_SIGNED;
    const uint64_t x = ptx_get(call, instruction.operands[1], bytes);
    const int start = (int)(ptx_get32(call, instruction.operands[2]) & 0xff);
    const int length = (int)(ptx_get32(call, instruction.operands[3]) & 0xff);
    const int last = start + length - 1 < bits - 1 ? start + length - 1 : bits - 1;
    const uint64_t fill = is_signed && length ? x >> last & 1 : 0;
    uint64_t result = 0;
    for (int i = 0; i < bits; i++) {
        result |= (i < length && start + i < bits ? x >> (start + i) & 1 : fill) << i;
    }
    ptx_set(call, instruction.operands[0], result, bytes);
}

static void run_insert(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes, bits = 8 * bytes;
    const uint64_t from = ptx_get(call, instruction.operands[1], bytes);
    uint64_t into = ptx_get(call, instruction.operands[2], bytes);
    const int start = (int)(ptx_get32(call, instruction.operands[3]) & 0xff);
    const int length = (int)(ptx_get32(call, instruction.operands[4]) & 0xff);
    for (int i = 0; i < length && start + i < bits; i++) {
        const uint64_t bit = (uint64_t)1 << (start + i);
        into = (into & ~bit) | (i < 64 && from >> i & 1 ? bit : 0);
    }
    ptx_set(call, instruction.operands[0], into, bytes);
}

static void run_funnel(ptx_call &call, const ptx_instruction &instruction) {
    const uint64_t pair =
        (uint64_t)ptx_get32(call, instruction.operands[2]) << 32 | ptx_get32(call, instruction.operands[1]);
    uint32_t by = ptx_get32(call, instruction.operands[3]);
    by = instruction.b ? by & 31 : by < 32 ? by : 32;
    const uint64_t result = instruction.a ? pair >> by : pair << by >> 32;
    ptx_set(call, instruction.operands[0], (uint32_t)result, 4);
}

static void run_logic(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t x = ptx_get32(call, instruction.operands[1]), y = ptx_get32(call, instruction.operands[2]);
    const uint32_t z = ptx_get32(call, instruction.operands[3]);
    const uint32_t table = ptx_get32(call, instruction.operands[4]);
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; i++) { /* row i of the truth table: where x, y, z are the bits of i */
        if (table >> i & 1) {
            result |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
        }
    }
    ptx_set(call, instruction.operands[0], result, 4);
}

/* Which byte of the pair each byte of the result is, in its general mode and the others. */
static uint32_t permutation(int64_t mode, uint32_t selector) {
    const uint32_t n = selector & 3;
    switch (mode) {
    case 0: /* f4e */
        return n | (n + 1) << 4 | (n + 2) << 8 | (n + 3) << 12;
    case 1: /* b4e */
        return n | ((n + 7) & 7) << 4 | ((n + 6) & 7) << 8 | ((n + 5) & 7) << 12;
    case 2: /* rc8 */
        return n * 0x1111u;
    case 3: /* ecl */
        return (n > 0 ? n : 0) | (n > 1 ? n : 1) << 4 | (n > 2 ? n : 2) << 8 | 3u << 12;
    case 4: /* ecr */
        return 0 | (n < 1 ? n : 1) << 4 | (n < 2 ? n : 2) << 8 | n << 12;
    case 5: /* rc16 */
        return n & 1 ? 0x3232u : 0x1010u;
    default:
        return selector;
    }
}

static void run_permute(ptx_call &call, const ptx_instruction &instruction) {
    const uint64_t pair =
        (uint64_t)ptx_get32(call, instruction.operands[2]) << 32 | ptx_get32(call, instruction.operands[1]);
    const uint32_t selector = permutation(instruction.a, ptx_get32(call, instruction.operands[3]));
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t which = selector >> 4 * i & 15;
        uint32_t byte = (uint32_t)(pair >> 8 * (which & 7)) & 0xff;
        byte = which & 8 ? (byte & 0x80 ? 0xff : 0) : byte; /* its sign only */
        result |= byte << 8 * i;
    }
    ptx_set(call, instruction.operands[0], result, 4);
}

/* dp4a, dp2a: each operand's signedness is its own. */
static void run_dot(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t x = ptx_get32(call, instruction.operands[1]), y = ptx_get32(call, instruction.operands[2]);
    const bool x_signed = instruction.type->kind == PTX_SIGNED,
               y_signed = instruction.from->kind == PTX_SIGNED;
    const bool fours = instruction.a == 4;
    uint32_t sum = ptx_get32(call, instruction.operands[3]);
    for (int i = 0; i < (fours ? 4 : 2); i++) {
        const uint32_t left = fours ? x >> 8 * i & 0xff : x >> 16 * i & 0xffff;
        const uint32_t right = y >> 8 * (fours ? i : i + (int)instruction.b * 2) & 0xff;
        const int64_t a = x_signed ? ptx_sign_extend(left, fours ? 1 : 2) : (int64_t)left;
        const int64_t b = y_signed ? ptx_sign_extend(right, 1) : (int64_t)right;
        sum += (uint32_t)(a * b);
    }
    ptx_set(call, instruction.operands[0], sum, 4);
}

static bool decode_dot(ptx_decoder &decoder) {
    if (decoder.name != "dp4a" && decoder.name != "dp2a") {
        return false;
    }
    ptx_instruction &instruction = *decoder.instruction;
    instruction.a = decoder.name == "dp4a" ? 4 : 2;
    instruction.b = instruction.a == 2 ? ptx_take_choice(decoder, "lo hi") : 0;
    instruction.type = ptx_take_type(decoder);
    instruction.from = ptx_take_type(decoder);
    ptx_count(decoder, 4, -1);
    instruction.run = run_dot;
    return true;
}

static bool decode_bits(ptx_decoder &decoder) {
    static const struct {
        const char *name;
        int64_t a;
        int operands;
        ptx_function run;
    } ROWS[] = {
        {"popc", 0, 2, run_bits},   {"clz", 1, 2, run_bits},     {"brev", 2, 2, run_bits},
        {"bfe", 0, 4, run_extract}, {"bfi", 0, 5, run_insert},   {"lop3", 0, 5, run_logic},
        {"shf", 0, 4, run_funnel},  {"prmt", 0, 4, run_permute},
    };
    for (const auto &row : ROWS) {
        if (decoder.name != row.name) {
            continue;
        }
        decoder.instruction->run = row.run;
        decoder.instruction->a = row.a;
        if (row.run == run_permute) {
            decoder.instruction->a = ptx_take_choice(decoder, "f4e b4e rc8 ecl ecr rc16");
        } else if (row.run == run_funnel) {
            decoder.instruction->a = ptx_take_choice(decoder, "l r");
            decoder.instruction->b = ptx_take_choice(decoder, "clamp wrap");
        }
        decoder.instruction->type = ptx_take_type(decoder);
        ptx_count(decoder, row.operands, -1);
        return true;
    }
    return false;
}

/* ---- comparisons ---- */

enum { EQ, NE, LT, LE, GT, GE, LO, LS, HI, HS, EQU, NEU, LTU, LEU, GTU, GEU, NUM, UNORDERED };

static bool compare_ordered(int64_t comparison, int order) {
    switch (comparison) {
    case EQ:
    case EQU:
        return order == 0;
    case NE:
    case NEU:
        return order != 0;
    case LT:
    case LO:
    case LTU:
        return order < 0;
    case LE:
    case LS:
    case LEU:
        return order <= 0;
    case GT:
    case HI:
    case GTU:
        return order > 0;
    case GE:
    case HS:
    case GEU:
        return order >= 0;
    default:
        return comparison == NUM;
    }
}

static double floating(uint64_t bits, const ptx_type *type) {
    if (type->bytes == 8) {
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    if (type->bytes == 4) {
        return ptx_float((uint32_t)bits);
    }
    return type->name[0] == 'b' ? ptx_from_bf16((uint32_t)bits) : ptx_from_f16((uint32_t)bits);
}

static bool compare(const ptx_call &call, const ptx_instruction &instruction) {
    const ptx_type *type = instruction.type;
    const uint64_t x = ptx_get(call, instruction.operands[1], type->bytes);
    const uint64_t y = ptx_get(call, instruction.operands[2], type->bytes);
    if (type->kind == PTX_FLOATING) {
        const double a = floating(x, type), b = floating(y, type);
        if (std::isnan(a) || std::isnan(b)) {
            return instruction.a >= EQU && instruction.a != NUM;
        }
        return compare_ordered(instruction.a, a < b ? -1 : a > b);
    }
    if (type->kind == PTX_SIGNED) {
        const int64_t a = ptx_sign_extend(x, type->bytes), b = ptx_sign_extend(y, type->bytes);
        return compare_ordered(instruction.a, a < b ? -1 : a > b);
    }
    return compare_ordered(instruction.a, x < y ? -1 : x > y);
}

static void run_setp(ptx_call &call, const ptx_instruction &instruction) {
    const bool is = compare(call, instruction);
    bool results[2] = {is, !is};
    if (instruction.b >= 0) { /* and, or, xor with a predicate */
        const bool other = ptx_get(call, instruction.operands[3], 1) & 1;
        for (bool &result : results) {
            result = instruction.b == 0   ? result && other
                     : instruction.b == 1 ? result || other
                                          : result != other;
        }
    }
    const ptx_operand &to = instruction.operands[0];
    if (to.kind == PTX_VECTOR) {
        ptx_set(call, to.parts[0], results[0], 1);
        ptx_set(call, to.parts[1], results[1], 1);
    } else {
        ptx_set(call, to, results[0], 1);
    }
}

static void run_selp(ptx_call &call, const ptx_instruction &instruction) {
    const bool first = ptx_get(call, instruction.operands[3], 1) & 1;
    const int bytes = instruction.type->bytes;
    ptx_set(call, instruction.operands[0], ptx_get(call, instruction.operands[first ? 1 : 2], bytes), bytes);
}

static bool decode_comparison(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name == "setp") {
        instruction.a =
            ptx_take_choice(decoder, "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan");
        instruction.b = ptx_take_choice(decoder, "and or xor");
        ptx_take(decoder, "ftz");
        instruction.type = ptx_take_type(decoder);
        if (instruction.a < 0) {
            ptx_unknown(decoder, "no comparison");
        }
        ptx_count(decoder, instruction.b < 0 ? 3 : 4, -1);
        instruction.run = run_setp;
        return true;
    }
    if (decoder.name == "selp") {
        instruction.type = ptx_take_type(decoder);
        ptx_count(decoder, 4, -1);
        instruction.run = run_selp;
        return true;
    }
    return false;
}

/* ---- moves ---- */

/* Also packs {low, high} into one register and takes one apart. */
static void run_mov(ptx_call &call, const ptx_instruction &instruction) {
    const ptx_operand &to = instruction.operands[0], &from = instruction.operands[1];
    const int bytes = instruction.type->bytes;
    uint64_t value = 0;
    if (from.kind == PTX_VECTOR) {
        const int part = bytes / (int)from.parts.size();
        for (size_t i = 0; i < from.parts.size(); i++) {
            value |= ptx_get(call, from.parts[i], part) << 8 * part * (int)i;
        }
    } else {
        value = ptx_get(call, from, bytes);
    }
    if (to.kind == PTX_VECTOR) {
        const int part = bytes / (int)to.parts.size();
        for (size_t i = 0; i < to.parts.size(); i++) {
            ptx_set(call, to.parts[i], value >> 8 * part * (int)i, part);
        }
    } else {
        ptx_set(call, to, value, bytes);
    }
}

static bool decode_mov(ptx_decoder &decoder) {
    if (decoder.name != "mov") {
        return false;
    }
    decoder.instruction->type = ptx_take_type(decoder);
    ptx_count(decoder, 2, -1);
    if (decoder.instruction->type->bytes > 8) {
        ptx_unknown(decoder, "type not supported");
    }
    decoder.instruction->run = run_mov;
    return true;
}

/* ---- decoding ---- */

static void decode_floating(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    const ptx_type *type = instruction.type;
    ptx_take(decoder, "rn");
    instruction.c = (ptx_take(decoder, "ftz") ? FTZ : 0) | (ptx_take(decoder, "sat") ? SAT : 0) |
                    (ptx_take(decoder, "relu") ? RELU : 0) | (ptx_take(decoder, "NaN") ? NAN_WINS : 0);
    if (instruction.a == MAD_LO) {
        instruction.a = FMA;
    } else if (instruction.a == DIV) {
        ptx_take_choice(decoder, "approx full");
    }
    if (ptx_is(type, "f32")) {
        instruction.run = run_f32;
    } else if (ptx_is(type, "f64")) {
        instruction.run = run_f64;
    } else if (ptx_is(type, "f16") || ptx_is(type, "f16x2") || ptx_is(type, "bf16") ||
               ptx_is(type, "bf16x2")) {
        const bool signs = instruction.a == NEG || instruction.a == ABS;
        instruction.run = signs                               ? run_half_signs
                          : instruction.c || type->bytes != 4 ? run_halves
                          : ptx_is(type, "bf16x2")            ? pair_function<true>(instruction.a)
                                                              : pair_function<false>(instruction.a);
    } else {
        ptx_unknown(decoder, "type not supported");
    }
}

bool ptx_decode_arithmetic(ptx_decoder &decoder) {
    static const struct {
        const char *name;
        int operation, operands;
    } ROWS[] = {{"add", ADD, 3},   {"sub", SUB, 3}, {"mul", MUL_LO, 3}, {"mad", MAD_LO, 4}, {"fma", FMA, 4},
                {"div", DIV, 3},   {"rem", REM, 3}, {"min", MIN, 3},    {"max", MAX, 3},    {"neg", NEG, 2},
                {"abs", ABS, 2},   {"and", AND, 3}, {"or", OR, 3},      {"xor", XOR, 3},    {"not", NOT, 2},
                {"cnot", CNOT, 2}, {"shl", SHL, 3}, {"shr", SHR, 3}};
    ptx_instruction &instruction = *decoder.instruction;
    for (const auto &row : ROWS) {
        if (decoder.name != row.name) {
            continue;
        }
        instruction.a = row.operation;
        const int part =
            row.operation == MUL_LO || row.operation == MAD_LO ? ptx_take_choice(decoder, "lo hi wide") : 0;
        instruction.type = ptx_take_type(decoder);
        ptx_count(decoder, row.operands, -1);
        if (instruction.type->kind == PTX_FLOATING) {
            decode_floating(decoder);
        } else if (instruction.type->kind == PTX_PREDICATE) {
            instruction.run = run_predicate;
        } else if (row.operation == SHL || row.operation == SHR) {
            instruction.run = run_shift;
        } else {
            instruction.a += part > 0 ? part : 0;
            instruction.run = run_integer;
            if (row.operation == FMA || (part < 0 && instruction.a <= MAD_WIDE && instruction.a >= MUL_LO)) {
                ptx_unknown(decoder, "no half of the product named");
            }
        }
        return true;
    }
    return decode_approximate(decoder) || decode_bits(decoder) || decode_comparison(decoder) ||
           decode_dot(decoder) || decode_mov(decoder);
}
