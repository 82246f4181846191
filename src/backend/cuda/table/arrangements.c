/* What is to be said of each arrangement: its devices, and what it is for. src/backend/cuda/README.md shows
 * it. */
#include "backend/cuda/table/table.h"

typedef enum devices { EVERY, BULK_COPIES, WGMMA } devices;

static const struct {
    devices devices;
    const char *purpose;
} ARRANGEMENTS[SL_CUDA_ARRANGEMENTS] = {
    [SL_CUDA_K16_ROWS4] = {WGMMA, "1 to 4 rows, and one row's experts"},
    [SL_CUDA_K16_ROWS8] = {WGMMA, "more rows than `k16-rows4` has room for, to 8"},
    [SL_CUDA_K16_ROWS128] = {WGMMA, "to 128 rows, as fast as weights can be read"},
    [SL_CUDA_K16_CUBLAS] = {EVERY, "prompts: BF16 weights in scratch, fixed ranges of columns"},
    [SL_CUDA_K16_TILE] = {WGMMA, "prompts through experts"},
    [SL_CUDA_S8_COPY_TILE] = {WGMMA, "prompts and many sequences, from a second copy of the weights in int8"},
    [SL_CUDA_BF16_COPY_CUBLAS] = {EVERY,
                                  "prompts and many sequences, from a second copy of the weights in BF16"},
    [SL_CUDA_BF16_ROWS128] = {WGMMA,
                              "batches: to 128 rows as fast as weights can be read, some types to 256"},
    [SL_CUDA_I8_ROWS64] = {EVERY, "batches, for types and devices that `bf16-rows128` does not take"},
    [SL_CUDA_S8_TILE] =
        {WGMMA, "prompts of Q4_K, others with `--prompt-precision int8`: weights become int8 in scratch"},
    [SL_CUDA_E4M3_TILE] = {WGMMA, "prompts: FP8 weights as they are; others with `--prompt-precision fp8`"},
    [SL_CUDA_BF16_CUBLAS] = {EVERY, "prompts: weights decoded to BF16 in scratch, then cuBLASLt"},
    [SL_CUDA_BF16_TILE_WGMMA] = {WGMMA, "prompts through experts, and without cuBLASLt"},
    [SL_CUDA_BF16_TILE_MMA] = {EVERY, "the same on devices without `wgmma`"},
    [SL_CUDA_I8_TILE] = {EVERY,
                         "prompts of types that have no tile in BF16, without cuBLASLt and through experts"},
    [SL_CUDA_TF32_TILE] = {EVERY, "many rows of F32 weights: routers, models in F32"},
    [SL_CUDA_F32_TILE] = {EVERY, "the same in the class of few rows: deterministic plans"},
    [SL_CUDA_F32_ROWS8] = {EVERY, "one sequence or a few, float weights: as fast as these can be read"},
    [SL_CUDA_I8_ROW1_TMA] = {BULK_COPIES, "one sequence: as fast as weights can be read"},
    [SL_CUDA_I8_ROW1] = {EVERY, "one sequence, every type and device; experts of a few rows"},
    [SL_CUDA_I8_ROWS8_TMA] = {BULK_COPIES, "a few sequences or drafted tokens: x stays in shared memory"},
    [SL_CUDA_I8_ROWS8] = {EVERY, "a few sequences or drafted tokens, every type and device"},
    [SL_CUDA_PLAIN_ROWS8] = {EVERY, "few rows of any shape: readable, others are held to it"},
    [SL_CUDA_PLAIN_TILE] = {EVERY, "any rows of any shape: readable, others are held to it"},
    [SL_CUDA_DECODE_PROMPT] = {WGMMA, "steps in which some generate and others read their prompts"},
    [SL_CUDA_WGMMA_RANGES] = {WGMMA, "short prompts behind many keys: blocks share a row's keys"},
    [SL_CUDA_DECODE] = {WGMMA, "generation: few rows, many keys"},
    [SL_CUDA_WGMMA_PROMPT] = {WGMMA, "prompts"},
    [SL_CUDA_WGMMA_RANGES_DET] = {WGMMA, "short prompts behind many keys, in the class of `mma`"},
    [SL_CUDA_DECODE_DET] = {WGMMA, "generation, in the class of `mma`"},
    [SL_CUDA_WGMMA_PROMPT_DET] = {WGMMA, "prompts, in the class of `mma`"},
    [SL_CUDA_MMA_ROWS16] = {EVERY, "generation on devices without `wgmma`: keys in chunks"},
    [SL_CUDA_MMA_ROWS64] = {EVERY, "batches and short prompts on devices without `wgmma`"},
    [SL_CUDA_MMA_PROMPT] = {EVERY, "prompts on devices without `wgmma`"},
    [SL_CUDA_LATENT_ROWS64] = {EVERY, "generation where values are part of the keys: keys in chunks"},
    [SL_CUDA_LATENT_WGMMA] = {WGMMA, "prompts where values are part of the keys"},
    [SL_CUDA_LATENT_PROMPT] = {EVERY, "the same on devices without `wgmma`, and deterministic plans"},
    [SL_CUDA_ATTENTION_FLOATS] = {EVERY, "F32 caches: blocks share the keys of few rows"},
    [SL_CUDA_ATTENTION_PLAIN] = {EVERY, "any cache and head size: readable, others are held to it"},
    [SL_CUDA_ATTENTION_CUBLAS] = {EVERY, "a second opinion: products by the library"},
    [SL_CUDA_DELTA_CHUNK] = {EVERY, "prompts: chunks of 64 rows on the tensor cores"},
    [SL_CUDA_DELTA_ROW] = {EVERY, "generation and deterministic plans: row after row in registers"},
    [SL_CUDA_SSM_CHUNK] = {EVERY, "Mamba2, prompts: chunks of rows on the tensor cores"},
    [SL_CUDA_SSM_ROW] = {EVERY, "Mamba2, generation and deterministic plans: row after row in registers"},
    [SL_CUDA_HEADS_TILE] = {EVERY, "heads into a latent space and back: many rows, deterministic plans"},
    [SL_CUDA_HEADS_ROWS] = {EVERY, "the same: few rows, F32 weights"},
};

