/* A pool of threads that run one function together, with a barrier they can share. A step is one sl_pool_run:
 * the workers walk the op list side by side and meet at a barrier between ops, so that no op pays for waking
 * anybody. */
#ifndef SL_BASE_POOL_H
#define SL_BASE_POOL_H

#include "base/error.h"

typedef struct sl_pool sl_pool;
/* thread: 0 .. threads-1; 0 is the caller of sl_pool_run. A pool's first run has all its threads; later ones
 * may have fewer, while others take the processors. */
typedef void (*sl_pool_function)(void *context, int thread, int threads);

/* threads >= 1 counts the caller. */
int sl_pool_create(int threads, sl_pool **pool, sl_error *error);
void sl_pool_destroy(sl_pool *pool);
int sl_pool_threads(const sl_pool *pool);
/* Runs function on all threads and returns when all are done. One caller at a time. Allocates nothing. */
void sl_pool_run(sl_pool *pool, sl_pool_function function, void *context);
/* Inside a running function: waits until all threads are here. What each wrote before is seen by all after.
 */
void sl_pool_barrier(sl_pool *pool);

#endif
