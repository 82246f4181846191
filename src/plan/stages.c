#define _POSIX_C_SOURCE 200809L
#include "plan/stages.h"

#include "base/alloc.h"
#include "base/log.h"
#include "plan/split.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* A step on its way. Who has it owns it: the caller until submit, then the stage, in the end the caller. */
typedef struct flight {
    unsigned char *memory;
    void *block;          /* the caller's; each part gets a copy */
    unsigned char *taken; /* one value at a time, between parts of one stage */
    int32_t stage;        /* that has it, or gets it next; as many as there are stages: it is done */
    bool takes_tokens;    /* rows take what the step before samples */
    bool lacks_masks;
    int32_t *token_room; /* NULL: the part keeps its results as long */
    float *logit_room;
    const int32_t *tokens; /* results */
    const float *logits;
} flight;

/* How a value crosses a border. */
typedef enum passage_kind {
    READ_LATE, /* between parts of one stage: when it is taken over, by the flight's `taken` */
    CARRIED,   /* in the flight's memory */
    SENT,      /* to a landing place on the device that takes it over */
} passage_kind;

typedef struct passage {
    passage_kind kind;
    uint64_t place; /* in a flight's memory; of the first flight, in SL_POOL_EXCHANGE */
} passage;

/* Offsets in a flight's memory. */
typedef struct flight_layout {
    uint64_t block, taken, tokens, logits, bytes;
    bool keeps; /* results, which the part would overwrite in its next step */
} flight_layout;

typedef struct stage {
    struct sl_stages *all;
    int32_t index, first, end; /* sections */
    uint64_t next;             /* step */
    pthread_t thread;
} stage;

struct sl_stages {
    const sl_plan *plan;
    sl_executor *parts[SL_MOST_DEVICES];
    int32_t stage_of[SL_MOST_DEVICES]; /* parts */
    stage stages[SL_MOST_DEVICES];
    int32_t count, running;            /* stages / threads of them */
    int32_t *first_border;             /* [section_count + 1] */
    passage *passages;                 /* [border_count] */
    uint64_t landing[SL_MOST_DEVICES]; /* bytes of a flight's landing places on each part */
    int32_t *last_tokens;              /* [limits.sequences] */
    flight flights[SL_SPLIT_STEPS];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Under the mutex. */
    uint64_t submitted, done, waited; /* steps */
    bool stop;
    sl_error fault;                       /* the devices are out of step from then on */
    sl_counters counted[SL_MOST_DEVICES]; /* of each part, as of its last step */
    sl_kernel_count *kernels[SL_MOST_DEVICES];
    sl_kernel_count *given; /* of all parts: what the caller got last */
};

static const sl_backend *backend_of(const sl_stages *all, int32_t part) {
    return all->plan->segments[part].plan->backend;
}

static const sl_backend_functions *functions_of(const sl_stages *all, int32_t part) {
    return backend_of(all, part)->functions;
}

static const sl_deployment *deployment_of(const sl_stages *all, int32_t part) {
    return &all->plan->segments[part].plan->deployment;
}

static int32_t last_section_of(const sl_partition *partition, int32_t part) {
    int32_t last = 0;
    for (int32_t s = 0; s < partition->section_count; s++) {
        last = partition->sections[s].part == part ? s : last;
    }
    return last;
}

/* Where each stage ends, by sections; returns how many there are. */
static int32_t find_stages(const sl_partition *partition, int32_t ends[SL_MOST_DEVICES]) {
    int32_t count = 0, last = 0; /* section of a part that was met */
    for (int32_t s = 0; s < partition->section_count; s++) {
        if (s > last) {
            ends[count++] = s;
        }
        const int32_t own = last_section_of(partition, partition->sections[s].part);
        last = own > last ? own : last;
    }
    ends[count++] = partition->section_count;
    return count;
}

int32_t sl_stages_count(const sl_plan *plan) {
    int32_t ends[SL_MOST_DEVICES];
    return find_stages(&plan->partition, ends);
}

