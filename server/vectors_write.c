/* Shapes: OpenAI's API reference (embeddings); llama-server's README (/embedding, /rerank); ollama's
 * api/types.go (EmbedResponse, EmbeddingResponse); Jina's and Cohere's rerank. */
#include "vectors_write.h"

#include "pump.h"

#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

static void write_vector(text *out, const float *x, size_t width) {
    text_put(out, "[");
    for (size_t i = 0; i < width; i++) {
        text_format(out, "%s%.9g", i ? "," : "", (double)x[i]);
    }
    text_put(out, "]");
}

/* Little-endian floats in base64 (RFC 4648), as OpenAI's packages ask for. */
static void write_base64(text *out, const float *x, size_t width) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)x;
    const size_t count = width * sizeof *x;
    text_put(out, "\"");
    for (size_t i = 0; i < count; i += 3) {
        const size_t left = count - i;
        const unsigned word = (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[word >> 18], digits[word >> 12 & 63],
                              left > 1 ? digits[word >> 6 & 63] : '=', left > 2 ? digits[word & 63] : '='};
        text_add(out, four, sizeof four);
    }
    text_put(out, "\"");
}

/* Of one text: a vector, or with `nested` (and always of several rows) a list of vectors. */
static void write_rows(text *out, const vector_job *job, size_t index, bool nested) {
    size_t rows, width;
    const float *x = sluice_embedding_vector(job->embedding, index, &rows, &width);
    nested |= job->rows;
    text_put(out, nested ? "[" : "");
    for (size_t row = 0; row < rows; row++) {
        text_put(out, row ? "," : "");
        if (job->base64) {
            write_base64(out, x + row * width, width);
        } else {
            write_vector(out, x + row * width, width);
        }
    }
    text_put(out, nested ? "]" : "");
}

static void write_model(text *out, const vector_job *job) {
    text_put(out, "\"model\":");
    text_string(out, job->model->id, strlen(job->model->id));
}

static void write_usage(text *out, size_t tokens) {
    text_format(out, "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}", tokens, tokens);
}

/* ---- shapes ---- */

void vectors_write_openai(const vector_job *job, size_t tokens, text *out) {
    text_put(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < job->count; i++) {
        text_format(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        write_rows(out, job, i, false);
        text_put(out, "}");
    }
    text_put(out, "],");
    write_model(out, job);
    text_put(out, ",");
    write_usage(out, tokens);
    text_put(out, "}");
}

void vectors_write_native(const vector_job *job, size_t tokens, text *out) {
    (void)tokens;
    text_put(out, "[");
    for (size_t i = 0; i < job->count; i++) {
        text_format(out, "%s{\"index\":%zu,\"embedding\":", i ? "," : "", i);
        write_rows(out, job, i, true);
        text_put(out, "}");
    }
    text_put(out, "]");
}

void vectors_write_ollama(const vector_job *job, size_t tokens, text *out) {
    text_put(out, "{");
    write_model(out, job);
    text_put(out, ",\"embeddings\":[");
    for (size_t i = 0; i < job->count; i++) {
        text_put(out, i ? "," : "");
        write_rows(out, job, i, false);
    }
    const double nanoseconds = (monotonic_seconds() - job->begun) * 1e9;
    text_format(out, "],\"total_duration\":%.0f,\"load_duration\":0,\"prompt_eval_count\":%zu}", nanoseconds,
                tokens);
}

void vectors_write_ollama_single(const vector_job *job, size_t tokens, text *out) {
    (void)tokens;
    text_put(out, "{\"embedding\":");
    write_rows(out, job, 0, false);
    text_put(out, "}");
}

typedef struct ranked {
    size_t index;
    float score;
} ranked;

static int compare_ranked(const void *a, const void *b) {
    const ranked *left = a, *right = b;
    return left->score != right->score ? (left->score < right->score ? 1 : -1)
                                       : (left->index > right->index) - (left->index < right->index);
}

void vectors_write_scores(const vector_job *job, size_t tokens, text *out) {
    ranked *list = calloc(job->count, sizeof *list);
    if (!list) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < job->count; i++) {
        size_t rows, width;
        list[i] = (ranked){i, *sluice_embedding_vector(job->embedding, i, &rows, &width)};
    }
    qsort(list, job->count, sizeof *list, compare_ranked);
    text_put(out, "{");
    write_model(out, job);
    text_put(out, ",\"object\":\"list\",");
    write_usage(out, tokens);
    text_put(out, ",\"results\":[");
    for (size_t i = 0; i < job->top; i++) {
        text_format(out, "%s{\"index\":%zu,\"relevance_score\":%.9g", i ? "," : "", list[i].index,
                    (double)list[i].score);
        if (job->documents) {
            const sluice_embed_input *document = &job->inputs[list[i].index];
            text_put(out, ",\"document\":{\"text\":");
            text_string(out, document->text, document->length);
            text_put(out, "}");
        }
        text_put(out, "}");
    }
    text_put(out, "]}");
    free(list);
}
