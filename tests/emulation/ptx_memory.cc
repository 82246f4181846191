/* Branches, barriers, loads, stores and atomic operations. Threads of the emulated device run one at a time
 * and give way only where they wait: memory is always in order, and what a modifier says about order has no
 * effect. */
#include "ptx_state.h"

/* ---- addresses ---- */

ptx_space ptx_take_space(ptx_decoder &decoder) {
    switch (ptx_take_choice(decoder, "global shared shared::cta shared::cluster const param local")) {
    case 0:
        return PTX_GLOBAL;
    case 1:
    case 2:
        return PTX_SHARED_BLOCK;
    case 3:
        return PTX_SHARED_CLUSTER;
    case 4:
        return PTX_CONSTANT;
    case -1:
        return PTX_GENERIC;
    default:
        ptx_unknown(decoder, "state space not supported");
    }
}

unsigned char *ptx_pointer(const ptx_call &call, const ptx_instruction &instruction,
                           const ptx_operand &operand, ptx_space space, size_t alignment) {
    const ptx_operand &base = operand.kind == PTX_ADDRESS ? operand.parts[0] : operand;
    const bool shared = space == PTX_SHARED_BLOCK || space == PTX_SHARED_CLUSTER;
    const uint64_t address = ptx_get(call, base, 8) + (uint64_t)operand.value;
    if (address % alignment != 0) {
        ptx_fail(instruction, "address %#llx is not aligned to %zu bytes", (unsigned long long)address,
                 alignment);
    }
    if (!shared) {
        return (unsigned char *)(uintptr_t)address;
    }
    return (unsigned char *)emu_shared_pointer((uint32_t)address);
}

/* ---- flow ---- */

static void run_bra(ptx_call &call, const ptx_instruction &instruction) {
    call.next = (size_t)instruction.operands[0].index;
}

static void run_nothing(ptx_call &, const ptx_instruction &) {
}

static void run_barrier(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const uint32_t id = ptx_get32(call, operands[0]);
    const uint32_t threads = operands.size() > 1 ? ptx_get32(call, operands[1]) : emu_self()->block->threads;
    if (id >= EMU_NAMED_BARRIERS || threads == 0) {
        ptx_fail(instruction, "barrier %u of %u threads", id, threads);
    }
    if (operands.size() > 1 && threads % 32 != 0) {
        ptx_fail(instruction, "a barrier's threads must be whole warps, not %u", threads);
    }
    emu_named_barrier((int)id, operands.size() > 1 ? threads : 0, instruction.a);
}

static void run_cluster_arrive(ptx_call &, const ptx_instruction &) {
    emu_cluster_arrive();
}

static void run_cluster_wait(ptx_call &, const ptx_instruction &) {
    emu_cluster_wait();
}

static void run_grid_wait(ptx_call &, const ptx_instruction &) {
    emu_self()->waited_for_inputs = true;
}

static void run_grid_launch(ptx_call &, const ptx_instruction &) {
    emu_let_next_begin();
}

static void run_proxy_fence(ptx_call &, const ptx_instruction &) {
    ptx_proxy_fence();
}

static void run_nanosleep(ptx_call &, const ptx_instruction &instruction) {
    emu_pause(instruction.text.c_str());
}

static void run_trap(ptx_call &, const ptx_instruction &instruction) {
    ptx_fail(instruction, "trap");
}

static bool decode_barrier(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name != "bar" && decoder.name != "barrier") {
        return false;
    }
    const bool cluster = ptx_take(decoder, "cluster");
    ptx_take(decoder, "cta");
    ptx_take(decoder, "aligned");
    const int what = ptx_take_choice(decoder, "sync arrive wait");
    if (cluster) {
        ptx_take_ordering(decoder);
        ptx_count(decoder, 0, -1);
        instruction.run = what == 1 ? run_cluster_arrive : run_cluster_wait;
    } else if (ptx_take(decoder, "warp")) {
        return false; /* bar.warp.sync: with the warp's instructions */
    } else {
        ptx_count(decoder, what == 1 ? 2 : 1, 2);
        instruction.a = what == 0;
        instruction.run = run_barrier;
    }
    if (what < 0 || (what == 2) > cluster || (cluster && what == 0)) {
        ptx_unknown(decoder, "no such barrier");
    }
    return true;
}

