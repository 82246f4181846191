#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[SL_ISA_COUNT] = {"plain", "avx2", "avxvnni", "avx512", "amx"};

#if defined(__x86_64__)
/* Tiles of int8 and of BF16 (CPUID leaf 7, EDX), whose state the system keeps (XCR0) and gives to this
 * process (arch_prctl(2); Linux's arch/x86/xstate.rst). */
static bool may_use_tiles(void) {
    enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, KEEPS_STATE = 1 << 27, STATE = 3 << 17 };
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };
    const unsigned features = BF16 | TILE | INT8;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & features) != features ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c & KEEPS_STATE)) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & STATE) == STATE && syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}

/* CPUID leaf 7, subleaf 1, EAX. */
static bool has_avxvnni(void) {
    enum { AVXVNNI = 1 << 4 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVXVNNI);
}
#endif

static sl_isa best_tier(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return SL_ISA_PLAIN;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
        return __builtin_cpu_supports("avx512vbmi2") && may_use_tiles() ? SL_ISA_AMX : SL_ISA_AVX512;
    }
    return has_avxvnni() ? SL_ISA_AVXVNNI : SL_ISA_AVX2;
#else
    return SL_ISA_PLAIN;
#endif
}

bool sl_cpu_multiplies_bf16_pairs(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

/* A bit for each tier, asked once: on a virtual machine an answer takes some tens of microseconds, and a plan
 * wants to know it for every kernel and op. */
static unsigned tiers_here(void) {
    static _Atomic unsigned known;
    unsigned tiers = atomic_load_explicit(&known, memory_order_relaxed);
    if (!tiers) {
        tiers = (2u << best_tier()) - 1;
#if defined(__x86_64__)
        tiers &= has_avxvnni() ? ~0u : ~(1u << SL_ISA_AVXVNNI);
#endif
        atomic_store_explicit(&known, tiers, memory_order_relaxed);
    }
    return tiers;
}

sl_isa sl_cpu_isa(void) {
    int best = SL_ISA_COUNT - 1;
    while (!(tiers_here() >> best & 1)) {
        best--;
    }
    return (sl_isa)best;
}

bool sl_cpu_has(sl_isa isa) {
    return tiers_here() >> isa & 1;
}

const char *sl_isa_name(sl_isa isa) {
    return (unsigned)isa < SL_ISA_COUNT ? names[isa] : "unknown";
}

int sl_isa_parse(const char *name) {
    for (int i = 0; i < SL_ISA_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- how many processors
 * ------------------------------------------------------------------------------------------ */

enum { PATH_BYTES = 4096 };

/* Numbers at the beginning of a file, at most two; how many there were. */
static int read_numbers(const char *folder, const char *name, long long numbers[2]) {
    char path[PATH_BYTES];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = length > 0 && length < (int)sizeof path ? fopen(path, "re") : NULL;
    const int count = file ? fscanf(file, "%lld %lld", &numbers[0], &numbers[1]) : 0;
    if (file) {
        fclose(file);
    }
    return count < 0 ? 0 : count;
}

/* Processors whose time one group may take, rounded up; 0: no limit. Version 2 has "QUOTA PERIOD" or
 * "max PERIOD" in one file (the kernel's admin-guide/cgroup-v2.rst); version 1 has one file for each, and a
 * quota of -1 is none (scheduler/sched-bwc.rst). */
static int quota_of_group(const char *folder, bool version2) {
    long long numbers[2] = {0}, period[2] = {0};
    int count = read_numbers(folder, version2 ? "cpu.max" : "cpu.cfs_quota_us", numbers);
    if (!version2 && count == 1 && read_numbers(folder, "cpu.cfs_period_us", period) > 0) {
        numbers[1] = period[0];
        count = 2;
    }
    if (count != 2 || numbers[0] <= 0 || numbers[1] <= 0) {
        return 0;
    }
    const long long processors = (numbers[0] - 1) / numbers[1] + 1;
    return processors <= SL_CPU_PROCESSORS ? (int)processors : 0;
}

/* The smallest limit of a group and of all that it lies in, up to the folder `top` characters long. */
static int quota_upwards(char *folder, size_t top, bool version2) {
    int smallest = 0;
    for (size_t end = strlen(folder);; folder[end] = '\0') {
        const int quota = quota_of_group(folder, version2);
        smallest = quota > 0 && (smallest == 0 || quota < smallest) ? quota : smallest;
        if (end <= top) {
            return smallest;
        }
        do {
            end--;
        } while (end > top && folder[end] != '/');
    }
}

/* True if `list`, words with commas between, has "cpu". */
static bool lists_cpu(const char *list) {
    while (list) {
        list += *list == ',';
        if (strncmp(list, "cpu", 3) == 0 && (list[3] == ',' || list[3] == '\0')) {
            return true;
        }
        list = strchr(list, ',');
    }
    return false;
}

/* The process's group in the hierarchy of version 2 or in version 1's of processors: the third field of
 * "ID:CONTROLLERS:PATH" (cgroups(7)). */
static bool find_group(const char *root, bool version2, char group[PATH_BYTES]) {
    char line[PATH_BYTES];
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (path) {
            *path = '\0';
            path[1 + strcspn(path + 1, "\n")] = '\0';
            found = version2 ? controllers[1] == '\0' : lists_cpu(controllers + 1);
            snprintf(group, PATH_BYTES, "%s", path + 1);
        }
    }
    if (file) {
        fclose(file);
    }
    return found;
}

/* The limit by one line of mountinfo (proc_pid_mountinfo(5)): ID, parent, device, folder of the file system,
 * where it is mounted, options, further fields, "-", type, source, the file system's options. */
static int quota_of_mount(const char *root, char *line, const char *group, bool version2) {
    char *fields[5] = {0}, *rest = strstr(line, " - "), *save = NULL;
    if (!rest) {
        return 0;
    }
    *rest = '\0';
    char *type = strtok_r(rest + 3, " \n", &save), *options = NULL;
    for (int i = 0; i < 2; i++) {
        options = strtok_r(NULL, " \n", &save);
    }
    if (!type || !options || strcmp(type, version2 ? "cgroup2" : "cgroup") != 0 ||
        (!version2 && !lists_cpu(options))) {
        return 0;
    }
    fields[0] = strtok_r(line, " ", &save);
    for (int i = 1; i < 5 && fields[i - 1]; i++) {
        fields[i] = strtok_r(NULL, " ", &save);
    }
    if (!fields[4]) {
        return 0;
    }
    /* A container may have its own group mounted as the top, and know it by the name outside all the same. */
    const size_t outside = strcmp(fields[3], "/") == 0 ? 0 : strlen(fields[3]);
    const bool below = strncmp(group, fields[3], outside) == 0 && strchr("/", group[outside]);
    char folder[PATH_BYTES];
    const int length =
        snprintf(folder, sizeof folder, "%s%s%s", root, fields[4], below ? group + outside : "");
    return length < (int)sizeof folder ? quota_upwards(folder, strlen(root) + strlen(fields[4]), version2)
                                       : 0;
}

int sl_cpu_quota(const char *root) {
    int smallest = 0;
    for (int version2 = 0; version2 < 2; version2++) {
        char group[PATH_BYTES], line[PATH_BYTES];
        snprintf(line, sizeof line, "%s/proc/self/mountinfo", root);
        FILE *file = find_group(root, version2, group) ? fopen(line, "re") : NULL;
        while (file && fgets(line, sizeof line, file)) {
            const int quota = quota_of_mount(root, line, group, version2);
            smallest = quota > 0 && (smallest == 0 || quota < smallest) ? quota : smallest;
        }
        if (file) {
            fclose(file);
        }
    }
    return smallest;
}

int sl_cpu_count(void) {
    cpu_set_t sets[SL_CPU_PROCESSORS / CPU_SETSIZE];
    int count = sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 1;
    const int quota = sl_cpu_quota("");
    count = quota > 0 && quota < count ? quota : count;
    return count > 0 ? count : 1;
}

/* ---- which of them are one core
 * ------------------------------------------------------------------------------------ */

enum { LIST_BYTES = 8192 };

/* The next number of a list like "0-3,8", which `*list` moves behind; -1 at its end. `range`: the numbers
 * left of the one that it lies in; zeros at first. */
static int next_in_list(const char **list, int range[2]) {
    if (range[0] >= range[1]) {
        char *end;
        const long first = strtol(*list, &end, 10);
        const long last = end > *list && *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (end == *list || first < 0 || last < first || last >= SL_CPU_PROCESSORS) {
            return -1;
        }
        *list = end + (*end == ',');
        range[0] = (int)first;
        range[1] = (int)last + 1;
    }
    return range[0]++;
}

/* The first line of a file that begins with `key`, without it; false when there is none. */
static bool read_line(const char *path, const char *key, char line[LIST_BYTES]) {
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(line, LIST_BYTES, file)) {
        found = strncmp(line, key, strlen(key)) == 0;
    }
    if (file) {
        fclose(file);
    }
    if (found) {
        const size_t start = strlen(key) + strspn(line + strlen(key), "\t ");
        memmove(line, line + start, strlen(line + start) + 1);
    }
    return found;
}

/* The first allowed processor of its core. False for one that is offline, which has no such file. */
static bool first_of_core(const char *root, int processor, const bool *allowed, int *first) {
    /* Old kernels have the second name only (admin-guide/cputopology.rst). */
    static const char *const names[] = {"core_cpus_list", "thread_siblings_list"};
    char path[PATH_BYTES], line[LIST_BYTES];
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) {
        const int length = snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root,
                                    processor, names[i]);
        found = length < (int)sizeof path && read_line(path, "", line);
    }
    const char *list = line;
    int range[2] = {0, 0};
    *first = found ? next_in_list(&list, range) : -1;
    while (*first >= 0 && !allowed[*first]) {
        *first = next_in_list(&list, range);
    }
    return found;
}

