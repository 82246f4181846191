/* What each shape of kernel gains: its time beside that of the kernel which would do the same work if it were
 * not there, as a device's profile measures them. */
#include "harness.h"
#include "list.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TIMED = 2, REPEATS = 3 };

static const int32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

struct kt_rivals {
    sl_backend *backend, *deterministic;
    uint64_t seed;
    kt_listing table;
    bool *done; /* [table.count] */
    bool any;   /* something was printed */
};

/* A row of the table on some work. */
typedef struct trial {
    int32_t row; /* SL_NONE: no kernel */
    kt_work work;
    bool chosen; /* a plan would take the row for it */
} trial;

static const sl_kernel *kernel_at(const kt_rivals *r, int32_t row) {
    return r->table.rows[row].entry.kernel;
}

/* The backend whose plans take the kernel. */
static sl_backend *backend_of(const kt_rivals *r, const sl_kernel *kernel) {
    return kernel->deterministic ? r->deterministic : r->backend;
}

/* ---- who would do it ---- */

static bool takes(const kt_rivals *r, sl_backend *backend, int32_t row, kt_work work) {
    const kt_listed *listed = &r->table.rows[row];
    kt_case c;
    if (listed->entry.kernel->op != work.kind || (listed->type[0] && listed->entry.type != work.type)) {
        return false;
    }
    work.activation = listed->entry.kernel->activation;
    if (!kt_make_work(&c, &work, NULL)) {
        return false;
    }
    const bool good = kt_choose(backend, listed->entry.kernel, &c) != NULL;
    kt_case_free(&c);
    return good;
}

/* Whether kernels of the row's class take the work with any number of rows: a deterministic plan takes no
 * other class. One of them, `without`, is not there. */
