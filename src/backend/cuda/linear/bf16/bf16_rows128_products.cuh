/* The warps of bf16_rows128.cuh that multiply. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_PRODUCTS_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_PRODUCTS_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_copies.cuh"

#if SL_HAS_WGMMA

/* ---- the consumers ---- */

typedef struct skinny_places {
    skinny_place weights;
    skinny_place x;
    int32_t last; /* slot of the stage before, or -1 */
} skinny_places;

/* What a consumer warp's lane knows for good. */
typedef struct skinny_lane {
    int32_t thread, lane, warp, group; /* warp: of the group */
    int32_t part, sub;
    int32_t scale_row;  /* lane % 16 of the warp's rows, in a part */
    skinny_view view;   /* of chunk 0 */
    uint32_t scales;    /* offset, of the warp */
    const float *apart; /* skinny_kind::IS_APART: scale_row's, in the tile that is multiplied, from the lane's
                           half of chunk 0 on */
} skinny_lane;

/* Row m of the operand lies in row m of the part; with gates 8 of them and their values alternate in the
 * operand, while in shared memory 32 gates come first. */
static __device__ __forceinline__ int32_t skinny_row(bool gated, int32_t m) {
    return gated ? m / 16 * 8 + m % 8 + m % 16 / 8 * 32 : m;
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ skinny_lane skinny_lane_of(const skinny_work &work) {
    typedef skinny_layout<TYPE> layout;
    typedef skinny_memory<TYPE, ROWS> memory;
    skinny_lane me;
    me.thread = (int32_t)threadIdx.x;
    me.lane = me.thread % SL_WARP;
    me.warp = me.thread / SL_WARP % 4;
    /* The compiler knows what a shuffle gives as the same in the warp: uniform registers. */
    me.group = __shfl_sync(SL_FULL_WARP, me.thread / SKINNY_GROUP, 0);
    me.sub = me.group / work.args.parts;
    me.part = me.group - me.sub * work.args.parts;
    const bool gated = work.args.gated.data != NULL;
    enum { ROW = skinny_kind<TYPE>::IS_APART ? (int)SKINNY_CODES : (int)layout::stride };
    const uint32_t start = work.base + work.weights + (uint32_t)(me.part * SKINNY_PART * layout::stride);
    me.scale_row = skinny_row(gated, 16 * me.warp + me.lane % 16);
    me.scales = (uint32_t)(memory::scales + (me.group * 4 + me.warp) * 32 * layout::scales);
    me.view.matrix = start + (uint32_t)(me.scale_row * layout::stride + me.lane / 16 * 16);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t m = 16 * me.warp + me.lane / 4 + 8 * i;
        const int32_t row = skinny_row(gated, m);
        me.view.row[i] = start + (uint32_t)(row * ROW) +
                         (skinny_kind<TYPE>::IS_APART ? (uint32_t)(row % 8 * 16 + me.lane % 4 * 2) : 0);
    }
    me.view.pair = (uint32_t)me.lane % 4 * 2;
    me.view.select = me.view.pair * 0x1111 + 0x1100;
    me.view.table =
        work.base + memory::table + (sl_codebook<TYPE>::WIDTH == 4 ? me.view.pair % 4 : me.view.pair);
    me.view.scales = work.base + me.scales + (uint32_t)(me.lane / 4 * 16);
    me.apart = NULL;
    return me;
}

/* Of types whose scales do not come with the chunks: finds a tile's. Behind the last output they are those of
 * another, for nothing. */
template <int TYPE>
static __device__ __forceinline__ void skinny_find_scales(const skinny_work &work, const skinny_tile &tile,
                                                          skinny_lane *me) {
    if constexpr (skinny_kind<TYPE>::IS_APART) {
        const skinny_part part = skinny_part_of(work.args, tile.part + me->part);
        const bool gated = work.args.gated.data != NULL;
        const sl_cuda_weight &weight = work.args.weights[gated ? me->scale_row / 32 : part.segment];
        const int32_t output = part.output + (gated ? me->scale_row % 32 : me->scale_row);
        const uint32_t row = (uint32_t)min(output, weight.rows - 1);
        me->apart = (const float *)(weight.data + (uint64_t)tile.expert * weight.expert_bytes +
                                    row * weight.row_bytes + sl_fp8_scales_at(weight.row_bytes)) +
                    me->lane / 16;
    }
}

/* The lane's of a chunk, read ahead: 0 where scales come with the chunk. */
template <int TYPE>
static __device__ __forceinline__ float skinny_read_scale(const skinny_work &work, const skinny_lane &me,
                                                          int32_t turn) {
    return skinny_kind<TYPE>::IS_APART ? __ldg(me.apart + 2 * skinny_chunk_at(work, turn)) : 0.0f;
}

/* A matrix of x in shared memory, at 16 * place: rows of 128 bytes, groups of 8 rows 1024 bytes apart,
 * 128-byte swizzle; see PTX, "matrix descriptor". */
static __device__ __forceinline__ uint64_t skinny_matrix(uint32_t place) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | ((1u << 16) + place);
}

