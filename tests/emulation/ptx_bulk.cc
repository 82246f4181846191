/* Bulk copies (cp.async.bulk) and those of boxes of tensors (cp.async.bulk.tensor). */
#include "ptx_state.h"

#include <cuda.h>

enum { DIMENSIONS = 5 };

/* ---- tensor maps ---- */

static uint32_t swizzle_bytes(const emu_tensor_map &map) {
    switch ((CUtensorMapSwizzle)map.swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_32B:
        return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
        return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
        return 128;
    default:
        return 0;
    }
}

/* Fails for what the interpreter does not do. */
static void check_map(const emu_tensor_map &map, const ptx_instruction &instruction, uint32_t dimensions) {
    if (map.magic != EMU_TENSOR_MAP || map.rank != dimensions) {
        ptx_fail(instruction, "that is no tensor map of %u dimensions", dimensions);
    }
    bool known = emu_element_bytes(map) > 0 && map.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                 map.swizzle <= CU_TENSOR_MAP_SWIZZLE_128B;
    for (int i = 0; i < map.rank; i++) {
        known = known && map.step[i] == 1;
    }
    if (!known) {
        ptx_fail(instruction, "a tensor map of this type, interleaving, swizzling or step is not supported");
    }
}

/* ---- boxes ---- */

/* A box of a tensor, and where it lies in shared memory. */
struct box_copy {
    emu_tensor_map map;
    int32_t start[DIMENSIONS];
    uint32_t address; /* in the window */
    uint32_t bytes;
};

/* Calls piece(shared, global or null where outside the tensor) for every element. */
template <typename PIECE> static void for_each_element(const box_copy &copy, PIECE piece) {
    const emu_tensor_map &map = copy.map;
    const uint32_t bytes = emu_element_bytes(map), swizzle = swizzle_bytes(map);
    uint32_t place = copy.address, index[DIMENSIONS] = {};
    for (;;) {
        uint64_t from = map.address;
        bool inside = true;
        for (int i = 0; i < map.rank; i++) {
            const int64_t at = (int64_t)copy.start[i] + index[i];
            inside = inside && at >= 0 && at < (int64_t)map.size[i];
            from += (uint64_t)at * (i == 0 ? bytes : map.stride[i - 1]);
        }
        piece((unsigned char *)emu_shared_pointer(ptx_swizzled(place, swizzle)),
              inside ? (unsigned char *)(uintptr_t)from : nullptr);
        place += bytes;
        int i = 0;
        while (i < map.rank && ++index[i] == map.box[i]) {
            index[i++] = 0;
        }
        if (i == map.rank) {
            return;
        }
    }
}

static void load_box(const box_copy &copy) {
    const uint32_t bytes = emu_element_bytes(copy.map);
    for_each_element(copy, [&](unsigned char *shared, const unsigned char *global) {
        if (global) {
            memcpy(shared, global, bytes);
        } else {
            memset(shared, copy.map.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? 0 : 0xff, bytes); /* or NaN */
        }
    });
}

static void store_box(const box_copy &copy) {
    const uint32_t bytes = emu_element_bytes(copy.map);
    for_each_element(copy, [&](const unsigned char *shared, unsigned char *global) {
        if (global) {
            memcpy(global, shared, bytes);
        }
    });
}

/* [map, {coordinates}] */
static box_copy read_box(const ptx_call &call, const ptx_instruction &instruction, const ptx_operand &operand,
                         uint32_t address) {
    box_copy copy = {};
    const ptx_operand &coordinates = operand.parts[1];
    memcpy(&copy.map, ptx_pointer(call, instruction, operand, PTX_GENERIC, 64), sizeof copy.map);
    check_map(copy.map, instruction, (uint32_t)instruction.b);
    if (coordinates.parts.size() != (size_t)instruction.b) {
        ptx_fail(instruction, "%zu coordinates", coordinates.parts.size());
    }
    copy.bytes = emu_element_bytes(copy.map);
    for (int i = 0; i < copy.map.rank; i++) {
        copy.start[i] = (int32_t)ptx_get32(call, coordinates.parts[(size_t)i]);
        copy.bytes *= copy.map.box[i];
    }
    copy.address = address;
    return copy;
}

/* ---- to shared memory; the bytes arrive at a barrier ---- */