static bool class_everywhere(const kt_rivals *r, int32_t row, int32_t without, kt_work work) {
    const char *numeric_class = kernel_at(r, row)->numeric_class;
    for (int i = 0; i < ROW_COUNTS; i++) {
        bool found = false;
        work.rows = row_counts[i];
        for (int32_t other = 0; other < r->table.count && !found; other++) {
            found = other != without && strcmp(kernel_at(r, other)->numeric_class, numeric_class) == 0 &&
                    takes(r, r->deterministic, other, work);
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

/* The first from `first` on that a plan takes for the work unless asked for others; `without` that row. */
static int32_t taker(const kt_rivals *r, sl_backend *backend, int32_t first, int32_t without,
                     const kt_work *work) {
    const bool deterministic = backend == r->deterministic;
    for (int32_t row = first; row < r->table.count; row++) {
        const sl_kernel *kernel = kernel_at(r, row);
        if (row != without && !kt_is_asked_for(kernel) &&
            (deterministic ? !kernel->cut_dependent : !kernel->deterministic) &&
            takes(r, backend, row, *work) && (!deterministic || class_everywhere(r, row, without, *work))) {
            return row;
        }
    }
    return SL_NONE;
}

/* Which row counts the row takes, or, `chosen`, a plan by it: the fewest and the most. */
static int find_rows(const kt_rivals *r, int32_t row, bool experts, bool chosen, trial *found) {
    sl_backend *backend = backend_of(r, kernel_at(r, row));
    int count = 0;
    for (int i = 0; i < ROW_COUNTS; i++) {
        const kt_work work = {.kind = kernel_at(r, row)->op,
                              .activation = kernel_at(r, row)->activation,
                              .type =
                                  r->table.rows[row].type[0] ? r->table.rows[row].entry.type : SL_QTYPE_F16,
                              .experts = experts,
                              .rows = row_counts[i]};
        if (takes(r, backend, row, work) && (!chosen || taker(r, backend, 0, SL_NONE, &work) == row)) {
            count = count < MOST_TIMED ? count + 1 : count;
            found[count - 1] = (trial){row, work, chosen};
        }
    }
    return count;
}

/* The row of the shape with the type that most models have among those for which a plan takes it. */
static int find_trials(const kt_rivals *r, int32_t first, trial *found) {
    static const sl_qtype usual[] = {SL_QTYPE_Q4_K, SL_QTYPE_Q8_0, SL_QTYPE_F16, SL_QTYPE_COUNT};
    int count = 0;
    for (int pass = 0; pass < 4 && count == 0; pass++) { /* chosen, of experts, taken at all, of experts */
        for (int u = 0; u < (int)(sizeof usual / sizeof *usual) && count == 0; u++) {
            for (int32_t row = first; row < r->table.count && count == 0; row++) {
                const kt_listed *listed = &r->table.rows[row];
                const bool experts = pass % 2 == 1;
                if (experts && sl_qtype_get(listed->entry.type)->block_elements == 1) {
                    continue; /* numbers for so many weights without blocks take longer than all else */
                }
                if (strcmp(listed->shape, r->table.rows[first].shape) == 0 &&
                    (usual[u] == SL_QTYPE_COUNT || usual[u] == listed->entry.type)) {
                    count = find_rows(r, row, experts, pass < 2, found);
                }
            }
        }
    }
    return count;
}

/* ---- timing ---- */

typedef struct timing {
    double seconds;
    sl_cost cost;
    char what[sizeof((kt_case *)0)->name];
} timing;

static bool time_row(const kt_rivals *r, sl_backend *backend, int32_t row, kt_work work, timing *timing) {
    kt_random random = {.state = r->seed};
    const char *declined;
    kt_case c;
    work.activation = kernel_at(r, row)->activation;
    kt_make_work(&c, &work, &random);
    kt_runner *runner = kt_runner_new(backend, kernel_at(r, row), &c, &declined);
    kt_result result = {0};
    bool good = runner && kt_run(runner, KT_WHOLE, &random, &result) && kt_run_op(runner);
    for (int i = 0; i < REPEATS && good; i++) {
        double seconds = 0;
        good = kt_profile_op(runner, &seconds);
        timing->seconds = i == 0 || seconds < timing->seconds ? seconds : timing->seconds;
    }
    const int32_t counts[SL_ROWS_COUNT] = {work.rows, work.rows * c.program.experts_used, 0};
    timing->cost = sl_op_cost(&c.program, &c.program.ops[c.op], counts, c.depth + (work.rows + 1) / 2);
    snprintf(timing->what, sizeof timing->what, "%s", c.name);
    kt_result_free(&result);
    if (runner) {
        kt_runner_free(runner);
    }
    kt_case_free(&c);
    return good;
}

static void print_trial(kt_rivals *r, const trial *t) {
    const sl_kernel *kernel = kernel_at(r, t->row);
    sl_backend *backend = backend_of(r, kernel);
    const int32_t rival = taker(r, backend, kt_is_asked_for(kernel) ? 0 : t->row + 1, t->row, &t->work);
    timing own, other;
    if (!time_row(r, backend, t->row, t->work, &own)) {
        return;
    }
    printf("%s\n    {\"shape\": ", r->any ? "," : "");
    kt_print_json(r->table.rows[t->row].shape);
    printf(", \"kernel\": ");
    kt_print_json(kernel->name);
    printf(", \"work\": ");
    kt_print_json(own.what);
    printf(", \"rows\": %d, \"chosen\": %s, \"seconds\": %.4e, \"bytes\": %.0f, \"operations\": %.0f",
           t->work.rows, t->chosen ? "true" : "false", own.seconds,
           own.cost.weight_bytes + own.cost.value_bytes, own.cost.operations);
    if (rival != SL_NONE && time_row(r, backend, rival, t->work, &other)) {
        printf(", \"rival\": ");
        kt_print_json(kernel_at(r, rival)->name);
        printf(", \"rival_seconds\": %.4e", other.seconds);
    }
    printf("}");
    fflush(stdout);
    r->any = true;
}

void kt_rivals_time(kt_rivals *r, int32_t index) {
    int32_t first = 0;
    while (strcmp(r->table.rows[first].shape, r->table.rows[index].shape) != 0) {
        first++;
    }
    const sl_op_kind kind = kernel_at(r, index)->op;
    if (r->done[first] || (kind != SL_OP_LINEAR && kind != SL_OP_ATTENTION && kind != SL_OP_DELTA_SCAN &&
                           kind != SL_OP_SSM_SCAN)) {
        return; /* of the others there is one kernel for an op */
    }
    r->done[first] = true;
    trial found[MOST_TIMED];
    const int count = find_trials(r, first, found);
    if (count == 0) {
        fprintf(stderr, "%s: takes nothing that is timed here\n", r->table.rows[first].shape);
    }
    for (int i = 0; i < count; i++) {
        print_trial(r, &found[i]);
    }
}

kt_rivals *kt_rivals_new(sl_backend *backend, sl_backend *deterministic, uint64_t seed) {
    kt_rivals *r = kt_alloc(1, sizeof *r);
    *r = (kt_rivals){.backend = backend, .deterministic = deterministic, .seed = seed};
    int32_t count;
    backend->functions->kernels(backend, &count);
    if (kt_listing_read(&r->table)) {
        free(r);
        return NULL;
    }
    if (count != r->table.count) {
        fprintf(stderr, "the backend is not the module whose table was read\n");
        kt_listing_free(&r->table);
        free(r);
        return NULL;
    }
    r->done = kt_alloc((size_t)count, sizeof *r->done);
    printf("{\n  \"device\": ");
    kt_print_json(backend->description);
    printf(",\n  \"kernels\": [");
    return r;
}

void kt_rivals_free(kt_rivals *r) {
    printf("\n  ]\n}\n");
    kt_listing_free(&r->table);
    free(r->done);
    free(r);
}
