/* Copies of single threads (cp.async), and barriers in shared memory (mbarrier). */
#include "ptx_state.h"

#include <algorithm>

/* ---- what is kept ---- */

ptx_block *ptx_block_of(emu_block *block) {
    if (!block->interpreter) {
        ptx_block *fresh = new ptx_block();
        fresh->threads.resize(block->threads);
        fresh->warps.resize((block->threads + EMU_WARP - 1) / EMU_WARP);
        fresh->warpgroups.resize((block->threads + EMU_WARPGROUP - 1) / EMU_WARPGROUP);
        block->interpreter = fresh;
    }
    return (ptx_block *)block->interpreter;
}

ptx_thread *ptx_thread_now(void) {
    emu_thread *thread = emu_self();
    if (!thread->interpreter) {
        std::unique_ptr<ptx_thread> &place = ptx_block_of(thread->block)->threads[thread->index];
        place.reset(new ptx_thread());
        thread->interpreter = place.get();
    }
    return (ptx_thread *)thread->interpreter;
}

/* Whatever no thread has waited for when the last one of the block ends: the shared memory that it reads or
 * writes is another block's then. */
static void check_end(const ptx_block &state) {
    for (const auto &place : state.barriers) {
        if (!place.second.coming.empty()) {
            emu_fail(
                "the block ends with %zu operations pending on the barrier at %#x: nobody waited for them",
                place.second.coming.size(), emu_shared_address(place.first));
        }
    }
    for (const std::unique_ptr<ptx_thread> &thread : state.threads) {
        if (thread && !thread->stores.empty()) {
            emu_fail("a thread ended without waiting for its bulk stores");
        }
    }
}

void emu_asm_thread_ends(emu_thread *thread) {
    const ptx_block *state = (ptx_block *)thread->block->interpreter;
    if (state && thread->block->running == 0) {
        check_end(*state);
    }
}

void emu_asm_block_ends(emu_block *block) {
    delete (ptx_block *)block->interpreter;
    block->interpreter = nullptr;
}

/* ---- cp.async ---- */

static void carry_out(const ptx_copy &copy) {
    if (copy.valid > 0) {
        memcpy(copy.to, copy.from, copy.valid);
    }
    memset(copy.to + copy.valid, 0, copy.bytes - copy.valid);
}

static void carry_out_groups(ptx_thread &thread, uint64_t end) {
    size_t count = 0;
    while (count < thread.copies.size() && thread.copies[count].group < end) {
        carry_out(thread.copies[count++]);
    }
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + (ptrdiff_t)count);
}

/* [to], [from], bytes {, bytes from the source or a predicate to ignore it} */
static void run_copy(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    ptx_thread *thread = ptx_thread_now();
    ptx_copy copy;
    copy.bytes = ptx_get32(call, operands[2]);
    copy.to = ptx_pointer(call, instruction, operands[0], PTX_SHARED_BLOCK, copy.bytes);
    copy.from = ptx_pointer(call, instruction, operands[1], PTX_GLOBAL, copy.bytes);
    copy.valid = operands.size() > 3 ? ptx_get32(call, operands[3]) : copy.bytes;
    copy.group = thread->copy_groups;
    if (copy.valid > copy.bytes) {
        ptx_fail(instruction, "%u bytes of %u", copy.valid, copy.bytes);
    }
    memset(copy.to, PTX_POISON, copy.bytes);
    thread->copies.push_back(copy);
}

static void run_copy_commit(ptx_call &, const ptx_instruction &) {
    ptx_thread_now()->copy_groups++;
}

static void run_copy_wait(ptx_call &call, const ptx_instruction &instruction) {
    ptx_thread *thread = ptx_thread_now();
    const uint64_t left = ptx_get32(call, instruction.operands[0]);
    carry_out_groups(*thread, thread->copy_groups > left ? thread->copy_groups - left : 0);
}

static void run_copy_wait_all(ptx_call &, const ptx_instruction &) {
    ptx_thread *thread = ptx_thread_now();
    carry_out_groups(*thread, thread->copy_groups + 1);
}

