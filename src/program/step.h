/* The step block: all that varies from step to step, in one piece of memory that reaches a backend in one
 * copy. Device kernels read it in place, so it holds only int32, uint32, float and bytes, and its layout is
 * fixed by the limits of the plan. */
#ifndef SL_PROGRAM_STEP_H
#define SL_PROGRAM_STEP_H

#include "program/program.h"
#include "quant/convert.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one step may hold at most. */
typedef struct sl_limits {
    int32_t rows;        /* rows of a step (the prefill chunk) */
    int32_t outputs;     /* rows of a step that may have outputs */
    int32_t sequences;   /* sequence slots: page tables on the device, and spans of a step */
    int32_t context;     /* positions of one sequence; a page-table row has sl_table_width(context) entries */
    int32_t adjustments; /* of logits, all outputs together */
    int32_t masks;       /* of tokens that may come, all outputs together */
    int32_t mask_tokens; /* that a mask is of: the vocabulary */
    int32_t keep; /* tokens that a compacted sequence keeps for each key head; 0: no step compacts. Otherwise
                     the page tables have a spare row behind those of the slots: where COMPACT writes */
    int32_t states; /* slots that a step may write, all sequences together */
} sl_limits;

/* Adjustments of one output at most; a plan has room for as many per sequence. */
enum { SL_ADJUSTMENTS = 4096 };

enum { SL_SPAN_STATES = 33 }; /* that one span leaves at most */

typedef struct sl_step_header {
    int32_t rows, outputs, spans;
    int32_t table_changes, page_copies;
    int32_t want_logits; /* 1: the caller reads logits after this step */
    int32_t adjustments, masks;
    int32_t masks_later; /* 1: the masks are written after the step was submitted, and then told of
                            (sl_backend_functions.resume) */
    int32_t compact;     /* 1: its only sequence is compacted (sl_op_compact), in a bucket that does that */
} sl_step_header;

typedef enum sl_row_source {
    SL_ROW_TOKEN,      /* `token` is the id */
    SL_ROW_LAST_TOKEN, /* the token sampled last for this row's sequence, which is on the device */
} sl_row_source;

typedef struct sl_step_row {
    int32_t source; /* sl_row_source */
    int32_t token;
    int32_t position; /* logical: rotary embedding */
    int32_t span;
} sl_step_row;

/* The rows of one sequence: adjacent, in order of position. */
typedef struct sl_step_span {
    int32_t slot; /* row of the page tables */
    int32_t first_row, row_count;
    int32_t state_read; /* state slot to start from; SL_NONE: zeros */
    /* The last state_count rows leave the state behind them in slots: states[state_first] and those behind it
     * of the step's. Nobody reads such a slot in the step, nor writes it twice. Spans have theirs one behind
     * the other, each at least one; without recurrent layers none has any. */
    int32_t state_first, state_count;
    /* Per cache group: tokens this sequence has in the cache before the step, counted in the table's
     * (physical) order. Row i of the span is stored at index length + i: page table[index / SL_PAGE_TOKENS],
     * and sees indices (index - window, index]. Pages that a window has left behind may be SL_NONE in the
     * table. */
    int32_t length[SL_CACHE_GROUPS];
    int32_t written; /* of each length, tokens that the step itself writes: in spans of the tail rows that
                        stand in front of theirs; 0 otherwise */
} sl_step_span;

/* table[group][slot][index] = page, applied before anything reads it. */
typedef struct sl_table_change {
    int32_t group, slot, index, page; /* slot == limits.sequences: the spare row */
} sl_table_change;

/* A whole page of all layers of a group, copied before the step's own writes (a shared page is about to be
 * written). */
typedef struct sl_page_copy {
    int32_t group, source, target;
} sl_page_copy;

/* A token's logit before anything else looks at it: x = logit + before; x = x > 0 ? x / repetition
 * : x * repetition; x = x + after. If that is no number it counts as -infinity; a logit
 * that was none before is left to be found (SL_NO_TOKEN). */
typedef struct sl_adjustment {
    int32_t token;
    float before; /* -INFINITY: never this token */
    float repetition, after;
} sl_adjustment;

