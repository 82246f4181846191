/* Weights from the mapped file to the device. One after the other, at multiples of 64, they are a stream,
 * which is cut into parts of one size. Readers copy what belongs to a part from the map to a pinned buffer,
 * FP8_128 as planes (sl_fp8_scales_at), and the calling thread sends full buffers in order: one thread alone
 * copies slower than the bus takes, and would wait for each of its page faults. Second copies of weights are
 * made on the device behind all. */
#define _GNU_SOURCE
#include "backend/cuda/run/run.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/pool.h"
#include "quant/blocks.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pinning memory costs about as long per byte as sending it, so the buffers are few; of small ones more can
 * be under way. */
enum { BUFFERS = 28, BUFFER_BYTES = 2 << 20, MOST_READERS = 12, UNDER_WAY = 4 };

typedef struct upload {
    sl_cuda_device *device;
    const sl_deployment *deployment;
    const uint64_t *offsets; /* [weight_count], in the pool */
    uint64_t *starts;        /* [weight_count], in the stream */
    int32_t *sources; /* [weight_count]: the weight on the device that a copy is made from, or SL_NONE */
    const sl_progress *progress;
    unsigned char *const *pools;
    unsigned char *buffers;
    void *staging; /* on the device: the file's bytes of a weight that is packed there */
    cudaEvent_t sent[BUFFERS];
    uint64_t total, parts; /* total: bytes of the stream */
    uint64_t page;
    int status; /* of thread 0 */
    sl_error *error;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    uint64_t taken;           /* parts that readers have begun */
    uint64_t released;        /* parts below it have a free buffer */
    uint64_t filled[BUFFERS]; /* one more than the part that the buffer holds */
    bool stopped;
} upload;

static uint64_t part_bytes(const upload *u, uint64_t part) {
    const uint64_t left = u->total - part * BUFFER_BYTES;
    return left < BUFFER_BYTES ? left : BUFFER_BYTES;
}

/* ---- readers ---- */

/* The map's pages all at once, instead of a fault for each few; advice that the kernel does not know or that
 * is about other memory is refused without harm. */
