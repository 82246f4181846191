/* Estimates of a step's time, of which each op takes what its bytes or its products take, whichever is
 * longer.
 *
 * What is brought whole comes while ops compute, so the longer of the two counts. Experts that are missing in
 * their slots are waited for. Sections of a device behind a bus begin and end with a wait, and values at
 * borders cross the bus. Launches, barriers and what kernels leave of a device's peak are not counted. */
#include "plan/estimate.h"

#include "plan/build.h"

#include <math.h>

/* Of what was not measured. A device behind a bus is taken for a small one at 16 lanes of the third
 * generation; one that was measured in part computes in proportion to its memory. */
static const double ASSUMED_READ = 500e9, ASSUMED_BUS = 12e9, ASSUMED_BORDER = 20e-6,
                    ASSUMED_HOST_READ = 40e9, OPERATIONS_PER_BYTE = 100, HOST_OPERATIONS_PER_BYTE = 20;

/* How often chosen experts are in slots where nobody counted their uses: a fifth of the experts has four
 * fifths of the uses, a fifth of these has four fifths of those, and so on. Slots are taken to hold the most
 * used ones. */
static const double SKEWED_SHARE = 0.8, SKEWED_EXPERTS = 0.2;

static unsigned assume(double value, double *speed, unsigned which) {
    const bool unknown = !(*speed > 0);
    *speed = unknown ? value : *speed;
    return unknown ? which : 0;
}

unsigned sl_speeds_assume(bool is_host, sl_speeds *speeds) {
    sl_rates *rates = &speeds->rates;
    unsigned assumed =
        assume(is_host ? ASSUMED_HOST_READ : ASSUMED_READ, &rates->read_bytes, SL_ASSUMED_MEMORY);
    if (!(sl_rates_of(rates, SL_WITH_BF16) > 0)) { /* as what else is not known is computed */
        const double each = is_host ? HOST_OPERATIONS_PER_BYTE : OPERATIONS_PER_BYTE;
        assumed |= assume(rates->read_bytes * each, &rates->operations[SL_WITH_BF16], SL_ASSUMED_PRODUCTS);
    }
    if (!is_host) {
        assumed |= assume(ASSUMED_BUS, &speeds->bus_bytes, SL_ASSUMED_BUS);
        assumed |= assume(ASSUMED_BORDER, &speeds->border_seconds, SL_ASSUMED_BORDER);
    }
    return assumed;
}

/* Of chosen experts, those that are in slots. */
static double hit_share(const sl_plan *plan) {
    const sl_deployment *deployment = &plan->deployment;
    const double slots = (double)deployment->expert_slots / deployment->program->experts;
    return deployment->first_experts ? sl_plan_first_share(plan)
           : slots < 1               ? pow(slots, log(SKEWED_SHARE) / log(SKEWED_EXPERTS))
                                     : 1;
}

/* Of a layer's experts, those that a step of so many rows waits for. */
static double missing_experts(const sl_plan *plan, int32_t rows) {
    const sl_program *program = plan->deployment.program;
    if (sl_fetch_way_of(plan, rows) == SL_FETCH_TO_SLOTS) {
        return (double)rows * program->experts_used * (1 - hit_share(plan));
    }
    const double chosen = sl_experts_chosen(program, rows);
    return chosen - fmin(chosen * hit_share(plan), plan->deployment.expert_slots);
}

/* Bytes over the bus for a step of so many rows, of all sets: those that come while ops compute and those
 * that are waited for. */
static void add_fetches(const sl_plan *plan, int32_t rows, double *streamed, double *awaited) {
    const sl_deployment *deployment = &plan->deployment;
    for (int32_t s = 0; s < deployment->fetch_set_count; s++) {
        const sl_fetch_set *set = &deployment->fetch_sets[s];
        const double bytes = (double)set->bytes;
        if (set->experts == 0 || sl_fetch_way_of(plan, rows) == SL_FETCH_ALL) {
            *streamed += bytes;
        } else {
            *awaited += bytes / set->experts * missing_experts(plan, rows);
        }
    }
}