/* Words of a mask of so many tokens: bit i % 32 of word i / 32 says that token i may come. A mask is a whole
 * number of 16 bytes. */
SL_INLINE int32_t sl_mask_words(int32_t tokens) {
    return tokens > 0 ? ((tokens - 1) / 128 + 1) * 4 : 0;
}

/* What can be done about candidates before one is drawn. Numbers are part of the step block. */
typedef enum sl_sampler_stage {
    SL_STAGE_END,
    SL_STAGE_TOP_N_SIGMA,
    SL_STAGE_TOP_K,
    SL_STAGE_TYPICAL_P,
    SL_STAGE_TOP_P,
    SL_STAGE_MIN_P,
    SL_STAGE_XTC,
    SL_STAGE_TEMPERATURE,
    SL_STAGE_COUNT,
} sl_sampler_stage;

enum { SL_SAMPLER_STAGES = 8 }; /* of one sampler at most */

/* What is sampled when there is nothing to sample from. Single logits of -infinity are legal. The sequence's
 * last token is 0 then. */
enum {
    SL_NO_TOKEN = -1,     /* a token that the mask has: its logit is no number, or infinite once adjusted */
    SL_NO_TOKEN_LEFT = -2 /* all logits are -infinity once adjusted and masked */
};

/* temperature 0: the likeliest token, the lowest id in a tie. Otherwise the stages of `order` up to the first
 * SL_STAGE_END, each on what the one before it left, and a draw. Probabilities are those of the logits over
 * the temperature once that stage was, over 1 before, among what is left:
 *   top-n-sigma  logits of at least the largest less top_n_sigma standard deviations of all finite ones (0:
 *                all; Tang et al.: "Top-n-sigma: Not All Logits Are You Need", arXiv 2411.07641)
 *   top-k        the top_k likeliest (0: all)
 *   typical-p    below
 *   top-p        the fewest of the likeliest whose probabilities reach top_p (>= 1: all)
 *   min-p        those with at least min_p times the probability of the likeliest (0: all)
 *   XTC          with the probability xtc_probability, by a random number of its own: if several have a
 *                probability of at least xtc_threshold, only the least likely of these stays (the highest id
 *                in a tie), with all that are less likely (text-generation-webui, pull request 6335)
 *   temperature  temperature, or with a dynamic_range above 0 low + (high - low) * (H / ln n) ^
 *                dynamic_exponent: low and high are the temperature less and plus the range, low at least 0,
 *                H the entropy of the n candidates left (llama.cpp, pull request 4972); at least 1e-4
 * typical-p (0 or >= 1: all) is locally typical sampling (Meister, Pimentel, Wiher, Cotterell: "Locally
 * Typical Sampling", 2022): the fewest candidates whose probabilities reach typical_p, in order of |-ln p -
 * H|, H being the entropy, ties by lower id. As -ln p = c - x for the logit x over the temperature, and so H
 * = c - E[x], that is the order of |x - E[x]|, which kernels compute. Random numbers come from a
 * counter-based generator over (seed, counter), so that they do not depend on what else is in the step. */
typedef struct sl_sampler {
    float temperature, top_p, min_p, typical_p;
    int32_t top_k;
    float top_n_sigma, xtc_probability, xtc_threshold, dynamic_range, dynamic_exponent;
    uint8_t order[SL_SAMPLER_STAGES]; /* sl_sampler_stage, none twice */
    uint32_t seed_low, seed_high;
    uint32_t counter;
} sl_sampler;

/* Finite differences from 0 are divided by it, so that none becomes 0. */
#define SL_LEAST_TEMPERATURE 1e-4f

typedef struct sl_step_output {
    int32_t row;                                /* of the step */
    int32_t slot;                               /* whose last token the sampled one becomes */
    int32_t adjustment_first, adjustment_count; /* in the step's adjustments; no token twice */
    int32_t mask; /* in the step's masks; a token whose bit is not set counts as -infinity, whatever its
                     logit. SL_NONE: every token may come */
    sl_sampler sampler;
} sl_step_output;

