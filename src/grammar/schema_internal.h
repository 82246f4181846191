/* How JSON Schemas become expressions; for the files schema*.c only.
 *
 * Every subschema is an entry, numbered as it is met: in the document, or made as the negation or a part of
 * another. Reading an entry gives its node: what its own keywords assert, the entries that must hold as well
 * (allOf, $ref), and groups of which one must hold (anyOf). What a place of the output must satisfy is a set
 * of entries. A set is expanded into leaves, each a list of nodes that all hold and have no choices left; the
 * set's texts are the union of its leaves' texts. So allOf, references and properties of several schemas
 * merge in one way, and recursion ends because sets are found again. */
#ifndef SL_GRAMMAR_SCHEMA_INTERNAL_H
#define SL_GRAMMAR_SCHEMA_INTERNAL_H

#include "base/arena.h"
#include "format/json.h"
#include "grammar/schema.h"

/* Types as bits. A number is an integer or has a fraction. */
enum {
    SL_TYPE_NULL = 1,
    SL_TYPE_BOOLEAN = 2,
    SL_TYPE_INTEGER = 4,
    SL_TYPE_FRACTION = 8,
    SL_TYPE_NUMBER = 12,
    SL_TYPE_STRING = 16,
    SL_TYPE_ARRAY = 32,
    SL_TYPE_OBJECT = 64,
    SL_TYPE_ANY = 127
};

/* Entries that every document has. */
enum { SL_ENTRY_TRUE = 0, SL_ENTRY_FALSE = 1, SL_ENTRY_ROOT = 2 };

/* Digits of a number's whole part and of its fraction, at most, so that an answer cannot end in digits
 * without end. */
enum { SL_MOST_WHOLE = 64, SL_MOST_FRACTION = 24 };

/* So many names have no end. */
enum { SL_MOST_NAMES = 1 << 16 };

/* Digits without a sign: no zeros before the whole part or behind the fraction. */
typedef struct sl_decimal {
    bool negative;
    const char *whole, *fraction; /* "0" and "" for zero */
    double nearest;               /* what a reader of the text has */
} sl_decimal;

typedef struct sl_bound {
    bool is_set, exclusive;
    sl_decimal value;
} sl_bound;

/* A pattern or a format that a string matches, or does not. */
typedef struct sl_text_rule {
    const char *pattern;
    int32_t format; /* of the table of formats, or -1: a pattern */
    bool negated;
    int32_t entry; /* for messages, with the keyword */
    const char *keyword;
    bool narrow; /* the format without its rare forms, so that a length beside it can be counted */
} sl_text_rule;

/* Of keys. entry -1: a message has no path. */
static inline sl_text_rule sl_schema_key_rule(const char *pattern, int32_t entry) {
    return (sl_text_rule){.pattern = pattern, .format = -1, .entry = entry, .keyword = "patternProperties"};
}

typedef struct sl_schema_property {
    const char *key; /* a name, or a pattern */
    int32_t entry;
} sl_schema_property;

typedef struct sl_schema_group {
    int32_t *entries;
    int32_t count;
    bool exactly_one;
    const char *keyword;
    struct sl_schema_group *exclusive; /* of exactly_one: the same as a choice, once made */
    struct sl_schema_group *next;
} sl_schema_group;

typedef struct sl_schema_values {
    const json_t *array;
    struct sl_schema_values *next;
} sl_schema_values;

/* A member must be there whose key is of one kind and whose value satisfies an entry: what breaks
 * additionalProperties, patternProperties or propertyNames. */
struct sl_schema_node;
typedef struct sl_schema_exists {
    const struct sl_schema_node *owner; /* keys that neither its properties nor its patterns name, or NULL */
    const char *pattern;                /* keys that match, or NULL */
    int32_t names;                      /* keys that satisfy the entry, or -1 */
    int32_t value;
} sl_schema_exists;

/* Lengths and counts: -1 has no bound. Entries: -1 is absent. */
typedef struct sl_schema_node {
    int32_t entry;
    bool asserts; /* anything of its own */
    uint8_t types;
    sl_bound lower, upper;
    const sl_decimal *multiple, *not_multiple;
    int64_t min_length, max_length;
    sl_text_rule *texts;
    int32_t text_count;
    int32_t *prefix, prefix_count, items;
    int64_t min_items, max_items;
    bool unique;
    int32_t contains;
    int64_t min_contains, max_contains;
    sl_schema_property *properties, *patterns;
    int32_t property_count, pattern_count;
    int32_t additional, names;
    const char **required;
    int32_t required_count;
    int64_t min_properties, max_properties;
    const sl_schema_exists *exists; /* or NULL */
    const json_t *values;           /* an array of what alone is accepted, or NULL */
    sl_schema_values *forbidden;    /* what is not */
    int32_t *all, all_count;
    sl_schema_group *groups;
} sl_schema_node;

