/* sluice bench --peak: what the device can do at most, tier by tier of the CPU, with one thread and with all.
 */
#include "bench.h"

#include <string.h>

static const char *const TIERS[] = {"plain", "avx2", "avxvnni", "avx512", "amx"};
enum { TIER_COUNT = sizeof TIERS / sizeof *TIERS };

static void print_peak(bench *b, const sluice_rates *r, const char *tier) {
    char backend[32];
    backend_name(b, backend);
    if (b->first) {
        printf("| %-8s | %-6s | %7s | %9s | %11s | %10s | %9s |\n", "backend", "tier", "threads", "int8 TOPS",
               "BF16 TFLOPS", "f32 TFLOPS", "read GB/s");
        printf("| -------- | ------ | ------: | --------: | ----------: | ---------: | --------: |\n");
    }
    const double rates[] = {r->int8_operations * 1e-12, r->bf16_operations * 1e-12, r->f32_operations * 1e-12,
                            r->read_bytes * 1e-9};
    static const int widths[] = {9, 11, 10, 9};
    printf("| %-8s | %-6s | %7d |", backend, tier, r->threads);
    for (int i = 0; i < 4; i++) {
        char rate[32] = "-"; /* not known */
        if (rates[i] > 0) {
            snprintf(rate, sizeof rate, i == 3 ? "%.1f" : "%.3f", rates[i]);
        }
        printf(" %*s |", widths[i], rate);
    }
    printf("\n");
    b->first = false;
    fflush(stdout);
}

static json_t *make_peak(const bench *b, const sluice_rates *r, const char *tier) {
    char backend[32];
    const char *device = sluice_engine_device(b->session.engine);
    backend_name(b, backend);
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:i, s:s, s:s, s:f, s:f, s:f, s:f}", "build_commit",
                     BUILD_COMMIT, "build_number", BUILD_NUMBER, "cpu_info", b->processor, "backends",
                     backend, "device_info", device, "n_threads", r->threads, "isa", tier, "version",
                     sluice_version(), "int8_operations_per_second", r->int8_operations,
                     "bf16_operations_per_second", r->bf16_operations, "f32_operations_per_second",
                     r->f32_operations, "read_bytes_per_second", r->read_bytes);
}

/* A tier that this machine does not have is left out, unless it was asked for. */
static int measure_tier(bench *b, const char *tier, int32_t threads, bool *gpu) {
    sluice_error error;
    sluice_engine_options options;
    sluice_rates rates = {.size = sizeof rates};
    engine_options(&b->one, 1, &options);
    options.threads = threads;
    options.isa = tier;
    const int code = sluice_engine_create(b->session.model, &options, &b->session.engine, &error);
    if (code) {
        return code == SLUICE_ERR_UNSUPPORTED && !b->one.isa ? DONE : fail_with(&error);
    }
    *gpu = strncmp(sluice_engine_device(b->session.engine), "cpu", 3) != 0;
    int result = sluice_engine_measure_rates(b->session.engine, &rates, &error) ? fail_with(&error) : DONE;
    if (result == DONE && strcmp(b->one.output, "md") == 0) {
        print_peak(b, &rates, *gpu ? "" : tier);
    } else if (result == DONE) {
        result = print_row(b, make_peak(b, &rates, *gpu ? "" : tier));
    }
    sluice_engine_destroy(b->session.engine);
    b->session.engine = NULL;
    return result;
}

int measure_peaks(bench *b) {
    const settings *s = &b->one;
    const number_list usual = {{1, 0}, processors() > 1 ? 2 : 1};
    const number_list *threads = is_given(s, "-t") ? &s->thread_counts : &usual;
    int code = open_model(s, &b->session);
    bool gpu = false;
    for (int t = 0; t < threads->count && code == DONE && !gpu; t++) {
        for (int i = 0; i < TIER_COUNT && code == DONE && !gpu; i++) {
            code = !s->isa || strcmp(TIERS[i], s->isa) == 0
                       ? measure_tier(b, TIERS[i], threads->items[t], &gpu)
                       : DONE;
            code = code == DONE && interrupted() ? fail("cancelled") : code;
        }
    }
    close_session(&b->session);
    b->session = (session){0};
    return code;
}