/* An arrival behind all copies that the thread has begun; they are the arrival's from now on, and the
 * thread's own too: whoever comes first carries them out. */
static void run_copy_arrive(ptx_call &call, const ptx_instruction &instruction) {
    unsigned char *at = ptx_pointer(call, instruction, instruction.operands[0], (ptx_space)instruction.a, 8);
    ptx_barrier &barrier = ptx_barrier_at(at, instruction);
    ptx_thread *thread = ptx_thread_now();
    const uint64_t end = ++thread->copy_groups; /* a group of its own keeps the order */
    if (!instruction.b) {                       /* without .noinc the arrival adds itself */
        barrier.pending++;
    }
    barrier.coming.push_back([thread, end, &instruction](ptx_barrier &arrived) {
        carry_out_groups(*thread, end);
        ptx_barrier_arrive(arrived, 1, instruction);
    });
}

static bool decode_copy(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (ptx_take_choice(decoder, "commit_group") == 0) {
        ptx_count(decoder, 0, -1);
        instruction.run = run_copy_commit;
    } else if (ptx_take_choice(decoder, "wait_group") == 0) {
        ptx_count(decoder, 1, -1);
        instruction.run = run_copy_wait;
    } else if (ptx_take_choice(decoder, "wait_all") == 0) {
        ptx_count(decoder, 0, -1);
        instruction.run = run_copy_wait_all;
    } else if (ptx_take(decoder, "mbarrier")) {
        instruction.b = ptx_take(decoder, "arrive") && ptx_take(decoder, "noinc");
        instruction.a = ptx_take_space(decoder);
        ptx_take(decoder, "b64");
        ptx_count(decoder, 1, -1);
        instruction.run = run_copy_arrive;
    } else {
        const bool all_levels = ptx_take_choice(decoder, "ca cg") == 0;
        const bool spaces =
            (ptx_take(decoder, "shared") || ptx_take(decoder, "shared::cta")) && ptx_take(decoder, "global");
        ptx_take_ordering(decoder);
        ptx_count(decoder, 3, 4);
        const int64_t bytes = instruction.operands[2].value;
        const bool known = all_levels ? bytes == 4 || bytes == 8 || bytes == 16 : bytes == 16;
        if (!spaces || instruction.operands[2].kind != PTX_IMMEDIATE || !known) {
            ptx_unknown(decoder, "spaces or size not supported");
        }
        instruction.run = run_copy;
    }
    return true;
}

/* ---- barriers ---- */

static uint64_t mirror_of(const ptx_barrier &barrier) {
    return (uint64_t)barrier.phase << 63 | (uint64_t)barrier.expected << 42 |
           (uint64_t)barrier.pending << 21 | ((uint64_t)barrier.bytes & 0x1fffff);
}

static ptx_block *block_of_address(unsigned char *at) {
    const uint32_t rank = (emu_shared_address(at) >> 24) - 1;
    return ptx_block_of(emu_self()->block->cluster[rank]);
}

ptx_barrier &ptx_barrier_at(unsigned char *at, const ptx_instruction &instruction) {
    ptx_block *block = block_of_address(at);
    const auto place = block->barriers.find(at);
    if (place == block->barriers.end()) {
        ptx_fail(instruction, "no barrier has been initialised at %#x", emu_shared_address(at));
    }
    uint64_t mirror;
    memcpy(&mirror, at, sizeof mirror);
    if (mirror != place->second.mirror) {
        ptx_fail(instruction, "the barrier at %#x has been overwritten", emu_shared_address(at));
    }
    return place->second;
}

/* The barrier's bytes in shared memory, after a change. */
static void write_mirror(unsigned char *at, ptx_barrier &barrier) {
    barrier.mirror = mirror_of(barrier);
    memcpy(at, &barrier.mirror, sizeof barrier.mirror);
}

static void end_phase(ptx_barrier &barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        barrier.phase ^= 1;
        barrier.pending = barrier.expected;
    }
}

