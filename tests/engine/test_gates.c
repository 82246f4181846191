/* Gates and values whose product activates and quantizes what it makes
 * (src/backend/cuda/linear): the bits of ACTIVATE and QUANTIZE by themselves. Needs a GPU
 * with compute capability 9.0.
 *
 *     test_gates [--device cuda:N] [--only CASE] */
#include "support/fused.h"

#define MODEL(family_name, weights, columns, hidden)                                                         \
    .family = family_name, .type = weights, .cache_type = "f16", .layers = 1, .width = columns,              \
    .feed_forward = hidden, .heads = 8, .kv_heads = 2, .head_size = 64
#define ROWS(most, first, ...) .prompt = first, .rows = most, .more = {__VA_ARGS__}
#define TMA "linear-i8-rows8-tma+activate+quantize/cuda"
#define WIDE "linear-i8-rows8-tma+activate+quantize/cuda"
#define EXPERTS .experts = 6, .experts_used = 2, .expert_width = 704
/* More of a row than i8_experts.cu takes in one run. */
#define MANY_EXPERTS .experts = 24, .experts_used = 22, .expert_width = 704

static const fused_case cases[] = {
    {"silu", MODEL("llama", "q8_0", 512, 768), ROWS(8, 13, 5), .runs = {{TMA, 1}}},
    {"silu, minima", MODEL("qwen3", "q4_k", 512, 768), ROWS(8, 13, 5), .runs = {{TMA, 1}}},
    {"gelu", MODEL("gemma3", "q8_0", 768, 512), ROWS(8, 13, 5), .runs = {{TMA, 1}}},
    {"gelu, minima", MODEL("gemma3", "q4_k", 768, 512), ROWS(6, 13, 5), .runs = {{TMA, 1}}},
    {"silu, long rows", MODEL("qwen3", "q8_0", 3072, 768), ROWS(8, 13, 5), .runs = {{WIDE, 1}}},
    {"silu, several granules of a block", MODEL("llama", "q8_0", 4096, 12288), ROWS(7, 13, 5),
     .runs = {{WIDE, 1}}},
    {"zeros behind one row", MODEL("llama", "q4_1", 512, 704), .prompt = 13,
     .runs = {{"linear-i8-row1+activate+quantize/cuda", 1}}},
    {"codebooks, one row", MODEL("llama", "iq3_xxs", 512, 768), .prompt = 13,
     .runs = {{"linear-i8-row1+activate+quantize/cuda", 1}}},
    {"codebooks, few rows", MODEL("qwen3", "iq2_xs", 512, 768), ROWS(8, 13, 5),
     .runs = {{"linear-i8-rows8+activate+quantize/cuda", 1}}},
    {"swiglu_oai of experts, zeros behind one row", MODEL("gpt_oss", "mxfp4", 512, 704), MANY_EXPERTS,
     .prompt = 13, .runs = {{"linear-i8-row1+activate+quantize/cuda", 1}}},
    {"swiglu_oai of experts, zeros behind many rows", MODEL("gpt_oss", "mxfp4", 704, 704), EXPERTS,
     ROWS(160, 140, 30), .runs = {{"linear-bf16-tile-wgmma+activate+quantize/cuda", 1}}},
    {"silu of experts, zeros behind many rows", MODEL("qwen3moe", "q8_0", 704, 704), EXPERTS,
     ROWS(160, 140, 30), .runs = {{"linear-bf16-tile-wgmma+activate+quantize/cuda", 1}}},
    {"chains of experts, zeros behind many rows", MODEL("qwen3moe", "q8_0", 704, 704), EXPERTS,
     ROWS(160, 140, 30), .deterministic = true, .runs = {{"linear-k16-tile+activate+quantize/cuda", 1}}},
    {"gelu, rows of three phases", MODEL("gemma3", "q8_0", 12288, 512), ROWS(8, 13, 5), .runs = {{WIDE, 1}}},
};

int main(int argc, char **argv) {
    return fused_main(argc, argv, cases, sizeof cases / sizeof *cases, "needs compute capability 9.0");
}
