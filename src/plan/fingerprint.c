/* What the bytes in the cache depend on, as one digest. */
#include "plan/plan.h"

#include <string.h>

/* Weights up to this size are taken whole, of larger ones that many samples. */
enum { WHOLE_BYTES = 1 << 16, SAMPLES = 64, SAMPLE_BYTES = 128 };

static void add_text(sl_sha256 *hash, const char *text) {
    const char *given = text ? text : "";
    sl_sha256_add(hash, given, strlen(given) + 1);
}

static void add_number(sl_sha256 *hash, uint64_t number) {
    sl_sha256_add(hash, &number, sizeof number); /* in the machine's order, which tells machines apart */
}

static void add_weight(sl_sha256 *hash, const sl_weight *weight) {
    const unsigned char *data = weight->data;
    add_text(hash, weight->name);
    add_text(hash, sl_qtype_get(weight->type)->name);
    add_number(hash, (uint64_t)weight->experts);
    add_number(hash, (uint64_t)weight->rows);
    add_number(hash, (uint64_t)weight->columns);
    add_number(hash, weight->bytes);
    if (weight->bytes <= WHOLE_BYTES) {
        sl_sha256_add(hash, data, (size_t)weight->bytes);
        return;
    }
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const uint64_t last = weight->bytes - SAMPLE_BYTES;
        sl_sha256_add(hash, data + (size_t)(last / (SAMPLES - 1) * i), SAMPLE_BYTES);
    }
}

/* How a bucket computes; equal for buckets whose kernels give the same bits. */
static void classes_of(const sl_lowered *bucket, sl_digest *digest) {
    sl_sha256 hash;
    sl_sha256_begin(&hash);
    for (int32_t i = 0; i < bucket->op_count; i++) {
        if (bucket->ops[i].kind == SL_OP_FETCH) {
            continue; /* where weights lie changes no bits */
        }
        add_text(&hash, sl_op_name(bucket->ops[i].kind));
        add_text(&hash, bucket->kernels[i]->numeric_class);
        if (bucket->fusions[i] && bucket->fusions[i]->numeric_class) {
            add_text(&hash, bucket->fusions[i]->numeric_class);
        }
    }
    sl_sha256_end(&hash, digest);
}

static void add_classes(sl_sha256 *hash, const sl_deployment *deployment) {
    sl_digest before;
    bool first = true;
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        sl_digest classes;
        if (deployment->buckets[b].compacts) {
            continue; /* what it leaves is of no use to others */
        }
        classes_of(&deployment->buckets[b], &classes);
        if (first || memcmp(&classes, &before, sizeof classes) != 0) {
            add_number(hash, first ? 0 : (uint64_t)deployment->buckets[b].rows[SL_ROWS_STEP]);
            sl_sha256_add(hash, &classes, sizeof classes);
        }
        before = classes;
        first = false;
    }
}

int sl_plan_fingerprint(const sl_plan *plan, const char *version, sl_digest *digest, sl_error *error) {
    const sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    sl_sha256 hash;
    sl_sha256_begin(&hash);
    add_text(&hash, version);
    add_number(&hash, SL_BACKEND_ABI);
    add_text(&hash, plan->backend->name);
    add_text(&hash, plan->backend->numerics);
    sl_buffer text = {0};
    sl_program_print(program, &text);
    if (text.failed) {
        sl_buffer_free(&text);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the model's fingerprint");
    }
    sl_sha256_add(&hash, text.data, text.length);
    sl_buffer_free(&text);
    for (int32_t i = 0; i < program->weight_count; i++) {
        add_weight(&hash, &program->weights[i]);
    }
    add_number(&hash, SL_PAGE_TOKENS);
    add_number(&hash, program->state_bytes);
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_layout *layout = &deployment->caches[g];
        add_text(&hash, sl_qtype_get(layout->type)->name);
        add_number(&hash, layout->page_bytes);
        add_number(&hash, layout->layer_bytes);
        add_number(&hash, layout->row_key_bytes);
        add_number(&hash, layout->row_value_bytes);
    }
    for (int32_t s = 0; s < plan->segment_count; s++) {
        add_number(&hash, (uint64_t)plan->segments[s].first_layer);
        add_number(&hash, plan->segments[s].program.state_bytes);
        add_text(&hash, plan->segments[s].plan->backend->name);
        add_text(&hash, plan->segments[s].plan->backend->numerics);
        add_classes(&hash, &plan->segments[s].plan->deployment);
    }
    for (int32_t s = 0; s < plan->partition.section_count; s++) {
        add_number(&hash, (uint64_t)plan->partition.sections[s].end);
        add_number(&hash, (uint64_t)plan->partition.sections[s].part);
    }
    add_number(&hash, (uint64_t)(plan->segment_count > 0 ? plan->segments[0].program.ranks : 0));
    if (plan->segment_count == 0) {
        add_classes(&hash, deployment);
    }
    sl_sha256_end(&hash, digest);
    return 0;
}
