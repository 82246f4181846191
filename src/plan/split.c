/* The backend of several devices, and its executor, whose steps are those of stages.c. */
#include "plan/split.h"

#include "plan/ranks.h"
#include "plan/stages.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

typedef struct split {
    sl_backend base;
    sl_backend *parts[SL_MOST_DEVICES];
    int32_t count;
    const sl_kernel **kernels; /* of all parts */
    int32_t kernel_count;
    const sl_plan *plan;
    sl_split_kind kind;
    char name[64], description[512], part_names[SL_MOST_DEVICES][24];
} split;

struct sl_executor {
    const sl_plan *plan;
    sl_executor *parts[SL_MOST_DEVICES];
    sl_stages *stages;    /* steps: parts are theirs while one is in flight */
    sl_rank_group *ranks; /* or theirs */
};

static const sl_backend_functions layer_functions, tensor_functions;

static const sl_backend_functions *functions_of(const sl_executor *executor, int32_t part) {
    return executor->plan->segments[part].plan->backend->functions;
}

static const sl_deployment *deployment_of(const sl_executor *executor, int32_t part) {
    return &executor->plan->segments[part].plan->deployment;
}

/* ---- deploy ---- */

typedef struct part_progress {
    const sl_progress *whole;
    uint64_t before, total; /* bytes of weights */
} part_progress;

static bool report_part(void *context, uint64_t done, uint64_t total) {
    const part_progress *part = context;
    (void)total;
    return part->whole->report(part->whole->context, part->before + done, part->total);
}

static void destroy_executor(sl_executor *executor) {
    if (executor) {
        sl_stages_destroy(executor->stages);
        sl_ranks_destroy(executor->ranks);
    }
    for (int32_t s = 0; executor && s < executor->plan->segment_count; s++) {
        if (executor->parts[s]) {
            functions_of(executor, s)->destroy_executor(executor->parts[s]);
        }
    }
    sl_free(executor);
}

static int deploy_parts(sl_executor *executor, const sl_progress *progress, sl_error *error) {
    const sl_plan *plan = executor->plan;
    part_progress part = {.whole = progress, .total = plan->deployment.pool_bytes[SL_POOL_WEIGHTS]};
    const sl_progress own = {report_part, &part};
    for (int32_t s = 0; s < plan->segment_count; s++) {
        sl_program *program = (sl_program *)&plan->segments[s].program; /* copies of weights are no plan's */
        sl_plan *segment = plan->segments[s].plan;
        segment->backend->options.sleeps = plan->backend->stages > 1 && plan->backend->maps_weights;
        int code = sl_program_fill_slices(program, error);
        code = code ? code
                    : segment->backend->functions->deploy(segment->backend, &segment->deployment,
                                                          progress ? &own : NULL, &executor->parts[s], error);
        if (code || !segment->backend->maps_weights) {
            sl_program_drop_slices(program);
        }
        if (code) {
            return sl_fail_prefix(error, sl_split_part_name(plan->backend, s));
        }
        part.before += segment->deployment.pool_bytes[SL_POOL_WEIGHTS];
    }
    return 0;
}

static int deploy(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                  sl_executor **out, sl_error *error) {
    const split *self = (const split *)backend;
    *out = NULL;
    if (!self->plan || &self->plan->deployment != deployment) {
        return sl_fail(error, SL_ERR_INTERNAL, "%s: this deployment is no plan of the devices", self->name);
    }
    sl_executor *executor = sl_alloc_zero(1, sizeof *executor);
    if (!executor) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", self->name);
    }
    executor->plan = self->plan;
    int code = deploy_parts(executor, progress, error);
    if (code == 0) {
        code = self->kind == SL_SPLIT_TENSORS
                   ? sl_ranks_create(self->plan, executor->parts, &executor->ranks, error)
                   : sl_stages_create(self->plan, executor->parts, &executor->stages, error);
    }
    if (code) {
        destroy_executor(executor);
        return code;
    }
    *out = executor;
    return 0;
}

