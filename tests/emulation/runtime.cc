/* The part of the CUDA runtime that the backend uses, on the emulated GPU. Streams do their work at once, in
 * the order in which it is given to them; while one captures, it is kept for a graph instead. A stream that
 * waits for an event of another is beside it, and belongs to its capture. What it is given it does at once,
 * or as late as it may: when somebody waits for it. These take turns, a few things each.
 *
 * A kernel that only looks at memory waits for one of another stream. Its stream keeps what else it is given,
 * and goes on when somebody waits for it: then all streams with work take turns.
 *
 * There are two devices alike, with one memory: what belongs to one of them are streams, events, attributes
 * of kernels, what broke, and who may reach whose memory, which no kernel is kept to. */
#include "grid.h"
#include "memory.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unordered_map>
#include <vector>

struct kept_launch {
    emu_launch launch;
    ~kept_launch() {
        launch.release(launch.arguments);
    }
};

/* A launch, or anything else. */
struct work_item {
    std::shared_ptr<kept_launch> launch;
    std::function<cudaError_t()> run;
};
typedef std::vector<work_item> work_list;

struct CUgraph_st {
    work_list work;
    std::vector<CUstream_st *> beside; /* streams that joined the capture */
};
struct CUgraphExec_st {
    work_list work;
};
struct CUstream_st {
    int device;
    std::deque<work_item> queue; /* behind a kernel that waits, and that one itself */
    emu_grid *grid;              /* of the first in the queue */
    CUgraph_st *capture;
    bool spoilt; /* something failed while it was capturing */
    bool is_beside;
    work_list given;         /* when it is beside another */
    size_t done, waited_for; /* of what was given */
};
struct event_record {
    double seconds;
    uint64_t asked, reached; /* how often */
};
struct CUevent_st {
    int device;
    std::shared_ptr<event_record> record;
    CUstream_st *stream; /* that recorded it */
    CUgraph_st *capture; /* in which it did */
    size_t position;     /* of what was given to that stream */
};