static void advise(const upload *u, const unsigned char *from, uint64_t bytes) {
    const uint64_t before = (uint64_t)(uintptr_t)from % u->page;
    void *start = (void *)(uintptr_t)(from - before);
    madvise(start, bytes + before, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
    madvise(start, bytes + before, MADV_POPULATE_READ);
#endif
}

static const sl_weight *weight_at(const upload *u, int32_t i) {
    return &u->deployment->program->weights[u->deployment->weights[i].weight];
}

/* FP8_128, whose rows readers turn to planes, with zeros behind: its part of the stream is as it lies in a
 * pool. */
static bool is_in_planes(const sl_weight *weight) {
    return weight->type == SL_QTYPE_FP8_128;
}

/* Bytes of weight i in the stream. sl_stored_bytes cannot fail behind `place`. */
static uint64_t stream_bytes(const upload *u, int32_t i) {
    const sl_weight *weight = weight_at(u, i);
    uint64_t bytes = u->sources[i] == SL_NONE ? weight->bytes : 0;
    if (is_in_planes(weight)) {
        (void)sl_stored_bytes(SL_CUDA_COLUMN_MULTIPLE, weight, &bytes);
    }
    return bytes;
}

/* Where weight i ends in the stream. */
static uint64_t end_of(const upload *u, int32_t i) {
    return u->starts[i] + stream_bytes(u, i);
}

/* The first weight that reaches beyond `offset` of the stream. */
static int32_t find_weight(const upload *u, uint64_t offset) {
    int32_t low = 0, high = u->deployment->weight_count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (end_of(u, middle) > offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* In host memory beside the device, where readers put it themselves. */
static bool is_on_host(const upload *u, int32_t i) {
    return u->deployment->weights[i].on_host;
}

static unsigned char *place_of(const upload *u, int32_t i) {
    return u->pools[is_on_host(u, i) ? SL_POOL_HOST_WEIGHTS : SL_POOL_WEIGHTS] + u->offsets[i];
}

/* Bytes [from, from + bytes) of weight i to its pinned pool; behind each row that ends there lie zeros. */
static void keep_on_host(const upload *u, int32_t i, const unsigned char *data, uint64_t from,
                         uint64_t bytes) {
    const sl_weight *weight = weight_at(u, i);
    const uint64_t rows = (uint64_t)weight->experts * (uint64_t)weight->rows;
    const uint64_t row_bytes = weight->bytes / rows, stored = u->deployment->weights[i].bytes / rows;
    for (uint64_t end = from + bytes; from < end;) {
        const uint64_t row = from / row_bytes, at = from % row_bytes;
        const uint64_t count = earlier(stored == row_bytes ? bytes : row_bytes - at, end - from);
        memcpy(place_of(u, i) + row * stored + at, data, count);
        if (stored > row_bytes && at + count == row_bytes) {
            memset(place_of(u, i) + row * stored + row_bytes, 0, stored - row_bytes);
        }
        from += count;
        data += count;
    }
}

/* Bytes [from, to) of a row in planes, of `count` blocks in the file. */
static void copy_row(const sl_block_fp8_128 *blocks, uint64_t count, uint64_t row_bytes, uint64_t from,
                     uint64_t to, unsigned char *out) {
    const uint64_t scales = sl_fp8_scales_at(row_bytes);
    for (uint64_t here; from < to; from += here, out += here) {
        const bool is_code = from < scales;
        const uint64_t size = is_code ? SL_FP8_128_ELEMENTS : SL_FP8_128_BYTES - SL_FP8_128_ELEMENTS;
        const uint64_t block = (is_code ? from : from - scales) / size;
        const uint64_t at = (is_code ? from : from - scales) % size;
        here = earlier(size - at, to - from);
        if (block >= count) {
            memset(out, 0, here);
        } else {
            const unsigned char *bytes = (const unsigned char *)&blocks[block];
            memcpy(out, bytes + (is_code ? offsetof(sl_block_fp8_128, codes) : 0) + at, here);
        }
    }
}

/* Bytes [from, to) of weight i in planes. */
static void copy_planes(const upload *u, int32_t i, uint64_t from, uint64_t to, unsigned char *out) {
    const sl_weight *weight = weight_at(u, i);
    const uint64_t rows = (uint64_t)weight->experts * (uint64_t)weight->rows;
    const uint64_t row_bytes = stream_bytes(u, i) / rows, blocks = weight->bytes / rows / SL_FP8_128_BYTES;
    const sl_block_fp8_128 *first = (const sl_block_fp8_128 *)weight->data + from / row_bytes * blocks;
    const uint64_t end = (to + row_bytes - 1) / row_bytes * blocks;
    advise(u, (const unsigned char *)first, (end - from / row_bytes * blocks) * SL_FP8_128_BYTES);
    for (uint64_t here; from < to; from += here, out += here) {
        const uint64_t at = from % row_bytes;
        here = earlier(row_bytes - at, to - from);
        copy_row((const sl_block_fp8_128 *)weight->data + from / row_bytes * blocks, blocks, row_bytes, at,
                 at + here, out);
    }
}

/* Between weights a buffer keeps what it had: nothing reads those bytes. */
static void fill(const upload *u, uint64_t part, unsigned char *buffer) {
    const uint64_t first = part * BUFFER_BYTES, end = first + part_bytes(u, part);
    for (int32_t i = find_weight(u, first); i < u->deployment->weight_count && u->starts[i] < end; i++) {
        const uint64_t from = later(u->starts[i], first), to = earlier(end_of(u, i), end);
        if (is_in_planes(weight_at(u, i))) {
            copy_planes(u, i, from - u->starts[i], to - u->starts[i],
                        is_on_host(u, i) ? place_of(u, i) + (from - u->starts[i]) : buffer + (from - first));
            continue;
        }
        const unsigned char *data = (const unsigned char *)weight_at(u, i)->data + (from - u->starts[i]);
        advise(u, data, to - from);
        if (is_on_host(u, i)) {
            keep_on_host(u, i, data, from - u->starts[i], to - from);
            continue;
        }
        memcpy(buffer + (from - first), data, to - from);
    }
}

static void read_parts(upload *u) {
    pthread_mutex_lock(&u->mutex);
    for (;;) {
        while (!u->stopped && u->taken < u->parts && u->taken == u->released) {
            pthread_cond_wait(&u->changed, &u->mutex);
        }
        if (u->stopped || u->taken == u->parts) {
            break;
        }
        const uint64_t part = u->taken++;
        pthread_mutex_unlock(&u->mutex);
        fill(u, part, u->buffers + part % BUFFERS * BUFFER_BYTES);
        pthread_mutex_lock(&u->mutex);
        u->filled[part % BUFFERS] = part + 1;
        pthread_cond_broadcast(&u->changed);
    }
    pthread_mutex_unlock(&u->mutex);
}

/* ---- the sender ---- */

static void wait_for_part(upload *u, uint64_t part) {
    pthread_mutex_lock(&u->mutex);
    while (u->filled[part % BUFFERS] != part + 1) {
        pthread_cond_wait(&u->changed, &u->mutex);
    }
    pthread_mutex_unlock(&u->mutex);
}

static void release(upload *u, bool stop) {
    pthread_mutex_lock(&u->mutex);
    u->released += u->released < u->parts ? 1 : 0;
    u->stopped = stop;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->mutex);
}

static int report(const upload *u, uint64_t done, sl_error *error) {
    const sl_progress *progress = u->progress;
    return !progress || !progress->report || progress->report(progress->context, done, u->total)
               ? SL_OK
               : sl_fail(error, SL_ERR_CANCELLED, "loading was cancelled");
}

/* Waits until part `part` has been sent, whose buffer is free then. */
static int finish_part(upload *u, uint64_t part, sl_error *error) {
    const int status = SL_CUDA(cudaEventSynchronize(u->sent[part % BUFFERS]), error);
    if (status) {
        return status;
    }
    release(u, false);
    return report(u, part * BUFFER_BYTES + part_bytes(u, part), error);
}

static int copy(const upload *u, unsigned char *to, const unsigned char *from, uint64_t bytes,
                sl_error *error) {
    return SL_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, u->device->stream), error);
}

