/* The emulated GPU itself: kernels that are right in every order of their threads, and kernels with a
 * mistake, which must be reported. The mistakes are those that kernels of ours have had, or might. */
#include "grid.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 128 };

/* ---- what has to work ---- */

__global__ static void sum_block(const int *values, int *sum) {
    __shared__ int partial[THREADS / 32];
    int value = values[blockIdx.x * blockDim.x + threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, distance);
    }
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < THREADS / 32; i++) {
            atomicAdd(sum, partial[i]);
        }
    }
}

/* Each block waits for the one before it: all are there at once. */
__global__ static void chain(int *turn) {
    if (threadIdx.x == 0) {
        while (atomicAdd(turn, 0) != (int)(gridDim.x - 1 - blockIdx.x)) {
            __nanosleep(20);
        }
        atomicAdd(turn, 1);
    }
}

/* Lanes part ways, and shuffle among themselves; some leave before the barrier. */
__global__ static void diverge(const int *values, int *sum) {
    const int lane = (int)threadIdx.x % 32, value = values[threadIdx.x];
    if (lane % 2) {
        if (__shfl_sync(0xaaaaaaaau, value, 31) != values[threadIdx.x / 32 * 32 + 31]) {
            atomicAdd(sum, 1000000);
        }
        return;
    }
    const unsigned small = __ballot_sync(0x55555555u, lane < 8);
    __syncthreads();
    atomicAdd(sum, __popc(small));
}

__global__ static void votes(int *sum) {
    const int any = __syncthreads_or(threadIdx.x == 77), all = __syncthreads_and(threadIdx.x != 77);
    atomicAdd(sum, any && !all ? __syncthreads_count(threadIdx.x % 2 == 0) : 0);
}

__global__ static void dynamic_memory(int *sum, int count) {
    extern __shared__ int memory[];
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        memory[i] = i;
    }
    __syncthreads();
    atomicAdd(sum, memory[count - 1 - (int)threadIdx.x]);
}

/* ---- mistakes ---- */

/* Thread i reads what its neighbour writes: right or wrong as the order has it. */
__global__ static void no_barrier(int *sum) {
    __shared__ int shared[THREADS];
    shared[threadIdx.x] = 1;
    atomicAdd(sum, shared[(threadIdx.x + 1) % THREADS]);
}

/* The next warp's numbers are added to long after it should have cleared them: right when all warps take
 * turns. */
__global__ static void no_barrier_far(int *sum) {
    __shared__ int shared[THREADS];
    shared[threadIdx.x] = 0;
    int one = 1;
    for (int i = 0; i < 8; i++) {
        one = __shfl_xor_sync(0xffffffffu, one, 1);
    }
    atomicAdd(&shared[(threadIdx.x + 32) % THREADS], one);
    __syncthreads();
    atomicAdd(sum, shared[threadIdx.x]);
}

__global__ static void read_past_the_end(const int *values, int *sum, int count) {
    int total = 0;
    for (int i = (int)threadIdx.x; i <= count; i += THREADS) {
        total += values[i];
    }
    atomicAdd(sum, total);
}

__global__ static void write_past_shared(int *sum) {
    extern __shared__ int memory[];
    memory[threadIdx.x + 1] = 0;
    __syncthreads();
    atomicAdd(sum, memory[threadIdx.x]);
}

__global__ static void write_past_a_variable(int *sum, int count) {
    __shared__ int memory[THREADS];
    for (int i = (int)threadIdx.x; i <= count; i += THREADS) {
        memory[i] = 1;
    }
    __syncthreads();
    atomicAdd(sum, memory[threadIdx.x]);
}

__global__ static void barrier_for_some(int *sum) {
    if (threadIdx.x < 48) {
        __syncthreads();
    } else {
        __syncwarp(0xffffffffu);
    }
    atomicAdd(sum, 1);
}

__global__ static void shuffle_of_some(int *sum) {
    if (threadIdx.x % 32 < 16) {
        atomicAdd(sum, __shfl_sync(0xffffffffu, 1, 0));
    }
    __syncthreads();
}

__global__ static void different_instructions(int *sum) {
    if (threadIdx.x % 32 < 16) {
        atomicAdd(sum, __shfl_sync(0xffffffffu, 1, 0));
    } else {
        atomicAdd(sum, __any_sync(0xffffffffu, 1));
    }
}