typedef struct sl_schema_entry {
    const json_t *json;  /* NULL: made, not read */
    int32_t negation_of; /* or -1 */
    int32_t negation;    /* its own, or -1 */
    int32_t parent;      /* for its path, or -1 */
    const char *keyword, *name;
    int32_t index; /* of a list; -1: `name`, or neither */
    int32_t resource;
    const char *uri; /* of a resource */
    sl_schema_node *node;
    bool is_open; /* being read or checked */
} sl_schema_entry;

typedef struct sl_schema_anchor {
    int32_t resource, entry;
    const char *name;
    bool dynamic;
} sl_schema_anchor;

/* Nodes that all hold. */
typedef struct sl_schema_leaf {
    sl_schema_node **nodes;
    int32_t count;
    uint8_t types; /* of all of them */
} sl_schema_leaf;

typedef struct sl_schema_leaves {
    sl_schema_leaf *rows;
    int32_t count, capacity;
} sl_schema_leaves;

typedef struct sl_schema_set {
    int32_t *entries, count;     /* ascending, each once, without TRUE; FALSE alone */
    int32_t *order;              /* the same as first met, which properties are written in */
    sl_schema_leaves *leaves[2]; /* [1]: with oneOf read as anyOf */
    int32_t rule;                /* or -1 */
    sl_expression expression;    /* or SL_NO_EXPRESSION: not made yet */
} sl_schema_set;

/* Text, bytes, arrays that grow in the arena. */
typedef struct sl_schema_context {
    sl_grammar_builder *builder;
    sl_json_style style;
    sl_error *error;
    int code; /* of the first failure, which sticks */
    sl_arena arena;
    uint64_t spent; /* bytes of the arena */
    int looking;    /* how deep a look ahead for what is empty goes: not from within another */
    uint64_t steps; /* of what may be more than linear in the schema */
    json_t *document;
    bool references_stand_alone; /* drafts before 2019-09 ignore what stands beside $ref */
    bool id_is_id;               /* draft 4's `id` */
    sl_schema_entry *entries;
    int32_t entry_count, entry_capacity;
    int32_t *entry_table; /* of entries by json, open addressing; -1: free */
    uint32_t entry_slots;
    sl_schema_anchor *anchors;
    int32_t anchor_count, anchor_capacity;
    sl_schema_set *sets;
    int32_t set_count, set_capacity;
    int32_t *set_table;
    uint32_t set_slots;
    int32_t *queue; /* sets whose rules are to be defined */
    int32_t queue_count, queue_capacity, queue_done;
    sl_text_rule *regexes; /* what was compiled already, with its expression beside it */
    sl_expression *regex_expressions;
    int32_t regex_count, regex_capacity, regex_expressions_capacity;
    struct sl_schema_body *bodies; /* of strings, by what makes them */
    int32_t body_count, body_capacity;
    /* What most schemas need, or SL_NO_EXPRESSION: not made yet. */
    sl_expression colon, comma, open_space, close_space, any_text, any_string;
} sl_schema_context;

/* schema.c. Memory that lives as long as the context; NULL after a failure. */
void *sl_schema_alloc(sl_schema_context *c, uint64_t count, size_t size);
char *sl_schema_strndup(sl_schema_context *c, const char *text, size_t length);
/* Room for one more in an array of the arena. */
bool sl_schema_grow(sl_schema_context *c, void **array, int32_t count, int32_t *capacity, size_t size);
/* Refuses the keyword (or NULL) of an entry; the first failure counts. Returns the code. */
int sl_schema_refuse(sl_schema_context *c, int code, int32_t entry, const char *keyword, const char *format,
                     ...) SL_PRINTF(5, 6);
/* Counts work; false (and a failure at the entry) beyond what a schema may cost. */
bool sl_schema_step(sl_schema_context *c, uint64_t steps, int32_t entry);
/* The texts of a set, as a whole JSON value; deferred to a rule where it may recurse. */
sl_expression sl_schema_value(sl_schema_context *c, int32_t set);
/* Short forms of the builder's. */
sl_expression sl_schema_literal(sl_schema_context *c, const char *text);
sl_expression sl_schema_sequence(sl_schema_context *c, int32_t count, ...);
sl_expression sl_schema_choice(sl_schema_context *c, int32_t count, ...);
sl_expression sl_schema_optional(sl_schema_context *c, sl_expression of);
/* A list of expressions that grows in the arena. */
typedef struct sl_expression_list {
    sl_expression *rows;
    int32_t count, capacity;
} sl_expression_list;
void sl_schema_add(sl_schema_context *c, sl_expression_list *list, sl_expression expression);

/* schema_reference.c: all of the document's subschemas with their URIs. */
int sl_schema_scan(sl_schema_context *c, const json_t *root);
/* The entry of a subschema, whether met before or not; a boolean has the entries above. */
int32_t sl_schema_child(sl_schema_context *c, int32_t parent, const char *keyword, const char *name,
                        int32_t index, const json_t *json);