/* ---- memory ---- */

static uint64_t value_bytes(const sl_plan *plan, int32_t value, int32_t rows) {
    return (uint64_t)rows * (uint64_t)plan->deployment.program->values[value].width * sizeof(float);
}

static void find_stage_of_parts(const sl_partition *partition, int32_t *stage_of) {
    int32_t ends[SL_MOST_DEVICES], stage = 0;
    find_stages(partition, ends);
    for (int32_t s = 0; s < partition->section_count; s++) {
        stage += s == ends[stage];
        stage_of[partition->sections[s].part] = stage;
    }
}

static uint64_t place(uint64_t *end, uint64_t bytes) {
    const uint64_t offset = *end;
    *end += (bytes + 63) & ~(uint64_t)63;
    return offset;
}

/* Who sends is destroyed first, as parts are in their order. */
bool sl_stages_sends(const sl_plan *plan, const sl_border *border) {
    const sl_backend_functions *from = sl_split_part(plan->backend, border->from)->functions;
    return from->send && border->from < border->part &&
           from == sl_split_part(plan->backend, border->part)->functions;
}

/* Bytes of a flight's landing places on a part. `passages` may be NULL. */
static uint64_t lay_out_landing(const sl_plan *plan, const sl_partition *partition, int32_t part,
                                passage *passages) {
    uint64_t bytes = 0;
    for (int32_t b = 0; b < partition->border_count; b++) {
        const sl_border *border = &partition->borders[b];
        if (border->part == part && sl_stages_sends(plan, border)) {
            const uint64_t at = place(&bytes, value_bytes(plan, border->value, plan->deployment.limits.rows));
            if (passages) {
                passages[b] = (passage){SENT, at};
            }
        }
    }
    return bytes;
}

uint64_t sl_stages_landing_bytes(const sl_plan *plan, const sl_partition *partition, int32_t part) {
    return SL_SPLIT_STEPS * lay_out_landing(plan, partition, part, NULL);
}

/* `passages` may be NULL; those that are sent are left as they are. */
static flight_layout lay_out(const sl_plan *plan, passage *passages) {
    const sl_partition *partition = &plan->partition;
    const sl_limits *limits = &plan->deployment.limits;
    int32_t stage_of[SL_MOST_DEVICES] = {0};
    uint64_t most = 0;
    flight_layout layout = {0};
    sl_step_layout step;
    sl_step_layout_init(&step, limits, plan->deployment.program->group_count);
    find_stage_of_parts(partition, stage_of);
    layout.block = place(&layout.bytes, step.bytes);
    for (int32_t b = 0; b < partition->border_count; b++) {
        const sl_border *border = &partition->borders[b];
        if (sl_stages_sends(plan, border)) {
            continue;
        }
        const uint64_t bytes = value_bytes(plan, border->value, limits->rows);
        const bool within = stage_of[border->from] == stage_of[border->part];
        const passage own = {within ? READ_LATE : CARRIED, within ? 0 : place(&layout.bytes, bytes)};
        most = within && bytes > most ? bytes : most;
        if (passages) {
            passages[b] = own;
        }
    }
    layout.taken = place(&layout.bytes, most);
    const int32_t last = partition->sections[partition->section_count - 1].part;
    layout.keeps = sl_split_part(plan->backend, last)->steps_in_flight < SL_SPLIT_STEPS;
    if (layout.keeps) {
        layout.tokens = place(&layout.bytes, (uint64_t)limits->outputs * sizeof(int32_t));
        layout.logits = place(&layout.bytes, (uint64_t)limits->outputs *
                                                 (uint64_t)plan->deployment.result_width * sizeof(float));
    }
    return layout;
}

uint64_t sl_stages_bytes(const sl_plan *plan) {
    return SL_SPLIT_STEPS * lay_out(plan, NULL).bytes;
}

