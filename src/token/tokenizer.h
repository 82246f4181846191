/* Text <-> token ids: byte-level BPE (GPT-2, Llama 3, Qwen, Falcon), SentencePiece-style BPE by merge rank
 * (Hugging Face tokenizer.json of Llama 2, Mistral, Gemma; GGUF model "gemma4") and by score (GGUF model
 * "llama").
 *
 * A tokenizer is immutable after it was made: any number of threads may use one, every call keeps its own
 * scratch. All sizes are bytes. Ids are 0 .. vocabulary size - 1; -1 stands for "there is none". */
#ifndef SL_TOKEN_TOKENIZER_H
#define SL_TOKEN_TOKENIZER_H

#include "base/error.h"
#include "base/text.h"
#include "format/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_tokenizer sl_tokenizer;

/* Numbered as in GGUF's tokenizer.ggml.token_type. */
typedef enum sl_token_type {
    SL_TOKEN_UNDEFINED = 0, /* no token has this id: a hole in the vocabulary */
    SL_TOKEN_NORMAL = 1,
    SL_TOKEN_UNKNOWN = 2,
    SL_TOKEN_CONTROL = 3,      /* special: found in text only with SL_TOKENIZE_SPECIAL */
    SL_TOKEN_USER_DEFINED = 4, /* added but not special: always found in text, before anything else */
    SL_TOKEN_UNUSED = 5,
    SL_TOKEN_BYTE = 6, /* "<0x0A>": stands for one byte */
} sl_token_type;

/* Limits of what is loaded; beyond them SL_ERR_LIMIT. A text may have up to SL_TOKENIZER_MAX_TEXT bytes. */
enum {
    SL_TOKENIZER_MAX_TOKENS = 1 << 23,
    SL_TOKENIZER_MAX_TOKEN_LENGTH = 65535, /* text of one token */
    SL_TOKENIZER_MAX_STAGES = 16,          /* splits, and normaliser steps */
    SL_TOKENIZER_MAX_PATTERN = 65536,      /* one regular expression */
};
#define SL_TOKENIZER_MAX_TEXT ((size_t)1 << 30)

/* Reads tokenizer.ggml.* and tokenizer.chat_template* of an open GGUF file; nothing of it is needed
 * afterwards. Unknown models and pre-tokenizers: SL_ERR_UNSUPPORTED naming them. On failure *out is NULL. */
int sl_tokenizer_from_gguf(const sl_gguf *gguf, sl_tokenizer **out, sl_error *error);
/* Hugging Face files. config_path (tokenizer_config.json) may be NULL: then bos is what the post-processor's
 * template begins with. Chat templates are those of tokenizer_config.json and of files beside tokenizer.json
 * (load_templates.c). On failure *out is NULL. */
int sl_tokenizer_from_json(const char *path, const char *config_path, sl_tokenizer **out, sl_error *error);
/* The same from memory; config.data may be NULL. `name` stands in messages. */
int sl_tokenizer_from_json_memory(sl_view json, sl_view config, const char *name, sl_tokenizer **out,
                                  sl_error *error);
/* NULL is fine. */
void sl_tokenizer_destroy(sl_tokenizer *tokenizer);

/* ---- text to ids
 * ------------------------------------------------------------------------------------------------- */

/* Zero-initialise before use; freed with sl_tokens_free. */
typedef struct sl_tokens {
    int32_t *data;
    size_t count, capacity;
} sl_tokens;

/* 0 or SL_ERR_NOMEM (then nothing was added). */
int sl_tokens_append(sl_tokens *tokens, int32_t id);
void sl_tokens_free(sl_tokens *tokens);

enum sl_tokenize_flags {
    SL_TOKENIZE_SPECIAL =
        1, /* special tokens written out in the text become their ids; without it they stay plain text */
    SL_TOKENIZE_BOS = 2, /* put bos first if this model wants one */
    SL_TOKENIZE_END = 4, /* put the token last that closes a text, if this model wants one */
};

/* Appends the ids of `text` to *out. Any bytes are accepted: what is not valid UTF-8 becomes byte tokens
 * where the vocabulary has them (the unknown token, or nothing, where it has not). Time is O(n log n) for n
 * bytes. SL_ERR_NOMEM, SL_ERR_LIMIT (text too long, or a pattern of tokenizer.json that backtracks without
 * end); on failure *out holds what it held before. */
int sl_tokenizer_encode(const sl_tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                        sl_tokens *out, sl_error *error);

/* A text of which some came from others, who must not be able to write special tokens into it. Their strings
 * go through sl_tokenizer_mark_special first: it appends `text` with `mark` behind the first character of
 * each special token's text that begins in it, whole or cut off by its end. sl_tokenizer_encode_marked then
 * takes no special token across a mark, and gives the tokens of the text without marks. `mark` is a text that
 * occurs nowhere else, such as a noncharacter (U+FDD0 to U+FDEF). */
