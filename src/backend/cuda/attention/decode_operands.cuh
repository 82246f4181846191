/* Keys, queries and values of decode.cuh as operands of products, and the softmax between them. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DECODE_OPERANDS_CUH
#define SL_BACKEND_CUDA_ATTENTION_DECODE_OPERANDS_CUH

#include "backend/cuda/attention/decode_work.cuh"

#if __CUDA_ARCH__ >= 900

/* ---- operands ---- */

/* The columns that a lane multiplies in step s of q . k, as the instruction's 2 j, 2 j + 1, 2 j + 8, 2 j + 9
 * with j = lane % 4. Where an element is decoded on the way, a lane's columns lie together if the class lets
 * them. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t decode_column(int32_t step, int32_t half) {
    const int32_t j = (int32_t)threadIdx.x % 4;
    return SHAPE::APART ? j * (SHAPE::COLUMNS / 4) + 4 * step + 2 * half : 16 * step + 2 * j + 8 * half;
}

/* A lane's pairs of an item's q, as they come. */
template <typename SHAPE> struct decode_pairs {
    static constexpr int OF_UNIT = SHAPE::COLUMNS / 2 / SL_WARP;
    float2 pair[SHAPE::UNITS][OF_UNIT];
};

/* By a warp. */
template <typename SHAPE>
static __device__ __forceinline__ void decode_load_queries(const decode_args &args, const decode_item &item,
                                                           int32_t key_size, decode_pairs<SHAPE> *pairs) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          7) == 0;
#pragma unroll
    for (int u = 0; u < SHAPE::UNITS; u++) {
        const int32_t unit = item.unit + u, of_span = hopper_divide(unit, args.ratio);
        const int32_t head = item.kv_head * args.ratio + unit - of_span * args.ratio;
        const float *from = sl_f32(args.q, item.first_row + of_span) + head * args.attention.q_stride;
#pragma unroll
        for (int k = 0; k < decode_pairs<SHAPE>::OF_UNIT; k++) {
            const int32_t c = 2 * (k * SL_WARP + lane);
            float2 pair = make_float2(0, 0);
            if (u < item.units && c < key_size) {
                pair = aligned ? __ldcg((const float2 *)(from + c))
                               : make_float2(__ldcg(from + c), __ldcg(from + c + 1));
            }
            pairs->pair[u][k] = pair;
        }
    }
}

/* By the same warp: the item and its q to those that multiply. phase: of the items before in turns 0 and 1.
 */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void
decode_hand_over(const decode_item &item, const decode_pairs<SHAPE> &pairs, uint32_t phase, SHARED *shared) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_barrier_wait(sl_shared_address(&shared->taken), phase ^ 1);
#pragma unroll
    for (int u = 0; u < SHAPE::UNITS; u++) {
#pragma unroll
        for (int k = 0; k < decode_pairs<SHAPE>::OF_UNIT; k++) {
            const float2 pair = pairs.pair[u][k];
            shared->queries[u][k * SL_WARP + lane] = mma_pack<TYPE>(mma_q(pair.x), mma_q(pair.y));
        }
    }
    if (lane == 0) {
        shared->item = item;
    }
    __syncwarp();
    if (lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(sl_shared_address(&shared->handed));
    }
}

template <bool ONE>
static __device__ __forceinline__ int32_t decode_row_of(const decode_args &args, const decode_item &item,
                                                        int32_t u) {
    return item.first_row + decode_rows_before<ONE>(args, item.unit + u);
}

template <bool ONE>
static __device__ __forceinline__ int32_t decode_head_of(const decode_args &args, const decode_item &item,
                                                         int32_t u) {
    const int32_t unit = item.unit + u;
    return item.kv_head * args.ratio + unit - decode_rows_before<ONE>(args, unit) * args.ratio;
}

/* What a warp makes heads with. */
template <int QUADS> struct decode_maker {
    float4 q_weight[QUADS], k_weight[QUADS];
    sl_turns<QUADS> turn;
};

