/* A loaded model: maps, facts, tokenizer and program. Immutable once loaded, so any thread may read it; the
 * weights' data only between sl_model_hold and sl_model_let_go, once anybody called these. */
#ifndef SL_MODEL_MODEL_H
#define SL_MODEL_MODEL_H

#include "model/bind.h"
#include "model/embedding.h"
#include "model/generation.h"
#include "token/tokenizer.h"

#include <pthread.h>

enum { SL_MODEL_NAME_SIZE = 128 };

/* What `inspect` says. */
typedef struct sl_model_description {
    char name[SL_MODEL_NAME_SIZE]; /* general.name, or the last part of the path */
    const char *family;
    const char *format;                /* "GGUF" or "safetensors" */
    uint64_t parameters;               /* elements of all weights in use, a tied head counted once */
    uint64_t bytes;                    /* of those weights, as stored */
    uint64_t owned_bytes;              /* copied out of the map */
    uint64_t tensors;                  /* in use */
    uint64_t file_tensors;             /* in the file */
    sl_type_use types[SL_QTYPE_COUNT]; /* of the weights in use; bytes as stored */
} sl_model_description;

typedef struct sl_model {
    sl_source *source;
    sl_config config;
    sl_tokenizer *tokenizer; /* NULL when the files have none */
    sl_sampling sampling;    /* what the files recommend */
    sl_view chat_template;   /* the default one, borrowed from the tokenizer; {NULL, 0} when there is none */
    sl_program program;      /* weights borrow from `source` and `owned` */
    /* The same with the head that drafts (model/draft.c); its weights are the program's. No ops: there is no
     * such head. */
    sl_program drafting;
    sl_owned owned;
    sl_embedding embedding; /* how texts become vectors and scores */
    sl_model_description description;
    pthread_mutex_t mutex; /* of what follows */
    int32_t holders;       /* of the weights' data */
    bool dropped;          /* copies in `owned` */
} sl_model;

/* A GGUF file or a Hugging Face folder. On failure *model is NULL and nothing is held; the message names the
 * file and what is wrong with it. A folder without tokenizer.json or a file without tokenizer.ggml.model
 * loads with no tokenizer; a tokenizer that is there but cannot be used is an error. */
int sl_model_load(const char *path, sl_model **model, sl_error *error);
/* The same, but large copies (model/bind.h) are left to the first sl_model_hold: for plans, and for stand-ins
 * of files whose data is not there. */
int sl_model_load_for_plan(const char *path, sl_model **model, sl_error *error);
/* Only the tokenizer, its template and the name: the program stays empty, the config zero. Opens
 * vocabulary-only files and folders, of families that are not built too. SL_ERR_NOT_FOUND when there is no
 * tokenizer. */
int sl_model_load_tokenizer(const char *path, sl_model **model, sl_error *error);
void sl_model_free(sl_model *model); /* NULL is fine */

/* SL_ERR_IO when something was lost (base/map.h) of a file that the model is read from. Cheap as long as
 * nothing was, in the whole process. */
int sl_model_check(const sl_model *model, sl_error *error);

/* The weights' data may be read from here on. Copies that were dropped are made again. */
int sl_model_hold(sl_model *model, sl_error *error);
/* Ends that. drop: the caller needs the data no more and expects nobody to; when no one else holds it, the
 * copies' memory (model/bind.h) goes back to the system. */
void sl_model_let_go(sl_model *model, bool drop);

#endif
