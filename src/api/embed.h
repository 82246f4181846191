/* What the files of the C API share of embeddings and scores. */
#ifndef SL_API_EMBED_H
#define SL_API_EMBED_H

#include "api/engine.h"
#include "model/embedding.h"

/* Tokens of texts, one behind the other. Zero-initialise. */
typedef struct sl_api_texts {
    int32_t *tokens;
    size_t *ends; /* [count + 1]: text i is tokens[ends[i], ends[i + 1]) */
    size_t count;
} sl_api_texts;
void sl_api_texts_free(sl_api_texts *texts);

typedef struct sl_api_text_limits {
    int32_t context; /* tokens of one text at most */
    bool truncate;   /* cut longer ones */
} sl_api_text_limits;

typedef struct sl_api_query {
    sluice_embed_input text;
    const char *instruction; /* NULL: the usual one */
    sl_api_text_limits limits;
} sl_api_query;

/* The texts' tokens with what the model wants around them. */
int sl_api_texts_read(const sluice_model *model, const sluice_embed_input *inputs, size_t count,
                      const sl_api_text_limits *limits, sl_api_texts *texts, sl_error *error);
/* The same of a query with each document, as the model's classifier was trained: in a prompt, or as a pair.
 */
int sl_api_texts_pair(const sluice_model *model, const sl_api_query *query,
                      const sluice_embed_input *documents, size_t count, sl_api_texts *texts,
                      sl_error *error);
sl_pooling sl_api_pooling(const sl_embedding *embedding, sluice_pooling asked, bool rank);

#endif