/* The first part that has faster memory for its copies than any; SL_NONE. */
static int32_t find_pinning(const sl_stages *all) {
    for (int32_t p = 0; p < all->plan->segment_count; p++) {
        if (functions_of(all, p)->pin) {
            return p;
        }
    }
    return SL_NONE;
}

static int make_memory(sl_stages *all, flight *f, uint64_t bytes, sl_error *error) {
    const int32_t part = find_pinning(all);
    void *memory = NULL;
    if (part != SL_NONE) {
        const int code = functions_of(all, part)->pin(all->parts[part], bytes, &memory, error);
        f->memory = memory;
        return code ? sl_fail_prefix(error, sl_split_part_name(all->plan->backend, part)) : 0;
    }
    f->memory = sl_alloc((size_t)bytes);
    return f->memory ? 0
                     : sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for steps", all->plan->backend->name);
}

static void free_memory(const sl_stages *all, flight *f) {
    const int32_t part = find_pinning(all);
    if (part == SL_NONE) {
        sl_free(f->memory);
    } else if (f->memory) {
        functions_of(all, part)->unpin(all->parts[part], f->memory);
    }
}

static int make_flights(sl_stages *all, sl_error *error) {
    const flight_layout layout = lay_out(all->plan, all->passages);
    for (int i = 0; i < SL_SPLIT_STEPS; i++) {
        flight *f = &all->flights[i];
        const int code = make_memory(all, f, layout.bytes, error);
        if (code) {
            return code;
        }
        f->block = f->memory + layout.block;
        memset(f->block, 0, all->plan->deployment.step.bytes);
        f->taken = f->memory + layout.taken;
        f->token_room = layout.keeps ? (int32_t *)(void *)(f->memory + layout.tokens) : NULL;
        f->logit_room = layout.keeps ? (float *)(void *)(f->memory + layout.logits) : NULL;
    }
    return 0;
}

/* ---- counters ---- */

/* By whoever may call the part's executor. */
static void count_part(sl_stages *all, int32_t part) {
    sl_counters own;
    functions_of(all, part)->counters(all->parts[part], &own);
    pthread_mutex_lock(&all->mutex);
    memcpy(all->kernels[part], own.kernels, (size_t)own.kernel_count * sizeof *own.kernels);
    all->counted[part] = own;
    pthread_mutex_unlock(&all->mutex);
}

static int make_counts(sl_stages *all, sl_error *error) {
    int32_t total = 0;
    bool made = true;
    for (int32_t p = 0; p < all->plan->segment_count; p++) {
        sl_counters own;
        functions_of(all, p)->counters(all->parts[p], &own);
        all->kernels[p] = sl_alloc_zero((size_t)own.kernel_count + 1, sizeof *all->kernels[p]);
        made = made && all->kernels[p];
        total += own.kernel_count;
    }
    all->given = sl_alloc_zero((size_t)total + 1, sizeof *all->given);
    if (!made || !all->given) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", all->plan->backend->name);
    }
    for (int32_t p = 0; p < all->plan->segment_count; p++) {
        count_part(all, p);
    }
    return 0;
}

void sl_stages_counters(sl_stages *all, sl_counters *result) {
    memset(result, 0, sizeof *result);
    pthread_mutex_lock(&all->mutex);
    for (int32_t p = 0; p < all->plan->segment_count; p++) {
        const sl_counters *own = &all->counted[p];
        result->eager_steps += own->eager_steps;
        result->replayed_steps += own->replayed_steps;
        result->device_allocations += own->device_allocations;
        result->synchronisations += own->synchronisations;
        result->captured_buckets += own->captured_buckets;
        result->failed_captures += own->failed_captures;
        memcpy(all->given + result->kernel_count, all->kernels[p],
               (size_t)own->kernel_count * sizeof *all->given);
        result->kernel_count += own->kernel_count;
    }
    result->steps = all->done;
    result->kernels = all->given;
    pthread_mutex_unlock(&all->mutex);
}

