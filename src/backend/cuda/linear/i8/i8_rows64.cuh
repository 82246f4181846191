/* i8_mma.cuh for few to middling rows, where reading the weights is what counts. A warp multiplies one chunk
 * of 16 weight rows with up to 32 rows of x at a time and streams its weights through a ring of its own in
 * shared memory. The warps of a block are `depth` chunks by `width` tiles of 16 weight rows: a round. The
 * warps' sums of a chunk go through shared memory, where after `flush` rounds they are added in order. A
 * block goes from tile to tile; x stays in shared memory if all of it has room there. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS64_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS64_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/linear/i8/i8_mma.cuh"

enum {
    ROWS64_WARPS = 16, /* at most */
    ROWS64_HEIGHT = 1, /* times 16 weight rows: a warp's tile */
    ROWS64_OUTPUTS = ROWS64_HEIGHT * MMQ_OUTPUTS,
    ROWS64_MOST_STAGES = 4,
    ROWS64_RESERVED = 2048, /* bytes of shared memory per block beside the dynamic ones, at most */
    ROWS64_AT_ONCE = 8      /* sums of chunks that are read together */
};

/* How a block is cut, chosen on the host. */
typedef struct rows64_shape {
    int32_t width, depth; /* warps: tiles of 16 weight rows, chunks */
    int32_t stages;       /* of a warp's ring of weights */
    int32_t slots;        /* for rounds of x: all that there are, or as many as stages */
    int32_t rounds;       /* in a tile */
    int32_t flush;        /* rounds whose sums have room */
    int32_t buffers;      /* for them: one or two */
    int32_t blocks;       /* along x of the grid */
    int32_t together;     /* blocks that a processor has room for */
    int32_t rows;         /* of the bucket */
} rows64_shape;

/* What is where in shared memory: bytes from its start. */
typedef struct rows64_memory {
    uint32_t weights, factors, x, x_factors, exchange, totals, bytes;
} rows64_memory;

template <int TYPE, int TILES>
static __host__ __device__ inline rows64_memory rows64_layout(const rows64_shape &shape) {
    const uint32_t warps = (uint32_t)(shape.width * shape.depth), rows = 8 * TILES;
    const uint32_t chunks = (uint32_t)(shape.slots * shape.depth);
    rows64_memory memory;
    memory.weights = 0;
    memory.factors =
        memory.weights + warps * (uint32_t)(shape.stages * ROWS64_OUTPUTS * mmq_type<TYPE>::stride);
    memory.x = memory.factors + warps * ROWS64_HEIGHT * (uint32_t)sizeof(mmq_factors);
    memory.x_factors = memory.x + chunks * rows * MMQ_X_STRIDE;
    memory.exchange = memory.x_factors + chunks * rows * MMQ_FACTORS * 16;
    memory.totals =
        memory.exchange + (uint32_t)(shape.buffers * shape.flush) * warps * ROWS64_OUTPUTS * rows * 4;
    memory.bytes = memory.totals + (uint32_t)shape.width * ROWS64_OUTPUTS * rows * 4;
    return memory;
}

/* Where a thread stands. */
template <int TYPE, int TILES> struct rows64_work {
    const mmq_args &args;
    const rows64_shape &shape;
    const sl_tile_rows<8 * TILES> &rows;
    rows64_memory at;
    unsigned char *memory;
    int32_t warp, lane, chunk, tile; /* chunk: of the warp within a round; tile: of the block's `width` */
    int32_t chunks;                  /* of a weight row */
    uint32_t row_bytes;              /* of all segments */
};

/* A tile as a warp sees it: 16 weight rows of a segment, of which those before `skip` are another tile's. */
typedef struct rows64_tile {
    const unsigned char *start;
    int32_t segment, first, skip;
} rows64_tile;

/* A segment's last tiles are moved back to end with it. */
template <int TYPE, int TILES>
static __device__ __forceinline__ rows64_tile rows64_find(const rows64_work<TYPE, TILES> &work,
                                                          int32_t tile) {
    rows64_tile found;
    found.segment = 0;
    while (found.segment + 1 < work.args.segments && tile >= work.args.first_tile[found.segment + 1]) {
        found.segment++;
    }
    const sl_cuda_weight &weight = work.args.weights[found.segment];
    const int32_t first =
        ((tile - work.args.first_tile[found.segment]) * work.shape.width + work.tile) * ROWS64_OUTPUTS;
    found.first = first < weight.rows - ROWS64_OUTPUTS ? first : weight.rows - ROWS64_OUTPUTS;
    found.skip = first - found.first;
    found.start = weight.data + (uint64_t)work.rows.expert * weight.expert_bytes +
                  (uint64_t)(uint32_t)found.first * work.row_bytes;
    return found;
}