__global__ static void foreign_lane(int *sum) {
    if (threadIdx.x % 32 < 16) {
        atomicAdd(sum, __shfl_sync(0x0000ffffu, 1, 20));
    }
}

__global__ static void endless(int *turn) {
    while (atomicAdd(turn, 0) != 1) {
    }
}

__global__ static void deep(int *sum, int depth) {
    volatile int room[8192];
    room[threadIdx.x] = depth;
    if (depth > 0) {
        deep(sum, depth - 1);
    }
    atomicAdd(sum, room[threadIdx.x]);
}

__global__ static void unwritten_shared(float *sum) {
    __shared__ float shared[THREADS];
    atomicAdd(sum, shared[threadIdx.x]);
}

/* Each says that it is at a turn, and waits until the other is. */
__global__ static void take_turns(int *turns, int own, int count, int *sum) {
    for (int turn = 1; turn <= count; turn++) {
        atomicExch(&turns[own], turn);
        while (atomicAdd(&turns[1 - own], 0) < turn) {
        }
    }
    atomicAdd(sum, count);
}

/* ---- the tests ---- */

typedef struct memory {
    int *values, *sum; /* on the device: THREADS values, i at i; one */
} memory;

static int sum_of(const memory *m) {
    int sum = 0;
    cudaMemcpy(&sum, m->sum, sizeof sum, cudaMemcpyDeviceToHost);
    return sum;
}

static bool start(const memory *m) {
    return cudaMemset(m->sum, 0, sizeof(int)) == cudaSuccess;
}

static bool works(const char *name, const memory *m, int expected) {
    const cudaError_t code = cudaDeviceSynchronize();
    const int sum = sum_of(m);
    const bool good = code == cudaSuccess && sum == expected;
    printf("%s %s\n", good ? "passed" : "FAILED", name);
    if (!good) {
        printf("    error %d, %d instead of %d\n", (int)code, sum, expected);
    }
    return good;
}

static bool all_that_works(const memory *m) {
    bool good = start(m);
    sum_block<<<1, THREADS>>>(m->values, m->sum);
    good &= works("a sum", m, THREADS * (THREADS - 1) / 2) && start(m);
    chain<<<24, 32>>>(m->sum);
    good &= works("blocks that wait for each other", m, 24) && start(m);
    diverge<<<1, THREADS>>>(m->values, m->sum);
    good &= works("lanes that part", m, THREADS / 2 * 4) && start(m);
    votes<<<1, THREADS>>>(m->sum);
    good &= works("votes", m, THREADS * THREADS / 2) && start(m);
    cudaFuncSetAttribute(dynamic_memory, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024);
    dynamic_memory<<<2, THREADS, 200 * 1024>>>(m->sum, 50 * 1024);
    good &= works("dynamic shared memory", m, 2 * (THREADS * 50 * 1024 - THREADS * (THREADS + 1) / 2));
    return good;
}

/* What is written to standard error between the two. */
static FILE *report;
static int usual_error;

static void catch_report(void) {
    fflush(stderr);
    report = tmpfile();
    usual_error = dup(2);
    dup2(fileno(report), 2);
}

static bool reported(const char *name, const char *expected) {
    static char text[16384];
    const cudaError_t code = cudaDeviceSynchronize();
    fflush(stderr);
    dup2(usual_error, 2);
    close(usual_error);
    rewind(report);
    text[fread(text, 1, sizeof text - 1, report)] = '\0';
    fclose(report);
    const bool good = code == cudaErrorLaunchFailure && strstr(text, expected) != NULL;
    printf("%s %s\n", good ? "passed" : "FAILED", name);
    if (!good) {
        printf("    error %d, \"%s\" is not in the report:\n%s", (int)code, expected, text);
    }
    cudaDeviceReset();
    return good;
}

