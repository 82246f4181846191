/* A model's chat format: its template with the texts of its special tokens, and what the template takes. */
#ifndef SL_CHAT_CHAT_H
#define SL_CHAT_CHAT_H

#include "chat/template.h"
#include "token/tokenizer.h"

#include <stdbool.h>

/* Immutable once made: any number of threads may render it at once. */
typedef struct sl_chat sl_chat;

typedef struct sl_chat_config {
    const char *source; /* the model's chat_template; NULL or "": the built-in ChatML template */
    const char *name;   /* for messages, such as the model file's; may be NULL */
    const char *bos_token, *eos_token; /* NULL: "" */
    const sl_tokenizer *tokenizer;     /* whose tags of thinking are looked for; may be NULL */
    bool leaves_bos; /* the template does not write bos_token: the tokenizer adds it, if it does for other
                        texts */
} sl_chat_config;

/* What was found out about a template by rendering probes when it was made. */
typedef struct sl_chat_facts {
    bool builtin;                         /* it is the built-in template, because the model had none */
    bool tools;                           /* it writes the tools that are offered */
    bool parts;                           /* it reads content as a list of parts */
    bool enable_thinking;                 /* its prompt depends on the variable of that name */
    bool thinks;                          /* its prompt ends inside think_open */
    const char *think_open, *think_close; /* static; both NULL when neither it nor the vocabulary has them */
} sl_chat_facts;

/* Copies what it needs. On failure *chat is NULL. */
int sl_chat_create(const sl_chat_config *config, sl_chat **chat, sl_error *error);
void sl_chat_free(sl_chat *chat);
const sl_chat_facts *sl_chat_get_facts(const sl_chat *chat);

/* Everything is borrowed and only read. */
typedef struct sl_chat_request {
    json_t *messages; /* array of objects: role, content and what the template knows besides; chat/messages.h
                         says what is made of them */
    json_t *tools;    /* array, or NULL */
    json_t *extra; /* object of further variables (enable_thinking, ...), or NULL; none of those that are set
                      here or by the model */
    bool add_generation_prompt;       /* end with the opening of an assistant message */
    bool continue_final_message;      /* end with the content of the last message, open; not with the above */
    const sl_template_limits *limits; /* NULL: the defaults */
} sl_chat_request;

/* A caller's object of variables (may be NULL), taken apart into the request's members; *extra is a new
 * reference that the caller drops after the request. SL_ERR_INVALID for names that belong to the model, and
 * for values of the wrong type. */
int sl_chat_read_options(json_t *options, sl_chat_request *request, json_t **extra, sl_error *error);

/* Appends the prompt's text to `out`; on failure `out` is as it was. */
int sl_chat_render(const sl_chat *chat, const sl_chat_request *request, sl_buffer *out, sl_error *error);

/* Appends the prompt's tokens; on failure *out holds what it held before. The template's special tokens are
 * those tokens; what stands in the request's strings stays text, also where strings are put side by side.
 * With a model's own template the beginning-of-text token is there if the template writes it, as in
 * transformers; with the built-in one if the tokenizer adds it. */
int sl_chat_encode(const sl_chat *chat, const sl_tokenizer *tokenizer, const sl_chat_request *request,
                   sl_tokens *out, sl_error *error);

#endif
