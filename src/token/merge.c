/* Byte-pair merging: of all neighbours that may merge, the pair of the least rank, and of equals the
 * leftmost, is merged until none is left. A doubly linked list of symbols and a binary heap of (rank, place):
 * O(n log n). An entry of the heap whose symbol has changed is recognised when it comes up (its rank is no
 * longer the symbol's) and dropped. */
#include "token/internal.h"

#include "base/alloc.h"

#define NO_SYMBOL UINT32_MAX

/* Eight children to a node, and those of one node in one cache line (HEAP_SHIFT puts them there): a heap of
 * millions costs a third of the cache misses of a binary one. */
enum { HEAP_CHILDREN = 8, HEAP_SHIFT = HEAP_CHILDREN - 1 };

static void sift_up(uint64_t *heap, size_t at) {
    uint64_t value = heap[at];
    while (at > 0 && heap[(at - 1) / HEAP_CHILDREN] > value) {
        heap[at] = heap[(at - 1) / HEAP_CHILDREN];
        at = (at - 1) / HEAP_CHILDREN;
    }
    heap[at] = value;
}

static void sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t value = heap[at];
    for (;;) {
        size_t first = HEAP_CHILDREN * at + 1;
        if (first >= count) {
            break;
        }
        size_t least = first, end = first + HEAP_CHILDREN < count ? first + HEAP_CHILDREN : count;
        for (size_t child = first + 1; child < end; child++) {
            least = heap[child] < heap[least] ? child : least;
        }
        if (heap[least] >= value) {
            break;
        }
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = value;
}

static int heap_push(sl_merger *merger, uint64_t value) {
    if (merger->heap_count == merger->heap_capacity) {
        size_t capacity = merger->heap_capacity ? merger->heap_capacity * 2 : 256;
        uint64_t *block = sl_realloc(merger->heap_block, (capacity + HEAP_SHIFT) * sizeof *block);
        if (!block) {
            return SL_ERR_NOMEM;
        }
        merger->heap_block = block;
        merger->heap = block + HEAP_SHIFT;
        merger->heap_capacity = capacity;
    }
    merger->heap[merger->heap_count++] = value;
    return 0;
}

static int reserve_symbols(sl_merger *merger, size_t count) {
    if (count > merger->symbol_capacity) {
        size_t capacity = count + count / 2 + 64;
        sl_merge_symbol *symbols = sl_alloc(capacity * sizeof *symbols);
        if (!symbols) {
            return SL_ERR_NOMEM;
        }
        sl_free(merger->symbols);
        merger->symbols = symbols;
        merger->symbol_capacity = capacity;
    }
    return 0;
}

void sl_merger_free(sl_merger *merger) {
    sl_free(merger->symbols);
    sl_free(merger->heap_block);
    sl_free(merger->cuts);
    *merger = (sl_merger){0};
}

/* The size of the symbol that begins at `at`: a byte in byte-level vocabularies and where the text is no
 * UTF-8. */
static size_t symbol_size(const sl_tokenizer *tokenizer, sl_view piece, size_t at) {
    uint32_t code_point;
    if (tokenizer->model == SL_MODEL_BYTE_LEVEL) {
        return 1;
    }
    size_t size = sl_utf8_decode(piece.data + at, piece.length - at, &code_point);
    return size ? size : 1;
}

static int32_t plain_id(const sl_tokenizer *tokenizer, sl_view text) {
    if (text.length > tokenizer->max_length) {
        return -1;
    }
    int32_t id = sl_text_table_find(&tokenizer->by_text, tokenizer->tokens, text);
    return id >= 0 && sl_token_is_plain(&tokenizer->tokens[id]) ? id : -1;
}

