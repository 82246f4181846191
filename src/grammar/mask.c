/* Masks: what can follow, put together from entries that a grammar's matchers share.
 *
 * The tokens that can follow a configuration are those that can follow any of its items. For an item, a state
 * on a stack, the vocabulary's trie is walked over a bottom that stands for any stack. Tokens that are read
 * without reaching the bottom follow whatever the stack; a node of the trie at which the bottom is reached is
 * an exit: behind it, what lies on the stack decides. Behind the exits of an entry the walk goes on for one
 * frame more, which makes an entry of its own, and so on, until there are no exits. How often a counted rule
 * was called counts only as far as a token can go on calling it, so that texts of many lengths share entries.
 */
#include "grammar/automaton.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"

#include <string.h>

enum {
    MOST_HOPS = 512,         /* entries for one mask: beyond, a walk over all tokens is cheaper */
    MOST_SCRATCH = 16 << 20, /* bytes of the stacks that are kept for the next entry */
    LEAST_RUN = 3,           /* nodes from which on it is worth asking whether all lead on */
    MOST_RUN = 24,           /* bytes that are looked ahead for it */
    ON_BOTTOM = -2,          /* a key's callee: below the state is nothing, so that there are no exits */
    LONGEST_COUNT = 1 << 20, /* a key's bound of calls: what was called already is counted back from it */
    WALK = 1,                /* there is no entry, and none can be kept */
};
#define MOST_CACHE ((uint64_t)96 << 20) /* bytes of one grammar's entries */

struct sl_mask_entry {
    sl_mask_entry *next;         /* of the bucket */
    const sl_mask_entry *parent; /* whose exits were walked; NULL: an entry of the state `frame.target` */
    sl_stack_node frame;
    uint32_t *bits;  /* [words], or NULL: */
    int32_t *tokens; /* [token_count] */
    int32_t *exits;  /* [exit_count]: nodes of the trie that have children */
    int32_t token_count, exit_count;
    int32_t reach; /* bytes of the longest way behind an exit */
};

static size_t mask_words(const sl_grammar *grammar) {
    return ((size_t)grammar->vocabulary->count + 31) / 32;
}

static void set_bit(uint32_t *mask, int32_t token) {
    mask[token / 32] |= (uint32_t)1 << (token % 32);
}

/* ---- the walk
 * ------------------------------------------------------------------------------------------------- */

typedef struct walk {
    sl_stacks *stacks;
    uint32_t *bits;   /* by the trie's order */
    sl_masker *exits; /* NULL: they do not matter */
} walk;

static size_t order_words(const sl_grammar *grammar) {
    return ((size_t)grammar->vocabulary->first_token[grammar->vocabulary->trie_count] + 31) / 32;
}

static void set_range(uint32_t *bits, int32_t first, int32_t end) {
    if (first >= end) {
        return;
    }
    const int32_t last = (end - 1) / 32;
    const uint32_t from = UINT32_MAX << (first % 32), to = UINT32_MAX >> (31 - (end - 1) % 32);
    if (first / 32 == last) {
        bits[last] |= from & to;
        return;
    }
    bits[first / 32] |= from;
    for (int32_t i = first / 32 + 1; i < last; i++) {
        bits[i] = UINT32_MAX;
    }
    bits[last] |= to;
}

static bool add_exit(sl_masker *masker, int32_t node) {
    if (masker->exit_count >= masker->exit_capacity) {
        const int32_t capacity = masker->exit_capacity ? masker->exit_capacity * 2 : 256;
        int32_t *grown = sl_realloc(masker->exits, (size_t)capacity * sizeof(*grown));
        if (!grown) {
            return false;
        }
        masker->exits = grown;
        masker->exit_capacity = capacity;
    }
    masker->exits[masker->exit_count++] = node;
    return true;
}

/* The configuration behind a byte, from the row if it is there. */
static inline int32_t step(const walk *walk, int32_t from, uint8_t byte, sl_error *error) {
    const sl_stacks *stacks = walk->stacks;
    const int32_t row = stacks->configurations[from].row;
    if (row >= 0) {
        const int32_t next = stacks->next[row + stacks->grammar->classes[byte]];
        if (next != SL_NOT_KNOWN) {
            return next;
        }
    }
    return sl_stacks_step(walk->stacks, from, byte, error);
}