/* Reads weights and the step block only. */
template <int QUADS>
static __device__ __forceinline__ void decode_begin_heads(const sl_cuda_context &context,
                                                          const sl_heads_args &args, int32_t row,
                                                          decode_maker<QUADS> *maker) {
    const int32_t size = context.caches[args.place.group].key_size;
    sl_load_head_weights(args.q_weight, args.q_offset, size, maker->q_weight);
    sl_load_head_weights(args.k_weight, args.k_offset, size, maker->k_weight);
    sl_make_turns(args.rope, args.frequencies, context.rows[row].position, maker->turn);
}

/* Heads of q, rounded, to `shared`, and the step's key and value. By all warps that multiply. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void
decode_make_heads(const sl_cuda_context &context, const decode_args &args, const sl_heads_args &made,
                  const decode_item &item, const decode_maker<SHAPE::QUADS> &maker, SHARED *shared) {
    enum { EACH = SHAPE::UNITS / DECODE_WARPS, QUADS = SHAPE::QUADS };
    const sl_cuda_cache &cache = context.caches[made.place.group];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const bool has_newest = decode_has_newest(item);
    /* The warp in whose strand it is makes it. */
    const bool makes = has_newest && item.length % MMA_KEYS / 16 == warp;
    float4 x[EACH][QUADS], k[QUADS], v[QUADS];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int32_t at = warp + e * DECODE_WARPS, unit = at < item.units ? at : 0;
        sl_load_head(sl_f32(made.q, item.first_row) +
                         decode_head_of<true>(args, item, unit) * made.rope.stride,
                     at < item.units ? cache.key_size : 0, x[e]);
    }
    sl_load_head(sl_f32(made.k, item.first_row) + item.kv_head * cache.key_size, makes ? cache.key_size : 0,
                 k);
    sl_load_head(sl_f32(made.v, item.first_row) + item.kv_head * cache.value_size,
                 makes ? cache.value_size : 0, v);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int32_t at = warp + e * DECODE_WARPS;
        if (at < item.units) {
            if (made.has_norms) {
                sl_norm_head(made.share, made.q_epsilon, maker.q_weight, x[e]);
            }
            sl_turn_head_in_warp(made.rope, maker.turn, x[e]);
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            if (sl_head_at(i) < SHAPE::COLUMNS) {
                *(uint2 *)(void *)&shared->queries[at][sl_head_at(i) / 2] =
                    make_uint2(mma_pack<TYPE>(mma_q(x[e][i].x), mma_q(x[e][i].y)),
                               mma_pack<TYPE>(mma_q(x[e][i].z), mma_q(x[e][i].w)));
            }
        }
    }
    if (makes) {
        if (made.has_norms) {
            sl_norm_head(made.share, made.k_epsilon, maker.k_weight, k);
        }
        sl_turn_head_in_warp(made.rope, maker.turn, k);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            shared->newest[0][i][lane] = k[i];
            shared->newest[1][i][lane] = v[i];
        }
    }
    if (has_newest) {
        sl_meet_without_waiting(DECODE_NEWEST, DECODE_THREADS);
    }
    sl_meet(1, DECODE_MULTIPLIERS);
}

template <typename SHAPE, typename SHARED>
static __device__ __forceinline__ void
decode_take_queries(const SHARED &shared, uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int n = 0; n < SHAPE::UNITS / 8; n++) {
#pragma unroll
        for (int step = 0; step < SHAPE::COLUMNS / 16; step++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                q[n][step][half] = shared.queries[8 * n + lane / 4][decode_column<SHAPE>(step, half) / 2];
            }
        }
    }
}

/* Where element i of a row of a slot lies, minus where it would lie in the cache. */
template <typename SHAPE>
static __device__ __forceinline__ unsigned char *decode_slot_row(unsigned char *slot, int32_t row,
                                                                 int32_t row_bytes, int32_t i) {
    if (SHAPE::RAW) {
        return slot + row * row_bytes;
    }
    const int32_t byte = i * SHAPE::BYTES, piece = byte / 16;
    return slot + (piece / 8 * MMA_KEYS + row) * 128 + ((piece ^ row) & 7) * 16 + byte % 16 - byte;
}