/* ---- copies ---- */

/* Where a lane's pieces of a tile's chunk start. */
template <int TYPE> struct rows64_pieces {
    enum { all = mmq_type<TYPE>::pieces * ROWS64_OUTPUTS, count = (all + SL_WARP - 1) / SL_WARP };
    uint32_t of[count];
};

/* A chunk of the warp's tile. */
template <int TYPE>
static __device__ __forceinline__ void rows64_copy_weights(uint32_t to, const unsigned char *from,
                                                           const rows64_pieces<TYPE> &pieces) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int i = 0; i < rows64_pieces<TYPE>::count; i++) {
        if ((i + 1) * SL_WARP <= rows64_pieces<TYPE>::all || lane < rows64_pieces<TYPE>::all - i * SL_WARP) {
            const unsigned char *at = from + pieces.of[i];
            if (mmq_type<TYPE>::bytes % 16 != 0) { /* every piece has bytes of the chunk */
                const uint32_t piece = mmq_own_piece<TYPE>(
                    (uint32_t)(i * SL_WARP + lane) % mmq_type<TYPE>::pieces, (uint32_t)(uint64_t)at);
                at = (const unsigned char *)((uint64_t)at & ~(uint64_t)15) + 16 * piece;
            }
            sl_copy_16_of_line(to + (uint32_t)((i * SL_WARP + lane) * 16), at, 16);
        }
    }
}

/* The block's share of x in round `round`, by all its warps, each some rows; absent rows and columns are
 * zero. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_copy_x(const rows64_work<TYPE, TILES> &work, int32_t round,
                                                     int32_t slot) {
    enum { ROWS = 8 * TILES, PIECES = MMQ_CHUNK / 16 };
    const int32_t depth = work.shape.depth, first = round * depth, lane = work.lane;
    const uint32_t base = sl_shared_address(work.memory), at = (uint32_t)(slot * depth * ROWS);
    for (int32_t row = work.warp; row < ROWS; row += work.shape.width * depth) {
        const bool valid = work.rows.x[row] >= 0;
        const sl_q8_32 planes = sl_q8_32_of(work.args.x, valid ? work.rows.x[row] : 0);
        const uint32_t x = base + work.at.x + (at + (uint32_t)row) * MMQ_X_STRIDE;
        for (int32_t i = lane; i < depth * PIECES; i += SL_WARP) {
            const int32_t chunk = i / PIECES;
            const bool inside = valid && first + chunk < work.chunks;
            sl_copy_16_of_line(x + (uint32_t)(chunk * ROWS * MMQ_X_STRIDE + i % PIECES * 16),
                               planes.values + (inside ? first * MMQ_CHUNK + i * 16 : 0), inside ? 16 : 0);
        }
        const uint32_t factors = base + work.at.x_factors + (at + (uint32_t)row) * MMQ_FACTORS * 16;
        for (int32_t i = lane; i < depth * 2; i += SL_WARP) {
            const bool inside = valid && first + i / 2 < work.chunks;
            const int32_t group = inside ? first * MMQ_GROUPS + 4 * i : 0;
            const uint32_t to = factors + (uint32_t)(i / 2 * ROWS * MMQ_FACTORS + i % 2 * 2) * 16;
            sl_copy_16_of_line(to, planes.scales + group, inside ? 16 : 0);
            sl_copy_16_of_line(to + 16, planes.sums + group, inside ? 16 : 0);
        }
    }
}

/* By the threads that copied them, which see them before the others do. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_finish_x(const rows64_work<TYPE, TILES> &work, int32_t slot) {
    enum { ROWS = 8 * TILES };
    const int32_t depth = work.shape.depth;
    float4 *factors = (float4 *)(work.memory + work.at.x_factors) + slot * depth * ROWS * MMQ_FACTORS;
    for (int32_t row = work.warp; row < ROWS; row += work.shape.width * depth) {
        for (int32_t i = work.lane; i < depth * 2; i += SL_WARP) {
            mmq_finish_x(factors + (i / 2 * ROWS + row) * MMQ_FACTORS + i % 2 * 2);
        }
    }
}

/* ---- sums ---- */