static void build_symbols(const sl_tokenizer *tokenizer, sl_view piece, sl_merge_symbol *symbols) {
    uint32_t previous = NO_SYMBOL;
    for (size_t at = 0; at < piece.length;) {
        size_t size = symbol_size(tokenizer, piece, at), next = at + size;
        int32_t id = tokenizer->model == SL_MODEL_BYTE_LEVEL
                         ? tokenizer->byte_id[(unsigned char)piece.data[at]]
                         : plain_id(tokenizer, (sl_view){piece.data + at, size});
        symbols[at] =
            (sl_merge_symbol){previous, next < piece.length ? (uint32_t)next : NO_SYMBOL, id, SL_NO_RANK, 0};
        previous = (uint32_t)at;
        at = next;
    }
}

/* Finds the merge of the symbol at `at` with its neighbour on the right; true when there is one. */
static bool find_merge(const sl_tokenizer *tokenizer, sl_view piece, sl_merge_symbol *symbols, uint32_t at) {
    sl_merge_symbol *left = &symbols[at];
    left->rank = SL_NO_RANK;
    if (left->next == NO_SYMBOL) {
        return false;
    }
    const sl_merge_symbol *right = &symbols[left->next];
    if (tokenizer->model == SL_MODEL_SCORE) {
        size_t end = right->next == NO_SYMBOL ? piece.length : right->next;
        int32_t id = plain_id(tokenizer, (sl_view){piece.data + at, end - at});
        if (id < 0) {
            return false;
        }
        left->rank = tokenizer->tokens[id].rank;
        left->result = (uint32_t)id;
        return true;
    }
    const sl_merge *merge =
        left->id < 0 || right->id < 0
            ? NULL
            : sl_pair_table_find(&tokenizer->merges, (uint32_t)left->id, (uint32_t)right->id);
    if (!merge) {
        return false;
    }
    left->rank = merge->rank;
    left->result = merge->result;
    return true;
}

static int merge_all(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view piece) {
    sl_merge_symbol *symbols = merger->symbols;
    merger->heap_count = 0;
    for (uint32_t at = 0; at != NO_SYMBOL; at = symbols[at].next) {
        if (find_merge(tokenizer, piece, symbols, at) &&
            heap_push(merger, (uint64_t)symbols[at].rank << 32 | at)) {
            return SL_ERR_NOMEM;
        }
    }
    for (size_t i = (merger->heap_count + HEAP_CHILDREN - 2) / HEAP_CHILDREN; i-- > 0;) {
        sift_down(merger->heap, merger->heap_count, i);
    }
    while (merger->heap_count > 0) {
        uint64_t least = merger->heap[0];
        uint32_t at = (uint32_t)least;
        merger->heap[0] = merger->heap[--merger->heap_count];
        if (merger->heap_count) {
            sift_down(merger->heap, merger->heap_count, 0);
        }
        sl_merge_symbol *left = &symbols[at];
        if (left->rank != (uint32_t)(least >> 32)) {
            continue;
        }
        sl_merge_symbol *right = &symbols[left->next];
        right->rank = SL_NO_RANK;
        left->id = (int32_t)left->result;
        left->next = right->next;
        if (left->next != NO_SYMBOL) {
            symbols[left->next].previous = at;
        }
        uint32_t changed[2] = {left->previous, at};
        for (int i = 0; i < 2; i++) {
            if (changed[i] != NO_SYMBOL && find_merge(tokenizer, piece, symbols, changed[i])) {
                if (heap_push(merger, (uint64_t)symbols[changed[i]].rank << 32 | changed[i])) {
                    return SL_ERR_NOMEM;
                }
                sift_up(merger->heap, merger->heap_count - 1);
            }
        }
    }
    return 0;
}

/* A symbol without a token: its bytes, if the vocabulary has tokens for all of them, or the unknown token. */
static int append_unknown(const sl_tokenizer *tokenizer, sl_view text, bool *was_unknown, sl_tokens *out) {
    bool all = tokenizer->byte_fallback;
    for (size_t i = 0; i < text.length && all; i++) {
        all = tokenizer->byte_id[(unsigned char)text.data[i]] >= 0;
    }
    for (size_t i = 0; i < text.length && all; i++) {
        if (sl_tokens_append(out, tokenizer->byte_id[(unsigned char)text.data[i]])) {
            return SL_ERR_NOMEM;
        }
    }
    bool fused = *was_unknown && tokenizer->fuse_unknown;
    *was_unknown = !all;
    return all || fused || tokenizer->unk < 0 ? 0 : sl_tokens_append(out, tokenizer->unk);
}