/* ---- steps ---- */

static void *step_block(sl_executor *executor) {
    return sl_stages_block(executor->stages);
}

/* Each part has buckets of its own. */
static int submit(sl_executor *executor, int32_t bucket, sl_error *error) {
    (void)bucket;
    return sl_stages_submit(executor->stages, error);
}

static int resume(sl_executor *executor, sl_error *error) {
    return sl_stages_resume(executor->stages, error);
}

static int wait_for_step(sl_executor *executor, sl_error *error) {
    return sl_stages_wait(executor->stages, error);
}

static const float *logits(sl_executor *executor) {
    return sl_stages_logits(executor->stages);
}

static const int32_t *tokens(sl_executor *executor) {
    return sl_stages_tokens(executor->stages);
}

static void *rank_block(sl_executor *executor) {
    return sl_ranks_block(executor->ranks);
}

static int rank_submit(sl_executor *executor, int32_t bucket, sl_error *error) {
    (void)bucket;
    return sl_ranks_submit(executor->ranks, error);
}

static int rank_resume(sl_executor *executor, sl_error *error) {
    return sl_ranks_resume(executor->ranks, error);
}

static int rank_wait(sl_executor *executor, sl_error *error) {
    return sl_ranks_wait(executor->ranks, error);
}

static const float *rank_logits(sl_executor *executor) {
    return sl_ranks_logits(executor->ranks);
}

static const int32_t *rank_tokens(sl_executor *executor) {
    return sl_ranks_tokens(executor->ranks);
}

/* ---- pools: pages and state slots, in which the parts' layers, or ranks' heads, lie one after the other.
 * What every rank has whole lies there once ---- */

typedef struct transfer {
    sl_pool_kind pool;
    void *to;         /* NULL: it is written */
    const void *from; /* NULL: it is read */
} transfer;

/* A page or slot of one device, and where it lies in the caller's memory. */
typedef struct piece {
    int32_t part;
    uint64_t offset, bytes, at;
} piece;

static int move(sl_executor *executor, const transfer *t, const piece *p, sl_error *error) {
    const sl_backend_functions *own = functions_of(executor, p->part);
    if (p->bytes == 0) {
        return 0;
    }
    sl_executor *part = executor->parts[p->part];
    return t->to ? own->read(part, t->pool, p->offset, (unsigned char *)t->to + p->at, p->bytes, error)
                 : own->write(part, t->pool, p->offset, (const unsigned char *)t->from + p->at, p->bytes,
                              error);
}

/* Whether `s` is one of several that have the same, and not the one that is read. */
static bool is_copy(const sl_executor *executor, const transfer *t, int32_t s, uint64_t own, uint64_t whole) {
    return executor->ranks && t->to && s > 0 && own == whole;
}

/* How much of the caller's memory is behind a part's piece. */
static uint64_t advance(const sl_executor *executor, int32_t s, uint64_t own, uint64_t whole) {
    const bool same = executor->ranks && own == whole && s + 1 < executor->plan->segment_count;
    return same ? 0 : own;
}

static int refuse_range(const sl_executor *executor, uint64_t offset, uint64_t bytes, sl_error *error) {
    return sl_fail(error, SL_ERR_INVALID, "%s: %llu bytes at %llu are no whole pages or slots",
                   executor->plan->backend->name, (unsigned long long)bytes, (unsigned long long)offset);
}

static int move_slots(sl_executor *executor, const transfer *t, uint64_t offset, uint64_t bytes,
                      sl_error *error) {
    const uint64_t slot = executor->plan->deployment.program->state_bytes;
    if (slot == 0 || offset % slot || bytes % slot) {
        return refuse_range(executor, offset, bytes, error);
    }
    int code = 0;
    for (uint64_t at = 0; at < bytes && code == 0;) {
        for (int32_t s = 0; s < executor->plan->segment_count && code == 0; s++) {
            const uint64_t own = executor->plan->segments[s].program.state_bytes;
            const piece p = {s, (offset + at) / slot * own, own, at};
            code = is_copy(executor, t, s, own, slot) ? 0 : move(executor, t, &p, error);
            at += advance(executor, s, own, slot);
        }
    }
    return code;
}