/* Where the sum of an output and a row is in a tile's exchange: neighbours' rows start on different banks. */
template <int TILES> static __device__ __forceinline__ int32_t rows64_place(int32_t output, int32_t row) {
    const int32_t turn = TILES == 1 ? 0 : TILES == 2 ? output / 2 % 2 : output % 4;
    return output * 8 * TILES + (row ^ 8 * turn);
}

/* A chunk of the warp's tile, to the exchange. start: the low bits of its address. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_multiply(const rows64_work<TYPE, TILES> &work,
                                                       const mmq_chunk<ROWS64_HEIGHT> &chunk,
                                                       mmq_factors *factors, float *to) {
#pragma unroll
    for (int m = 0; m < ROWS64_HEIGHT; m++) {
        mmq_make_factors<TYPE>(chunk.raw[m], factors + m);
    }
    __syncwarp();
    float part[ROWS64_HEIGHT][TILES][4] = {};
    mmq_add_chunk<TYPE, ROWS64_HEIGHT, TILES>(chunk, part);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int o = 0; o < 2 * ROWS64_HEIGHT; o++) {
            *(float2 *)(to + rows64_place<TILES>(work.lane / 4 + 8 * o, 8 * n + work.lane % 4 * 2)) =
                make_float2(part[o / 2][n][o % 2 * 2], part[o / 2][n][o % 2 * 2 + 1]);
        }
    }
}

/* Sums of chunks in the exchange: the tile's first ones, its last ones; rows that are stored. */
typedef struct rows64_sums {
    const float *at;
    int32_t count, rows;
    bool begins, ends;
} rows64_sums;

/* In order, to the tile's totals, or as the last ones to y. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_add(const rows64_work<TYPE, TILES> &work,
                                                  const rows64_tile &tile, const rows64_sums &sums) {
    enum { ROWS = 8 * TILES };
    float *totals = (float *)(work.memory + work.at.totals) + work.tile * ROWS64_OUTPUTS * ROWS;
    for (int32_t i = work.chunk * SL_WARP + work.lane; i < ROWS64_OUTPUTS * ROWS;
         i += work.shape.depth * SL_WARP) {
        const int32_t output = (uint32_t)i / ROWS, row = i % ROWS, at = rows64_place<TILES>(output, row);
        float sum = sums.begins ? 0.0f : totals[i];
        for (int32_t c = 0; c < sums.count; c += ROWS64_AT_ONCE) {
            float parts[ROWS64_AT_ONCE];
#pragma unroll
            for (int j = 0; j < ROWS64_AT_ONCE; j++) {
                parts[j] = c + j < sums.count ? sums.at[(c + j) * ROWS64_OUTPUTS * ROWS + at] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < ROWS64_AT_ONCE; j++) {
                sum = c + j < sums.count ? sum + parts[j] : sum;
            }
        }
        if (!sums.ends) {
            totals[i] = sum;
        } else if (row < sums.rows && output >= tile.skip) {
            sl_linear_store(work.args, work.args.weights[tile.segment], work.rows.expert, work.rows.y[row],
                            tile.first + output, sum);
        }
    }
}

/* ---- the kernel ---- */

/* Waits for the warps of one tile, or for all. */
static __device__ __forceinline__ void rows64_meet(const rows64_shape &shape, int32_t tile, bool all) {
    if (all || shape.width == 1) {
        __syncthreads();
    } else {
        sl_meet(tile + 1, shape.depth * SL_WARP);
    }
}

/* A walk through the block's tiles, round by round. */
template <int TYPE, int TILES> struct rows64_walk {
    rows64_tile tile;
    const unsigned char *at; /* the warp's chunk */
    int32_t index, round, stage;

    __device__ __forceinline__ void enter(const rows64_work<TYPE, TILES> &work) {
        tile = rows64_find(work, index);
        at = tile.start + work.chunk * mmq_type<TYPE>::bytes;
    }
    __device__ __forceinline__ void go_on(const rows64_shape &shape) {
        at += shape.depth * mmq_type<TYPE>::bytes;
        stage = stage + 1 == shape.stages ? 0 : stage + 1;
        if (++round == shape.rounds) {
            round = 0;
            index += (int32_t)gridDim.x;
        }
    }
};

