/* Norms, rotation and cache write of the heads in attention's launch, and what a linear reads of its result
 * (src/backend/cuda/attention/decode.cuh): for
 * heads of every size, ratio and cache type, single rows at the borders of pages and parts, and steps of
 * several rows of one sequence or many, leave the bits that the ops' own kernels leave; and for more rows
 * that result alone. Needs a GPU with compute capability 9.0.
 *
 *     test_heads [--device cuda:N] [--only CASE] */
#include "support/fused.h"

#define MODEL(family_name, cache)                                                                            \
    .family = family_name, .type = "q8_0", .cache_type = cache, .layers = 2, .width = 64, .feed_forward = 64
#define NORMED .runs = {{"norms+rope+cache_write+attention+quantize/cuda", 2}}
#define BARE .runs = {{"rope+cache_write+attention+quantize/cuda", 2}}

#define APART .runs = {{"attention+quantize/cuda", 2}} /* heads in a launch of their own */

#define HEADS(of_q, of_keys, size, tokens)                                                                   \
    .heads = of_q, .kv_heads = of_keys, .head_size = size, .prompt = tokens

#define CHUNKS .deterministic = true
#define ROWS(most, ...) .rows = most, .more = {__VA_ARGS__}

static const fused_case cases[] = {
    {"four heads a key, a page's end", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 61), NORMED},
    {"eight heads a key", MODEL("qwen3", "f16"), HEADS(8, 1, 64, 126), NORMED},
    {"five heads a key", MODEL("llama", "bf16"), HEADS(20, 4, 64, 30), BARE},
    {"one head a key", MODEL("qwen2", "f16"), HEADS(4, 4, 64, 62), BARE},
    {"sixteen heads a key", MODEL("llama", "f16"), HEADS(16, 1, 128, 61), BARE},
    {"large heads, a window", MODEL("gemma3", "f16"), HEADS(4, 1, 256, 253), NORMED},
    {"wide heads", MODEL("qwen3", "f16"), HEADS(4, 1, 512, 125), NORMED},
    {"wide heads, sixteen heads a key", MODEL("llama", "bf16"), HEADS(16, 1, 512, 61), BARE},
    {"wide heads, blocks of 32", MODEL("qwen3", "q8_0"), HEADS(2, 1, 512, 61), NORMED},
    {"wide heads, one byte", MODEL("gemma3", "fp8"), HEADS(2, 2, 512, 62), NORMED},
    {"the second part", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 253), NORMED},
    {"the first token", MODEL("qwen3", "q8_0"), HEADS(4, 2, 128, 1), NORMED},
    {"blocks of 32", MODEL("qwen3", "q8_0"), HEADS(8, 2, 64, 60), NORMED},
    {"one byte", MODEL("qwen3", "fp8"), HEADS(8, 2, 128, 61), NORMED},
    {"one byte, small heads", MODEL("mistral", "fp8"), HEADS(4, 2, 64, 126), BARE},
    {"eight sequences", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 61), NORMED,
     ROWS(8, 3, 129, 64, 2, 70, 7, 1)},
    {"one sequence in pieces of eight", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 131), NORMED, ROWS(8)},
    {"several sequences, five heads a key", MODEL("llama", "bf16"), HEADS(20, 4, 64, 60), BARE,
     ROWS(8, 7, 66)},
    {"several sequences, sixteen heads a key", MODEL("llama", "f16"), HEADS(16, 1, 128, 61), BARE,
     ROWS(8, 66, 5)},
    {"several sequences, one head a key", MODEL("qwen2", "f16"), HEADS(4, 4, 64, 58), BARE, ROWS(8, 3, 129)},
    {"several sequences, large heads, a window", MODEL("gemma3", "f16"), HEADS(4, 1, 256, 100), NORMED,
     ROWS(8, 61, 3)},
    {"several sequences, wide heads", MODEL("qwen3", "f16"), HEADS(4, 1, 512, 61), NORMED, ROWS(8, 3, 66)},
    {"several sequences, blocks of 32", MODEL("qwen3", "q8_0"), HEADS(8, 2, 128, 61), NORMED,
     ROWS(8, 129, 3)},
    {"several sequences, small blocks of 32", MODEL("qwen3", "q8_0"), HEADS(8, 2, 64, 61), NORMED,
     ROWS(8, 129, 3)},
    {"several sequences, one byte", MODEL("qwen3", "fp8"), HEADS(8, 2, 128, 61), NORMED, ROWS(8, 129, 3)},
    {"several sequences, parts", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 300), NORMED, ROWS(8, 320, 253)},
    {"two sequences, many parts", MODEL("qwen3", "f16"), HEADS(4, 1, 64, 770), NORMED, ROWS(2, 5)},
    {"sixteen rows", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 61), APART, ROWS(16, 3, 129, 64, 2, 70, 7, 1)},
    {"sixteen rows of one sequence", MODEL("qwen3", "fp8"), HEADS(8, 1, 64, 150), APART, ROWS(16)},
    {"sixteen rows, sixteen heads a key", MODEL("llama", "bf16"), HEADS(16, 1, 128, 61), APART,
     ROWS(16, 66, 5)},
    {"chunks, sixteen rows", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 506), APART, ROWS(16, 3, 129), CHUNKS},
    {"chunks, the first token", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 1), NORMED, CHUNKS},
    {"chunks, a page's end", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 253), NORMED, CHUNKS},
    {"chunks, the second one", MODEL("qwen3", "f16"), HEADS(8, 1, 64, 509), NORMED, CHUNKS},
    {"chunks, five heads a key", MODEL("llama", "bf16"), HEADS(20, 4, 64, 190), BARE, CHUNKS},
    {"chunks, sixteen heads a key", MODEL("llama", "f16"), HEADS(16, 1, 128, 126), BARE, CHUNKS},
    {"chunks, large heads, a window", MODEL("gemma3", "f16"), HEADS(4, 1, 256, 253), NORMED, CHUNKS},
    {"chunks, wide heads", MODEL("qwen3", "bf16"), HEADS(4, 1, 512, 509), NORMED, CHUNKS},
    {"chunks, wide heads, sixteen heads a key", MODEL("llama", "q8_0"), HEADS(16, 1, 512, 61), BARE, CHUNKS},
    {"chunks, wide heads, one byte", MODEL("qwen3", "fp8"), HEADS(2, 1, 512, 61), NORMED, CHUNKS},
    {"chunks, blocks of 32", MODEL("qwen3", "q8_0"), HEADS(8, 2, 128, 126), NORMED, CHUNKS},
    {"chunks, small blocks of 32", MODEL("qwen3", "q8_0"), HEADS(8, 2, 64, 126), NORMED, CHUNKS},
    {"chunks, one byte", MODEL("qwen3", "fp8"), HEADS(8, 2, 128, 126), NORMED, CHUNKS},
    {"chunks, one byte, small heads", MODEL("mistral", "fp8"), HEADS(4, 2, 64, 126), BARE, CHUNKS},
    {"chunks, several sequences", MODEL("qwen3", "f16"), HEADS(8, 2, 128, 61), NORMED,
     ROWS(8, 3, 129, 64, 2, 70, 7, 1), CHUNKS},
    {"chunks, several sequences, two of them", MODEL("qwen3", "bf16"), HEADS(8, 2, 128, 509), NORMED,
     ROWS(8, 3), CHUNKS},
};

int main(int argc, char **argv) {
    return fused_main(argc, argv, cases, sizeof cases / sizeof *cases, "needs compute capability 9.0");
}
