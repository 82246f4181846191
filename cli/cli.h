/* What the files of the command line share. The program stands on sluice.h alone: what it can do, every
 * program can. */
#ifndef SLUICE_CLI_H
#define SLUICE_CLI_H

#include "sluice.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes. A function that prints an error returns one of them. */
enum { DONE = 0, FAILED = 1, WRONG_USAGE = 2 };

/* ---- settings: one struct for all commands, filled by one table (options.c) ------------------------------
 */

enum { LIST_ITEMS = 32 };

typedef struct number_list {
    int32_t items[LIST_ITEMS];
    int count;
} number_list;

typedef struct text_list {
    const char *items[LIST_ITEMS];
    int count;
} text_list;

typedef struct bias_list {
    sluice_logit_bias items[LIST_ITEMS];
    int count;
} bias_list;

typedef struct sampler_list {
    sluice_sampler items[SLUICE_SAMPLERS];
    size_t count;
} sampler_list;

/* Of --memory-limit: a number for what computes, or limits by device. */
typedef struct memory_limits {
    uint64_t all;
    sluice_memory_limit by_device[SLUICE_MEMORY_LIMITS];
} memory_limits;

typedef struct settings {
    bool help, verbose;
    /* the engine */
    const char *model, *device, *isa, *kv_type, *kernels, *cache_disk, *prompt_precision, *split,
        *weight_copies;
    int32_t threads, context, chunk, sequences, gpu_layers, cpu_experts, kv_budget, kv_window, kv_pool;
    uint64_t cache_tokens, host_memory_limit, expert_cache, cache_disk_bytes;
    memory_limits memory_limit;
    const char *expert_pin, *expert_stats;
    bool cpu_moe, no_graphs, no_fusion, no_repack, deterministic, no_prefix_reuse;
    const char *draft_known;       /* bench */
    const char *speculate, *draft; /* speculate NULL: what --draft makes of it */
    int32_t drafts, least_drafts, ngram_longest, ngram_shortest;
    bool draft_always;
    /* text */
    const char *prompt, *file, *system, *output;
    bool special, bos, ids, raw;
    /* the chat format */
    const char *chat_template, *template_kwargs;
    text_list template_options;
    bool show, list, no_generation_prompt;
    /* generation */
    int32_t predict, top_k, repeat_last, logprobs;
    double temperature, top_p, min_p, typical, repeat_penalty, presence_penalty, frequency_penalty;
    double xtc_probability, xtc_threshold, top_n_sigma, dynatemp_range, dynatemp_exponent;
    double dry_multiplier, dry_base, mirostat_tau, mirostat_eta;
    int32_t dry_allowed, dry_last, mirostat;
    text_list dry_breakers;
    sampler_list samplers;
    bias_list biases;
    uint64_t seed; /* RANDOM_SEED only until the command begins */
    text_list stops;
    bool ignore_eos, no_model_sampling, constrained;
    const char *json_schema, *grammar, *regex;
    int32_t reasoning_budget; /* -1: no bound */
    /* embeddings and scores */
    const char *pooling, *query, *instruction;
    int32_t dimensions, top;
    bool no_normalise, similar, truncate, embeddings;
    /* measuring */
    number_list prompts, generates, depths, thread_counts, sequence_counts;
    text_list pairs;
    int32_t repetitions, window, limit, beside;
    bool profile, peak;
    const char *scoring, *kl, *kl_write;
    const char *plot; /* a file for a picture */
    text_list tasks;
    /* plans and files */
    bool ops, force, dry_run, pure;
    bool keys, tensors; /* inspect */
    const char *type, *output_type, *embedding_type, *imatrix;
    text_list types_of;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward, vocabulary, experts, experts_used,
        expert_width;
    const char *expert_type;
    double expert_skew;
    const char *draft_head;
    /* the server */
    text_list models, aliases, api_keys, origins, hosts;
    const char *host, *unix_path, *api_key_file, *tls_certificate, *tls_key, *config, *log_format,
        *metrics_prefix;
    int32_t port, max_queue;
    uint64_t max_body;
    double max_step_time, drain_timeout, drain_delay;
    bool strict_model, open_metrics;
    json_t *config_root, *user_root; /* files with options; settings point into them */
    json_t *texts;                   /* an array of what else they point into */
    /* models by name */
    const char *mirror, *token_file, *cache_folder;
    const char *hf_repo, *hf_file, *hf_draft, *model_url; /* llama.cpp's ways to name one */
    int32_t connections;
    bool offline, no_config, yes;
    double unused; /* days */
    /* a load on a server */
    const char *rates, *concurrencies, *endpoint, *ca_file, *prompt_tokens, *max_tokens, *prompts_file,
        *token_ids, *objective, *body, *trace;
    text_list headers;
    int32_t requests, shared, groups, turns;
    double seconds, warmup, timeout, burstiness, think, abort_share, sent_temperature;
    /* arguments that are no options */
    const char *arguments[LIST_ITEMS];
    int argument_count;
    unsigned char given[32]; /* a bit for each row of the table that the command line or --config gave */
} settings;