/* sums += 64 outputs' weights times x, 64 columns. */
template <int ROWS>
static __device__ __forceinline__ void skinny_multiply(uint32_t (&a)[4][4], uint32_t x,
                                                       float (&sums)[ROWS / 2]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])); /* now, not later */
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma<ROWS>(sums, a[k], skinny_matrix(x + (uint32_t)(2 * k)));
    }
    wgmma_commit();
}

/* A chunk in the ring, and which of a warp's two places its scales take. */
typedef struct skinny_spot {
    skinny_place place;
    int32_t chunk;  /* number of its turn: see skinny_chunk_at */
    uint32_t shift; /* bytes of a row's copy that lie before it */
    uint32_t turn;
} skinny_spot;

template <int TYPE>
static __device__ __forceinline__ uint32_t skinny_offset(const skinny_work &work, const skinny_spot &spot) {
    return spot.place.at * (uint32_t)(work.args.parts * SKINNY_PART * skinny_layout<TYPE>::stride);
}

template <int TYPE>
static __device__ __forceinline__ uint32_t skinny_shift(const skinny_work &work, int32_t turn) {
    enum { BYTES = skinny_layout<TYPE>::bytes };
    return BYTES % 16 ? (uint32_t)(skinny_chunk_at(work, turn) * BYTES) % 16 : 0;
}

template <int TYPE>
static __device__ __forceinline__ skinny_view skinny_look(const skinny_work &work, const skinny_lane &me,
                                                          const skinny_spot &spot) {
    const uint32_t at = skinny_offset<TYPE>(work, spot);
    skinny_view view = me.view;
    view.matrix += at;
    view.row[0] += at + spot.shift;
    view.row[1] += at + spot.shift;
    view.scales += spot.turn * (16 * skinny_layout<TYPE>::scales);
    return view;
}

/* A chunk's scales, decoded by its warp; they are there after a __syncwarp(). scale: of skinny_read_scale. */
template <int TYPE>
static __device__ __forceinline__ void skinny_make_scales(const skinny_work &work, const skinny_lane &me,
                                                          const skinny_spot &spot, float scale) {
    typedef skinny_layout<TYPE> layout;
    if constexpr (skinny_kind<TYPE>::IS_APART) {
        skinny_scale_of_half(
            scale, me.lane / 16,
            (uint4 *)(work.memory + me.scales + spot.turn * (16 * layout::scales) + me.lane % 16 * 16));
    } else if constexpr (layout::scales > 0) {
        const unsigned char *row = work.memory + work.weights + skinny_offset<TYPE>(work, spot) +
                                   (me.part * SKINNY_PART + me.scale_row) * layout::stride + spot.shift;
        skinny_scales<TYPE>(
            row, me.lane / 16,
            (uint4 *)(work.memory + me.scales + spot.turn * (16 * layout::scales) + me.lane % 16 * 16));
    }
}

/* done: asked early, so that nobody waits for the answer. */
static __device__ __forceinline__ void skinny_await(uint32_t done, uint32_t barrier, uint32_t parity) {
    if (!done) {
        sl_barrier_wait(barrier, parity);
    }
}

/* A stage of x has been read, if slot is not -1. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_leave_x(const skinny_work &work, const skinny_lane &me,
                                                      int32_t slot) {
    if (slot >= 0 && me.lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(skinny_barriers<TYPE, ROWS>::x_empty(work.base, (uint32_t)slot));
    }
}

typedef struct skinny_spots {
    skinny_spot now, next;
} skinny_spots;

/* A lane's weights: on their way, and what two steps' products read. */
template <int TYPE> struct skinny_hands {
    skinny_decoder<TYPE> decoder;
    uint32_t a[2][4][4];
    float scale; /* of skinny_read_scale, for the next chunk */
};