namespace {

std::recursive_mutex lock;       /* one kernel, and one change of what is below, at a time */
cudaError_t broken[EMU_DEVICES]; /* a kernel failed there: as on a GPU, nothing works any more */
thread_local cudaError_t last_error;
thread_local CUstream_st *capturing;
thread_local int current;                                          /* device */
std::unordered_map<const void *, int> dynamic_limits[EMU_DEVICES]; /* by kernel */
bool reaches[EMU_DEVICES][EMU_DEVICES];
CUstream_st null_stream;
std::vector<CUstream_st *> waiting; /* streams whose queue is not empty */
uint64_t hurried;                   /* nanoseconds */

cudaError_t result(cudaError_t code) {
    if (code != cudaSuccess) {
        last_error = code;
    }
    return code;
}

/* What a call that is no launch returns first: what broke, or that it is not to be captured. */
cudaError_t before_call(bool may_capture) {
    if (capturing && !may_capture) {
        capturing->spoilt = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return broken[current];
}

#define CALL(may_capture)                                                                                    \
    const std::lock_guard<std::recursive_mutex> guard(lock);                                                 \
    if (const cudaError_t code = before_call(may_capture); code != cudaSuccess) {                            \
        return result(code);                                                                                 \
    }

/* ---- queues ---- */

/* As on a GPU whose context is lost. */
void lose(int device, cudaError_t code) {
    broken[device] = code;
    for (CUstream_st *stream : waiting) {
        if (stream->device == device) {
            if (stream->grid) {
                emu_give_up_grid(stream->grid);
            }
            stream->grid = NULL;
            stream->queue.clear();
        }
    }
}

/* False: it waits for somebody. Else *code is how it ended. */
bool go_on(const work_item &item, emu_grid **grid, int device, bool briefly, cudaError_t *code) {
    if (!item.launch) {
        *code = item.run();
        return true;
    }
    *code = broken[device];
    if (*code != cudaSuccess) {
        return true;
    }
    *grid = *grid ? *grid : emu_start_grid(&item.launch->launch);
    const emu_outcome outcome = emu_go_on(*grid, briefly);
    if (outcome == EMU_WAITS) {
        return false;
    }
    *grid = NULL;
    if (outcome == EMU_FAILED) {
        lose(device, cudaErrorLaunchFailure);
        *code = cudaErrorLaunchFailure;
    }
    return true;
}

/* Until the queue is empty or waits; *moved: whether it came any further. */
cudaError_t drive(CUstream_st *stream, bool *moved) {
    cudaError_t code = cudaSuccess;
    while (!stream->queue.empty() && code == cudaSuccess) {
        const work_item item = stream->queue.front();
        const uint64_t before = stream->grid ? emu_progress(stream->grid) : 0;
        if (!go_on(item, &stream->grid, stream->device, true, &code)) {
            *moved |= emu_progress(stream->grid) != before;
            break;
        }
        *moved = true;
        if (!stream->queue.empty()) { /* of a device that is lost it is */
            stream->queue.pop_front();
        }
    }
    if (stream->queue.empty()) {
        waiting.erase(std::remove(waiting.begin(), waiting.end(), stream), waiting.end());
    }
    return code;
}

/* All streams take turns until `is_done`. What fails on the way breaks its device. */
template <typename FUNCTION> void take_turns(FUNCTION is_done) {
    enum : uint64_t { HURRY = 1000000 };
    while (!is_done()) {
        bool moved = false;
        const std::vector<CUstream_st *> all = waiting;
        for (CUstream_st *stream : all) {
            const cudaError_t code = drive(stream, &moved);
            if (code != cudaSuccess && broken[stream->device] == cudaSuccess) {
                lose(stream->device, code);
            }
        }
        waiting.erase(std::remove_if(waiting.begin(), waiting.end(),
                                     [](const CUstream_st *stream) { return stream->queue.empty(); }),
                      waiting.end());
        if (!moved) { /* another thread of the host may bring it */
            hurried += HURRY;
            lock.unlock();
            sched_yield();
            lock.lock();
        }
    }
}

void wait_for(CUstream_st *stream) {
    take_turns([stream] { return stream->queue.empty(); });
}

cudaError_t do_now(CUstream_st *stream, const work_item &item) {
    emu_grid *grid = NULL;
    cudaError_t code = cudaSuccess;
    go_on(item, &grid, stream->device, false, &code);
    return code;
}

enum { BESIDE_TURN = 3 };

/* The first `count` things that were given to a stream beside another. */
cudaError_t work_off(CUstream_st *stream, size_t count) {
    cudaError_t code = cudaSuccess;
    while (stream->done < count && code == cudaSuccess) {
        const work_item &item = stream->given[stream->done++];
        if (stream->capture) {
            stream->capture->work.push_back(item);
        } else {
            code = do_now(stream, item);
        }
    }
    return result(code);
}

void leave(CUstream_st *stream) {
    stream->capture = NULL;
    stream->is_beside = false;
    stream->given.clear();
    stream->done = stream->waited_for = 0;
}

cudaError_t submit(cudaStream_t stream, const work_list &work) {
    CUstream_st *s = stream ? stream : &null_stream;
    if (s->is_beside) {
        s->given.insert(s->given.end(), work.begin(), work.end());
        const bool is_early = s->given.size() / BESIDE_TURN % 2;
        return is_early ? work_off(s, s->given.size()) : cudaSuccess;
    }
    if (s->capture) {
        s->capture->work.insert(s->capture->work.end(), work.begin(), work.end());
        return cudaSuccess;
    }
    const bool is_free = s->queue.empty();
    bool moved = false;
    s->queue.insert(s->queue.end(), work.begin(), work.end());
    if (!is_free || work.empty()) {
        return cudaSuccess;
    }
    const cudaError_t code = drive(s, &moved);
    if (code != cudaSuccess) {
        s->queue.clear();
    } else if (!s->queue.empty()) {
        waiting.push_back(s);
    }
    return result(code);
}

cudaError_t submit(cudaStream_t stream, std::function<cudaError_t()> work) {
    return submit(stream, work_list{{nullptr, std::move(work)}});
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

bool in_range(dim3 d, uint32_t x, uint32_t y, uint32_t z) {
    return d.x >= 1 && d.y >= 1 && d.z >= 1 && d.x <= x && d.y <= y && d.z <= z;
}

/* Programming guide, "Compute Capabilities". */
cudaError_t check_shape(const emu_launch &launch) {
    enum { MOST_THREADS = 1024, USUAL_SHARED = 48 * 1024, MOST_CLUSTER = 8 };
    const dim3 g = launch.grid, b = launch.block, c = launch.cluster;
    if (!in_range(g, 0x7fffffff, 65535, 65535) || !in_range(b, 1024, 1024, 64) ||
        b.x * b.y * b.z > MOST_THREADS) {
        return cudaErrorInvalidConfiguration;
    }
    const auto limit = dynamic_limits[current].find(launch.kernel);
    if (launch.shared_bytes >
        (uint32_t)(limit == dynamic_limits[current].end() ? USUAL_SHARED : limit->second)) {
        return cudaErrorInvalidValue;
    }
    if (c.x * c.y * c.z > MOST_CLUSTER || g.x % c.x != 0 || g.y % c.y != 0 || g.z % c.z != 0) {
        return cudaErrorInvalidConfiguration;
    }
    return c.y == 1 && c.z == 1 ? cudaSuccess : cudaErrorNotSupported; /* the scheduler's own limit */
}

cudaError_t read_attributes(const cudaLaunchConfig_t *config, emu_launch *launch) {
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute &a = config->attrs[i];
        switch (a.id) {
        case cudaLaunchAttributeClusterDimension:
            launch->cluster = dim3(a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z);
            break;
        case cudaLaunchAttributeCooperative:
            launch->is_cooperative = a.val.cooperative != 0;
            break;
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            launch->is_dependent = a.val.programmaticStreamSerializationAllowed != 0;
            break;
        case cudaLaunchAttributePriority:
        case cudaLaunchAttributePreferredSharedMemoryCarveout:
            break;
        default:
            emu_report("launch attribute %d is not known here", (int)a.id);
            return cudaErrorNotSupported;
        }
    }
    return cudaSuccess;
}

} // namespace

cudaError_t emu_launch_configured(const cudaLaunchConfig_t *config, emu_launch *launch) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    launch->grid = config->gridDim;
    launch->block = config->blockDim;
    launch->shared_bytes = (uint32_t)config->dynamicSmemBytes;
    launch->stream = config->stream;
    const auto kept = std::make_shared<kept_launch>();
    kept->launch = *launch;
    cudaError_t code = broken[current];
    if (code == cudaSuccess && config->stream && config->stream->device != current) {
        code = cudaErrorInvalidResourceHandle;
    }
    if (code == cudaSuccess) {
        code = read_attributes(config, &kept->launch);
    }
    if (code == cudaSuccess) {
        code = check_shape(kept->launch);
    }
    if (code == cudaSuccess && kept->launch.is_cooperative && !emu_fits_at_once(&kept->launch)) {
        code = cudaErrorCooperativeLaunchTooLarge;
    }
    if (code != cudaSuccess) {
        return result(code);
    }
    return submit(config->stream, work_list{{kept, nullptr}});
}