/* Stands for a seed of its own with each run. */
#define RANDOM_SEED UINT64_MAX

typedef struct command {
    const char *name;
    unsigned bit;          /* in the option table's masks */
    const char *arguments; /* "IN OUT TYPE", or NULL: none, or a model where one is needed */
    int argument_count;
    bool needs_model;
    const char *about; /* one line, for the list of commands */
    const char *text;  /* a paragraph */
    const char *examples;
    int (*run)(const settings *settings);
} command;

enum {
    IN_RUN = 1,
    IN_CHAT = 2,
    IN_BENCH = 4,
    IN_PERPLEXITY = 8,
    IN_TOKENIZE = 16,
    IN_DETOKENIZE = 32,
    IN_INSPECT = 64,
    IN_PLAN = 128,
    IN_EXPLAIN = 256,
    IN_QUANTIZE = 512,
    IN_SYNTH = 1024,
    IN_EVAL = 2048,
    IN_SERVE = 4096,
    IN_IMATRIX = 8192,
    IN_EMBED = 1 << 14,
    IN_RERANK = 1 << 15,
    IN_PULL = 1 << 16,
    IN_LIST = 1 << 17,
    IN_RM = 1 << 18,
    IN_LOAD = 1 << 19,
    IN_TEMPLATE = 1 << 20,
    IN_COMPLETION = 1 << 21,
    IN_MAN = 1 << 22,
    IN_ALL = (1 << 23) - 1,
};

extern const command COMMANDS[];
extern const int COMMAND_COUNT;

/* Fills `settings` with the defaults of a command's options and what the command line says; prints and
 * returns WRONG_USAGE when that is wrong. `arguments` follow the command's name. */
int parse_options(const command *command, int count, char **arguments, settings *settings);
/* One option as if it stood on the command line; `value` NULL: a flag. Texts must live as long as the
 * settings. */
int set_option(const command *command, const char *name, const char *value, settings *settings);
/* Empties an option that may be given several times. */
void clear_list(const command *command, const char *name, settings *settings);
/* What the user's own file says, ~/.config/sluice/config.json, and the one of --config, if it is given.
 * Before the command line is read, which wins. */
int read_config(const command *command, int count, char **arguments, settings *settings);
/* May the user's own file say this option? 0: no command has it there, 1: another command has, 2: this one
 * has. */
