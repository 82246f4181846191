/* Models by name: what pull, list and rm share, and the judgement whether a model fits this machine. */
#ifndef SLUICE_CLI_MODELS_H
#define SLUICE_CLI_MODELS_H

#include "cli.h"

#include "hub/cache.h"
#include "hub/hub.h"

/* ---- fetch.c ---- */

/* What moves, on stderr: a bar on a terminal, else a line every ten seconds. Zero-initialise with the label.
 */
typedef struct fetch_bar {
    const char *label;
    double drawn;
    bool visible, began;
} fetch_bar;

/* --mirror, --token-file and the like. `token` has room for it, and is the caller's as long as the options
 * are. */
enum { TOKEN_SIZE = 512 };
int hub_settings(const settings *settings, fetch_bar *bar, char token[TOKEN_SIZE], hub_options *options);
void fetch_end(fetch_bar *bar);
/* An error of hub's; says how to go on after an interruption. */
int fail_fetch(const settings *settings, int code, const char *name, const char *message);
/* "4.9 GB"; returns `text`. */
char *size_text(uint64_t bytes, char text[16]);

/* ---- fit.c ---- */

/* Of this machine, a second; 0: not known. */
typedef struct machine_rates {
    bool measured;
    char device[128];
    sluice_rates all;
    double reading; /* operations of prompts as a small model reaches them on a CPU; of a GPU its products'
                       limit */
} machine_rates;

typedef struct fit {
    char family[64], type[32], why_not[512]; /* why there is no plan; "": there is one */
    uint64_t parameters, weight_bytes;
    int32_t context;
    bool fits;
    uint64_t needed, available; /* bytes of memory */
    double generated, read;     /* tokens a second that one sequence may see at most, about; 0: not known */
} fit;

void measure_machine(machine_rates *rates);
/* A model that lies at `path`, or whose stand-in does. */
void judge_model(const char *path, const machine_rates *rates, fit *fit);
json_t *fit_json(const fit *fit);

/* ---- list.c ---- */

/* A row of the table, whether the model is there or not. */
typedef struct model_row {
    const char *name;
    uint64_t bytes, there;
    bool complete, busy, remote;
    double used, pulled;
    const char *path; /* NULL: it is not there */
    const char *source;
    fit fit;
} model_row;
int print_rows(const settings *settings, const model_row *rows, size_t count, const machine_rates *rates);
/* Looks at a model that is not there by its header alone; the row's texts are the listing's. */
int judge_remote(const hub_options *options, const hub_listing *listing, const machine_rates *rates,
                 model_row *row, char message[HUB_MESSAGE]);

#endif