/* Ranks of a multicast, or the one of the address; at every one of them, the same offset. */
static std::vector<uint32_t> targets(const ptx_call &call, const ptx_instruction &instruction,
                                     size_t mask_operand, uint32_t address) {
    std::vector<uint32_t> result;
    if (!instruction.c) {
        result.push_back(address);
        return result;
    }
    const uint32_t mask = (uint32_t)ptx_get(call, instruction.operands[mask_operand], 2);
    for (uint32_t rank = 0; rank < 16; rank++) {
        if (mask >> rank & 1) {
            result.push_back((rank + 1) << 24 | (address & 0xffffff));
        }
    }
    return result;
}

static uint32_t window_address(const ptx_call &call, const ptx_instruction &instruction, size_t operand,
                               size_t alignment) {
    return emu_shared_address(
        ptx_pointer(call, instruction, instruction.operands[operand], PTX_SHARED_CLUSTER, alignment));
}

/* [to], [from], bytes, [barrier] {, ranks}; a: the source is shared memory */
static void run_load(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t bytes = ptx_get32(call, instruction.operands[2]);
    const uint32_t to = window_address(call, instruction, 0, 16);
    const uint32_t barrier = window_address(call, instruction, 3, 8);
    const ptx_space space = instruction.a ? PTX_SHARED_BLOCK : PTX_GLOBAL;
    const unsigned char *from = ptx_pointer(call, instruction, instruction.operands[1], space, 16);
    if (bytes % 16 != 0 || bytes == 0) {
        ptx_fail(instruction, "%u bytes are no multiple of 16", bytes);
    }
    if (instruction.a) {
        ptx_proxy_read(emu_shared_address(from) & 0xffffffu, bytes, instruction);
    }
    for (const uint32_t target : targets(call, instruction, 4, to)) {
        unsigned char *place = (unsigned char *)emu_shared_pointer(target);
        emu_shared_pointer(target + bytes - 1);
        const uint32_t rank = target & 0xff000000u;
        unsigned char *at = (unsigned char *)emu_shared_pointer(rank | (barrier & 0xffffff));
        memset(place, PTX_POISON, bytes);
        ptx_proxy_brought(target, bytes);
        ptx_barrier_at(at, instruction).coming.push_back([=, &instruction](ptx_barrier &arrived) {
            memcpy(place, from, bytes);
            ptx_proxy_brought(target, bytes);
            ptx_barrier_bytes(arrived, -(int64_t)bytes, instruction);
        });
    }
}

/* [to], [map, {coordinates}], [barrier] {, ranks}; b: dimensions */
static void run_tensor_load(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t to = window_address(call, instruction, 0, 128);
    const uint32_t barrier = window_address(call, instruction, 2, 8);
    for (const uint32_t target : targets(call, instruction, 3, to)) {
        const box_copy copy = read_box(call, instruction, instruction.operands[1], target);
        const uint32_t rank = target & 0xff000000u;
        unsigned char *at = (unsigned char *)emu_shared_pointer(rank | (barrier & 0xffffff));
        emu_shared_pointer(target + copy.bytes - 1);
        memset(emu_shared_pointer(target), PTX_POISON, copy.bytes);
        ptx_proxy_brought(target, copy.bytes);
        ptx_barrier_at(at, instruction).coming.push_back([=, &instruction](ptx_barrier &arrived) {
            load_box(copy);
            ptx_proxy_brought(target, copy.bytes);
            ptx_barrier_bytes(arrived, -(int64_t)copy.bytes, instruction);
        });
    }
}

/* ---- from shared memory; a thread waits for groups of them ---- */

/* What the copy reads must stay as it is until the thread has waited. */
static std::function<void()> checked_store(const ptx_instruction &instruction, const unsigned char *from,
                                           uint32_t bytes, const std::function<void()> &store) {
    ptx_proxy_read(emu_shared_address(from) & 0xffffffu, bytes, instruction);
    const std::vector<unsigned char> before(from, from + bytes);
    return [=, &instruction]() {
        if (memcmp(before.data(), from, bytes) != 0) {
            ptx_fail(instruction, "its source changed before anybody waited for the copy");
        }
        store();
    };
}

/* [to], [from], bytes */
static void run_store(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t bytes = ptx_get32(call, instruction.operands[2]);
    unsigned char *to = ptx_pointer(call, instruction, instruction.operands[0], PTX_GLOBAL, 16);
    const unsigned char *from = ptx_pointer(call, instruction, instruction.operands[1], PTX_SHARED_BLOCK, 16);
    if (bytes % 16 != 0) {
        ptx_fail(instruction, "%u bytes are no multiple of 16", bytes);
    }
    ptx_thread *thread = ptx_thread_now();
    memset(to, PTX_POISON, bytes);
    thread->stores.push_back(
        {checked_store(instruction, from, bytes, [=]() { memcpy(to, from, bytes); }), thread->store_groups});
}