int is_for_user(const command *command, const char *name);
/* A copy of a text that lives as long as the settings; NULL: no memory. */
const char *keep_text(settings *settings, const char *text);
/* Puts paths in the place of models' names, which are fetched when they are not in the cache (fetch.c). */
int resolve_models(const command *command, settings *settings);
/* Did the command line or the file of --config give this option? */
bool is_given(const settings *settings, const char *name);
/* Puts bare arguments in the place of the options that they stand for: MODEL, or MODEL and PROMPT. */
int place_arguments(const command *command, settings *settings);
/* How many of those there may be beyond command->argument_count. */
int optional_arguments(const command *command);
void print_command_help(const command *command);
/* The name of `names` (`count` texts) that is most like `text`, or NULL when none is near. */
const char *nearest(const char *text, const char *const *names, int count);

int run_command(const settings *settings);
int chat_command(const settings *settings);
int bench_command(const settings *settings);
int perplexity_command(const settings *settings);
int tokenize_command(const settings *settings);
int detokenize_command(const settings *settings);
int inspect_command(const settings *settings);
int plan_command(const settings *settings);
int explain_command(const settings *settings);
int quantize_command(const settings *settings);
int imatrix_command(const settings *settings);
int synth_command(const settings *settings);
int eval_command(const settings *settings);
int serve_command(const settings *settings);
int embed_command(const settings *settings);
int rerank_command(const settings *settings);
int load_command(const settings *settings);
int pull_command(const settings *settings);
int list_command(const settings *settings);
int rm_command(const settings *settings);
int template_command(const settings *settings);
int completion_command(const settings *settings);
int man_command(const settings *settings);

/* ---- prompt.c: messages and the chat format
 * ----------------------------------------------------------------- */

/* What -p and -f say, or standard input: text owned by the caller. NULL: an error was printed and is in
 * *code. */
char *read_prompt(const char *command, const settings *settings, size_t *length, int *code);
/* How to open the model: with the template of --chat-template. The text of a file is in *text, the caller's.
 */
int model_options(const settings *settings, sluice_model_options *options, char **text);
/* --template-option and --chat-template-kwargs as one object, a new reference; NULL: an error was printed. */
json_t *template_options(const settings *settings);
/* One message at the end of a list; its content must be UTF-8. */
int add_message(json_t *messages, const char *role, const char *text, size_t length);
/* The tokens of a conversation in the model's chat format; freed with sluice_free. */
int render_tokens(const sluice_model *model, const settings *settings, const json_t *messages,
                  int32_t **tokens, size_t *count);

/* ---- grammar.c -------------------------------------------------------------------------------------------
 */

/* What --json-schema, --grammar or --regex made, kept from one answer to the next. Zero-initialise;
 * `answers`: to prompts in the chat format, in front of which a model may think. */
typedef struct held_grammar {
    bool answers;
    sluice_grammar *grammar;
    sluice_thought thought;
} held_grammar;
/* Holds a request, which has its whole prompt, to it and to --reasoning-budget; nothing happens without those
 * options. */
int hold_to_grammar(held_grammar *held, const settings *settings, sluice_model *model,
                    sluice_request_options *request);
void release_grammar(held_grammar *held);

/* ---- reply.c ---------------------------------------------------------------------------------------------
 */

/* A reply as it comes, thinking and answer apart. Zero-initialise with `take`, which gets every text. */
typedef struct reply_reader {
    void (*take)(void *context, const char *text, size_t length, bool thought);
    void *context;
    sluice_reply *reply; /* NULL: all text is answer */
    size_t thought_bytes;
    bool failed; /* no memory */
} reply_reader;
/* For the answer to a request, which has its whole prompt and gets what the reader needs. */
int begin_reply(reply_reader *reader, sluice_model *model, sluice_request_options *request);
/* The text of each event. */
void read_reply_text(reply_reader *reader, const sluice_event *event);
void end_reply(reply_reader *reader);
/* To standard output; *faint: what was printed last was thinking. */
void print_reply_text(bool *faint, const char *text, size_t length, bool thought);
void end_faint(bool *faint);
/* Says why there is no answer when all that came was thinking; false: nothing came. */
bool explain_thinking(const reply_reader *reader, const sluice_event *done);

