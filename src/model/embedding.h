/* What a model's files say about turning texts into vectors: pooling, what follows the pooled row, and the
 * classifier of a reranker. Sources: llama.cpp (gguf-py's constants.py: "<arch>.pooling_type";
 * llama-graph.cpp: build_pooling), sentence-transformers (modules.json and the folders that it names). */
#ifndef SL_MODEL_EMBEDDING_H
#define SL_MODEL_EMBEDDING_H

#include "model/config.h"
#include "token/tokenizer.h"

/* Numbered as in GGUF's pooling_type. */
typedef enum sl_pooling {
    SL_POOLING_NONE, /* a vector for each token */
    SL_POOLING_MEAN,
    SL_POOLING_CLS, /* the first token's */
    SL_POOLING_LAST,
    SL_POOLING_RANK, /* a score: the classifier's, or of two tokens' logits */
} sl_pooling;

/* y = f(W x + bias), W [rows][columns]. */
typedef struct sl_dense {
    int32_t rows, columns;
    float *weight; /* owned */
    float *bias;   /* [rows], owned; NULL: none */
    bool tanh;     /* f; otherwise none */
} sl_dense;

enum { SL_EMBEDDING_LAYERS = 4 };

typedef struct sl_embedding {
    bool given; /* the files say how: it is an embedder or a reranker */
    sl_pooling pooling;
    sl_pooling ranked;                    /* which row the classifier reads */
    bool normalise;                       /* the vector then gets the length 1 */
    sl_dense layers[SL_EMBEDDING_LAYERS]; /* of the pooled row, in order */
    int32_t layer_count;
    /* Of a reranker, from the pooled row to logits; the last has one row (its sigmoid is the score) or two
     * (the first one's share of their softmax). */
    sl_dense classifier[SL_EMBEDDING_LAYERS];
    int32_t classifier_count;
    bool from_head; /* the classifier is the head's rows of "yes" and "no", not one of the file's own */
} sl_embedding;

/* Fills *embedding, which sl_embedding_free frees after success and failure alike. Where files say nothing:
 * the last token's row for models that look back only, else the mean, of length 1. */
int sl_embedding_read(const sl_source *source, const sl_config *config, sl_embedding *embedding,
                      sl_error *error);
/* Without a classifier in the files: the head's rows of the tokens "yes" and "no", which is how
 * Qwen3-Reranker scores (its model card). Nothing happens where one of them is missing. The weights' data
 * must be held. */
int sl_embedding_take_head(const sl_program *program, const sl_tokenizer *tokenizer, sl_embedding *embedding,
                           sl_error *error);
void sl_embedding_free(sl_embedding *embedding);
/* y [layer->rows] of x [layer->columns]; sums in double, in the order of columns. */
void sl_dense_apply(const sl_dense *layer, const float *x, float *y);

#endif
