/* Weights of Q8_0 to the chains of k16_rows8.cuh, from rings whose slots have whole lines of the cache.
 *
 * TMA takes a row of a box line by line. A chunk of 256 columns, 272 bytes, touches three lines, so that what
 * a box of it brings costs as much as 384 bytes. Here a slot has one line of each of a tile's rows, in pieces
 * of 16 bytes which TMA has moved (piece p of row r lies in place p ^ r % 8), and a chunk is 17 pieces in
 * three slots.
 *
 * A lane loads matrices: bytes 4 t .. 4 t + 3 of a piece, t = lane % 4. Sixteen quants lie in two pieces,
 * from byte d = (2 block + 2) % 16 of the first on; a lane takes those of its four bytes that lie at d or
 * behind from the first and the others from the second, so that it has columns (4 t + i - d) % 16. x is
 * stored to fit (slim_places); it changes no bit which of the sixteen columns of an instruction takes which
 * place. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_LINES_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_LINES_CUH

#include "backend/cuda/linear/k16/k16_rows8.cuh"

#if SL_HAS_WGMMA

enum {
    SLIM_LINE_PIECES = SLIM_LINE / 16,
    SLIM_CHUNK_SLOTS = 3,                 /* that have a chunk */
    SLIM_BLOCKS_BYTES = 2 * SL_Q8_0_BYTES /* of a step */
};

/* 64 columns, two blocks: step `step` of a chunk, which the compiler knows. */
typedef struct slim_line_words {
    uint32_t words[5][2]; /* [piece, from 4 step of the chunk on][rows 0 .. 7 or 8 .. 15] */
    uint32_t scales[2];   /* of both blocks */
} slim_line_words;

/* Which bytes of two words a lane takes, for d = 2, 4 .. 14. */
typedef struct slim_line_places {
    uint32_t selectors[7];
} slim_line_places;

static __device__ __forceinline__ slim_line_places slim_line_places_of(int32_t lane) {
    slim_line_places places;
#pragma unroll
    for (int i = 0; i < 7; i++) {
        const int32_t over = 2 * (i + 1) - lane % 4 * 4;
        places.selectors[i] = 0x3210u + (over >= 2 ? 0x0044u : 0u) + (over >= 4 ? 0x4400u : 0u);
    }
    return places;
}

/* A step's scales, which one lane of four has. */
static __device__ __forceinline__ void slim_line_scales(const uint32_t (&scales)[2], int step, int32_t lane,
                                                        slim_line_words &to) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        to.scales[row] = __shfl_sync(SL_FULL_WARP, scales[row], (lane & ~3) + step);
    }
}

/* Of a step's block `half`: columns 16 k .. in a[k]. */
template <int HALF>
static __device__ __forceinline__ void slim_line_run(const slim_line_words &from, int step,
                                                     const slim_line_places &places, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const uint32_t scale = thin_half_of(from.scales[row], HALF);
        const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q8_0);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int at = SLIM_BLOCKS_BYTES % 16 * step + HALF * SL_Q8_0_BYTES + 2 + 16 * k;
            const int piece = at / 16, d = at % 16;
            uint32_t word = from.words[piece][row];
            if (d > 0) {
                word = __byte_perm(word, from.words[piece + 1][row], places.selectors[d / 2 - 1]);
            }
            word ^= 0x80808080u;
            a[k][row] = skinny_value(__byte_perm(word, 0, 0x4140), scale, constant);
            a[k][2 + row] = skinny_value(__byte_perm(word, 0, 0x4342), scale, constant);
        }
    }
}

/* Where a warp loads from. Bytes of the ring are those of one row. */
typedef struct slim_line_reader {
    uint32_t row;             /* place of row lane % 16 in the ring's first line, and its turn */
    uint32_t scale_row;       /* the same of row lane / 4 */
    uint32_t ring;            /* bytes */
    uint32_t full, empty;     /* the first slot's barriers */
    uint32_t barrier, parity; /* of the slot where the chunk begins */
    int32_t shift, chunks;    /* piece of that slot; chunks left of the tile */
    uint32_t byte;            /* of the ring, that the chunk begins with */
    bool fresh;               /* nobody has waited for that slot */
} slim_line_reader;

