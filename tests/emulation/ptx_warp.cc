/* What the lanes of a warp do together, but for matrices. */
#include "ptx.h"

static const void *meet(uint32_t mask, const void *own, uint32_t bytes, const ptx_instruction &instruction) {
    const emu_group group = {EMU_LANES, mask};
    if (!(mask >> emu_self()->lane & 1)) {
        ptx_fail(instruction, "lane %u is not in its mask %#x", emu_self()->lane, mask);
    }
    return emu_gather(group, own, bytes, instruction.text.c_str());
}

/* ---- shuffles ---- */

enum { UP, DOWN, BUTTERFLY, INDEX };

/* value, lane or distance, the segment's clamp and mask, lanes */
static void run_shfl(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const uint32_t lane = emu_self()->lane, own = ptx_get32(call, operands[1]);
    const uint32_t b = ptx_get32(call, operands[2]) & 31, c = ptx_get32(call, operands[3]);
    const uint32_t mask = ptx_get32(call, operands[4]);
    const uint32_t *all = (const uint32_t *)meet(mask, &own, sizeof own, instruction);
    const uint32_t clamp = c & 31, segment = c >> 8 & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int from = (int)lane;
    bool inside = true;
    switch (instruction.a) {
    case UP:
        from = (int)lane - (int)b;
        inside = from >= (int)last;
        break;
    case DOWN:
        from = (int)(lane + b);
        inside = from <= (int)last;
        break;
    case BUTTERFLY:
        from = (int)(lane ^ b);
        inside = from <= (int)last;
        break;
    default:
        from = (int)(first | (b & ~segment));
        inside = from <= (int)last;
        break;
    }
    from = inside ? from : (int)lane;
    const ptx_operand &to = operands[0];
    ptx_set(call, to.kind == PTX_VECTOR ? to.parts[0] : to, all[from], 4);
    if (to.kind == PTX_VECTOR) {
        ptx_set(call, to.parts[1], inside, 1);
    }
}

/* ---- votes ---- */

enum { ALL, ANY, UNI, BALLOT };

static void run_vote(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const uint32_t own = ptx_get(call, operands[1], 1) & 1, mask = ptx_get32(call, operands[2]);
    const uint32_t *all = (const uint32_t *)meet(mask, &own, sizeof own, instruction);
    uint32_t ballot = 0;
    for (uint32_t i = 0; i < EMU_WARP; i++) {
        ballot |= (mask >> i & all[i] & 1) << i;
    }
    const bool every = ballot == mask, some = ballot != 0;
    if (instruction.a == BALLOT) {
        ptx_set(call, operands[0], ballot, 4);
    } else {
        ptx_set(call, operands[0],
                instruction.a == ALL   ? every
                : instruction.a == ANY ? some
                                       : every || !some,
                1);
    }
}

static void run_elect(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const uint32_t mask = ptx_get32(call, operands[1]);
    meet(mask, &mask, sizeof mask, instruction);
    const uint32_t leader = (uint32_t)__builtin_ctz(mask);
    const ptx_operand &to = operands[0];
    if (to.kind == PTX_VECTOR) {
        ptx_set(call, to.parts[0], leader, 4);
        ptx_set(call, to.parts[1], leader == emu_self()->lane, 1);
    }
}

static void run_match(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const uint64_t own = ptx_get(call, operands[1], instruction.type->bytes);
    const uint32_t mask = ptx_get32(call, operands[2]);
    const uint64_t *all = (const uint64_t *)meet(mask, &own, sizeof own, instruction);
    uint32_t same = 0;
    for (uint32_t i = 0; i < EMU_WARP; i++) {
        same |= (uint32_t)(mask >> i & 1 && all[i] == own) << i;
    }
    ptx_set(call, operands[0], same, 4);
}

/* ---- sums over lanes ---- */

enum { ADD, MIN, MAX, AND, OR, XOR };

static uint32_t reduce(const ptx_instruction &instruction, uint32_t x, uint32_t y) {
    const bool is_signed = instruction.type->kind == PTX_SIGNED;
    const bool less = is_signed ? (int32_t)x < (int32_t)y : x < y;
    switch (instruction.a) {
    case ADD:
        return x + y;
    case MIN:
        return less ? x : y;
    case MAX:
        return less ? y : x;
    case AND:
        return x & y;
    case OR:
        return x | y;
    default:
        return x ^ y;
    }
}

static void run_redux(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const uint32_t own = ptx_get32(call, operands[1]), mask = ptx_get32(call, operands[2]);
    const uint32_t *all = (const uint32_t *)meet(mask, &own, sizeof own, instruction);
    const uint32_t first = (uint32_t)__builtin_ctz(mask);
    uint32_t result = all[first];
    for (uint32_t i = first + 1; i < EMU_WARP; i++) {
        result = mask >> i & 1 ? reduce(instruction, result, all[i]) : result;
    }
    ptx_set(call, operands[0], result, 4);
}

static void run_warp_barrier(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t mask = ptx_get32(call, instruction.operands[0]);
    meet(mask, &mask, sizeof mask, instruction);
}

/* The lanes that run: those that others wait for come anyway, so the lane itself is a true answer. */
static void run_activemask(ptx_call &call, const ptx_instruction &instruction) {
    ptx_set(call, instruction.operands[0], (uint64_t)1 << emu_self()->lane, 4);
}

/* ---- blocks of a cluster ---- */

/* a: an address in the window, or a generic one */
static void run_mapa(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    const uint64_t from = ptx_get(call, instruction.operands[1], bytes);
    const uint32_t rank = ptx_get32(call, instruction.operands[2]);
    if (rank >= emu_self()->block->cluster_blocks) {
        ptx_fail(instruction, "there is no block %u in the cluster", rank);
    }
    const uint32_t own = instruction.a ? (uint32_t)from : emu_shared_address((const void *)(uintptr_t)from);
    const uint32_t other = (own & 0xffffffu) | (rank + 1) << 24;
    ptx_set(call, instruction.operands[0],
            instruction.a ? other : (uint64_t)(uintptr_t)emu_shared_pointer(other), bytes);
}

bool ptx_decode_warp(ptx_decoder &decoder) {
    static const struct {
        const char *name, *operations;
        int operands;
        ptx_function run;
    } ROWS[] = {
        {"shfl", "up down bfly idx", 5, run_shfl},
        {"vote", "all any uni ballot", 3, run_vote},
        {"redux", "add min max and or xor", 3, run_redux},
        {"match", "any", 3, run_match},
        {"elect", "", 2, run_elect},
        {"bar", "", 1, run_warp_barrier},
        {"activemask", "", 1, run_activemask},
        {"mapa", "", 3, run_mapa},
    };
    ptx_instruction &instruction = *decoder.instruction;
    for (const auto &row : ROWS) {
        if (decoder.name != row.name) {
            continue;
        }
        ptx_take(decoder, "sync");
        if (row.operations[0]) {
            instruction.a = ptx_take_choice(decoder, row.operations);
            if (instruction.a < 0) {
                ptx_unknown(decoder, "no such operation");
            }
        }
        if (row.run == run_mapa) {
            instruction.a = ptx_take_space(decoder) != PTX_GENERIC;
        }
        if (row.run != run_elect && row.run != run_warp_barrier) {
            instruction.type = ptx_take_type(decoder);
        } else {
            instruction.type = ptx_find_type("b32");
        }
        ptx_count(decoder, row.operands, -1);
        instruction.run = row.run;
        return true;
    }
    return false;
}