/* The step's key or value to the slot of its tile, if the warp's 16 keys from `base` on are with it. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_add_newest(const sl_cuda_cache &cache, const decode_item &item,
                                                         int32_t base, bool is_value, unsigned char *slot,
                                                         const SHARED *shared) {
    if (item.length / 16 != base / 16) {
        return;
    }
    const int32_t row_bytes = (int32_t)(is_value ? cache.value_bytes : cache.key_bytes);
#pragma unroll
    for (int k = 0; k < SHAPE::QUADS; k++) {
        const int32_t i = sl_head_at(k);
        unsigned char *row = decode_slot_row<SHAPE>(slot, item.length % MMA_KEYS, row_bytes, i);
        sl_encode_quad<true>((sl_qtype)TYPE, shared->newest[is_value][k][threadIdx.x % SL_WARP], row, i,
                             is_value ? cache.value_size : cache.key_size);
    }
    __syncwarp();
}

/* Keys or values of the sequence's earlier rows in this step likewise, as their own blocks make them: those
 * write them to the cache, nobody knows when. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void decode_add_earlier(const sl_cuda_context &context,
                                                          const sl_heads_args &made, const decode_item &item,
                                                          int32_t base, bool is_value, unsigned char *slot) {
    enum { QUADS = SHAPE::QUADS };
    const sl_cuda_cache &cache = context.caches[made.place.group];
    const int32_t size = is_value ? cache.value_size : cache.key_size;
    const int32_t row_bytes = (int32_t)(is_value ? cache.value_bytes : cache.key_bytes);
#pragma unroll 1
    for (int32_t index = max(base, item.fresh); index < min(base + 16, item.length); index++) {
        const int32_t row = item.first_row + index - item.length;
        float4 x[QUADS];
        sl_load_head(sl_f32(is_value ? made.v : made.k, row) + item.kv_head * size, size, x);
        if (!is_value) {
            sl_turns<QUADS> turn;
            sl_make_turns(made.rope, made.frequencies, context.rows[row].position, turn);
            if (made.has_norms) {
                float4 weight[QUADS];
                sl_load_head_weights(made.k_weight, made.k_offset, size, weight);
                sl_norm_head(made.share, made.k_epsilon, weight, x);
            }
            sl_turn_head_in_warp(made.rope, turn, x);
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            unsigned char *to = decode_slot_row<SHAPE>(slot, index % MMA_KEYS, row_bytes, sl_head_at(i));
            sl_encode_quad<true>((sl_qtype)TYPE, x[i], to, sl_head_at(i), size);
        }
        __syncwarp();
    }
}

/* Both to the cache, by the warp that copied the tiles: nobody waits for it. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_write_newest(const sl_cuda_context &context,
                                                           const sl_cache_place &place,
                                                           const decode_item &item, const SHARED *shared) {
    const sl_cuda_cache &cache = context.caches[place.group];
    const int32_t page = __ldcg(item.table + item.length / MMA_KEYS);
    sl_meet(DECODE_NEWEST, DECODE_THREADS);
    if (page < 0) {
        return;
    }
    const sl_cache_spot spot = {cache.pages + (uint64_t)page * cache.page_bytes +
                                    (uint64_t)place.layer * cache.layer_bytes,
                                item.length % MMA_KEYS};
#pragma unroll
    for (int k = 0; k < SHAPE::QUADS; k++) {
#pragma unroll
        for (int is_value = 0; is_value < 2; is_value++) {
            sl_encode_quad<true>((sl_qtype)TYPE, shared->newest[is_value][k][threadIdx.x % SL_WARP],
                                 sl_cache_row(cache, spot, is_value, item.kv_head), sl_head_at(k),
                                 is_value ? cache.value_size : cache.key_size);
        }
    }
}

/* Of four int8 values with their sign bits turned over two times a scale, as f16, rounded once. */
template <bool UPPER> static __device__ __forceinline__ uint32_t decode_int8(uint32_t four, uint32_t scale) {
    uint32_t pair = __byte_perm(four, 0x64646464u, UPPER ? 0x4342 : 0x4140);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x64806480u)); /* 1024 + 128 */
    asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
    return pair;
}