/* Piece with byte `more` of the chunk: of a row that has the ring's first line at `row`. */
static __device__ __forceinline__ uint32_t slim_line_at(const slim_line_reader &from, uint32_t row,
                                                        uint32_t more) {
    uint32_t at = from.byte + more;
    at = min(at, at - from.ring);
    return (at & ~(SLIM_LINE - 1u)) * CHAIN_ROWS + ((at & (SLIM_LINE - 16u)) ^ row);
}

static __device__ __forceinline__ void slim_line_next(const slim_work &work, uint32_t &barrier,
                                                      uint32_t &parity) {
    const bool wraps = barrier + 8 == 8 * (uint32_t)work.args.stages;
    barrier = wraps ? 0 : barrier + 8;
    parity ^= wraps;
}

/* Until the next chunk is there. */
static __device__ __forceinline__ void slim_line_wait(const slim_work &work, const slim_line_reader &from) {
    uint32_t barrier = from.barrier, parity = from.parity;
    if (from.fresh) {
        sl_barrier_wait(from.full + barrier, parity);
    }
#pragma unroll
    for (int i = 1; i < SLIM_CHUNK_SLOTS; i++) {
        slim_line_next(work, barrier, parity);
        sl_barrier_wait(from.full + barrier, parity);
    }
}

/* The chunk's scales that a lane has for its four: those of step lane % 4, of either row. */
static __device__ __forceinline__ void slim_line_load_scales(const slim_line_reader &from, int32_t lane,
                                                             uint32_t (&halves)[2][2]) {
    const uint32_t step = (uint32_t)(lane % 4);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t at =
            slim_line_at(from, from.scale_row, 64 * step + (uint32_t)(32 * i)) + 4 * step + (uint32_t)(2 * i);
        halves[0][i] = skinny_short(at);
        halves[1][i] = skinny_short(at + 8 * SLIM_LINE);
    }
}

static __device__ __forceinline__ void slim_line_make_scales(const uint32_t (&halves)[2][2],
                                                             uint32_t (&scales)[2]) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        scales[row] =
            sl_bf16_pair(sl_half_of(halves[row][0]) * SKINNY_UP, sl_half_of(halves[row][1]) * SKINNY_UP);
    }
}

/* Step `step` of the chunk; before: the step in front of it. */
static __device__ __forceinline__ void slim_line_load(const slim_line_reader &from, int step, int32_t lane,
                                                      const slim_line_words &before, slim_line_words &to) {
    const uint32_t upper = (uint32_t)(lane / 16 * 16);
    uint32_t words[4];
    if (step == 0) {
        sl_load_matrices(slim_line_at(from, from.row, upper), words);
        to.words[0][0] = words[0];
        to.words[0][1] = words[1];
    } else {
        to.words[0][0] = before.words[4][0];
        to.words[0][1] = before.words[4][1];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sl_load_matrices(slim_line_at(from, from.row, upper + (uint32_t)(64 * step + 32 * i + 16)), words);
        to.words[1 + 2 * i][0] = words[0];
        to.words[1 + 2 * i][1] = words[1];
        to.words[2 + 2 * i][0] = words[2];
        to.words[2 + 2 * i][1] = words[3];
    }
}

/* All of the chunk is loaded. */
static __device__ __forceinline__ void slim_line_leave(const slim_work &work, slim_line_reader &from) {
    const bool ends = --from.chunks == 0, all = ends || from.shift == SLIM_LINE_PIECES - 1;
    __syncwarp();
#pragma unroll
    for (int i = 1; i < SLIM_CHUNK_SLOTS; i++) { /* the last one has the next chunk's beginning */
        sl_barrier_arrive_if(from.empty + from.barrier, work.lane < SL_ARRIVING_LANES);
        slim_line_next(work, from.barrier, from.parity);
    }
    sl_barrier_arrive_if(from.empty + from.barrier, work.lane < SL_ARRIVING_LANES && all);
    if (all) {
        slim_line_next(work, from.barrier, from.parity);
    }
    from.shift = ends ? work.shift : (from.shift + 1) % SLIM_LINE_PIECES;
    from.chunks = ends ? work.chunks : from.chunks;
    from.byte = from.barrier * (SLIM_LINE / 8) + (uint32_t)from.shift * 16;
    from.fresh = all;
}