/* Do all ways below a node lead on, without an exit? 1, 0 (or it is not seen), or a negative code. */
static int all_lead_on(walk *walk, int32_t number, int32_t configuration, sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = walk->stacks->grammar->vocabulary;
    const uint64_t kinds = vocabulary->kinds[number];
    const int32_t height = vocabulary->heights[number], first = configuration;
    uint64_t common = UINT64_MAX;
    bool ends = false;
    if (height > MOST_RUN || kinds >> SL_KIND_BROKEN & 1) {
        return 0;
    }
    const sl_configuration *here = &walk->stacks->configurations[first];
    if (height <= here->run_height && !(kinds & ~here->run_kinds)) {
        return 1;
    }
    for (int32_t i = 0, behind; i < height; i++) {
        here = &walk->stacks->configurations[configuration];
        ends |= here->ends;
        if (here->count == 0 || (here->ends && walk->exits)) {
            return 0;
        }
        const int code = sl_stacks_run(walk->stacks, configuration, kinds, &behind, error);
        if (code != 1) {
            return code;
        }
        common &= walk->stacks->configurations[configuration].kinds;
        if (behind == configuration && i == 0) {
            sl_configuration *loop = &walk->stacks->configurations[first];
            loop->run_height = ends ? 0 : MOST_RUN;
            loop->run_kinds = common;
            return 1;
        }
        if (behind == configuration) {
            break;
        }
        configuration = behind;
    }
    sl_configuration *begin = &walk->stacks->configurations[first];
    if (!ends && height >= begin->run_height) {
        begin->run_height = height;
        begin->run_kinds = common;
    }
    return 1;
}

/* Of a node with children that was reached: 1 when they need not be walked, 0 when they do. */
static int pass_children(walk *walk, int32_t number, int32_t configuration, sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = walk->stacks->grammar->vocabulary;
    const sl_configuration *here = &walk->stacks->configurations[configuration];
    if (here->ends && walk->exits && !add_exit(walk->exits, number)) {
        return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
    }
    if (here->count == 0) {
        return 1;
    }
    const int32_t size = vocabulary->trie[number].size;
    const int code = size < LEAST_RUN ? 0 : all_lead_on(walk, number, configuration, error);
    if (code == 1) {
        set_range(walk->bits, vocabulary->first_token[number + 1], vocabulary->first_token[number + size]);
    }
    return code;
}

/* The nodes from `first` to `end`, which are children of one node (or the trie's first level) and what is
 * below them, from a configuration. */
static int walk_nodes(walk *walk, int32_t first, int32_t end, int32_t configuration, sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = walk->stacks->grammar->vocabulary;
    const sl_trie_node *trie = vocabulary->trie;
    int32_t path[SL_TRIE_DEPTH + 1];
    if (first < end) {
        path[trie[first].depth - 1] = configuration;
    }
    for (int32_t i = first; i < end;) {
        const sl_trie_node *node = &trie[i];
        const int32_t next = step(walk, path[node->depth - 1], node->byte, error);
        if (next < 0) {
            if (next < SL_NO_WAY) {
                return error->code;
            }
            i += node->size;
            continue;
        }
        set_range(walk->bits, vocabulary->first_token[i], vocabulary->first_token[i + 1]);
        path[node->depth] = next;
        if (node->size > 1) {
            const int passed = pass_children(walk, i, next, error);
            if (passed < 0) {
                return passed;
            }
            i += passed ? node->size : 1;
        } else {
            i++;
        }
    }
    return 0;
}

static bool begin_bits(const sl_grammar *grammar, sl_masker *masker, sl_error *error) {
    const size_t words = order_words(grammar);
    if (!masker->bits && !(masker->bits = sl_alloc((words + 1) * sizeof(*masker->bits)))) {
        sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        return false;
    }
    memset(masker->bits, 0, words * sizeof(*masker->bits));
    return true;
}

/* From the trie's order to tokens. */
static void add_bits(const sl_grammar *grammar, const uint32_t *bits, uint32_t *mask) {
    for (size_t i = 0; i < order_words(grammar); i++) {
        for (uint32_t left = bits[i]; left; left &= left - 1) {
            set_bit(mask, grammar->vocabulary->in_order[i * 32 + (size_t)__builtin_ctz(left)]);
        }
    }
}

int sl_mask_walk(sl_masker *masker, sl_stacks *stacks, int32_t configuration, uint32_t *mask,
                 sl_error *error) {
    const sl_grammar *grammar = stacks->grammar;
    if (!begin_bits(grammar, masker, error)) {
        return error->code;
    }
    walk walk = {.stacks = stacks, .bits = masker->bits};
    const int code = walk_nodes(&walk, 0, grammar->vocabulary->trie_count, configuration, error);
    add_bits(grammar, masker->bits, mask);
    return code;
}

