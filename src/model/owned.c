#define _GNU_SOURCE
#include "model/owned.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/pool.h"
#include "model/scaled.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 /* about what a thread makes at a time */ };

struct sl_copy {
    const sl_tensor *tensor; /* NULL: the other */
    sl_scaled scaled;
    unsigned char *to;
    uint64_t bytes;
    uint64_t units, piece; /* bytes, or rows: how many, and how many a thread makes at a time */
};

void *sl_owned_alloc(sl_owned *owned, uint64_t bytes) {
    if (owned->count == owned->capacity) {
        const size_t capacity = owned->capacity ? owned->capacity * 2 : 64;
        void **blocks = sl_realloc(owned->blocks, capacity * sizeof *blocks);
        if (!blocks) {
            return NULL;
        }
        owned->blocks = blocks;
        owned->capacity = capacity;
    }
    if (bytes > SIZE_MAX) {
        return NULL;
    }
    void *block = sl_alloc((size_t)bytes);
    if (block) {
        owned->blocks[owned->count++] = block;
        owned->bytes += bytes;
    }
    return block;
}

void sl_owned_free(sl_owned *owned) {
    for (size_t i = 0; i < owned->count; i++) {
        sl_free(owned->blocks[i]);
    }
    sl_free(owned->blocks);
    sl_free(owned->copies);
    memset(owned, 0, sizeof *owned);
}

bool sl_owned_add_copy(sl_owned *owned, const sl_tensor *tensor, const sl_scaled *scaled, void *to) {
    sl_copy copy = {.tensor = tensor, .to = to};
    if (owned->copy_count == owned->copy_capacity) {
        const size_t capacity = owned->copy_capacity ? owned->copy_capacity * 2 : 64;
        sl_copy *copies = sl_realloc(owned->copies, capacity * sizeof *copies);
        if (!copies) {
            return false;
        }
        owned->copies = copies;
        owned->copy_capacity = capacity;
    }
    if (tensor) {
        copy.bytes = copy.units = tensor->bytes;
        copy.piece = PIECE_BYTES;
    } else {
        copy.scaled = *scaled;
        copy.units = (uint64_t)scaled->experts * (uint64_t)scaled->rows;
        if (!sl_scaled_bytes(scaled, &copy.bytes)) {
            return false;
        }
        const uint64_t row = copy.bytes / copy.units;
        copy.piece = row < PIECE_BYTES ? PIECE_BYTES / row : 1;
    }
    owned->copies[owned->copy_count++] = copy;
    return true;
}

/* ---- making them ---- */

typedef struct maker {
    const sl_owned *owned;
    pthread_mutex_t mutex; /* of what follows */
    size_t copy;
    uint64_t unit;          /* of it, the next that nobody makes */
    uint64_t taken, failed; /* pieces; of the failed ones the first, UINT64_MAX: none */
    sl_scaled_notes notes;
    int code;
    sl_error *error;
} maker;

static int make_piece(const sl_copy *copy, uint64_t first, sl_scaled_notes *notes, sl_error *error) {
    const uint64_t left = copy->units - first, count = left < copy->piece ? left : copy->piece;
    unsigned char *to = copy->to + copy->bytes / copy->units * first;
    if (copy->tensor) {
        memcpy(to, (const unsigned char *)copy->tensor->data + first, (size_t)count);
        return 0;
    }
    return sl_scaled_pack(&copy->scaled, first, count, to, notes, error);
}

/* Of several errors that of the first piece is told: what comes before it was taken before. */
static void make_pieces(void *context, int thread, int threads) {
    maker *m = context;
    (void)thread, (void)threads;
    pthread_mutex_lock(&m->mutex);
    while (m->failed == UINT64_MAX && m->copy < m->owned->copy_count) {
        const sl_copy *copy = &m->owned->copies[m->copy];
        const uint64_t first = m->unit, piece = m->taken++;
        sl_scaled_notes notes = {0};
        sl_error error;
        m->unit += copy->piece;
        if (m->unit >= copy->units) {
            m->copy++;
            m->unit = 0;
        }
        pthread_mutex_unlock(&m->mutex);
        const int code = make_piece(copy, first, &notes, &error);
        pthread_mutex_lock(&m->mutex);
        m->notes.scales += notes.scales;
        m->notes.rounded += notes.rounded;
        if (code && piece < m->failed) {
            m->failed = piece;
            m->code = code;
            if (m->error) {
                *m->error = error;
            }
        }
    }
    pthread_mutex_unlock(&m->mutex);
}

int sl_owned_make_copies(const sl_owned *owned, sl_error *error) {
    maker m = {.owned = owned, .failed = UINT64_MAX, .error = error};
    sl_pool *pool;
    if (owned->copy_count == 0) {
        return 0;
    }
    const int code = sl_pool_create(sl_cpu_count(), &pool, error);
    if (code) {
        return code;
    }
    pthread_mutex_init(&m.mutex, NULL);
    sl_pool_run(pool, make_pieces, &m);
    pthread_mutex_destroy(&m.mutex);
    sl_pool_destroy(pool);
    if (m.code == 0 && m.notes.rounded > 0) {
        sl_log(SL_LOG_WARNING, "%llu of %llu scales of integers are rounded to f16",
               (unsigned long long)m.notes.rounded, (unsigned long long)m.notes.scales);
    }
    return m.code;
}

/* Whole pages; the system takes them when it is told that nobody needs them. */
void sl_owned_drop_copies(const sl_owned *owned) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < owned->copy_count; i++) {
        const uintptr_t start = ((uintptr_t)owned->copies[i].to + page - 1) / page * page;
        const uintptr_t end =
            ((uintptr_t)owned->copies[i].to + (uintptr_t)owned->copies[i].bytes) / page * page;
        if (end > start) {
            madvise((void *)start, end - start, MADV_DONTNEED);
        }
    }
}
