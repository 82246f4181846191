/* Cases of one op under test, and what runs them: a deployment made by hand, with guard bytes around every
 * value and with the kernel under test forced, on any backend. */
#ifndef SL_TESTS_KERNELS_HARNESS_H
#define SL_TESTS_KERNELS_HARNESS_H

#include "backend/backend.h"

#include <stdio.h>

/* ---- random numbers: splitmix64 ---- */

typedef struct kt_random {
    uint64_t state;
    bool only_shapes; /* of cases: their floats are zeros */
} kt_random;

uint64_t kt_next(kt_random *random);
int32_t kt_below(kt_random *random, int32_t count);
/* Uniform in [-scale, scale]. */
float kt_uniform(kt_random *random, float scale);
/* Bell-shaped with standard deviation `scale`. */
float kt_normal(kt_random *random, float scale);

/* ---- a case ---- */

enum { KT_SPANS = 96, KT_VALUES = 16 };

/* A time line of rows: span s is a sequence whose rows come one after the other from an empty cache; a run
 * cuts the time line into steps. inputs[v] holds value v's rows on the whole time line (span after span), or
 * NULL for a value that an op writes. */
typedef struct kt_case {
    char name[160];
    sl_program program;
    int32_t op;     /* the one under test */
    int32_t copies; /* to time: as many ops from that one on, with weights of their own; 0: one */
    int32_t span_count, span_rows[KT_SPANS];
    int32_t rows;
    int32_t depth;     /* to time: keys in front of each span's rows, whatever they are */
    int32_t step_rows; /* most rows of a step; 0: all */
    int32_t keep,
        window;     /* COMPACT, of one span: its last `window` rows are a step that compacts; keep 0: no */
    int32_t states; /* that a step leaves behind the last rows of each span, at most; 0: one */
    bool tight;     /* the bucket has no rows but a step's: kernels for one row are for such */
    int32_t position_base;
    int32_t *tokens;         /* [rows] */
    sl_step_output *outputs; /* [output_count], rows on the time line, rising */
    int32_t output_count;
    sl_adjustment *adjustments; /* of all outputs */
    int32_t adjustment_count;
    uint32_t *masks; /* [mask_count][sl_mask_words(vocabulary)] */
    int32_t mask_count;
    sl_qtype cache_type;
    void *inputs[KT_VALUES];
    int32_t ids_value, schedule_value; /* schedule made from ids, which are an input; SL_NONE: none */
    bool last_tokens;                  /* rows take the token sampled last, set by the test to 7 * slot + 3 */
    double tolerance;                  /* of the plain kernel against the double formula */
} kt_case;

void kt_case_free(kt_case *c);
void *kt_alloc(size_t count, size_t size);

/* Of the backend that cases are made for: sl_backend.column_multiple. */
void kt_set_column_multiple(int32_t multiple);
/* Whether cases of values that are no numbers are made without them: a GPU's kernels multiply what a row does
 * not see by zero, which such a value survives. */
void kt_set_without_nans(bool without);

/* Cases of one kind of op, by index; false past the end. `activation`: the format a LINEAR reads. `random`
 * NULL: a LINEAR's case in shape only, to ask who takes it; its weights and inputs hold nothing. */
bool kt_make_case(kt_case *c, sl_op_kind kind, int32_t index, sl_value_type activation, kt_random *random);
/* What to time. */
typedef struct kt_work {
    sl_op_kind kind;
    sl_value_type activation; /* LINEAR: the format of x */
    sl_qtype type;            /* LINEAR: of the weights; ATTENTION: of the cache */
    bool experts;             /* LINEAR: of experts */
    int32_t rows;
} kt_work;

/* A layer of an 8B model, experts those of a 30B-A3B; weights and keys are more than a device's cache holds.
 * The bucket has no rows but these. `random` NULL: in shape only. False when the kind is not timed. */