/* The token of a whole piece, when the vocabulary takes such pieces as they are; -1 otherwise. */
static int32_t whole_piece(const sl_tokenizer *tokenizer, sl_view piece) {
    if (tokenizer->whole_piece && piece.length <= tokenizer->max_length) {
        return sl_text_table_find(&tokenizer->whole, tokenizer->tokens, piece);
    }
    if (tokenizer->whole_newlines && piece.length <= tokenizer->max_length && piece.data[0] == '\n') {
        for (size_t i = 0; i < piece.length; i++) {
            if (piece.data[i] != '\n') {
                return -1;
            }
        }
        return plain_id(tokenizer, piece);
    }
    return -1;
}

/* Where the part that begins at `start` ends: at the first place that no token reaches across. */
static size_t part_end(const sl_tokenizer *tokenizer, sl_view piece, size_t start) {
    const unsigned char *bytes = (const unsigned char *)piece.data;
    for (size_t at = start + 1; at < piece.length; at++) {
        unsigned char left = bytes[at - 1], right = bytes[at];
        bool inside =
            tokenizer->model != SL_MODEL_BYTE_LEVEL && (right & 0xc0) == 0x80; /* maybe of a character */
        if (!inside && !(tokenizer->joined[left][right / 8] >> right % 8 & 1)) {
            return at;
        }
    }
    return piece.length;
}

static int merge_part(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view part, bool *was_unknown,
                      sl_tokens *out) {
    if (reserve_symbols(merger, part.length)) {
        return SL_ERR_NOMEM;
    }
    build_symbols(tokenizer, part, merger->symbols);
    if (merge_all(merger, tokenizer, part)) {
        return SL_ERR_NOMEM;
    }
    for (uint32_t at = 0; at != NO_SYMBOL; at = merger->symbols[at].next) {
        const sl_merge_symbol *symbol = &merger->symbols[at];
        int code;
        if (symbol->id >= 0) {
            *was_unknown = false;
            code = sl_tokens_append(out, symbol->id);
        } else {
            size_t end = symbol->next == NO_SYMBOL ? part.length : symbol->next;
            code = append_unknown(tokenizer, (sl_view){part.data + at, end - at}, was_unknown, out);
        }
        if (code) {
            return code;
        }
    }
    return 0;
}

static int cut_part(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view part, double *score,
                    bool *was_unknown, sl_tokens *out) {
    int code = sl_unigram_part(merger, tokenizer, part, score);
    for (size_t at = 0; at < part.length && code == 0; at = merger->cuts[at].to) {
        const sl_cut *cut = &merger->cuts[at];
        if (cut->chosen >= 0) {
            *was_unknown = false;
            code = sl_tokens_append(out, cut->chosen);
        } else {
            code = append_unknown(tokenizer, (sl_view){part.data + at, cut->to - at}, was_unknown, out);
        }
    }
    return code;
}

int sl_merge_piece(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view piece, sl_tokens *out) {
    if (piece.length == 0) {
        return 0;
    }
    if (tokenizer->model == SL_MODEL_WORDPIECE) {
        return sl_wordpiece(tokenizer, piece, out);
    }
    int32_t whole = whole_piece(tokenizer, piece);
    if (whole >= 0) {
        return sl_tokens_append(out, whole);
    }
    if (piece.length >= NO_SYMBOL) {
        return SL_ERR_LIMIT;
    }
    bool was_unknown = false;
    double score = 0;
    for (size_t at = 0; at < piece.length;) {
        size_t end = part_end(tokenizer, piece, at);
        const sl_view part = {piece.data + at, end - at};
        int code = tokenizer->model == SL_MODEL_UNIGRAM
                       ? cut_part(merger, tokenizer, part, &score, &was_unknown, out)
                       : merge_part(merger, tokenizer, part, &was_unknown, out);
        if (code) {
            return code;
        }
        at = end;
    }
    return 0;
}