/* [map, {coordinates}], [from] */
static void run_tensor_store(ptx_call &call, const ptx_instruction &instruction) {
    const uint32_t from = window_address(call, instruction, 1, 128);
    const box_copy copy = read_box(call, instruction, instruction.operands[0], from);
    ptx_thread *thread = ptx_thread_now();
    thread->stores.push_back({checked_store(instruction, (unsigned char *)emu_shared_pointer(from),
                                            copy.bytes, [=]() { store_box(copy); }),
                              thread->store_groups});
}

static void run_store_commit(ptx_call &, const ptx_instruction &) {
    ptx_thread_now()->store_groups++;
}

static void run_store_wait(ptx_call &call, const ptx_instruction &instruction) {
    ptx_thread *thread = ptx_thread_now();
    const uint64_t left = ptx_get32(call, instruction.operands[0]), groups = thread->store_groups;
    size_t count = 0;
    while (count < thread->stores.size() && thread->stores[count].group + left < groups) {
        thread->stores[count++].carry_out();
    }
    thread->stores.erase(thread->stores.begin(), thread->stores.begin() + (ptrdiff_t)count);
}

static void run_prefetch(ptx_call &, const ptx_instruction &) {
}

static void run_policy(ptx_call &call, const ptx_instruction &instruction) {
    ptx_set(call, instruction.operands[0], 0, 8);
}

/* ---- decoding ---- */

static bool decode_to_shared(ptx_decoder &decoder, int dimensions) {
    ptx_instruction &instruction = *decoder.instruction;
    if (!ptx_take(decoder, "mbarrier::complete_tx::bytes")) {
        return false;
    }
    const bool to = ptx_take(decoder, "shared::cluster");
    instruction.a = !ptx_take(decoder, "global") && ptx_take(decoder, "shared::cta");
    if (!to && instruction.a) { /* from global memory to the block's own */
        ptx_unknown(decoder, "no destination");
    }
    if (!to && !ptx_take(decoder, "shared::cta")) {
        ptx_unknown(decoder, "no destination");
    }
    instruction.c = ptx_take(decoder, "multicast::cluster");
    instruction.run = dimensions ? run_tensor_load : run_load;
    const int least = (dimensions ? 3 : 4) + (instruction.c ? 1 : 0);
    const bool hint = ptx_take(decoder, "L2::cache_hint");
    ptx_count(decoder, least + hint, -1);
    return true;
}

static void decode_to_global(ptx_decoder &decoder, int dimensions) {
    ptx_instruction &instruction = *decoder.instruction;
    const bool known =
        ptx_take(decoder, "global") && ptx_take(decoder, "shared::cta") && ptx_take(decoder, "bulk_group");
    if (!known) {
        ptx_unknown(decoder, "spaces not supported");
    }
    const bool hint = ptx_take(decoder, "L2::cache_hint");
    ptx_count(decoder, (dimensions ? 2 : 3) + hint, -1);
    instruction.run = dimensions ? run_tensor_store : run_store;
}

bool ptx_decode_bulk(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name == "createpolicy" && ptx_take(decoder, "fractional")) {
        ptx_take_ordering(decoder);
        ptx_take_type(decoder);
        ptx_count(decoder, 2, -1);
        instruction.run = run_policy;
        return true;
    }
    if (decoder.name != "cp" || !ptx_take(decoder, "async") || !ptx_take(decoder, "bulk")) {
        return false;
    }
    if (ptx_take(decoder, "commit_group")) {
        instruction.run = run_store_commit;
        return true;
    }
    if (ptx_take(decoder, "wait_group")) {
        ptx_take(decoder, "read");
        ptx_count(decoder, 1, -1);
        instruction.run = run_store_wait;
        return true;
    }
    const bool tensor = ptx_take(decoder, "tensor");
    instruction.b = ptx_take_choice(decoder, "1d 2d 3d 4d 5d") + 1;
    ptx_take(decoder, "tile");
    if (tensor != (instruction.b > 0)) {
        ptx_unknown(decoder, "dimensions");
    }
    if (ptx_take(decoder, "prefetch")) {
        ptx_take(decoder, "L2");
        ptx_take(decoder, "global");
        ptx_take_ordering(decoder);
        instruction.run = run_prefetch;
    } else if (!decode_to_shared(decoder, (int)instruction.b)) {
        decode_to_global(decoder, (int)instruction.b);
    }
    return true;
}