uint64_t emu_time(void) {
    return (uint64_t)(now() * 1e9) + hurried;
}

extern "C" {

/* ---- the device ---- */

static bool is_device(int device) {
    return device >= 0 && device < EMU_DEVICES;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = EMU_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) {
        return result(cudaErrorInvalidDevice);
    }
    current = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) {
    *can = device != other;
    return result(is_device(device) && is_device(other) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned int flags) {
    CALL(false)
    if (!is_device(other) || other == current || flags != 0) {
        return result(other == current || flags != 0 ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    const bool already = reaches[current][other];
    reaches[current][other] = true;
    return result(already ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

enum : size_t { DEVICE_BYTES = (size_t)4 << 30 };

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    static const struct {
        cudaDeviceAttr attribute;
        int value;
    } values[] = {
        {cudaDevAttrComputeCapabilityMajor, EMU_CUDA_ARCH / 100},
        {cudaDevAttrComputeCapabilityMinor, EMU_CUDA_ARCH / 10 % 10},
        {cudaDevAttrMultiProcessorCount, EMU_PROCESSORS},
        {cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, EMU_SHARED_OPTIN},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, EMU_SHARED_OPTIN + 1024},
        {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrWarpSize, EMU_WARP},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrL2CacheSize, 60 << 20},
        {cudaDevAttrClusterLaunch, EMU_CUDA_ARCH >= 900},
    };
    if (!is_device(device)) {
        return result(cudaErrorInvalidDevice);
    }
    for (const auto &known : values) {
        if (known.attribute == attribute) {
            *value = known.value;
            return cudaSuccess;
        }
    }
    emu_report("device attribute %d is not known here", (int)attribute);
    return result(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    if (!is_device(device)) {
        return result(cudaErrorInvalidDevice);
    }
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated GPU");
    properties->major = EMU_CUDA_ARCH / 100;
    properties->minor = EMU_CUDA_ARCH / 10 % 10;
    properties->totalGlobalMem = DEVICE_BYTES;
    properties->multiProcessorCount = EMU_PROCESSORS;
    properties->warpSize = EMU_WARP;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->sharedMemPerBlock = 48 * 1024;
    properties->sharedMemPerBlockOptin = EMU_SHARED_OPTIN;
    properties->sharedMemPerMultiprocessor = EMU_SHARED_OPTIN + 1024;
    return cudaSuccess;
}

/* Here it forgets the failure and leaves allocations alone. */
cudaError_t cudaDeviceReset(void) {
    broken[current] = last_error = cudaSuccess;
    return cudaSuccess;
}

static void wait_for_device(int device) {
    take_turns([device] {
        return std::none_of(waiting.begin(), waiting.end(),
                            [device](const CUstream_st *stream) { return stream->device == device; });
    });
}

cudaError_t cudaDeviceSynchronize(void) {
    CALL(false)
    wait_for_device(current);
    return result(broken[current]);
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void) {
    const cudaError_t code = broken[current] != cudaSuccess ? broken[current] : last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void) {
    return broken[current] != cudaSuccess ? broken[current] : last_error;
}

#define ERRORS(X)                                                                                            \
    X(cudaSuccess)                                                                                           \
    X(cudaErrorInvalidValue)                                                                                 \
    X(cudaErrorMemoryAllocation)                                                                             \
    X(cudaErrorInvalidConfiguration)                                                                         \
    X(cudaErrorInvalidDevice)                                                                                \
    X(cudaErrorLaunchFailure)                                                                                \
    X(cudaErrorNotSupported)                                                                                 \
    X(cudaErrorInvalidResourceHandle) X(cudaErrorStreamCaptureUnsupported)                                   \
        X(cudaErrorStreamCaptureInvalidated) X(cudaErrorStreamCaptureIsolation)                              \
            X(cudaErrorStreamCaptureUnjoined) X(cudaErrorNotReady) X(cudaErrorIllegalState)                  \
                X(cudaErrorCooperativeLaunchTooLarge) X(cudaErrorSymbolNotFound) X(cudaErrorUnknown)         \
                    X(cudaErrorPeerAccessAlreadyEnabled)

const char *cudaGetErrorName(cudaError_t code) {
    switch (code) {
#define NAME(error)                                                                                          \
    case error:                                                                                              \
        return #error;
        ERRORS(NAME)
#undef NAME
    default:
        return "an error without a name here";
    }
}

const char *cudaGetErrorString(cudaError_t code) {
    return code == cudaErrorMemoryAllocation ? "out of memory" : "on the emulated GPU";
}

/* ---- memory ---- */

static cudaError_t allocate(void **memory, size_t bytes, emu_memory_kind kind) {
    CALL(false)
    *memory = emu_allocated_bytes() + bytes <= DEVICE_BYTES ? emu_allocate(bytes, kind) : NULL;
    return result(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

static cudaError_t release(void *memory, emu_memory_kind kind) {
    CALL(false)
    wait_for_device(current);
    return result(!memory || emu_release(memory, kind) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    return allocate(memory, bytes, EMU_DEVICE_MEMORY);
}

cudaError_t cudaFree(void *memory) {
    return release(memory, EMU_DEVICE_MEMORY);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    return allocate(memory, bytes, EMU_PINNED_MEMORY);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int) {
    return allocate(memory, bytes, EMU_PINNED_MEMORY);
}

cudaError_t cudaFreeHost(void *memory) {
    return release(memory, EMU_PINNED_MEMORY);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    CALL(true)
    *total = DEVICE_BYTES;
    *available = DEVICE_BYTES - emu_allocated_bytes();
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    const bool to_device = emu_is_allocated(to, bytes, EMU_DEVICE_MEMORY);
    const bool from_device = emu_is_allocated(from, bytes, EMU_DEVICE_MEMORY);
    if ((kind == cudaMemcpyHostToDevice && (!to_device || from_device)) ||
        (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) ||
        (kind == cudaMemcpyDeviceToDevice && (!to_device || !from_device))) {
        emu_report("a copy of %zu bytes of kind %d: to %p, from %p", bytes, (int)kind, to, from);
        return cudaErrorInvalidValue;
    }
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    CALL(true)
    return submit(stream, [=] { return copy(to, from, bytes, kind); });
}

/* As late as it may: when somebody waits for something behind it. */
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    CALL(true)
    if (!is_device(to_device) || !is_device(from_device)) {
        return result(cudaErrorInvalidDevice);
    }
    const work_item item = {nullptr, [=] { return copy(to, from, bytes, cudaMemcpyDeviceToDevice); }};
    if (!stream || stream->capture || stream->is_beside) {
        return submit(stream, work_list{item});
    }
    if (stream->queue.empty()) {
        waiting.push_back(stream);
    }
    stream->queue.push_back(item);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    CALL(false)
    return result(copy(to, from, bytes, kind));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    CALL(true)
    return submit(stream, [=] {
        cudaError_t code = cudaSuccess;
        for (size_t row = 0; row < height && !code; row++) {
            code = copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
        }
        return code;
    });
}

static cudaError_t fill(void *memory, int value, size_t bytes) {
    if (!emu_is_allocated(memory, bytes, EMU_DEVICE_MEMORY)) {
        emu_report("cudaMemset of %zu bytes at %p: not all of that is device memory", bytes, memory);
        return cudaErrorInvalidValue;
    }
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    CALL(true)
    return submit(stream, [=] { return fill(memory, value, bytes); });
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
    CALL(false)
    return result(fill(memory, value, bytes));
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int) {
    CALL(false)
    *stream = new CUstream_st{};
    (*stream)->device = current;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    wait_for(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    CALL(false)
    if (stream && stream->is_beside) {
        const cudaError_t code = work_off(stream, stream->given.size());
        leave(stream);
        return code;
    }
    wait_for(stream ? stream : &null_stream);
    return result(broken[stream ? stream->device : current]);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    CALL(false)
    return (stream ? stream : &null_stream)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

/* One that was recorded by a graph is never reached by number; nobody asks for such. */
static bool is_reached(const CUevent_st *event) {
    const bool has_work = event->stream && !event->stream->queue.empty();
    return !has_work || event->record->reached == event->record->asked;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
    CALL(true)
    CUstream_st *other = event->stream;
    if (!other || other == stream) {
        return cudaSuccess;
    }
    if (!event->capture) {
        take_turns([event] { return is_reached(event); });
    }
    if (other->device != stream->device && !event->capture && !stream->capture) {
        return cudaSuccess; /* it has a life of its own */
    }
    if (other->is_beside) {
        if (stream->capture != event->capture) {
            stream->spoilt = true;
            return result(cudaErrorStreamCaptureIsolation);
        }
        other->waited_for = event->position > other->waited_for ? event->position : other->waited_for;
        return work_off(other, event->position);
    }
    if (stream->capture != event->capture) {
        if (stream->capture || !event->capture) {
            return result(cudaErrorStreamCaptureIsolation);
        }
        work_off(stream, stream->given.size());
        leave(stream);
        wait_for(stream);
        stream->capture = event->capture;
        stream->capture->beside.push_back(stream);
    }
    stream->is_beside = true;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int) {
    CALL(true)
    *event = new CUevent_st();
    (*event)->device = current;
    (*event)->record = std::make_shared<event_record>();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    CALL(true)
    if (event->device != (stream ? stream->device : current)) {
        return result(cudaErrorInvalidResourceHandle);
    }
    const std::shared_ptr<event_record> record = event->record;
    const uint64_t number = ++record->asked;
    const cudaError_t code = submit(stream, [record, number] {
        record->seconds = now();
        record->reached = number;
        return cudaSuccess;
    });
    event->stream = stream;
    event->capture = stream ? stream->capture : NULL;
    event->position = stream ? stream->given.size() : 0;
    return code;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    CALL(false)
    take_turns([event] { return is_reached(event); });
    return result(broken[event->device]);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    CALL(false)
    return is_reached(event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    CALL(true)
    *milliseconds = (float)((end->record->seconds - start->record->seconds) * 1e3);
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    CALL(false)
    if (!stream || stream->capture) {
        return result(cudaErrorIllegalState);
    }
    stream->capture = new CUgraph_st();
    stream->spoilt = false;
    capturing = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    *graph = NULL;
    if (!stream || !stream->capture) {
        return result(cudaErrorIllegalState);
    }
    CUgraph_st *captured = stream->capture;
    stream->capture = NULL;
    capturing = NULL;
    bool is_joined = true;
    for (CUstream_st *beside : captured->beside) {
        is_joined = is_joined && beside->waited_for == beside->given.size();
        leave(beside);
    }
    if (stream->spoilt || !is_joined) {
        delete captured;
        return result(stream->spoilt ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
    }
    *graph = captured;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
    CALL(false)
    *executable = new CUgraphExec_st{graph->work};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    CALL(false)
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    CALL(false)
    return submit(stream, executable->work);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete executable;
    return cudaSuccess;
}

/* ---- kernels ---- */

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > EMU_SHARED_OPTIN) {
            return result(cudaErrorInvalidValue);
        }
        dynamic_limits[current][kernel] = value;
    }
    return cudaSuccess;
}

/* Registers and static shared memory are not known here. */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads,
                                                          size_t bytes) {
    emu_launch launch = {};
    launch.grid = launch.cluster = dim3(1, 1, 1);
    launch.block = dim3((unsigned)threads, 1, 1);
    launch.shared_bytes = (uint32_t)bytes;
    *blocks = (int)emu_most_resident(&launch) / EMU_PROCESSORS;
    return cudaSuccess;
}
}

/* Linked with --wrap=dlopen: the module's libraries want a real GPU. */
extern "C" void *__wrap_dlopen(const char *, int) {
    return NULL;
}