/* ---- entries
 * -------------------------------------------------------------------------------------------------- */

bool sl_mask_cache_create(sl_grammar *grammar) {
    sl_mask_cache *cache = &grammar->cache;
    cache->bucket_count = 256;
    while (cache->bucket_count < (uint32_t)grammar->state_count && cache->bucket_count < 1 << 16) {
        cache->bucket_count *= 2;
    }
    atomic_init(&cache->bytes, 0);
    cache->buckets = sl_alloc_zero(cache->bucket_count, sizeof(*cache->buckets));
    return cache->buckets != NULL;
}

void sl_mask_cache_free(sl_grammar *grammar) {
    sl_mask_cache *cache = &grammar->cache;
    for (uint32_t i = 0; cache->buckets && i < cache->bucket_count; i++) {
        sl_mask_entry *entry = atomic_load_explicit(&cache->buckets[i], memory_order_relaxed);
        while (entry) {
            sl_mask_entry *next = entry->next;
            sl_free(entry);
            entry = next;
        }
    }
    sl_free(cache->buckets);
}

static bool is_same(const sl_mask_entry *entry, const sl_mask_entry *parent, const sl_stack_node *frame) {
    return entry->parent == parent && memcmp(&entry->frame, frame, sizeof(*frame)) == 0;
}

/* Into a bitmap of words, when most bits are set. */
static void fill_bitmap(const sl_grammar *grammar, const uint32_t *bits, uint32_t *mask) {
    const sl_grammar_vocabulary *vocabulary = grammar->vocabulary;
    const size_t count = (size_t)vocabulary->first_token[vocabulary->trie_count];
    memcpy(mask, vocabulary->in_trie, mask_words(grammar) * sizeof(*mask));
    for (size_t i = 0; i < order_words(grammar); i++) {
        for (uint32_t left = ~bits[i]; left; left &= left - 1) {
            const size_t at = i * 32 + (size_t)__builtin_ctz(left);
            if (at < count) {
                const int32_t token = vocabulary->in_order[at];
                mask[token / 32] &= ~((uint32_t)1 << (token % 32));
            }
        }
    }
}

/* One block: the entry, its tokens, its exits. NULL without memory. */
static sl_mask_entry *make_entry(const sl_grammar *grammar, const sl_masker *masker) {
    const sl_grammar_vocabulary *vocabulary = grammar->vocabulary;
    const size_t words = mask_words(grammar), order = order_words(grammar);
    size_t tokens = 0;
    for (size_t i = 0; i < order; i++) {
        tokens += (size_t)__builtin_popcount(masker->bits[i]);
    }
    const bool is_list = tokens < words;
    const size_t first = is_list ? tokens : words;
    const size_t bytes = sizeof(sl_mask_entry) + (first + (size_t)masker->exit_count) * sizeof(int32_t);
    sl_mask_entry *entry = sl_alloc(bytes);
    if (!entry) {
        return NULL;
    }
    memset(entry, 0, sizeof(*entry));
    int32_t *room = (int32_t *)(entry + 1);
    entry->exits = room + first;
    entry->exit_count = masker->exit_count;
    if (is_list) {
        entry->tokens = room;
        for (size_t i = 0; i < order; i++) {
            for (uint32_t left = masker->bits[i]; left; left &= left - 1) {
                room[entry->token_count++] = vocabulary->in_order[i * 32 + (size_t)__builtin_ctz(left)];
            }
        }
    } else {
        entry->bits = (uint32_t *)room;
        if (tokens * 2 > (size_t)vocabulary->first_token[vocabulary->trie_count]) {
            fill_bitmap(grammar, masker->bits, entry->bits);
        } else {
            memset(entry->bits, 0, words * sizeof(*entry->bits));
            add_bits(grammar, masker->bits, entry->bits);
        }
    }
    for (int32_t i = 0; i < masker->exit_count; i++) {
        const int32_t height = vocabulary->heights[masker->exits[i]];
        entry->exits[i] = masker->exits[i];
        entry->reach = height > entry->reach ? height : entry->reach;
    }
    return entry;
}

