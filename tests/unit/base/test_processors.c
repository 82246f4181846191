/* How many processors there are for this process, and what threads cost that have none. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "support/sanitized.h"

#include <ftw.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Many short parts of work with barriers between: the sum of it is the same for any number of threads. */
typedef struct short_parts {
    sl_pool *pool;
    _Atomic unsigned long done;
} short_parts;

enum { PARTS = 50, PIECES = 64 };

static void run_short_parts(void *context, int thread, int threads) {
    short_parts *work = context;
    for (int part = 0; part < PARTS; part++) {
        unsigned long sum = 0;
        for (int piece = PIECES * thread / threads; piece < PIECES * (thread + 1) / threads; piece++) {
            for (volatile int i = 0; i < 200; i++) {
            }
            sum++;
        }
        atomic_fetch_add(&work->done, sum);
        sl_pool_barrier(work->pool);
    }
}

typedef struct times {
    double wall, processor;
} times;

static times times_now(void) {
    struct timespec wall, processor;
    clock_gettime(CLOCK_MONOTONIC, &wall);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &processor);
    return (times){(double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec,
                   (double)processor.tv_sec + 1e-9 * (double)processor.tv_nsec};
}

static times time_short_parts(int threads) {
    enum { RUNS = 500 };
    short_parts work = {0};
    sl_error error;
    assert_int_equal(sl_pool_create(threads, &work.pool, &error), 0);
    const times begin = times_now();
    for (int run = 0; run < RUNS; run++) {
        sl_pool_run(work.pool, run_short_parts, &work);
    }
    const times end = times_now();
    sl_pool_destroy(work.pool);
    assert_int_equal(work.done, (unsigned long)RUNS * PARTS * PIECES);
    return (times){end.wall - begin.wall, end.processor - begin.processor};
}

/* A sanitizer does not slow loops and threads that are woken alike. */
enum { SLOWER = SANITIZED ? 4 : 1 };

static bool cost_little(int threads) {
    const times alone = time_short_parts(1), many = time_short_parts(threads);
    print_message("%d threads: %.3f s, %.3f s of processors; alone %.3f and %.3f\n", threads, many.wall,
                  many.processor, alone.wall, alone.processor);
    return many.processor < SLOWER * (3 * alone.processor + 0.2) &&
           many.wall < SLOWER * (5 * alone.wall + 0.5);
}

/* Threads that cannot all run at once must not take the processors from each other by waiting: the work of
 * one takes many times as long then, and does so each time. Once it may be another program's. */
static void more_threads_than_processors_cost_little(void **state) {
    (void)state;
    const int counts[] = {sl_cpu_count() + 1, 32 * sl_cpu_count()};
    for (int i = 0; i < 2; i++) {
        bool little = false;
        for (int attempt = 0; attempt < 5 && !little; attempt++) {
            little = cost_little(counts[i]);
        }
        assert_true(little);
    }
}

/* A folder that has the system's files at the paths given, each followed by what it says. */
static void write_files(const char *root, const char *const *files) {
    for (; files[0]; files += 2) {
        char path[512];
        snprintf(path, sizeof path, "%s%s", root, files[0]);
        for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
            *slash = '\0';
            mkdir(path, 0700);
            *slash = '/';
        }
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(files[1], file);
        fclose(file);
    }
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static int quota_of(const char *const *files) {
    char root[] = "/tmp/sluice-quota-XXXXXX";
    assert_non_null(mkdtemp(root));
    write_files(root, files);
    const int quota = sl_cpu_quota(root);
    nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return quota;
}

#define CGROUP "/proc/self/cgroup"
#define MOUNTS "/proc/self/mountinfo"
#define MOUNT2 "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

