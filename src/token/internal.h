/* What the files of this layer share; nobody else includes it. */
#ifndef SL_TOKEN_INTERNAL_H
#define SL_TOKEN_INTERNAL_H

#include "base/arena.h"
#include "token/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SL_NO_RANK UINT32_MAX
/* U+2581, which SentencePiece vocabularies write for a space. */
#define SL_SPM_SPACE "\xe2\x96\x81"

/* ---- tables (table.c)
 * --------------------------------------------------------------------------------------------- Open
 * addressing. A file chooses its own keys, so a table never trusts its hash to spread them: while it is built
 * it is seeded anew whenever a chain would get longer than SL_TABLE_CHAIN, and a look-up therefore never
 * takes more steps. */
enum { SL_TABLE_CHAIN = 192, SL_TABLE_SEEDS = 16 };

/* A token as a file describes it. */
typedef struct sl_token {
    sl_view text;  /* as the vocabulary spells it */
    sl_view bytes; /* what it stands for */
    uint32_t rank; /* score vocabularies: place of the score, a lower rank is merged first */
    uint8_t type;  /* sl_token_type */
    bool eog;
} sl_token;

/* text -> id; the key is one of a token's two views */
typedef struct sl_text_table {
    size_t field;   /* offsetof(sl_token, text) or (sl_token, bytes) */
    int32_t *slots; /* [mask + 1]: id or -1 */
    uint32_t *tags; /* [mask + 1]: the hash's upper half */
    uint64_t mask, seed;
} sl_text_table;

void sl_text_table_free(sl_text_table *table);
typedef bool (*sl_token_filter)(const sl_token *token);
/* Indexes the tokens that pass the filter. Of two tokens with one key the first stays, and *twice (which may
 * be NULL) gets the second's id; -1 when there is none. SL_ERR_NOMEM, SL_ERR_LIMIT. */
int sl_text_table_build(sl_text_table *table, size_t field, const sl_token *tokens, size_t count,
                        sl_token_filter filter, int32_t *twice);
int32_t sl_text_table_find(const sl_text_table *table, const sl_token *tokens, sl_view text);

typedef struct sl_merge {
    uint32_t left, right;  /* ids; left is UINT32_MAX in an empty slot */
    uint32_t rank, result; /* lower ranks first; the id that the pair becomes */
} sl_merge;

/* What a file says of a merge: the texts of the two tokens. */
typedef struct sl_merge_text {
    sl_view left, right;
} sl_merge_text;

/* (left id, right id) -> merge */
typedef struct sl_pair_table {
    sl_merge *slots; /* [mask + 1] */
    uint64_t mask, seed;
} sl_pair_table;

/* Builds the table from a list; of equal pairs the first counts. SL_ERR_NOMEM, SL_ERR_LIMIT. */
int sl_pair_table_build(sl_pair_table *table, const sl_merge *merges, size_t count);
void sl_pair_table_free(sl_pair_table *table);
const sl_merge *sl_pair_table_find(const sl_pair_table *table, uint32_t left, uint32_t right);

/* Tokens to be found in text: a trie over bytes. */
typedef struct sl_added_node {
    uint32_t child, sibling; /* 0: none */
    int32_t entry;           /* index of an added token, or -1 */
    unsigned char byte;
} sl_added_node;

typedef struct sl_trie {
    sl_added_node *nodes; /* node 0 is the root; its children are in first[] */
    uint32_t count, capacity;
    uint32_t first[256];
} sl_trie;

int sl_trie_insert(sl_trie *trie, sl_view text, int32_t entry);
/* The node behind `node` (not the root) by that byte; 0: there is none. */
uint32_t sl_trie_child(const sl_trie *trie, uint32_t node, char byte);
void sl_trie_free(sl_trie *trie);

/* ---- the pipeline
 * -------------------------------------------------------------------------------------------------- */

typedef enum sl_text_step_kind {
    SL_STEP_NFC,
    SL_STEP_REPLACE,         /* every `from` becomes `to` */
    SL_STEP_PREPEND,         /* `to` before a text that is not empty */
    SL_STEP_PREPEND_MISSING, /* the same unless it begins with `from` */
    SL_STEP_WORDS, /* BERT's cleaning: no control characters, blanks as spaces, spaces around ideographs */
    SL_STEP_WORDS_LOWER,   /* the same, then without accents and in lower case */
    SL_STEP_PREPEND_FIRST, /* as PREPEND_MISSING, and only at the very start of the input */
    SL_STEP_REPLACE_RUNS,  /* every two or more `from` in a row become `to` */
    SL_STEP_STRIP_START,   /* without white space there */
    SL_STEP_STRIP_END,
    SL_STEP_CHARSMAP, /* SentencePiece's map of characters: a trie in `from`, the texts in `to` (unigram.c) */
    SL_STEP_METASPACE_WORDS, /* each word with U+2581 in front unless it has it, and without white space */
} sl_text_step_kind;