/* ---- a step in a stage ---- */

static int32_t bucket_of(const sl_stages *all, int32_t part, const sl_step_header *header) {
    return sl_plan_bucket(all->plan->segments[part].plan, header);
}

static bool is_last(const sl_stages *all, const stage *own) {
    return own->index == all->count - 1;
}

/* Sampled tokens become tokens that are known. */
static void fill_tokens(const sl_stages *all, void *block) {
    const sl_step_layout *layout = &all->plan->deployment.step;
    const sl_step_span *spans = sl_step_spans(layout, block);
    sl_step_row *rows = sl_step_rows(layout, block);
    for (int32_t i = 0; i < sl_step_head(block)->rows; i++) {
        if (rows[i].source == SL_ROW_LAST_TOKEN) {
            rows[i].source = SL_ROW_TOKEN;
            rows[i].token = all->last_tokens[spans[rows[i].span].slot];
        }
    }
}

/* Masks may still be written while stages in front of the last are at the step, and are of no use there. */
static void give_block(const sl_stages *all, const stage *own, const flight *f, int32_t part) {
    const sl_step_layout *layout = &all->plan->deployment.step;
    void *block = functions_of(all, part)->step_block(all->parts[part]);
    memcpy(block, f->block,
           is_last(all, own) ? sl_step_used_bytes(layout, f->block)
                             : sl_step_unmasked_bytes(layout, f->block));
    sl_step_header *header = sl_step_head(block);
    header->masks_later = 0;
    if (!is_last(all, own)) {
        header->masks = 0;
        for (int32_t i = 0; i < header->outputs; i++) {
            sl_step_outputs(layout, block)[i].mask = SL_NONE;
        }
    }
    if (f->takes_tokens) {
        fill_tokens(all, block);
    }
}

static uint64_t border_bytes(const sl_stages *all, const sl_border *border, const sl_step_header *header) {
    const bool tail = all->plan->deployment.program->values[border->value].tail;
    return value_bytes(all->plan, border->value, tail ? header->outputs : header->rows);
}

/* What the part computed goes to `data`, by the border. */
static int read_value(const sl_stages *all, const flight *f, const sl_border *border, void *data,
                      sl_error *error) {
    const sl_step_header *header = sl_step_head(f->block);
    const uint64_t bytes = border_bytes(all, border, header);
    const int32_t part = border->from;
    const sl_lowered *source = &deployment_of(all, part)->buckets[bucket_of(all, part, header)];
    return bytes == 0
               ? 0
               : functions_of(all, part)->read(all->parts[part], SL_POOL_WORKSPACE,
                                               source->value_offsets[border->value], data, bytes, error);
}

/* And is given to the one that takes it over. */
static int write_value(const sl_stages *all, const flight *f, const sl_border *border, const void *data,
                       sl_error *error) {
    const sl_step_header *header = sl_step_head(f->block);
    const uint64_t bytes = border_bytes(all, border, header);
    const int32_t part = border->part;
    const sl_lowered *target = &deployment_of(all, part)->buckets[bucket_of(all, part, header)];
    return bytes == 0
               ? 0
               : functions_of(all, part)->write(all->parts[part], SL_POOL_WORKSPACE,
                                                target->value_offsets[border->given], data, bytes, error);
}

static sl_crossing crossing_of(const sl_stages *all, const flight *f, int32_t b) {
    const sl_border *border = &all->plan->partition.borders[b];
    const sl_step_header *header = sl_step_head(f->block);
    const int32_t from = border->from, to = border->part;
    const sl_lowered *source = &deployment_of(all, from)->buckets[bucket_of(all, from, header)];
    const sl_lowered *target = &deployment_of(all, to)->buckets[bucket_of(all, to, header)];
    return (sl_crossing){.from = source->value_offsets[border->value],
                         .place = all->passages[b].place + (uint64_t)(f - all->flights) * all->landing[to],
                         .to = target->value_offsets[border->given],
                         .bytes = border_bytes(all, border, header)};
}

