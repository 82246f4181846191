/* What the parts of a grammar's compiler share: expressions as nodes, the machine of all rules with empty
 * arcs, and deterministic machines. For src/grammar alone. */
#ifndef SL_GRAMMAR_BUILD_H
#define SL_GRAMMAR_BUILD_H

#include "grammar/expression.h"

typedef enum sl_expression_kind {
    SL_EXPRESSION_EMPTY,
    SL_EXPRESSION_NOTHING,
    SL_EXPRESSION_LITERAL, /* bytes[first .. first + count) */
    SL_EXPRESSION_RANGES,  /* ranges[first .. first + count): sorted, apart, without surrogates */
    SL_EXPRESSION_TOKEN,   /* the token `first`; with `first` -1 the one whose text is bytes[least .. + count)
                            */
    SL_EXPRESSION_SEQUENCE, /* parts[first .. first + count) */
    SL_EXPRESSION_CHOICE,   /* the same */
    SL_EXPRESSION_REPEAT,   /* the expression `first`, least to most times */
    SL_EXPRESSION_RULE,     /* the rule `first` */
    SL_EXPRESSION_MACHINE,  /* machines[first] */
    SL_EXPRESSION_BEGIN,    /* only where a scope's text begins, and ends */
    SL_EXPRESSION_END,
    SL_EXPRESSION_SCOPE,   /* the expression `first`, in which the two above are resolved */
    SL_EXPRESSION_ESCAPED, /* the expression `first`, written as the inside of a JSON string */
} sl_expression_kind;

typedef struct sl_expression_node {
    uint8_t kind;
    bool negated;  /* TOKEN: all tokens but this one */
    bool anchored; /* reaches BEGIN or END outside of a scope */
    int32_t first, count;
    int64_t least, most;
    uint32_t weight;    /* about how many states it takes where it stands, saturating */
    int32_t depth;      /* of what it contains */
    int32_t references; /* how many expressions contain it */
    int32_t rule[2];    /* the rule made for it because it is shared or counted, [escaped], or -1 */
} sl_expression_node;

typedef struct sl_grammar_rule_entry {
    int32_t name;             /* in bytes, ends with a zero */
    sl_expression expression; /* SL_NO_EXPRESSION until it is defined */
    bool escaped;             /* written as the inside of a JSON string */
    bool is_name_quote;       /* of sl_expression_name_quote: stays a rule, so that its state tells it */
    int32_t escaped_twin;     /* the same rule, escaped, or -1 */
} sl_grammar_rule_entry;

/* Arcs of machines. EMPTY, BEGIN and END are those of machines with empty arcs alone. */
typedef enum sl_arc_kind { SL_ARC_EMPTY, SL_ARC_BYTES, SL_ARC_SYMBOL, SL_ARC_BEGIN, SL_ARC_END } sl_arc_kind;

typedef struct sl_arc {
    uint8_t kind, first, last; /* BYTES: both ends included */
    int32_t symbol;            /* SYMBOL: a call of a rule or a token, in the compiler's table */
    int32_t target;
} sl_arc;

/* Without empty arcs. State 0 is where it begins. arcs of state s: [first_arc[s], first_arc[s + 1]). */
typedef struct sl_machine {
    int32_t states, arc_count;
    int32_t state_capacity, arc_capacity;
    int32_t *first_arc; /* [states + 1] */
    uint8_t *accepts;   /* [states] */
    sl_arc *arcs;       /* by kind; bytes in order, without overlap where it is deterministic */
} sl_machine;

struct sl_grammar_builder {
    sl_grammar_limits limits;
    sl_error error;
    uint64_t bytes_held;
    int32_t states_made;
    uint64_t work; /* arcs looked at, which bounds time */
    sl_expression_node *nodes;
    int32_t node_count, node_capacity;
    int32_t *parts;
    int32_t part_count, part_capacity;
    char *bytes;
    int32_t byte_count, byte_capacity;
    sl_character_range *ranges;
    int32_t range_count, range_capacity;
    sl_grammar_rule_entry *rules;
    int32_t rule_count, rule_capacity;
    int32_t name_rules[2]; /* those of sl_expression_name_quote, plus 1; 0: none */
    sl_machine *machines;
    int32_t machine_count, machine_capacity;
};

