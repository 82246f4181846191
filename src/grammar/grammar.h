/* Grammars as automata, and the masks over a vocabulary that hold a sampler to them.
 *
 * A grammar is compiled once and shared; a matcher is where one text stands in it. Masks are found by a walk
 * of the vocabulary's trie; what does not depend on the stack is kept with the automaton's states. */
#ifndef SL_GRAMMAR_GRAMMAR_H
#define SL_GRAMMAR_GRAMMAR_H

#include "grammar/expression.h"

typedef struct sl_grammar sl_grammar;
typedef struct sl_grammar_vocabulary sl_grammar_vocabulary;
typedef struct sl_matcher sl_matcher;

/* What a vocabulary's tokens stand for. */
typedef struct sl_grammar_token {
    const char *bytes; /* what the token adds to a text; not kept */
    int32_t count;
    bool is_special; /* matched by sl_expression_token alone */
    bool is_end;     /* of a turn: may come where the grammar may end, besides sl_expression_token */
} sl_grammar_token;

/* The trie, built once per tokenizer; tokens that are neither special nor have bytes are never allowed.
 * Shared by reference counting; any thread. */
sl_grammar_vocabulary *sl_grammar_vocabulary_create(const sl_grammar_token *tokens, int32_t count,
                                                    sl_error *error);
void sl_grammar_vocabulary_release(sl_grammar_vocabulary *vocabulary);
/* Is there a token that begins with these bytes and goes on? */
bool sl_grammar_vocabulary_extends(const sl_grammar_vocabulary *vocabulary, const char *bytes, size_t count);
/* Is the token one that bytes are matched by? */
bool sl_grammar_vocabulary_is_text(const sl_grammar_vocabulary *vocabulary, int32_t token);

/* root becomes a grammar over the vocabulary, which it holds on to. The builder can be destroyed. A grammar
 * that no text matches is an error. Shared by reference counting; any thread. */
sl_grammar *sl_grammar_compile(sl_grammar_builder *builder, sl_expression root,
                               sl_grammar_vocabulary *vocabulary, sl_error *error);
sl_grammar *sl_grammar_retain(sl_grammar *grammar);
void sl_grammar_release(sl_grammar *grammar);
/* Memory that it holds now, its vocabulary aside: the automaton, and what masks have left with it since. Any
 * thread. */
uint64_t sl_grammar_bytes(const sl_grammar *grammar);

/* At the grammar's beginning. One thread at a time; different matchers of one grammar on different threads.
 */
sl_matcher *sl_matcher_create(sl_grammar *grammar, sl_error *error);
sl_matcher *sl_matcher_copy(const sl_matcher *matcher, sl_error *error);
void sl_matcher_destroy(sl_matcher *matcher);

/* 1: the token follows, and the matcher stands behind it; 0: it does not, and nothing changed; negative: an
 * SL_ERR_ code. A token that is_end ends the text. */
int sl_matcher_accept(sl_matcher *matcher, int32_t token, sl_error *error);
/* The same for bytes that are no token (a text put in front of the answer). */
int sl_matcher_accept_bytes(sl_matcher *matcher, const char *bytes, size_t count, sl_error *error);
/* Back by so many accepted tokens (speculation); as many as were accepted can be undone. */
int sl_matcher_rollback(sl_matcher *matcher, int32_t tokens, sl_error *error);
/* The text may end here; it has ended. */
bool sl_matcher_can_end(const sl_matcher *matcher);
bool sl_matcher_has_ended(const sl_matcher *matcher);

/* Bit i % 32 of mask[i / 32]: token i may follow. mask: [ceil(tokens / 32)]. At least one bit is set unless
 * the text has ended. */
int sl_matcher_mask(sl_matcher *matcher, uint32_t *mask, sl_error *error);
/* Tokens that can only follow, one after the other, up to `most`: the tokenization that the tokenizer itself
 * would choose is not known here, so that only what is the same for every one is given: single allowed
 * tokens. Returns how many, and leaves the matcher where it was. */
int sl_matcher_forced(sl_matcher *matcher, int32_t *tokens, int32_t most, sl_error *error);
/* Bytes that can only follow, whatever tokens they come in; the tokenizer makes tokens of them. */
int sl_matcher_forced_bytes(sl_matcher *matcher, char *bytes, int32_t most, sl_error *error);

#endif
