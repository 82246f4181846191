/* Conversions: cvt, and cvta between address spaces. */
#include "ptx.h"

#include <cmath>

/* c of an instruction */
enum { FTZ = 1, SAT = 2, SATFINITE = 4, RELU = 8 };

static bool format_of(const ptx_type *type, ptx_format *format) {
    static const struct {
        const char *name;
        ptx_format format;
    } ROWS[] = {{"f16", PTX_FORMAT_F16},     {"f16x2", PTX_FORMAT_F16},   {"bf16", PTX_FORMAT_BF16},
                {"bf16x2", PTX_FORMAT_BF16}, {"tf32", PTX_FORMAT_TF32},   {"e4m3", PTX_FORMAT_E4M3},
                {"e4m3x2", PTX_FORMAT_E4M3}, {"e5m2x2", PTX_FORMAT_E5M2}, {"e5m2", PTX_FORMAT_E5M2}};
    for (const auto &row : ROWS) {
        if (ptx_is(type, row.name)) {
            *format = row.format;
            return true;
        }
    }
    return false;
}

static float flush(float x) {
    return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x;
}

/* ---- to and from formats narrower than f32 ---- */

static uint32_t narrow(const ptx_instruction &instruction, float x, ptx_format format) {
    if (instruction.c & RELU && x < 0) {
        x = 0.0f;
    }
    const bool saturate = instruction.c & SATFINITE;
    return ptx_narrow(x, format, (ptx_rounding)instruction.a, saturate);
}

static void run_narrow(ptx_call &call, const ptx_instruction &instruction) {
    ptx_format format = PTX_FORMAT_F16;
    format_of(instruction.type, &format);
    float x = ptx_get_float(call, instruction.operands[1]);
    if (instruction.c & SAT) {
        x = x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
    }
    const int unused =
        ptx_is(instruction.type, "tf32") ? 13 : 0; /* tf32 lies in the upper bits of a register */
    ptx_set(call, instruction.operands[0], narrow(instruction, x, format) << unused, instruction.type->bytes);
}

/* The first operand goes to the upper half. */
static void run_narrow_pair(ptx_call &call, const ptx_instruction &instruction) {
    ptx_format format = PTX_FORMAT_F16;
    format_of(instruction.type, &format);
    const uint32_t high = narrow(instruction, ptx_get_float(call, instruction.operands[1]), format);
    const uint32_t low = narrow(instruction, ptx_get_float(call, instruction.operands[2]), format);
    const int bytes = instruction.type->bytes;
    ptx_set(call, instruction.operands[0], high << 4 * bytes | low, bytes);
}

/* To the nearest f16 or bf16. */
static void run_pack_f16(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t high = ptx_to_f16(ptx_get_float(call, instruction.operands[1]));
    const uint32_t low = ptx_to_f16(ptx_get_float(call, instruction.operands[2]));
    ptx_set(call, instruction.operands[0], high << 16 | low, 4);
}

static void run_pack_bf16(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t high = ptx_to_bf16(ptx_get_float(call, instruction.operands[1]));
    const uint32_t low = ptx_to_bf16(ptx_get_float(call, instruction.operands[2]));
    ptx_set(call, instruction.operands[0], high << 16 | low, 4);
}

static void run_widen(ptx_call &call, const ptx_instruction &instruction) {
    ptx_format format = PTX_FORMAT_F16;
    format_of(instruction.from, &format);
    const float value = ptx_widen((uint32_t)ptx_get(call, instruction.operands[1], 2), format);
    ptx_set_float(call, instruction.operands[0], value);
}

/* Between pairs: f16x2 and the formats of eight bits. */
static void run_pair(ptx_call &call, const ptx_instruction &instruction) {
    ptx_format from = PTX_FORMAT_F16, to = PTX_FORMAT_F16;
    format_of(instruction.from, &from);
    format_of(instruction.type, &to);
    const int from_bits = 4 * instruction.from->bytes, to_bits = 4 * instruction.type->bytes;
    const uint32_t pair = ptx_get32(call, instruction.operands[1]);
    const uint32_t mask = ((uint32_t)1 << from_bits) - 1;
    const uint32_t low = narrow(instruction, ptx_widen(pair & mask, from), to);
    const uint32_t high = narrow(instruction, ptx_widen(pair >> from_bits & mask, from), to);
    ptx_set(call, instruction.operands[0], high << to_bits | low, instruction.type->bytes);
}

