#include "kv/keeper.h"

#include "base/alloc.h"

#include <string.h>

enum { RANK_NANOSECONDS = 1000 }; /* between the times of use of neighbours in the order of use */

static const uint32_t ON_DISK = UINT32_C(1) << 31; /* in sl_index_node.stored, beside the parts */

/* What is being loaded: pages [first, first + pages) of a sequence. */
typedef struct unit {
    int32_t first, pages;
    sl_digest parent; /* of the first page */
    int32_t read;     /* pages that came */
    int32_t stated;   /* of them up to the last whose state came; without recurrent layers `read` */
} unit;

/* What is being saved. */
typedef struct job {
    int32_t node;
    uint64_t hash; /* the node's: it may be another's afterwards */
    sl_store_key key;
    uint32_t parts, stored; /* of the node: what it has; what is on the disk afterwards */
    sl_cache_items items;
    bool writes; /* or else: was only used */
    bool wrote;
    int64_t time;
} job;

struct sl_keeper {
    sl_keeper_options options;
    const sl_program *program;
    uint64_t part_bytes[SL_STORE_PARTS];
    uint32_t full_parts; /* groups without a window: every file has them */
    int32_t unit_pages;  /* to load at once, about */
    uint32_t *parts;     /* [table width]: of the files of a sequence */
    int32_t width;
    unit unit;
    job job;
    /* The walk through the index, newest first, as it was when it had that many changes. */
    uint64_t changes;
    int32_t next;
    int64_t time; /* of use, of the next */
    bool walking;
    sl_keeper_counters counters;
};

void sl_keeper_part_bytes(const sl_deployment *deployment, uint64_t *bytes) {
    const sl_program *program = deployment->program;
    memset(bytes, 0, SL_STORE_PARTS * sizeof *bytes);
    for (int32_t g = 0; g < program->group_count; g++) {
        bytes[g] = deployment->caches[g].page_bytes;
    }
    bytes[SL_STORE_STATE] = program->state_count ? program->state_bytes : 0;
}

int sl_keeper_create(const sl_keeper_options *options, sl_keeper **out, sl_error *error) {
    *out = NULL;
    sl_keeper *keeper = sl_alloc_zero(1, sizeof *keeper);
    const sl_deployment *deployment = options->deployment;
    const int32_t width = sl_table_width(deployment->limits.context);
    uint32_t *parts = sl_alloc_zero((size_t)width, sizeof *parts);
    if (!keeper || !parts) {
        sl_free(keeper);
        sl_free(parts);
        return sl_fail(error, SL_ERR_NOMEM, "cache_folder: out of memory for its book-keeping");
    }
    keeper->options = *options;
    keeper->program = deployment->program;
    keeper->parts = parts;
    keeper->width = width;
    keeper->unit_pages = deployment->limits.rows / SL_PAGE_TOKENS > 0
                             ? deployment->limits.rows / SL_PAGE_TOKENS
                             : 1; /* as many as a step computes */
    sl_keeper_part_bytes(deployment, keeper->part_bytes);
    for (int32_t g = 0; g < keeper->program->group_count; g++) {
        keeper->full_parts |= keeper->program->groups[g].window == 0 ? UINT32_C(1) << g : 0;
    }
    *out = keeper;
    return 0;
}

void sl_keeper_destroy(sl_keeper *keeper) {
    if (keeper) {
        sl_free(keeper->parts);
        sl_free(keeper);
    }
}

sl_keeper_counters sl_keeper_counts(const sl_keeper *keeper) {
    return keeper->counters;
}

static bool has(uint32_t parts, int part) {
    return parts >> part & 1;
}

/* Where a page or slot lies in its pool. */
static sl_pool_kind pool_of(const sl_keeper *keeper, int part, int32_t item, uint64_t *offset) {
    const sl_deployment *deployment = keeper->options.deployment;
    *offset = (uint64_t)item * keeper->part_bytes[part];
    if (part == SL_STORE_STATE) {
        return SL_POOL_STATE;
    }
    *offset += deployment->cache_offsets[part];
    return SL_POOL_CACHE;
}

