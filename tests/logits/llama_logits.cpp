// Logits of a GGUF file by llama.cpp, for make_gguf_fixtures.py: llama_logits MODEL.gguf. Each line of the input is one text, its
// token ids parted by blanks; for each comes [tokens][vocabulary] of raw little-endian float32, a row for each token. The cache
// is F32 and flash attention is off, so that nothing is rounded. Not part of the build; llama.cpp's headers and libraries:
//   g++ -O2 -I LLAMA/include -I LLAMA/ggml/include llama_logits.cpp -L LIBRARIES -lllama -lggml -lggml-base -o llama_logits
#include "llama.h"

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

static void quiet(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static bool evaluate(llama_context *context, int vocabulary, std::vector<llama_token> &tokens) {
    const int count = (int)tokens.size();
    llama_memory_clear(llama_get_memory(context), true);
    llama_batch batch = llama_batch_init(count, 0, 1);
    for (int i = 0; i < count; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = count;
    const bool done = llama_decode(context, batch) == 0;
    for (int i = 0; done && i < count; i++) {
        fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, stdout);
    }
    fflush(stdout);
    llama_batch_free(batch);
    return done;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: llama_logits MODEL.gguf\n");
        return 2;
    }
    const int rows = argc > 2 ? std::stoi(argv[2]) : 512;
    llama_log_set(quiet, nullptr);
    ggml_backend_load_all();
    llama_model_params model_params = llama_model_default_params();
    llama_model *model = llama_model_load_from_file(argv[1], model_params);
    if (!model) {
        return 1;
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = rows;
    params.n_batch = params.n_ubatch = rows;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *context = llama_init_from_model(model, params);
    if (!context) {
        return 1;
    }
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        std::vector<llama_token> tokens;
        for (int token; words >> token;) {
            tokens.push_back(token);
        }
        if (!evaluate(context, vocabulary, tokens)) {
            return 1;
        }
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