/* Walks for an entry into the masker's bits and exits. */
static int walk_entry(const sl_grammar *grammar, sl_masker *masker, const sl_mask_entry *parent,
                      const sl_stack_node *frame, sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = grammar->vocabulary;
    sl_stacks *stacks = &masker->stacks;
    if (stacks->bytes_held > MOST_SCRATCH) {
        sl_stacks_free(stacks);
    }
    if (!begin_bits(grammar, masker, error)) {
        return error->code;
    }
    if (!stacks->grammar && sl_stacks_begin(stacks, grammar, error)) {
        sl_stacks_free(stacks);
        return error->code;
    }
    walk walk = {.stacks = stacks, .bits = masker->bits, .exits = frame->callee == ON_BOTTOM ? NULL : masker};
    masker->exit_count = 0;
    if (!parent) {
        const int32_t from = sl_stacks_place(stacks, (sl_stack_item){frame->target, 0}, error);
        return from < 0 ? error->code : walk_nodes(&walk, 0, vocabulary->trie_count, from, error);
    }
    const int32_t from = sl_stacks_return(stacks, frame, error);
    int code = from < 0 ? error->code : 0;
    for (int32_t i = 0; i < parent->exit_count && code == 0; i++) {
        const int32_t exit = parent->exits[i];
        code = pass_children(&walk, exit, from, error);
        code = code == 0  ? walk_nodes(&walk, exit + 1, exit + vocabulary->trie[exit].size, from, error)
               : code > 0 ? 0
                          : code;
    }
    return code;
}

/* The entry of a state (no parent), or behind an entry's exits once a rule ended on the frame. 0, WALK or a
 * negative code. */
static int find_entry(const sl_grammar *grammar, sl_masker *masker, const sl_mask_entry *parent,
                      const sl_stack_node *frame, const sl_mask_entry **out, sl_error *error) {
    sl_mask_cache *cache = (sl_mask_cache *)&grammar->cache;
    const uint64_t hash = sl_hash64(frame, sizeof(*frame), (uint64_t)(uintptr_t)parent);
    _Atomic(sl_mask_entry *) *bucket = &cache->buckets[hash & (cache->bucket_count - 1)];
    sl_mask_entry *head = atomic_load_explicit(bucket, memory_order_acquire);
    for (const sl_mask_entry *entry = head; entry; entry = entry->next) {
        if (is_same(entry, parent, frame)) {
            *out = entry;
            return 0;
        }
    }
    if (atomic_load_explicit(&cache->bytes, memory_order_relaxed) > MOST_CACHE) {
        return WALK;
    }
    masker->stacks.effort = 0;
    const int code = walk_entry(grammar, masker, parent, frame, error);
    if (code) {
        return code;
    }
    sl_mask_entry *made = make_entry(grammar, masker);
    if (!made) {
        return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
    }
    made->parent = parent;
    made->frame = *frame;
    const uint64_t size = sizeof(*made) + (made->bits ? mask_words(grammar) : (size_t)made->token_count) * 4 +
                          (uint64_t)made->exit_count * 4;
    atomic_fetch_add_explicit(&cache->bytes, size, memory_order_relaxed);
    do {
        made->next = head;
    } while (!atomic_compare_exchange_weak_explicit(bucket, &head, made, memory_order_release,
                                                    memory_order_acquire));
    *out = made;
    return 0;
}

/* ---- masks
 * ---------------------------------------------------------------------------------------------------- */

static void add_tokens(const sl_grammar *grammar, const sl_mask_entry *entry, uint32_t *mask) {
    if (entry->bits) {
        const size_t words = mask_words(grammar);
        for (size_t i = 0; i < words; i++) {
            mask[i] |= entry->bits[i];
        }
    }
    for (int32_t i = 0; i < entry->token_count; i++) {
        set_bit(mask, entry->tokens[i]);
    }
}

/* The frame as far as it matters for tokens that go on for `reach` bytes. */
static sl_stack_node short_frame(const sl_stack_node *frame, int32_t reach) {
    sl_stack_node key = {.target = frame->target, .callee = frame->callee};
    if (frame->callee >= 0) {
        int32_t least = frame->least > frame->count ? frame->least - frame->count : 0;
        int32_t most =
            frame->most < 0 || frame->most - frame->count > reach ? -1 : frame->most - frame->count;
        least = least > reach ? reach + 1 : least;
        /* Those that have as many calls left are the same while they are walked, whatever they had. */
        key.most = most < 0 ? -1 : LONGEST_COUNT;
        key.count = most >= 0 ? LONGEST_COUNT - most : least ? LONGEST_COUNT - least : 0;
        key.least = least ? key.count + least : 0;
    }
    return key;
}