/* ---- loading
 * ------------------------------------------------------------------------------------------------------------
 */

/* Looks at the files of pages [from, to) of a sequence; returns how far there are any. `parent`: the digest
 * of what is before. */
static int32_t look(sl_keeper *keeper, const sl_load *load, int32_t from, int32_t to,
                    const sl_digest *parent) {
    sl_store_key key;
    key.name = *parent;
    int32_t i = from;
    for (; i < to; i++) {
        sl_store_child(&key.name, load->tokens + (size_t)i * SL_PAGE_TOKENS, &key);
        if (!sl_store_find(keeper->options.store, &key, &keeper->parts[i]) ||
            (keeper->parts[i] & keeper->full_parts) != keeper->full_parts) {
            break;
        }
    }
    return i;
}

/* Could the sequence go on behind `pages` pages, of which those from `first` on come from files? */
static bool can_go_on(const sl_keeper *keeper, const sl_load *load, int32_t first, int32_t pages) {
    if (keeper->program->state_count && !has(keeper->parts[pages - 1], SL_STORE_STATE)) {
        return false;
    }
    for (int32_t g = 0; g < keeper->program->group_count; g++) {
        int32_t i = sl_cache_first_page(&keeper->program->groups[g], pages * SL_PAGE_TOKENS);
        for (; i < pages; i++) {
            if (i < first ? load->timeline->pages[g][i] == SL_NONE : !has(keeper->parts[i], g)) {
                return false;
            }
        }
    }
    return true;
}

int32_t sl_keeper_seek(sl_keeper *keeper, sl_load *load) {
    const int32_t first = load->timeline->cached / SL_PAGE_TOKENS;
    const int32_t limit =
        load->limit / SL_PAGE_TOKENS < keeper->width ? load->limit / SL_PAGE_TOKENS : keeper->width;
    if (first >= limit || (load->end != SL_NONE && load->end <= first)) {
        return 0;
    }
    sl_store_key key;
    sl_store_root(load->salt, &key.name);
    for (int32_t i = 0; i < first; i++) {
        sl_store_child(&key.name, load->tokens + (size_t)i * SL_PAGE_TOKENS, &key);
    }
    int32_t end = load->end;
    int32_t there = look(keeper, load, first, end == SL_NONE ? limit : end, &key.name);
    if (end == SL_NONE) {
        end = there;
        while (end > first && !can_go_on(keeper, load, first, end)) {
            end--;
        }
        /* What the index has within a page may reach further than all files. */
        load->end = end = end * SL_PAGE_TOKENS > load->known ? end : first;
    }
    if (there < end || end <= first) {
        return 0;
    }
    int32_t pages = end - first < keeper->unit_pages ? end - first : keeper->unit_pages;
    if (keeper->program->state_count) {
        /* Only where there is a state can the sequence stay for a while. */
        while (pages > 0 && !has(keeper->parts[first + pages - 1], SL_STORE_STATE)) {
            pages--;
        }
        for (pages = pages > 0 ? pages : 1;
             pages < end - first && !has(keeper->parts[first + pages - 1], SL_STORE_STATE);) {
            pages++;
        }
        if (!has(keeper->parts[first + pages - 1], SL_STORE_STATE)) {
            return 0; /* another process has changed what was there */
        }
    }
    keeper->unit = (unit){.first = first, .pages = pages, .parent = key.name};
    return pages;
}

int sl_keeper_reserve(sl_keeper *keeper, sl_load *load) {
    sl_copy_list none = {NULL, 0, 0};
    return sl_timeline_reserve(keeper->options.cache, load->timeline, keeper->unit.pages * SL_PAGE_TOKENS, 0,
                               &none);
}

