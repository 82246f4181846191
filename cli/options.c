/* One table of options for all commands, and the parser, the help and the advice that come from it. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum option_kind { FLAG, NUMBER, SIZE, REAL, TEXT, TEXTS, NUMBERS, BIASES, CHOICE } option_kind;

typedef struct option {
    unsigned commands;
    const char *names; /* separated by spaces, the one to show last */
    const char *argument;
    option_kind kind;
    size_t offset;
    const char *initial; /* as it would be written; NULL: nothing, no, 0 */
    double least, most;  /* of numbers */
    const char *help;
} option;

enum {
    IN_GENERATE = IN_RUN | IN_CHAT,
    IN_RUNS = IN_RUN | IN_CHAT | IN_BENCH | IN_PERPLEXITY | IN_EVAL | IN_PLAN | IN_EXPLAIN,
    IN_ENGINE = IN_RUNS | IN_SERVE,
    IN_KEEPING = IN_RUN | IN_CHAT | IN_EVAL | IN_SERVE, /* commands that use again what is cached */
    IN_MODEL = IN_RUNS | IN_TOKENIZE | IN_DETOKENIZE | IN_INSPECT,
};

#define AT(member) offsetof(settings, member)
static const double INT_MOST = 2147483647;

/* Names are llama.cpp's where it has one. */
static const option OPTIONS[] = {
    {IN_MODEL, "-m --model", "MODEL", TEXT, AT(model), DEFAULT_MODEL, 0, 0,
     "a GGUF file, a Hugging Face folder, mini or mini-moe"},

    {IN_SERVE, "-m --model", "MODEL", TEXTS, AT(models), NULL, 0, 0,
     "a GGUF file, a Hugging Face folder, mini or mini-moe [mini]; several are loaded when they are asked "
     "for"},
    {IN_SERVE, "--alias", "NAME", TEXTS, AT(aliases), NULL, 0, 0,
     "the model's name in requests and answers [the file's]; once for each -m"},
    {IN_SERVE, "--strict-model", NULL, FLAG, AT(strict_model), NULL, 0, 0,
     "a request for another name is 404; else the first model answers"},
    {IN_SERVE, "--host", "ADDRESS", TEXT, AT(host), "127.0.0.1", 0, 0, "to listen on; 0.0.0.0: all"},
    {IN_SERVE, "--port", "N", NUMBER, AT(port), "8080", 0, 65535,
     "to listen on; 0: a free one, which is printed"},
    {IN_SERVE, "--unix", "PATH", TEXT, AT(unix_path), NULL, 0, 0,
     "listen on this socket file, and on the network only with another --port than 8080"},
    {IN_SERVE, "--api-key", "KEY,KEY,...", TEXTS, AT(api_keys), NULL, 0, 0,
     "clients must send one of these keys; may be given several times"},
    {IN_SERVE, "--api-key-file", "FILE", TEXT, AT(api_key_file), NULL, 0, 0,
     "the same from a file, one on a line"},
    {IN_SERVE, "--tls-cert", "FILE", TEXT, AT(tls_certificate), NULL, 0, 0,
     "serve HTTPS: the certificate (PEM)"},
    {IN_SERVE, "--tls-key", "FILE", TEXT, AT(tls_key), NULL, 0, 0, "and its key (PEM)"},
    {IN_SERVE, "--cors --cors-origin", "ORIGIN", TEXTS, AT(origins), NULL, 0, 0,
     "web pages from there may ask too, besides those on this machine; *: from anywhere"},
    {IN_SERVE, "--allowed-host", "NAME", TEXTS, AT(hosts), NULL, 0, 0,
     "a name by which a proxy calls a server that listens on a loopback address"},
    {IN_SERVE, "--config", "FILE", TEXT, AT(config), NULL, 0, 0,
     "options from a JSON object, by their long names; the command line wins"},
    {IN_SERVE, "--max-queue", "N", NUMBER, AT(max_queue), "1024", 1, INT_MOST,
     "requests that may wait; one more gets 429"},
    {IN_SERVE, "--max-body", "BYTES", SIZE, AT(max_body), "64M", 0, 0, "of a request; a larger one gets 413"},
    {IN_SERVE, "--max-step-time", "MS", REAL, AT(max_step_time), "0", 0, 1e6,
     "that prompts may add to a step while others generate; 0: about as much as generating takes"},
    {IN_SERVE, "--drain-timeout --drain-seconds", "S", REAL, AT(drain_timeout), "30", 0, 1e6,
     "seconds that running requests get after SIGTERM"},
    {IN_SERVE, "--log-format", "text|json", CHOICE, AT(log_format), "text", 0, 0, "of the log on stderr"},
    {IN_SERVE, "--metrics-prefix", "TEXT", TEXT, AT(metrics_prefix), "sluice_", 0, 0,
     "before the names in /metrics; vllm: for dashboards made for vLLM"},

    {IN_RUN, "-p --prompt", "TEXT", TEXT, AT(prompt), NULL, 0, 0, "the text to go on from"},
    {IN_RUN, "-f --file", "FILE", TEXT, AT(file), NULL, 0, 0,
     "read the prompt from a file (else from standard input)"},
    {IN_PERPLEXITY, "-f --file", "FILE", TEXT, AT(file), NULL, 0, 0, "the text (else standard input)"},
    {IN_EVAL, "-f --file", "FILE", TEXT, AT(file), NULL, 0, 0,
     "the tasks (else those that come with sluice)"},
    {IN_EVAL, "--task", "NAME", TEXTS, AT(tasks), NULL, 0, 0, "only this task; may be given several times"},
    {IN_EVAL, "-n --limit", "N", NUMBER, AT(limit), "0", 0, INT_MOST, "items of each task at most; 0: all"},
    {IN_CHAT, "-sys --system", "TEXT", TEXT, AT(system), NULL, 0, 0, "a system message"},
    {IN_RUN, "-n --predict", "N", NUMBER, AT(predict), "128", 0, INT_MOST, "tokens to generate at most"},
    {IN_CHAT, "-n --predict", "N", NUMBER, AT(predict), "1024", 0, INT_MOST, "tokens of one answer at most"},
    {IN_GENERATE, "--temp", "T", REAL, AT(temperature), "0.8", 0, 1e6,
     "temperature; 0 always takes the likeliest token"},
    {IN_GENERATE, "--top-k", "N", NUMBER, AT(top_k), "40", 0, INT_MOST,
     "sample from the N likeliest; 0: all"},
    {IN_GENERATE, "--top-p", "P", REAL, AT(top_p), "0.95", 0, 1,
     "sample from the likeliest that add up to P; 1: all"},
    {IN_GENERATE, "--min-p", "P", REAL, AT(min_p), "0.05", 0, 1,
     "leave out what is less than P times the likeliest"},
    {IN_GENERATE, "--typical", "P", REAL, AT(typical), "1", 0, 1,
     "sample from the most typical that add up to P; 1: all"},
    {IN_GENERATE, "--repeat-penalty", "R", REAL, AT(repeat_penalty), "1", 0, 1000,
     "divides or multiplies logits of tokens seen; 1: none"},
    {IN_GENERATE, "--presence-penalty", "A", REAL, AT(presence_penalty), "0", -1e6, 1e6,
     "taken from logits of generated tokens; 0: none"},
    {IN_GENERATE, "--frequency-penalty", "A", REAL, AT(frequency_penalty), "0", -1e6, 1e6,
     "the same, for each time that they came; 0: none"},
    {IN_GENERATE, "--repeat-last-n", "N", NUMBER, AT(repeat_last), "64", -1, INT_MOST,
     "tokens that penalties look at; 0: none, -1: all"},
    {IN_GENERATE, "-l --logit-bias", "ID(+|-)BIAS", BIASES, AT(biases), NULL, 0, 0,
     "add to a token's logit (-inf: never it); may be given several times"},
    {IN_GENERATE, "-s --seed", "N", SIZE, AT(seed), "0", 0, 0,
     "of sampling: the same seed gives the same text"},
    {IN_GENERATE, "-r --stop", "TEXT", TEXTS, AT(stops), NULL, 0, 0,
     "end before this text; may be given several times"},
    {IN_GENERATE, "--ignore-eos", NULL, FLAG, AT(ignore_eos), NULL, 0, 0,
     "go on after the end-of-text token"},
    {IN_RUN, "--logprobs", "N", NUMBER, AT(logprobs), "0", 0, SLUICE_TOP_LOGPROBS,
     "with -o json: log-probabilities of each token and of the N likeliest; 0: none"},
    {IN_RUN | IN_TOKENIZE | IN_DETOKENIZE, "--special", NULL, FLAG, AT(special), NULL, 0, 0,
     "special tokens written out in the text are those tokens"},
    {IN_TOKENIZE, "--bos", NULL, FLAG, AT(bos), NULL, 0, 0,
     "begin with the beginning-of-text token, if the model wants one"},
    {IN_TOKENIZE, "--ids", NULL, FLAG, AT(ids), NULL, 0, 0, "only the ids, on one line"},

    {IN_BENCH, "-p --n-prompt", "N,N,...", NUMBERS, AT(prompts), "512", 0, INT_MOST,
     "prompt lengths to measure; 0: none"},
    {IN_BENCH, "-n --n-gen", "N,N,...", NUMBERS, AT(generates), "128", 0, INT_MOST,
     "generation lengths to measure; 0: none"},
    {IN_BENCH, "-d --n-depth", "N,N,...", NUMBERS, AT(depths), "0", 0, INT_MOST,
     "tokens that are in the cache already"},
    {IN_BENCH, "-r --repetitions", "N", NUMBER, AT(repetitions), "5", 1, 1000,
     "of each measurement, after one that does not count"},
    {IN_BENCH, "--profile", NULL, FLAG, AT(profile), NULL, 0, 0,
     "and where the time of each measurement's last step goes, kernel by kernel"},
    {IN_PERPLEXITY, "--window", "N", NUMBER, AT(window), NULL, 2, INT_MOST,
     "tokens of one window [512, or the context]"},

    {IN_RUN | IN_PERPLEXITY | IN_EVAL | IN_INSPECT | IN_PLAN | IN_EXPLAIN, "-o --output", "text|json", CHOICE,
     AT(output), "text", 0, 0, "how to print"},
    {IN_BENCH, "-o --output", "md|csv|json", CHOICE, AT(output), "md", 0, 0, "how to print"},
    {IN_PLAN, "--ops", NULL, FLAG, AT(ops), NULL, 0, 0, "the list of operations instead of the memory"},

    {IN_SYNTH, "--type", "TYPE", TEXT, AT(type), "q8_0", 0, 0,
     "of the matrices: f32, f16, bf16 or one that `sluice quantize --help` names"},
    {IN_SYNTH, "-s --seed", "N", SIZE, AT(seed), "0", 0, 0, "of the random weights"},
    {IN_SYNTH, "--layers", "N", NUMBER, AT(layers), NULL, 1, INT_MOST, "instead of the preset's"},
    {IN_SYNTH, "--width", "N", NUMBER, AT(width), NULL, 1, INT_MOST, "of the residual stream"},
    {IN_SYNTH, "--heads", "N", NUMBER, AT(heads), NULL, 1, INT_MOST, "of queries"},
    {IN_SYNTH, "--kv-heads", "N", NUMBER, AT(kv_heads), NULL, 1, INT_MOST, "of keys and values"},
    {IN_SYNTH, "--head-size", "N", NUMBER, AT(head_size), NULL, 1, INT_MOST, "of one head"},
    {IN_SYNTH, "--feed-forward", "N", NUMBER, AT(feed_forward), NULL, 1, INT_MOST,
     "width inside the feed-forward"},
    {IN_SYNTH, "--vocabulary", "N", NUMBER, AT(vocabulary), NULL, 1, INT_MOST, "tokens"},
    {IN_SYNTH, "--experts", "N", NUMBER, AT(experts), NULL, 1, INT_MOST, "in each layer"},
    {IN_SYNTH, "--experts-used", "N", NUMBER, AT(experts_used), NULL, 1, INT_MOST, "for each token"},
    {IN_SYNTH, "--expert-width", "N", NUMBER, AT(expert_width), NULL, 1, INT_MOST, "inside one expert"},

    {IN_ENGINE, "--device", "NAME", TEXT, AT(device), "auto", 0, 0, "auto, cpu, cuda or cuda:N"},
    {IN_ENGINE, "--isa", "NAME", TEXT, AT(isa), NULL, 0, 0,
     "the best CPU kernels allowed: plain, avx2 or avx512 [the machine's]"},
    {IN_ENGINE, "-t --threads", "N", NUMBER, AT(threads), "0", 0, 4096, "of the CPU; 0: all processors"},
    {IN_ENGINE, "-c --ctx-size --context", "N", NUMBER, AT(context), "0", 0, INT_MOST,
     "tokens of one sequence; 0: the model's own, at most 4096"},
    {IN_ENGINE, "-ub --chunk", "N", NUMBER, AT(chunk), "0", 0, INT_MOST,
     "rows of a step; 0: 512 on the CPU, 2048 on a GPU"},
    {IN_ENGINE, "-np --sequences", "N", NUMBER, AT(sequences), "0", 0, INT_MOST,
     "that run at once; 0: 1 (serve, eval, plan, explain: 8)"},
    {IN_ENGINE, "-ctk --kv-type", "TYPE", TEXT, AT(kv_type), "f16", 0, 0,
     "of the cache: f16, bf16, f32, q8_0 or fp8"},
    {IN_ENGINE, "--cache-tokens", "N", SIZE, AT(cache_tokens), "0", 0, 0,
     "in all of the cache; 0: sequences times context"},
    {IN_ENGINE, "--memory-limit", "BYTES", SIZE, AT(memory_limit), "0", 0, 0,
     "K, M and G are understood; 0: what there is"},
    {IN_ENGINE, "--no-prefix-reuse", NULL, FLAG, AT(no_prefix_reuse), NULL, 0, 0,
     "compute equal beginnings again"},
    {IN_KEEPING, "--cache-disk", "FOLDER", TEXT, AT(cache_disk), NULL, 0, 0,
     "keep beginnings of texts there, for later runs with the same model"},
    {IN_KEEPING, "--cache-disk-bytes", "BYTES", SIZE, AT(cache_disk_bytes), "8G", 0, 0,
     "of files in that folder at most; the least recently used go first"},
    {IN_ENGINE, "--no-fusion", NULL, FLAG, AT(no_fusion), NULL, 0, 0,
     "every op by its own kernel: the same results, slower"},
    {IN_ENGINE, "--no-graphs", NULL, FLAG, AT(no_graphs), NULL, 0, 0, "CUDA: run steps eagerly"},
    {IN_ENGINE, "--kernel", "NAMES", TEXT, AT(kernels), NULL, 0, 0,
     "try those whose names begin so first; with commas between"},
    {IN_ENGINE, "--deterministic", NULL, FLAG, AT(deterministic), NULL, 0, 0,
     "CUDA: results do not depend on how steps are cut"},
    {IN_ALL, "-v --verbose", NULL, FLAG, AT(verbose), NULL, 0, 0, "log to stderr"},
    {IN_ALL, "-h --help", NULL, FLAG, AT(help), NULL, 0, 0, "this page"},
};
enum { OPTION_COUNT = sizeof OPTIONS / sizeof *OPTIONS };