/* Of one device, without its borders. */
static double device_seconds(const sl_plan *plan, const sl_speeds *speeds, int32_t rows, int32_t keys) {
    const sl_program *program = plan->deployment.program;
    const int32_t used = program->experts_used > 0 ? program->experts_used : 1;
    const int32_t counts[SL_ROWS_COUNT] = {
        [SL_ROWS_STEP] = rows, [SL_ROWS_EXPERT] = rows * used, [SL_ROWS_OUTPUT] = 1};
    double busy = 0, streamed = 0, awaited = 0;
    for (int32_t i = 0; i < program->op_count - program->draft_ops; i++) {
        const sl_op *op = &program->ops[i];
        const sl_cost cost = sl_step_cost(program, op, counts, keys, 1);
        sl_arithmetic arithmetic = SL_WITH_F32;
        const double products = sl_op_products(program, op, &arithmetic) ? cost.operations : 0;
        busy += sl_rates_least(&speeds->rates, cost.weight_bytes + cost.value_bytes, arithmetic, products);
    }
    add_fetches(plan, rows, &streamed, &awaited);
    if (!(speeds->bus_bytes > 0)) {
        return busy;
    }
    return fmax(busy, streamed / speeds->bus_bytes) + awaited / speeds->bus_bytes;
}

/* Waits at sections and values that cross the bus, of a plan of several devices. */
static double border_seconds(const sl_plan *plan, const sl_speeds *speeds, int32_t rows) {
    const sl_partition *partition = &plan->partition;
    double seconds = 0;
    for (int32_t i = 0; i < partition->section_count; i++) {
        seconds += speeds[partition->sections[i].part].border_seconds;
    }
    for (int32_t i = 0; i < partition->border_count; i++) {
        const sl_border *border = &partition->borders[i];
        const sl_value *value = &plan->deployment.program->values[border->value];
        const double bytes = (double)sl_value_row_bytes(value->type, value->width) * rows;
        const int32_t ends[] = {border->from, border->part};
        for (int end = 0; end < 2; end++) {
            const double bus = speeds[ends[end]].bus_bytes;
            seconds += bus > 0 ? bytes / bus : 0;
        }
    }
    return seconds;
}

/* `follows`: others like it are in front of it and behind it. */
static double step_seconds(const sl_plan *plan, const sl_speeds *speeds, int32_t rows, bool follows) {
    const int32_t keys = rows > 1 ? rows / 2 : SL_TYPICAL_PROMPT;
    double sum = 0, most = 0;
    if (plan->segment_count == 0) {
        return device_seconds(plan, speeds, rows, keys) + speeds->border_seconds;
    }
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const double seconds = device_seconds(plan->segments[s].plan, &speeds[s], rows, keys);
        sum += seconds;
        most = fmax(most, seconds);
    }
    return (follows && plan->backend->stages > 1 ? most : sum) + border_seconds(plan, speeds, rows);
}

void sl_plan_estimate(const sl_plan *plan, const sl_speeds *speeds, sl_estimate *estimate) {
    const int32_t chunk = plan->options.chunk;
    const int32_t rows = chunk < SL_TYPICAL_PROMPT ? chunk : SL_TYPICAL_PROMPT;
    estimate->token_seconds = step_seconds(plan, speeds, 1, false);
    estimate->prompt_seconds = step_seconds(plan, speeds, rows, false) * SL_TYPICAL_PROMPT / rows;
    estimate->long_prompt_seconds = step_seconds(plan, speeds, chunk, true) / chunk;
    estimate->request_seconds = estimate->prompt_seconds + SL_TYPICAL_REPLY * estimate->token_seconds;
}

int32_t sl_estimate_choose(const sl_estimate *estimates, int32_t count) {
    static const double ALIKE = 1.1;
    double least = 0;
    for (int32_t i = 0; i < count; i++) {
        const double seconds = estimates[i].request_seconds;
        least = seconds > 0 && (least == 0 || seconds < least) ? seconds : least;
    }
    for (int32_t i = 0; i < count; i++) {
        if (estimates[i].request_seconds > 0 && estimates[i].request_seconds <= ALIKE * least) {
            return i;
        }
    }
    return SL_NONE;
}
