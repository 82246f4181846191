/* A plan: a program made ready for a backend and limits. It fixes the op order, every buffer, the kernel of
 * every op in every bucket, and the bytes of every pool, before anything is loaded; a step then only runs it.
 */
#ifndef SL_PLAN_PLAN_H
#define SL_PLAN_PLAN_H

#include "backend/backend.h"
#include "base/sha256.h"

enum { SL_MOST_DEVICES = 4, SL_DEVICE_LIMITS = 8 };

/* Bytes of one device, or of each of a kind. */
typedef struct sl_device_limit {
    char device[16]; /* "cpu", "cuda:1"; "cuda": those without a limit of their own */
    uint64_t bytes;  /* 0: what it has free */
} sl_device_limit;

/* Second copies of weights, in a layout that is faster for many rows. AUTO: where all of the plan takes half
 * of its memory limit with them, or less, and no weights lie in host memory. ALWAYS: SL_ERR_LIMIT where they
 * do not fit. */
typedef enum sl_copies { SL_COPIES_AUTO, SL_COPIES_NEVER, SL_COPIES_ALWAYS, SL_COPIES_COUNT } sl_copies;

typedef struct sl_plan_options {
    int32_t chunk;     /* rows of a step; 0: the backend's own choice */
    int32_t sequences; /* slots; 0: 8 */
    int32_t context;   /* positions of one sequence; 0: 4096 (the caller caps it by the model's own) */
    int32_t outputs;   /* rows with outputs in one step; 0: `sequences`; at least that */
    int32_t drafts;    /* rows of a step that may be drafts, with an output each beside `outputs`; 0: none */
    sl_qtype cache_type;   /* F16 is the usual one; see sl_qtype_is_cache */
    uint64_t cache_tokens; /* tokens in all pages of a full group; 0: sequences * context (in whole pages),
                              shrunk to what memory allows */
    int32_t state_slots;   /* 0: 2 per sequence, 16 for snapshots, and one for each draft; without recurrent
                              layers   there are none */
    uint64_t memory_limit; /* bytes of all pools; 0: what the backend has free. On several devices: of each
                              that is not the host */
    uint64_t host_memory_limit;      /* of the host's pools, on several devices and of weights in host memory;
                                        0: what it has free */
    int32_t layers[SL_MOST_DEVICES]; /* on several devices: of the model, on each, one after the other. All 0:
                                        as many on the last as fit, then on the one before it, ... */
    int32_t host_experts;  /* on several devices: experts of so many of the first layers are on the host,
                              wherever the rest of the layer is. On one that is not the host: they lie in host
                              memory, and the device fetches them; SL_NONE: as few as must be */
    int32_t host_layers;   /* on one device that is not the host, of a program without experts: the weights of
                              so many layers lie in host memory, and the device fetches them; SL_NONE: as few as
                              must be */
    int32_t expert_slots;  /* experts of such a layer that lie on the device as well; 0: see expert_cache */
    uint64_t expert_cache; /* bytes of all slots; 0: a quarter of the experts, fewer where they do not fit,
                              and as many more as fit */
    int32_t
        kv_budget; /* tokens that a sequence keeps for each key head behind a prompt that is longer; 0: all */
    int32_t kv_window, kv_pool; /* see sl_op_compact: rows that choose them, 0: 64; pooled keys, 0: 7 */
    sl_copies copies;
    const char *prefer; /* beginnings of kernels' names, with commas between: those are tried first. NULL:
                           the backend's own order */
    bool embed;         /* ends at the final norm: no logits, no tokens. Programs without a head always do */
    bool observe;       /* an OBSERVE in front of every LINEAR, for each of its weights */
    uint64_t
        landing_bytes; /* of the device, on one of several: what others send it (sl_stages_landing_bytes) */
    sl_device_limit limits[SL_DEVICE_LIMITS]; /* ahead of memory_limit, and "cpu" of host_memory_limit; one
                                                 without a name ends the list */
    /* [layers][experts]: how often each was used; where they lie in host memory the most used ones are in
     * slots from the start. Borrowed as long as the plan lives. NULL: none are. */
    const uint64_t *expert_uses;
} sl_plan_options;

/* One line of the memory table. */
typedef struct sl_memory_row {
    const char *device; /* of several; NULL: there is one */
    char name[64];
    sl_pool_kind pool;
    uint64_t bytes;
    char detail[96]; /* "512 pages of 64 tokens" */
} sl_memory_row;

/* Why a kernel that comes before the chosen one was not taken, or a fusion of the op and those behind it. */
typedef struct sl_declined {
    int32_t bucket, op;
    const char *name; /* of the kernel or fusion */
    const char *reason;
} sl_declined;

typedef struct sl_plan sl_plan;

/* What one of several devices does of a step. */
typedef struct sl_plan_segment {
    sl_program program;
    sl_plan *plan;
    int32_t first_layer, end_layer; /* of the model; experts may be elsewhere (host_experts) */
} sl_plan_segment;