/* A slot's rows from `row` on, one for each of 16 keys. */
typedef struct decode_slice {
    const unsigned char *slot;
    int32_t row, row_bytes;
    int32_t size; /* columns that there are */
} decode_slice;

/* Where column c of a row of a slot lies, where rows do not lie there as in the page. */
static __device__ __forceinline__ const unsigned char *decode_byte(const decode_slice &rows, int32_t row,
                                                                   int32_t c) {
    return rows.slot + (c / 128 * MMA_KEYS + row) * 128 + ((c / 16 ^ row) & 7) * 16 + c % 16;
}

/* The scale of the block with column c of a raw row; 0 where there is none. */
static __device__ __forceinline__ uint32_t decode_block_scale(const decode_slice &rows, int32_t row,
                                                              int32_t c) {
    const uint32_t scale =
        *(const uint16_t *)(rows.slot + row * rows.row_bytes + c / 32 * SL_Q8_0_BYTES); /* or what is there */
    return c < rows.size ? scale : 0;
}

/* PAIRS pairs of columns of one block of a raw row from c on, their sign bits turned over. A row begins at an
 * even byte, so that no pair lies across words. Where words begin with the row, the last one read is behind
 * it, perhaps of another slot; nothing of it is taken. */
template <int PAIRS>
static __device__ __forceinline__ void decode_read_raw(const decode_slice &rows, int32_t row, int32_t c,
                                                       uint32_t words[(PAIRS + 1) / 2]) {
    constexpr int READ = PAIRS / 2 + 1;
    const int32_t at = row * rows.row_bytes + c / 32 * SL_Q8_0_BYTES + 2 + c % 32;
    const uint32_t *from = (const uint32_t *)(rows.slot + (at & ~3));
    const uint32_t order = at % 4 == 0 ? 0x3210 : 0x5432;
    uint32_t read[READ];
#pragma unroll
    for (int i = 0; i < READ; i++) {
        read[i] = from[i] ^ 0x80808080u;
    }
#pragma unroll
    for (int i = 0; i < (PAIRS + 1) / 2; i++) {
        words[i] = __byte_perm(read[i], read[i + 1 < READ ? i + 1 : i], order);
    }
}

/* Of E4M3 the same, where these are 4, 8 or 16 bytes at a multiple of that. */
template <int PAIRS>
static __device__ __forceinline__ void decode_read_e4m3(const decode_slice &rows, int32_t row, int32_t c,
                                                        uint32_t words[(PAIRS + 1) / 2]) {
    const unsigned char *from = decode_byte(rows, row, c);
    static_assert(PAIRS == 2 || PAIRS == 4 || PAIRS == 8, "what one instruction loads");
    if constexpr (PAIRS == 8) {
        const uint4 four = *(const uint4 *)from;
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    } else if constexpr (PAIRS == 4) {
        const uint2 two = *(const uint2 *)from;
        words[0] = two.x;
        words[1] = two.y;
    } else {
        words[0] = *(const uint32_t *)from;
    }
}

/* Columns of a lane's two keys that lie together, of STEPS steps. */
template <typename SHAPE> struct decode_key_run {
    static constexpr int MOST = SHAPE::RAW ? 8 : 4; /* a block, or what one instruction loads */
    static constexpr int STEPS = SHAPE::COLUMNS / 16 < MOST ? SHAPE::COLUMNS / 16 : MOST;
    uint32_t words[2][STEPS], scale[2];
};

template <typename SHAPE>
static __device__ __forceinline__ void decode_read_keys(const decode_slice &keys, int32_t step,
                                                        decode_key_run<SHAPE> *run) {
    const int32_t key = keys.row + (int32_t)threadIdx.x % SL_WARP / 4, c = decode_column<SHAPE>(step, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if constexpr (SHAPE::RAW) {
            run->scale[h] = decode_block_scale(keys, key + 8 * h, c) * 0x10001u;
            decode_read_raw<2 * decode_key_run<SHAPE>::STEPS>(keys, key + 8 * h, c, run->words[h]);
        } else {
            decode_read_e4m3<2 * decode_key_run<SHAPE>::STEPS>(keys, key + 8 * h, c, run->words[h]);
        }
    }
}

