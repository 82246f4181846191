/* The scheduler: the fibers of a grid, and all that they wait for. */
#include "grid.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <vector>

emu_thread *emu_now;

namespace {

struct block_state;

enum fiber_state { READY, WAITING, POLLING, ENDED };

struct fiber {
    emu_thread thread; /* first: emu_now points here */
    void *context;
    unsigned char *stack;
    fiber_state state;
    const char *what;  /* it waits for */
    const void *place; /* where it called */
    bool (*ready)(void *);
    void *ready_context;
    const void *deposits; /* of the rendezvous that it waited for */
    uint64_t cluster_phase;
    uint32_t atomics; /* since it gave way last */
    bool late;        /* in a random order: goes on when hardly anybody else can */
};

/* A rendezvous of some threads, again and again. Two buffers: while the next one gathers, threads may still
 * read what the last one gave. */
struct meeting {
    emu_group_kind kind;
    uint32_t mask;
    std::vector<unsigned char> deposits[2];
    int phase = 0;
    uint32_t arrived = 0;
    const char *what = nullptr;
    uint32_t bytes = 0;
    std::vector<fiber *> waiting;
};

struct named_barrier {
    uint32_t arrived, expected; /* expected: 0 while nobody has arrived, or all of the block */
    bool whole;
    std::vector<fiber *> waiting;
};

struct shared_variable {
    const void *key;
    unsigned char *at;
    size_t bytes;
};

struct cluster_state {
    std::vector<emu_block *> blocks;
    uint32_t alive = 0;   /* threads */
    uint32_t arrived = 0; /* of the phase */
    uint64_t phase = 0;
    uint32_t blocks_alive = 0;
    std::vector<fiber *> waiting;
};

struct block_state {
    emu_block block; /* first: emu_thread.block points here */
    std::vector<fiber> fibers;
    std::vector<std::vector<std::unique_ptr<meeting>>>
        meetings; /* by warp; a warpgroup's with its first warp */
    named_barrier barriers[EMU_NAMED_BARRIERS] = {};
    std::vector<shared_variable> variables;
    uint32_t static_end = EMU_SHARED_FIRST;
    uint32_t alive = 0;
    uint32_t waited = 0;                      /* threads that waited for the kernels before */
    uint32_t counts[2] = {}, count_phase = 0; /* emu_block_count's */
    cluster_state *cluster = nullptr;
};

/* The fibers that can go on: in order those of `turns`, in a random order any of the others. */
struct ready_fibers {
    std::deque<fiber *> turns;
    std::vector<fiber *> early, late;
};

} // namespace

struct emu_grid {
    const emu_launch *launch;
    void *context; /* the scheduler's own */
    ready_fibers ready;
    std::vector<fiber *> paused, polling;
    std::vector<std::unique_ptr<cluster_state>> clusters;
    std::vector<block_state *> spare;
    uint64_t next_block, blocks;
    uint32_t resident, most_resident;
    uint64_t random;
    uint64_t progress;       /* counts what is more than looking whether to go on */
    uint64_t blocks_waiting; /* that waited for the kernels before */
    bool first_waits;
    bool lets_early; /* a thread lets the next launch begin that has not waited itself */
    uint64_t last_progress, idle, idle_now; /* rounds since, in all and since it goes on */
    bool starts_another;                    /* the scheduler was asked to, in a random order */
    bool failed, told;
};