struct sl_plan {
    sl_arena arena;
    sl_backend *backend;     /* borrowed */
    sl_plan_options options; /* as resolved */
    int32_t fixed_rows;      /* the backend's, for weights as most of these are */
    bool has_copies;         /* kernels that copy weights may be taken */
    bool is_usual_chunk;     /* options.chunk is the backend's own choice: steps may have fewer rows */
    sl_deployment deployment;
    /* Behind the last op that leaves something in a cache or state, rows without outputs matter to nobody. So
     * buckets may run these ops instead of the program's: from there on, their values have rows with outputs
     * alone. op_count 0: there is nothing to be saved. */
    struct sl_plan_tail {
        sl_program with_values; /* the program, with the values that these ops have besides */
        sl_op *ops;             /* in place of all that do not draft */
        int32_t *origins;       /* [op_count]: which of the program's ops each is */
        int32_t op_count;
    } tail;
    sl_memory_row *memory;
    int32_t memory_count;
    uint64_t mapped_bytes; /* weights read where the file is mapped */
    sl_declined *declined;
    int32_t declined_count, declined_capacity;
    /* On several devices (split.h): what each does, and in which order. The deployment has no ops then. */
    sl_plan_segment segments[SL_MOST_DEVICES];
    int32_t segment_count; /* 0: one device */
    sl_partition partition;
    uint64_t flight_bytes; /* of host memory, in SL_POOL_STAGING: what steps take along */
};

/* The limit of options->limits for a device by its backend's name and number; `otherwise` where there is
 * none. */
uint64_t sl_plan_limit(const sl_plan_options *options, const char *name, int32_t number, uint64_t otherwise);

/* Bytes of all pools on the plan's device or devices: without weights in host memory beside one. */
static inline uint64_t sl_plan_bytes(const sl_plan *plan) {
    uint64_t sum = 0;
    for (int pool = 0; pool < SL_POOL_COUNT; pool++) {
        sum += pool == SL_POOL_HOST_WEIGHTS ? 0 : plan->deployment.pool_bytes[pool];
    }
    return sum;
}

/* `program` and `backend` must outlive the plan; `options` may be NULL. The weights pool holds
 * deployment.weights in that order, each from a multiple of 64 on; those with 0 bytes are read where the file
 * is mapped. SL_ERR_UNSUPPORTED names an op that no kernel takes; SL_ERR_LIMIT a plan that does not fit
 * memory (the message holds the sum and the limit). */
int sl_plan_create(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                   sl_plan **plan, sl_error *error);
void sl_plan_destroy(sl_plan *plan);

/* The smallest bucket with room for the step's rows and outputs, of its kind: some are only for steps in
 * which every sequence has one row, and one for those that compact. -1 when there is none. */
int32_t sl_plan_bucket(const sl_plan *plan, const sl_step_header *step);
/* The same of those that draft, with an output for each row. */
int32_t sl_plan_draft_bucket(const sl_plan *plan, int32_t rows);

/* Of all that the bytes in the cache depend on, besides tokens: the program, its weights (of large ones
 * samples), the cache's layout, the kernels' numeric classes in every bucket, the machine as far as they say
 * no more, and `version`, the library's. Limits are not in it, nor is what kernels are named. The weights'
 * data must be held. SL_ERR_NOMEM. */
int sl_plan_fingerprint(const sl_plan *plan, const char *version, sl_digest *digest, sl_error *error);

/* ---- where a step's time goes ---- */

/* A step that ran: its bucket, its true rows, and how many keys a row saw in the mean. */
typedef struct sl_plan_step {
    int32_t bucket;
    int32_t rows[SL_ROWS_COUNT];
    int32_t keys;
    int32_t spans; /* sequences in it */
} sl_plan_step;

/* All ops of a step with one kernel and one shape, or all runs with one fusion and shapes. */
typedef struct sl_profile_row {
    const char *kernel; /* or fusion */
    const char *shape;  /* "linear q4_k 4096+1024+1024x4096 from bf16"; of a run, all with " > " between */
    int32_t calls, ops; /* ops: of all calls */
    double seconds;     /* of all calls */
    sl_cost cost;       /* of all calls */
    double products;    /* of the cost, operations that are products of one arithmetic, which most are */
    sl_arithmetic arithmetic;
} sl_profile_row;

typedef struct sl_plan_profile {
    sl_arena arena;
    sl_plan_step step;
    int32_t bucket_rows, op_count;
    sl_profile_row *rows; /* the slowest first */
    int32_t row_count;
    double step_seconds;
    sl_rates rates; /* see sl_profile */
} sl_plan_profile;

/* Measures the executor's last step (see sl_backend_functions.profile), which was `step`. Zero-initialise
 * *profile; free it after success and failure alike. SL_ERR_INVALID when no step has run. */
int sl_plan_profile_step(const sl_plan *plan, sl_executor *executor, const sl_plan_step *step,
                         sl_plan_profile *profile, sl_error *error);
void sl_plan_profile_free(sl_plan_profile *profile);

/* ---- text ---- */

/* Text for people, appended to `out`. */
void sl_plan_print_memory(const sl_plan *plan, sl_buffer *out);
void sl_plan_print_ops(const sl_plan *plan, int32_t bucket, sl_buffer *out);
/* The kernel of every op in every bucket (equal lines folded), and for each better one why it was declined.
 */
void sl_plan_explain(const sl_plan *plan, sl_buffer *out);
void sl_plan_print_profile(const sl_plan_profile *profile, sl_buffer *out);

#endif