static bool mistakes(const memory *m) {
    bool good = true;
#define MISTAKE(name, expected, ...)                                                                         \
    catch_report();                                                                                          \
    __VA_ARGS__;                                                                                             \
    good &= reported(name, expected)
    const int many = THREADS;
    MISTAKE("a read past the end", "0 bytes behind the end of an allocation",
            read_past_the_end<<<1, THREADS>>>(m->values, m->sum, many));
    MISTAKE("where it was", "in block (0,0,0), thread (0,0,0)",
            read_past_the_end<<<1, THREADS>>>(m->values, m->sum, many));
    MISTAKE("a write behind dynamic memory", "behind the dynamic part",
            write_past_shared<<<1, THREADS, THREADS * 4>>>(m->sum));
    MISTAKE("a write behind a variable", "behind the static variables",
            write_past_a_variable<<<1, THREADS>>>(m->sum, many));
    MISTAKE("a barrier for some", "a deadlock", barrier_for_some<<<1, THREADS>>>(m->sum));
    MISTAKE("a shuffle of some", "16 threads from 0 to 15 wait at __shfl_sync",
            shuffle_of_some<<<1, 32>>>(m->sum));
    MISTAKE("different instructions", "meet at different instructions",
            different_instructions<<<1, 32>>>(m->sum));
    MISTAKE("a lane that is not in the mask", "which is not in the mask", foreign_lane<<<1, 32>>>(m->sum));
    MISTAKE("an endless loop", "a deadlock", endless<<<2, 32>>>(m->sum));
    MISTAKE("a full stack", "stack that is full", deep<<<1, 32>>>(m->sum, 1000));
    return good;
}

/* A barrier that is missing shows in one order of the threads, or in the other. */
static bool missing_barrier(const memory *m) {
    start(m);
    no_barrier<<<1, THREADS>>>(m->sum);
    const int sum = sum_of(m);
    printf("%s a missing barrier\n", sum == THREADS ? "FAILED" : "passed");
    int right = 0;
    for (int i = 0; i < 8; i++) {
        start(m);
        no_barrier_far<<<1, THREADS>>>(m->sum);
        right += sum_of(m) == THREADS;
    }
    const bool found = emu_order_seed == 0 || right < 8;
    printf("%s a barrier missing far away, right %d times\n", found ? "passed" : "FAILED", right);
    return sum != THREADS && found;
}

static bool unwritten(const memory *m) {
    start(m);
    unwritten_shared<<<1, THREADS>>>((float *)m->sum);
    const int sum = sum_of(m);
    float value;
    memcpy(&value, &sum, sizeof value);
    printf("%s unwritten shared memory\n", value == value ? "FAILED" : "passed");
    return value != value;
}

static bool refused(const memory *m) {
    bool good = true;
#define REFUSED(expected, ...)                                                                               \
    __VA_ARGS__;                                                                                             \
    if (const cudaError_t code = cudaGetLastError(); code != expected) {                                     \
        printf("FAILED %s: %s\n", #__VA_ARGS__, cudaGetErrorName(code));                                     \
        good = false;                                                                                        \
    }
    REFUSED(cudaErrorInvalidConfiguration, votes<<<1, 2048>>>(m->sum))
    REFUSED(cudaErrorInvalidConfiguration, votes<<<0, 32>>>(m->sum))
    REFUSED(cudaErrorInvalidValue, write_past_shared<<<1, THREADS, 64 * 1024>>>(m->sum))
    REFUSED(cudaErrorInvalidValue,
            cudaFuncSetAttribute(votes, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20))
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(m->sum, m->values, 4, cudaMemcpyHostToDevice))
    printf("%s what a GPU refuses\n", good ? "passed" : "FAILED");
    return good;
}

static bool graphs(const memory *m) {
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    void *memory;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    bool good = start(m) && cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    sum_block<<<1, THREADS, 0, stream>>>(m->values, m->sum);
    good = good && cudaStreamEndCapture(stream, &graph) == cudaSuccess && sum_of(m) == 0 &&
           cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess &&
           cudaGraphDestroy(graph) == cudaSuccess;
    for (int i = 0; i < 3 && good; i++) {
        good = cudaGraphLaunch(executable, stream) == cudaSuccess;
    }
    good = good && sum_of(m) == 3 * THREADS * (THREADS - 1) / 2;
    /* An allocation spoils a capture. */
    good = good && cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess &&
           cudaMalloc(&memory, 16) != cudaSuccess && cudaStreamEndCapture(stream, &graph) != cudaSuccess;
    cudaGetLastError();
    cudaGraphExecDestroy(executable);
    cudaStreamDestroy(stream);
    printf("%s graphs\n", good ? "passed" : "FAILED");
    return good;
}

