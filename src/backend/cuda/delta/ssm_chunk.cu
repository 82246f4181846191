/* Mamba2's scan for many rows of a sequence: chunks of rows, products on the tensor cores (Dao and Gu 2024,
 * arXiv 2405.21060, section 6).
 *
 * For one head, with decay a_t in (0, 1], step d_t, row vectors B_t, C_t, x_t and a state S [keys][values]:
 *
 *     S_t = a_t S_{t-1} + B_t^T d_t x_t;   y_t = C_t S_t + skip x_t.
 *
 * Let g_t be a_1 ... a_t within a chunk that begins with S, and D = diag(d_t). Unrolled,
 *
 *     Y  = G C S + P D X + skip X,   P[t][i] = (g_t / g_i) (C_t . B_i) for i <= t, else 0;   G = diag(g_t)
 *     S' = g_n S + B^T E X,          E = diag(d_t g_n / g_t), n the chunk's last row.
 *
 * Decays are added as logarithms and only differences of later minus earlier ones are raised, so nothing
 * overflows.
 *
 * Two launches. The first makes, for all chunks at once, what the heads of a group share: B and C as tensor
 * cores take them and C B^T; and each head's factors. The second walks the chunks of a span, a block for 32
 * columns of a head. Four warps keep S^T as accumulators in their registers and hand it to four others, which
 * make the outputs; four more copy the next chunk. Nothing but an addition depends on the chunk before.
 *
 * Why it walks: 64 heads of 64 values are 128 blocks, for 132 multiprocessors, so cutting a sequence into
 * parts would win nothing. Three passes (states of all chunks, their sums, outputs) would write a state for
 * each chunk and head, read and write them to add them up, and read them once more. Of 2048 rows that is four
 * times 67 MB, which take an H200's memory, 4.8 TB/s, 56 us, and the products come on top. Walking keeps the
 * state in registers. Each block reads 85 KiB a chunk from the L2 cache and moves some 350 KB through its
 * shared memory, which takes at least 1.5 us at 128 bytes a clock.
 *
 * Every factor is two BF16 numbers, 16 bits, of whose four products the least is left out. x d and S have no
 * bound that F16 would hold, and BF16 alone is eight bits. Sums are f32, and so is the state. Chunks begin
 * where a span begins, so the bits depend on where a sequence was cut into steps, but on no other row. */
#include "backend/cuda/delta/ssm_chunk_prepare.cuh"
#include "backend/cuda/delta/ssm_chunk_walk.cuh"

/* Bytes of one chunk's part of each plane, all multiples of 16. */
typedef struct chunk_bytes {
    uint64_t rows, matrix, products, factors;
} chunk_bytes;

static chunk_bytes bytes_of(const sl_state_layer *shape, const sl_op_ssm_scan *scan) {
    chunk_bytes bytes;
    bytes.rows =
        shape->key_size > 128 ? (uint64_t)ssm_chunk_shape<256>::CHUNK : (uint64_t)ssm_chunk_shape<128>::CHUNK;
    bytes.matrix = (uint64_t)scan->groups * PARTS * bytes.rows * (uint64_t)shape->key_size * sizeof(uint16_t);
    bytes.products = (uint64_t)scan->groups * bytes.rows * bytes.rows * sizeof(float);
    bytes.factors = (uint64_t)scan->heads * FACTORS * bytes.rows * sizeof(float);
    return bytes;
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_ssm_scan *scan = &query->op->u.ssm_scan;
    const chunk_bytes bytes = bytes_of(&query->program->states[scan->state], scan);
    const int32_t rows = query->rows[SL_ROWS_STEP], sequences = query->limits->sequences;
    const uint64_t spans = most_long_spans((uint64_t)rows, (uint64_t)sequences);
    return most_chunks(bytes.rows, (uint64_t)rows, spans) *
           (2 * bytes.matrix + bytes.products + bytes.factors);
}

