/* Where a step's time goes. The ops of a group (one kernel, one shape, usually one per layer) are captured as
 * one graph and replayed between two events: as in a step, each call reads weights that have left the caches
 * since it last read them.
 *
 * Run out of their place, ops read what happens to lie in the workspace. Numbers may be anything; ids of
 * experts may not. So before a group the step is run up to the group's last op, and ops that read integers
 * elsewhere than that one are left out and counted at the others' mean. */
#include "backend/cuda/run/run.h"

#include <string.h>

enum { LEAST_REPLAYS = 3, MOST_REPLAYS = 40 };
#define MEASURED_SECONDS 6e-3 /* of one group */

typedef struct profiling {
    sl_cuda_device *device;
    const sl_cuda_list *list;
    cudaEvent_t begin, end;
    cudaGraphExec_t graph;
    int32_t captured; /* runs in the graph */
} profiling;

static int launch(const profiling *p, const sl_cuda_op *op, sl_error *error) {
    const sl_cuda_context *context = op->is_tail ? p->list->tail : p->list->context;
    const int status = sl_cuda_result(
        sl_cuda_inject("launch") ? cudaErrorUnknown : sl_cuda_run_of(op)(context, op, p->device->stream),
        "launch", error);
    if (status) {
        sl_fail_prefix(error, sl_cuda_name_of(op));
    }
    return status;
}

static int elapsed(const profiling *p, double *seconds, sl_error *error) {
    float milliseconds = 0;
    int status = SL_CUDA(cudaEventSynchronize(p->end), error);
    if (!status) {
        status = SL_CUDA(cudaEventElapsedTime(&milliseconds, p->begin, p->end), error);
    }
    *seconds = (double)milliseconds * 1e-3;
    return status;
}

static int replay(const profiling *p, int times, double *seconds, sl_error *error) {
    cudaStream_t stream = p->device->stream;
    int status = SL_CUDA(cudaEventRecord(p->begin, stream), error);
    for (int i = 0; i < times && !status; i++) {
        status = SL_CUDA(cudaGraphLaunch(p->graph, stream), error);
    }
    if (!status) {
        status = SL_CUDA(cudaEventRecord(p->end, stream), error);
    }
    status = status ? status : elapsed(p, seconds, error);
    *seconds /= times;
    return status;
}

/* Whether a run of ops may run where `last` may: it reads the same integers. */
static bool reads_as(const sl_cuda_op *op, const sl_cuda_op *last) {
    for (int32_t part = 0; part < op->run_length; part++) {
        for (int i = 0; i < SL_OP_INPUTS; i++) {
            const sl_cuda_operand *in = &op[part].in[i];
            if (in->data && in->type == SL_VALUE_I32 && in->data != last[part].in[i].data) {
                return false;
            }
        }
    }
    return true;
}

/* Whether copies may begin before their FETCH: in a list that is run whole. */
static void set_ahead(const profiling *p, bool ahead) {
    sl_cuda_copies *copies = p->list->context->copies;
    if (copies) {
        copies->begun = SL_NONE;
        copies->ahead = ahead;
    }
}

/* The runs of a group, up to the one that begins at op `last`, as a graph; with `groups` NULL all runs. */
static int capture(profiling *p, const int32_t *groups, int32_t group, int32_t last, sl_error *error) {
    cudaStream_t stream = p->device->stream;
    cudaGraph_t recorded = NULL;
    int status = SL_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), error);
    if (status) {
        return status;
    }
    p->captured = 0;
    set_ahead(p, !groups);
    for (int32_t i = 0; i <= last && !status; i += p->list->ops[i].run_length) {
        const sl_cuda_op *op = &p->list->ops[i];
        if (!groups || (groups[i] == group && reads_as(op, &p->list->ops[last]))) {
            status = launch(p, op, error);
            p->captured++;
        }
    }
    sl_error ending = {.code = SL_OK};
    const int ended =
        sl_cuda_result(cudaStreamEndCapture(stream, &recorded), "cudaStreamEndCapture", &ending);
    if (!status && ended) {
        *error = ending;
        status = ended;
    }
    if (!status) {
        status = SL_CUDA(cudaGraphInstantiate(&p->graph, recorded, 0), error);
    }
    if (recorded) {
        cudaGraphDestroy(recorded);
    }
    return status;
}

