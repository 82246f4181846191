/* What threads write to shared memory is not seen by bulk copies and by wgmma before a fence.proxy.async (PTX
 * ISA, "Proxies"). Pieces of 16 bytes that one of these has read once are watched from then on: what they
 * held at the last fence, or when a bulk copy brought them, is what the next one may find. */
#include "ptx_state.h"

enum { PIECE = 16, PIECES = EMU_SHARED_WINDOW / PIECE };

struct ptx_async_view {
    std::vector<unsigned char> seen;                 /* the window; of watched pieces */
    std::vector<bool> watched, brought;              /* [PIECES]; brought: by a bulk copy */
    std::vector<std::pair<uint32_t, uint32_t>> runs; /* of watched pieces, first and end; while `counted` */
    bool counted;
    bool fenced; /* ever, by any thread */
};

void ptx_async_view_delete::operator()(ptx_async_view *view) const {
    delete view;
}

static ptx_async_view &view_of(emu_block *block) {
    ptx_block *state = ptx_block_of(block);
    if (!state->async_view) {
        state->async_view.reset(new ptx_async_view());
        state->async_view->seen.resize(EMU_SHARED_WINDOW);
        state->async_view->watched.resize(PIECES);
        state->async_view->brought.resize(PIECES);
    }
    return *state->async_view;
}

static void see(ptx_async_view &view, const unsigned char *shared, uint32_t piece) {
    memcpy(&view.seen[piece * PIECE], shared + piece * PIECE, PIECE);
}

static void count_runs(ptx_async_view &view) {
    view.runs.clear();
    for (uint32_t piece = 0; piece < PIECES; piece++) {
        if (!view.watched[piece]) {
            continue;
        }
        if (view.runs.empty() || view.runs.back().second != piece) {
            view.runs.push_back({piece, piece});
        }
        view.runs.back().second++;
    }
    view.counted = true;
}

void ptx_proxy_fence(void) {
    emu_block *block = emu_self()->block;
    ptx_async_view &view = view_of(block);
    view.fenced = true;
    if (!view.counted) {
        count_runs(view);
    }
    for (const auto &run : view.runs) {
        memcpy(&view.seen[run.first * PIECE], block->shared + run.first * PIECE,
               (run.second - run.first) * PIECE);
    }
}

void ptx_proxy_brought(uint32_t address, uint32_t bytes) {
    emu_block *block = emu_self()->block->cluster[(address >> 24) - 1];
    ptx_async_view &view = view_of(block);
    const uint32_t first = (address & 0xffffffu) / PIECE,
                   end = ((address & 0xffffffu) + bytes + PIECE - 1) / PIECE;
    for (uint32_t piece = first; piece < end && piece < PIECES; piece++) {
        view.brought[piece] = true;
        if (view.watched[piece]) {
            see(view, block->shared, piece);
        }
    }
}

void ptx_proxy_read(uint32_t offset, uint32_t bytes, const ptx_instruction &instruction) {
    emu_block *block = emu_self()->block;
    ptx_async_view &view = view_of(block);
    const uint32_t end = (offset + bytes + PIECE - 1) / PIECE;
    for (uint32_t piece = offset / PIECE; piece < end && piece < PIECES; piece++) {
        const unsigned char *now = block->shared + piece * PIECE;
        const bool known = view.watched[piece] ? memcmp(&view.seen[piece * PIECE], now, PIECE) == 0
                                               : view.brought[piece] || view.fenced;
        if (!known) {
            ptx_fail(instruction,
                     "threads wrote byte %u of shared memory, and no fence.proxy.async came after that",
                     piece * PIECE);
        }
        if (!view.watched[piece]) {
            view.watched[piece] = true;
            view.counted = false;
            see(view, block->shared, piece);
        }
    }
}