/* Kernels of two devices that wait for each other, and a copy behind each. */
static bool meetings(const memory *m) {
    enum { TURNS = 1000 };
    cudaStream_t streams[2];
    cudaEvent_t ends[2];
    int *turns = NULL, *seen = NULL;
    bool good = start(m) && cudaMalloc((void **)&turns, 2 * sizeof *turns) == cudaSuccess &&
                cudaMallocHost((void **)&seen, 2 * sizeof *seen) == cudaSuccess &&
                cudaMemset(turns, 0, 2 * sizeof *turns) == cudaSuccess;
    for (int i = 0; good && i < 2; i++) {
        good = cudaSetDevice(i) == cudaSuccess &&
               cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking) == cudaSuccess &&
               cudaEventCreate(&ends[i]) == cudaSuccess;
        take_turns<<<1, 1, 0, streams[i]>>>(turns, i, TURNS, m->sum);
        good = good &&
               cudaMemcpyAsync(&seen[i], &turns[i], sizeof *seen, cudaMemcpyDeviceToHost, streams[i]) ==
                   cudaSuccess &&
               cudaEventRecord(ends[i], streams[i]) == cudaSuccess;
    }
    good = good && cudaEventQuery(ends[0]) == cudaErrorNotReady &&
           cudaEventSynchronize(ends[0]) == cudaSuccess && seen[0] == TURNS &&
           cudaStreamSynchronize(streams[1]) == cudaSuccess && seen[1] == TURNS;
    cudaSetDevice(1);
    good = works("kernels of two devices that meet", m, 2 * TURNS) && good;
    /* One alone never ends: its device is lost, the other is not. */
    catch_report();
    take_turns<<<1, 1, 0, streams[1]>>>(turns, 1, TURNS + 1, m->sum);
    good = reported("one that nobody meets", "a deadlock") && good;
    cudaSetDevice(0);
    return works("the other device", m, 2 * TURNS) && good;
}

/* A copy to the other device is made when its stream's event is waited for, and not before. */
static bool late_copies(const memory *m) {
    cudaStream_t streams[2];
    cudaEvent_t sent;
    int *landing = NULL, early = 1, late = 0;
    bool good = start(m) && cudaSetDevice(1) == cudaSuccess &&
                cudaMalloc((void **)&landing, sizeof *landing) == cudaSuccess &&
                cudaMemset(landing, 0, sizeof *landing) == cudaSuccess &&
                cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking) == cudaSuccess &&
                cudaSetDevice(0) == cudaSuccess &&
                cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking) == cudaSuccess &&
                cudaEventCreateWithFlags(&sent, cudaEventDisableTiming) == cudaSuccess;
    sum_block<<<1, THREADS, 0, streams[0]>>>(m->values, m->sum);
    good = good && cudaMemcpyPeerAsync(landing, 1, m->sum, 0, sizeof *landing, streams[0]) == cudaSuccess &&
           cudaEventRecord(sent, streams[0]) == cudaSuccess &&
           cudaMemcpy(&early, landing, sizeof early, cudaMemcpyDeviceToHost) == cudaSuccess && early == 0 &&
           cudaSetDevice(1) == cudaSuccess && cudaStreamWaitEvent(streams[1], sent, 0) == cudaSuccess &&
           cudaMemcpyAsync(&late, landing, sizeof late, cudaMemcpyDeviceToHost, streams[1]) == cudaSuccess &&
           cudaStreamSynchronize(streams[1]) == cudaSuccess && late == THREADS * (THREADS - 1) / 2 &&
           cudaMemcpyPeerAsync(landing, 2, m->sum, 0, sizeof *landing, streams[0]) != cudaSuccess;
    cudaGetLastError();
    cudaFree(landing);
    cudaStreamDestroy(streams[0]);
    cudaStreamDestroy(streams[1]);
    cudaEventDestroy(sent);
    cudaSetDevice(0);
    printf("%s copies to the other device\n", good ? "passed" : "FAILED");
    return good;
}

int main(void) {
    memory m;
    int values[THREADS];
    for (int i = 0; i < THREADS; i++) {
        values[i] = i;
    }
    if (cudaMalloc((void **)&m.values, sizeof values) != cudaSuccess ||
        cudaMalloc((void **)&m.sum, sizeof(int)) != cudaSuccess ||
        cudaMemcpy(m.values, values, sizeof values, cudaMemcpyHostToDevice) != cudaSuccess) {
        return 1;
    }
    bool good = all_that_works(&m);
    good &= mistakes(&m);
    good &= missing_barrier(&m);
    good &= unwritten(&m);
    good &= refused(&m);
    good &= graphs(&m);
    good &= late_copies(&m);
    good &= meetings(&m);
    return good ? 0 : 1;
}
