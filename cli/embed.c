/* sluice embed, sluice rerank: lines of text to vectors, and to scores for a query. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct lines {
    char *text; /* what the items point into */
    sluice_embed_input *items;
    size_t count;
} lines;

static void free_lines(lines *l) {
    free(l->text);
    free(l->items);
}

/* Each line without its end; an empty one is a text too, but for what stands behind the last end. */
static int read_lines(const char *command, const settings *settings, lines *l) {
    size_t length, room = 1;
    l->text = read_all(settings->file, &length);
    if (!l->text) {
        return FAILED;
    }
    for (size_t i = 0; i < length; i++) {
        room += l->text[i] == '\n';
    }
    l->items = calloc(room, sizeof *l->items);
    if (!l->items) {
        return fail("%s: out of memory", command);
    }
    for (size_t at = 0; at < length;) {
        const char *end = memchr(l->text + at, '\n', length - at);
        size_t size = end ? (size_t)(end - l->text) - at : length - at;
        const size_t next = at + size + 1;
        size -= size > 0 && l->text[at + size - 1] == '\r';
        l->items[l->count++] = (sluice_embed_input){.text = l->text + at, .length = size};
        at = next;
    }
    return l->count > 0 ? DONE : fail("%s: there are no texts: give a file with one on a line", command);
}

static int open_embedder(const settings *settings, session *session) {
    sluice_engine_options options;
    const int code = open_model(settings, session);
    engine_options(settings, 0, &options);
    options.embeddings = true;
    return code == DONE ? open_engine(settings, session, &options) : code;
}

/* Until all is done, with a bar on a terminal; ends early when the program is interrupted. */
static int wait_for_all(sluice_embedding *embedding, size_t count) {
    enum { MILLISECONDS = 100 };
    progress_bar bar = {.label = "reading"};
    sluice_error error;
    size_t done = 0;
    int result = 0;
    catch_interrupt();
    while (result == 0 && done < count && progress_step(&bar, done, count)) {
        result = sluice_embedding_wait(embedding, MILLISECONDS, &done, &error);
    }
    result = result || done < count ? result : sluice_embedding_wait(embedding, -1, &done, &error);
    release_interrupt();
    progress_end(&bar);
    return result ? fail_with(&error) : done < count ? fail("interrupted") : DONE;
}

/* ---- sluice embed ---- */

static sluice_pooling pooling_of(const char *name) {
    static const char *const names[] = {"model", "none", "mean", "cls", "last"};
    int i = 0;
    while (strcmp(names[i], name) != 0) {
        i++;
    }
    return (sluice_pooling)i; /* in the enum's order */
}

/* The rows of text `index` as numbers that read back as the same floats. */
static void print_rows(const sluice_embedding *e, size_t index, const char *separator) {
    size_t rows, width;
    const float *vector = sluice_embedding_vector(e, index, &rows, &width);
    for (size_t i = 0; i < rows * width; i++) {
        printf("%s%.9g", i ? separator : "", (double)vector[i]);
    }
}

static void print_vectors(const sluice_embedding *e, size_t count, const char *format, bool several) {
    const bool json = strcmp(format, "json") == 0, text = strcmp(format, "text") == 0;
    for (size_t i = 0; i < count; i++) {
        size_t rows, width;
        const float *vector = sluice_embedding_vector(e, i, &rows, &width);
        if (text) {
            print_rows(e, i, " ");
            printf("\n");
            continue;
        }
        printf("%s{\"index\": %zu, \"tokens\": %zu, \"embedding\": [", json ? (i ? ",\n " : "[") : "", i,
               sluice_embedding_tokens(e, i));
        for (size_t row = 0; row < rows; row++) {
            printf("%s%s", row ? ", " : "", several ? "[" : "");
            for (size_t c = 0; c < width; c++) {
                printf("%s%.9g", c ? ", " : "", (double)vector[row * width + c]);
            }
            printf("%s", several ? "]" : "");
        }
        printf("]}%s", json ? "" : "\n");
    }
    printf("%s", json ? "]\n" : "");
}

/* NumPy's format, version 1.0 (numpy.lib.format): little-endian float32, [texts or rows][width]. */
static int print_npy(const sluice_embedding *e, size_t count) {
    size_t all = 0, rows, width = 0;
    for (size_t i = 0; i < count; i++) {
        sluice_embedding_vector(e, i, &rows, &width);
        all += rows;
    }
    char header[128];
    enum { FRONT = 10, BLOCK = 64 };
    const int used = snprintf(header, sizeof header,
                              "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", all, width);
    const int padded = (FRONT + used + 1 + BLOCK - 1) / BLOCK * BLOCK - FRONT;
    printf("%s", "\x93NUMPY\x01");
    putchar(0);
    putchar(padded & 0xff);
    putchar(padded >> 8);
    printf("%s%*s\n", header, padded - used - 1, "");
    for (size_t i = 0; i < count; i++) {
        const float *vector = sluice_embedding_vector(e, i, &rows, &width);
        if (fwrite(vector, sizeof *vector, rows * width, stdout) != rows * width) {
            return fail("embed: cannot write");
        }
    }
    return DONE;
}