/* Whether a weight does not lie in the pool as in the stream. */
static bool is_packed(const upload *u, int32_t i) {
    const sl_weight *weight = weight_at(u, i);
    return u->deployment->weights[i].layout ||
           (!is_in_planes(weight) && sl_cuda_columns(weight) != weight->columns);
}

/* Rows from the staging memory to the pool, with blocks of zeros behind each. */
static int widen(const upload *u, int32_t i, sl_error *error) {
    const sl_weight *weight = weight_at(u, i);
    const uint64_t rows = (uint64_t)weight->experts * (uint64_t)weight->rows;
    const uint64_t from = weight->bytes / rows, to = u->deployment->weights[i].bytes / rows;
    unsigned char *packed = place_of(u, i);
    const int status =
        SL_CUDA(cudaMemsetAsync(packed, 0, u->deployment->weights[i].bytes, u->device->stream), error);
    return status ? status
                  : SL_CUDA(cudaMemcpy2DAsync(packed, to, u->staging, from, from, rows,
                                              cudaMemcpyDeviceToDevice, u->device->stream),
                            error);
}

/* Weight i's bytes of the stream from `from` to `to`, for one that is packed on the device. The next such
 * weight may come to the staging memory as soon as this one is packed: all is in the order of the stream. */
static int send_packed(const upload *u, int32_t i, uint64_t from, uint64_t to, const unsigned char *bytes,
                       sl_error *error) {
    const sl_weight_use *use = &u->deployment->weights[i];
    const sl_cuda_kernel *kernel = (const sl_cuda_kernel *)(const void *)use->layout;
    int status = copy(u, (unsigned char *)u->staging + (from - u->starts[i]), bytes, to - from, error);
    if (!status && to == end_of(u, i) && !kernel) {
        return widen(u, i, error);
    }
    if (!status && to == end_of(u, i)) {
        status =
            SL_CUDA(kernel->repack(weight_at(u, i), u->staging, place_of(u, i), u->device->stream), error);
    }
    return status;
}

