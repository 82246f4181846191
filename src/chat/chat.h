/* A model's chat format: its template with the texts of its special tokens. */
#ifndef SL_CHAT_CHAT_H
#define SL_CHAT_CHAT_H

#include "chat/template.h"

#include <stdbool.h>

/* Immutable once made: any number of threads may render it at once. */
typedef struct sl_chat sl_chat;

typedef struct sl_chat_config {
    const char *source; /* the model's chat_template; NULL or "": the built-in ChatML template */
    const char *name;   /* for messages, such as the model file's; may be NULL */
    const char *bos_token, *eos_token; /* NULL: "" */
} sl_chat_config;

/* Copies what it needs. On failure *chat is NULL. */
int sl_chat_create(const sl_chat_config *config, sl_chat **chat, sl_error *error);
void sl_chat_free(sl_chat *chat);
/* Is it the built-in template, because the model had none? */
bool sl_chat_is_builtin(const sl_chat *chat);

/* Everything is borrowed and only read. */
typedef struct sl_chat_request {
    json_t *messages; /* array of objects: role, content and what the template knows besides */
    json_t *tools;    /* array, or NULL */
    json_t *extra;    /* object of further variables (enable_thinking, ...), or NULL; it wins over the rest */
    bool add_generation_prompt;       /* end with the opening of an assistant message */
    const sl_template_limits *limits; /* NULL: the defaults */
} sl_chat_request;

/* Appends the prompt's text to `out`; on failure `out` is as it was. */
int sl_chat_render(const sl_chat *chat, const sl_chat_request *request, sl_buffer *out, sl_error *error);

#endif
