/* What a token of a model costs, and the limit of a measurement: the time that its bytes and its operations
 * take at the rates that the device was measured to have, whichever is longer. */
#include "cost.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool name_has(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

/* What products with weights of that type are computed with. */
static int products_of(const json_t *types, const char *name) {
    static const char *const names[PRODUCTS] = {"int8", "bf16", "f32"};
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *type = json_array_get(types, i);
        const char *products = json_string_value(json_object_get(type, "products"));
        if (strcmp(json_string_value(json_object_get(type, "type")), name) == 0) {
            for (int p = 0; p < PRODUCTS; p++) {
                if (strcmp(products, names[p]) == 0) {
                    return p;
                }
            }
        }
    }
    return PRODUCTS_F32;
}

static void add_weight(cost *c, const json_t *weight, const json_t *types, bool tied) {
    const int products = products_of(types, json_string_value(json_object_get(weight, "type")));
    const char *name = json_string_value(json_object_get(weight, "name"));
    const double experts = (double)json_integer_value(json_object_get(weight, "experts"));
    const double rows = (double)json_integer_value(json_object_get(weight, "rows"));
    const double columns = (double)json_integer_value(json_object_get(weight, "columns"));
    const double bytes = (double)json_integer_value(json_object_get(weight, "bytes"));
    const bool embedding = name_has(name, "token_embd") || name_has(name, "embed_tokens");
    const bool head = embedding || name_has(name, "lm_head") || strcmp(name, "output.weight") == 0;
    if (embedding && !tied) {
        return; /* one row of it */
    }
    if (experts > 1) {
        c->expert_bytes += bytes;
        c->operations[products] += 2 * rows * columns * c->experts_used;
    } else {
        c->bytes += bytes;
        (head ? c->head_operations : c->operations)[products] += rows > 1 ? 2 * rows * columns : 0;
    }
}

static bool has_head(const json_t *weights) {
    for (size_t i = 0; i < json_array_size(weights); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(weights, i), "name"));
        if (name_has(name, "lm_head") || strcmp(name, "output.weight") == 0) {
            return true;
        }
    }
    return false;
}

static void read_attention(cost *c, const json_t *groups) {
    for (size_t i = 0; i < json_array_size(groups) && c->attention_count < ATTENTION_GROUPS; i++) {
        const json_t *group = json_array_get(groups, i);
        c->attention[c->attention_count++] = (attention_cost){
            .window = json_number_value(json_object_get(group, "window")),
            .elements = json_number_value(json_object_get(group, "cache_elements_per_token")),
            .operations = json_number_value(json_object_get(group, "operations_per_key")),
        };
    }
}

int read_cost(const sluice_model *model, cost *c, sluice_error *error) {
    char *text;
    const int code = sluice_model_describe(model, SLUICE_JSON, &text, error);
    if (code) {
        return code;
    }
    json_t *facts = json_loads(text, 0, NULL);
    sluice_free(text);
    if (!facts) {
        *error = (sluice_error){.code = SLUICE_ERR_NOMEM, .message = "out of memory for what a token costs"};
        return SLUICE_ERR_NOMEM;
    }
    *c = (cost){0};
    const json_t *weights = json_object_get(facts, "weights"), *types = json_object_get(facts, "types");
    const bool tied = !has_head(weights);
    c->experts = (double)json_integer_value(json_object_get(facts, "experts"));
    c->experts_used = (double)json_integer_value(json_object_get(facts, "experts_used"));
    for (size_t i = 0; i < json_array_size(weights); i++) {
        add_weight(c, json_array_get(weights, i), types, tied);
    }
    read_attention(c, json_object_get(facts, "attention"));
    json_int_t most = -1;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *type = json_array_get(types, i);
        const json_int_t bytes = json_integer_value(json_object_get(type, "bytes"));
        if (bytes > most) {
            most = bytes;
            snprintf(c->type, sizeof c->type, "%s", json_string_value(json_object_get(type, "type")));
        }
    }
    json_decref(facts);
    return 0;
}