/* Neighbours that keep the file's layout lie in the pool as in the stream and go in one copy. */
static int send_part(const upload *u, uint64_t part, sl_error *error) {
    const sl_deployment *deployment = u->deployment;
    const unsigned char *buffer = u->buffers + part % BUFFERS * BUFFER_BYTES;
    const uint64_t first = part * BUFFER_BYTES, end = first + part_bytes(u, part);
    int status = SL_OK;
    for (int32_t i = find_weight(u, first), next;
         i < deployment->weight_count && u->starts[i] < end && !status; i = next) {
        const uint64_t from = later(u->starts[i], first);
        next = i + 1;
        if (is_on_host(u, i) || u->sources[i] != SL_NONE) {
            continue;
        }
        if (is_packed(u, i)) {
            status = send_packed(u, i, from, earlier(end_of(u, i), end), buffer + (from - first), error);
            continue;
        }
        while (next < deployment->weight_count && u->starts[next] < end && !is_packed(u, next) &&
               !is_on_host(u, next)) {
            next++;
        }
        status = copy(u, place_of(u, i) + (from - u->starts[i]), buffer + (from - first),
                      earlier(end_of(u, next - 1), end) - from, error);
    }
    return status;
}

static int send_parts(upload *u, sl_error *error) {
    int status = SL_OK;
    for (uint64_t part = 0; part < u->parts && !status; part++) {
        wait_for_part(u, part);
        status = send_part(u, part, error);
        if (!status) {
            status = SL_CUDA(cudaEventRecord(u->sent[part % BUFFERS], u->device->stream), error);
        }
        if (!status && part >= UNDER_WAY) {
            status = finish_part(u, part - UNDER_WAY, error);
        }
    }
    const uint64_t left = u->parts < UNDER_WAY ? u->parts : UNDER_WAY;
    for (uint64_t part = u->parts - left; part < u->parts && !status; part++) {
        status = finish_part(u, part, error);
    }
    return status;
}

/* Copies of weights that lie on the device as in the file. */
static int make_copies(const upload *u, sl_error *error) {
    int status = SL_OK;
    for (int32_t i = 0; i < u->deployment->weight_count && !status; i++) {
        const sl_cuda_kernel *kernel = (const sl_cuda_kernel *)(const void *)u->deployment->weights[i].layout;
        if (u->sources[i] != SL_NONE) {
            status = SL_CUDA(kernel->repack(weight_at(u, i), place_of(u, u->sources[i]), place_of(u, i),
                                            u->device->stream),
                             error);
        }
    }
    return status;
}

static void work(void *context, int thread, int threads) {
    upload *u = context;
    (void)threads;
    if (thread > 0) {
        read_parts(u);
        return;
    }
    u->status = send_parts(u, u->error);
    u->status = u->status ? u->status : make_copies(u, u->error);
    release(u, true);
}

/* ---- the whole ---- */

/* A use of the same weight that lies on the device as in the file, or SL_NONE. */
static int32_t source_of(const upload *u, int32_t i) {
    const sl_weight_use *uses = u->deployment->weights;
    for (int32_t j = 0; j < u->deployment->weight_count && uses[i].layout; j++) {
        if (uses[j].weight == uses[i].weight && !uses[j].layout && !uses[j].on_host && !is_packed(u, j) &&
            !is_in_planes(weight_at(u, j))) {
            return j;
        }
    }
    return SL_NONE;
}