typedef struct sl_text_step {
    sl_text_step_kind kind;
    sl_view from, to;
} sl_text_step;

/* What becomes of a match when a text is split at it (Hugging Face's SplitDelimiterBehavior). */
typedef enum sl_split_behavior {
    SL_SPLIT_ISOLATED, /* a piece of its own; so is what lies between */
    SL_SPLIT_REMOVED,
    SL_SPLIT_WITH_PREVIOUS,
    SL_SPLIT_WITH_NEXT,
} sl_split_behavior;

/* What finds a stage's matches. */
typedef enum sl_split_kind {
    SL_SPLIT_PATTERN,
    SL_SPLIT_TRIPLES,           /* of numbers, \p{N} */
    SL_SPLIT_TRIPLES_OF_DIGITS, /* of decimal digits, \p{Nd}: only whole ones, and what follows goes with them
                                 */
    SL_SPLIT_TRIPLES_AT_BOUNDARY, /* of decimal digits, unless a part of a word follows */
} sl_split_kind;

typedef struct sl_split {
    sl_split_kind kind;
    pcre2_code *code; /* of a pattern */
    sl_split_behavior behavior;
} sl_split;

typedef struct sl_added_token {
    int32_t id;
    bool special, single_word, strip_left, strip_right;
} sl_added_token;

typedef enum sl_token_model {
    SL_MODEL_BYTE_LEVEL, /* symbols are bytes, merges by rank */
    SL_MODEL_CHARACTER,  /* symbols are characters, merges by rank */
    SL_MODEL_WORDPIECE,  /* a piece is a word: the longest tokens from its beginning on, or the unknown one */
    SL_MODEL_UNIGRAM,    /* the cut of the largest sum of scores */
    SL_MODEL_SCORE,      /* symbols are characters, merges into any token by its score */
} sl_token_model;

typedef struct sl_named_template {
    const char *name;
    sl_view text;
} sl_named_template;

struct sl_tokenizer {
    sl_arena arena; /* every text below */
    sl_token_model model;
    sl_token *tokens; /* [count] */
    size_t count, capacity;
    size_t max_length;     /* of the texts of tokens that merges or a whole piece can give */
    sl_text_table by_text; /* all tokens */
    sl_text_table whole;   /* with whole_piece: plain tokens by what a piece would be */
    sl_pair_table merges;
    int32_t byte_id[256]; /* the token of a byte, or -1 */
    /* Does any token have these two bytes side by side? Where none has, no merge reaches across, and a long
     * piece (with SentencePiece a whole text) falls into short parts. A bit for each [left][right]. */
    unsigned char joined[256][32];
    sl_view word_begin,
        word_inside;      /* WordPiece: what stands in front of a word's first token and of others */
    double *scores;       /* unigram: [count], in the arena */
    double unknown_score; /* of a character that is no token */
    sl_trie pieces;       /* unigram: plain tokens */
    bool byte_fallback;   /* character models: byte_id for characters without a token */
    bool fuse_unknown;
    bool whole_piece; /* a piece that is a token is that token, whatever the merges say (HF: ignore_merges) */
    bool whole_newlines; /* the same for pieces of newlines only */

    sl_added_token *added; /* [added_count] */
    size_t added_count, added_capacity;
    sl_trie raw, normalized; /* added tokens looked for before and after the normaliser */

    sl_text_step normalizer[SL_TOKENIZER_MAX_STAGES]; /* then the normalized trie, then: */
    size_t normalizer_count;
    sl_text_step prepare[SL_TOKENIZER_MAX_STAGES];
    size_t prepare_count;
    sl_split splits[SL_TOKENIZER_MAX_STAGES];
    size_t split_count;
    bool words_alone; /* while it is read: splits[0] is at white space */
    pcre2_general_context *regex_context;

    int32_t bos, eos, unk, pad;
    bool add_bos;
    int32_t closing;  /* behind a text with SL_TOKENIZE_END; -1: none */
    int32_t pair_gap; /* closing tokens between two texts */
    bool strip_start; /* decoding drops one space at the start */

    sl_named_template *templates; /* in the arena */
    size_t template_count;
};