bool kt_make_work(kt_case *c, const kt_work *work, kt_random *random);
/* A realistic shape with that many rows, for timing; false when the kind is not timed or `variant` past the
 * end. */
bool kt_make_bench(kt_case *c, sl_op_kind kind, int32_t variant, int32_t rows, sl_value_type activation,
                   kt_random *random);

/* ---- runs ---- */

typedef enum kt_cut { KT_WHOLE, KT_ROW_BY_ROW, KT_CHUNKS } kt_cut;

/* Contents after a run. */
typedef struct kt_result {
    void *values[KT_VALUES]; /* whole time line, without the fixed part */
    int32_t *schedule;       /* fixed part of the schedule value, of the last step */
    unsigned char *cache, *state;
    /* [span_count][states of the case][a slot's bytes]: behind the last rows of each span, the very last
     * first; and whether a step has left each. */
    unsigned char *row_states;
    bool *has_state;
    unsigned char *kept; /* COMPACT: pages of its group that it wrote, one behind the other */
    uint64_t kept_bytes;
    uint64_t cache_bytes, state_bytes;
    int32_t last_tokens[KT_SPANS];
} kt_result;

void kt_result_free(kt_result *result);

typedef struct kt_runner kt_runner;

/* Deploys `c` on a backend with `kernel` for the op under test (NULL: any) and, for the rest, the last kernel
 * that does not decline. NULL with *declined set when `kernel` declines; NULL with a printed message on
 * failure. */
kt_runner *kt_runner_new(sl_backend *backend, const sl_kernel *kernel, const kt_case *c,
                         const char **declined);
void kt_runner_free(kt_runner *runner);
/* The kernel that would run the op under test; NULL when there is none. Puts nothing on the device. */
const sl_kernel *kt_choose(sl_backend *backend, const sl_kernel *kernel, const kt_case *c);
/* The kernel that runs the op under test. */
const sl_kernel *kt_runner_kernel(const kt_runner *runner);
/* Runs the time line; KT_WHOLE in one step, or in as few as step_rows allows. False with a printed message on
 * failure, which includes damaged guard bytes. */
bool kt_run(kt_runner *runner, kt_cut cut, kt_random *random, kt_result *result);
/* Runs the op under test alone, on what the last kt_run left; for timing. */
bool kt_run_op(kt_runner *runner);
/* What the device can do at most. */
bool kt_rates(kt_runner *runner, sl_rates *rates);
/* Seconds of the op under test, as a device's profile measures it: the mean of its copies, one behind the
 * other. */
bool kt_profile_op(kt_runner *runner, double *seconds);

/* ---- timing ---- */

/* Prints how long the kernel takes on realistic shapes, a line for each. */
void kt_bench(sl_backend *backend, const sl_kernel *kernel, uint64_t seed);

typedef struct kt_rivals kt_rivals;

/* Begins an object of JSON on standard output, and ends it; a device, and the same with deterministic plans.
 * NULL with a printed message where the table cannot be read. */
kt_rivals *kt_rivals_new(sl_backend *backend, sl_backend *deterministic, uint64_t seed);
void kt_rivals_free(kt_rivals *rivals);
/* Times the shape of the kernel at `index` of the registry, unless that was done: at the fewest and at the
 * most rows for which a plan would take it, each beside what a plan would take without it. */
void kt_rivals_time(kt_rivals *rivals, int32_t index);

/* ---- the table ---- */

/* Prints the CUDA module's table of kernels as Markdown or JSON; needs no GPU. An exit status: 77 without the
 * module, 1 when a kernel does not say what it is for. */
int kt_list(bool json);

/* ---- the formulas, in double ---- */

/* Compares what a run gave with the op's definition, computed anew from the inputs. Largest |difference| over
 * the root mean square; INFINITY for a wrong integer. Negative: the kind has no formula. */
double kt_reference_error(const kt_case *c, const kt_result *result);

#endif
