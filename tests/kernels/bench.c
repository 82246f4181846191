/* How long kernels take on realistic shapes, from submitting to the end of waiting, and how near that is to
 * what the device can do at most. */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* "63 %" of the time that the device's rates allow; "-" where they are not known. */
static void print_limit(const sl_rates *rates, const kt_case *c, const sl_cost *cost, double seconds,
                        char limit[16]) {
    const sl_op *op = &c->program.ops[c->op];
    sl_arithmetic arithmetic = SL_WITH_F32;
    const double products = sl_op_products(&c->program, op, &arithmetic) ? cost->operations : 0;
    const double least = sl_rates_least(rates, cost->weight_bytes + cost->value_bytes, arithmetic, products);
    snprintf(limit, 16, least > 0 ? "%.0f %%" : "-", 100 * least / seconds);
}

/* Those of the kernel's own tier. Again for each case: where others use the machine they move within minutes.
 */
static bool measure_rates(sl_backend *backend, const sl_kernel *kernel, kt_runner *runner, sl_rates *rates) {
    const sl_isa allowed = backend->options.isa;
    const int tier = sl_isa_parse(strrchr(kernel->name, '/') + 1);
    backend->options.isa = tier >= 0 ? (sl_isa)tier : allowed;
    const bool good = kt_rates(runner, rates);
    backend->options.isa = allowed;
    return good;
}

static void bench_case(sl_backend *backend, const sl_kernel *kernel, const kt_case *c, int32_t rows,
                       kt_random *random) {
    const char *declined;
    kt_runner *runner = kt_runner_new(backend, kernel, c, &declined);
    kt_result result = {0};
    char limit[16];
    if (!runner) {
        return;
    }
    sl_rates rates;
    if (measure_rates(backend, kernel, runner, &rates) && kt_run(runner, KT_WHOLE, random, &result)) {
        const int32_t counts[SL_ROWS_COUNT] = {rows, rows * c->program.experts_used, 0};
        const sl_cost cost =
            sl_step_cost(&c->program, &c->program.ops[c->op], counts, (rows + 1) / 2, c->span_count);
        double best = 1e30;
        const double start = now();
        for (int i = 0; i < 200 && (i < 3 || now() - start < 0.5); i++) {
            const double before = now();
            kt_run_op(runner);
            const double seconds = now() - before;
            best = seconds < best ? seconds : best;
        }
        print_limit(&rates, c, &cost, best, limit);
        printf("%-32s %-24s %5d rows %10.1f us %8.2f GB/s %9.2f GOPS %7s\n", kernel->name, c->name, rows,
               best * 1e6, (cost.weight_bytes + cost.value_bytes) / best * 1e-9,
               cost.operations / best * 1e-9, limit);
        fflush(stdout);
    }
    kt_result_free(&result);
    kt_runner_free(runner);
}

/* Makes the case, if there is one and the kernel takes its shape. */
static bool make_bench(sl_backend *backend, const sl_kernel *kernel, int32_t variant, int32_t rows,
                       uint64_t seed, kt_case *c) {
    const bool linear = kernel->op == SL_OP_LINEAR; /* its numbers take long: not for nothing */
    kt_random random = {.state = seed};
    if (!kt_make_bench(c, kernel->op, variant, rows, kernel->activation, linear ? NULL : &random)) {
        return false;
    }
    const bool takes = kt_choose(backend, kernel, c);
    if (takes && !linear) {
        return true;
    }
    kt_case_free(c);
    return takes && kt_make_bench(c, kernel->op, variant, rows, kernel->activation, &random);
}

void kt_bench(sl_backend *backend, const sl_kernel *kernel, uint64_t seed) {
    static const int32_t rows[] = {1, 8, 64, 512, 2048};
    for (int32_t variant = 0; variant <= SL_QTYPE_COUNT; variant++) {
        for (int i = 0; i < 5; i++) {
            kt_case c;
            if (make_bench(backend, kernel, variant, rows[i], seed, &c)) {
                kt_random random = {.state = seed};
                bench_case(backend, kernel, &c, rows[i], &random);
                kt_case_free(&c);
            }
        }
    }
}