/* One chunk; the next one's scales and first columns on the way. The registers of products under way are left
 * alone until those of two steps ago are done. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_chunk(const skinny_work &work, const skinny_lane &me,
                                                    const skinny_spots &spots, skinny_places &places,
                                                    skinny_hands<TYPE> &hands, float (&sums)[ROWS / 2]) {
    const skinny_spot &now = spots.now, &next = spots.next;
    skinny_decoder<TYPE> &decoder = hands.decoder;
    typedef skinny_shape<ROWS> shape;
    typedef skinny_barriers<TYPE, ROWS> barriers;
    enum { STEPS = skinny_layout<TYPE>::columns / SKINNY_STEP, AHEAD = skinny_looks<TYPE, ROWS>::AHEAD };
    const skinny_view view = skinny_look<TYPE>(work, me, now);
    hands.scale = skinny_read_scale<TYPE>(work, me, next.chunk);
    if (shape::ahead && !AHEAD) {
        decoder.load(view, 0);
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint32_t(&mine)[4][4] = hands.a[step % 2];
        const uint32_t slot = places.x.at, x_full = barriers::x_full(work.base, slot),
                       x_parity = places.x.parity;
        const uint32_t full = barriers::full(work.base, next.place.at);
        const uint32_t x_there = step % 2 == 0 ? sl_barrier_ask(x_full, x_parity) : 0;
        const uint32_t there = AHEAD && step + 2 == STEPS ? sl_barrier_ask(full, next.place.parity) : 0;
        if (!shape::ahead) {
            decoder.load(view, step);
        }
        wgmma_wait<1>(mine);
        /* Products with the group's stage before this one are done. */
        if (step % 2) {
            skinny_leave_x<TYPE, ROWS>(work, me, places.last);
        }
        decoder.run(view, step, mine);
        if (shape::ahead && step + 1 < STEPS) {
            decoder.load(view, step + 1);
        }
        if (AHEAD && step + 1 == STEPS) {
            __syncwarp();
            decoder.load(skinny_look<TYPE>(work, me, next), 0);
        }
        if (step % 2 == 0) { /* a loop between two steps would make the assembler wait for every product */
            skinny_await(x_there, x_full, x_parity);
            if (work.args.list) { /* of x that was not copied by boxes */
                sl_fence_shared();
            }
        }
        if (AHEAD && step + 2 == STEPS) {
            skinny_await(there, full, next.place.parity);
        }
        skinny_multiply<ROWS>(mine,
                              (work.base + skinny_memory<TYPE, ROWS>::x + slot * shape::stage_bytes) / 16 +
                                  (uint32_t)(step % 2 * shape::step_bytes / 16),
                              sums);
        if (AHEAD && step + 2 == STEPS) {
            skinny_make_scales<TYPE>(work, me, next, hands.scale);
        }
        if (step % 2) {
            places.last = (int32_t)slot;
            skinny_skip(&places.x, 1, (uint32_t)work.args.stages);
        }
    }
}

/* Waits for a chunk, and makes its scales. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_take(const skinny_work &work, const skinny_lane &me,
                                                   const skinny_spot &spot, float scale) {
    sl_barrier_wait(skinny_barriers<TYPE, ROWS>::full(work.base, spot.place.at), spot.place.parity);
    skinny_make_scales<TYPE>(work, me, spot, scale);
    __syncwarp();
}

/* The group's first chunk of a tile. */
template <int TYPE>
static __device__ __forceinline__ skinny_spot skinny_first(const skinny_work &work, const skinny_lane &me,
                                                           const skinny_places &places) {
    const int32_t first = work.first_chunk + me.sub;
    return {places.weights, first, skinny_shift<TYPE>(work, first), 0};
}

/* The range's columns of a tile. taken: the first chunk is already. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_consume(const skinny_work &work, const skinny_lane &me,
                                                      skinny_places &places, bool taken,
                                                      float (&sums)[ROWS / 2]) {
    enum { AHEAD = skinny_looks<TYPE, ROWS>::AHEAD };
    skinny_spots spots = {skinny_first<TYPE>(work, me, places), {{0, 0}, 0, 0, 0}};
    skinny_spot &now = spots.now, &next = spots.next;
    if (now.chunk >= work.end_chunk) {
        return;
    }
    skinny_hands<TYPE> hands;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        hands.a[i / 16][i % 16 / 4][i % 4] = 0;
    }
    if (!taken) {
        hands.scale = skinny_read_scale<TYPE>(work, me, now.chunk);
    }
    if (AHEAD) {
        if (!taken) {
            skinny_take<TYPE, ROWS>(work, me, now, hands.scale);
        }
        hands.decoder.load(skinny_look<TYPE>(work, me, now), 0);
    }
#pragma unroll 1
    for (bool more = true; more;) {
        if (!AHEAD && !taken) {
            skinny_take<TYPE, ROWS>(work, me, now, hands.scale);
        }
        taken = false;
        const int32_t turn = now.chunk + work.args.subs;
        next = {now.place, turn, skinny_shift<TYPE>(work, turn), now.turn ^ 1};
        skinny_skip(&next.place, (uint32_t)work.args.subs, (uint32_t)work.args.chunks);
        places.weights = next.place;
        more = next.chunk < work.end_chunk;
        if (!more) { /* the same again, for nothing */
            next.place = now.place;
            next.chunk = now.chunk;
            next.shift = now.shift;
        }
        skinny_chunk<TYPE, ROWS>(work, me, spots, places, hands, sums);
        __syncwarp();
        if (me.lane < SL_ARRIVING_LANES) {
            sl_barrier_arrive(skinny_barriers<TYPE, ROWS>::empty(work.base, now.place.at));
        }
        if (work.args.subs > 1) {
            enum { STAGES = skinny_layout<TYPE>::columns / (2 * SKINNY_STEP) }; /* of a chunk */
            skinny_skip(&places.x, (uint32_t)((work.args.subs - 1) * STAGES), (uint32_t)work.args.stages);
        }
        now = next;
    }
    wgmma_wait<0>(hands.a[0]);
    wgmma_wait<0>(hands.a[1]);
    if (work.args.subs > 1) { /* others may wait for it; there is one tile */
        skinny_leave_x<TYPE, ROWS>(work, me, places.last);
    }
}

#endif
#endif
