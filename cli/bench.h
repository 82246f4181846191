/* What the files of `sluice bench` share. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include "cli.h"

/* What one token costs. From the weights as `inspect` lists them, so that it is true of every family. */
typedef struct cost {
    double bytes;        /* of weights that a step of one token reads, without experts */
    double expert_bytes; /* of all experts */
    double operations;   /* multiplications and additions of a token in matrices, head not counted */
    double head_operations;
    double experts, experts_used;
    char type[16]; /* the type with the most bytes */
} cost;

typedef struct bench {
    const settings *settings;
    session session;
    sluice_model_info info;
    cost cost;
    int32_t sequences, threads, context;
    int32_t *tokens; /* [context] */
    bool first;      /* row of output */
    json_t *rows;
} bench;

/* "qwen3 8.2B Q8_0" / "CUDA" */
void model_type(const bench *b, char name[64]);
void backend_name(const bench *b, char name[32]);
/* A row of the output that is no markdown: printed now, or kept for the end; takes `row` over. NULL: no
 * memory. */
int print_row(bench *b, json_t *row);

/* bench --beside: for each length of prompt what it and the sequences that generate meanwhile notice. */
int measure_beside(bench *b);
/* Tokens that a sequence has to hold for that. */
int64_t beside_context(const settings *settings);

#endif
