/* Prompts in eight bits: what norms and activations quantise in one launch with them are the bits that the
 * ops' own kernels leave, in E4M3 and in int8. Needs a GPU with compute capability 9.0.
 *
 *     test_precisions [--device cuda:N] [--only CASE] */
#include "support/fused.h"

/* Two layers: nothing behind the keys of the last one is read again by rows of a later step. */
#define MODEL(weights, wide, hidden)                                                                         \
    .family = "qwen3", .type = weights, .cache_type = "f16", .layers = 2, .width = wide,                     \
    .feed_forward = hidden, .heads = 4, .kv_heads = 2, .head_size = 64, .prompt = 330, .rows = 320
#define EXPERTS(weights, hidden)                                                                             \
    .family = "qwen3moe", .type = weights, .cache_type = "f16", .layers = 2, .width = 256, .heads = 4,       \
    .kv_heads = 2, .head_size = 64, .experts = 5, .experts_used = 2, .expert_width = hidden, .prompt = 170,  \
    .rows = 160
#define NORM "rmsnorm+quantize/cuda"
#define ACTIVATE "activate+quantize/cuda"

static const fused_case cases[] = {
    {"fp8", MODEL("q8_0", 256, 512), .precision = SLUICE_PROMPT_FP8, .needs = "linear/q8_0/cuda-e4m3-tile",
     .runs = {{NORM, 2}, {ACTIVATE, 1}}},
    {"fp8, rows that end with zeros", MODEL("q4_0", 640, 480), .precision = SLUICE_PROMPT_FP8,
     .needs = "linear/q4_0/cuda-e4m3-tile", .runs = {{NORM, 2}, {ACTIVATE, 1}}},
    {"int8", MODEL("q4_k", 256, 512), .precision = SLUICE_PROMPT_INT8, .needs = "linear/q4_k/cuda-s8-tile",
     .runs = {{NORM, 2}, {ACTIVATE, 1}}},
    {"int8, half groups and zeros", MODEL("q8_0", 640, 480), .precision = SLUICE_PROMPT_INT8,
     .needs = "linear/q8_0/cuda-s8-tile", .runs = {{NORM, 2}, {ACTIVATE, 1}}},
    {"int8, experts", EXPERTS("q4_k", 256), .precision = SLUICE_PROMPT_INT8,
     .needs = "linear/q4_k/cuda-s8-experts", .runs = {{"linear-s8-experts+activate/cuda", 1}}},
    {"int8, experts of half a tile", EXPERTS("q8_0", 480), .precision = SLUICE_PROMPT_INT8,
     .needs = "linear/q8_0/cuda-s8-experts", .runs = {{"linear-s8-experts+activate/cuda", 1}}},
};

int main(int argc, char **argv) {
    return fused_main(argc, argv, cases, sizeof cases / sizeof *cases, "needs compute capability 9.0");
}