/* ---- the rest, one number to one number ---- */

static double read_floating(const ptx_call &call, const ptx_instruction &instruction) {
    const ptx_type *type = instruction.from;
    const uint64_t bits = ptx_get(call, instruction.operands[1], type->bytes);
    if (type->bytes == 8) {
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    if (type->bytes == 4) {
        const float value = ptx_float((uint32_t)bits);
        return instruction.c & FTZ ? flush(value) : value;
    }
    return type->name[0] == 'b' ? ptx_from_bf16((uint32_t)bits) : ptx_from_f16((uint32_t)bits);
}

static double to_whole(double value, int64_t rounding) {
    switch (rounding) {
    case PTX_ZERO:
        return std::trunc(value);
    case PTX_DOWN:
        return std::floor(value);
    case PTX_UP:
        return std::ceil(value);
    default:
        return std::nearbyint(value);
    }
}

/* What is out of range becomes the nearest number in it, NaN zero. */
static void run_to_integer(ptx_call &call, const ptx_instruction &instruction) {
    const double value = to_whole(read_floating(call, instruction), instruction.a);
    const int bits = 8 * instruction.type->bytes;
    const bool is_signed = instruction.type->kind == PTX_SIGNED;
    const double end = std::ldexp(1.0, is_signed ? bits - 1 : bits), begin = is_signed ? -end : 0.0;
    uint64_t result = 0;
    if (value >= end) {
        result = is_signed ? ((uint64_t)1 << (bits - 1)) - 1 : ~(uint64_t)0;
    } else if (value <= begin) {
        result = is_signed ? (uint64_t)1 << (bits - 1) : 0;
    } else if (value == value) {
        result = is_signed ? (uint64_t)(int64_t)value : (uint64_t)value;
    }
    ptx_set(call, instruction.operands[0], result, instruction.type->bytes);
}

static void write_floating(ptx_call &call, const ptx_instruction &instruction, double value) {
    if (instruction.c & SAT) {
        value = value > 0 ? (value < 1 ? value : 1.0) : 0.0;
    }
    if (instruction.type->bytes == 8) {
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        ptx_set(call, instruction.operands[0], bits, 8);
    } else {
        float result = (float)value;
        if (instruction.a == PTX_ZERO && std::fabs((double)result) > std::fabs(value)) {
            result = std::nextafter(result, 0.0f);
        }
        ptx_set_float(call, instruction.operands[0], instruction.c & FTZ ? flush(result) : result);
    }
}

static void run_from_integer(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.from->bytes;
    const uint64_t bits = ptx_get(call, instruction.operands[1], bytes);
    const bool is_signed = instruction.from->kind == PTX_SIGNED;
    const int64_t value = ptx_sign_extend(bits, bytes);
    ptx_format format;
    if (bytes == 8 && instruction.type->bytes == 4) { /* rounded once */
        ptx_set_float(call, instruction.operands[0], is_signed ? (float)value : (float)bits);
    } else if (format_of(instruction.type,
                         &format)) { /* whole numbers that f32 rounds are too large anyway */
        const float whole = is_signed ? (float)value : (float)bits;
        ptx_set(call, instruction.operands[0], narrow(instruction, whole, format), 2);
    } else {
        write_floating(call, instruction, is_signed ? (double)value : (double)bits);
    }
}

static void run_floating(ptx_call &call, const ptx_instruction &instruction) {
    const double value = read_floating(call, instruction);
    write_floating(call, instruction, instruction.b ? to_whole(value, instruction.a) : value);
}

static void run_integer(ptx_call &call, const ptx_instruction &instruction) {
    const int from = instruction.from->bytes, to = instruction.type->bytes;
    const uint64_t bits = ptx_get(call, instruction.operands[1], from);
    int64_t value = instruction.from->kind == PTX_SIGNED ? ptx_sign_extend(bits, from) : (int64_t)bits;
    if (instruction.c & SAT && from > to) {
        const bool is_signed = instruction.type->kind == PTX_SIGNED;
        const int64_t end = (int64_t)1 << (8 * to - (is_signed ? 1 : 0)), begin = is_signed ? -end : 0;
        value = value >= end ? end - 1 : value < begin ? begin : value;
    }
    ptx_set(call, instruction.operands[0], (uint64_t)value, to);
}

/* ---- decoding ---- */

static void take_rounding(ptx_decoder &decoder) {
    static const ptx_rounding ROUNDINGS[] = {PTX_NEAREST_EVEN, PTX_NEAREST_AWAY, PTX_ZERO, PTX_DOWN, PTX_UP};
    ptx_instruction &instruction = *decoder.instruction;
    const int plain = ptx_take_choice(decoder, "rn rna rz rm rp");
    const int whole = ptx_take_choice(decoder, "rni . rzi rmi rpi");
    instruction.b = whole >= 0;
    instruction.a = ROUNDINGS[whole >= 0 ? whole : plain >= 0 ? plain : 0];
}

static void choose_floating(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    ptx_format format;
    const bool to_narrow = format_of(instruction.type, &format),
               from_narrow = format_of(instruction.from, &format);
    const bool pair = strstr(instruction.type->name, "x2") != nullptr;
    const bool from_pair = strstr(instruction.from->name, "x2") != nullptr;
    const bool from_f32 = ptx_is(instruction.from, "f32");
    if (pair && from_f32) {
        ptx_count(decoder, 3, -1);
        const bool plain = instruction.a == PTX_NEAREST_EVEN && instruction.c == 0;
        instruction.run = plain && ptx_is(instruction.type, "f16x2")    ? run_pack_f16
                          : plain && ptx_is(instruction.type, "bf16x2") ? run_pack_bf16
                                                                        : run_narrow_pair;
    } else if (pair && from_pair) {
        instruction.run = run_pair;
    } else if (to_narrow && !pair && from_f32) {
        instruction.run = run_narrow;
    } else if (from_narrow && !from_pair && ptx_is(instruction.type, "f32")) {
        instruction.run = run_widen;
    } else if (!to_narrow && !from_pair) {
        instruction.run = run_floating;
    } else {
        ptx_unknown(decoder, "types not supported");
    }
}

static void run_cvta(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    const uint64_t from = ptx_get(call, instruction.operands[1], bytes);
    uint64_t result = from;
    if (instruction.b) { /* shared memory; to its window or back */
        result = instruction.a ? (uint64_t)emu_shared_address((const void *)from)
                               : (uint64_t)(uintptr_t)emu_shared_pointer((uint32_t)from);
    }
    ptx_set(call, instruction.operands[0], result, bytes);
}

bool ptx_decode_convert(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name == "cvta") {
        instruction.a = ptx_take(decoder, "to");
        instruction.b = ptx_take_space(decoder) >= PTX_SHARED_BLOCK;
        instruction.type = ptx_take_type(decoder);
        ptx_count(decoder, 2, -1);
        instruction.run = run_cvta;
        return true;
    }
    if (decoder.name != "cvt") {
        return false;
    }
    take_rounding(decoder);
    instruction.c = (ptx_take(decoder, "ftz") ? FTZ : 0) | (ptx_take(decoder, "sat") ? SAT : 0) |
                    (ptx_take(decoder, "satfinite") ? SATFINITE : 0) | (ptx_take(decoder, "relu") ? RELU : 0);
    instruction.type = ptx_take_type(decoder);
    instruction.from = ptx_take_type(decoder);
    ptx_count(decoder, 2, 3);
    const bool to_floating = instruction.type->kind == PTX_FLOATING;
    const bool from_floating = instruction.from->kind == PTX_FLOATING;
    if (to_floating && from_floating) {
        choose_floating(decoder);
    } else if (to_floating) {
        instruction.run = run_from_integer;
    } else {
        instruction.run = from_floating ? run_to_integer : run_integer;
    }
    return true;
}
