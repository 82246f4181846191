/* Prompts in eight bits: what norms and activations quantise in one launch with them are the bits that the
 * ops' own kernels leave, in E4M3 and in int8. Needs a GPU with compute capability 9.0.
 *
 *     test_precisions [--device cuda:N] [--only CASE] */
#include "support/fused.h"

#define MODEL(weights, wide, hidden)                                                                         \
    .family = "qwen3", .type = weights, .cache_type = "f16", .layers = 1, .width = wide,                     \
    .feed_forward = hidden, .heads = 4, .kv_heads = 2, .head_size = 64, .prompt = 330, .rows = 320
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
};

int main(int argc, char **argv) {
    return fused_main(argc, argv, cases, sizeof cases / sizeof *cases, "needs compute capability 9.0");
}
