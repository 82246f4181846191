/* Plans as text, for people. */
#include "plan/build.h"
#include "plan/split.h"
#include "plan/stages.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- memory ---- */

/* "1.5 GiB"; exact below a KiB. */
static void human(uint64_t bytes, char *text, size_t size) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(text, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void memory_line(const char *device, const char *name, uint64_t bytes, const char *detail,
                        sl_buffer *out) {
    char text[32];
    human(bytes, text, sizeof text);
    if (device) {
        sl_buffer_printf(out, "%-6s ", device);
    }
    sl_buffer_printf(out, "%-24s %16" PRIu64 " %11s%s%s\n", name, bytes, text, *detail ? "  " : "", detail);
}

void sl_plan_print_memory(const sl_plan *plan, sl_buffer *out) {
    for (int32_t i = 0; i < plan->memory_count; i++) {
        memory_line(plan->memory[i].device, plan->memory[i].name, plan->memory[i].bytes,
                    plan->memory[i].detail, out);
    }
    const uint64_t total = sl_plan_bytes(plan), host = plan->deployment.pool_bytes[SL_POOL_HOST_WEIGHTS];
    char detail[64], limit[32];
    human(plan->options.memory_limit, limit, sizeof limit);
    snprintf(detail, sizeof detail, "of %s", limit);
    const char *several = plan->segment_count ? "" : NULL;
    memory_line(several, "total", total, plan->options.memory_limit == UINT64_MAX ? "" : detail, out);
    if (host > 0) {
        snprintf(detail, sizeof detail, "%s of %d layers in host memory, not in the total",
                 plan->options.host_layers > 0 ? "weights" : "experts", plan->deployment.fetch_set_count);
        memory_line(several, "host weights", host, detail, out);
    }
    if (plan->mapped_bytes > 0) {
        memory_line(several, "mapped weights", plan->mapped_bytes, "read in the file, not in the total", out);
    }
}

/* ---- ops ---- */

/* How what others computed comes to a part. */
static void print_borders(const sl_plan *plan, int32_t index, sl_buffer *out) {
    bool known[SL_MOST_DEVICES] = {false};
    for (int32_t b = 0; b < plan->partition.border_count; b++) {
        const sl_border *border = &plan->partition.borders[b];
        if (border->part == index && !known[border->from]) {
            known[border->from] = true;
            sl_buffer_printf(out, "values of segment %d: %s\n", border->from,
                             sl_stages_sends(plan, border) ? "from device to device" : "through host memory");
        }
    }
}

static void print_segment(const sl_plan *plan, int32_t index, sl_buffer *out) {
    const sl_plan_segment *segment = &plan->segments[index];
    const int32_t ranks = segment->program.ranks;
    if (ranks > 0 && index == 0) {
        sl_buffer_printf(out, "divided by %d: ", ranks);
        sl_program_describe_shards(plan->deployment.program, ranks, out);
        sl_buffer_text(out, "\n\n");
    }
    if (ranks > 0) {
        sl_buffer_printf(out, "%srank %d of %d: %s\n", index ? "\n" : "", index, ranks,
                         sl_split_part_name(plan->backend, index));
        return;
    }
    sl_buffer_printf(out, "%ssegment %d: %s, ", index ? "\n" : "", index,
                     sl_split_part_name(plan->backend, index));
    if (segment->end_layer > segment->first_layer) {
        sl_buffer_printf(out, "layers %d to %d", segment->first_layer, segment->end_layer - 1);
    } else {
        sl_buffer_text(out, "no layers");
    }
    if (plan->options.host_experts > 0 && index == 0) {
        sl_buffer_printf(out, ", experts of the first %d", plan->options.host_experts);
    } else if (plan->options.host_experts > segment->first_layer) {
        sl_buffer_printf(out, ", without the experts of the first %d", plan->options.host_experts);
    }
    sl_buffer_text(out, "\n");
    print_borders(plan, index, out);
}

/* A bucket's size, and from which op on it computes rows with outputs alone. */
static void print_bucket(const sl_lowered *lowered, int32_t bucket, sl_buffer *out) {
    int32_t first = 0;
    sl_buffer_printf(out, "bucket %d: %d rows, %d outputs", bucket, lowered->rows[SL_ROWS_STEP],
                     lowered->rows[SL_ROWS_OUTPUT]);
    while (first < lowered->op_count && !sl_op_is_tail(lowered->values, &lowered->ops[first])) {
        first++;
    }
    if (first < lowered->op_count) {
        sl_buffer_printf(out, " and no other rows from op %d on", first);
    }
}

void sl_plan_print_ops(const sl_plan *plan, int32_t bucket, sl_buffer *out) {
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const sl_plan *own = plan->segments[s].plan;
        print_segment(plan, s, out);
        sl_plan_print_ops(own, own->deployment.bucket_count - 1, out);
    }
    if (plan->segment_count || bucket < 0 || bucket >= plan->deployment.bucket_count) {
        return;
    }
    const sl_lowered *lowered = &plan->deployment.buckets[bucket];
    print_bucket(lowered, bucket, out);
    sl_buffer_text(out, "\n");
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        sl_buffer_printf(out, "%4d ", i);
        if (op->layer >= 0) {
            sl_buffer_printf(out, "%3d  ", op->layer);
        } else {
            sl_buffer_text(out, "  .  ");
        }
        sl_op_print(plan->deployment.program, lowered->values, op, out);
        const sl_fusion *fusion = sl_run_fusion(lowered, i);
        sl_buffer_printf(out, " | %s", fusion ? fusion->name : lowered->kernels[i]->name);
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            if (op->out[o].value != SL_NONE) {
                sl_buffer_printf(out, " %s@%" PRIu64, lowered->values[op->out[o].value].name,
                                 lowered->value_offsets[op->out[o].value]);
            }
        }
        if (lowered->scratch_offsets[i] > 0) {
            sl_buffer_printf(out, " scratch@%" PRIu64, lowered->scratch_offsets[i]);
        }
        sl_buffer_text(out, "\n");
    }
}