/* Marks the processors of the calling thread's affinity mask. One more than the last; 0: not known. */
static int read_allowed(const char *root, bool allowed[SL_CPU_PROCESSORS]) {
    char path[PATH_BYTES], line[LIST_BYTES];
    int range[2] = {0, 0}, most = 0;
    const int length = snprintf(path, sizeof path, "%s/proc/thread-self/status", root);
    const char *list = line;
    if (length >= (int)sizeof path || !read_line(path, "Cpus_allowed_list:", line)) {
        return 0;
    }
    for (int p; (p = next_in_list(&list, range)) >= 0;) {
        allowed[p] = true;
        most = p >= most ? p + 1 : most;
    }
    return most;
}

int sl_cpu_cores(const char *root) {
    bool allowed[SL_CPU_PROCESSORS] = {false};
    const int most = read_allowed(root, allowed);
    int cores = 0;
    for (int p = 0; p < most; p++) {
        int first;
        cores += allowed[p] && first_of_core(root, p, allowed, &first) && first == p;
    }
    return cores;
}

/* ---- which of them are one node
 * ------------------------------------------------------------------------------------ */

enum { MOST_NODES = 1024 /* that kernels are made for */ };

/* Allowed processors of a node's list become those of `index`; how many, -1 where the list says nothing that
 * can be, such as a processor that another node has. */
