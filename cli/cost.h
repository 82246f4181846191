/* What tokens of a model cost, and how long that takes at least by the rates of a device. */
#ifndef CLI_COST_H
#define CLI_COST_H

#include "sluice.h"

/* What products are computed with: see sluice_rates. */
enum { PRODUCTS_INT8, PRODUCTS_BF16, PRODUCTS_F32, PRODUCTS };
enum { ATTENTION_GROUPS = 8 };

/* Of a group of layers whose keys and values are cached alike. */
typedef struct attention_cost {
    double window;     /* keys that a row sees at most; 0: all */
    double elements;   /* that a token keeps, in all these layers */
    double operations; /* of a row, for each key that it sees */
} attention_cost;

/* What one token costs. From the weights as `inspect` lists them, so that it is true of every family. */
typedef struct cost {
    double bytes;                /* of weights that a step of one token reads, without experts */
    double expert_bytes;         /* of all experts */
    double operations[PRODUCTS]; /* multiplications and additions of a token in matrices, without the head */
    double head_operations[PRODUCTS];
    double experts, experts_used;
    attention_cost attention[ATTENTION_GROUPS];
    int attention_count;
    char type[16]; /* the type with the most bytes */
} cost;

/* What a measurement asks of the device. */
typedef struct demand {
    int32_t prompt, generate, depth, sequences;
    int32_t chunk; /* rows of a step */
    double cache_element_bytes;
} demand;

/* Of a model, one whose weights are not there included. 0 or the error's code. */
int read_cost(const sluice_model *model, cost *cost, sluice_error *error);
/* Bytes of weights that a step of `rows` tokens reads: experts by the share that so many random choices
 * touch. */
double step_bytes(const cost *cost, double rows);
double all_products(const double operations[PRODUCTS]);
/* 0 for no type of caches. */
double cache_element_bytes(const char *type);
/* The least that rates of a device allow for that; 0: nothing is known. Weights are read once a step, and so
 * are the keys and values that a sequence's rows see. */
double least_seconds(const cost *cost, const demand *demand, const sluice_rates *rates);

#endif