/* What a warp keeps while it runs. */
template <int TYPE, int TILES> struct rows64_course {
    enum {
        ROWS = 8 * TILES,
        PART = ROWS64_OUTPUTS * ROWS, /* floats of a chunk's sums */
        RAW = ROWS64_OUTPUTS * mmq_type<TYPE>::stride
    };
    rows64_pieces<TYPE> pieces;
    rows64_walk<TYPE, TILES> ahead, now; /* one copies, the other multiplies */
    const unsigned char *ring, *x;       /* of the warp; of its chunk, in slot 0 */
    mmq_factors *factors;
    const float4 *x_factors;
    float *sums; /* of the tile */
    int32_t slot, parity, held, count;
};

template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_begin(const rows64_work<TYPE, TILES> &work,
                                                    rows64_course<TYPE, TILES> *course) {
    typedef rows64_course<TYPE, TILES> of;
    const rows64_shape &shape = work.shape;
#pragma unroll
    for (int i = 0; i < rows64_pieces<TYPE>::count; i++) {
        const int32_t piece = i * SL_WARP + work.lane, row = piece / mmq_type<TYPE>::pieces;
        const uint32_t own = mmq_own_piece<TYPE>((uint32_t)piece % mmq_type<TYPE>::pieces, 0);
        course->pieces.of[i] =
            (uint32_t)row * work.row_bytes + (mmq_type<TYPE>::bytes % 16 == 0 ? own * 16 : 0);
    }
    const rows64_walk<TYPE, TILES> start = {{}, NULL, (int32_t)blockIdx.x, 0, 0};
    course->ahead = course->now = start;
    course->ring = work.memory + work.at.weights + work.warp * shape.stages * of::RAW;
    course->x = work.memory + work.at.x + work.chunk * of::ROWS * MMQ_X_STRIDE;
    course->factors = (mmq_factors *)(work.memory + work.at.factors) + work.warp * ROWS64_HEIGHT;
    course->x_factors =
        (const float4 *)(work.memory + work.at.x_factors) + work.chunk * of::ROWS * MMQ_FACTORS;
    course->sums =
        (float *)(work.memory + work.at.exchange) + work.tile * shape.flush * shape.depth * of::PART;
    course->slot = course->parity = course->held = 0;
}

