/* Answers of requests for vectors and scores, in the shape of each API. */
#ifndef SLUICE_SERVER_VECTORS_WRITE_H
#define SLUICE_SERVER_VECTORS_WRITE_H

#include "server.h"

typedef struct vector_job vector_job;
/* The whole answer; `tokens`: of all texts. */
typedef void vector_writer(const vector_job *job, size_t tokens, text *out);

/* A request for vectors or scores. */
struct vector_job {
    struct server *server;
    exchange *exchange;         /* a reference */
    served_model *model;        /* the same; NULL: not acquired yet */
    json_t *body;               /* the same; inputs point into it */
    sluice_embed_input *inputs; /* [count], owned */
    int32_t *tokens;            /* of inputs that are tokens, owned */
    size_t count;
    sluice_embedding *embedding; /* owned */
    vector_writer *write;
    bool rows, base64, documents; /* a vector for each token; OpenAI's encoding; the texts go with scores */
    size_t top;                   /* scores to give */
    double begun;                 /* seconds of the monotonic clock */
    vector_job *next, *next_ready;
};

vector_writer vectors_write_openai, vectors_write_native, vectors_write_ollama, vectors_write_ollama_single,
    vectors_write_scores;

#endif
