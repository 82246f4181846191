/* The compiled automaton, the vocabulary's trie, and where a text can stand in the automaton. For src/grammar
 * alone.
 *
 * Every rule is a machine over bytes, calls of rules and tokens; the machines' states are numbered together.
 * A called rule reads at least one byte or token (the empty text is an arc past the call), and no rule calls
 * itself before it read something, so that settling a byte ends. */
#ifndef SL_GRAMMAR_AUTOMATON_H
#define SL_GRAMMAR_AUTOMATON_H

#include "grammar/grammar.h"

#include <stdatomic.h>

typedef struct sl_byte_arc {
    uint8_t first, last;
    int32_t target;
} sl_byte_arc;

typedef struct sl_call_arc {
    int32_t callee; /* the state where the called rule begins */
    int32_t target;
    int32_t least, most; /* how often the rule is called in a row; most -1: no bound */
} sl_call_arc;

typedef struct sl_token_arc {
    int32_t token;
    int32_t target;
    bool negated;
} sl_token_arc;

/* Arcs of state s end where those of state s + 1 begin. */
typedef struct sl_automaton_state {
    int32_t first_byte, first_call, first_token;
    int32_t rank; /* of a state where a rule begins: above those of rules that call it first; else 0 */
    bool accepts;
    bool is_apart; /* no byte has two arcs */
} sl_automaton_state;

/* What follows from a state, or behind frames that were popped from below it, as far as what lies below does
 * not matter. Made once, never changed. */
typedef struct sl_mask_entry sl_mask_entry;

/* Entries by state and frames. Any thread reads without a lock; what is made twice is kept twice. */
typedef struct sl_mask_cache {
    _Atomic(sl_mask_entry *) *buckets;
    uint32_t bucket_count; /* a power of two */
    atomic_uint_least64_t bytes;
} sl_mask_cache;

struct sl_grammar {
    atomic_int references;
    sl_grammar_vocabulary *vocabulary;
    sl_automaton_state *states; /* [state_count + 1] */
    int32_t state_count;
    sl_byte_arc *bytes;
    sl_call_arc *calls;
    sl_token_arc *tokens;
    int32_t start;
    int32_t root_states; /* those of the root, which come first */
    bool may_be_empty;
    int32_t name_quotes[2]; /* the states that read a mark of sl_expression_name_quote, or -1 */
    uint8_t classes[256];   /* bytes that no state tells apart have one class */
    int32_t class_count;
    sl_mask_cache cache;
};

/* ---- the vocabulary
 * ------------------------------------------------------------------------------------------ */

/* Preorder: what begins with a node's bytes are the `size` nodes from it on, itself included. */
typedef struct sl_trie_node {
    int32_t token; /* or -1; others of the same bytes follow in `same` */
    int32_t size;
    uint8_t byte;
    uint8_t depth; /* bytes to here, 1 for those of the first level */
    bool quotes;   /* it is a quotation mark that tokens go on behind, or such a one is below it */
} sl_trie_node;

enum { SL_TRIE_DEPTH = 255 }; /* longer tokens are not in the trie: they are never allowed by a mask */

struct sl_grammar_vocabulary {
    atomic_int references;
    int32_t count;
    sl_grammar_token *tokens; /* with bytes of its own */
    char *bytes;
    sl_trie_node *trie;
    int32_t trie_count;
    int32_t *same;        /* [count]: the next token of the same bytes, or -1 */
    int32_t *in_order;    /* the trie's tokens by node, those of the same bytes together */
    int32_t *first_token; /* [trie_count + 1]: where those of a node begin in in_order */
    uint64_t *kinds;      /* [trie_count]: which kinds of characters are below a node */
    uint8_t *heights;     /* [trie_count]: bytes of the longest way below a node */
    uint32_t *not_ends;   /* the mask of all tokens that do not end a turn */
    uint32_t *in_trie;    /* the mask of the trie's tokens */
    int32_t *ends;        /* tokens that end a turn */
    int32_t end_count;
};

