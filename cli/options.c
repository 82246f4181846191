/* The parser of the table in option_table.c, the help, and the advice about names that are no options. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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
    char texts[2 * OPTIONS_MOST][NAME_SIZE];
    const char *names[2 * OPTIONS_MOST];
    int count = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        for (int k = 0; count < 2 * OPTIONS_MOST && (OPTIONS[i].commands & command->bit) &&
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
    /* A dry run writes nothing and needs no name for it. */
    const int least = command->argument_count - (settings->dry_run ? 1 : 0);
    if (settings->argument_count > command->argument_count || settings->argument_count < least) {
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
    if (command->bit == IN_QUANTIZE) {
        print_types();
    }
    printf("\nexamples:\n%s", command->examples);
}