/* The keys of a step where they are decoded on the way. */
template <typename SHAPE>
static __device__ __forceinline__ void decode_key_operand(const decode_slice &keys, int32_t step,
                                                          decode_key_run<SHAPE> *run, uint32_t a[4]) {
    constexpr int STEPS = decode_key_run<SHAPE>::STEPS;
    const int32_t key = keys.row + (int32_t)threadIdx.x % SL_WARP / 4, c = decode_column<SHAPE>(step, 0);
    if (SHAPE::APART && step % STEPS == 0) {
        decode_read_keys<SHAPE>(keys, step, run);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t row = key + 8 * h;
        if constexpr (SHAPE::APART && SHAPE::RAW) {
            a[h] = decode_int8<false>(run->words[h][step % STEPS], run->scale[h]);
            a[2 + h] = decode_int8<true>(run->words[h][step % STEPS], run->scale[h]);
        } else if constexpr (SHAPE::APART) {
            a[h] = mma_e4m3(run->words[h][step % STEPS] & 0xffffu);
            a[2 + h] = mma_e4m3(run->words[h][step % STEPS] >> 16);
        } else if constexpr (SHAPE::RAW) { /* a block is two steps */
            if (step % 2 == 0) {
                run->scale[h] = decode_block_scale(keys, row, 16 * step) * 0x10001u;
            }
            const uint16_t *quants =
                (const uint16_t *)(keys.slot + row * keys.row_bytes + step / 2 * SL_Q8_0_BYTES + 2 + c % 32);
            a[h] = decode_int8<false>(quants[0] ^ 0x8080u, run->scale[h]);
            a[2 + h] = decode_int8<false>(quants[4] ^ 0x8080u, run->scale[h]);
        } else { /* both of a step lie in one piece */
            const unsigned char *at = decode_byte(keys, row, c);
            a[h] = mma_e4m3(*(const uint16_t *)at);
            a[2 + h] = mma_e4m3(*(const uint16_t *)(at + 8));
        }
    }
}

/* s = k . q for the warp's keys. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void
decode_scores(const decode_slice &keys, const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2],
              float s[SHAPE::UNITS / 8][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float sums[SHAPE::UNITS / 8][2][4];
#pragma unroll
    for (int n = 0; n < SHAPE::UNITS / 8; n++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            sums[n][e / 4][e % 4] = 0;
        }
    }
    const uint32_t at = sl_shared_address(keys.slot);
    decode_key_run<SHAPE> run;
#pragma unroll
    for (int step = 0; step < SHAPE::COLUMNS / 16; step++) {
        uint32_t a[4];
        if constexpr (SHAPE::RAW || SHAPE::BYTES == 1) {
            decode_key_operand<SHAPE>(keys, step, &run, a);
        } else {
            const int32_t k = keys.row + lane % 16, piece = 2 * step + lane / 16;
            sl_load_matrices(at + (uint32_t)((piece / 8 * MMA_KEYS + k) * 128 + ((piece ^ k) & 7) * 16), a);
        }
#pragma unroll
        for (int n = 0; n < SHAPE::UNITS / 8; n++) {
            mma_mma<TYPE>(sums[n][SHAPE::CHUNKS ? 0 : step % 2], a, q[n][step][0], q[n][step][1]);
        }
    }
#pragma unroll
    for (int n = 0; n < SHAPE::UNITS / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = SHAPE::CHUNKS ? sums[n][0][e] : sums[n][0][e] + sums[n][1][e];
        }
    }
}

/* The column of y that row `r` of 16 of the instruction is. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t decode_value_column(int32_t block, int32_t h) {
    const int32_t r = (int32_t)threadIdx.x % SL_WARP / 4;
    return SHAPE::RAW || SHAPE::BYTES == 1 ? r * (SHAPE::COLUMNS / 8) + 2 * block + h
                                           : 16 * block + r + 8 * h;
}

/* Columns of a lane's four keys that lie together, of some of BLOCKS blocks. */
template <typename SHAPE, int BLOCKS> struct decode_value_run {
    static constexpr int MOST = SHAPE::RAW ? 16 : 8;
    static constexpr int PAIRS = BLOCKS < MOST ? BLOCKS : MOST;
    uint32_t words[4][(PAIRS + 1) / 2];
    uint32_t factor[2]; /* of two keys: scales, or which bytes of each are of a key that some unit sees */
};