/* Kinds of characters, below 64: those of one kind are seldom told apart by a grammar. */
enum {
    SL_KIND_WIDE,   /* of several bytes: all valid UTF-8, of which the last may be cut off */
    SL_KIND_BROKEN, /* bytes that are no UTF-8, or go on with a character that began above the node */
};
int sl_byte_kind(uint8_t byte); /* of a byte below 0x80 */

/* The token with that text, special ones first, or -1. */
int32_t sl_vocabulary_find(const sl_grammar_vocabulary *vocabulary, const char *text, size_t count);

/* ---- where a text stands
 * --------------------------------------------------------------------------------------- */

/* What a called rule goes back to. Nodes are numbers; equal ones are one. Node 0 is the bottom. */
typedef struct sl_stack_node {
    int32_t target;      /* frames: the state to go to; unions: -1 */
    int32_t callee;      /* the rule that is counted, or -1 */
    int32_t least, most; /* of the counted call */
    int32_t count;       /* frames: how many calls this is; unions: members */
    int32_t below;       /* frames: the node below; unions: where the members begin */
} sl_stack_node;

typedef struct sl_stack_item {
    int32_t state, stack;
} sl_stack_item;

/* All ways in which the automaton can have read a text: items by state, a state once. Equal ones are one. */
typedef struct sl_configuration {
    int32_t first, count; /* in items */
    bool ends;            /* the bottom was reached: the text can end here */
    bool run_known, wide_known;
    int32_t row;    /* of next, or -1 */
    int32_t behind; /* where characters of these kinds lead, all of them, if run_known; or SL_NO_WAY */
    uint64_t kinds;
    uint64_t run_kinds; /* texts of these kinds of up to run_height bytes are known to lead on, not to the
                           bottom */
    int32_t run_height;
} sl_configuration;

enum { SL_NOT_KNOWN = -2, SL_NO_WAY = -1 };

/* Zero-initialise, then sl_stacks_begin. One thread at a time. */
typedef struct sl_stacks {
    const sl_grammar *grammar;
    uint64_t bytes_held;
    sl_stack_node *nodes;
    int32_t node_count, node_capacity;
    int32_t *members;
    int32_t member_count, member_capacity;
    sl_configuration *configurations;
    int32_t configuration_count, configuration_capacity;
    sl_stack_item *items;
    int32_t item_count, item_capacity;
    int32_t *next; /* [rows][classes]: the configuration behind a byte, SL_NO_WAY or SL_NOT_KNOWN */
    int32_t next_count, next_capacity;
    int32_t *node_table, *configuration_table; /* number + 1 by hash */
    int32_t node_table_capacity, configuration_table_capacity;
    sl_stack_item *work; /* states with stacks, while a byte is settled */
    int32_t work_count, work_capacity;
    uint64_t effort; /* items compared; the caller sets it to 0 */
} sl_stacks;

int sl_stacks_begin(sl_stacks *stacks, const sl_grammar *grammar, sl_error *error);
void sl_stacks_free(sl_stacks *stacks);
/* Into zeroed memory; all numbers stay what they are. */
int sl_stacks_copy(sl_stacks *to, const sl_stacks *from, sl_error *error);
/* The configuration of a state on a stack, with what it calls; `ends`: the text can also end here. Negative:
 * an error. */
int32_t sl_stacks_enter(sl_stacks *stacks, sl_stack_item item, bool ends, sl_error *error);
/* The configuration of a state on a stack alone: what it reads itself. */
int32_t sl_stacks_place(sl_stacks *stacks, sl_stack_item item, sl_error *error);
/* What follows once a rule ended on the frame, which is put on the bottom. */
int32_t sl_stacks_return(sl_stacks *stacks, const sl_stack_node *frame, sl_error *error);
/* Do all characters of these kinds lead to one configuration? 1: to `behind`; 0: no, or it is not seen;
 * negative: an error. */
int sl_stacks_run(sl_stacks *stacks, int32_t configuration, uint64_t kinds, int32_t *behind, sl_error *error);
/* Behind a byte, or behind a token that stands for itself. SL_NO_WAY, or less on an error, whose code is in
 * `error`. */