static int send_value(const sl_stages *all, const flight *f, int32_t b, sl_error *error) {
    const sl_border *border = &all->plan->partition.borders[b];
    const sl_crossing crossing = crossing_of(all, f, b);
    return crossing.bytes == 0
               ? 0
               : functions_of(all, border->from)
                     ->send(all->parts[border->from], all->parts[border->part], &crossing, error);
}

static int receive_value(const sl_stages *all, const flight *f, int32_t b, sl_error *error) {
    const sl_border *border = &all->plan->partition.borders[b];
    const sl_crossing crossing = crossing_of(all, f, b);
    return crossing.bytes == 0
               ? 0
               : functions_of(all, border->part)
                     ->receive(all->parts[border->part], all->parts[border->from], &crossing, error);
}

static bool is_within(const sl_stages *all, const sl_border *border) {
    return all->stage_of[border->from] == all->stage_of[border->part];
}

/* What the source did not do when it was done with the step; an error is of one device, *at. */
static int fetch_value(const sl_stages *all, const flight *f, int32_t b, int32_t *at, sl_error *error) {
    const sl_border *border = &all->plan->partition.borders[b];
    *at = border->from;
    return !is_within(all, border)         ? 0
           : all->passages[b].kind == SENT ? send_value(all, f, b, error)
                                           : read_value(all, f, border, f->taken, error);
}

static int take_over(const sl_stages *all, const flight *f, int32_t section, int32_t *at, sl_error *error) {
    int code = 0;
    for (int32_t b = all->first_border[section]; b < all->first_border[section + 1] && code == 0; b++) {
        const sl_border *border = &all->plan->partition.borders[b];
        const passage *own = &all->passages[b];
        code = fetch_value(all, f, b, at, error);
        if (code == 0) {
            *at = border->part;
            code = own->kind == SENT
                       ? receive_value(all, f, b, error)
                       : write_value(all, f, border,
                                     own->kind == READ_LATE ? f->taken : f->memory + own->place, error);
        }
    }
    return code;
}

/* What later stages will want: the parts' next step overwrites it. */
static int carry_off(const sl_stages *all, const stage *own, const flight *f, int32_t *at, sl_error *error) {
    int code = 0;
    for (int32_t b = 0; b < all->plan->partition.border_count && code == 0; b++) {
        const sl_border *border = &all->plan->partition.borders[b];
        if (all->stage_of[border->from] == own->index && !is_within(all, border)) {
            *at = border->from;
            code = all->passages[b].kind == SENT
                       ? send_value(all, f, b, error)
                       : read_value(all, f, border, f->memory + all->passages[b].place, error);
        }
    }
    return code;
}

static int run_section(const sl_stages *all, const stage *own, const flight *f, int32_t section,
                       sl_error *error) {
    const sl_partition *partition = &all->plan->partition;
    const int32_t part = partition->sections[section].part;
    const sl_backend_functions *functions = functions_of(all, part);
    const bool begins = partition->sections[section].number == 0;
    if (begins) {
        give_block(all, own, f, part);
    }
    int code = begins
                   ? functions->submit(all->parts[part], bucket_of(all, part, sl_step_head(f->block)), error)
                   : functions->proceed(all->parts[part], error);
    if (code == 0 && section == last_section_of(partition, part)) {
        code = functions->wait(all->parts[part], error);
    }
    return code;
}