namespace {

emu_grid *grid; /* that runs */

fiber *self() {
    return (fiber *)emu_now;
}

block_state *own_block() {
    return (block_state *)emu_now->block;
}

uint64_t random_number() {
    /* splitmix64 */
    uint64_t x = grid->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Below `count`. */
size_t random_below(size_t count) {
    return (size_t)((random_number() >> 32) * count >> 32);
}

bool any_ready() {
    const ready_fibers &ready = grid->ready;
    return !ready.turns.empty() || !ready.early.empty() || !ready.late.empty();
}

void make_ready(fiber *who) {
    ready_fibers &ready = grid->ready;
    if (!emu_order_seed) {
        ready.turns.push_back(who);
    } else {
        (who->late ? ready.late : ready.early).push_back(who);
    }
}

/* Threads that all took turns would hardly get further apart than from one shuffle to the next, and a missing
 * barrier would show only there: so some warps stay behind. */
fiber *take_ready() {
    enum { SELDOM = 64 };
    ready_fibers &ready = grid->ready;
    if (!emu_order_seed) {
        fiber *next = ready.turns.front();
        ready.turns.pop_front();
        return next;
    }
    const bool hardly = ready.early.empty() || (!ready.late.empty() && random_below(SELDOM) == 0);
    std::vector<fiber *> &from = hardly ? ready.late : ready.early;
    std::swap(from[random_below(from.size())], from.back());
    fiber *next = from.back();
    from.pop_back();
    return next;
}

/* The next one that is ready takes over; the scheduler does if there is none, if this one has ended, and in a
 * random order now and then, so that it starts other blocks. */
void give_way() {
    enum { OFTEN = 256 };
    fiber *me = self();
    me->atomics = 0;
    grid->starts_another = emu_order_seed && random_below(OFTEN) == 0;
    if (grid->starts_another || !any_ready() || me->state == ENDED) {
        emu_switch(&me->context, grid->context);
        return;
    }
    fiber *next = take_ready();
    if (next != me) {
        emu_now = &next->thread;
        emu_switch(&me->context, next->context);
    }
}

void wake(fiber *who) {
    who->state = READY;
    make_ready(who);
}

void wake_all(std::vector<fiber *> &waiting) {
    for (fiber *who : waiting) {
        wake(who);
    }
    waiting.clear();
}

/* In a random order the last one to come to a barrier is not always the first one to go on. */
void maybe_give_way() {
    if (emu_order_seed && random_number() % 2) {
        wake(self());
        give_way();
    }
}

void wait_here(const char *what, const void *place) {
    self()->state = WAITING;
    self()->what = what;
    self()->place = place;
    give_way();
}

/* ---- rendezvous ---- */

uint32_t meeting_size(const meeting &m) {
    return m.kind == EMU_LANES ? EMU_WARP : EMU_WARPGROUP;
}

/* How many of the meeting's threads there are that have not ended. */
uint32_t expected_at(const block_state &block, const meeting &m, uint32_t first_thread) {
    if (block.alive == block.block.threads) {
        const uint32_t there = std::min<uint32_t>(meeting_size(m), block.block.threads - first_thread);
        return m.kind != EMU_LANES ? there
               : there == EMU_WARP ? (uint32_t)__builtin_popcount(m.mask)
                                   : (uint32_t)__builtin_popcount(m.mask & ((1u << there) - 1u));
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < meeting_size(m) && first_thread + i < block.fibers.size(); i++) {
        const bool member = m.kind != EMU_LANES || (m.mask >> i & 1u);
        count += member && block.fibers[first_thread + i].state != ENDED;
    }
    return count;
}

/* All are there: the deposits of this phase become what everybody returns with. */
void complete(meeting &m) {
    const void *deposits = m.deposits[m.phase].data();
    for (fiber *who : m.waiting) {
        who->deposits = deposits;
    }
    wake_all(m.waiting);
    m.phase ^= 1;
    m.arrived = 0;
    grid->progress++;
}

meeting &find_meeting(block_state &block, emu_group group, uint32_t warp) {
    for (auto &m : block.meetings[warp]) {
        if (m->kind == group.kind && m->mask == group.mask) {
            return *m;
        }
    }
    block.meetings[warp].emplace_back(new meeting());
    meeting &m = *block.meetings[warp].back();
    m.kind = group.kind;
    m.mask = group.mask;
    return m;
}

/* ---- barriers ---- */

uint32_t expected_at(const block_state &block, const named_barrier &barrier) {
    return barrier.whole ? block.alive : barrier.expected;
}

void open_barrier(named_barrier &barrier) {
    barrier.arrived = 0;
    barrier.expected = 0;
    wake_all(barrier.waiting);
    grid->progress++;
}

void open_cluster(cluster_state &cluster) {
    cluster.arrived = 0;
    cluster.phase++;
    wake_all(cluster.waiting);
    grid->progress++;
}

/* ---- blocks and their ends ---- */

/* A thread that has ended counts as if it came to every barrier (and to no named one with a count). */
void recheck_waiting(block_state &block, uint32_t warp) {
    const uint32_t group = warp / (EMU_WARPGROUP / EMU_WARP) * (EMU_WARPGROUP / EMU_WARP);
    for (uint32_t w : {warp, group}) {
        for (auto &m : block.meetings[w]) {
            if (m->arrived > 0 && m->arrived == expected_at(block, *m, w * EMU_WARP)) {
                complete(*m);
            }
        }
    }
    named_barrier &whole = block.barriers[0];
    if (whole.whole && whole.arrived > 0 && whole.arrived == block.alive) {
        open_barrier(whole);
    }
}

enum : unsigned char { FRESH = 0xff };

/* Shared memory between the static variables and the dynamic part, and behind it, belongs to nobody. */
void check_margins(const block_state &block) {
    const unsigned char *window = block.block.shared;
    const uint32_t dynamic_start = (uint32_t)(block.block.dynamic_shared - window);
    const uint32_t ranges[2][2] = {{block.static_end, std::min(block.static_end + 256u, dynamic_start)},
                                   {dynamic_start + block.block.dynamic_bytes, EMU_SHARED_END}};
    for (int r = 0; r < 2; r++) {
        for (uint32_t i = ranges[r][0]; i < ranges[r][1]; i++) {
            if (window[i] != FRESH) {
                const uint3 b = block.block.block_index;
                emu_report("block (%u,%u,%u) wrote behind its shared memory: byte %u of the window, %s", b.x,
                           b.y, b.z, i, r == 0 ? "behind the static variables" : "behind the dynamic part");
                grid->failed = true;
                return;
            }
        }
    }
}

/* Blocks of a grid are alike: one that has ended is taken for a new one, with its stacks and its window. */
void reset(block_state *state) {
    for (auto &of_warp : state->meetings) {
        for (auto &m : of_warp) {
            m->arrived = 0;
            m->waiting.clear();
        }
    }
    for (named_barrier &barrier : state->barriers) {
        barrier.arrived = barrier.expected = 0;
        barrier.waiting.clear();
    }
    state->variables.clear();
    state->static_end = EMU_SHARED_FIRST;
    state->counts[0] = state->counts[1] = 0;
    state->waited = 0;
    state->block.interpreter = nullptr;
}

void release_cluster(cluster_state *cluster) {
    for (emu_block *block : cluster->blocks) {
        grid->resident--;
        reset((block_state *)block);
        grid->spare.push_back((block_state *)block);
    }
    for (auto &known : grid->clusters) {
        if (known.get() == cluster) {
            std::swap(known, grid->clusters.back());
            grid->clusters.pop_back();
            break;
        }
    }
}

/* By the scheduler, when a fiber has ended. */
void fiber_ended(fiber *f) {
    block_state &block = *(block_state *)f->thread.block;
    cluster_state *cluster = block.cluster;
    grid->progress++;
    block.alive--;
    cluster->alive--;
    recheck_waiting(block, f->thread.warp);
    if (cluster->arrived > 0 && cluster->arrived == cluster->alive) {
        open_cluster(*cluster);
    }
    if (block.alive == 0) {
        emu_asm_block_ends(&block.block);
        check_margins(block);
        if (--cluster->blocks_alive == 0) {
            release_cluster(cluster);
        }
    }
}

void fiber_main() {
    fiber *me = self();
    grid->launch->call(grid->launch->arguments);
    emu_block *block = me->thread.block;
    uint32_t &waited = ((block_state *)block)->waited;
    waited += me->thread.waited_for_inputs;
    if (--block->running == 0 && waited != 0) {
        if (waited != block->threads) {
            emu_fail("%u of %u threads executed griddepcontrol.wait", waited, block->threads);
        }
        grid->blocks_waiting++;
        grid->first_waits |= block->block_index.x + block->block_index.y + block->block_index.z == 0;
    }
    emu_asm_thread_ends(&me->thread);
    me->state = ENDED;
    give_way();
}

uint3 from_linear(uint64_t index, dim3 dim) {
    return {(uint32_t)(index % dim.x), (uint32_t)(index / dim.x % dim.y), (uint32_t)(index / dim.x / dim.y)};
}

block_state *new_block(const emu_launch &launch) {
    block_state *block = new block_state();
    const uint32_t threads = launch.block.x * launch.block.y * launch.block.z;
    const uint32_t start = EMU_SHARED_END - (launch.shared_bytes + 1023u) / 1024u * 1024u;
    block->block.block_dim = launch.block;
    block->block.grid_dim = launch.grid;
    block->block.cluster_dim = launch.cluster;
    block->block.threads = threads;
    block->block.shared = emu_take_window();
    block->block.dynamic_shared = block->block.shared + start;
    block->block.dynamic_bytes = launch.shared_bytes;
    block->fibers.resize(threads);
    block->meetings.resize((threads + EMU_WARP - 1) / EMU_WARP);
    for (uint32_t i = 0; i < threads; i++) {
        fiber &f = block->fibers[i];
        f.thread.thread_index = from_linear(i, launch.block);
        f.thread.index = i;
        f.thread.lane = i % EMU_WARP;
        f.thread.warp = i / EMU_WARP;
        f.thread.block = &block->block;
        f.stack = emu_take_stack();
    }
    return block;
}

block_state *take_block(const emu_launch &launch) {
    if (grid->spare.empty()) {
        return new_block(launch);
    }
    block_state *block = grid->spare.back();
    grid->spare.pop_back();
    return block;
}

void free_spare_blocks() {
    for (block_state *block : grid->spare) {
        for (fiber &f : block->fibers) {
            emu_give_stack(f.stack);
        }
        emu_give_window(block->block.shared);
        delete block;
    }
}

void start_fibers(block_state *block) {
    unsigned char *window = block->block.shared;
    memset(block->block.dynamic_shared, FRESH,
           (size_t)(window + EMU_SHARED_END - block->block.dynamic_shared));
    memset(window + EMU_SHARED_FIRST, FRESH, 256);
    block->alive = block->block.running = block->block.threads;
    bool late = false; /* the warp */
    for (fiber &f : block->fibers) {
        f.thread.waited_for_inputs = false;
        f.thread.interpreter = nullptr;
        f.atomics = 0;
        if (f.thread.index % EMU_WARP == 0) {
            late = emu_order_seed && random_number() % 4 == 0;
        }
        f.late = late;
        f.context = emu_fresh_context(f.stack, fiber_main);
        wake(&f);
    }
}

/* All blocks of the next cluster. */
void start_cluster() {
    const emu_launch &launch = *grid->launch;
    grid->clusters.emplace_back(new cluster_state());
    cluster_state *cluster = grid->clusters.back().get();
    const uint32_t blocks = launch.cluster.x * launch.cluster.y * launch.cluster.z;
    /* Clusters are counted as blocks are, and a cluster's blocks are neighbours along x (checked at the
     * launch). */
    for (uint32_t rank = 0; rank < blocks; rank++) {
        block_state *block = take_block(launch);
        block->block.block_index = from_linear(grid->next_block++, launch.grid);
        block->block.cluster_rank = rank;
        block->block.cluster_blocks = blocks;
        block->cluster = cluster;
        cluster->blocks.push_back(&block->block);
    }
    cluster->alive = blocks * ((block_state *)cluster->blocks[0])->block.threads;
    cluster->blocks_alive = blocks;
    grid->resident += blocks;
    for (emu_block *block : cluster->blocks) {
        block->cluster = cluster->blocks.data();
        start_fibers((block_state *)block);
    }
    grid->progress++;
}

/* ---- what went wrong ---- */

void say_where(const fiber *f) {
    const uint3 b = f->thread.block->block_index, t = f->thread.thread_index;
    emu_report("  in block (%u,%u,%u), thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
}

void say_kernel() {
    if (!grid->told) {
        grid->told = true;
        const dim3 g = grid->launch->grid, b = grid->launch->block;
        emu_report(
            "a kernel failed: grid (%u,%u,%u), blocks of (%u,%u,%u), %u bytes of dynamic shared memory", g.x,
            g.y, g.z, b.x, b.y, b.z, grid->launch->shared_bytes);
        emu_report_place("  the kernel: ", grid->launch->kernel);
    }
}

/* Who waits for what: one line for all of a block that wait at the same place. */
void report_waiting() {
    int lines = 0;
    for (auto &cluster : grid->clusters) {
        for (emu_block *block : cluster->blocks) {
            auto &fibers = ((block_state *)block)->fibers;
            std::vector<bool> told(fibers.size());
            for (size_t i = 0; i < fibers.size() && lines < 24; i++) {
                if (told[i] || fibers[i].state == ENDED) {
                    continue;
                }
                uint32_t count = 0;
                size_t last = i;
                for (size_t j = i; j < fibers.size(); j++) {
                    if (fibers[j].state != ENDED && fibers[j].place == fibers[i].place) {
                        told[j] = true;
                        count++;
                        last = j;
                    }
                }
                const uint3 b = block->block_index;
                char prefix[256];
                snprintf(prefix, sizeof prefix,
                         "  block (%u,%u,%u): %u threads from %zu to %zu wait at %s: ", b.x, b.y, b.z, count,
                         i, last, fibers[i].what ? fibers[i].what : "?");
                emu_report_place(prefix, fibers[i].place);
                lines++;
            }
        }
    }
}

/* Leaves the fiber for good; the scheduler ends the launch. */
[[noreturn]] void leave() {
    grid->failed = true;
    void *nobody;
    emu_switch(&nobody, grid->context);
    __builtin_unreachable();
}

void on_fault(const void *address, const void *place) {
    say_kernel();
    emu_report("an access to memory that is not there: %p", address);
    emu_report_address(address);
    say_where(self());
    emu_report_place("  at ", place);
}

/* ---- the loop ---- */

/* Rounds in which nobody does more than look whether to go on: until another device may have what is waited
 * for, and until nobody has it. */
enum { BRIEFLY = 4, PATIENCE = 100000 };

/* Those whose condition has come true become ready. */
void poll() {
    auto &polling = grid->polling;
    size_t left = 0;
    for (fiber *who : polling) {
        if (who->ready(who->ready_context)) {
            grid->progress++;
            wake(who);
        } else {
            polling[left++] = who;
        }
    }
    polling.resize(left);
}

bool can_start() {
    const dim3 c = grid->launch->cluster;
    return grid->next_block < grid->blocks && grid->resident + c.x * c.y * c.z <= grid->most_resident;
}

/* Makes somebody ready, if that can be; false when all wait for each other. */
bool find_work() {
    poll();
    if (any_ready()) {
        return true;
    }
    if (can_start()) {
        start_cluster();
        return true;
    }
    if (grid->paused.empty()) {
        return false;
    }
    const bool is_idle = grid->progress == grid->last_progress;
    grid->idle = is_idle ? grid->idle + 1 : 0;
    grid->idle_now = is_idle ? grid->idle_now + 1 : 0;
    grid->last_progress = grid->progress;
    for (fiber *who : grid->paused) {
        make_ready(who);
    }
    grid->paused.clear();
    return grid->idle < PATIENCE;
}

bool is_left() {
    return grid->next_block < grid->blocks || !grid->clusters.empty();
}

/* Until all have ended, or, if `briefly`, nobody has done anything for a while. */
void run_all(bool briefly) {
    enum { AT_ONCE = 4 };
    grid->idle_now = 0;
    while (!grid->failed && is_left() && !(briefly && grid->idle_now >= BRIEFLY)) {
        /* In a random order several blocks are under way at once even where none of them waits; not many, as
         * their stacks would not fit into a processor's caches. */
        if (grid->starts_another && can_start() && grid->clusters.size() < AT_ONCE) {
            start_cluster();
        }
        if (!any_ready() && !find_work()) {
            say_kernel();
            emu_report("a deadlock: all threads wait");
            report_waiting();
            grid->failed = true;
            break;
        }
        fiber *next = take_ready();
        emu_now = &next->thread;
        emu_switch(&grid->context, next->context);
        fiber *last = self();
        emu_now = nullptr;
        if (!grid->failed && last->state == ENDED) {
            fiber_ended(last);
        }
    }
}

/* What is left, of one that failed or is given up, is abandoned. */
void free_blocks() {
    while (!grid->clusters.empty()) {
        release_cluster(grid->clusters.back().get());
    }
    free_spare_blocks();
}

} // namespace

uint32_t emu_most_resident(const emu_launch *launch) {
    enum { THREADS = 2048, BLOCKS = 32, SHARED = 228 * 1024, RESERVED = 1024 };
    const uint32_t threads = launch->block.x * launch->block.y * launch->block.z;
    const uint32_t rounded = (threads + EMU_WARP - 1) / EMU_WARP * EMU_WARP;
    const uint32_t each = std::min({(uint32_t)THREADS / rounded, (uint32_t)BLOCKS,
                                    (uint32_t)SHARED / (launch->shared_bytes + RESERVED)});
    const uint32_t cluster = launch->cluster.x * launch->cluster.y * launch->cluster.z;
    return std::max(EMU_PROCESSORS * std::max(each, 1u), cluster);
}

bool emu_fits_at_once(const emu_launch *launch) {
    return (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z <= emu_most_resident(launch);
}

/* All blocks of a dependent launch have to wait, or the first alone: it keeps the launch from ending before
 * those in front have. The others then read nothing of the launch in front, which nobody can check, and what
 * is in front of that is there only if it waited before it let this one begin. */
static bool blocks_wait(const emu_grid &state) {
    static std::map<cudaStream_t, bool> lets_early; /* the launch in front */
    bool &before = lets_early[state.launch->stream];
    const bool alone = state.blocks_waiting == 1 && state.first_waits && !before;
    before = state.lets_early;
    if (!state.launch->is_dependent || state.blocks_waiting == state.blocks || alone) {
        return true;
    }
    emu_report("%llu of %llu blocks executed griddepcontrol.wait in a programmatic dependent launch",
               (unsigned long long)state.blocks_waiting, (unsigned long long)state.blocks);
    return false;
}

emu_grid *emu_start_grid(const emu_launch *launch) {
    static uint64_t launches;
    emu_grid *state = new emu_grid();
    state->launch = launch;
    state->blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    state->most_resident = emu_most_resident(launch);
    state->random = emu_order_seed + launches++;
    return state;
}

emu_outcome emu_go_on(emu_grid *state, bool briefly) {
    grid = state;
    emu_catch_faults(on_fault, leave);
    run_all(briefly);
    const bool waits = !state->failed && is_left();
    if (!waits) {
        state->failed = state->failed || !blocks_wait(*state);
        if (state->failed) {
            say_kernel();
        }
        free_blocks();
    }
    grid = nullptr;
    const emu_outcome outcome = waits ? EMU_WAITS : state->failed ? EMU_FAILED : EMU_ENDED;
    if (!waits) {
        delete state;
    }
    return outcome;
}

uint64_t emu_progress(const emu_grid *state) {
    return state->progress;
}

void emu_give_up_grid(emu_grid *state) {
    grid = state;
    free_blocks();
    grid = nullptr;
    delete state;
}

bool emu_run_grid(const emu_launch *launch) {
    return emu_go_on(emu_start_grid(launch), false) == EMU_ENDED;
}

/* ---- what device code calls ---- */

void emu_let_next_begin(void) {
    grid->lets_early |= grid->launch->is_dependent && !emu_now->waited_for_inputs;
}

const void *emu_gather(emu_group group, const void *mine, uint32_t bytes, const char *what) {
    block_state &block = *own_block();
    const bool lanes = group.kind == EMU_LANES;
    const uint32_t warp = lanes ? emu_now->warp : emu_now->warp / 4 * 4;
    const uint32_t index = emu_now->index - warp * EMU_WARP;
    if (lanes && !(group.mask >> index & 1u)) {
        emu_fail("%s: the mask 0x%08x does not hold the thread's own lane, %u", what, group.mask, index);
    }
    meeting &m = find_meeting(block, group, warp);
    if (m.arrived == 0) {
        m.what = what;
        m.bytes = bytes;
        m.deposits[m.phase].assign((size_t)meeting_size(m) * bytes, 0);
    } else if (m.bytes != bytes || (m.what != what && strcmp(m.what, what) != 0)) {
        emu_fail("threads of a warp meet at different instructions: %s (%u bytes) and %s (%u bytes)", m.what,
                 m.bytes, what, bytes);
    }
    unsigned char *place = m.deposits[m.phase].data() + (size_t)index * bytes;
    if (bytes == 4) {
        memcpy(place, mine, 4);
    } else if (bytes > 0) {
        memcpy(place, mine, bytes);
    }
    m.arrived++;
    if (m.arrived == expected_at(block, m, warp * EMU_WARP)) {
        self()->deposits = m.deposits[m.phase].data();
        complete(m);
        maybe_give_way();
    } else {
        m.waiting.push_back(self());
        wait_here(what, __builtin_return_address(0));
    }
    return self()->deposits;
}

void emu_yield_until(bool (*ready)(void *), void *context, const char *what) {
    if (ready(context)) {
        return;
    }
    fiber *me = self();
    me->state = POLLING;
    me->ready = ready;
    me->ready_context = context;
    me->what = what;
    me->place = __builtin_return_address(0);
    grid->polling.push_back(me);
    give_way();
}

void emu_pause(const char *what) {
    fiber *me = self();
    me->what = what;
    me->place = __builtin_return_address(0);
    grid->paused.push_back(me);
    give_way();
}

void emu_atomic(const char *what) {
    enum { OFTEN = 16 };
    if (++self()->atomics >= OFTEN) {
        emu_pause(what);
    }
}

void emu_named_barrier(int id, uint32_t threads, bool wait) {
    block_state &block = *own_block();
    if (id < 0 || id >= EMU_NAMED_BARRIERS) {
        emu_fail("barrier %d: there are %d", id, EMU_NAMED_BARRIERS);
    }
    if (threads % EMU_WARP != 0) {
        emu_fail("barrier %d: %u threads, which is no multiple of %d", id, threads, EMU_WARP);
    }
    named_barrier &barrier = block.barriers[id];
    if (barrier.arrived > 0 && (barrier.expected != threads || barrier.whole != (threads == 0))) {
        emu_fail("barrier %d: %u threads are awaited here and %u elsewhere (0: all)", id, threads,
                 barrier.expected);
    }
    barrier.expected = threads;
    barrier.whole = threads == 0;
    barrier.arrived++;
    if (barrier.arrived >= expected_at(block, barrier)) {
        open_barrier(barrier);
        maybe_give_way();
    } else if (wait) {
        barrier.waiting.push_back(self());
        wait_here(id == 0 ? "__syncthreads / bar.sync 0" : "a named barrier", __builtin_return_address(0));
    }
}

uint32_t emu_block_count(bool yes) {
    /* Two counters, the one that is not in use zero: threads may still read one when the next count begins.
     */
    block_state &block = *own_block();
    uint32_t &count = block.counts[block.count_phase];
    count += yes;
    const uint32_t phase = block.count_phase;
    const bool last = block.barriers[0].arrived + 1 == block.alive;
    if (last) {
        block.count_phase ^= 1;
        block.counts[block.count_phase] = 0;
    }
    emu_named_barrier(0, 0, true);
    return block.counts[phase];
}

void emu_cluster_arrive(void) {
    cluster_state &cluster = *own_block()->cluster;
    self()->cluster_phase = cluster.phase;
    if (++cluster.arrived == cluster.alive) {
        open_cluster(cluster);
    }
}

void emu_cluster_wait(void) {
    cluster_state &cluster = *own_block()->cluster;
    if (cluster.phase == self()->cluster_phase) {
        cluster.waiting.push_back(self());
        wait_here("barrier.cluster.wait", __builtin_return_address(0));
    }
}

uint32_t emu_alive_lanes(void) {
    const block_state &block = *own_block();
    uint32_t mask = 0;
    for (uint32_t lane = 0, i = emu_now->warp * EMU_WARP; lane < EMU_WARP && i < block.fibers.size();
         lane++, i++) {
        mask |= (uint32_t)(block.fibers[i].state != ENDED) << lane;
    }
    return mask;
}

/* ---- shared memory ---- */

uint32_t emu_shared_address(const void *pointer) {
    const emu_block *own = emu_now->block;
    for (uint32_t i = 0; i < own->cluster_blocks; i++) {
        const uint32_t rank = (own->cluster_rank + i) % own->cluster_blocks;
        const uintptr_t offset = (uintptr_t)pointer - (uintptr_t)own->cluster[rank]->shared;
        if (offset < EMU_SHARED_WINDOW) {
            return (1 + rank) << 24 | (uint32_t)offset;
        }
    }
    emu_fail("%p is not in the shared memory of the cluster", pointer);
}

void *emu_shared_pointer(uint32_t address) {
    const emu_block *own = emu_now->block;
    const uint32_t rank = (address >> 24) - 1, offset = address & 0xffffffu;
    if (rank >= own->cluster_blocks || offset >= EMU_SHARED_WINDOW) {
        emu_fail("0x%x is no address in the shared memory of the cluster", address);
    }
    return own->cluster[rank]->shared + offset;
}

void *emu_shared_variable(const void *key, size_t bytes, size_t alignment) {
    block_state &block = *own_block();
    for (const shared_variable &known : block.variables) {
        if (known.key == key) {
            return known.at;
        }
    }
    const uint32_t start = (uint32_t)((block.static_end + alignment - 1) / alignment * alignment);
    const uint32_t end = start + (uint32_t)bytes;
    if (end - EMU_SHARED_FIRST > 48 * 1024 ||
        end - EMU_SHARED_FIRST + block.block.dynamic_bytes > EMU_SHARED_OPTIN) {
        emu_fail("shared memory: %u bytes of variables and %u dynamic bytes are too many",
                 end - EMU_SHARED_FIRST, block.block.dynamic_bytes);
    }
    unsigned char *at = block.block.shared + start;
    /* What lies behind it is the margin that is checked, until the next variable takes it. */
    memset(at, FRESH, std::min<size_t>(bytes + 256, (size_t)(block.block.dynamic_shared - at)));
    block.static_end = end;
    block.variables.push_back({key, at, bytes});
    return at;
}

void emu_fail(const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    say_kernel();
    emu_report("%s", message);
    if (emu_now) {
        say_where(self());
        emu_report_place("  at ", __builtin_return_address(0));
        leave();
    }
    abort();
}
