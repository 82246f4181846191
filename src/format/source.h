/* Where a model's weights and facts come from: one view over a GGUF file and a Hugging Face folder. */
#ifndef SL_FORMAT_SOURCE_H
#define SL_FORMAT_SOURCE_H

#include "format/gguf.h"
#include "format/hf.h"

typedef struct sl_source sl_source;

/* A folder is opened as Hugging Face's; a file named *.safetensors or *.safetensors.index.json stands for its
 * folder; any other file must be GGUF. On failure *source is NULL. Immutable afterwards, so any thread may
 * read. */
int sl_source_open(const char *path, sl_source **source, sl_error *error);
void sl_source_close(sl_source *source); /* NULL is fine */
/* Of the file or the folder. */
const char *sl_source_path(const sl_source *source);

/* Exactly one of the two is not NULL. Borrowed. */
const sl_gguf *sl_source_gguf(const sl_source *source);
const sl_hf *sl_source_hf(const sl_source *source);

/* SL_ERR_NOT_FOUND when there is none, SL_ERR_UNSUPPORTED when the engine cannot use it (safetensors only: a
 * GGUF file with such a tensor does not open). `error` may be NULL. */
int sl_source_tensor(const sl_source *source, const char *name, const sl_tensor **tensor, sl_error *error);
uint64_t sl_source_tensor_count(const sl_source *source);
/* index < sl_source_tensor_count. `refusal` (may be NULL) receives why the engine cannot use the tensor, NULL
 * when it can; of a refused tensor only name, data and bytes hold. */
const sl_tensor *sl_source_tensor_at(const sl_source *source, uint64_t index, const char **refusal);

#endif