/* The part keeps its results as long as they are wanted, or they go to a place of their own. */
static void keep_results(sl_stages *all, flight *f) {
    const sl_partition *partition = &all->plan->partition;
    const int32_t part = partition->sections[partition->section_count - 1].part;
    const sl_step_layout *layout = &all->plan->deployment.step;
    const sl_step_header *header = sl_step_head(f->block);
    const size_t outputs = (size_t)header->outputs, width = (size_t)all->plan->deployment.result_width;
    f->tokens = functions_of(all, part)->tokens(all->parts[part]);
    f->logits = header->want_logits ? functions_of(all, part)->logits(all->parts[part]) : NULL;
    if (f->tokens && f->token_room) {
        f->tokens = memcpy(f->token_room, f->tokens, outputs * sizeof *f->tokens);
    }
    if (f->logits && f->logit_room) {
        f->logits = memcpy(f->logit_room, f->logits, outputs * width * sizeof *f->logits);
    }
    for (int32_t i = 0; f->tokens && i < header->outputs; i++) {
        const int32_t slot = sl_step_outputs(layout, f->block)[i].slot;
        if (slot >= 0) {
            all->last_tokens[slot] = f->tokens[i] < 0 ? 0 : f->tokens[i];
        }
    }
}

static int run_stage(sl_stages *all, const stage *own, flight *f, sl_error *error) {
    const sl_partition *partition = &all->plan->partition;
    sl_error why = {.code = SL_OK};
    int32_t at = partition->sections[own->first].part;
    int code = 0;
    for (int32_t s = own->first; s < own->end && code == 0; s++) {
        code = take_over(all, f, s, &at, &why);
        if (code == 0) {
            at = partition->sections[s].part;
            code = run_section(all, own, f, s, &why);
        }
    }
    code = code ? code : carry_off(all, own, f, &at, &why);
    if (code) {
        return sl_fail(error, SL_ERR_DEVICE, "%s, device %d of %s: %s",
                       sl_split_part_name(all->plan->backend, at), (int)at + 1, all->plan->backend->name,
                       why.message);
    }
    if (is_last(all, own)) {
        keep_results(all, f);
    }
    for (int32_t p = 0; p < all->plan->segment_count; p++) {
        if (all->stage_of[p] == own->index) {
            count_part(all, p);
        }
    }
    return 0;
}

/* ---- threads ---- */

/* Under the mutex: may the stage begin its next step? */
static bool may_begin(const sl_stages *all, const stage *own) {
    const flight *f = &all->flights[own->next % SL_SPLIT_STEPS];
    return !all->fault.code && own->next < all->submitted && f->stage == own->index &&
           !(own->index == 0 && f->takes_tokens && all->done < own->next) &&
           !(is_last(all, own) && f->lacks_masks);
}

static void *stage_thread(void *argument) {
    stage *own = argument;
    sl_stages *all = own->all;
    pthread_mutex_lock(&all->mutex);
    for (;;) {
        while (!all->stop && !may_begin(all, own)) {
            pthread_cond_wait(&all->changed, &all->mutex);
        }
        if (all->stop) {
            break;
        }
        flight *f = &all->flights[own->next % SL_SPLIT_STEPS];
        sl_error error = {.code = SL_OK};
        pthread_mutex_unlock(&all->mutex);
        const int code = run_stage(all, own, f, &error);
        pthread_mutex_lock(&all->mutex);
        own->next++;
        f->stage++;
        all->done += code == 0 && is_last(all, own);
        if (code && !all->fault.code) {
            all->fault = error;
        }
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->mutex);
    return NULL;
}

static int start_stages(sl_stages *all, sl_error *error) {
    int32_t ends[SL_MOST_DEVICES];
    all->count = find_stages(&all->plan->partition, ends);
    for (int32_t i = 0; i < all->count; i++) {
        stage *own = &all->stages[i];
        *own = (stage){.all = all, .index = i, .first = i > 0 ? ends[i - 1] : 0, .end = ends[i]};
    }
    for (int32_t i = 0; i < all->count; i++) {
        const int failed = pthread_create(&all->stages[i].thread, NULL, stage_thread, &all->stages[i]);
        if (failed) {
            return sl_fail(error, SL_ERR_NOMEM, "%s: cannot start a thread: %s", all->plan->backend->name,
                           strerror(failed));
        }
        all->running++;
    }
    return 0;
}