void ptx_barrier_arrive(ptx_barrier &barrier, uint32_t count, const ptx_instruction &instruction) {
    if (count > barrier.pending) {
        ptx_fail(instruction, "%u arrivals where the barrier's phase expects %u more", count,
                 barrier.pending);
    }
    barrier.pending -= count;
    end_phase(barrier);
}

void ptx_barrier_bytes(ptx_barrier &barrier, int64_t bytes, const ptx_instruction &instruction) {
    const int64_t most = (1 << 20) - 1;
    barrier.bytes += bytes;
    if (barrier.bytes > most || barrier.bytes < -most) {
        ptx_fail(instruction, "more than 2^20 - 1 bytes pending on a barrier");
    }
    end_phase(barrier);
}

static unsigned char *barrier_address(const ptx_call &call, const ptx_instruction &instruction,
                                      size_t operand) {
    return ptx_pointer(call, instruction, instruction.operands[operand], (ptx_space)instruction.a, 8);
}

static void run_init(ptx_call &call, const ptx_instruction &instruction) {
    unsigned char *at = barrier_address(call, instruction, 0);
    const uint32_t count = ptx_get32(call, instruction.operands[1]);
    ptx_block *block = block_of_address(at);
    if (count == 0 || count >= 1 << 20) {
        ptx_fail(instruction, "a barrier of %u arrivals", count);
    }
    if (block->barriers.count(at) != 0) {
        ptx_fail(instruction, "the barrier at %#x is in use", emu_shared_address(at));
    }
    ptx_barrier &barrier = block->barriers[at];
    barrier.expected = barrier.pending = count;
    write_mirror(at, barrier);
}

static void run_invalidate(ptx_call &call, const ptx_instruction &instruction) {
    unsigned char *at = barrier_address(call, instruction, 0);
    if (!ptx_barrier_at(at, instruction).coming.empty()) {
        ptx_fail(instruction, "operations are pending on the barrier");
    }
    block_of_address(at)->barriers.erase(at);
}

/* c: bytes are expected first; d: the arrivals drop out of later phases. */
static void run_arrive(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const size_t first = operands[0].kind == PTX_ADDRESS ? 0 : 1; /* or a result */
    unsigned char *at = barrier_address(call, instruction, first);
    ptx_barrier &barrier = ptx_barrier_at(at, instruction);
    const uint64_t before = barrier.mirror;
    const bool has_number = operands.size() > first + 1;
    const uint32_t number = has_number ? ptx_get32(call, operands[first + 1]) : 1;
    if (instruction.c) {
        ptx_barrier_bytes(barrier, number, instruction);
    }
    const uint32_t count = instruction.c ? 1 : number;
    if (instruction.d) {
        barrier.expected -= std::min(count, barrier.expected);
    }
    ptx_barrier_arrive(barrier, count, instruction);
    write_mirror(at, barrier);
    if (first == 1) {
        ptx_set(call, operands[0], before, 8);
    }
}

/* b: 1 expect, -1 complete */
static void run_bytes(ptx_call &call, const ptx_instruction &instruction) {
    unsigned char *at = barrier_address(call, instruction, 0);
    ptx_barrier &barrier = ptx_barrier_at(at, instruction);
    ptx_barrier_bytes(barrier, instruction.b * (int64_t)ptx_get32(call, instruction.operands[1]),
                      instruction);
    write_mirror(at, barrier);
}

/* Lets what is coming arrive, one after the other, until the phase of that parity has ended. */
static bool has_ended(unsigned char *at, uint32_t parity, const ptx_instruction &instruction) {
    ptx_barrier &barrier = ptx_barrier_at(at, instruction);
    while (barrier.phase == parity && !barrier.coming.empty()) {
        const std::function<void(ptx_barrier &)> arrive = barrier.coming.front();
        barrier.coming.pop_front();
        arrive(barrier);
        write_mirror(at, barrier);
    }
    return barrier.phase != parity;
}

struct wait_context {
    ptx_barrier *barrier;
    uint32_t parity;
};

/* Also when there is something that can arrive, which has_ended does. */
static bool worth_looking(void *context) {
    const wait_context *wait = (const wait_context *)context;
    return wait->barrier->phase != wait->parity || !wait->barrier->coming.empty();
}

