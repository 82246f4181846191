/* The gated delta rule for many rows of a sequence: chunks of 64 rows, products on the tensor cores.
 *
 * For one value head, with decay a_t in (0, 1], row vectors q_t, k_t, v_t and a state S [keys][values]:
 *
 *     u_t = b_t (v_t - a_t k_t S_{t-1});   S_t = a_t S_{t-1} + k_t^T u_t;   y_t = q_t S_t.
 *
 * Let g_t be a_1 ... a_t within a chunk that begins with S. Unrolled, S_t = g_t S + sum over i <= t of (g_t /
 * g_i) k_i^T u_i, and so
 *
 *     (I + A) U = B (V - G K S),      A[t][i] = b_t (g_t / g_i) (k_t . k_i) for i < t, else 0
 *     Y = G Q S + P U,                P[t][i] =     (g_t / g_i) (q_t . k_i) for i <= t, else 0
 *     S' = g_C S + (E K)^T U,         E = diag(g_C / g_t)
 *
 * with B = diag(b_t), G = diag(g_t). T = (I + A)^-1 is lower triangular with ones on its diagonal. Nothing
 * but the last line goes from chunk to chunk. (The WY form of products of Householder-like matrices, Bischof
 * and Van Loan 1987; for the delta rule Yang et al. 2024, arXiv 2406.06484, with decay Yang et al. 2024,
 * arXiv 2412.06464.) Decays are added as logarithms and only differences of later minus earlier ones are
 * raised, so nothing overflows.
 *
 * The first launch makes, for all chunks at once: normalised q and k, the products K K^T and Q K^T, T by
 * substitution in f32, and P. The second walks the chunks of a span; a warp keeps 16 columns of S,
 * transposed, as accumulators in its registers, so that its products chain without leaving them: the state is
 * the left factor of S^T K^T and S^T Q^T, the result of one product the left factor of the next.
 *
 * Factors are rounded to f16 (11 bits), sums are f32, and so is the state. A v or u beyond 65504 overflows.
 * Chunks begin where a span begins, so the bits depend on where a sequence was cut into steps, but on no
 * other row. */
#include "backend/cuda/delta/delta_chunk_solve.cuh"
#include "backend/cuda/delta/delta_chunk_walk.cuh"

/* ---- launches ---- */

/* Bytes of one chunk's part of each plane, all multiples of 16. */
static uint64_t key_bytes(const sl_state_layer *shape, const sl_op_delta_scan *scan) {
    return (uint64_t)scan->key_heads * CHUNK * (uint64_t)shape->key_size * sizeof(__half);
}

static uint64_t square_bytes(const sl_op_delta_scan *scan) {
    return (uint64_t)scan->value_heads * CHUNK * CHUNK * sizeof(__half);
}

static uint64_t factor_bytes(const sl_op_delta_scan *scan) {
    return (uint64_t)scan->value_heads * FACTORS * CHUNK * sizeof(float);
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_delta_scan *scan = &query->op->u.delta_scan;
    const sl_state_layer *shape = &query->program->states[scan->state];
    const uint64_t rows = (uint64_t)query->rows[SL_ROWS_STEP],
                   spans = most_long_spans(rows, (uint64_t)query->limits->sequences);
    return most_chunks(CHUNK, rows, spans) *
           (2 * key_bytes(shape, scan) + 2 * square_bytes(scan) + factor_bytes(scan));
}