/* ---- names -----------------------------------------------------------------------------------------------
 */

enum { NAME_SIZE = 32 };

/* The name at `index` of an option; false past the end. */
static bool name_at(const option *o, int index, char name[NAME_SIZE]) {
    const char *at = o->names;
    for (; index > 0 && at; index--) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    if (at) {
        snprintf(name, NAME_SIZE, "%.*s", (int)strcspn(at, " "), at);
    }
    return at != NULL;
}

static const option *find_option(const command *command, const char *name, size_t length) {
    char known[NAME_SIZE];
    for (int i = 0; i < OPTION_COUNT; i++) {
        for (int k = 0; (OPTIONS[i].commands & command->bit) && name_at(&OPTIONS[i], k, known); k++) {
            if (strlen(known) == length && memcmp(known, name, length) == 0) {
                return &OPTIONS[i];
            }
        }
    }
    return NULL;
}

/* Levenshtein's distance, texts longer than the table counting as far away. */
static int distance(const char *a, const char *b) {
    enum { MOST = 40 };
    const size_t m = strlen(a), n = strlen(b);
    int row[MOST + 1];
    if (m > MOST || n > MOST) {
        return MOST;
    }
    for (size_t j = 0; j <= n; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= m; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            const int above = row[j], change = corner + (a[i - 1] != b[j - 1]);
            const int step = (above < row[j - 1] ? above : row[j - 1]) + 1;
            row[j] = change < step ? change : step;
            corner = above;
        }
    }
    return row[n];
}