void sl_tokenizer_mark_special(const sl_tokenizer *tokenizer, sl_view text, sl_view mark, sl_buffer *out);
int sl_tokenizer_encode_marked(const sl_tokenizer *tokenizer, sl_view text, sl_view mark, unsigned flags,
                               sl_tokens *out, sl_error *error);

/* ---- ids to text
 * ------------------------------------------------------------------------------------------------- */

/* The bytes that a token stands for (a special token: its own text), which need not be whole characters;
 * {NULL, 0} for an id outside the vocabulary. Borrowed from the tokenizer. A SentencePiece token keeps its
 * leading space. */
sl_view sl_tokenizer_decode_piece(const sl_tokenizer *tokenizer, int32_t id);

enum sl_detokenize_flags {
    SL_DETOKENIZE_SKIP_SPECIAL = 1, /* control and unknown tokens give nothing */
    /* The ids go on from text that was there before: keep a leading space. Without it a SentencePiece
     * vocabulary that puts a space before a text loses one leading space again, as llama.cpp and Hugging Face
     * do. */
    SL_DETOKENIZE_CONTINUE = 2,
    /* With SKIP_SPECIAL: control tokens give their own text between these two bytes, which are no UTF-8. */
    SL_DETOKENIZE_FRAME_SPECIAL = 4,
};
enum { SL_FRAME_OPEN = 0xFF, SL_FRAME_CLOSE = 0xFE };

/* A streaming detokenizer. It appends whole characters only: up to 3 bytes wait for the rest of theirs. Bytes
 * that are no UTF-8 come out as U+FFFD, one for each maximal part of a character (the Unicode standard's
 * practice). Borrows the tokenizer; owns no memory; not to be shared by threads. */
typedef struct sl_detokenizer {
    const sl_tokenizer *tokenizer;
    unsigned flags;
    bool strip; /* the next byte, if it is a space, is dropped */
    unsigned char pending[4];
    unsigned pending_length;
} sl_detokenizer;

void sl_detokenizer_begin(sl_detokenizer *detokenizer, const sl_tokenizer *tokenizer, unsigned flags);
/* Appends what id completes. SL_ERR_INVALID for an id outside the vocabulary, SL_ERR_NOMEM (the buffer is
 * then marked failed). */
int sl_detokenizer_feed(sl_detokenizer *detokenizer, int32_t id, sl_buffer *out, sl_error *error);
/* The end of the stream: an incomplete character comes out as U+FFFD. The object can be fed again afterwards.
 */
int sl_detokenizer_flush(sl_detokenizer *detokenizer, sl_buffer *out, sl_error *error);
/* begin, feed all, flush. On failure *out holds what it held before. */
int sl_tokenizer_decode(const sl_tokenizer *tokenizer, const int32_t *ids, size_t count, unsigned flags,
                        sl_buffer *out, sl_error *error);

/* ---- facts
 * ------------------------------------------------------------------------------------------------------- */

/* One more than the highest id. */
int32_t sl_tokenizer_size(const sl_tokenizer *tokenizer);
int32_t sl_tokenizer_bos(const sl_tokenizer *tokenizer);
int32_t sl_tokenizer_eos(const sl_tokenizer *tokenizer);
int32_t sl_tokenizer_unk(const sl_tokenizer *tokenizer);
int32_t sl_tokenizer_pad(const sl_tokenizer *tokenizer);
/* Does the model want bos before a text? Only if there is one. */
bool sl_tokenizer_adds_bos(const sl_tokenizer *tokenizer);
/* The token that closes an encoded text where the model wants one ([SEP], </s>); -1: none. */
int32_t sl_tokenizer_closing(const sl_tokenizer *tokenizer);
/* How many of it stand between two texts that are read together: 1, or 2 with XLM-R's. */
int32_t sl_tokenizer_pair_gap(const sl_tokenizer *tokenizer);
/* Does this token end a turn or a text? eos, the file's eot and eom, and the well-known control tokens by
 * their text. */
bool sl_tokenizer_is_eog(const sl_tokenizer *tokenizer, int32_t id);
/* One more such token, which another file of the model names; it becomes eos if there is none. `id` must be
 * inside the vocabulary. Before the tokenizer is shared. */
void sl_tokenizer_add_eog(sl_tokenizer *tokenizer, int32_t id);
/* The id whose text is exactly this, as the vocabulary spells it (byte-level: in GPT-2's alphabet), or -1. */
int32_t sl_tokenizer_find(const sl_tokenizer *tokenizer, sl_view text);
/* As the vocabulary spells it; {NULL, 0} for an id outside. */
sl_view sl_tokenizer_token_text(const sl_tokenizer *tokenizer, int32_t id);
sl_token_type sl_tokenizer_token_type(const sl_tokenizer *tokenizer, int32_t id);
/* The template of that name, or with name NULL the default one; {NULL, 0} when there is none. Borrowed;
 * NUL-terminated. */
sl_view sl_tokenizer_chat_template(const sl_tokenizer *tokenizer, const char *name);
/* The names of all templates, one by one; NULL past the end. Borrowed. */
const char *sl_tokenizer_chat_template_name(const sl_tokenizer *tokenizer, int index);

#endif
