/* What a template takes, by asking it. */
#ifndef SL_CHAT_PROBE_H
#define SL_CHAT_PROBE_H

#include "chat/chat.h"
#include "chat/messages.h"

typedef struct sl_chat_probe {
    const sl_template *compiled;
    const char *bos_token, *eos_token;
    sl_view source;                /* of the template, for tags of thinking that it writes or looks for */
    const sl_tokenizer *tokenizer; /* may be NULL */
} sl_chat_probe;

/* Renders some short conversations. Only running out of memory is an error; what a template refuses it does
 * not take. `facts->builtin` is left alone. */
int sl_chat_run_probes(const sl_chat_probe *probe, sl_chat_format *format, sl_chat_facts *facts,
                       sl_error *error);

/* The variables that every rendering has; NULL when memory ran out. tools may be NULL. */
typedef struct sl_chat_variables {
    json_t *messages, *tools;
    const char *bos_token, *eos_token;
    bool add_generation_prompt;
} sl_chat_variables;
json_t *sl_chat_make_variables(const sl_chat_variables *variables);

#endif
