/* Products whose columns' ranges are added by what reads them (bf16_rows128.cuh and bf16_cublas.c of
 * src/backend/cuda/linear/bf16):
 * in front of norms of every kind, of heads, and of the rows that have outputs, they leave the bits that the
 * ops' own kernels leave. Needs a GPU with compute capability 9.0; deterministic cases also cuBLASLt, without
 * which no such class takes every number of rows.
 *
 *     test_ranges [--device cuda:N] [--only CASE] */
#include "support/fused.h"

#define MODEL(family_name, weights, hidden)                                                                  \
    .family = family_name, .type = weights, .cache_type = "f16", .layers = 2, .width = 512,                  \
    .feed_forward = hidden, .heads = 8, .kv_heads = 2, .head_size = 64
#define ROWS(most, first, ...) .prompt = first, .rows = most, .more = {__VA_ARGS__}
#define NORM "linear-ranges+rmsnorm+quantize/cuda"
#define LAST "linear-ranges+gather+gather+rmsnorm+quantize/cuda"
#define NORMED "linear-ranges+norms+rope+cache_write/cuda"
#define BARE "linear-ranges+rope+cache_write/cuda"

static const fused_case cases[] = {
    {"norms of heads", MODEL("qwen3", "q8_0", 1024), ROWS(16, 61, 3, 40),
     .runs = {{NORM, 3}, {LAST, 1}, {NORMED, 2}}},
    {"heads without norms", MODEL("llama", "q8_0", 512), ROWS(16, 35, 20),
     .runs = {{NORM, 3}, {LAST, 1}, {BARE, 2}}},
    {"norms in front of a residual", MODEL("gemma3", "q8_0", 1024), ROWS(16, 33, 9),
     .runs = {{"linear-ranges+rmsnorm/cuda", 4}, {NORMED, 2}}},
    {"experts behind a norm", MODEL("qwen3moe", "q8_0", 512), .experts = 4, .experts_used = 2,
     .expert_width = 256, ROWS(16, 40), .runs = {{NORM, 2}, {NORMED, 2}}},
    {"minima, many rows", MODEL("qwen3", "q4_k", 1024), ROWS(40, 61, 3, 40, 80),
     .runs = {{NORM, 3}, {LAST, 1}, {NORMED, 2}}},
    {"deterministic, sixteen rows", MODEL("qwen3", "q8_0", 2048), ROWS(16, 61, 3, 40), .deterministic = true,
     .needs = "linear/q8_0/cuda-k16-rows128", .runs = {{NORM, 3}, {LAST, 1}, {NORMED, 2}}},
    {"deterministic, eight rows", MODEL("llama", "q4_k", 2048), ROWS(8, 35, 20), .deterministic = true,
     .needs = "linear/q4_k/cuda-k16-rows8", .runs = {{NORM, 3}, {LAST, 1}}},
    {"deterministic, lines of rows", .family = "qwen3", .type = "q8_0", .cache_type = "f16", .layers = 1,
     .width = 2048, .feed_forward = 6144, .heads = 32, .kv_heads = 4, .head_size = 64, ROWS(8, 13, 5),
     .deterministic = true, .needs = "linear/q8_0/cuda-k16-rows8",
     .runs = {{NORM, 1}, {"linear-k16-rows8+activate+quantize/cuda", 1}}},
    {"no scales", MODEL("llama", "bf16", 768), ROWS(12, 30), .runs = {{NORM, 3}, {LAST, 1}, {BARE, 2}}},
    {"prompts", .family = "qwen3", .type = "q8_0", .cache_type = "f16", .layers = 2, .width = 2048,
     .feed_forward = 4096, .heads = 32, .kv_heads = 4, .head_size = 64, ROWS(192, 300, 250, 5),
     .deterministic = true, .needs = "linear/q8_0/cuda-k16-cublas",
     .runs = {{NORM, 3}, {LAST, 1}, {NORMED, 2}}},
};

int main(int argc, char **argv) {
    return fused_main(argc, argv, cases, sizeof cases / sizeof *cases, "needs compute capability 9.0");
}