/* Byte offsets of the arrays in a block, for given limits; each is a multiple of 64. There is room to change
 * every entry of every page table once, and to copy one page per group and sequence. The table changes come
 * last; right behind those that a step has come its adjustments, of the same size, and behind these its
 * masks: what a step uses of a block is a short prefix (sl_step_used_bytes), and room that it does not use
 * costs it nothing. */
typedef struct sl_step_layout {
    sl_limits limits;
    int32_t max_table_changes, max_page_copies;
    uint64_t rows, spans, states, table_changes, page_copies, outputs;
    uint64_t bytes;
    uint64_t tail, tail_rows, tail_spans; /* what sl_step_write_tail fills in */
} sl_step_layout;

void sl_step_layout_init(sl_step_layout *layout, const sl_limits *limits, int32_t group_count);

/* Entries of one sequence's page-table row in each group. */
static inline int32_t sl_table_width(int32_t context) {
    return (context + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
}

/* Rows of the page tables in each group: one for each slot, and the spare one. */
static inline int32_t sl_table_rows(const sl_limits *limits) {
    return limits->sequences + (limits->keep > 0);
}

#define SL_STEP_ARRAY(type, name)                                                                            \
    static inline type *sl_step_##name(const sl_step_layout *layout, void *block) {                          \
        return (type *)(void *)((unsigned char *)block + layout->name);                                      \
    }
SL_STEP_ARRAY(sl_step_row, rows)
SL_STEP_ARRAY(sl_step_span, spans)
SL_STEP_ARRAY(int32_t, states)
SL_STEP_ARRAY(sl_table_change, table_changes)
SL_STEP_ARRAY(sl_page_copy, page_copies)
SL_STEP_ARRAY(sl_step_output, outputs)
SL_STEP_ARRAY(sl_step_header, tail)
SL_STEP_ARRAY(sl_step_row, tail_rows)
SL_STEP_ARRAY(sl_step_span, tail_spans)
#undef SL_STEP_ARRAY

static inline sl_step_header *sl_step_head(void *block) {
    return (sl_step_header *)block;
}

/* They begin where the table changes end, so those must be complete before the first is written. */
static inline sl_adjustment *sl_step_adjustments(const sl_step_layout *layout, void *block) {
    return (sl_adjustment *)(void *)(sl_step_table_changes(layout, block) +
                                     sl_step_head(block)->table_changes);
}

/* They begin where the adjustments end, so those must be complete before the first is written. Each has
 * sl_mask_words(mask_tokens) words. */
static inline uint32_t *sl_step_masks(const sl_step_layout *layout, void *block) {
    return (uint32_t *)(void *)(sl_step_adjustments(layout, block) + sl_step_head(block)->adjustments);
}

/* Bytes from the start of a block to its masks, and to the end of all that its header counts. */
static inline uint64_t sl_step_unmasked_bytes(const sl_step_layout *layout, void *block) {
    const sl_step_header *head = sl_step_head(block);
    return layout->table_changes + (uint64_t)head->table_changes * sizeof(sl_table_change) +
           (uint64_t)head->adjustments * sizeof(sl_adjustment);
}

static inline uint64_t sl_step_used_bytes(const sl_step_layout *layout, void *block) {
    return sl_step_unmasked_bytes(layout, block) + (uint64_t)sl_step_head(block)->masks *
                                                       (uint64_t)sl_mask_words(layout->limits.mask_tokens) *
                                                       sizeof(uint32_t);
}

/* The rows with outputs as a step of their own, of a program that has a tail: its header, rows and spans. A
 * row's outputs, position and place in the cache stay what they are, and so do the ends of spans. For
 * backends, of a block that was checked. */
void sl_step_write_tail(const sl_step_layout *layout, void *block);

/* Verifies a block against its layout and program: counts, slots, pages, row order. For tests and debug
 * builds of a backend. */
int sl_step_check(const sl_step_layout *layout, const sl_program *program, void *block, sl_error *error);

#ifdef __cplusplus
}
#endif
#endif