template <typename SHAPE, int BLOCKS>
static __device__ __forceinline__ void decode_read_values(const decode_slice &values, int32_t block,
                                                          const uint32_t seen[2],
                                                          decode_value_run<SHAPE, BLOCKS> *run) {
    constexpr int PAIRS = decode_value_run<SHAPE, BLOCKS>::PAIRS;
    const int32_t key = values.row + 2 * ((int32_t)threadIdx.x % 4);
    const int32_t c = decode_value_column<SHAPE>(block, 0);
    uint32_t scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t row = key + i / 2 * 8 + i % 2;
        if constexpr (SHAPE::RAW) {
            scale[i] = decode_block_scale(values, row, c);
            decode_read_raw<PAIRS>(values, row, c, run->words[i]);
        } else {
            decode_read_e4m3<PAIRS>(values, row, c, run->words[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        run->factor[i] =
            SHAPE::RAW ? seen[i] & (scale[2 * i] | scale[2 * i + 1] << 16) : __byte_perm(seen[i], 0, 0x2020);
    }
}

/* The values of a block, from pair `at` of the run: columns of two keys are put side by side as bytes. */
template <typename SHAPE, int BLOCKS>
static __device__ __forceinline__ void decode_value_operand(const decode_value_run<SHAPE, BLOCKS> &run,
                                                            int32_t at, uint32_t a[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t four = __byte_perm(run.words[2 * i][at / 2], run.words[2 * i + 1][at / 2],
                                          at % 2 == 0 ? 0x5140 : 0x7362);
        if constexpr (SHAPE::RAW) {
            a[2 * i] = decode_int8<false>(four, run.factor[i]);
            a[2 * i + 1] = decode_int8<true>(four, run.factor[i]);
        } else {
            a[2 * i] = mma_e4m3(four & run.factor[i] & 0xffffu);
            a[2 * i + 1] = mma_e4m3((four & run.factor[i]) >> 16);
        }
    }
}

/* y += v . p, for BLOCKS blocks of 16 columns from `first` on. seen: which of the lane's keys 2 j, 2 j + 1
 * and 2 j + 8, 2 j + 9 some unit sees; what the others hold may be anything. */
template <typename SHAPE, int TYPE, int BLOCKS>
static __device__ __forceinline__ void decode_values(const decode_slice &values, const uint32_t seen[2],
                                                     const uint32_t p[SHAPE::UNITS / 8][2], int32_t first,
                                                     float y[SHAPE::UNITS / 8][BLOCKS][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const uint32_t at = sl_shared_address(values.slot);
    decode_value_run<SHAPE, BLOCKS> run;
#pragma unroll
    for (int i_block = 0; i_block < BLOCKS; i_block++) {
        const int32_t block = first + i_block;
        uint32_t a[4];
        if constexpr (SHAPE::RAW || SHAPE::BYTES == 1) {
            constexpr int PAIRS = decode_value_run<SHAPE, BLOCKS>::PAIRS;
            if (i_block % PAIRS == 0) {
                decode_read_values<SHAPE, BLOCKS>(values, block, seen, &run);
            }
            decode_value_operand<SHAPE, BLOCKS>(run, i_block % PAIRS, a);
        } else {
            const int32_t k = values.row + lane / 16 * 8 + lane % 8, piece = 2 * block + lane / 8 % 2;
            sl_load_matrices_transposed(
                at + (uint32_t)((piece / 8 * MMA_KEYS + k) * 128 + ((piece ^ k) & 7) * 16), a);
            a[0] &= seen[0];
            a[1] &= seen[0];
            a[2] &= seen[1];
            a[3] &= seen[1];
        }
#pragma unroll
        for (int n = 0; n < SHAPE::UNITS / 8; n++) {
            mma_mma<TYPE>(y[n][i_block], a, p[n][0], p[n][1]);
        }
    }
}

/* ---- softmax ---- */

/* Of a strand: per lane the units 2 j and 2 j + 1 of each eight, the same in all lanes of one j but for l,
 * which is the lane's part; y[][block][h] of row lane / 4 (h < 2) and lane / 4 + 8. */
template <int UNITS, int COLUMNS> struct decode_state {
    float m[UNITS / 8][2], l[UNITS / 8][2];
    float y[UNITS / 8][COLUMNS / 16][4];
};

/* What a warp has of a part. */
template <int UNITS> struct decode_view {
    const sl_cuda_cache *cache;
    float scale, softcap;
    float c;               /* what scores, after the softcap if any, are multiplied by for powers of two */
    int32_t window, first; /* first: keys in front of it are not seen */
    int32_t index[UNITS / 8][2];         /* the last key that the lane's units see */
    int32_t lowest_first, highest_first; /* of the first keys that units see */
    int32_t lowest_last, highest_last;   /* of the last ones */
    int32_t tile, end;
};

/* The first key that a row at `index` sees: of its window, and not in front of `first`. */
static __device__ __forceinline__ int32_t decode_first_seen(int32_t window, int32_t first, int32_t index) {
    return max(mma_first_seen(window, index), first);
}

/* The softcap, and -infinity for what a unit does not see. key: the index of what s[][0] and s[][1] belong
 * to, s[][2] and s[][3] are 8 later. masked: some unit does not see all keys. */
template <int UNITS>
static __device__ __forceinline__ void decode_see(float s[UNITS / 8][4], const decode_view<UNITS> &view,
                                                  int32_t key, bool masked) {
    if (view.softcap > 0) {
        const float inverse = view.scale / view.softcap;
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = view.softcap * mma_tanh(s[n][e] * inverse);
            }
        }
    }
    if (masked) {
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t k = key + e / 2 * 8, to = view.index[n][e % 2];
                const bool seen = k <= to && k >= decode_first_seen(view.window, view.first, to);
                s[n][e] = seen ? s[n][e] : -INFINITY;
            }
        }
    }
}