/* What the store has read, to the device. */
static int put_page(sl_keeper *keeper, const sl_load *load, int32_t page, uint32_t parts, sl_error *error) {
    const sl_timeline *t = load->timeline;
    for (int p = 0; p < SL_STORE_PARTS; p++) {
        const int32_t item = p == SL_STORE_STATE ? (t->write_count > 0 ? t->write_states[0] : SL_NONE)
                             : has(parts, p)     ? t->pages[p][page]
                                                 : SL_NONE;
        if (!has(parts, p) || item == SL_NONE) {
            continue;
        }
        uint64_t offset;
        const sl_pool_kind pool = pool_of(keeper, p, item, &offset);
        const int result = keeper->options.functions->write(keeper->options.executor, pool, offset,
                                                            sl_store_part(keeper->options.store, parts, p),
                                                            keeper->part_bytes[p], error);
        if (result) {
            return result;
        }
    }
    return 0;
}

int sl_keeper_read(sl_keeper *keeper, sl_load *load, sl_error *error) {
    unit *u = &keeper->unit;
    sl_store_key key;
    key.name = u->parent;
    while (u->read < u->pages) {
        const int32_t page = u->first + u->read;
        uint32_t parts;
        sl_store_child(&key.name, load->tokens + (size_t)page * SL_PAGE_TOKENS, &key);
        if (!sl_store_read(keeper->options.store, &key, &parts) ||
            (parts & keeper->full_parts) != keeper->full_parts) {
            return 0;
        }
        const int result = put_page(keeper, load, page, parts, error);
        if (result) {
            return result;
        }
        keeper->parts[page] = parts;
        u->read++;
        if (keeper->program->state_count == 0 || has(parts, SL_STORE_STATE)) {
            u->stated = u->read;
        }
    }
    return 0;
}

/* Nodes of pages [first, first + pages) came from the disk. */
static void mark_stored(sl_keeper *keeper, const sl_load *load, int32_t first, int32_t pages) {
    sl_index *index = sl_cache_index(keeper->options.cache);
    int32_t node = SL_NONE;
    for (int32_t i = 0; i < first + pages; i++) {
        const sl_index_page page = {node, load->salt, load->tokens + (size_t)i * SL_PAGE_TOKENS,
                                    SL_PAGE_TOKENS};
        node = sl_index_find(index, &page);
        if (node == SL_NONE) {
            return;
        }
        if (i >= first) {
            sl_index_get(index, node)->stored = keeper->parts[i] | ON_DISK;
        }
    }
}

bool sl_keeper_finish(sl_keeper *keeper, sl_load *load) {
    unit *u = &keeper->unit;
    sl_cache *cache = keeper->options.cache;
    if (u->stated == 0) {
        sl_timeline_revert(cache, load->timeline);
        return false;
    }
    for (int32_t g = 0; g < keeper->program->group_count; g++) {
        for (int32_t i = u->first + u->stated - 1; i >= u->first; i--) {
            if (!has(keeper->parts[i], g)) {
                sl_timeline_leave_behind(cache, load->timeline, g, i);
                break;
            }
        }
    }
    sl_timeline_advance(cache, load->timeline, load->tokens, u->stated * SL_PAGE_TOKENS);
    mark_stored(keeper, load, u->first, u->stated);
    keeper->counters.loaded_pages += (uint64_t)u->stated;
    load->loaded += u->stated;
    return u->stated == u->pages;
}

/* ---- saving
 * ------------------------------------------------------------------------------------------------------------
 */

/* Fills in the names of a node and its ancestors. */
static void name_node(sl_keeper *keeper, int32_t node, sl_store_key *key) {
    sl_index *index = sl_cache_index(keeper->options.cache);
    int32_t *path = sl_index_path(index), depth = 0;
    for (int32_t i = node; i != SL_NONE && !(depth > 0 && sl_index_get(index, i)->named);
         i = sl_index_get(index, i)->parent) {
        path[depth++] = i;
    }
    const int32_t above = sl_index_get(index, path[depth - 1])->parent;
    if (above == SL_NONE) {
        sl_store_root(sl_index_get(index, node)->salt, &key->name);
    } else {
        key->name = sl_index_get(index, above)->name;
    }
    while (depth-- > 0) {
        sl_index_node *n = sl_index_get(index, path[depth]);
        sl_store_child(&key->name, n->tokens, key);
        n->name = key->name;
        n->named = true;
    }
}