template <int KEYS>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const delta_args args = delta_scan_args(op);
    const uint64_t rows = (uint64_t)op->rows[SL_ROWS_STEP],
                   spans = most_long_spans(rows, (uint64_t)op->spans),
                   chunks = most_chunks(CHUNK, rows, spans);
    unsigned char *at = op->scratch;
    chunk_memory memory;
    memory.k = (__half *)at;
    at += chunks * key_bytes(&args.shape, &args.scan);
    memory.q = (__half *)at;
    at += chunks * key_bytes(&args.shape, &args.scan);
    memory.solved = (__half *)at;
    at += chunks * square_bytes(&args.scan);
    memory.weights = (__half *)at;
    at += chunks * square_bytes(&args.scan);
    memory.factors = (float *)at;
    const sl_launch_shape first = {dim3((unsigned)chunks, (unsigned)args.scan.key_heads),
                                   dim3(PREPARE_THREADS), (uint32_t)sizeof(prepare_shared<KEYS>)};
    const sl_launch_shape second = {dim3((unsigned)(args.shape.value_size / walk_shape<KEYS>::COLUMNS),
                                         (unsigned)args.scan.value_heads, (unsigned)spans),
                                    dim3(walk_shape<KEYS>::THREADS), (uint32_t)sizeof(walk_shared<KEYS>)};
    cudaError_t code = sl_launch(context, stream, first, prepare_kernel<KEYS>, *context, args, memory);
    code = code == cudaSuccess ? sl_launch(context, stream, second, walk_kernel<KEYS>, *context, args, memory)
                               : code;
    return code == cudaSuccess ? sl_cuda_delta_scan_spans(context, op, SHORT_ROWS, stream) : code;
}

static SL_CUDA_RUN(run) {
    switch (op->program->states[op->op->u.delta_scan.state].key_size) {
    case 64:
        return launch<64>(context, op, stream);
    case 128:
        return launch<128>(context, op, stream);
    default:
        return launch<256>(context, op, stream);
    }
}

template <int KEYS> static cudaError_t prepare(void) {
    cudaError_t code = cudaFuncSetAttribute(prepare_kernel<KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)sizeof(prepare_shared<KEYS>));
    return code == cudaSuccess
               ? cudaFuncSetAttribute(walk_kernel<KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(walk_shared<KEYS>))
               : code;
}

static size_t shared_needed(int32_t key_size) {
    return key_size == 64    ? sizeof(walk_shared<64>)
           : key_size == 128 ? sizeof(walk_shared<128>)
                             : sizeof(walk_shared<256>);
}

static cudaError_t prepare_all(const sl_cuda_facts *facts) {
    const size_t most = (size_t)facts->block_bytes;
    cudaError_t code = shared_needed(64) <= most ? prepare<64>() : cudaSuccess;
    code = code == cudaSuccess && shared_needed(128) <= most ? prepare<128>() : code;
    return code == cudaSuccess && shared_needed(256) <= most ? prepare<256>() : code;
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_state_layer *shape = &query->program->states[query->op->u.delta_scan.state];
    if (shape->key_size != 64 && shape->key_size != 128 && shape->key_size != 256) {
        return "takes keys of 64, 128 and 256";
    }
    if (shape->value_size % 32 != 0) {
        return "takes values that are multiples of 32";
    }
    if (query->rows[SL_ROWS_STEP] < ((const sl_cuda_kernel *)kernel)->least_rows) {
        return "takes 32 rows or more";
    }
    if (query->span_rows == 1) {
        return "takes several rows of a sequence";
    }
    if (workspace_of(kernel, query) > MOST_SCRATCH) {
        return "its parts would take more than 512 MiB";
    }
    if (shared_needed(shape->key_size) > (size_t)sl_cuda_facts_of(query->backend)->block_bytes) {
        return "the device has too little shared memory for this key size";
    }
    return NULL;
}

/* Factors are rounded to f16, by 2^-12 of themselves in the mean, about seven of them on the way to an
 * output; outputs are products of three numbers, the largest of them twenty times their mean. */
static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "delta_scan/cuda-chunk",
                .op = SL_OP_DELTA_SCAN,
                .numeric_class = "f16/chunk64",
                .tolerance = 2.5e-2f,
                .batched = true,
                .cut_dependent = true,
                .declines = declines,
                .workspace = workspace_of},
     .arrangement = SL_CUDA_DELTA_CHUNK,
     .least_rows = LEAST_ROWS,
     .run = run},
};

SL_CUDA_FAMILY(delta_chunk) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare_all};