/* Of ops with one kernel. */
static const char *const OPS[SL_OP_COUNT] = {
    [SL_OP_BEGIN] = "a step's changes of page tables, and copies of pages",
    [SL_OP_EMBED] = "rows of the embedding, decoded",
    [SL_OP_RMSNORM] = "norms of rows or heads",
    [SL_OP_LAYERNORM] = "norms by mean and variance",
    [SL_OP_QUANTIZE] = "x as BF16, or as codes with scales: int8 for 32 or 256 columns, E4M3 for 128",
    [SL_OP_ROPE] = "positions into queries and keys",
    [SL_OP_CACHE_WRITE] = "keys and values to their pages, in the cache's type",
    [SL_OP_COMPACT] = "which keys stay behind a prompt, and their copies",
    [SL_OP_RECALL] = "of each row what the one in front left in the cache",
    [SL_OP_ROUTER] = "scores and choice of experts, their rows in order",
    [SL_OP_COMBINE] = "the sum of a row's experts",
    [SL_OP_ACTIVATE] = "activated gates times values",
    [SL_OP_CONV] = "short convolutions",
    [SL_OP_GATHER] = "the rows whose logits are wanted",
    [SL_OP_TRANSFER] = "rows that another device computed",
    [SL_OP_ALL_REDUCE] = "sums of what all ranks have, over NVLink or PCIe",
    [SL_OP_ALL_GATHER] = "all ranks' columns side by side",
    [SL_OP_SOFTCAP] = "logits bent to a bound",
    [SL_OP_FETCH] = "weights from host memory: a layer's, all of its experts, or those chosen",
    [SL_OP_SAMPLE] = "the next token: penalties, filters, a draw",
};

static devices devices_of(sl_cuda_arrangement arrangement) {
    return ARRANGEMENTS[arrangement].devices;
}

const char *sl_cuda_device_declines(sl_cuda_arrangement arrangement, const sl_cuda_facts *facts) {
    const bool can = devices_of(arrangement) == WGMMA         ? facts->has_wgmma
                     : devices_of(arrangement) == BULK_COPIES ? facts->has_bulk_copies
                                                              : true;
    return can ? NULL : "needs compute capability 9.0";
}

const char *sl_cuda_devices_text(sl_cuda_arrangement arrangement) {
    static const char *const texts[] = {[EVERY] = "from 8.0", [BULK_COPIES] = "from 9.0", [WGMMA] = "9.0"};
    return texts[devices_of(arrangement)];
}

const char *sl_cuda_purpose(const sl_cuda_kernel *kernel) {
    return kernel->arrangement == SL_CUDA_ONLY ? OPS[kernel->kernel.op]
                                               : ARRANGEMENTS[kernel->arrangement].purpose;
}