static int move_pages(sl_executor *executor, const transfer *t, uint64_t offset, uint64_t bytes,
                      sl_error *error) {
    const sl_deployment *whole = &executor->plan->deployment;
    int32_t g = whole->program->group_count - 1;
    while (g > 0 && offset < whole->cache_offsets[g]) {
        g--;
    }
    const uint64_t page = g < 0 ? 0 : whole->caches[g].page_bytes;
    if (page == 0 || (offset - whole->cache_offsets[g]) % page || bytes % page ||
        (offset - whole->cache_offsets[g] + bytes) / page > (uint64_t)whole->caches[g].pages) {
        return refuse_range(executor, offset, bytes, error);
    }
    int code = 0;
    for (uint64_t at = 0; at < bytes && code == 0;) {
        const uint64_t number = (offset - whole->cache_offsets[g] + at) / page;
        for (int32_t s = 0; s < executor->plan->segment_count && code == 0; s++) {
            const sl_deployment *own = deployment_of(executor, s);
            const uint64_t size = own->caches[g].page_bytes;
            const piece p = {s, own->cache_offsets[g] + number * size, size, at};
            code = is_copy(executor, t, s, size, page) ? 0 : move(executor, t, &p, error);
            at += advance(executor, s, size, page);
        }
    }
    return code;
}

static int move_pool(sl_executor *executor, const transfer *t, uint64_t offset, uint64_t bytes,
                     sl_error *error) {
    const int code = executor->ranks ? sl_ranks_check_idle(executor->ranks, error)
                                     : sl_stages_check_idle(executor->stages, error);
    if (code) {
        return code;
    }
    if (t->pool == SL_POOL_CACHE) {
        return move_pages(executor, t, offset, bytes, error);
    }
    if (t->pool == SL_POOL_STATE) {
        return move_slots(executor, t, offset, bytes, error);
    }
    return sl_fail(error, SL_ERR_INVALID, "%s: pool %d is apart on each device",
                   executor->plan->backend->name, (int)t->pool);
}

static int read_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                     sl_error *error) {
    const transfer t = {.pool = pool, .to = data};
    return move_pool(executor, &t, offset, bytes, error);
}

static int write_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, const void *data,
                      uint64_t bytes, sl_error *error) {
    const transfer t = {.pool = pool, .from = data};
    return move_pool(executor, &t, offset, bytes, error);
}

/* ---- measuring ---- */

static void counters(const sl_executor *executor, sl_counters *result) {
    sl_stages_counters(executor->stages, result);
}

static void rank_counters(const sl_executor *executor, sl_counters *result) {
    sl_ranks_counters(executor->ranks, result);
}

static int profile(sl_executor *executor, sl_profile *profile, sl_error *error) {
    (void)profile;
    return sl_fail(error, SL_ERR_UNSUPPORTED, "%s: a step is measured on one device alone",
                   executor->plan->backend->name);
}

static int rates(sl_executor *executor, sl_rates *rates, sl_error *error) {
    (void)rates;
    return sl_fail(error, SL_ERR_UNSUPPORTED, "%s: rates are those of one device alone",
                   executor->plan->backend->name);
}

/* ---- the backend ---- */

static const sl_kernel *const *list_kernels(const sl_backend *backend, int32_t *count) {
    const split *self = (const split *)backend;
    *count = self->kernel_count;
    return self->kernels;
}

static uint64_t memory_available(const sl_backend *backend) {
    const split *self = (const split *)backend;
    uint64_t sum = 0;
    for (int32_t i = 0; i < self->count; i++) {
        sum += self->parts[i]->functions->memory_available(self->parts[i]);
    }
    return sum;
}

