/* What the files of `sluice perplexity` share: base logits, which one run writes and another compares with,
 * and the figures of that comparison. */
#ifndef SLUICE_PERPLEXITY_H
#define SLUICE_PERPLEXITY_H

#include "cli.h"

/* FNV-1a over 32-bit words: a bit that differs anywhere shows. */
#define HASH_START 0xcbf29ce484222325u
uint64_t hash_words(uint64_t hash, const void *words, size_t count);

/* Softmax of a row of logits: log p[i] is logits[i] - most - log_sum. */
typedef struct row_sum {
    float most;
    int32_t top; /* where `most` is, the first of equals */
    double log_sum;
} row_sum;
row_sum sum_row(const float *logits, size_t vocabulary);
double log_probability(const float *logits, const row_sum *sum, size_t token);

/* ---- base_logits.c: the file
 * ----------------------------------------------------------------------------------- */

/* Little-endian, as everything in the file. Behind it: a hash of each window's logits (FNV-1a, uint64) and
 * one of these hashes; then the logits of all scored rows, in the order of the text, [rows][vocabulary] of
 * float.
 */
typedef struct base_header {
    char magic[8];
    uint32_t version, second_half; /* 1; scoring is second-half: 1, all: 0 */
    uint64_t vocabulary, window, windows, rows;
    uint64_t tokens; /* hash of all windows' tokens */
    uint64_t hash;   /* of what stands before it */
} base_header;

/* Zero-initialise; close after success and failure alike. */
typedef struct base_logits {
    const char *path;
    char *temporary; /* the name while it is being written */
    int descriptor;
    bool opened;
    base_header header;
    uint64_t *hashes; /* [windows] and the hash of these */
} base_logits;

/* Says what is wrong about a path to write to, before anything is computed. */
int base_check_output(const char *path, bool replace);
/* Begins a file that is named `path` when it is complete; magic, version and hash of the header are set here.
 */
int base_create(base_logits *base, const char *path, const base_header *header);
/* Hashes, then the file's name. */
int base_finish(base_logits *base);
/* Opens, and checks what the file can tell about itself. */
int base_open(base_logits *base, const char *path);
/* Are these the logits of the same windows and tokens? One line says which rule is broken. */
int base_match(const base_logits *base, const base_header *wanted);
int base_write(base_logits *base, uint64_t first, const float *logits, size_t rows);
int base_read(base_logits *base, uint64_t first, float *logits, size_t rows);
/* A file that is not finished goes away. */
void base_close(base_logits *base);

/* ---- divergence.c: the figures
 * ------------------------------------------------------------------------------------ */

/* One scored row: from the base's probabilities P and the model's Q. */
typedef struct divergence_row {
    double divergence; /* sum of P (log P - log Q) */
    double change;     /* Q - P of the token that follows */
    double negative;   /* -log P of that token */
    bool same_top;
} divergence_row;
divergence_row compare_rows(const float *base, const float *model, size_t vocabulary, int32_t next);

typedef struct divergence {
    double mean, error, median, high,
        most;                   /* of the divergence; error of the mean; 99th percentile; maximum */
    double same_top;            /* share of rows */
    double change, change_root; /* mean and root of the mean square */
    double negative;            /* mean of -log P: the base's own score */
} divergence;
/* Sorts `rows` by divergence. */
divergence summarize_rows(divergence_row *rows, size_t count);
/* The divergence below which this share of sorted rows lies. */
double percentile(const divergence_row *rows, size_t count, double share);

/* ---- pictures.c: --plot
 * ------------------------------------------------------------------------------------------- */

typedef struct divergence_picture {
    const double *windows; /* [window_count] mean divergence of each */
    size_t window_count, window;
    const divergence_row *sorted; /* [row_count] */
    size_t row_count;
    const divergence *figures;
} divergence_picture;
int plot_divergence(const settings *settings, const divergence_picture *picture);

#endif