/* Which of the lane's keys 2 j, 2 j + 1 and 2 j + 8, 2 j + 9 of 16 from `base` on some unit sees. */
template <int UNITS>
static __device__ __forceinline__ void decode_seen(const decode_view<UNITS> &view, int32_t base, bool masked,
                                                   uint32_t seen[2]) {
    seen[0] = seen[1] = ~0u;
    if (masked) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t k = base + 2 * ((int32_t)threadIdx.x % 4) + i / 2 * 8 + i % 2;
            if (k < view.lowest_first || k > view.highest_last) {
                seen[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
            }
        }
    }
}

/* Scores to p; what y is to be multiplied by. key and masked as above. */
template <int UNITS, int COLUMNS>
static __device__ __forceinline__ void
decode_weigh(decode_state<UNITS, COLUMNS> *state, float s[UNITS / 8][4], const decode_view<UNITS> &view,
             int32_t key, bool masked, float correction[UNITS / 8][2]) {
    decode_see(s, view, key, masked);
#pragma unroll
    for (int n = 0; n < UNITS / 8; n++) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float largest = fmaxf(s[n][u], s[n][2 + u]);
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 4));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 8));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 16));
            const float before = state->m[n][u];
            largest = fmaxf(largest, before);
            const float bias = largest == -INFINITY ? 0.0f : -largest * view.c;
            correction[n][u] = largest == before ? 1.0f : mma_exp2(fmaf(before, view.c, bias));
            s[n][u] = mma_exp2(fmaf(s[n][u], view.c, bias));
            s[n][2 + u] = mma_exp2(fmaf(s[n][2 + u], view.c, bias));
            state->l[n][u] = state->l[n][u] * correction[n][u] + (s[n][u] + s[n][2 + u]);
            state->m[n][u] = largest;
        }
    }
}

#endif
#endif