static void destroy(sl_backend *backend) {
    split *self = (split *)backend;
    for (int32_t i = 0; i < self->count; i++) {
        sl_backend_close(self->parts[i]);
    }
    sl_free(self->kernels);
    sl_free(self);
}

static const sl_backend_functions tensor_functions = {
    .kernels = list_kernels,
    .deploy = deploy,
    .destroy_executor = destroy_executor,
    .step_block = rank_block,
    .submit = rank_submit,
    .resume = rank_resume,
    .wait = rank_wait,
    .logits = rank_logits,
    .tokens = rank_tokens,
    .read = read_pool,
    .write = write_pool,
    .counters = rank_counters,
    .profile = profile,
    .rates = rates,
    .memory_available = memory_available,
    .destroy = destroy,
};

static const sl_backend_functions layer_functions = {
    .kernels = list_kernels,
    .deploy = deploy,
    .destroy_executor = destroy_executor,
    .step_block = step_block,
    .submit = submit,
    .resume = resume,
    .wait = wait_for_step,
    .logits = logits,
    .tokens = tokens,
    .read = read_pool,
    .write = write_pool,
    .counters = counters,
    .profile = profile,
    .rates = rates,
    .memory_available = memory_available,
    .destroy = destroy,
};

int32_t sl_split_count(const sl_backend *backend) {
    const bool several = backend->functions == &layer_functions || backend->functions == &tensor_functions;
    return several ? ((const split *)backend)->count : 0;
}

sl_split_kind sl_split_kind_of(const sl_backend *backend) {
    return ((const split *)backend)->kind;
}

sl_backend *sl_split_part(const sl_backend *backend, int32_t index) {
    return ((const split *)backend)->parts[index];
}

const char *sl_split_part_name(const sl_backend *backend, int32_t index) {
    return ((const split *)backend)->part_names[index];
}

void sl_split_use(sl_backend *backend, const sl_plan *plan) {
    ((split *)backend)->plan = plan;
    backend->stages = sl_split_kind_of(backend) == SL_SPLIT_TENSORS ? 1 : sl_stages_count(plan);
}

/* ---- open ---- */

/* Host parts work at once: unless somebody says otherwise they have the processors' threads between them. */
static sl_backend_options share_threads(const char *devices, const sl_backend_options *options) {
    sl_backend_options own = *options;
    int32_t hosts = 0;
    for (const char *at = devices; *at; at += *at == '+') {
        const size_t length = strcspn(at, "+");
        hosts += length == 3 && memcmp(at, "cpu", 3) == 0;
        at += length;
    }
    if (own.threads == 0 && hosts > 1) {
        own.threads = sl_cpu_threads() / hosts > 1 ? sl_cpu_threads() / hosts : 1;
    }
    return own;
}

static int open_parts(split *self, const char *devices, const sl_backend_options *options, sl_error *error) {
    const sl_backend_options own = share_threads(devices, options);
    for (int pass = 0; pass < 2; pass++) { /* the host, then the others */
        for (const char *at = devices;;) {
            char name[32];
            const size_t length = strcspn(at, "+");
            if (length == 0 || length >= sizeof name) {
                return sl_fail(error, SL_ERR_INVALID, "device %s: names of devices with + between", devices);
            }
            memcpy(name, at, length);
            name[length] = '\0';
            if ((strcmp(name, "cpu") == 0) == (pass == 0)) {
                if (self->count == SL_MOST_DEVICES) {
                    return sl_fail(error, SL_ERR_INVALID, "device %s: at most %d", devices, SL_MOST_DEVICES);
                }
                const int code = sl_backend_open(name, &own, &self->parts[self->count], error);
                if (code) {
                    return sl_fail_prefix(error, name);
                }
                self->count++;
            }
            if (at[length] == '\0') {
                break;
            }
            at += length + 1;
        }
    }
    return self->count > 1
               ? 0
               : sl_fail(error, SL_ERR_INVALID, "device %s: names of devices with + between", devices);
}

