/* The interpreter of inline PTX, for its own files: an asm text is parsed once into instructions
 * (ptx_parse.cc), each with a function that carries it out for one thread (the other ptx_*.cc). What is not
 * known is an error that names it; nothing is skipped. All of it follows the PTX ISA, version 8.7, whose
 * names are used. */
#ifndef SL_TESTS_EMULATION_PTX_H
#define SL_TESTS_EMULATION_PTX_H

#include "emulation.h"
#include "ptx_numbers.h"

#include <string>
#include <vector>

/* ---- types ---- */

enum ptx_class { PTX_UNTYPED, PTX_UNSIGNED, PTX_SIGNED, PTX_FLOATING, PTX_PREDICATE };

/* An instruction type: ".f16x2" is {"f16x2", PTX_FLOATING, 4}. */
struct ptx_type {
    const char *name;
    ptx_class kind;
    int bytes;
};

/* The type of that name, or none. */
const ptx_type *ptx_find_type(const std::string &name);

static inline bool ptx_is(const ptx_type *type, const char *name) {
    return type && strcmp(type->name, name) == 0;
}

/* ---- instructions ---- */

enum ptx_kind {
    PTX_ARGUMENT,  /* %3: index of the asm's operand */
    PTX_REGISTER,  /* of the text's own: index into ptx_call::registers */
    PTX_IMMEDIATE, /* value: integer, or the bits of a float */
    PTX_SPECIAL,   /* %tid.x: index: ptx_special */
    PTX_LABEL,     /* index: instruction */
    PTX_SINK,      /* _ */
    PTX_VECTOR,    /* {a, b}, a|b: parts */
    PTX_ADDRESS,   /* [parts[0] + value], and the parts that follow a comma inside */
};

enum ptx_special {
    PTX_TID_X,
    PTX_TID_Y,
    PTX_TID_Z,
    PTX_NTID_X,
    PTX_NTID_Y,
    PTX_NTID_Z,
    PTX_CTAID_X,
    PTX_CTAID_Y,
    PTX_CTAID_Z,
    PTX_NCTAID_X,
    PTX_NCTAID_Y,
    PTX_NCTAID_Z,
    PTX_LANEID,
    PTX_WARPID,
    PTX_CLUSTER_CTARANK,
    PTX_CLUSTER_NCTARANK,
    PTX_LANEMASK_EQ,
    PTX_LANEMASK_LT,
    PTX_LANEMASK_LE,
    PTX_LANEMASK_GT,
    PTX_LANEMASK_GE,
    PTX_CLOCK,
    PTX_CLOCK64,
    PTX_GLOBALTIMER,
    PTX_SPECIALS,
};

struct ptx_operand {
    ptx_kind kind;
    int index;
    int64_t value;
    bool negated;  /* !p */
    bool is_float; /* value: bits of a double, until the instruction's type is known */
    std::vector<ptx_operand> parts;
};

struct ptx_call;
struct ptx_instruction;
typedef void (*ptx_function)(ptx_call &, const ptx_instruction &);

struct ptx_instruction {
    ptx_function run;
    std::vector<ptx_operand> operands;
    int guard; /* register of the predicate, or -1 */
    bool guard_negated;
    const ptx_type *type, *from; /* from: the source's, of conversions and products */
    int64_t a, b, c, d;          /* what `run` has to know of the modifiers */
    std::string text;            /* for messages */
};

struct ptx_program {
    std::vector<ptx_instruction> instructions;
    int registers;
    std::string text;
};

/* One thread's execution of an asm statement. */
static constexpr int PTX_REGISTERS = 32;
struct ptx_call {
    const emu_operand *arguments;
    int count;
    const ptx_program *program;
    size_t next; /* instruction */
    uint64_t registers[PTX_REGISTERS];
};

/* ---- decoding: from names and modifiers to a function ---- */

/* What a decoder has before it. Modifiers are taken one by one; one that is left over is an error. */
struct ptx_decoder {
    ptx_instruction *instruction;
    std::string name;
    std::vector<std::string> modifiers; /* without dots; an empty one has been taken */
};

/* Whether the modifier is there; it counts as known then. */
bool ptx_take(ptx_decoder &decoder, const char *modifier);
/* The first of the modifiers that is a type; an error if there is none. */
const ptx_type *ptx_take_type(ptx_decoder &decoder);
/* Index of the one of `choices` (separated by blanks) that is there, or -1. */
int ptx_take_choice(ptx_decoder &decoder, const char *choices);
/* Takes those that say how memory is ordered, shared or cached, which a machine that does one thing after the
 * other need not know. */