/* The mean of some replays, after one that does not count. Takes the graph. */
static int measure(profiling *p, double *seconds, sl_error *error) {
    int status = replay(p, 1, seconds, error);
    if (!status) {
        const double times = *seconds > 0 ? MEASURED_SECONDS / *seconds : MOST_REPLAYS;
        status = replay(p,
                        times < LEAST_REPLAYS  ? LEAST_REPLAYS
                        : times > MOST_REPLAYS ? MOST_REPLAYS
                                               : (int)times,
                        seconds, error);
    }
    cudaGraphExecDestroy(p->graph);
    p->graph = NULL;
    return status;
}

static int profile_group(profiling *p, sl_profile *profile, int32_t group, sl_error *error) {
    int32_t last = SL_NONE, count = 0;
    for (int32_t i = 0; i < p->list->count; i += p->list->ops[i].run_length) {
        if (profile->groups[i] == group) {
            last = i;
            count++;
        }
    }
    profile->seconds[group] = 0;
    int status = SL_OK;
    set_ahead(p, false);
    for (int32_t i = 0; i < last && !status; i += p->list->ops[i].run_length) {
        status = launch(p, &p->list->ops[i], error);
    }
    if (!status && count > 0) {
        status = capture(p, profile->groups, group, last, error);
        status = status ? status : measure(p, &profile->seconds[group], error);
        profile->seconds[group] *= (double)count / (p->captured > 0 ? p->captured : 1);
    }
    return status;
}

#define LEAST_READ ((uint64_t)1 << 30) /* bytes, many times what a device's caches hold */

/* The best of some runs each. */
static int measure_peaks(const profiling *p, const void *memory, uint64_t bytes, sl_rates *rates,
                         sl_error *error) {
    enum { RUNS = 5 };
    cudaStream_t stream = p->device->stream;
    void *sink = NULL;
    int status = sl_cuda_malloc(p->device, 64, &sink, error);
    for (int run = 0; run < 2 * RUNS && !status; run++) {
        double seconds = 0, work = (double)bytes;
        double *best = run % 2 ? &rates->operations[SL_WITH_BF16] : &rates->read_bytes;
        status = SL_CUDA(cudaEventRecord(p->begin, stream), error);
        if (!status) {
            status = run % 2 ? SL_CUDA(sl_cuda_peak_tensor(p->device->index, sink, &work, stream), error)
                             : SL_CUDA(sl_cuda_peak_read(memory, bytes, sink, stream), error);
        }
        if (!status) {
            status = SL_CUDA(cudaEventRecord(p->end, stream), error);
        }
        status = status ? status : elapsed(p, &seconds, error);
        if (!status && seconds > 0 && work / seconds > *best) {
            *best = work / seconds;
        }
    }
    sl_cuda_free(sink);
    return status;
}

static int make_events(profiling *p, sl_error *error) {
    int status = SL_CUDA(cudaSetDevice(p->device->index), error);
    if (!status) {
        status = SL_CUDA(cudaEventCreate(&p->begin), error);
    }
    if (!status) {
        status = SL_CUDA(cudaEventCreate(&p->end), error);
    }
    return status;
}

static void destroy_events(const profiling *p) {
    if (p->begin) {
        cudaEventDestroy(p->begin);
    }
    if (p->end) {
        cudaEventDestroy(p->end);
    }
}

int sl_cuda_rates(sl_cuda_device *device, const void *memory, uint64_t bytes, sl_rates *rates,
                  sl_error *error) {
    profiling p = {.device = device};
    void *more = NULL; /* weights of a small model would be read from caches */
    memset(rates, 0, sizeof *rates);
    int status = make_events(&p, error);
    if (!status && bytes < LEAST_READ) {
        status = sl_cuda_malloc(device, LEAST_READ, &more, error);
    }
    status = status ? status
             : more ? measure_peaks(&p, more, LEAST_READ, rates, error)
                    : measure_peaks(&p, memory, bytes, rates, error);
    sl_cuda_free(more);
    destroy_events(&p);
    return status;
}

int sl_cuda_profile(sl_cuda_device *device, const sl_cuda_list *list, const void *memory, uint64_t bytes,
                    sl_profile *profile, sl_error *error) {
    profiling p = {.device = device, .list = list};
    memset(&profile->rates, 0, sizeof profile->rates);
    int status = make_events(&p, error);
    if (!status) {
        status = capture(&p, NULL, 0, list->count - 1, error);
        status = status ? status : measure(&p, &profile->step_seconds, error);
    }
    for (int32_t group = 0; group < profile->group_count && !status; group++) {
        status = profile_group(&p, profile, group, error);
    }
    status = status ? status : measure_peaks(&p, memory, bytes, &profile->rates, error);
    set_ahead(&p, true);
    destroy_events(&p);
    return status;
}