/* ---- data.c ----------------------------------------------------------------------------------------------
 */

/* The model that runs when none is named. */
#define DEFAULT_MODEL "mini"

enum { DATA_PATH_SIZE = 4096 };
/* Where a file of share/sluice lies; false: it did not come with this program. */
bool find_data(const char *name, char path[DATA_PATH_SIZE]);
/* A model as -m names it: a path, or the name of a built-in model, which is looked for when no file has it.
 * Returns `model` or `path`. */
const char *model_path(const char *model, char path[DATA_PATH_SIZE]);

/* ---- common.c --------------------------------------------------------------------------------------------
 */

/* One line on stderr, "sluice: ..."; returns FAILED. */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fail_with(const sluice_error *error);
/* The same line for what a person may want to know and a script need not: on a terminal or with -v only. */
void notice(const settings *settings, const char *format, ...) __attribute__((format(printf, 2, 3)));
double seconds_now(void);

/* The whole of a file, or of standard input with path NULL or "-"; freed by the caller. NULL: an error was
 * printed.
 */
char *read_all(const char *path, size_t *length);

/* A bar on stderr while something is loaded or written, on a terminal only. Zero-initialise with the label.
 */
typedef struct progress_bar {
    const char *label;
    bool bytes; /* what is counted: say how many */
    double drawn;
    bool visible;
} progress_bar;
/* A sluice_progress. Interrupting the program stops what it reports. */
bool progress_step(void *bar, uint64_t done, uint64_t total);
void progress_end(progress_bar *bar);

/* From here on Ctrl-C sets a flag instead of ending the program / ends the program again. */
void catch_interrupt(void);
/* The same for SIGTERM and SIGHUP too: for what has to tidy up. */
void catch_ending(void);
void release_interrupt(void);
bool interrupted(void);

/* Model and engine. Zero-initialise; close after success and failure alike. */
typedef struct session {
    sluice_model *model;
    sluice_engine *engine;
    sluice_model *draft; /* --draft, once the engine was opened */
} session;
/* `sequences`: at once, where the command line does not say. */
void engine_options(const settings *settings, int32_t sequences, sluice_engine_options *options);
int open_model(const settings *settings, session *session);
/* The same without weights. */
int open_model_text(const settings *settings, session *session);
/* Where drafts come from; opens the model of --draft unless *draft is one, for the caller to release. */
int draft_options(const settings *settings, sluice_model **draft, sluice_engine_options *options);
int open_engine(const settings *settings, session *session, sluice_engine_options *options);
/* The file of --expert-stats, if there is to be one: when all requests have ended, before the engine does. */
int write_expert_stats(const settings *settings, session *session);
void close_session(session *session);

/* Runs a request to its end, or cancels it when the program is interrupted. `token` is called with every
 * event that carries text or a token. On success the done event is in *done, its text already handed out. */
typedef void (*token_sink)(void *context, const sluice_event *event);
int generate(sluice_sequence *sequence, const sluice_request_options *options, token_sink token,
             void *context, sluice_event *done);
void sampling_options(const settings *settings, sluice_request_options *options);
/* Sampling options that were not given become the model's own (generation_config.json, general.sampling.*),
 * which is said on a terminal and with -v. */
void take_model_sampling(settings *settings, const sluice_model *model);
/* What -n says, -1 being all that the context takes. */
size_t most_tokens(const settings *settings);
/* A run that gives no text says why: a line on stderr. */
void explain_silence(const settings *settings, const sluice_event *done);
/* "length", "eos", ... */
const char *finish_name(sluice_finish finish);
/* Timings of a done request, one line on stderr, on a terminal only. */
void print_timings(const sluice_event *done);

/* The file of --plot, from a plan as JSON (pictures.c). */
int plot_memory(const settings *settings, const char *plan);

/* Prints and releases; FAILED when there is no memory for it. */
int print_json(json_t *value);

#endif