int32_t sl_stacks_step(sl_stacks *stacks, int32_t configuration, uint8_t byte, sl_error *error);
int32_t sl_stacks_token(sl_stacks *stacks, int32_t configuration, int32_t token, sl_error *error);
/* Without one of its items. SL_NO_WAY: nothing is left. */
int32_t sl_stacks_drop(sl_stacks *stacks, int32_t configuration, int32_t item, sl_error *error);
/* What either stands for. */
int32_t sl_stacks_join(sl_stacks *stacks, int32_t a, int32_t b, sl_error *error);

/* ---- names that differ
 * ------------------------------------------------------------------------------------------ */

typedef struct sl_name {
    int32_t first, count; /* in `read` */
} sl_name;

/* The text of a matcher whose grammar has sl_expression_name_quote, and the names of an object in it. Which
 * names an object has cannot be known from a stack. Zero-initialise. */
typedef struct sl_names {
    char *text; /* all bytes so far, and what is tried behind them */
    int32_t text_capacity;
    sl_name *list; /* names before the one that begins at `before`, in order */
    int32_t count, capacity;
    int32_t before; /* 0: none; a name has a quotation mark before it */
    char *read;     /* their bytes, escapes resolved */
    int32_t read_count, read_capacity;
    struct sl_name_place *tried;
    int32_t tried_capacity;
} sl_names;

/* Where a text stands. The names of the object's members that begin as this one does are [first, end) of the
 * list; first -1: not looked up yet. */
typedef struct sl_name_place {
    int32_t configuration;
    int32_t begin; /* of the name in the text, or 0: not within one that must differ */
    int32_t first, end;
    int32_t depth;         /* its bytes, escapes resolved */
    uint8_t escape, value; /* bytes of an escape that were read; what its digits say */
    bool has_dropped;      /* a way was left because its name was there */
} sl_name_place;

static inline bool sl_has_names(const sl_grammar *grammar) {
    return grammar->name_quotes[0] >= 0;
}

void sl_names_free(sl_names *names);
int sl_names_copy(sl_names *to, const sl_names *from, int32_t bytes, sl_error *error);
/* From `place` at the text's byte `at`, by a byte that becomes the text's. 1: `place` is behind it; 0: no
 * way; or a negative code. */
int sl_names_step(sl_names *names, sl_stacks *stacks, sl_name_place *place, int32_t at, uint8_t byte,
                  sl_error *error);
/* Takes tokens out of a mask that lead into names that are there. The text has `at` bytes. */
int sl_names_mask(sl_names *names, sl_stacks *stacks, const sl_name_place *place, int32_t at, uint32_t *mask,
                  sl_error *error);

/* ---- masks
 * ---------------------------------------------------------------------------------------------------- */

/* What one matcher needs to make masks. Zero-initialise. */
typedef struct sl_masker {
    sl_stacks stacks; /* stacks of entries being made, over a bottom that stands for anything */
    uint32_t *bits;   /* [words]: by the trie's order */
    int32_t *exits;
    int32_t exit_count, exit_capacity;
    int32_t hops; /* left before the tokens are walked one by one */
} sl_masker;

void sl_masker_free(sl_masker *masker);
/* Bits of tokens that bytes match, of what follows a configuration of `stacks`. The mask is zeroed by the
 * caller. 0 or a negative code. */
int sl_masker_fill(sl_masker *masker, sl_stacks *stacks, int32_t configuration, uint32_t *mask,
                   sl_error *error);
/* The same by walking every token; what the other is compared with. */
int sl_mask_walk(sl_masker *masker, sl_stacks *stacks, int32_t configuration, uint32_t *mask,
                 sl_error *error);
/* Makes entries of the states with the longest walks, for `seconds` at most. Failures leave them to be made
 * later. */
void sl_grammar_warm(sl_grammar *grammar, double seconds);
bool sl_mask_cache_create(sl_grammar *grammar);
void sl_mask_cache_free(sl_grammar *grammar);

#endif