void ptx_take_ordering(ptx_decoder &decoder);
/* Fails unless the instruction has that many operands; most < 0: exactly `least`. */
void ptx_count(ptx_decoder &decoder, int least, int most);
[[noreturn]] void ptx_unknown(const ptx_decoder &decoder, const char *why);

/* Decoders by family; false: the name is none of theirs. */
bool ptx_decode_arithmetic(ptx_decoder &decoder);
bool ptx_decode_convert(ptx_decoder &decoder);
bool ptx_decode_flow(ptx_decoder &decoder);
bool ptx_decode_memory(ptx_decoder &decoder);
bool ptx_decode_warp(ptx_decoder &decoder);
bool ptx_decode_matrix(ptx_decoder &decoder);
bool ptx_decode_async(ptx_decoder &decoder);
bool ptx_decode_bulk(ptx_decoder &decoder);
bool ptx_decode_wgmma(ptx_decoder &decoder);

/* Ends the launch with a message that names the instruction. */
[[noreturn]] __attribute__((format(printf, 2, 3))) void ptx_fail(const ptx_instruction &instruction,
                                                                 const char *format, ...);

/* Parses, or fails with emu_fail. */
void ptx_parse(const char *text, int arguments, ptx_program *program);

/* ---- values ---- */

uint64_t ptx_special_value(int special);

/* Zero-extended; immediates as they are. */
static inline uint64_t ptx_get(const ptx_call &call, const ptx_operand &operand, int bytes) {
    uint64_t value = 0;
    switch (operand.kind) {
    case PTX_ARGUMENT: {
        const emu_operand &argument = call.arguments[operand.index];
        memcpy(&value, argument.at, argument.bytes < (uint32_t)bytes ? argument.bytes : (uint32_t)bytes);
        return value;
    }
    case PTX_REGISTER:
        memcpy(&value, &call.registers[operand.index], (size_t)bytes);
        return operand.negated ? !value : value;
    case PTX_IMMEDIATE:
        memcpy(&value, &operand.value, (size_t)bytes);
        return value;
    default:
        value = ptx_special_value(operand.index);
        return value;
    }
}

static inline void ptx_set(ptx_call &call, const ptx_operand &operand, uint64_t value, int bytes) {
    if (operand.kind == PTX_ARGUMENT) {
        const emu_operand &argument = call.arguments[operand.index];
        memcpy(argument.at, &value, argument.bytes < (uint32_t)bytes ? argument.bytes : (uint32_t)bytes);
    } else if (operand.kind == PTX_REGISTER) {
        call.registers[operand.index] = 0;
        memcpy(&call.registers[operand.index], &value, (size_t)bytes);
    }
}

static inline int64_t ptx_sign_extend(uint64_t value, int bytes) {
    const int unused = 64 - 8 * bytes;
    return (int64_t)(value << unused) >> unused;
}

static inline int64_t ptx_get_signed(const ptx_call &call, const ptx_operand &operand, int bytes) {
    return ptx_sign_extend(ptx_get(call, operand, bytes), bytes);
}

static inline uint32_t ptx_get32(const ptx_call &call, const ptx_operand &operand) {
    if (operand.kind == PTX_ARGUMENT && call.arguments[operand.index].bytes == 4) { /* nearly always */
        uint32_t value;
        memcpy(&value, call.arguments[operand.index].at, sizeof value);
        return value;
    }
    return (uint32_t)ptx_get(call, operand, 4);
}

static inline float ptx_get_float(const ptx_call &call, const ptx_operand &operand) {
    return ptx_float(ptx_get32(call, operand));
}

static inline void ptx_set_float(ptx_call &call, const ptx_operand &operand, float value) {
    ptx_set(call, operand, ptx_bits(value), 4);
}

/* ---- memory ---- */

enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED_BLOCK, PTX_SHARED_CLUSTER, PTX_CONSTANT };

/* Takes .global, .shared, .shared::cta, .shared::cluster ... */
ptx_space ptx_take_space(ptx_decoder &decoder);
/* Where operand [..] points; fails unless aligned. */
unsigned char *ptx_pointer(const ptx_call &call, const ptx_instruction &instruction,
                           const ptx_operand &operand, ptx_space space, size_t alignment);

/* An address in shared memory as bulk copies and products swizzle it (PTX ISA, "Swizzling modes"): pieces of
 * 16 bytes of a row of `bytes` (32, 64, 128; 0: not at all) change places, by which of the rows of 128 bytes
 * it is. */
static inline uint32_t ptx_swizzled(uint32_t address, uint32_t bytes) {
    return bytes == 0 ? address : address ^ ((address >> 7 & (bytes / 16 - 1)) << 4);
}

#endif