static double cosine(const float *a, const float *b, size_t width) {
    double product = 0, left = 0, right = 0;
    for (size_t i = 0; i < width; i++) {
        product += (double)a[i] * b[i];
        left += (double)a[i] * a[i];
        right += (double)b[i] * b[i];
    }
    return left > 0 && right > 0 ? product / sqrt(left * right) : 0;
}

static void print_similar(const sluice_embedding *e, const lines *l) {
    for (size_t i = 0; i < l->count; i++) {
        size_t rows, width;
        const float *one = sluice_embedding_vector(e, i, &rows, &width);
        for (size_t k = 0; k < l->count; k++) {
            printf("%s%7.4f", k ? " " : "", cosine(one, sluice_embedding_vector(e, k, &rows, &width), width));
        }
        enum { SHOWN = 40 };
        printf("  %.*s\n", (int)(l->items[i].length < SHOWN ? l->items[i].length : SHOWN), l->items[i].text);
    }
}

static int print_embedding(const settings *settings, const sluice_embedding *e, const lines *l) {
    if (settings->similar) {
        print_similar(e, l);
        return DONE;
    }
    if (strcmp(settings->output, "npy") == 0) {
        return print_npy(e, l->count);
    }
    print_vectors(e, l->count, settings->output, strcmp(settings->pooling, "none") == 0);
    return DONE;
}

int embed_command(const settings *settings) {
    const sluice_embed_options options = {.size = sizeof options,
                                          .pooling = pooling_of(settings->pooling),
                                          .no_normalise = settings->no_normalise,
                                          .dimensions = settings->dimensions,
                                          .truncate = settings->truncate};
    if (settings->similar && options.pooling == SLUICE_POOLING_NONE) {
        fail("embed: --similar wants one vector for a line, --pooling none gives several");
        return WRONG_USAGE;
    }
    lines l = {0};
    session session = {0};
    sluice_embedding *embedding = NULL;
    sluice_error error;
    int code = read_lines("embed", settings, &l);
    code = code == DONE ? open_embedder(settings, &session) : code;
    if (code == DONE && sluice_embed(session.engine, l.items, l.count, &options, &embedding, &error)) {
        code = fail_with(&error);
    }
    code = code == DONE ? wait_for_all(embedding, l.count) : code;
    code = code == DONE ? print_embedding(settings, embedding, &l) : code;
    sluice_embedding_release(embedding);
    close_session(&session);
    free_lines(&l);
    return code;
}

/* ---- sluice rerank ---- */

typedef struct ranked {
    size_t index;
    float score;
} ranked;

/* The best first; of equal ones the first. */
static int compare_ranked(const void *a, const void *b) {
    const ranked *left = a, *right = b;
    return left->score != right->score ? (left->score < right->score ? 1 : -1)
                                       : (left->index > right->index) - (left->index < right->index);
}

static int print_ranked(const settings *settings, const ranked *list, const lines *l) {
    const size_t most =
        settings->top > 0 && (size_t)settings->top < l->count ? (size_t)settings->top : l->count;
    json_t *all = strcmp(settings->output, "json") == 0 ? json_array() : NULL;
    for (size_t i = 0; i < most; i++) {
        const sluice_embed_input *text = &l->items[list[i].index];
        if (all) {
            json_array_append_new(all, json_pack("{s:I, s:f, s:s#}", "index", (json_int_t)list[i].index,
                                                 "relevance_score", (double)list[i].score, "document",
                                                 text->text, (int)text->length));
        } else {
            printf("%.6f  %zu  %.*s\n", (double)list[i].score, list[i].index, (int)text->length, text->text);
        }
    }
    return all ? print_json(all) : DONE;
}

static int rank_lines(const settings *settings, const sluice_embedding *embedding, const lines *l) {
    ranked *list = calloc(l->count, sizeof *list);
    if (!list) {
        return fail("rerank: out of memory");
    }
    for (size_t i = 0; i < l->count; i++) {
        size_t rows, width;
        list[i] = (ranked){i, *sluice_embedding_vector(embedding, i, &rows, &width)};
    }
    qsort(list, l->count, sizeof *list, compare_ranked);
    const int code = print_ranked(settings, list, l);
    free(list);
    return code;
}

int rerank_command(const settings *settings) {
    if (!settings->query) {
        fail("rerank: -q says what the texts are to answer");
        return WRONG_USAGE;
    }
    const sluice_embed_options options = {.size = sizeof options,
                                          .truncate = settings->truncate,
                                          .query = settings->query,
                                          .instruction = settings->instruction};
    lines l = {0};
    session session = {0};
    sluice_embedding *embedding = NULL;
    sluice_error error;
    int code = read_lines("rerank", settings, &l);
    code = code == DONE ? open_embedder(settings, &session) : code;
    if (code == DONE && sluice_rerank(session.engine, l.items, l.count, &options, &embedding, &error)) {
        code = fail_with(&error);
    }
    code = code == DONE ? wait_for_all(embedding, l.count) : code;
    code = code == DONE ? rank_lines(settings, embedding, &l) : code;
    sluice_embedding_release(embedding);
    close_session(&session);
    free_lines(&l);
    return code;
}
