/* The parser of the table in option_table.c, the help, and the advice about names that are no options. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names -----------------------------------------------------------------------------------------------
 */

bool name_at(const char *names, int index, char name[NAME_SIZE]) {
    const char *at = names;
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
        for (int k = 0; (OPTIONS[i].commands & command->bit) && name_at(OPTIONS[i].names, k, known); k++) {
            if (strlen(known) == length && memcmp(known, name, length) == 0) {
                return &OPTIONS[i];
            }
        }
    }
    return NULL;
}

static const foreign_option *find_foreign(const command *command, const char *name, size_t length) {
    char known[NAME_SIZE];
    for (int i = 0; i < FOREIGN_OPTION_COUNT; i++) {
        const foreign_option *f = &FOREIGN_OPTIONS[i];
        for (int k = 0; (f->commands & command->bit) && name_at(f->names, k, known); k++) {
            if (strlen(known) == length && memcmp(known, name, length) == 0) {
                return f;
            }
        }
    }
    return NULL;
}

bool is_given(const settings *settings, const char *name) {
    char known[NAME_SIZE];
    for (int i = 0; i < OPTION_COUNT; i++) {
        for (int k = 0; (settings->given[i / 8] >> i % 8 & 1) && name_at(OPTIONS[i].names, k, known); k++) {
            if (strcmp(known, name) == 0) {
                return true;
            }
        }
    }
    return false;
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
    char texts[2 * OPTIONS_MOST][NAME_SIZE];
    const char *names[2 * OPTIONS_MOST];
    int count = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        for (int k = 0; count < 2 * OPTIONS_MOST && (OPTIONS[i].commands & command->bit) &&
                        name_at(OPTIONS[i].names, k, texts[count]);
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

static bool parse_layers(const option *o, const char *text, int32_t *layers) {
    const char *end;
    if (strcmp(text, "all") == 0) {
        *layers = INT32_MAX;
        return true;
    }
    return parse_number(o, text, &end, layers) && !*end;
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

/* One size, or NAME=SIZE with commas between. Which names there are the library says. */
static bool parse_sizes(const char *text, memory_limits *limits) {
    memory_limits parsed = {.all = 0};
    if (!strchr(text, '=')) {
        *limits = parsed;
        return parse_size(text, &limits->all);
    }
    for (int i = 0; i < SLUICE_MEMORY_LIMITS; i++) {
        sluice_memory_limit *one = &parsed.by_device[i];
        char size[24];
        const size_t name = strcspn(text, "=,"), end = strcspn(text, ",");
        if (text[name] != '=' || name == 0 || name >= sizeof one->device || end - name > sizeof size) {
            return false;
        }
        snprintf(one->device, sizeof one->device, "%.*s", (int)name, text);
        snprintf(size, sizeof size, "%.*s", (int)(end - name - 1), text + name + 1);
        if (!parse_size(size, &one->bytes)) {
            return false;
        }
        if (!text[end]) {
            *limits = parsed;
            return true;
        }
        text += end + 1;
    }
    return false;
}

/* -1: another one with each run. */
static bool parse_seed(const char *text, uint64_t *seed) {
    if (strcmp(text, "-1") == 0) {
        *seed = RANDOM_SEED;
        return true;
    }
    return parse_size(text, seed);
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

static bool parse_samplers(const char *text, sampler_list *list) {
    sluice_error error;
    return sluice_samplers_parse(text, list->items, &list->count, &error) == 0 && list->count > 0;
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
    case LAYERS:
        return parse_layers(o, text, at);
    case SIZE:
        return parse_size(text, at);
    case SIZES:
        return parse_sizes(text, at);
    case SEED:
        return parse_seed(text, at);
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
    case SAMPLERS:
        return parse_samplers(text, at);
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
    char wanted[128] = "a number";
    if (o->kind == NUMBER || o->kind == REAL || o->kind == NUMBERS || o->kind == LAYERS) {
        snprintf(wanted, sizeof wanted, "%s from %.10g to %.10g%s",
                 o->kind == REAL ? "a number" : "a whole number", o->least, o->most,
                 o->kind == NUMBERS  ? ", or several with commas"
                 : o->kind == LAYERS ? ", or all"
                                     : "");
    } else if (o->kind == SIZE) {
        snprintf(wanted, sizeof wanted, "a whole number, with K, M, G or T for multiples of 1024");
    } else if (o->kind == SIZES) {
        snprintf(wanted, sizeof wanted,
                 "a whole number, with K, M, G or T for multiples of 1024, or up to %d of them by device, as "
                 "in cuda=8G,cpu=20G",
                 SLUICE_MEMORY_LIMITS);
    } else if (o->kind == SEED) {
        snprintf(wanted, sizeof wanted, "a whole number, or -1 for another one with each run");
    } else if (o->kind == CHOICE) {
        snprintf(wanted, sizeof wanted, "%s", o->argument);
    } else if (o->kind == BIASES) {
        snprintf(wanted, sizeof wanted, "a token's id and what is added, as in 13-2.5, at most %d times",
                 LIST_ITEMS);
    } else if (o->kind == SAMPLERS) {
        snprintf(wanted, sizeof wanted,
                 "samplers as its help names them, each once, penalties and dry first");
    } else if (o->kind == TEXTS) {
        snprintf(wanted, sizeof wanted, "at most %d times a text", LIST_ITEMS);
    }
    fail("%s: %.*s wants %s, not \"%s\"", command->name, length, name, wanted, text);
    return WRONG_USAGE;
}

/* ---- the command line ------------------------------------------------------------------------------------
 */

const char *usage_arguments(const command *command) {
    return command->arguments ? command->arguments : command->needs_model ? "[MODEL]" : NULL;
}

static int check_arguments(const command *command, const settings *settings) {
    /* A dry run writes nothing and needs no name for it. */
    const int count = settings->argument_count;
    const int least = command->argument_count - (settings->dry_run && command->bit == IN_QUANTIZE ? 1 : 0);
    const char *usage = usage_arguments(command);
    if (count < least || count > command->argument_count + optional_arguments(command)) {
        fail("%s wants %s%s: sluice %s %s (see sluice %s --help)", command->name,
             usage && least == 0 ? "at most " : "", usage ? usage : "no arguments but options", command->name,
             usage ? usage : "[options]", command->name);
        return WRONG_USAGE;
    }
    return DONE;
}

static void take_bare(settings *settings, const char *text) {
    if (settings->argument_count < LIST_ITEMS) {
        settings->arguments[settings->argument_count] = text;
    }
    settings->argument_count++;
}

static int take_value(const command *command, const option *o, const char *name, int length,
                      const char *value, settings *settings) {
    if (!set_value(o, value, settings)) {
        return wrong_value(command, o, name, length, value);
    }
    const size_t row = (size_t)(o - OPTIONS);
    settings->given[row / 8] |= (unsigned char)(1u << row % 8);
    return DONE;
}

/* "-n5": an option of one letter and its number in one word. NULL: that is not what it is. */
static const option *find_glued(const command *command, const char *text) {
    const bool number = text[1] && text[1] != '-' && text[2] && strchr("0123456789-.", text[2]);
    const option *o = number ? find_option(command, text, 2) : NULL;
    return o && (o->kind == NUMBER || o->kind == NUMBERS || o->kind == LAYERS || o->kind == SIZE ||
                 o->kind == SEED || o->kind == REAL)
               ? o
               : NULL;
}

/* What llama.cpp has and sluice does without; *at moves over a value that means nothing here. */
static int answer_foreign(const command *command, const foreign_option *f, int count, char **arguments,
                          int *at) {
    const char *text = arguments[*at];
    const int length = (int)strcspn(text, "=");
    fail("%s: %.*s: %s%s", command->name, length, text, f->needless ? "not needed: " : "", f->answer);
    const char *next = !text[length] && *at + 1 < count ? arguments[*at + 1] : NULL;
    if (f->values && next && (strcmp(f->values, "*") == 0 || is_choice(f->values, next))) {
        (*at)++;
    }
    return f->needless ? DONE : WRONG_USAGE;
}

/* The option at *at, which moves over its value. */
static int parse_option(const command *command, int count, char **arguments, int *at, settings *settings) {
    const char *text = arguments[*at], *equals = strncmp(text, "--", 2) == 0 ? strchr(text, '=') : NULL;
    const size_t length = equals ? (size_t)(equals - text) : strlen(text);
    const option *o = find_option(command, text, length);
    const foreign_option *foreign = o ? NULL : find_foreign(command, text, length);
    if (foreign) {
        return answer_foreign(command, foreign, count, arguments, at);
    }
    if (!o && (o = find_glued(command, text)) != NULL) {
        return take_value(command, o, text, 2, text + 2, settings);
    }
    if (!o) {
        return unknown_option(command, text);
    }
    const char *value = o->kind == FLAG   ? ""
                        : equals          ? equals + 1
                        : *at + 1 < count ? arguments[++*at]
                                          : NULL;
    if (!value || (o->kind == FLAG && equals)) {
        fail("%s: %.*s %s", command->name, (int)length, text, value ? "takes no value" : "wants a value");
        return WRONG_USAGE;
    }
    return take_value(command, o, text, (int)length, value, settings);
}

static int parse_arguments(const command *command, int count, char **arguments, settings *settings) {
    int code = DONE;
    bool only_arguments = false;
    for (int i = 0; i < count && code == DONE; i++) {
        const char *text = arguments[i];
        if (only_arguments || text[0] != '-' || !text[1]) {
            take_bare(settings, text);
        } else if (strcmp(text, "--") == 0) {
            only_arguments = true;
        } else {
            code = parse_option(command, count, arguments, &i, settings);
        }
    }
    if (code != DONE || settings->help) {
        return code;
    }
    code = check_arguments(command, settings);
    return code == DONE ? place_arguments(command, settings) : code;
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
    return take_value(command, o, name, (int)strlen(name), value ? value : "", settings);
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

option_group group_of(const option *o) {
    const unsigned c = o->commands;
    const bool names = c == IN_NAMES || c == IN_FETCHING || c == (IN_MODEL | IN_SERVE);
    const bool engine = c == IN_ENGINE || c == IN_THREADED || c == IN_SCHEDULED || c == IN_CROWDED ||
                        c == IN_KEEPING || c == IN_DRAFTING || c == IN_BUDGETED;
    return names || o->offset == offsetof(settings, hf_draft) ? GROUP_NAMES
           : engine                                           ? GROUP_ENGINE
                                                              : GROUP_OWN;
}

bool has_group(const command *command, option_group group) {
    for (int i = 0; i < OPTION_COUNT; i++) {
        if ((OPTIONS[i].commands & command->bit) && group_of(&OPTIONS[i]) == group) {
            return true;
        }
    }
    return false;
}

int is_for_user(const command *command, const char *name) {
    int found = 0;
    char known[NAME_SIZE];
    for (int i = 0; i < OPTION_COUNT; i++) {
        const option *o = &OPTIONS[i];
        const bool may = o->commands == IN_NAMES || o->commands == IN_FETCHING || o->commands == IN_ENGINE ||
                         o->commands == IN_THREADED || o->commands == IN_SCHEDULED ||
                         o->commands == IN_CROWDED;
        for (int k = 0; may && name_at(o->names, k, known); k++) {
            if (strcmp(known, name) == 0) {
                found = o->commands & command->bit ? 2 : found ? found : 1;
            }
        }
    }
    return found;
}

bool says_initial(const option *o) {
    return (strcmp(o->initial, "0") == 0 && strstr(o->help, "0: ")) ||
           (strcmp(o->initial, "-1") == 0 && strstr(o->help, "-1: "));
}

enum { HELP_AT = 33, HELP_WIDTH = 120 }; /* columns */

/* From column HELP_AT on, broken between words. */
static void print_wrapped(const char *text) {
    while (strlen(text) > HELP_WIDTH - HELP_AT) {
        int length = HELP_WIDTH - HELP_AT;
        while (length > 0 && text[length] != ' ') {
            length--;
        }
        if (length == 0) {
            break;
        }
        printf("%.*s\n%*s", length, text, HELP_AT, "");
        text += length + 1;
    }
    printf("%s\n", text);
}

static void print_option(const option *o) {
    char left[160], name[NAME_SIZE], help[512];
    int at = 0;
    for (int k = 0; name_at(o->names, k, name) && at < (int)sizeof left; k++) {
        at += snprintf(left + at, sizeof left - (size_t)at, "%s%s", k ? ", " : "", name);
    }
    if (o->argument && (size_t)at < sizeof left) {
        snprintf(left + at, sizeof left - (size_t)at, " %s", o->argument);
    }
    const bool says = !o->initial || says_initial(o);
    snprintf(help, sizeof help, "%s%s%s%s", o->help, says ? "" : " [", says ? "" : o->initial,
             says ? "" : "]");
    if (strlen(left) > HELP_AT - 3) {
        printf("  %s\n%*s", left, HELP_AT, "");
    } else {
        printf("  %-*s ", HELP_AT - 3, left);
    }
    print_wrapped(help);
}

static void print_types(void) {
    enum { COLUMNS = 4 };
    double bits;
    printf("\ntypes, with the bits per weight that they give Llama 3 8B:\n");
    for (int i = 0; sluice_quantize_type(i, &bits); i++) {
        printf("  %-10s %5.2f%s", sluice_quantize_type(i, NULL), bits,
               i % COLUMNS == COLUMNS - 1 || !sluice_quantize_type(i + 1, NULL) ? "\n" : "    ");
    }
    printf(
        "Q3_K, Q4_K and Q5_K stand for Q3_K_M, Q4_K_M and Q5_K_M; --pure takes one type for all matrices.\n"
        "Rows that are no whole number of a type's blocks take one with smaller blocks, which is printed.\n");
}

void print_command_help(const command *command) {
    const char *usage = usage_arguments(command);
    printf("usage: sluice %s%s%s [options]\n\n%s\n\noptions:\n", command->name, usage ? " " : "",
           usage ? usage : "", command->text);
    static const char *const TITLES[GROUP_COUNT] = {"", "\nengine:\n", "\nmodels by name:\n"};
    for (int group = 0; group < GROUP_COUNT; group++) {
        printf("%s", has_group(command, (option_group)group) ? TITLES[group] : "");
        for (int i = 0; i < OPTION_COUNT; i++) {
            if ((OPTIONS[i].commands & command->bit) && (int)group_of(&OPTIONS[i]) == group) {
                print_option(&OPTIONS[i]);
            }
        }
    }
    if (command->bit == IN_QUANTIZE) {
        print_types();
    }
    printf("\nexamples:\n%s", command->examples);
}