static void list_borders(sl_stages *all) {
    const sl_partition *partition = &all->plan->partition;
    int32_t b = 0;
    for (int32_t s = 0; s <= partition->section_count; s++) {
        all->first_border[s] = b;
        while (s < partition->section_count && b < partition->border_count &&
               partition->borders[b].part == partition->sections[s].part &&
               partition->borders[b].section == partition->sections[s].number) {
            b++;
        }
    }
}

/* Landing places, and who sends to whom. */
static int link_parts(sl_stages *all, sl_error *error) {
    const sl_plan *plan = all->plan;
    bool linked[SL_MOST_DEVICES][SL_MOST_DEVICES] = {{false}};
    int code = 0;
    for (int32_t p = 0; p < plan->segment_count; p++) {
        all->landing[p] = lay_out_landing(plan, &plan->partition, p, all->passages);
    }
    for (int32_t b = 0; b < plan->partition.border_count && code == 0; b++) {
        const int32_t from = plan->partition.borders[b].from, to = plan->partition.borders[b].part;
        if (all->passages[b].kind != SENT || linked[from][to]) {
            continue;
        }
        const char *source = sl_split_part_name(plan->backend, from);
        bool reaches = false;
        linked[from][to] = true;
        code = functions_of(all, from)->link(all->parts[from], all->parts[to], &reaches, error);
        if (code) {
            return sl_fail_prefix(error, source);
        }
        sl_log(SL_LOG_INFO, "%s: what crosses to %s is sent from device to device%s", source,
               sl_split_part_name(plan->backend, to),
               reaches ? "" : ", on the driver's way: they do not reach each other's memory");
    }
    return code;
}

int sl_stages_create(const sl_plan *plan, sl_executor *const *parts, sl_stages **stages, sl_error *error) {
    *stages = NULL;
    sl_stages *all = sl_alloc_zero(1, sizeof *all);
    if (!all) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", plan->backend->name);
    }
    all->plan = plan;
    memcpy(all->parts, parts, (size_t)plan->segment_count * sizeof *parts);
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->changed, NULL);
    find_stage_of_parts(&plan->partition, all->stage_of);
    all->first_border = sl_alloc_zero((size_t)plan->partition.section_count + 1, sizeof *all->first_border);
    all->passages = sl_alloc_zero((size_t)plan->partition.border_count + 1, sizeof *all->passages);
    all->last_tokens = sl_alloc_zero((size_t)plan->deployment.limits.sequences, sizeof *all->last_tokens);
    int code = all->first_border && all->passages && all->last_tokens
                   ? 0
                   : sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", plan->backend->name);
    if (code == 0) {
        list_borders(all);
        code = make_flights(all, error);
    }
    code = code ? code : link_parts(all, error);
    code = code ? code : make_counts(all, error);
    code = code ? code : start_stages(all, error);
    if (code) {
        sl_stages_destroy(all);
        return code;
    }
    *stages = all;
    return 0;
}

void sl_stages_destroy(sl_stages *all) {
    if (!all) {
        return;
    }
    pthread_mutex_lock(&all->mutex);
    all->stop = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mutex);
    for (int32_t i = 0; i < all->running; i++) {
        pthread_join(all->stages[i].thread, NULL);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->mutex);
    for (int i = 0; i < SL_SPLIT_STEPS; i++) {
        free_memory(all, &all->flights[i]);
    }
    for (int32_t p = 0; p < SL_MOST_DEVICES; p++) {
        sl_free(all->kernels[p]);
    }
    sl_free(all->given);
    sl_free(all->first_border);
    sl_free(all->passages);
    sl_free(all->last_tokens);
    sl_free(all);
}

/* ---- the caller ---- */

static int report_fault(const sl_stages *all, sl_error *error) {
    return all->fault.code ? sl_fail(error, SL_ERR_DEVICE, "%s", all->fault.message) : 0;
}

static flight *newest(sl_stages *all) {
    return &all->flights[(all->submitted + SL_SPLIT_STEPS - 1) % SL_SPLIT_STEPS];
}