/* A call of a rule, or a token. */
typedef struct sl_symbol {
    bool is_token, negated;
    int32_t rule;        /* calls: the rule; tokens: the token, or -1: by its text */
    int32_t least, most; /* calls: how often in a row; most -1: no bound. Tokens by text: bytes, count */
} sl_symbol;

/* A machine with empty arcs, of one or of all rules. */
typedef struct sl_loose_arc {
    sl_arc arc;
    int32_t next; /* of the same state, or -1 */
} sl_loose_arc;

typedef struct sl_loose_machine {
    sl_grammar_builder *builder;
    bool whole;     /* rules and repetitions are written out: there are no symbols, or it is an error */
    int32_t *heads; /* [states]: the first arc, or -1 */
    int32_t states, state_capacity;
    sl_loose_arc *arcs;
    int32_t arc_count, arc_capacity;
    sl_symbol *symbols;
    int32_t symbol_count, symbol_capacity;
    int32_t depth;
} sl_loose_machine;

/* Room for `needed` elements of `size` bytes in *array, counted in the builder's memory. False: it stuck. */
bool sl_builder_grow(sl_grammar_builder *builder, void *array, int32_t *capacity, int64_t needed,
                     size_t size);
/* Frees what sl_builder_grow made. */
void sl_builder_drop(sl_grammar_builder *builder, void *memory, int32_t capacity, size_t size);
/* Makes an error stick; returns its code. */
int sl_builder_fail(sl_grammar_builder *builder, int code, const char *format, ...) SL_PRINTF(3, 4);
/* Counts states against the limit. */
bool sl_builder_count_states(sl_grammar_builder *builder, int32_t count);
/* Counts arcs looked at; false when a grammar takes too long (it stuck). */
bool sl_builder_count_work(sl_grammar_builder *builder, uint64_t arcs);
/* A node of that kind that contains nothing else. */
sl_expression sl_expression_leaf(sl_grammar_builder *builder, sl_expression_kind kind);
/* ^ and $ of a regular expression, and what they are resolved in. */
sl_expression sl_expression_scope(sl_grammar_builder *builder, sl_expression of);
/* Takes the machine over. */
sl_expression sl_expression_machine(sl_grammar_builder *builder, sl_machine *machine);

int32_t sl_loose_state(sl_loose_machine *loose);
void sl_loose_arc_add(sl_loose_machine *loose, int32_t from, sl_arc arc);
/* Paths from one state to the other for the expression's texts. False: an error stuck. */
bool sl_loose_emit(sl_loose_machine *loose, sl_expression expression, int32_t from, int32_t to, bool escaped);
void sl_loose_free(sl_loose_machine *loose);

/* Which arcs count as ways: what determinising a part of a loose machine needs to know. */
typedef struct sl_determinise_options {
    int32_t start, accept;
    bool apart;          /* state 0 is entered by no arc, and does not accept: the empty text is left out */
    int32_t most_states; /* beyond: -1 is returned, and nothing stuck */
    const uint8_t *live; /* [states of the loose machine], or NULL: states that lead to the end */
    const uint8_t
        *passes; /* [symbols]: bit 0: may be passed without text; bit 1: has texts that are not empty */
} sl_determinise_options;

/* 0, -1 beyond most_states, or a negative code (it stuck). `machine` is zeroed by the caller. */
int sl_determinise(sl_loose_machine *loose, const sl_determinise_options *options, sl_machine *machine);
/* The same without making sets: several arcs of one state may have the same byte. */
int sl_remove_empty(sl_loose_machine *loose, const sl_determinise_options *options, sl_machine *machine);
void sl_machine_free(sl_grammar_builder *builder, sl_machine *machine);

#endif