int32_t sl_schema_entry_make(sl_schema_context *c, int32_t near);
/* What a $ref of the entry means; negative after a failure. */
int32_t sl_schema_resolve(sl_schema_context *c, int32_t entry, const char *keyword, const char *reference);
/* "#/properties/a" of the entry and one of its keywords (or NULL). */
void sl_schema_path(const sl_schema_context *c, int32_t entry, const char *keyword, sl_buffer *out);

/* schema_read.c. NULL after a failure. */
sl_schema_node *sl_schema_read(sl_schema_context *c, int32_t entry);
sl_schema_node *sl_schema_node_make(sl_schema_context *c, int32_t entry);
/* An entry that is made: every one of the list holds. */
int32_t sl_schema_all_of(sl_schema_context *c, int32_t near, const int32_t *entries, int32_t count);

/* schema_negate.c. */
int32_t sl_schema_negation(sl_schema_context *c, int32_t entry);
bool sl_schema_negate(sl_schema_context *c, int32_t entry, sl_schema_node *node);

/* schema_merge.c. Sets are interned; negative after a failure. */
int32_t sl_schema_set_of(sl_schema_context *c, int32_t *entries, int32_t count);
bool sl_schema_set_has(const sl_schema_context *c, int32_t set, int32_t entry);
/* NULL after a failure. */
const sl_schema_leaves *sl_schema_expand(sl_schema_context *c, int32_t set, bool relaxed);
/* True: proven that nothing satisfies it. */
bool sl_schema_is_empty(sl_schema_context *c, int32_t set, int depth);
/* The entries that the key's value, or the item, of a leaf must satisfy. */
int32_t sl_schema_key_set(sl_schema_context *c, const sl_schema_leaf *leaf, const char *key);
int32_t sl_schema_item_set(sl_schema_context *c, const sl_schema_leaf *leaf, int32_t index);

/* schema_constant.c. 1: the entry accepts the value; 0; negative after a failure. */
int sl_schema_accepts(sl_schema_context *c, int32_t entry, const json_t *value, int depth);
int sl_schema_node_accepts(sl_schema_context *c, const sl_schema_node *node, const json_t *value, int depth);
bool sl_schema_equal(const json_t *a, const json_t *b);
/* The values of a leaf that has an enum or a const: a new array that the arena does not hold, or NULL when it
 * has none or after a failure. */
json_t *sl_schema_candidates(sl_schema_context *c, const sl_schema_leaf *leaf);
bool sl_schema_has_values(const sl_schema_leaf *leaf);
sl_expression sl_schema_constant(sl_schema_context *c, const json_t *value, int depth);

/* schema_number.c. */
sl_decimal sl_schema_decimal(sl_schema_context *c, const json_t *number);
int sl_decimal_compare(const sl_decimal *a, const sl_decimal *b);
/* 1: a is a multiple of b; 0; -1: too long to tell. */
int sl_decimal_is_multiple(const sl_decimal *a, const sl_decimal *b);
sl_expression sl_schema_number(sl_schema_context *c, const sl_schema_leaf *leaf);
/* False: no number lies between the leaf's bounds. Either may be NULL. */
bool sl_schema_bounds(const sl_schema_leaf *leaf, sl_bound *lower, sl_bound *upper);

/* schema_string.c. What stands between quotes, before it is escaped. */
sl_expression sl_schema_string_body(sl_schema_context *c, const sl_schema_leaf *leaf);
/* Of all strings that a set accepts. */
sl_expression sl_schema_names(sl_schema_context *c, int32_t set);
sl_expression sl_schema_regex(sl_schema_context *c, const sl_text_rule *rule);
/* 1: the text obeys the rule; 0; negative after a failure. */
int sl_schema_text_matches(sl_schema_context *c, const sl_text_rule *rule, const char *text);
/* The body as JSON writes it. */
sl_expression sl_schema_quoted(sl_schema_context *c, sl_expression body);
/* The same of a name that no member before it has; adds to *texts how many there are, up to SL_MOST_NAMES. */
sl_expression sl_schema_new_name(sl_schema_context *c, sl_expression body, int64_t *texts);
/* The same of the name of a member. */
sl_expression sl_schema_name(sl_schema_context *c, sl_expression body);

/* schema_pattern.c. Of a pattern, with looks ahead that stand between parts of the whole. */
sl_expression sl_schema_pattern(sl_schema_context *c, const char *pattern, sl_error *error);

/* schema_format.c. -1: an annotation. */
int32_t sl_schema_format_find(const char *name);
/* Why the format is refused, or NULL. */
const char *sl_schema_format_refused(int32_t format);
sl_expression sl_schema_format(sl_schema_context *c, const sl_text_rule *rule, sl_error *error);

/* 1: the key is of the kind; 0; negative after a failure. */
int sl_schema_exists_key(sl_schema_context *c, const sl_schema_exists *exists, const char *key);

/* schema_array.c, schema_object.c. */
sl_expression sl_schema_array(sl_schema_context *c, const sl_schema_leaf *leaf);
sl_expression sl_schema_object(sl_schema_context *c, const sl_schema_leaf *leaf);

#endif
