/* A pool of threads that run one function together, with a barrier they can share. A step is one sl_pool_run:
 * the workers walk the op list side by side and meet at a barrier between ops, so that no op pays for waking
 * anybody. */
#ifndef SL_BASE_POOL_H
#define SL_BASE_POOL_H

#include "base/cpu.h"
#include "base/error.h"

typedef struct sl_pool sl_pool;
/* thread: 0 .. threads-1; 0 is the caller of sl_pool_run. A pool's first run has all its threads; later ones
 * may have fewer, while others take the processors. Which they are: sl_pool_thread_of. */
typedef void (*sl_pool_function)(void *context, int thread, int threads);

/* threads >= 1 counts the caller. */
int sl_pool_create(int threads, sl_pool **pool, sl_error *error);
void sl_pool_destroy(sl_pool *pool);
/* Lets every thread run on the processors of one node only (sl_cpu_node_of_thread), the caller of sl_pool_run
 * for as long as that takes. Before the first run. SL_ERR_NOMEM; where the system does not allow it a warning
 * says so, and threads go where it puts them. */
int sl_pool_bind(sl_pool *pool, const sl_cpu_nodes *nodes, sl_error *error);
int sl_pool_threads(const sl_pool *pool);
/* Which of the pool's `threads` is number `member` of a team: a smaller team has threads of all nodes. */
static inline int sl_pool_thread_of(int threads, int member, int team) {
    return (int)((int64_t)threads * member / team);
}
/* The reverse; -1 when it is not in the team. */
static inline int sl_pool_member(int threads, int thread, int team) {
    const int member = (int)(((int64_t)thread * team + threads - 1) / threads);
    return member < team && sl_pool_thread_of(threads, member, team) == thread ? member : -1;
}
/* Runs function on all threads and returns when all are done. One caller at a time. Allocates nothing. */
void sl_pool_run(sl_pool *pool, sl_pool_function function, void *context);
/* Inside a running function: waits until all threads are here. What each wrote before is seen by all after.
 */
void sl_pool_barrier(sl_pool *pool);

#endif
