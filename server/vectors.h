/* Embeddings and scores: requests that wait for vectors, and the thread that answers them. */
#ifndef SLUICE_SERVER_VECTORS_H
#define SLUICE_SERVER_VECTORS_H

#include "server.h"

typedef struct vectors vectors;

/* NULL: no memory, or no thread. */
vectors *vectors_create(struct server *server);
/* Ends what is on its way, without answers. After the HTTP server was stopped. NULL is fine. */
void vectors_destroy(vectors *vectors);

/* Handlers. */
void vectors_openai(exchange *x, void *context);        /* POST /v1/embeddings */
void vectors_native(exchange *x, void *context);        /* llama-server's POST /embedding */
void vectors_ollama(exchange *x, void *context);        /* POST /api/embed */
void vectors_ollama_single(exchange *x, void *context); /* POST /api/embeddings, its older form */
void vectors_rerank(exchange *x, void *context);        /* POST /v1/rerank */

#endif