/* ---- explain ---- */

void sl_plan_print_shape(const sl_plan *plan, const sl_lowered *lowered, const sl_op *op, sl_buffer *out) {
    const sl_program *program = plan->deployment.program;
    sl_buffer_text(out, sl_op_name(op->kind));
    if (op->kind == SL_OP_LINEAR) {
        const sl_linear_segment *segments = op->u.linear.segments;
        const sl_weight *first = &program->weights[segments[0].weight];
        sl_buffer_printf(out, " %s ", sl_qtype_get(first->type)->name);
        if (first->experts > 1) {
            sl_buffer_printf(out, "%dx", first->experts);
        }
        for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
            sl_buffer_printf(out, "%s%d", s ? "+" : "", program->weights[segments[s].weight].rows);
        }
        sl_buffer_printf(out, "x%d", first->columns);
    } else if (op->kind == SL_OP_HEAD_LINEAR) {
        const sl_weight *weight = &program->weights[op->u.head_linear.weight];
        sl_buffer_printf(out, " %s %dx%dx%d", sl_qtype_get(weight->type)->name, weight->experts, weight->rows,
                         weight->columns);
    } else if (op->kind == SL_OP_EMBED) {
        const sl_weight *table = &program->weights[op->u.embed.weight];
        sl_buffer_printf(out, " %s %dx%d", sl_qtype_get(table->type)->name, table->rows, table->columns);
    } else if (op->kind == SL_OP_ATTENTION || op->kind == SL_OP_COMPACT) {
        const sl_op_attention *attention =
            op->kind == SL_OP_COMPACT ? &op->u.compact.attention : &op->u.attention;
        const sl_cache_group *group = &program->groups[attention->place.group];
        sl_buffer_printf(out, " %s, %d heads on %d of %d and %d, %s", group->name, attention->heads,
                         group->kv_heads, group->key_size, group->value_size,
                         sl_qtype_get(plan->options.cache_type)->name);
    } else if (op->in[0].value != SL_NONE) {
        sl_buffer_printf(out, " %lld", (long long)sl_operand_width(program, op, false, 0));
    }
    if (op->kind == SL_OP_FETCH && op->u.fetch.used > 0) {
        sl_buffer_printf(out, ", %s", sl_fetch_way_name(op->u.fetch.way));
    }
    if (op->kind == SL_OP_LINEAR || op->kind == SL_OP_QUANTIZE) {
        const int32_t value = op->kind == SL_OP_LINEAR ? op->in[0].value : op->out[0].value;
        sl_buffer_printf(out, " %s %s", op->kind == SL_OP_LINEAR ? "from" : "to",
                         sl_value_type_name(lowered->values[value].type));
    }
}

/* A line of the explanation and how many ops it stands for. */
typedef struct line {
    sl_buffer text;
    uint64_t hash;
    int32_t count;
} line;

/* Of plan->declined. */
typedef struct range {
    int32_t first, end;
} range;

static void print_choice(const sl_plan *plan, int32_t bucket, int32_t op, range reasons, sl_buffer *out) {
    const sl_lowered *lowered = &plan->deployment.buckets[bucket];
    sl_plan_print_shape(plan, lowered, &lowered->ops[op], out);
    const sl_fusion *fusion = sl_run_fusion(lowered, op);
    sl_buffer_printf(out, ": %s (%s)%s%s", lowered->kernels[op]->name,
                     lowered->kernels[op]->numeric_class ? lowered->kernels[op]->numeric_class : "no class",
                     fusion ? ", its work done by " : "", fusion ? fusion->name : "");
    if (fusion && fusion->numeric_class) {
        sl_buffer_printf(out, " (%s)", fusion->numeric_class);
    }
    sl_buffer_text(out, "\n");
    /* Neighbours with one reason share a line. */
    const char *reason = NULL;
    for (int32_t d = reasons.first; d < reasons.end; d++) {
        const sl_declined *declined = &plan->declined[d];
        if (reason && strcmp(reason, declined->reason) == 0) {
            sl_buffer_printf(out, ", %s", declined->name);
            continue;
        }
        if (reason) {
            sl_buffer_printf(out, ": %s\n", reason);
        }
        reason = declined->reason;
        sl_buffer_printf(out, "          not %s", declined->name);
    }
    if (reason) {
        sl_buffer_printf(out, ": %s\n", reason);
    }
}