const char *nearest(const char *text, const char *const *names, int count) {
    const char *best = NULL;
    int least = (int)strlen(text) / 3 + 2;
    for (int i = 0; i < count; i++) {
        const int d = distance(text, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

static int unknown_option(const command *command, const char *name) {
    char texts[2 * OPTION_COUNT][NAME_SIZE];
    const char *names[2 * OPTION_COUNT];
    int count = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        for (int k = 0; count < 2 * OPTION_COUNT && (OPTIONS[i].commands & command->bit) &&
                        name_at(&OPTIONS[i], k, texts[count]);
             k++) {
            names[count] = texts[count];
            count++;
        }
    }
    const char *near = nearest(name, names, count);
    fail("%s: there is no option %s%s%s%s (see sluice %s --help)", command->name, name,
         near ? "; did you mean " : "", near ? near : "", near ? "?" : "", command->name);
    return WRONG_USAGE;
}

/* ---- values ----------------------------------------------------------------------------------------------
 */

/* One number, which ends at the text's end or a comma. */
static bool parse_number(const option *o, const char *text, const char **end, int32_t *number) {
    char *stop;
    errno = 0;
    const long long value = strtoll(text, &stop, 10);
    *end = stop;
    *number = (int32_t)value;
    return stop != text && errno == 0 && (double)value >= o->least && (double)value <= o->most;
}

static bool parse_numbers(const option *o, const char *text, number_list *list) {
    number_list parsed = {.count = 0};
    for (const char *at = text; parsed.count < LIST_ITEMS; at++) {
        if (!parse_number(o, at, &at, &parsed.items[parsed.count++]) || (*at && *at != ',')) {
            return false;
        }
        if (!*at) {
            *list = parsed;
            return true;
        }
    }
    return false;
}

static bool parse_size(const char *text, uint64_t *size) {
    static const char units[] = "KMGT";
    char *stop;
    errno = 0;
    if (*text < '0' || *text > '9') {
        return false;
    }
    uint64_t value = strtoull(text, &stop, 10);
    const char *unit = *stop ? strchr(units, *stop) : NULL;
    for (const char *u = units; unit && u <= unit; u++) {
        if (value > UINT64_MAX / 1024) {
            return false;
        }
        value *= 1024;
    }
    *size = value;
    return errno == 0 && (!*stop || (unit && !stop[1]));
}

static bool parse_real(const option *o, const char *text, double *real) {
    char *stop;
    const double value = strtod(text, &stop);
    *real = value;
    return stop != text && !*stop && isfinite(value) && value >= o->least && value <= o->most;
}

/* Is `text` one of "a|b|c"? */
static bool is_choice(const char *choices, const char *text) {
    const size_t length = strlen(text);
    for (const char *at = choices; *at; at += strcspn(at, "|"), at += *at == '|') {
        if (length == strcspn(at, "|") && memcmp(at, text, length) == 0) {
            return true;
        }
    }
    return false;
}

/* A token's id and, with its sign, what is added to the logit: "15043+1.5", "15043-inf". */
static bool parse_bias(const char *text, bias_list *list) {
    char *stop;
    errno = 0;
    const long long token = strtoll(text, &stop, 10);
    if (*text < '0' || *text > '9' || errno || token > INT32_MAX || (*stop != '+' && *stop != '-') ||
        list->count == LIST_ITEMS) {
        return false;
    }
    const char *number = stop;
    const float bias = strtof(number, &stop);
    if (stop == number || *stop || !(bias < INFINITY)) {
        return false;
    }
    list->items[list->count++] = (sluice_logit_bias){(int32_t)token, bias};
    return true;
}

static bool set_value(const option *o, const char *text, settings *settings) {
    void *at = (char *)settings + o->offset;
    text_list *list = at;
    const char *end;
    switch (o->kind) {
    case FLAG:
        *(bool *)at = true;
        return true;
    case NUMBER:
        return parse_number(o, text, &end, at) && !*end;
    case SIZE:
        return parse_size(text, at);
    case REAL:
        return parse_real(o, text, at);
    case NUMBERS:
        return parse_numbers(o, text, at);
    case TEXTS:
        if (list->count == LIST_ITEMS) {
            return false;
        }
        list->items[list->count++] = text;
        return true;
    case BIASES:
        return parse_bias(text, at);
    case CHOICE:
        *(const char **)at = text;
        return is_choice(o->argument, text);
    default:
        *(const char **)at = text;
        return true;
    }
}

static int wrong_value(const command *command, const option *o, const char *name, int length,
                       const char *text) {
    char wanted[96] = "a number";
    if (o->kind == NUMBER || o->kind == REAL || o->kind == NUMBERS) {
        snprintf(wanted, sizeof wanted, "%s from %.10g to %.10g%s",
                 o->kind == REAL ? "a number" : "a whole number", o->least, o->most,
                 o->kind == NUMBERS ? ", or several with commas" : "");
    } else if (o->kind == SIZE) {
        snprintf(wanted, sizeof wanted, "a whole number, with K, M, G or T for multiples of 1024");
    } else if (o->kind == CHOICE) {
        snprintf(wanted, sizeof wanted, "%s", o->argument);
    } else if (o->kind == BIASES) {
        snprintf(wanted, sizeof wanted, "a token's id and what is added, as in 13-2.5, at most %d times",
                 LIST_ITEMS);
    } else if (o->kind == TEXTS) {
        snprintf(wanted, sizeof wanted, "at most %d times a text", LIST_ITEMS);
    }
    fail("%s: %.*s wants %s, not \"%s\"", command->name, length, name, wanted, text);
    return WRONG_USAGE;
}

/* ---- the command line ------------------------------------------------------------------------------------
 */

static int check_arguments(const command *command, const settings *settings) {
    if (settings->argument_count != command->argument_count) {
        fail("%s wants %s: sluice %s %s (see sluice %s --help)", command->name,
             command->argument_count ? command->arguments : "no arguments but options", command->name,
             command->arguments ? command->arguments : "[options]", command->name);
        return WRONG_USAGE;
    }
    return DONE;
}

static int parse_arguments(const command *command, int count, char **arguments, settings *settings) {
    bool only_arguments = false;
    for (int i = 0; i < count; i++) {
        const char *text = arguments[i], *equals = strncmp(text, "--", 2) == 0 ? strchr(text, '=') : NULL;
        if (only_arguments || text[0] != '-' || !text[1]) {
            if (settings->argument_count < 4) {
                settings->arguments[settings->argument_count] = text;
            }
            settings->argument_count++;
            continue;
        }
        if (strcmp(text, "--") == 0) {
            only_arguments = true;
            continue;
        }
        const size_t length = equals ? (size_t)(equals - text) : strlen(text);
        const option *o = find_option(command, text, length);
        if (!o) {
            return unknown_option(command, text);
        }
        const char *value = o->kind == FLAG ? ""
                            : equals        ? equals + 1
                            : i + 1 < count ? arguments[++i]
                                            : NULL;
        if (!value || (o->kind == FLAG && equals)) {
            fail("%s: %.*s %s", command->name, (int)length, text, value ? "takes no value" : "wants a value");
            return WRONG_USAGE;
        }
        if (!set_value(o, value, settings)) {
            return wrong_value(command, o, text, (int)length, value);
        }
    }
    return settings->help ? DONE : check_arguments(command, settings);
}

int set_option(const command *command, const char *name, const char *value, settings *settings) {
    const option *o = find_option(command, name, strlen(name));
    if (!o) {
        return unknown_option(command, name);
    }
    if ((o->kind == FLAG) != (value == NULL)) {
        fail("%s: %s %s", command->name, name, value ? "takes no value but true and false" : "wants a value");
        return WRONG_USAGE;
    }
    return set_value(o, value ? value : "", settings)
               ? DONE
               : wrong_value(command, o, name, (int)strlen(name), value ? value : "");
}

void clear_list(const command *command, const char *name, settings *settings) {
    const option *o = find_option(command, name, strlen(name));
    if (o && o->kind == TEXTS) {
        ((text_list *)(void *)((char *)settings + o->offset))->count = 0;
    }
}

int parse_options(const command *command, int count, char **arguments, settings *settings) {
    memset(settings, 0, sizeof *settings);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if ((OPTIONS[i].commands & command->bit) && OPTIONS[i].initial) {
            set_value(&OPTIONS[i], OPTIONS[i].initial, settings);
        }
    }
    const int code = read_config(command, count, arguments, settings);
    return code == DONE ? parse_arguments(command, count, arguments, settings) : code;
}

/* ---- help ------------------------------------------------------------------------------------------------
 */

static void print_option(const option *o) {
    char left[64], name[NAME_SIZE];
    int at = 0;
    for (int k = 0; name_at(o, k, name); k++) {
        at += snprintf(left + at, sizeof left - (size_t)at, "%s%s", k ? ", " : "", name);
    }
    if (o->argument && (size_t)at < sizeof left) {
        snprintf(left + at, sizeof left - (size_t)at, " %s", o->argument);
    }
    printf("  %-30s %s", left, o->help);
    if (o->initial && (strcmp(o->initial, "0") != 0 || !strstr(o->help, "0: "))) {
        printf(" [%s]", o->initial);
    }
    printf("\n");
}

void print_command_help(const command *command) {
    printf("usage: sluice %s%s%s%s [options]\n\n%s\n\noptions:\n", command->name,
           command->arguments ? " " : "", command->arguments ? command->arguments : "",
           command->needs_model ? " [-m MODEL]" : "", command->text);
    for (int engine = 0; engine < 2; engine++) {
        if (engine && (command->bit & IN_ENGINE)) {
            printf("\nengine:\n");
        }
        for (int i = 0; i < OPTION_COUNT; i++) {
            const bool of_engine = OPTIONS[i].commands == IN_ENGINE || OPTIONS[i].commands == IN_KEEPING;
            if ((OPTIONS[i].commands & command->bit) && of_engine == (engine == 1)) {
                print_option(&OPTIONS[i]);
            }
        }
    }
    printf("\nexamples:\n%s", command->examples);
}
