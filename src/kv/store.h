/* Pages of tokens as files, for later processes. A folder holds a folder for every fingerprint (of all that
 * makes the contents of pages comparable), and that one file for every page: its name is a digest of all
 * tokens up to the page's end. Files come into being by a rename and are never changed, so any number of
 * processes may use a folder at once; one that vanishes is one that is not there.
 *
 * What is in a file is checked: one that is short, damaged or not what its name says is removed, with a
 * warning in the log, and counts as not there. The sum of bytes is kept below a budget; the least recently
 * used go first. The time of use is the file's time of modification.
 *
 * Not thread-safe. */
#ifndef SL_KV_STORE_H
#define SL_KV_STORE_H

#include "base/sha256.h"
#include "program/program.h"

typedef struct sl_store sl_store;

/* What a file may hold besides tokens: a page of each group, and the recurrent state after the page. */
enum { SL_STORE_STATE = SL_CACHE_GROUPS, SL_STORE_PARTS };

typedef struct sl_store_options {
    const char *folder; /* made if it is not there; its parent must be */
    uint64_t budget;    /* bytes of all files in it, whatever their fingerprint */
    sl_digest fingerprint;
    uint64_t part_bytes[SL_STORE_PARTS]; /* 0: no file has that part */
} sl_store_options;

/* One page of tokens and all before it. */
typedef struct sl_store_key {
    sl_digest name;   /* of all tokens up to the page's end */
    sl_digest parent; /* of all tokens before the page */
    int32_t tokens[SL_PAGE_TOKENS];
} sl_store_key;

/* The parent of a first page. Sequences of different salts share nothing. */
void sl_store_root(uint64_t salt, sl_digest *root);
/* tokens: [SL_PAGE_TOKENS]. `parent` may lie in *key. */
void sl_store_child(const sl_digest *parent, const int32_t *tokens, sl_store_key *key);

/* SL_ERR_IO names a folder that cannot be made, read or written. */
int sl_store_open(const sl_store_options *options, sl_store **store, sl_error *error);
void sl_store_close(sl_store *store); /* NULL is fine */

/* Is there such a file, and with which parts (bits)? Reads its beginning only. */
bool sl_store_find(sl_store *store, const sl_store_key *key, uint32_t *parts);
/* Reads and checks all of it; sl_store_part then points to what it holds. */
bool sl_store_read(sl_store *store, const sl_store_key *key, uint32_t *parts);
/* Where a part lies in the store's only buffer: what was read last, or is to be written next. `parts` are
 * those of the file, `part` one of them. */
unsigned char *sl_store_part(sl_store *store, uint32_t parts, int part);
/* Writes a file with these parts, last used at `time`. SL_ERR_LIMIT: the budget is taken by files used later
 * than that; SL_ERR_IO: the disk is full, or whatever else. Nothing is left behind then. */
int sl_store_write(sl_store *store, const sl_store_key *key, uint32_t parts, int64_t time, sl_error *error);
/* It was used at `time`. false: it is not there. */
bool sl_store_touch(sl_store *store, const sl_store_key *key, int64_t time);

/* Nanoseconds since 1970: the clock of files. */
int64_t sl_store_now(void);
/* Of all files that this process knows of. */
uint64_t sl_store_bytes(const sl_store *store);

#endif
