/* The one way to memory. Everything in the library allocates here, so that a test can count the calls ("a step
 * allocates nothing") and fail each of them once in turn. Results are aligned to 64 bytes (a cache line and an
 * AVX-512 vector). */
#ifndef SL_BASE_ALLOC_H
#define SL_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL when memory ran out; size 0 gives a valid pointer. Contents are undefined. Freed with sl_free. */
void *sl_alloc(size_t size);
/* count elements of `size` bytes, zeroed; NULL also when the product overflows. */
void *sl_alloc_zero(size_t count, size_t size);
/* Grows or shrinks, keeping contents; `old` may be NULL. On failure NULL, and `old` stays valid. */
void *sl_realloc(void *old, size_t size);
void sl_free(void *memory);
/* Asks for huge pages where a block is large enough to have some: whoever touches all of it is interrupted less
 * often, and its addresses are found sooner. Comes before the first touch; only advice. */
void sl_alloc_prefer_huge(void *memory, size_t size);
/* Copies of `length` bytes plus a NUL; freed with sl_free. */
char *sl_strndup(const char *text, size_t length);
char *sl_strdup(const char *text);

/* For tests: how many allocations were asked for since the program began (all threads), and a switch that makes the
 * n-th next one fail (1 = the next; 0 = none). Safe from any thread. */
uint64_t sl_alloc_count(void);
/* Bytes held now (payload sizes). */
uint64_t sl_alloc_live_bytes(void);
void sl_alloc_fail_at(uint64_t nth);

#ifdef __cplusplus
}
#endif
#endif