/* What has no effect here, with the modifiers that may stand behind the name. */
static bool decode_nothing(ptx_decoder &decoder) {
    static const struct {
        const char *name, *modifiers;
        int operands;
    } ROWS[] = {
        {"fence", "mbarrier_init sc acq_rel acquire release cta cluster gpu sys", 0},
        {"membar", "cta gl sys", 0},
        {"prefetch", "global local L1 L2 L2::evict_last L2::evict_normal tensormap const param", 1},
        {"prefetchu", "L1", 1},
        {"setmaxnreg", "inc dec sync aligned u32", 1},
        {"discard", "global L2", 2},
        {"applypriority", "global L2::evict_normal", 2},
        {"pragma", "", 1},
    };
    for (const auto &row : ROWS) {
        if (decoder.name == row.name) {
            while (ptx_take_choice(decoder, row.modifiers) >= 0) {
            }
            ptx_count(decoder, 0, row.operands);
            decoder.instruction->run = run_nothing;
            return true;
        }
    }
    return false;
}

bool ptx_decode_flow(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name == "bra") {
        ptx_take(decoder, "uni");
        ptx_count(decoder, 1, -1);
        if (instruction.operands[0].kind != PTX_LABEL) {
            ptx_unknown(decoder, "no label");
        }
        instruction.run = run_bra;
        return true;
    }
    if (decoder.name == "griddepcontrol") {
        instruction.run =
            ptx_take_choice(decoder, "wait launch_dependents") == 0 ? run_grid_wait : run_grid_launch;
        return true;
    }
    if (decoder.name == "fence" && ptx_take(decoder, "proxy")) {
        const bool async = ptx_take(decoder, "async"), global = ptx_take(decoder, "global");
        ptx_take_choice(decoder, "shared::cta shared::cluster");
        instruction.run = async && !global ? run_proxy_fence : run_nothing;
        if (!async) {
            ptx_take_ordering(decoder);
            ptx_take_choice(decoder, "alias tensormap::generic async::generic");
        }
        return true;
    }
    if (decoder.name == "nanosleep") {
        ptx_take(decoder, "u32");
        instruction.run = run_nanosleep;
        return true;
    }
    if (decoder.name == "trap") {
        instruction.run = run_trap;
        return true;
    }
    return decode_barrier(decoder) || decode_nothing(decoder);
}

/* ---- loads and stores ---- */

static int vector_width(ptx_decoder &decoder) {
    static const int WIDTHS[] = {1, 2, 4, 8};
    return WIDTHS[ptx_take_choice(decoder, "v2 v4 v8") + 1];
}

/* a: space, b: how many, c: threads that wait for others may do so with it, so others get their turn. A
 * loaded number fills a wider register, with its sign if it has one. */
static void run_load(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes, count = (int)instruction.b;
    if (instruction.c) {
        emu_atomic(instruction.text.c_str());
    }
    const unsigned char *from = ptx_pointer(call, instruction, instruction.operands[1],
                                            (ptx_space)instruction.a, (size_t)(bytes * count));
    const ptx_operand &to = instruction.operands[0];
    for (int i = 0; i < count; i++) {
        uint64_t value = 0;
        memcpy(&value, from + i * bytes, (size_t)bytes);
        value = instruction.type->kind == PTX_SIGNED ? (uint64_t)ptx_sign_extend(value, bytes) : value;
        ptx_set(call, count > 1 ? to.parts[(size_t)i] : to, value, 8);
    }
}

static void run_store(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes, count = (int)instruction.b;
    unsigned char *to = ptx_pointer(call, instruction, instruction.operands[0], (ptx_space)instruction.a,
                                    (size_t)(bytes * count));
    const ptx_operand &from = instruction.operands[1];
    for (int i = 0; i < count; i++) {
        const uint64_t value = ptx_get(call, count > 1 ? from.parts[(size_t)i] : from, bytes);
        memcpy(to + i * bytes, &value, (size_t)bytes);
    }
}

