/* One row through a mixture of experts in three launches, the norm with the router's product
 * (route.cu), and the choice with the experts' products and their sum (i8_experts.cuh; of deterministic plans
 * k16_experts.cuh), against the ops' own kernels, bit for bit. Needs a GPU with compute capability 9.0.
 *
 *     test_experts [--device cuda:N] [--only CASE] [--tokens N] */
#include "support/fused.h"

#define MODEL(weights, columns)                                                                              \
    .family = "qwen3moe", .type = weights, .cache_type = "f16", .layers = 2, .width = columns, .heads = 4,   \
    .kv_heads = 2, .head_size = 64, .prompt = 1
#define EXPERTS(all, chosen, columns) .experts = all, .experts_used = chosen, .expert_width = columns
#define ROUTE                                                                                                \
    { "rmsnorm+quantize+linear-f32/cuda", 2 }
#define K16_RUNS                                                                                             \
    .deterministic = true,                                                                                   \
    .runs = {{"router+linear-k16-rows4+activate+quantize+linear-k16-rows4+combine/cuda", 2}, ROUTE}
#define ALL_OF_THEM                                                                                          \
    { "router+linear-i8-row1+activate+quantize+linear-i8-row1+combine/cuda", 2 }
#define RUNS .runs = {ALL_OF_THEM, ROUTE}
#define RUNS_BEHIND .runs = {ALL_OF_THEM}
#define GPT_OSS(columns)                                                                                     \
    .family = "gpt_oss", .type = "mxfp4", .cache_type = "f16", .layers = 2, .width = columns, .heads = 8,    \
    .kv_heads = 2, .head_size = 64, .prompt = 1

static const fused_case cases[] = {
    {"q4_k", MODEL("q4_k", 1024), EXPERTS(16, 4, 256), RUNS},
    {"rows of three chunks", MODEL("q4_k", 768), EXPERTS(40, 3, 768), RUNS},
    {"one expert", MODEL("q4_k", 1024), EXPERTS(8, 1, 512), RUNS},
    {"all experts", MODEL("q4_k", 1024), EXPERTS(6, 6, 256), RUNS},
    {"weight rows in two passes, wide rows", MODEL("q4_k", 2304), EXPERTS(144, 8, 256), RUNS},
    {"many experts", MODEL("q4_k", 1024), EXPERTS(200, 10, 256), RUNS},
    {"more experts than the run takes", MODEL("q4_k", 1024), EXPERTS(300, 4, 256), .runs = {ROUTE}},
    {"q8_0", MODEL("q8_0", 1024), EXPERTS(16, 4, 256), RUNS},
    {"q6_k", MODEL("q6_k", 768), EXPERTS(16, 4, 256), RUNS},
    {"q5_k", MODEL("q5_k", 1024), EXPERTS(16, 4, 512), RUNS},
    {"q4_0", MODEL("q4_0", 1024), EXPERTS(16, 4, 256), RUNS},
    {"iq2_xxs, rows of three chunks", MODEL("iq2_xxs", 768), EXPERTS(40, 3, 768), RUNS},
    {"iq2_xs", MODEL("iq2_xs", 1024), EXPERTS(16, 4, 256), RUNS},
    {"iq1_m, rows of three chunks", MODEL("iq1_m", 768), EXPERTS(16, 3, 768), RUNS},
    {"iq2_s", MODEL("iq2_s", 1024), EXPERTS(200, 10, 256), RUNS},
    {"iq3_s", MODEL("iq3_s", 768), EXPERTS(16, 4, 256), RUNS},
    {"iq3_xxs", MODEL("iq3_xxs", 1024), EXPERTS(16, 4, 512), RUNS},
    {"tq1_0", MODEL("tq1_0", 1024), EXPERTS(16, 4, 256), RUNS},
    {"tq2_0", MODEL("tq2_0", 768), EXPERTS(16, 4, 256), RUNS},
    {"iq1_s", MODEL("iq1_s", 1024), EXPERTS(16, 4, 256), RUNS},
    {"nvfp4, rows of three chunks", MODEL("nvfp4", 768), EXPERTS(8, 2, 256), RUNS},
    {"q4_1", MODEL("q4_1", 1024), EXPERTS(16, 4, 256), RUNS},
    {"swiglu_oai and biases, zeros behind rows", GPT_OSS(992), EXPERTS(6, 2, 992), RUNS_BEHIND},
    {"q5_0", MODEL("q5_0", 1024), EXPERTS(16, 4, 256), RUNS},
    {"q2_k", MODEL("q2_k", 768), EXPERTS(8, 2, 256), RUNS},
    {"q3_k", MODEL("q3_k", 768), EXPERTS(16, 4, 256), RUNS},
    {"iq4_xs", MODEL("iq4_xs", 768), EXPERTS(8, 2, 256), RUNS},
    {"q5_1", MODEL("q5_1", 1024), EXPERTS(16, 4, 256), RUNS},
    {"chains, q4_k", MODEL("q4_k", 1024), EXPERTS(16, 4, 256), K16_RUNS},
    {"chains, rows of three chunks", MODEL("q4_k", 768), EXPERTS(40, 3, 768), K16_RUNS},
    {"chains, one expert", MODEL("q4_k", 1024), EXPERTS(8, 1, 512), K16_RUNS},
    {"chains, more of a row than the run takes", MODEL("q4_k", 1024), EXPERTS(16, 13, 256),
     .deterministic = true, .runs = {ROUTE}},
    {"chains, q8_0", MODEL("q8_0", 1024), EXPERTS(200, 10, 256), K16_RUNS},
    {"chains, q6_k", MODEL("q6_k", 2048), EXPERTS(3, 1, 2048), K16_RUNS},
    {"chains, q6_k, longer than a ring", MODEL("q6_k", 2048), EXPERTS(6, 2, 2048), K16_RUNS},
    {"chains, q4_0", MODEL("q4_0", 1024), EXPERTS(16, 4, 256), K16_RUNS},
    {"chains, down longer than a ring", MODEL("q5_k", 768), EXPERTS(16, 12, 1536), K16_RUNS},
    {"iq4_nl, zeros behind rows", MODEL("iq4_nl", 992), EXPERTS(6, 2, 992), RUNS_BEHIND},
    {"chains, more tiles than warps, longer than a ring", MODEL("q4_k", 2304), EXPERTS(144, 8, 256),
     K16_RUNS},
    {"mxfp4, many experts", MODEL("mxfp4", 1024), EXPERTS(200, 10, 512), RUNS},
};

int main(int argc, char **argv) {
    return fused_main(argc, argv, cases, sizeof cases / sizeof *cases, "takes devices of capability 9.0");
}