/* `submitted` and `waited` are changed by the caller alone. */
void *sl_stages_block(sl_stages *all) {
    return all->flights[all->submitted % SL_SPLIT_STEPS].block;
}

static bool takes_tokens(const sl_stages *all, void *block) {
    const sl_step_row *rows = sl_step_rows(&all->plan->deployment.step, block);
    int32_t i = 0;
    while (i < sl_step_head(block)->rows && rows[i].source != SL_ROW_LAST_TOKEN) {
        i++;
    }
    return i < sl_step_head(block)->rows;
}

/* What can be said of a step before a device has begun it. */
static int check_step(const sl_stages *all, void *block, sl_error *error) {
    const sl_step_header *header = sl_step_head(block);
    for (int32_t p = 0; p < all->plan->segment_count; p++) {
        if (bucket_of(all, p, header) < 0) {
            return sl_fail(error, SL_ERR_INVALID, "step: %d rows and %d outputs fit no bucket",
                           (int)header->rows, (int)header->outputs);
        }
    }
#ifndef NDEBUG
    return sl_step_check(&all->plan->deployment.step, all->plan->deployment.program, block, error);
#else
    return 0;
#endif
}

int sl_stages_submit(sl_stages *all, sl_error *error) {
    flight *f = &all->flights[all->submitted % SL_SPLIT_STEPS];
    int code = check_step(all, f->block, error);
    pthread_mutex_lock(&all->mutex);
    const int fault = report_fault(all, error);
    code = fault ? fault : code;
    if (code == 0 && all->submitted - all->waited == SL_SPLIT_STEPS) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: %d are under way already", SL_SPLIT_STEPS);
    }
    if (code == 0 && all->submitted > all->waited && newest(all)->lacks_masks) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: the one in front waits for its masks");
    }
    if (code == 0) {
        f->takes_tokens = takes_tokens(all, f->block);
        f->lacks_masks = sl_step_head(f->block)->masks_later;
        f->stage = 0;
        all->submitted++;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->mutex);
    return code;
}

int sl_stages_resume(sl_stages *all, sl_error *error) {
    pthread_mutex_lock(&all->mutex);
    int code = report_fault(all, error);
    if (code == 0 && (all->submitted == all->waited || !newest(all)->lacks_masks)) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: none waits for masks");
    }
    if (code == 0) {
        newest(all)->lacks_masks = false;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->mutex);
    return code;
}

/* A step that was done counts, whatever became of the one behind it. */
int sl_stages_wait(sl_stages *all, sl_error *error) {
    int code = 0;
    pthread_mutex_lock(&all->mutex);
    if (all->submitted == all->waited) {
        code = report_fault(all, error);
    } else if (!all->fault.code && all->submitted - all->waited == 1 && newest(all)->lacks_masks) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: the oldest under way waits for its masks");
    } else {
        while (all->done == all->waited && !all->fault.code) {
            pthread_cond_wait(&all->changed, &all->mutex);
        }
        code = all->done > all->waited ? 0 : report_fault(all, error);
        all->waited += code == 0;
    }
    pthread_mutex_unlock(&all->mutex);
    return code;
}

static const flight *waited_for(const sl_stages *all) {
    return &all->flights[(all->waited + SL_SPLIT_STEPS - 1) % SL_SPLIT_STEPS];
}

const float *sl_stages_logits(sl_stages *all) {
    return waited_for(all)->logits;
}

const int32_t *sl_stages_tokens(sl_stages *all) {
    return waited_for(all)->tokens;
}

int sl_stages_check_idle(sl_stages *all, sl_error *error) {
    pthread_mutex_lock(&all->mutex);
    int code = report_fault(all, error);
    if (code == 0 && all->submitted != all->waited) {
        code = sl_fail(error, SL_ERR_INTERNAL, "pools: a step is in flight");
    }
    pthread_mutex_unlock(&all->mutex);
    return code;
}