static bool decode_access(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    const bool load = decoder.name == "ld" || decoder.name == "ldu";
    if (!load && decoder.name != "st") {
        return false;
    }
    instruction.a = ptx_take_space(decoder);
    instruction.c = ptx_take_choice(decoder, "acquire relaxed volatile") >= 0;
    ptx_take_ordering(decoder);
    instruction.b = vector_width(decoder);
    instruction.type = ptx_take_type(decoder);
    ptx_count(decoder, 2, 3);
    const ptx_operand &address = instruction.operands[load ? 1 : 0],
                      &value = instruction.operands[load ? 0 : 1];
    const size_t parts = value.kind == PTX_VECTOR ? value.parts.size() : 1;
    if (address.kind != PTX_ADDRESS || parts != (size_t)instruction.b || instruction.type->bytes > 8) {
        ptx_unknown(decoder, "operands not supported");
    }
    instruction.run = load ? run_load : run_store;
    return true;
}

/* ---- atomic operations ---- */

enum { ADD, MIN, MAX, AND, OR, XOR, EXCH, INC, DEC, CAS };

static uint64_t add(const ptx_type *type, uint64_t x, uint64_t y) {
    if (ptx_is(type, "f32")) {
        return ptx_bits(ptx_float((uint32_t)x) + ptx_float((uint32_t)y));
    }
    return x + y;
}

static uint64_t update(const ptx_instruction &instruction, uint64_t old, uint64_t x, uint64_t y) {
    const int bytes = instruction.type->bytes;
    const bool is_signed = instruction.type->kind == PTX_SIGNED;
    const bool less = is_signed ? ptx_sign_extend(old, bytes) < ptx_sign_extend(x, bytes) : old < x;
    switch (instruction.b) {
    case ADD:
        return add(instruction.type, old, x);
    case MIN:
        return less ? old : x;
    case MAX:
        return less ? x : old;
    case AND:
        return old & x;
    case OR:
        return old | x;
    case XOR:
        return old ^ x;
    case EXCH:
        return x;
    case INC:
        return old >= x ? 0 : old + 1;
    case DEC:
        return old == 0 || old > x ? x : old - 1;
    default:
        return old == x ? y : old;
    }
}

/* c: 1 where the old value is a result (atom), 0 where it is not (red) */
static void run_atomic(ptx_call &call, const ptx_instruction &instruction) {
    const int bytes = instruction.type->bytes;
    const size_t first = (size_t)instruction.c;
    const std::vector<ptx_operand> &operands = instruction.operands;
    emu_atomic(instruction.text.c_str());
    unsigned char *at =
        ptx_pointer(call, instruction, operands[first], (ptx_space)instruction.a, (size_t)bytes);
    uint64_t old = 0;
    memcpy(&old, at, (size_t)bytes);
    const uint64_t x = ptx_get(call, operands[first + 1], bytes);
    const uint64_t y = instruction.b == CAS ? ptx_get(call, operands[first + 2], bytes) : 0;
    const uint64_t fresh = update(instruction, old, x, y);
    memcpy(at, &fresh, (size_t)bytes);
    if (instruction.c) {
        ptx_set(call, operands[0], old, bytes);
    }
}

bool ptx_decode_memory(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name == "st" && !decoder.modifiers.empty() && decoder.modifiers[0] == "async") {
        return false; /* ptx_async.cc */
    }
    if (decode_access(decoder)) {
        return true;
    }
    if (decoder.name != "atom" && decoder.name != "red") {
        return false;
    }
    instruction.c = decoder.name == "atom";
    instruction.a = ptx_take_space(decoder);
    ptx_take_ordering(decoder);
    instruction.b = ptx_take_choice(decoder, "add min max and or xor exch inc dec cas");
    instruction.type = ptx_take_type(decoder);
    ptx_count(decoder, 2 + (int)instruction.c + (instruction.b == CAS), -1);
    const bool floating = instruction.type->kind == PTX_FLOATING;
    if (instruction.b < 0 || (floating && (instruction.b != ADD || !ptx_is(instruction.type, "f32")))) {
        ptx_unknown(decoder, "operation not supported");
    }
    instruction.run = run_atomic;
    return true;
}
