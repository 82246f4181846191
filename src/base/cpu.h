/* What this processor can do, as the tiers that kernels are written for. */
#ifndef SL_BASE_CPU_H
#define SL_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* In rising order. Each contains the ones before it, but that avxvnni is not in every processor with AVX-512.
 */
typedef enum sl_isa {
    SL_ISA_PLAIN,   /* portable C */
    SL_ISA_AVX2,    /* AVX2, FMA, F16C */
    SL_ISA_AVXVNNI, /* and AVX-VNNI: dot products of bytes in vectors of 256 bits */
    SL_ISA_AVX512,  /* AVX-512 F BW DQ VL, VNNI, BF16 */
    SL_ISA_AMX,     /* AMX tiles, int8 and BF16, which the system lets this process use */
    SL_ISA_COUNT
} sl_isa;

/* The best tier of this machine, found at the first call. For amx the system is then asked for the tiles, for
 * all threads of the process; it refuses while a thread's stack for signals is too small for their state. */
sl_isa sl_cpu_isa(void);
/* True where vdpbf16ps is the quickest way to multiply BF16 without tiles: AMD's processors run it as often
 * as a fused product of floats, which is half as much work. On Intel's it takes four times as long. */
bool sl_cpu_multiplies_bf16_pairs(void);
/* Whether this machine has what tier `isa` needs. */
bool sl_cpu_has(sl_isa isa);
/* "plain", "avx2", "avxvnni", "avx512", "amx". */
const char *sl_isa_name(sl_isa isa);
/* -1 for no such name. */
int sl_isa_parse(const char *name);
/* Processors whose time control groups of both versions leave to this process, rounded up; 0: no limit. The
 * system's files are looked for below `root`, "" for where they are. */
int sl_cpu_quota(const char *root);
/* Processors this process may use: of its affinity mask, and not more than its quota; at least 1. */
int sl_cpu_count(void);
/* Cores that the calling thread's affinity mask has a processor of: hyper-threads of one core count once. 0:
 * not known. The system's files are looked for as above. */
int sl_cpu_cores(const char *root);
/* Nodes of memory (NUMA) that the calling thread's affinity mask has processors of. */
enum { SL_CPU_PROCESSORS = 16 * 1024 }; /* that a mask has room for */
typedef struct sl_cpu_nodes {
    int count;      /* 1: there is one, or it is not known; node_of is then not to be used */
    int processors; /* of all nodes */
    int16_t node_of[SL_CPU_PROCESSORS]; /* 0 .. count-1, in the order of their numbers; -1: not of the mask */
} sl_cpu_nodes;
/* The system's files are looked for as above. */
void sl_cpu_nodes_here(const char *root, sl_cpu_nodes *nodes);
/* The node that thread `thread` of `threads` should stay on: each node has as large a part of the threads as
 * it has of the processors, and threads of one node have numbers side by side. */
int sl_cpu_node_of_thread(const sl_cpu_nodes *nodes, int thread, int threads);
/* Threads that compute best: of all cores, and not more than the quota; at least 1. A core's hyper-threads
 * share its arithmetic and its way to memory. */
int sl_cpu_threads(void);

#endif