/* ---- vocabulary.c: what both loaders use
 * ----------------------------------------------------------------------------- */

sl_tokenizer *sl_tokenizer_new(void);
/* Grows tokens[] to hold ids below `count`; new ones are holes. */
int sl_vocabulary_reserve(sl_tokenizer *tokenizer, size_t count, sl_error *error);
/* Sets a token's text (copied) and type. SL_ERR_FORMAT when the id is taken. */
int sl_vocabulary_set(sl_tokenizer *tokenizer, int32_t id, sl_view text, sl_token_type type, sl_error *error);
/* Indexes all texts: SL_ERR_FORMAT when two ids have the same one. */
int sl_vocabulary_index(sl_tokenizer *tokenizer, sl_error *error);
/* Puts an added token into the raw or the normalized trie. `content` is what is looked for. */
int sl_vocabulary_add(sl_tokenizer *tokenizer, const sl_added_token *added, sl_view content, bool normalized,
                      sl_error *error);
/* The last step: what each token stands for, byte tokens, tokens that end a turn. */
int sl_vocabulary_finish(sl_tokenizer *tokenizer, bool spaces_in_added, sl_error *error);
int sl_vocabulary_set_merges(sl_tokenizer *tokenizer, const sl_merge *merges, size_t count, sl_error *error);
/* Fills *merge from the texts that merge `index` names, or refuses what the vocabulary has not. `*skip`: its
 * result is no token that text may become (a control token). */
int sl_vocabulary_merge(const sl_tokenizer *tokenizer, size_t index, sl_merge_text text, sl_merge *merge,
                        bool *skip, sl_error *error);
/* Can text become this token by merging? Never a special one: that needs SL_TOKENIZE_SPECIAL. */
bool sl_token_is_plain(const sl_token *token);
/* Marks the tokens known to end a turn by their texts. any_type: whatever type the file gave them, and they
 * become control tokens (GGUF, as llama.cpp does); otherwise only added tokens. Comes before
 * sl_vocabulary_finish. */
void sl_vocabulary_mark_eog(sl_tokenizer *tokenizer, bool any_type);
/* Copies of a text in the tokenizer's arena; data is NULL when memory ran out. */
sl_view sl_tokenizer_keep(sl_tokenizer *tokenizer, sl_view text);
/* In place of one of the same name, if there is one. */
int sl_tokenizer_add_template(sl_tokenizer *tokenizer, sl_view name, sl_view text, sl_error *error);
/* load_templates.c: of the files beside a tokenizer.json, whose path is given. */
int sl_tokenizer_load_templates(sl_tokenizer *tokenizer, const char *beside, sl_error *error);

/* GPT-2's alphabet: the code point that stands for a byte, and back (-1: none). */
uint32_t sl_byte_to_code_point(unsigned char byte);
int sl_code_point_to_byte(uint32_t code_point);

/* ---- pre_tokenizers.c
 * ------------------------------------------------------------------------------------------------------ */

enum {
    SL_PRE_WHOLE_PIECE = 1, /* a piece that is a token is that token */
    SL_PRE_BOS = 2,
    SL_PRE_RAW = 4,     /* merges characters, not bytes in GPT-2's alphabet */
    SL_PRE_ESCAPED = 8, /* the same, with U+2581 for spaces and tokens for bytes */
    SL_PRE_WHOLE_NEWLINES = 16,
};
/* Adds the splits behind a name of tokenizer.ggml.pre. SL_ERR_UNSUPPORTED names one that is not known. */
int sl_pre_tokenizer_set(sl_tokenizer *tokenizer, sl_view name, unsigned *flags, sl_error *error);

/* ---- normalize.c
 * ------------------------------------------------------------------------------------------------------ */

/* Applies steps to `text`; *result is either `text` or in one of the two buffers, and lives as long as they
 * are left alone. SL_ERR_NOMEM; SL_ERR_LIMIT when a step makes its text more than about 16 times longer. */
int sl_text_steps_run(const sl_text_step *steps, size_t count, sl_view text, bool at_start,
                      sl_buffer buffers[2], sl_view *result);

/* ---- split.c
 * ------------------------------------------------------------------------------------------------------------
 */

/* openai/gpt-2, encoder.py; also what Hugging Face's ByteLevel splits by. */
#define SL_PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* Groups of three from the right end of a run of digits. As patterns these look ahead to the end of the run
 * from each group, which takes quadratic time; they are recognised and done in one pass. The first stands for
 * llama.cpp's \p{AFMoE_digits}; the second is Cohere's, the last SuperBPE's. */