/* As slim_stream_chunks. */
template <typename LAYOUT, typename BEGIN, typename FINISH>
static __device__ __forceinline__ void slim_stream_lines(const slim_work &work, BEGIN begin, FINISH finish) {
    enum { COLUMNS = LAYOUT::columns, STEPS = COLUMNS / SLIM_STEP };
    const slim_ring ring = slim_ring_of<LAYOUT>(work);
    const slim_line_places places = slim_line_places_of(work.lane);
    const uint32_t x_begin = slim_x_of<LAYOUT>(work);
    slim_line_reader from = {ring.slots + (uint32_t)(work.lane % 16 * SLIM_LINE + work.lane % 8 * 16),
                             ring.slots + (uint32_t)(work.lane / 4 * (SLIM_LINE + 16)),
                             (uint32_t)(work.args.stages * SLIM_LINE),
                             ring.full,
                             ring.empty,
                             0,
                             0,
                             work.shift,
                             work.chunks,
                             (uint32_t)work.shift * 16,
                             true};
    slim_line_words words[2] = {};
    uint32_t a[2][2][4], x[2][4];
    float d[4] = {};
    uint32_t x_from = x_begin;
    int32_t left = (work.end_tile - work.first_tile + work.tile_step - 1) / work.tile_step * work.chunks;
    int32_t round = 0, part = 0;
    uint32_t halves[2][2], scales[2];
    slim_line_wait(work, from);
    slim_line_load_scales(from, work.lane, halves);
    slim_line_load(from, 0, work.lane, words[1], words[0]);
    slim_line_make_scales(halves, scales);
    slim_line_scales(scales, 0, work.lane, words[0]);
    slim_line_run<0>(words[0], 0, places, a[0]);
    int32_t until = work.chunks - slim_wait_x(work, 0, &part); /* chunks left of the tile, then */
    slim_read_x(x_from, x[0]);
#pragma unroll 1
    while (left > 0) {
        begin(round);
#pragma unroll 1
        for (int32_t rest = work.chunks; rest > 0; rest--, left--) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const bool ends = step + 1 == STEPS;
                const int next = (step + 1) % STEPS;
                if (ends) {
                    if (left > 1) { /* what is decoded ahead in the end is nobody's */
                        slim_line_wait(work, from);
                    }
                    slim_line_load_scales(from, work.lane, halves);
                }
                slim_line_load(from, next, work.lane, words[step % 2], words[next % 2]);
                if (step == 2) {
                    slim_line_leave(work, from);
                }
                slim_read_x(x_from + (uint32_t)(2 * SLIM_STEP * step + 16), x[1]);
                sl_mma_bf16(d, a[0][0], x[0][0], x[0][1]);
                sl_mma_bf16(d, a[0][1], x[0][2], x[0][3]);
                if (step == 0 && rest - 1 == until) {
                    until = work.chunks - slim_wait_x(work, work.chunks - until, &part);
                }
                slim_line_run<1>(words[step % 2], step, places, a[1]);
                if (ends) {
                    slim_line_make_scales(halves, scales);
                }
                slim_line_scales(scales, next, work.lane, words[next % 2]);
                x_from = !ends ? x_from : rest == 1 ? x_begin : x_from + 2 * COLUMNS;
                slim_read_x(ends ? x_from : x_from + (uint32_t)(2 * SLIM_STEP * (step + 1)), x[0]);
                sl_mma_bf16(d, a[1][0], x[1][0], x[1][1]);
                sl_mma_bf16(d, a[1][1], x[1][2], x[1][3]);
                slim_line_run<0>(words[next % 2], next, places, a[0]);
            }
        }
        finish(d, round);
        d[0] = d[1] = d[2] = d[3] = 0.0f;
        round++;
    }
}
#endif

#endif