/* ---- limits ----------------------------------------------------------------------------------------------
 */

double step_bytes(const cost *c, double rows) {
    const double share = c->experts > 0 ? 1 - pow(1 - c->experts_used / c->experts, rows) : 0;
    return c->bytes + c->expert_bytes * share;
}

double all_products(const double operations[PRODUCTS]) {
    double sum = 0;
    for (int p = 0; p < PRODUCTS; p++) {
        sum += operations[p];
    }
    return sum;
}

double cache_element_bytes(const char *type) {
    static const struct {
        const char *name;
        double bytes;
    } types[] = {{"f16", 2}, {"bf16", 2}, {"f32", 4}, {"q8_0", 34.0 / 32}, {"fp8", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, type) == 0) {
            return types[i].bytes;
        }
    }
    return 0;
}

/* One of the two halves of a measurement. */
typedef struct work {
    double bytes, operations[PRODUCTS];
} work;

static double seen(const attention_cost *a, double keys) {
    return a->window > 0 ? fmin(a->window, keys) : keys;
}

/* `rows` more of every sequence, of which each has `before` tokens, in steps of `step` of them. Cached tokens
 * are read once a step, those behind a window's end not at all. */
static void add_attention(const cost *c, const demand *d, work *w, int32_t before, int32_t rows,
                          int32_t step) {
    for (int g = 0; g < c->attention_count; g++) {
        const attention_cost *a = &c->attention[g];
        double keys = 0, read = 0;
        for (int32_t i = 1; i <= rows; i++) {
            keys += seen(a, (double)before + i);
        }
        for (int32_t begin = 0; begin < rows; begin += step) {
            const int32_t end = rows - begin < step ? rows : begin + step;
            const double most = (double)before + end;
            read += a->window > 0 ? fmin(a->window + (double)(end - begin) - 1, most) : most;
        }
        w->operations[PRODUCTS_BF16] += a->operations * keys * d->sequences;
        w->bytes += a->elements * d->cache_element_bytes * read * d->sequences;
    }
}

static void add_products(work *w, const double operations[PRODUCTS], double times) {
    for (int p = 0; p < PRODUCTS; p++) {
        w->operations[p] += operations[p] * times;
    }
}

static void add_prompt(const cost *c, const demand *d, work *w) {
    const double rows = (double)d->prompt * d->sequences, whole = floor(rows / d->chunk);
    const double rest = rows - whole * d->chunk;
    w->bytes += whole * step_bytes(c, d->chunk) + (rest > 0 ? step_bytes(c, rest) : 0);
    add_products(w, c->operations, rows);
    add_products(w, c->head_operations, d->prompt > 0 ? d->sequences : 0);
    add_attention(c, d, w, d->depth, d->prompt, d->chunk);
}

static void add_generation(const cost *c, const demand *d, work *w) {
    w->bytes += d->generate * step_bytes(c, d->sequences);
    add_products(w, c->operations, (double)d->generate * d->sequences);
    add_products(w, c->head_operations, (double)d->generate * d->sequences);
    add_attention(c, d, w, d->depth + d->prompt, d->generate, 1);
}

static double least_of(const work *w, const sluice_rates *rates) {
    const double products[PRODUCTS] = {[PRODUCTS_INT8] = rates->quantised_products,
                                       [PRODUCTS_BF16] = rates->bf16_products,
                                       [PRODUCTS_F32] = rates->f32_products};
    double computing = 0;
    for (int p = 0; p < PRODUCTS; p++) {
        computing += products[p] > 0 ? w->operations[p] / products[p] : 0;
    }
    return fmax(rates->read_bytes > 0 ? w->bytes / rates->read_bytes : 0, computing);
}

double least_seconds(const cost *c, const demand *d, const sluice_rates *rates) {
    work reading = {0}, generating = {0};
    add_prompt(c, d, &reading);
    add_generation(c, d, &generating);
    return least_of(&reading, rates) + least_of(&generating, rates);
}