static int read_node(const char *root, int node, const bool *allowed, sl_cpu_nodes *nodes) {
    char path[PATH_BYTES], line[LIST_BYTES];
    const char *list = line;
    int range[2] = {0, 0}, count = 0;
    const int length = snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node);
    if (length >= (int)sizeof path || !read_line(path, "", line)) {
        return -1;
    }
    for (int p; (p = next_in_list(&list, range)) >= 0;) {
        if (nodes->node_of[p] >= 0) {
            return -1;
        }
        nodes->node_of[p] = (int16_t)(allowed[p] ? nodes->count : -1);
        count += allowed[p];
    }
    return *list == '\n' || *list == '\0' ? count : -1;
}

/* Nodes that are offline are not in the list of nodes, nor are processors that are offline in a node's. */
void sl_cpu_nodes_here(const char *root, sl_cpu_nodes *nodes) {
    char path[PATH_BYTES], line[LIST_BYTES];
    bool allowed[SL_CPU_PROCESSORS] = {false};
    int range[2] = {0, 0};
    const int length = snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    const char *list = line;
    nodes->count = nodes->processors = 0;
    memset(nodes->node_of, -1, sizeof nodes->node_of);
    bool known = length < (int)sizeof path && read_line(path, "", line) && read_allowed(root, allowed) > 0;
    for (int node; known && (node = next_in_list(&list, range)) >= 0;) {
        const int count = node < MOST_NODES ? read_node(root, node, allowed, nodes) : -1;
        known = count >= 0;
        nodes->count += count > 0;
        nodes->processors += count > 0 ? count : 0;
    }
    known = known && (*list == '\n' || *list == '\0');
    nodes->count = known && nodes->count > 1 ? nodes->count : 1;
}

int sl_cpu_node_of_thread(const sl_cpu_nodes *nodes, int thread, int threads) {
    /* The middle of the thread's part of all processors, node after node. */
    const int64_t place = (2 * (int64_t)thread + 1) * nodes->processors / (2 * (int64_t)threads);
    int64_t before = 0;
    for (int node = 0; node + 1 < nodes->count; node++) {
        for (int p = 0; p < SL_CPU_PROCESSORS; p++) {
            before += nodes->node_of[p] == node;
        }
        if (place < before) {
            return node;
        }
    }
    return nodes->count - 1;
}

int sl_cpu_threads(void) {
    const int processors = sl_cpu_count(), cores = sl_cpu_cores("");
    return cores > 0 && cores < processors ? cores : processors;
}
