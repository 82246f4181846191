#define _GNU_SOURCE
#include "base/alloc.h"

#include "base/checked.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A header of one cache line in front of each block keeps the payload aligned and remembers its size. */
enum { HEADER = 64 };

typedef struct block_header {
    uint64_t size;
} block_header;

static _Atomic uint64_t calls;
static _Atomic uint64_t live_bytes;
static _Atomic uint64_t fail_in; /* 0: never; n: the n-th next call fails */

static int must_fail(void) {
    uint64_t left = atomic_load_explicit(&fail_in, memory_order_relaxed);
    while (left != 0) {
        if (atomic_compare_exchange_weak(&fail_in, &left, left - 1)) {
            return left == 1;
        }
    }
    return 0;
}

void *sl_alloc(size_t size) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    uint64_t total;
    if (must_fail() || !sl_add_u64(size, HEADER + 63, &total)) {
        return NULL;
    }
    unsigned char *raw = aligned_alloc(HEADER, (size_t)(total & ~(uint64_t)63));
    if (!raw) {
        return NULL;
    }
    ((block_header *)(void *)raw)->size = size;
    atomic_fetch_add_explicit(&live_bytes, size, memory_order_relaxed);
    return raw + HEADER;
}

void *sl_alloc_zero(size_t count, size_t size) {
    uint64_t total;
    if (!sl_mul_u64(count, size, &total)) {
        return NULL;
    }
    void *memory = sl_alloc((size_t)total);
    if (memory) {
        memset(memory, 0, (size_t)total);
    }
    return memory;
}

void *sl_realloc(void *old, size_t size) {
    void *memory = sl_alloc(size);
    if (memory && old) {
        uint64_t old_size = ((block_header *)(void *)((unsigned char *)old - HEADER))->size;
        memcpy(memory, old, old_size < size ? (size_t)old_size : size);
        sl_free(old);
    }
    return memory;
}

void sl_free(void *memory) {
    if (memory) {
        block_header *header = (block_header *)(void *)((unsigned char *)memory - HEADER);
        atomic_fetch_sub_explicit(&live_bytes, header->size, memory_order_relaxed);
        free(header);
    }
}

void sl_alloc_prefer_huge(void *memory, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)memory + size) / page * page;
    if (begin < end) {
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
}

char *sl_strndup(const char *text, size_t length) {
    char *copy = sl_alloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

char *sl_strdup(const char *text) {
    return sl_strndup(text, strlen(text));
}

uint64_t sl_alloc_count(void) {
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

uint64_t sl_alloc_live_bytes(void) {
    return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}

void sl_alloc_fail_at(uint64_t nth) {
    atomic_store(&fail_in, nth);
}