/* Ranks meet in their kernels, so these must be of one kind. */
static int check_alike(const split *self, sl_error *error) {
    for (int32_t i = 0; i < self->count; i++) {
        if (self->parts[i]->functions != self->parts[0]->functions || !self->parts[i]->functions->join) {
            return sl_fail(
                error, SL_ERR_UNSUPPORTED,
                "device %s: tensors are split over devices of one kind; these can have layers each",
                self->name);
        }
    }
    return 0;
}

/* "cpu", "cuda", or of several GPUs "cuda:1". */
static void name_parts(split *self) {
    int32_t gpus = 0;
    for (int32_t i = 0; i < self->count; i++) {
        gpus += strcmp(self->parts[i]->name, "cpu") != 0;
    }
    for (int32_t i = 0; i < self->count; i++) {
        const sl_backend *part = self->parts[i];
        const bool numbered = gpus > 1 && strcmp(part->name, "cpu") != 0;
        char number[16] = "";
        if (numbered) {
            snprintf(number, sizeof number, ":%d", (int)part->options.device);
        }
        snprintf(self->part_names[i], sizeof self->part_names[i], "%.7s%s", part->name, number);
    }
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int join(split *self, sl_error *error) {
    size_t named = 0, described = 0;
    name_parts(self);
    self->base.chunk = self->base.fixed_rows = self->base.fixed_rows_of_floats = INT32_MAX;
    for (int32_t i = 0; i < self->count; i++) {
        const sl_backend *part = self->parts[i];
        int32_t count = 0;
        part->functions->kernels(part, &count);
        self->kernel_count += count;
        self->base.maps_weights |= part->maps_weights;
        self->base.options = part->options;
        self->base.chunk = least(part->chunk, self->base.chunk);
        /* The slowest device says how long a turn is: of the parts the one whose rows take most. */
        self->base.fixed_rows = least(part->fixed_rows, self->base.fixed_rows);
        self->base.fixed_rows_of_floats = least(part->fixed_rows_of_floats, self->base.fixed_rows_of_floats);
        named += (size_t)snprintf(self->name + named, sizeof self->name - named, "%s%s", i ? "+" : "",
                                  self->part_names[i]);
        described += (size_t)snprintf(self->description + described, sizeof self->description - described,
                                      "%s%s", i ? "; " : "", part->description);
        if (named >= sizeof self->name || described >= sizeof self->description) {
            return sl_fail(error, SL_ERR_LIMIT, "device %s: too long a name", self->name);
        }
    }
    self->kernels = sl_alloc_zero((size_t)self->kernel_count + 1, sizeof *self->kernels);
    if (!self->kernels) {
        return sl_fail(error, SL_ERR_NOMEM, "device %s: out of memory", self->name);
    }
    for (int32_t i = 0, at = 0; i < self->count; i++) {
        int32_t count = 0;
        const sl_kernel *const *own = self->parts[i]->functions->kernels(self->parts[i], &count);
        memcpy(self->kernels + at, own, (size_t)count * sizeof *own);
        at += count;
    }
    self->base.functions = self->kind == SL_SPLIT_TENSORS ? &tensor_functions : &layer_functions;
    self->base.name = self->name;
    self->base.description = self->description;
    self->base.steps_in_flight =
        self->kind == SL_SPLIT_TENSORS ? self->parts[0]->steps_in_flight : SL_SPLIT_STEPS;
    return self->kind == SL_SPLIT_TENSORS ? check_alike(self, error) : 0;
}

int sl_split_open(const char *devices, sl_split_kind kind, const sl_backend_options *options,
                  sl_backend **backend, sl_error *error) {
    *backend = NULL;
    split *self = sl_alloc_zero(1, sizeof *self);
    if (!self) {
        return sl_fail(error, SL_ERR_NOMEM, "device %s: out of memory", devices);
    }
    self->kind = kind;
    int code = open_parts(self, devices, options, error);
    code = code ? code : join(self, error);
    if (code) {
        destroy(&self->base);
        return code;
    }
    *backend = &self->base;
    return 0;
}
