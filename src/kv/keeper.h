/* Between the prefix index and the files that outlive it (kv/store.h): what the index has and the disk has
 * not is saved, what the disk has and the index has not is loaded. The bytes go through the backend's read
 * and write of pools, which want no step in flight: all of this is for the stepping thread, between steps.
 *
 * Each of the two is done in parts, of which those that wait for the disk or the device need no lock. The
 * others are called as all of kv is: under the scheduler's lock. */
#ifndef SL_KV_KEEPER_H
#define SL_KV_KEEPER_H

#include "kv/cache.h"
#include "kv/store.h"

typedef struct sl_keeper sl_keeper;

typedef struct sl_keeper_options {
    const sl_deployment *deployment;
    const sl_backend_functions *functions;
    sl_executor *executor;
    sl_cache *cache;
    sl_store *store;
} sl_keeper_options;

/* The bytes of what a file holds: [SL_STORE_PARTS]. */
void sl_keeper_part_bytes(const sl_deployment *deployment, uint64_t *bytes);

/* All that the options name must outlive the keeper. */
int sl_keeper_create(const sl_keeper_options *options, sl_keeper **keeper, sl_error *error);
void sl_keeper_destroy(sl_keeper *keeper); /* NULL is fine */

typedef struct sl_keeper_counters {
    uint64_t stored_pages, loaded_pages;
} sl_keeper_counters;
/* Under the lock. */
sl_keeper_counters sl_keeper_counts(const sl_keeper *keeper);

/* ---- loading
 * ------------------------------------------------------------------------------------------------------------
 */

/* A sequence that takes over a beginning from files, some pages at a time. What it has cached already must
 * end with a page. The caller sees to it that nobody changes it meanwhile. */
typedef struct sl_load {
    sl_timeline *timeline;
    const int32_t *tokens;
    int32_t limit; /* tokens to take at most, those cached included */
    int32_t known; /* tokens that the index gives anyway: files that do not reach further are of no use */
    uint64_t salt;
    int32_t loaded; /* pages so far */
    /* Pages up to the last place where the sequence can go on; SL_NONE at the start: not known. */
    int32_t end;
} sl_load;

/* Without the lock: how many pages come next; 0: no more. */
int32_t sl_keeper_seek(sl_keeper *keeper, sl_load *load);
/* Under the lock: takes pages for them. SL_ERR_LIMIT: there are none. */
int sl_keeper_reserve(sl_keeper *keeper, sl_load *load);
/* Without the lock: from the files to the device. Files that are missing or damaged are no error. */
int sl_keeper_read(sl_keeper *keeper, sl_load *load, sl_error *error);
/* Under the lock, after a read that succeeded or failed: the sequence has what came, and so has the index.
 * false: that is not all that seek promised, and there is no more. A sequence that could not go on from where
 * it is then (sl_timeline_complete) is to be reset; what came stays in the index. */
bool sl_keeper_finish(sl_keeper *keeper, sl_load *load);

/* ---- saving
 * ------------------------------------------------------------------------------------------------------------
 */

/* Under the lock: chooses a node that is not on the disk as it is here, the most recently used first. false:
 * there is nothing to do until the index changes. */
bool sl_keeper_choose(sl_keeper *keeper);
/* Without the lock: writes it, or says to the disk that it was used. A disk that is full or fails is no
 * error: it ends there until the index changes. */
int sl_keeper_save(sl_keeper *keeper, sl_error *error);
/* Under the lock, after a save that succeeded or failed. */
void sl_keeper_settle(sl_keeper *keeper);

#endif