template <int KEYS>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const ssm_args args = ssm_scan_args(op);
    const chunk_bytes bytes = bytes_of(&args.shape, &args.scan);
    const uint64_t rows = (uint64_t)op->rows[SL_ROWS_STEP],
                   spans = most_long_spans(rows, (uint64_t)op->spans);
    const uint64_t chunks = most_chunks(bytes.rows, rows, spans);
    unsigned char *at = op->scratch;
    ssm_chunk_memory memory;
    memory.writes = (uint16_t *)at;
    at += chunks * bytes.matrix;
    memory.reads = (uint16_t *)at;
    at += chunks * bytes.matrix;
    memory.products = (float *)at;
    at += chunks * bytes.products;
    memory.factors = (float *)at;
    const sl_launch_shape first = {dim3((unsigned)chunks, (unsigned)args.scan.groups), dim3(PREPARE_THREADS),
                                   (uint32_t)sizeof(ssm_prepare_shared<KEYS>)};
    const sl_launch_shape second = {
        dim3((unsigned)(args.shape.value_size / COLUMNS), (unsigned)args.scan.heads, (unsigned)spans),
        dim3(WALK_THREADS), (uint32_t)sizeof(ssm_walk_shared<KEYS>)};
    cudaError_t code = sl_launch(context, stream, first, ssm_prepare_kernel<KEYS>, *context, args, memory);
    code = code == cudaSuccess
               ? sl_launch(context, stream, second, ssm_walk_kernel<KEYS>, *context, args, memory)
               : code;
    return code == cudaSuccess ? sl_cuda_ssm_scan_spans(context, op, SHORT_ROWS, stream) : code;
}

static SL_CUDA_RUN(run) {
    switch (op->program->states[op->op->u.ssm_scan.state].key_size) {
    case 64:
        return launch<64>(context, op, stream);
    case 128:
        return launch<128>(context, op, stream);
    default:
        return launch<256>(context, op, stream);
    }
}

template <int KEYS> static cudaError_t prepare(void) {
    cudaError_t code =
        cudaFuncSetAttribute(ssm_prepare_kernel<KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(ssm_prepare_shared<KEYS>));
    return code == cudaSuccess
               ? cudaFuncSetAttribute(ssm_walk_kernel<KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(ssm_walk_shared<KEYS>))
               : code;
}

static size_t shared_needed(int32_t key_size) {
    return key_size == 64    ? sizeof(ssm_walk_shared<64>)
           : key_size == 128 ? sizeof(ssm_walk_shared<128>)
                             : sizeof(ssm_walk_shared<256>);
}

static cudaError_t prepare_all(const sl_cuda_facts *facts) {
    const size_t most = (size_t)facts->block_bytes;
    cudaError_t code = shared_needed(64) <= most ? prepare<64>() : cudaSuccess;
    code = code == cudaSuccess && shared_needed(128) <= most ? prepare<128>() : code;
    return code == cudaSuccess && shared_needed(256) <= most ? prepare<256>() : code;
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_state_layer *shape = &query->program->states[query->op->u.ssm_scan.state];
    if (shape->key_size != 64 && shape->key_size != 128 && shape->key_size != 256) {
        return "takes states of 64, 128 and 256";
    }
    if (shape->value_size % COLUMNS != 0) {
        return "takes heads that are multiples of 32";
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
        return "the device has too little shared memory for this state";
    }
    return NULL;
}

/* Factors have 16 bits. The sum of a chunk's logarithms is at most some thousands, where f32 has steps of
 * 5e-4; of what decays so fast little is left. */
static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "ssm_scan/cuda-chunk",
                .op = SL_OP_SSM_SCAN,
                .numeric_class = "bf16x3/chunks",
                .tolerance = 5e-4f,
                .batched = true,
                .cut_dependent = true,
                .declines = declines,
                .workspace = workspace_of},
     .arrangement = SL_CUDA_SSM_CHUNK,
     .least_rows = LEAST_ROWS,
     .run = run},
};

SL_CUDA_FAMILY(ssm_chunk) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare_all};