/* What the files say is taken from the kernel's documentation of both versions. */
static void quotas_of_control_groups_are_read(void **state) {
    (void)state;
    const struct {
        int processors;
        const char *files[16];
    } cases[] = {
        {0, {NULL}},
        {0, {CGROUP, "0::/\n", MOUNTS, MOUNT2}},
        {0, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/cpu.max", "max 100000\n"}},
        {2, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/cpu.max", "200000 100000\n"}},
        {2, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/cpu.max", "150000 100000\n"}},
        {1, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/cpu.max", "1000 100000\n"}},
        /* The group above has less. */
        {3,
         {CGROUP, "0::/a/b\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n",
          "/sys/fs/cgroup/a/cpu.max", "300000 100000\n"}},
        /* A container that has its own group as the top. */
        {4, {CGROUP, "0::/\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/cpu.max", "400000 100000\n"}},
        /* Another's group is not ours. */
        {0, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/b/cpu.max", "100000 100000\n"}},
        {3,
         {CGROUP, "4:cpu,cpuacct:/c\n1:cpuset:/d\n", MOUNTS,
          "40 31 0:35 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
          "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "250000\n",
          "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n"}},
        {0,
         {CGROUP, "4:cpu,cpuacct:/c\n", MOUNTS,
          "40 31 0:35 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
          "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n",
          "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n"}},
        /* A container's group, mounted as the top and named as outside. */
        {2,
         {CGROUP, "4:cpu:/docker/1f\n0::/docker/1f\n", MOUNTS,
          "40 31 0:35 /docker/1f /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
          "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
          "25000\n"}},
        {0, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/cpu.max", "many 100000\n"}},
        {0, {CGROUP, "0::/a\n", MOUNTS, MOUNT2, "/sys/fs/cgroup/a/cpu.max", "100000 0\n"}},
        {0, {CGROUP, "::\n:", MOUNTS, " - \n - cgroup2\n1 2 - cgroup2 a b\n"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int quota = quota_of(cases[i].files);
        if (quota != cases[i].processors) {
            fail_msg("case %zu: %d processors, not %d", i, quota, cases[i].processors);
        }
    }
}

static void processors_are_those_of_the_affinity_mask(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int first = 0;
    while (!CPU_ISSET(first, &before)) {
        first++;
    }
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_in_range(sl_cpu_count(), 1, CPU_COUNT(&before));
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(sl_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* ---- cores ---- */

#define STATUS "/proc/thread-self/status"
#define CPU(number) "/sys/devices/system/cpu/cpu" #number "/topology/core_cpus_list"
#define OLD(number) "/sys/devices/system/cpu/cpu" #number "/topology/thread_siblings_list"

static int cores_of(const char *const *files) {
    char root[] = "/tmp/sluice-cores-XXXXXX";
    assert_non_null(mkdtemp(root));
    write_files(root, files);
    const int cores = sl_cpu_cores(root);
    nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return cores;
}

/* What the files say is taken from the kernel's documentation (admin-guide/cputopology.rst) and
 * proc_pid_status(5). */
static void hyper_threads_of_a_core_count_once(void **state) {
    (void)state;
    const struct {
        int cores;
        const char *files[20];
    } cases[] = {
        /* Not known. */
        {0, {NULL}},
        {0, {STATUS, "Name:\tx\nCpus_allowed_list:\t0-1\n"}},
        {0, {STATUS, "Cpus_allowed:\t3\n", CPU(0), "0\n", CPU(1), "1\n"}},
        {0, {STATUS, "Cpus_allowed_list:\t\n", CPU(0), "0\n"}},
        {0, {STATUS, "Cpus_allowed_list:\t3-0\n", CPU(0), "0\n"}},
        {0, {STATUS, "Cpus_allowed_list:\t0-99999999999\n", CPU(0), "0\n"}},
        /* Without hyper-threads. */
        {2, {STATUS, "Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n", CPU(0), "0\n", CPU(1), "1\n"}},
        /* Two on each core: side by side, or the second ones behind all first ones. */
        {2,
         {STATUS, "Cpus_allowed_list:\t0-3\n", CPU(0), "0-1\n", CPU(1), "0-1\n", CPU(2), "2-3\n", CPU(3),
          "2-3\n"}},
        {2,
         {STATUS, "Cpus_allowed_list:\t0-3\n", CPU(0), "0,2\n", CPU(1), "1,3\n", CPU(2), "0,2\n", CPU(3),
          "1,3\n"}},
        /* Four on a core; the old name. */
        {1,
         {STATUS, "Cpus_allowed_list:\t0-3\n", OLD(0), "0-3\n", OLD(1), "0-3\n", OLD(2), "0-3\n", OLD(3),
          "0-3\n"}},
        /* The new one says more than the old one, which has dies on some machines. */
        {2,
         {STATUS, "Cpus_allowed_list:\t0-1\n", CPU(0), "0\n", OLD(0), "0-1\n", CPU(1), "1\n", OLD(1),
          "0-1\n"}},
        /* The mask has one of each core, be it the second. */
        {2,
         {STATUS, "Cpus_allowed_list:\t1,3\n", CPU(0), "0-1\n", CPU(1), "0-1\n", CPU(2), "2-3\n", CPU(3),
          "2-3\n"}},
        /* One core whole, of another the second. */
        {2,
         {STATUS, "Cpus_allowed_list:\t0-1,3\n", CPU(0), "0-1\n", CPU(1), "0-1\n", CPU(2), "2-3\n", CPU(3),
          "2-3\n"}},
        /* Offline processors are in the mask, but have no folder and are in no core's list. */
        {2, {STATUS, "Cpus_allowed_list:\t0-127\n", CPU(0), "0\n", CPU(3), "3\n"}},
        {1, {STATUS, "Cpus_allowed_list:\t0-1\n", CPU(1), "1\n"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int cores = cores_of(cases[i].files);
        if (cores != cases[i].cores) {
            fail_msg("case %zu: %d cores, not %d", i, cores, cases[i].cores);
        }
    }
    assert_in_range(sl_cpu_threads(), 1, sl_cpu_count());
}

/* ---- nodes of memory ---- */

#define ONLINE "/sys/devices/system/node/online"
#define NODE(number) "/sys/devices/system/node/node" #number "/cpulist"

static int nodes_of(const char *const *files, sl_cpu_nodes *nodes) {
    char root[] = "/tmp/sluice-nodes-XXXXXX";
    assert_non_null(mkdtemp(root));
    write_files(root, files);
    sl_cpu_nodes_here(root, nodes);
    nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return nodes->count;
}

/* The nodes of processors 0, 1, ... as digits, '-' for none. */
static const char *text_of_nodes(const sl_cpu_nodes *nodes) {
    static char text[17];
    for (int p = 0; p < 16; p++) {
        text[p] = nodes->node_of[p] < 0 ? '-' : (char)('0' + nodes->node_of[p]);
    }
    return text;
}

/* What the files say is taken from the kernel's documentation (ABI/stable/sysfs-devices-node). */
static void nodes_of_memory_are_read(void **state) {
    (void)state;
    const struct {
        int count;
        const char *node_of; /* NULL: not known, or one */
        const char *files[12];
    } cases[] = {
        /* Not known. */
        {1, NULL, {NULL}},
        {1, NULL, {STATUS, "Cpus_allowed_list:\t0-7\n"}},
        {1, NULL, {ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
        {1, NULL, {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0-3\n"}},
        /* One. */
        {1, NULL, {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0\n", NODE(0), "0-7\n"}},
        /* Two of four; numbered in turns, as some machines do. */
        {2,
         "00001111--------",
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
        {2,
         "01010101--------",
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0,2,4,6\n", NODE(1), "1,3,5,7\n"}},
        /* Uneven, and hyper-threads behind all cores. */
        {2,
         "0111101111------",
         {STATUS, "Cpus_allowed_list:\t0-9\n", ONLINE, "0-1\n", NODE(0), "0,5\n", NODE(1), "1-4,6-9\n"}},
        /* A container's set leaves a node out, or some of one. */
        {1, NULL, {STATUS, "Cpus_allowed_list:\t4-7\n", ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
        {2,
         "--0011----------",
         {STATUS, "Cpus_allowed_list:\t2-5\n", ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
        {2,
         "0-------1-------",
         {STATUS, "Cpus_allowed_list:\t0,8\n", ONLINE, "0-2\n", NODE(0), "0-3\n", NODE(1), "4-7\n", NODE(2),
          "8-11\n"}},
        /* A node that is offline, and one of memory alone. */
        {2,
         "0000----1111----",
         {STATUS, "Cpus_allowed_list:\t0-15\n", ONLINE, "0,2\n", NODE(0), "0-3\n", NODE(1), "4-7\n", NODE(2),
          "8-11\n"}},
        {2,
         "00001111--------",
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-2\n", NODE(0), "0-3\n", NODE(1), "\n", NODE(2),
          "4-7\n"}},
        /* Processors that are offline are in the mask and in no node. */
        {2,
         "00-11-----------",
         {STATUS, "Cpus_allowed_list:\t0-127\n", ONLINE, "0-1\n", NODE(0), "0-1\n", NODE(1), "3-4\n"}},
        /* What cannot be. */
        {1, NULL, {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0-4\n", NODE(1), "4-7\n"}},
        {1,
         NULL,
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0-3 or so\n", NODE(1), "4-7\n"}},
        {1,
         NULL,
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1),
          "4-99999999999\n"}},
        {1, NULL, {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1), "7-4\n"}},
        {1,
         NULL,
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "both\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
        {1,
         NULL,
         {STATUS, "Cpus_allowed_list:\t0-7\n", ONLINE, "0-9999\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
        {1, NULL, {STATUS, "Cpus_allowed_list:\tall\n", ONLINE, "0-1\n", NODE(0), "0-3\n", NODE(1), "4-7\n"}},
    };
    static sl_cpu_nodes nodes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int count = nodes_of(cases[i].files, &nodes);
        if (count != cases[i].count) {
            fail_msg("case %zu: %d nodes, not %d", i, count, cases[i].count);
        }
        if (cases[i].node_of && strcmp(text_of_nodes(&nodes), cases[i].node_of) != 0) {
            fail_msg("case %zu: %s, not %s", i, text_of_nodes(&nodes), cases[i].node_of);
        }
    }
    sl_cpu_nodes_here("", &nodes);
    assert_true(nodes.count >= 1);
}

/* So many processors of each node, in turns where there is more than one left. */
static void make_nodes(sl_cpu_nodes *nodes, const int *processors, int count) {
    memset(nodes, 0, sizeof *nodes);
    memset(nodes->node_of, -1, sizeof nodes->node_of);
    nodes->count = count;
    for (int turn = 0; turn < 64; turn++) {
        for (int node = 0; node < count; node++) {
            if (turn < processors[node]) {
                nodes->node_of[nodes->processors++] = (int16_t)node;
            }
        }
    }
}

static void threads_are_spread_over_nodes(void **state) {
    (void)state;
    const struct {
        int processors[4], threads, of_node[4];
    } cases[] = {
        {{4, 4}, 8, {4, 4}},       {{4, 4}, 2, {1, 1}},
        {{4, 4}, 16, {8, 8}},      {{4, 4}, 6, {3, 3}},
        {{2, 6}, 8, {2, 6}},       {{2, 6}, 4, {1, 3}},
        {{1, 7}, 8, {1, 7}},       {{2, 2, 2, 2}, 4, {1, 1, 1, 1}},
        {{64, 64}, 128, {64, 64}}, {{2, 4, 8}, 7, {1, 2, 4}},
    };
    static sl_cpu_nodes nodes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int of_node[4] = {0}, count = 0, before = 0;
        while (count < 4 && cases[i].processors[count]) {
            count++;
        }
        make_nodes(&nodes, cases[i].processors, count);
        for (int thread = 0; thread < cases[i].threads; thread++) {
            const int node = sl_cpu_node_of_thread(&nodes, thread, cases[i].threads);
            assert_in_range(node, before, count - 1);
            before = node;
            of_node[node]++;
        }
        assert_memory_equal(of_node, cases[i].of_node, sizeof of_node);
    }
    /* Of any number each node has its part, and the rest of a division at most. */
    for (int a = 1; a < 12; a++) {
        for (int b = 1; b < 12; b++) {
            make_nodes(&nodes, (const int[]){a, b}, 2);
            for (int threads = 1; threads < 30; threads++) {
                int first = 0;
                for (int thread = 0; thread < threads; thread++) {
                    first += sl_cpu_node_of_thread(&nodes, thread, threads) == 0;
                }
                assert_true(abs(first * (a + b) - threads * a) < a + b);
            }
        }
    }
}

typedef struct bound {
    sl_pool *pool;
    cpu_set_t sets[4];
} bound;

static void read_sets(void *context, int thread, int threads) {
    bound *b = context;
    (void)threads;
    sched_getaffinity(0, sizeof b->sets[thread], &b->sets[thread]);
    sl_pool_barrier(b->pool);
}

/* Two nodes are made of this machine's processors. */
static void threads_stay_on_their_nodes(void **state) {
    (void)state;
    static sl_cpu_nodes nodes;
    cpu_set_t before, after, parts[2];
    bound b = {0};
    sl_error error;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2) {
        print_message("skipped: one processor is no two nodes\n");
        skip();
    }
    CPU_ZERO(&parts[0]);
    CPU_ZERO(&parts[1]);
    memset(nodes.node_of, -1, sizeof nodes.node_of);
    nodes.count = 2;
    for (int p = 0; p < CPU_SETSIZE; p++) {
        if (CPU_ISSET(p, &before)) {
            const int node = nodes.processors++ >= CPU_COUNT(&before) / 2;
            nodes.node_of[p] = (int16_t)node;
            CPU_SET(p, &parts[node]);
        }
    }
    assert_int_equal(sl_pool_create(4, &b.pool, &error), 0);
    assert_int_equal(sl_pool_bind(b.pool, &nodes, &error), 0);
    sl_pool_run(b.pool, read_sets, &b);
    sl_pool_destroy(b.pool);
    for (int thread = 0; thread < 4; thread++) {
        assert_true(CPU_EQUAL(&b.sets[thread], &parts[sl_cpu_node_of_thread(&nodes, thread, 4)]));
    }
    assert_true(CPU_EQUAL(&b.sets[0], &parts[0]));
    assert_true(CPU_EQUAL(&b.sets[3], &parts[1]));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_threads_than_processors_cost_little),
        cmocka_unit_test(quotas_of_control_groups_are_read),
        cmocka_unit_test(processors_are_those_of_the_affinity_mask),
        cmocka_unit_test(hyper_threads_of_a_core_count_once),
        cmocka_unit_test(nodes_of_memory_are_read),
        cmocka_unit_test(threads_are_spread_over_nodes),
        cmocka_unit_test(threads_stay_on_their_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