/* b: test_wait does not block; c: by parity or by the state that an arrival returned. */
static void run_wait(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    unsigned char *at = barrier_address(call, instruction, 1);
    const uint32_t parity =
        instruction.c ? ptx_get32(call, operands[2]) : (uint32_t)(ptx_get(call, operands[2], 8) >> 63);
    if (parity > 1) {
        ptx_fail(instruction, "parity %u", parity);
    }
    bool ended = has_ended(at, parity, instruction);
    if (!ended && instruction.b) {
        emu_pause(instruction.text.c_str());
    }
    while (!ended && !instruction.b) {
        wait_context context = {&ptx_barrier_at(at, instruction), parity};
        emu_yield_until(worth_looking, &context, instruction.text.c_str());
        ended = has_ended(at, parity, instruction);
    }
    ptx_set(call, operands[0], ended, 1);
}

static bool decode_wait(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    const int kind = ptx_take_choice(decoder, "try_wait test_wait");
    if (kind < 0) {
        return false;
    }
    instruction.b = kind;
    instruction.c = ptx_take(decoder, "parity");
    ptx_count(decoder, 3, 4); /* and a limit of time, which nobody needs here */
    instruction.run = run_wait;
    return true;
}

/* st.async: the store is there, at the latest, when the barrier has counted its bytes. */
static void run_store_async(ptx_call &call, const ptx_instruction &instruction) {
    const std::vector<ptx_operand> &operands = instruction.operands;
    const size_t bytes = (size_t)instruction.type->bytes;
    unsigned char *to = ptx_pointer(call, instruction, operands[0], (ptx_space)instruction.a, (int)bytes);
    unsigned char *at = ptx_pointer(call, instruction, operands[2], (ptx_space)instruction.a, 8);
    const uint64_t value = ptx_get(call, operands[1], (int)bytes);
    ptx_barrier_at(at, instruction).coming.push_back([to, bytes, value, &instruction](ptx_barrier &barrier) {
        memcpy(to, &value, bytes);
        ptx_barrier_bytes(barrier, -(int64_t)bytes, instruction);
    });
}

static bool decode_store_async(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    ptx_take(decoder, "async");
    ptx_take(decoder, "weak");
    instruction.a = ptx_take_space(decoder);
    if (!ptx_take(decoder, "mbarrier::complete_tx::bytes")) {
        ptx_unknown(decoder, "no barrier");
    }
    instruction.type = ptx_take_type(decoder);
    ptx_count(decoder, 3, -1);
    instruction.run = run_store_async;
    return true;
}

bool ptx_decode_async(ptx_decoder &decoder) {
    ptx_instruction &instruction = *decoder.instruction;
    if (decoder.name == "st") {
        return decode_store_async(decoder);
    }
    if (decoder.name == "cp" && decoder.modifiers.size() > 1 && decoder.modifiers[1] != "bulk") {
        if (!ptx_take(decoder, "async")) {
            ptx_unknown(decoder, "no cp.async");
        }
        return decode_copy(decoder);
    }
    if (decoder.name != "mbarrier") {
        return false;
    }
    instruction.a = ptx_take_space(decoder);
    ptx_take_ordering(decoder);
    ptx_take(decoder, "b64");
    if (decode_wait(decoder)) {
        return true;
    }
    const bool bytes = ptx_take(decoder, "expect_tx");
    const int what = ptx_take_choice(decoder, "init inval arrive arrive_drop complete_tx");
    ptx_take(decoder, "noComplete");
    instruction.b = bytes ? 1 : -1;
    instruction.c = bytes;
    instruction.d = what == 3;
    static const ptx_function RUN[] = {run_init, run_invalidate, run_arrive, run_arrive, run_bytes};
    if (what < 0 && !bytes) {
        ptx_unknown(decoder, "no such operation on barriers");
    }
    instruction.run = what < 0 ? run_bytes : RUN[what];
    ptx_count(decoder, 1, 3);
    if (what == 0 || what == 4 || what < 0) {
        ptx_count(decoder, 2, -1);
    }
    return true;
}
