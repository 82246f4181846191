/* sluice bench: what happened to weights in host memory, layer by layer. */
#include "bench.h"

#include <string.h>

double tokens_of(const bench *b, const measurement *m) {
    return (double)(m->prompt + m->generate) * b->sequences * m->repetitions;
}

/* The counters when a measurement begins, or what they have risen by since then. */
static void count(expert_run *run, const sluice_expert_counters *now, bool begin) {
    const expert_run before = begin ? (expert_run){0} : *run;
    *run = (expert_run){.layer = now->layer,
                        .experts = now->experts,
                        .at_hand = now->at_hand,
                        .hits = now->hits - before.hits,
                        .misses = now->misses - before.misses,
                        .promotions = now->promotions - before.promotions,
                        .streamed = now->streamed_bytes - before.streamed,
                        .fetched = now->fetched_bytes - before.fetched};
}

typedef struct taker {
    measurement *m;
    bool begin;
} taker;

static void take_layer(void *context, const sluice_expert_counters *now) {
    const taker *t = context;
    if (t->m->layer_count < EXPERT_LAYERS) {
        count(&t->m->layers[t->m->layer_count++], now, t->begin);
    }
}

void count_experts(const bench *b, measurement *m, bool begin) {
    sluice_counters all = {.size = sizeof all};
    sluice_engine_get_counters(b->session.engine, &all);
    const sluice_expert_counters now = {.hits = all.expert_hits,
                                        .misses = all.expert_misses,
                                        .promotions = all.expert_promotions,
                                        .streamed_bytes = all.streamed_bytes,
                                        .fetched_bytes = all.fetched_bytes};
    count(&m->experts, &now, begin);
    taker t = {m, begin};
    m->layer_count = 0;
    sluice_engine_get_expert_counters(b->session.engine, take_layer, &t);
}

void print_expert_layers(const bench *b, const measurement *m) {
    const double tokens = tokens_of(b, m);
    if (m->layer_count == 0) {
        return;
    }
    printf("\n| layer | experts | at hand |       hits |     misses |   hits | promoted | streamed MB | "
           "fetched MB "
           "| MB/token |\n"
           "| ----: | ------: | ------: | ---------: | ---------: | -----: | -------: | ----------: | "
           "---------: | -------: |\n");
    for (int i = 0; i < m->layer_count; i++) {
        const expert_run *e = &m->layers[i];
        const double chosen = (double)(e->hits + e->misses);
        printf("| %5d | %7d | %7d | %10llu | %10llu | %4.0f %% | %8llu | %11.2f | %10.2f | %8.3f |\n",
               e->layer, e->experts, e->at_hand, (unsigned long long)e->hits, (unsigned long long)e->misses,
               chosen > 0 ? 100 * (double)e->hits / chosen : 0, (unsigned long long)e->promotions,
               1e-6 * (double)e->streamed, 1e-6 * (double)e->fetched,
               tokens > 0 ? 1e-6 * (double)(e->streamed + e->fetched) / tokens : 0);
    }
    printf("\n");
}

json_t *expert_layers_json(const measurement *m) {
    json_t *layers = json_array();
    for (int i = 0; i < m->layer_count; i++) {
        const expert_run *e = &m->layers[i];
        json_array_append_new(
            layers, json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I}", "layer", e->layer, "at_hand", e->at_hand,
                              "hits", (json_int_t)e->hits, "misses", (json_int_t)e->misses, "promotions",
                              (json_int_t)e->promotions, "streamed_bytes", (json_int_t)e->streamed,
                              "fetched_bytes", (json_int_t)e->fetched));
    }
    return layers;
}