static void explain_bucket(const sl_plan *plan, int32_t bucket, line *lines, sl_buffer *out) {
    const sl_lowered *lowered = &plan->deployment.buckets[bucket];
    int32_t count = 0, first = 0, end;
    while (first < plan->declined_count && plan->declined[first].bucket != bucket) {
        first++;
    }
    for (end = first; end < plan->declined_count && plan->declined[end].bucket == bucket;) {
        end++;
    }
    for (int32_t op = 0; op < lowered->op_count; op++) {
        /* Reasons lie in the order of the ops. */
        line *next = &lines[count];
        sl_buffer_clear(&next->text);
        while (first < end && plan->declined[first].op < op) {
            first++;
        }
        int32_t last = first;
        while (last < end && plan->declined[last].op == op) {
            last++;
        }
        print_choice(plan, bucket, op, (range){first, last}, &next->text);
        if (next->text.failed) {
            out->failed = true;
            return;
        }
        next->hash = sl_hash64(next->text.data, next->text.length, 0);
        next->count = 1;
        int32_t same = 0;
        while (same < count &&
               (lines[same].hash != next->hash || lines[same].text.length != next->text.length)) {
            same++;
        }
        if (same < count) {
            lines[same].count++;
        } else {
            count++;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        char times[16];
        snprintf(times, sizeof times, "x%d", lines[i].count);
        sl_buffer_printf(out, "%6s  %s", times, lines[i].text.data);
    }
}

/* What became of the prompt precision that was asked for. */
static void explain_precision(const sl_plan *plan, sl_buffer *out) {
    static const char *const names[SL_PRECISION_COUNT] = {"auto", "bf16", "int8", "fp8"};
    const sl_precision asked = plan->backend->options.prompt_precision;
    bool has_choice = false, taken = asked == SL_PRECISION_BF16;
    int32_t count = 0;
    const sl_kernel *const *kernels = plan->backend->functions->kernels(plan->backend, &count);
    if (asked == SL_PRECISION_AUTO) {
        return;
    }
    for (int32_t k = 0; k < count; k++) {
        has_choice = has_choice || kernels[k]->precisions & (1u << asked | ~(unsigned)SL_PRECISION_BIT(BF16));
        taken = taken && !(kernels[k]->precisions >> asked & 1u);
    }
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        const sl_lowered *lowered = &plan->deployment.buckets[b];
        for (int32_t i = 0; i < lowered->op_count; i++) {
            taken = taken || (lowered->kernels[i]->precisions >> asked & 1u);
        }
    }
    sl_buffer_printf(out, "prompt precision %s%s\n", names[asked],
                     !has_choice ? ": has no effect on this backend"
                     : !taken    ? ": no product of this plan is computed so"
                                 : "");
}

void sl_plan_explain(const sl_plan *plan, sl_buffer *out) {
    for (int32_t s = 0; s < plan->segment_count; s++) {
        print_segment(plan, s, out);
        sl_plan_explain(plan->segments[s].plan, out);
    }
    if (plan->segment_count) {
        return;
    }
    sl_buffer previous = {0}, text = {0};
    int32_t most = 0;
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        most = plan->deployment.buckets[b].op_count > most ? plan->deployment.buckets[b].op_count : most;
    }
    line *lines = sl_alloc_zero((size_t)most + 1, sizeof *lines);
    if (!lines) {
        out->failed = true;
        return;
    }
    sl_buffer_printf(out, "backend %s: %s\n", plan->backend->name, plan->backend->description);
    explain_precision(plan, out);
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        const sl_lowered *lowered = &plan->deployment.buckets[b];
        sl_buffer_clear(&text);
        explain_bucket(plan, b, lines, &text);
        const bool same = b > 0 && text.length == previous.length && text.length > 0 &&
                          memcmp(text.data, previous.data, text.length) == 0;
        print_bucket(lowered, b, out);
        sl_buffer_printf(out, "%s%s\n", lowered->compacts ? ", compacts" : "",
                         same ? ": as the one before" : "");
        if (!same) {
            sl_buffer_append(out, text.data, text.length);
        }
        out->failed |= text.failed;
        const sl_buffer swap = previous;
        previous = text;
        text = swap;
    }
    for (int32_t i = 0; i <= most; i++) {
        sl_buffer_free(&lines[i].text);
    }
    sl_free(lines);
    sl_buffer_free(&previous);
    sl_buffer_free(&text);
}
