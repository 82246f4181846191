/* What the files of the C API share of models. */
#ifndef SL_API_MODELS_H
#define SL_API_MODELS_H

#include "api/api.h"
#include "base/error.h"
#include "chat/chat.h"
#include "chat/reply_formats.h"
#include "grammar/grammar.h"
#include "model/model.h"
#include "token/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

struct sluice_model {
    _Atomic int references;
    sl_model *model;
    sl_chat *chat; /* compiled at open; NULL: the template does not compile, and chat_error says why */
    sl_error chat_error;
    sl_chat *chat_tools;       /* of the model's template tool_use; NULL: none, or another was asked for */
    const char *chat_template; /* in use; NULL: the model has none, and none was asked for */
    const char *chat_template_name; /* NULL: the caller gave its text */
    char *chat_text;                /* the caller's, copied */
    /* How it writes replies, by chat's template and by chat_tools'; NULL: there is no such template. */
    sl_reply_format *replies[2];
    pthread_mutex_t vocabulary_mutex;
    sl_grammar_vocabulary *vocabulary; /* made for the first grammar; under the mutex */
};

/* Compiles the template that the options ask for, else the model's own. A template of the
 * model that does not compile is kept for those who want to chat (chat_error); one that was asked for is an
 * error.
 */
int sl_api_open_chat(sluice_model *model, const sluice_model_options *options, sl_error *error);
void sl_api_close_chat(sluice_model *model);

/* False for a model that was opened for its text alone; sl_api_no_weights is the error that says so. */
bool sl_api_has_weights(const sl_model *model);
int sl_api_no_weights(sl_error *error);

/* For a function that gives tokens: true, with an error, when an argument is NULL. The list is empty then and
 * otherwise too. */
bool sl_api_lacks_list(const sluice_model *model, int32_t **tokens, size_t *count, sluice_error *error);
/* The error of a model without a tokenizer. */
int sl_api_no_tokenizer(sluice_error *error);
/* Hands a list to the caller; takes it over, on failure too. */
int sl_api_give_tokens(const sl_tokens *list, int32_t **tokens, size_t *count, sluice_error *error);

#endif