/* What follows behind an entry's exits on that stack. */
static int add_exits(sl_masker *masker, const sl_stacks *stacks, const sl_mask_entry *entry, int32_t stack,
                     uint32_t *mask, sl_error *error) {
    const sl_grammar *grammar = stacks->grammar;
    while (entry->exit_count > 0 && stack != 0) {
        const sl_stack_node *node = &stacks->nodes[stack];
        if (node->target < 0) {
            for (int32_t i = 0; i < node->count; i++) {
                const int code =
                    add_exits(masker, stacks, entry, stacks->members[node->below + i], mask, error);
                if (code) {
                    return code;
                }
            }
            return 0;
        }
        if (masker->hops-- <= 0) {
            return WALK;
        }
        const sl_stack_node key = short_frame(node, entry->reach);
        const int code = find_entry(grammar, masker, entry, &key, &entry, error);
        if (code) {
            return code;
        }
        add_tokens(grammar, entry, mask);
        stack = node->below;
    }
    return 0;
}

int sl_masker_fill(sl_masker *masker, sl_stacks *stacks, int32_t configuration, uint32_t *mask,
                   sl_error *error) {
    const sl_grammar *grammar = stacks->grammar;
    const sl_configuration here = stacks->configurations[configuration];
    int code = 0;
    masker->hops = MOST_HOPS;
    for (int32_t i = 0; i < here.count && code == 0; i++) {
        const sl_stack_item item = stacks->items[here.first + i];
        const sl_automaton_state *state = &grammar->states[item.state];
        const sl_mask_entry *entry;
        if (state->first_byte == state[1].first_byte) {
            continue;
        }
        const sl_stack_node key = {.target = item.state, .callee = item.stack ? -1 : ON_BOTTOM};
        code = masker->hops-- > 0 ? find_entry(grammar, masker, NULL, &key, &entry, error) : WALK;
        if (code == 0) {
            add_tokens(grammar, entry, mask);
            code = add_exits(masker, stacks, entry, item.stack, mask, error);
        }
    }
    return code == WALK ? sl_mask_walk(masker, stacks, configuration, mask, error) : code;
}

void sl_masker_free(sl_masker *masker) {
    sl_stacks_free(&masker->stacks);
    sl_free(masker->bits);
    sl_free(masker->exits);
}

/* About how many nodes of the trie a walk from a state sees. */
static int64_t walk_size(const sl_grammar *grammar, const int32_t sizes[257], int32_t state) {
    int64_t size = 0;
    for (int32_t a = grammar->states[state].first_byte; a < grammar->states[state + 1].first_byte; a++) {
        size += sizes[grammar->bytes[a].last + 1] - sizes[grammar->bytes[a].first];
    }
    return size;
}

void sl_grammar_warm(sl_grammar *grammar, double seconds) {
    const sl_grammar_vocabulary *vocabulary = grammar->vocabulary;
    const double end = sl_seconds_now() + seconds;
    const int32_t least = vocabulary->trie_count / 8;
    int32_t sizes[257] = {0}; /* nodes below first bytes before this one */
    sl_masker masker = {0};
    sl_error ignored;
    int code = 0;
    for (int32_t i = 0; i < vocabulary->trie_count; i += vocabulary->trie[i].size) {
        sizes[vocabulary->trie[i].byte + 1] = vocabulary->trie[i].size;
    }
    for (int byte = 0; byte < 256; byte++) {
        sizes[byte + 1] += sizes[byte];
    }
    for (int32_t s = 0; s < grammar->state_count && code == 0 && sl_seconds_now() < end; s++) {
        const sl_mask_entry *entry;
        const sl_stack_node key = {.target = s, .callee = s < grammar->root_states ? ON_BOTTOM : -1};
        if (walk_size(grammar, sizes, s) > least) {
            code = find_entry(grammar, &masker, NULL, &key, &entry, &ignored);
        }
        /* Counted calls of a rule that reads about everything: characters of a text with bounds. */
        for (int32_t c = grammar->states[s].first_call; c < grammar->states[s + 1].first_call && code == 0;
             c++) {
            const sl_call_arc *call = &grammar->calls[c];
            const sl_stack_node state = {.target = call->callee, .callee = -1};
            const sl_stack_node frame = {.target = call->target,
                                         .callee = call->callee,
                                         .least = call->least,
                                         .most = call->most,
                                         .count = 1};
            if (call->most == 1 || walk_size(grammar, sizes, call->callee) <= least ||
                sl_seconds_now() >= end) {
                continue;
            }
            code = find_entry(grammar, &masker, NULL, &state, &entry, &ignored);
            if (code == 0) {
                const sl_stack_node behind = short_frame(&frame, entry->reach);
                code = find_entry(grammar, &masker, entry, &behind, &entry, &ignored);
            }
        }
    }
    sl_masker_free(&masker);
}
