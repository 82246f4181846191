/* Chat formats that many models were trained on, by the names that llama.cpp gives them: for a model whose
 * file has no template or the wrong one. */
#ifndef SL_CHAT_FORMATS_H
#define SL_CHAT_FORMATS_H

/* The Jinja text of a format; NULL when there is none of that name. Static. It takes text alone: roles and
 * contents, no tools. It leaves the beginning-of-text token to the tokenizer. */
const char *sl_chat_format_source(const char *name);
/* The names one by one; NULL past the end. */
const char *sl_chat_format_name(int index);

#endif