static uint32_t parts_of(const sl_keeper *keeper, const sl_index_node *node) {
    uint32_t parts = node->state != SL_NONE ? UINT32_C(1) << SL_STORE_STATE : 0;
    for (int32_t g = 0; g < keeper->program->group_count; g++) {
        parts |= node->pages[g] != SL_NONE ? UINT32_C(1) << g : 0;
    }
    return parts;
}

/* Is there more of it here than on the disk? What the disk has must be here too, or it would be lost. */
static bool wants_writing(uint32_t parts, uint32_t stored) {
    return !(stored & ON_DISK) || ((parts | ON_DISK) != stored && (stored & ~(parts | ON_DISK)) == 0);
}

bool sl_keeper_choose(sl_keeper *keeper) {
    sl_index *index = sl_cache_index(keeper->options.cache);
    if (!keeper->walking || keeper->changes != sl_index_changes(index)) {
        keeper->walking = true;
        keeper->changes = sl_index_changes(index);
        keeper->next = sl_index_newest(index);
        keeper->time = sl_store_now();
    }
    while (keeper->next != SL_NONE) {
        const int32_t node = keeper->next;
        const sl_index_node *n = sl_index_get(index, node);
        const uint32_t parts = parts_of(keeper, n);
        keeper->next = sl_index_older(index, node);
        keeper->time -= RANK_NANOSECONDS;
        const bool writes = wants_writing(parts, n->stored);
        if (n->count < SL_PAGE_TOKENS || (!writes && !n->used)) {
            continue; /* files are of full pages */
        }
        keeper->job = (job){.node = node,
                            .hash = n->hash,
                            .parts = parts,
                            .stored = n->stored,
                            .items.state = n->state,
                            .writes = writes,
                            .time = keeper->time};
        memcpy(keeper->job.items.pages, n->pages, sizeof n->pages);
        name_node(keeper, node, &keeper->job.key);
        sl_cache_hold(keeper->options.cache, &keeper->job.items);
        return true;
    }
    return false;
}

static int get_page(sl_keeper *keeper, sl_error *error) {
    const job *j = &keeper->job;
    for (int p = 0; p < SL_STORE_PARTS; p++) {
        if (!has(j->parts, p)) {
            continue;
        }
        uint64_t offset;
        const int32_t item = p == SL_STORE_STATE ? j->items.state : j->items.pages[p];
        const sl_pool_kind pool = pool_of(keeper, p, item, &offset);
        const int result = keeper->options.functions->read(keeper->options.executor, pool, offset,
                                                           sl_store_part(keeper->options.store, j->parts, p),
                                                           keeper->part_bytes[p], error);
        if (result) {
            return result;
        }
    }
    return 0;
}

int sl_keeper_save(sl_keeper *keeper, sl_error *error) {
    job *j = &keeper->job;
    sl_store *store = keeper->options.store;
    uint32_t found;
    if (!j->writes && !sl_store_touch(store, &j->key, j->time)) {
        j->writes = true; /* it is gone */
    }
    if (!j->writes) {
        return 0;
    }
    if (sl_store_find(store, &j->key, &found) && !wants_writing(j->parts, found | ON_DISK)) {
        j->stored = found | ON_DISK; /* another process was here */
        sl_store_touch(store, &j->key, j->time);
        return 0;
    }
    int result = get_page(keeper, error);
    if (result) {
        keeper->walking = false; /* this node was passed and is not saved */
        return result;
    }
    result = sl_store_write(store, &j->key, j->parts, j->time, error);
    if (result) {
        keeper->next = SL_NONE; /* the others are older, and there is no room or no disk for them either */
        return 0;
    }
    j->stored = j->parts | ON_DISK;
    j->wrote = true;
    return 0;
}

void sl_keeper_settle(sl_keeper *keeper) {
    const job *j = &keeper->job;
    sl_index_node *n = sl_index_get(sl_cache_index(keeper->options.cache), j->node);
    if (n->named && n->hash == j->hash) {
        n->stored = j->stored;
        n->used = false;
    }
    keeper->counters.stored_pages += j->wrote;
    sl_cache_drop(keeper->options.cache, &j->items);
}
