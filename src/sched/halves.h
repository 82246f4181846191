/* Do those who generate go into one step, or into two halves? Where devices work on two steps at once
 * (sl_backend.stages), a step of one half can be on the second device while the other half's is on the first.
 *
 * With stages of s1 and s2 seconds a round, in which everybody gets a token, takes s1 + s2 in one step: the
 * next one waits for its tokens. In two halves of t1 and t2 seconds it takes twice the longer of t1 and t2.
 * So halves pay where 2 max(t1, t2) < s1 + s2. Of equal stages whose time is all rows, t = s / 2, a round
 * takes half as long; where it is all weights, t = s, as long as before. Unequal stages lose, whatever a row
 * costs. Nobody can measure t1 and t2 from outside, nor foresee them: so both ways are tried, some rounds
 * each, and the quicker one is kept for a while.
 *
 * Times are seconds. What a clock cannot have measured (not above 0, not finite) is left out. */
#ifndef SL_SCHED_HALVES_H
#define SL_SCHED_HALVES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SL_HALVES_ROUNDS = 7, /* that each way is measured for */
    SL_HALVES_SIZES = 31, /* up to 2, 4, 8, ... sequences */
};

/* What is known of so many sequences. */
typedef struct sl_halves_size {
    bool halved;                     /* the way that is kept */
    bool trying;                     /* the other one is tried */
    double kept;                     /* seconds a token of the way that is kept, when the trial began */
    double tokens[SL_HALVES_ROUNDS]; /* seconds a token of the rounds measured now */
    int32_t rounds;                  /* of those */
    int32_t lost;                    /* steps since the last of those that said nothing */
    int32_t works;                   /* sequences of the first of those */
    int32_t left, pause;             /* rounds until the next trial / behind the last */
} sl_halves_size;

/* All zero: nothing was measured; one step is the way until it was. */
typedef struct sl_halves {
    sl_halves_size sizes[SL_HALVES_SIZES];
    bool halved;   /* the way of the last step */
    int32_t steps; /* that went so, one after the other */
    /* Of the round that is measured. */
    double seconds;
    int32_t generated, parts;
} sl_halves;

/* A step that was done. `seconds`: since the step before it was, or since it began where none was. */
typedef struct sl_halves_step {
    int32_t works;     /* that generated then, in this step or in another */
    int32_t generated; /* tokens; 0: it did something else as well, or its time is not that of its way */
    bool halved;
} sl_halves_step;

/* Where `works` sequences generate, at least 2. */
bool sl_halves_pay(const sl_halves *halves, int32_t works);
void sl_halves_measured(sl_halves *halves, sl_halves_step step, double seconds);

#endif