/* staging: bytes of the largest weight that is packed. */
static int place(upload *u, uint64_t *offsets, uint64_t *staging, sl_error *error) {
    const sl_deployment *deployment = u->deployment;
    uint64_t ends[SL_POOL_COUNT] = {0}, start = 0;
    *staging = 0;
    for (int32_t i = 0; i < deployment->weight_count; i++) {
        const sl_weight_use *use = &deployment->weights[i];
        const sl_weight *weight = weight_at(u, i);
        const sl_pool_kind pool = use->on_host ? SL_POOL_HOST_WEIGHTS : SL_POOL_WEIGHTS;
        const uint64_t offset = ends[pool];
        uint64_t bytes;
        u->sources[i] = source_of(u, i);
        if (!sl_stored_bytes(SL_CUDA_COLUMN_MULTIPLE, weight, &bytes) || (use->on_host && use->layout) ||
            use->bytes != (use->layout ? use->layout->packed_bytes(weight) : bytes)) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s in a layout that cuda does not have",
                           weight->name);
        }
        if (!sl_range_inside(offset, use->bytes, deployment->pool_bytes[pool]) ||
            !sl_align_u64(offset + use->bytes, 64, &ends[pool])) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s lies outside the pool of weights",
                           weight->name);
        }
        offsets[i] = offset;
        u->starts[i] = start;
        u->total = start + stream_bytes(u, i);
        start = (u->total + 63) / 64 * 64;
        *staging = is_packed(u, i) && !is_on_host(u, i) ? later(*staging, stream_bytes(u, i)) : *staging;
    }
    u->parts = (u->total + BUFFER_BYTES - 1) / BUFFER_BYTES;
    u->released = earlier(u->parts, BUFFERS);
    return SL_OK;
}

/* Of the staging memory whole words of 16 bytes are read. */
static int begin(upload *u, uint64_t staging, sl_error *error) {
    void *memory = NULL;
    int status = staging > 0 ? sl_cuda_malloc(u->device, staging + 64, &u->staging, error) : SL_OK;
    if (!status) {
        status = sl_cuda_malloc_host(u->device, u->released * BUFFER_BYTES, &memory, error);
    }
    u->buffers = memory;
    for (uint64_t b = 0; b < u->released && !status; b++) {
        status = SL_CUDA(cudaEventCreateWithFlags(&u->sent[b], cudaEventDisableTiming), error);
    }
    return status;
}

static void end(upload *u) {
    for (int b = 0; b < BUFFERS; b++) {
        if (u->sent[b]) {
            cudaEventDestroy(u->sent[b]);
        }
    }
    sl_cuda_free_host(u->buffers);
    sl_cuda_free(u->staging);
    sl_free(u->starts);
    sl_free(u->sources);
}

static int run(upload *u, sl_error *error) {
    const int processors = sl_cpu_count();
    uint64_t readers = processors < MOST_READERS ? (uint64_t)processors : MOST_READERS;
    readers = readers < u->released ? readers : u->released;
    sl_pool *pool;
    const int status = sl_pool_create(1 + (int)readers, &pool, error);
    if (status) {
        return status;
    }
    pthread_mutex_init(&u->mutex, NULL);
    pthread_cond_init(&u->changed, NULL);
    sl_pool_run(pool, work, u);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->mutex);
    sl_pool_destroy(pool);
    return u->status;
}

int sl_cuda_upload(sl_cuda_device *device, const sl_deployment *deployment, unsigned char *const *pools,
                   uint64_t *offsets, const sl_progress *progress, sl_error *error) {
    const double start = sl_seconds_now();
    upload u = {.device = device,
                .deployment = deployment,
                .offsets = offsets,
                .progress = progress,
                .pools = pools,
                .page = (uint64_t)sysconf(_SC_PAGESIZE),
                .error = error};
    uint64_t staging;
    u.starts = sl_alloc(((size_t)deployment->weight_count + 1) * sizeof *u.starts);
    u.sources = sl_alloc(((size_t)deployment->weight_count + 1) * sizeof *u.sources);
    if (!u.starts || !u.sources) {
        sl_free(u.starts);
        sl_free(u.sources);
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the list of weights");
    }
    int status = place(&u, offsets, &staging, error);
    if (!status) {
        status = begin(&u, staging, error);
    }
    if (!status && u.parts > 0) {
        status = run(&u, error);
    }
    if (status) {
        cudaStreamSynchronize(device->stream); /* nothing may be under way from a buffer that is freed */
    } else {
        status = sl_cuda_synchronize(device, error);
    }
    end(&u);
    if (!status) {
        const double seconds = sl_seconds_now() - start;
        sl_log(SL_LOG_INFO, "cuda: %.3f GB of weights loaded in %.3f s, %.1f GB/s", 1e-9 * (double)u.total,
               seconds, 1e-9 * (double)u.total / seconds);
    }
    return status;
}
