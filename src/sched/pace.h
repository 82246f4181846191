/* How many drafted tokens are worth their rows: from what steps of so many rows took, and how often a
 * sequence's drafts were right lately.
 *
 * Times are seconds. What a clock cannot have measured (below 0, not finite) is left out. */
#ifndef SL_SCHED_PACE_H
#define SL_SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_PACE_ROWS = 256 };  /* steps of more rows count as steps of so many */
enum { SL_PACE_DRAFTS = 16 }; /* of a step; those behind count as the last of so many */

/* How often drafts were right lately, all zero: none was made. */
typedef struct sl_chances {
    double right[SL_PACE_DRAFTS]; /* each, if those before it were */
    int32_t made;                 /* of how many that is known */
} sl_chances;

/* All zero: nothing was measured. */
typedef struct sl_pace {
    double seconds[SL_PACE_ROWS + 1]; /* of steps with so many rows and no prompt; 0: not known */
    bool met[SL_PACE_ROWS + 1];       /* there was a step of so many rows */
    double draft_seconds;             /* that making a drafted token takes */
    sl_chances chances;               /* of all sequences */
    int32_t pause; /* next_pause of the sequence that drafted last, with which others begin; 0: none did */
} sl_pace;

/* What is known of one sequence's drafts. */
typedef struct sl_luck {
    sl_chances chances;
    int32_t pause; /* tokens until drafts are tried again */
    int32_t next_pause;
    int32_t steps;  /* with drafts since one without */
    int32_t misses; /* times in a row that there was nothing to draft */
} sl_luck;

/* What a sequence begins with. */
sl_luck sl_luck_begin(const sl_pace *pace);
/* Of `drafted` tokens of a sequence, above 0, the first `accepted` were right. */
void sl_pace_note(sl_pace *pace, sl_luck *luck, int32_t drafted, int32_t accepted);
/* There was nothing to draft. */
void sl_luck_miss(sl_luck *luck);
/* The sequence has a token more. */
void sl_luck_pass(sl_luck *luck);

/* A step without prompts took so long. The first of so many rows does not count. */
void sl_pace_measured(sl_pace *pace, int32_t rows, double seconds);
void sl_pace_drafted(sl_pace *pace, int32_t tokens, double seconds);

/* Drafts of one sequence, at most `most`, for a step that has `rows` rows without them and gives `tokens`
 * tokens, on average: as many as let the step give most tokens a second. At most twice the rows of a step
 * that was measured. */
int32_t sl_pace_choose(const sl_pace *pace, const sl_luck *luck, int32_t rows, double tokens, int32_t most);
/* Drafts are not worth it: none for a while, unless what is drafted this once is right. */
void sl_luck_rest(sl_luck *luck);
/* Tokens that so many drafts add, on average. */
double sl_luck_gain(const sl_luck *luck, int32_t drafts);
/* Would not even drafts that are nearly always right be worth it? */
bool sl_pace_is_full(const sl_pace *pace, int32_t rows, double tokens);

#endif