#define SL_PATTERN_TRIPLES "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"
#define SL_PATTERN_TRIPLES_OF_NUMBERS "\\d{1,3}(?=(?:\\d{3})*\\b)"
#define SL_PATTERN_TRIPLES_OF_DIGITS "(?=(\\d{3})+(?!\\d))"
/* Adds a split stage. The pattern is Oniguruma's as Hugging Face uses it; what means something else in PCRE2
 * is translated or refused by name. */
int sl_split_add(sl_tokenizer *tokenizer, sl_view pattern, sl_split_behavior behavior, sl_error *error);
/* Is this character white space / part of a word? */
bool sl_is_space(uint32_t code_point);
bool sl_is_word(uint32_t code_point);

typedef int (*sl_piece_function)(void *context, sl_view piece);
/* Where a stage of triples is within a run of digits. */
typedef struct sl_digit_run {
    const char *from, *end;
    size_t left; /* digits from there on */
} sl_digit_run;

typedef struct sl_splitter {
    const sl_tokenizer *tokenizer;
    pcre2_match_context *limits;
    uint64_t budget; /* steps of matching left for the text, of which this may be a part */
    bool begun;
    sl_digit_run runs[SL_TOKENIZER_MAX_STAGES];
    pcre2_match_data *matches[SL_TOKENIZER_MAX_STAGES];
} sl_splitter;
/* Runs all stages over `text` and hands on the pieces in order; stops at the first non-zero result and
 * returns it. */
int sl_split_run(sl_splitter *splitter, sl_view text, sl_piece_function function, void *context,
                 sl_error *error);
void sl_splitter_free(sl_splitter *splitter);

/* ---- merge.c
 * --------------------------------------------------------------------------------------------------------------
 */

/* A symbol begins at a byte of the piece; the array is indexed by that byte. */
typedef struct sl_merge_symbol {
    uint32_t previous, next; /* the neighbours' first bytes; UINT32_MAX: none */
    int32_t id;              /* -1: no token has this text */
    uint32_t rank;           /* of merging with `next`; SL_NO_RANK: no merge */
    uint32_t result;         /* the id that gives */
} sl_merge_symbol;

/* Of a byte of the piece: the best cut that ends before it, and when all are known the token that begins
 * there.
 */
typedef struct sl_cut {
    double score; /* of all tokens before */
    uint32_t from,
        to; /* where the last of them begins, UINT32_MAX: no cut ends here; where the chosen one ends */
    int32_t id, chosen; /* -1: a character that is no token */
} sl_cut;

/* Scratch of merging, reused from piece to piece. Zero-initialise. */
typedef struct sl_merger {
    sl_cut *cuts;
    size_t cut_capacity;
    sl_merge_symbol *symbols;
    uint64_t *heap_block,
        *heap; /* rank << 32 | first byte: the least is merged first, of equals the leftmost */
    size_t symbol_capacity, heap_capacity, heap_count;
} sl_merger;

/* unigram.c. What a unigram vocabulary needs besides, once it is complete. */
int sl_unigram_prepare(sl_tokenizer *tokenizer, sl_error *error);
/* The best cut of a part, in merger->cuts from 0 by `to` to the part's end. *score: of what came before in
 * the piece; becomes that with this part. SL_ERR_NOMEM. */
int sl_unigram_part(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view part, double *score);
/* The step of a precompiled_charsmap, whose bytes it borrows. SL_ERR_FORMAT. */
int sl_charsmap_read(sl_view blob, sl_text_step *step, sl_error *error);
/* SL_ERR_NOMEM, SL_ERR_LIMIT. */
int sl_charsmap_run(const sl_text_step *map, sl_view text, sl_buffer *out);
int sl_metaspace_words(sl_view text, sl_buffer *out);

/* wordpiece.c: the same for SL_MODEL_WORDPIECE. */
int sl_wordpiece(const sl_tokenizer *tokenizer, sl_view word, sl_tokens *out);
/* BERT's normaliser, see SL_STEP_WORDS. SL_ERR_NOMEM. */
int sl_normalize_words(sl_view text, bool lower, sl_buffer *out);
/* The splits behind it: blanks go, punctuation stands alone. */
int sl_wordpiece_splits(sl_tokenizer *tokenizer, sl_error *error);

/* Appends the ids of one piece. SL_ERR_NOMEM; SL_ERR_LIMIT for a piece of 4 GiB. */
int sl_merge_piece(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view piece, sl_tokens *out);
void sl_merger_free(sl_merger *merger);

#endif