/* The next step's weights. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_copy_ahead(const rows64_work<TYPE, TILES> &work,
                                                         rows64_course<TYPE, TILES> *course) {
    rows64_walk<TYPE, TILES> &ahead = course->ahead;
    if (ahead.round == 0) {
        ahead.enter(work);
    }
    if (ahead.round * work.shape.depth + work.chunk < work.chunks) {
        rows64_copy_weights<TYPE>(sl_shared_address(course->ring) +
                                      (uint32_t)(ahead.stage * rows64_course<TYPE, TILES>::RAW),
                                  ahead.at, course->pieces);
    }
    ahead.go_on(work.shape);
}

template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_multiply_now(const rows64_work<TYPE, TILES> &work,
                                                           rows64_course<TYPE, TILES> *course) {
    typedef rows64_course<TYPE, TILES> of;
    rows64_walk<TYPE, TILES> &now = course->now;
    const int32_t depth = work.shape.depth, buffer = work.shape.width * work.shape.flush * depth * of::PART;
    if (now.round == 0) {
        now.enter(work);
    }
    if (now.round * depth + work.chunk >= work.chunks) {
        return;
    }
    mmq_chunk<ROWS64_HEIGHT> chunk;
#pragma unroll
    for (int m = 0; m < ROWS64_HEIGHT; m++) {
        chunk.raw[m].at = course->ring + now.stage * of::RAW + m * MMQ_OUTPUTS * mmq_type<TYPE>::stride;
        chunk.raw[m].start = (uint32_t)(uint64_t)now.at + (uint32_t)(m * MMQ_OUTPUTS) * work.row_bytes;
        chunk.raw[m].row_bytes = work.row_bytes;
    }
    chunk.factors = course->factors;
    chunk.x = course->x + course->slot * depth * of::ROWS * MMQ_X_STRIDE;
    chunk.x_factors = course->x_factors + course->slot * depth * of::ROWS * MMQ_FACTORS;
    rows64_multiply(work, chunk, course->factors,
                    course->sums + course->parity * buffer + (course->held * depth + work.chunk) * of::PART);
}

/* After a round: adds what is held when there is no room for more, or when the tile ends. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_flush(const rows64_work<TYPE, TILES> &work,
                                                    rows64_course<TYPE, TILES> *course) {
    const rows64_shape &shape = work.shape;
    const int32_t depth = shape.depth, done = course->now.round + 1, held = ++course->held;
    if (held < shape.flush && done < shape.rounds) {
        return;
    }
    const int32_t buffer = shape.width * shape.flush * depth * rows64_course<TYPE, TILES>::PART;
    const int32_t first = (done - held) * depth,
                  end = done * depth < work.chunks ? done * depth : work.chunks;
    rows64_meet(shape, work.tile, false);
    const rows64_sums sums = {course->sums + course->parity * buffer, end - first, course->count, first == 0,
                              done == shape.rounds};
    rows64_add(work, course->now.tile, sums);
    if (shape.buffers == 1) {
        rows64_meet(shape, work.tile, false);
    } else {
        course->parity ^= 1;
    }
    course->held = 0;
}

template <int TYPE, int TILES>
static __device__ __forceinline__ void rows64_run(const sl_cuda_context &context,
                                                  const rows64_work<TYPE, TILES> &work,
                                                  sl_tile_rows<8 * TILES> *rows) {
    const rows64_shape &shape = work.shape;
    const int32_t rounds = shape.rounds, stages = shape.stages,
                  tiles = work.args.first_tile[SL_LINEAR_SEGMENTS];
    const int32_t steps =
        ((tiles - (int32_t)blockIdx.x + (int32_t)gridDim.x - 1) / (int32_t)gridDim.x) * rounds;
    const bool stays = shape.slots == rounds; /* x, once it is there */
    rows64_course<TYPE, TILES> course;
    rows64_begin(work, &course);
    /* Weights may be read before the inputs are there, but not those of experts: which, is an input. */
    if (work.args.list) {
        sl_wait_for_inputs();
    }
    /* Of the bucket, whether the step has them or not: x can be on its way before the step is known. */
    sl_find_rows(work.args, work.args.weights[0].experts, shape.rows, (int32_t)blockIdx.y, rows);
    if (rows->count <= 0) {
        return;
    }
    for (int32_t s = 0; s < stages - 1 && s < steps; s++) {
        rows64_copy_ahead(work, &course);
    }
    course.count = rows->count; /* that are stored */
    if (!work.args.list) {
        sl_wait_for_inputs();
        const int32_t left = sl_count(context, work.args.y.rows) - rows->first;
        course.count = left < rows->count ? left : rows->count;
    }
    for (int32_t s = 0; s < stages - 1; s++) {
        if (s < (stays ? rounds : steps)) {
            rows64_copy_x(work, s % rounds, s);
        }
        sl_copy_commit();
    }
    for (int32_t step = 0; step < steps; step++) {
        mmq_wait(stages - 2);
        if (!stays || step < rounds) {
            rows64_finish_x(work, course.slot);
            rows64_meet(shape, work.tile, true);
        } else {
            __syncwarp();
        }
        if (step + stages - 1 < steps) {
            if (!stays || step + stages - 1 < rounds) {
                rows64_copy_x(work, course.ahead.round, stays ? course.ahead.round : course.ahead.stage);
            }
            rows64_copy_ahead(work, &course);
        } else {
            sl_let_next_begin();
        }
        sl_copy_commit();
        rows64_multiply_now(work, &course);
        rows64_flush(work, &course);
        course.slot = course.slot + 1 == shape.slots ? 0 : course.slot + 1;
        course.now.go_on(shape);
    }
}

template <int TYPE, int TILES>
static __global__ void __launch_bounds__(ROWS64_WARPS *SL_WARP, 1)
    rows64_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ mmq_args args,
                  const __grid_constant__ rows64_shape shape) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ sl_tile_rows<8 * TILES> rows;
    rows64_work<TYPE, TILES> work = {args, shape, rows};
    work.at = rows64_layout<TYPE, TILES>(shape);
    work.memory = memory;
    work.warp = (int32_t)threadIdx.x / SL_WARP;
    work.lane = (int32_t)threadIdx.x % SL_WARP;
    work.chunk = work.warp % shape.depth;
    work.tile = work.warp / shape.depth;
    work.chunks = args.weights[0].columns / MMQ_CHUNK;
    work.row_bytes = (uint32_t)args.weights[0].row_bytes;
    rows64_run<TYPE, TILES>(context, work, &rows);
}

/* ---- launches ---- */

enum { ROWS64_EXPERT_TILES = 8 }; /* of a block, at most */

/* Fits a block of `width` by `depth` warps into `most` bytes; false if it does not. Worth most is that x
 * stays, then that a tile's sums are added at once, then stages. */
template <int TYPE, int TILES> static bool rows64_fit(rows64_shape *shape, int32_t chunks, int32_t most) {
    shape->rounds = (chunks + shape->depth - 1) / shape->depth;
    for (int32_t resident = 1; resident >= 0; resident--) {
        for (int32_t whole = 1; whole >= 0; whole--) {
            shape->flush = whole ? shape->rounds : 1;
            for (shape->stages = ROWS64_MOST_STAGES; shape->stages >= 2; shape->stages--) {
                shape->slots = resident ? shape->rounds : shape->stages;
                for (shape->buffers = 2; shape->buffers >= 1; shape->buffers--) {
                    if ((int32_t)rows64_layout<TYPE, TILES>(*shape).bytes <= most) {
                        return true;
                    }
                }
            }
        }
    }
    return false;
}

/* outputs: of all segments and tiles of rows. Depth keeps many processors busy where there are few outputs;
 * width has less x read. */
template <int TYPE, int TILES>
static rows64_shape rows64_choose(const sl_cuda_facts &device, int32_t columns, int32_t outputs,
                                  bool experts) {
    const int32_t chunks = columns / MMQ_CHUNK;
    rows64_shape shape = {};
    shape.depth = experts ? 2 : TILES < 4 ? 8 : 4;
    shape.depth = chunks < shape.depth ? chunks : shape.depth;
    shape.width = experts ? 4 : TILES < 4 || outputs < 40 * device.processors ? 2 : 4;
    shape.together = experts ? 2 : 1;
    for (;;) {
        const int32_t share = device.processor_bytes / shape.together;
        const int32_t most =
            (share < device.block_bytes + 1024 ? share : device.block_bytes + 1024) - ROWS64_RESERVED;
        if (rows64_fit<TYPE, TILES>(&shape, chunks, most)) {
            return shape;
        }
        if (shape.together > 1) {
            shape.together--;
        } else if (shape.width > 2) {
            shape.width /= 2;
        } else if (shape.depth > 1) {
            shape.depth = (shape.depth + 1) / 2;
        } else {
            shape.width = 1;
        }
    }
}

template <int TYPE, int TILES>
static cudaError_t rows64_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const sl_cuda_facts &device = *op->facts;
    const int32_t rows = op->rows[op->out[0].rows];
    const bool experts = op->in[2].data != NULL;
    int32_t row_tiles = (rows + 8 * TILES - 1) / (8 * TILES);
    if (experts) { /* each expert that is chosen may leave one tile partly empty */
        row_tiles = rows / (8 * TILES) + (op->weights[0].experts < rows ? op->weights[0].experts : rows);
    }
    rows64_shape shape =
        rows64_choose<TYPE, TILES>(device, op->weights[0].columns, mmq_outputs(op) * row_tiles, experts);
    mmq_args args;
    const int32_t tiles = mmq_make_args(context, op, shape.width * ROWS64_OUTPUTS, &args);
    const int32_t most = experts ? (tiles + ROWS64_EXPERT_TILES - 1) / ROWS64_EXPERT_TILES
                                 : device.processors * shape.together;
    const uint32_t bytes = rows64_layout<TYPE, TILES>(shape).bytes;
    const int32_t each = (tiles + most - 1) / most;
    shape.rows = rows;
    shape.blocks = (tiles + each - 1) / each;
    const sl_launch_shape launch = {dim3((unsigned)shape.blocks, (unsigned)row_tiles),
                                    dim3((unsigned)(shape.width * shape.depth * SL_WARP)), bytes};
    return sl_launch(context, stream, launch, rows64_kernel<TYPE, TILES>, *context, args, shape);
}

template <int TYPE, int TILES> static cudaError_t rows64_prepare_shape(int32_t bytes) {
    return cudaFuncSetAttribute(rows64_kernel<TYPE, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                bytes + 1024 - ROWS64_RESERVED);
}

#endif
