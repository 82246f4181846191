/* sluice man: manual pages in man(7)'s language, made from the tables of commands and options. */
#include "options.h"

#include <ctype.h>
#include <string.h>

/* A text as it stands: what roff would take for itself is marked. */
static void print_roff(const char *text, bool line_start) {
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) {
            printf("\\&");
        }
        line_start = *text == '\n';
        if (*text == '\\') {
            printf("\\e");
        } else if (*text == '-') {
            printf("\\-");
        } else if (*text == '`') {
            printf("\\(ga");
        } else if (*text == '^') {
            printf("\\(ha");
        } else if (*text == '~') {
            printf("\\(ti");
        } else {
            putchar(*text);
        }
    }
}

static void print_title(const char *name, const char *about) {
    printf(".TH ");
    for (const char *at = name; *at; at++) {
        putchar(toupper((unsigned char)*at));
    }
    printf(" 1 \"\" \"sluice %s\" \"sluice\"\n.SH NAME\n", sluice_version());
    print_roff(name, true);
    printf(" \\- ");
    print_roff(about, false);
    printf("\n");
}

static void print_option(const option *o) {
    char name[NAME_SIZE];
    printf(".TP\n");
    for (int k = 0; name_at(o->names, k, name); k++) {
        printf("%s\\fB", k ? ", " : "");
        print_roff(name, false);
        printf("\\fR");
    }
    if (o->argument) {
        printf(" \\fI");
        print_roff(o->argument, false);
        printf("\\fR");
    }
    printf("\n");
    print_roff(o->help, true);
    if (o->initial && !says_initial(o)) {
        printf(" [");
        print_roff(o->initial, false);
        printf("]");
    }
    printf("\n");
}

static void print_options(const command *command, const char *title, option_group group) {
    printf(".SH %s\n", title);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if ((OPTIONS[i].commands & command->bit) && group_of(&OPTIONS[i]) == group) {
            print_option(&OPTIONS[i]);
        }
    }
}

static void command_page(const command *command) {
    char name[64];
    const char *usage = usage_arguments(command);
    snprintf(name, sizeof name, "sluice-%s", command->name);
    print_title(name, command->about);
    printf(".SH SYNOPSIS\n.B sluice %s\n", command->name);
    if (usage) {
        print_roff(usage, true);
        printf("\n");
    }
    printf("[options]\n.SH DESCRIPTION\n");
    print_roff(command->text, true);
    printf("\n");
    print_options(command, "OPTIONS", GROUP_OWN);
    if (has_group(command, GROUP_ENGINE)) {
        print_options(command, "OPTIONS OF THE ENGINE", GROUP_ENGINE);
    }
    if (has_group(command, GROUP_NAMES)) {
        print_options(command, "OPTIONS OF MODELS BY NAME", GROUP_NAMES);
    }
    printf(".SH EXIT STATUS\n0 when all went well, 1 after an error and 2 for a command line that is wrong. "
           "An error "
           "is one line on standard error.\n.SH EXAMPLES\n.nf\n");
    print_roff(command->examples, true);
    printf(".fi\n.SH SEE ALSO\n.BR sluice (1)\n");
}

static void main_page(void) {
    print_title("sluice", "run large language models");
    printf(".SH SYNOPSIS\n.B sluice\n.I command\n[options]\n.SH DESCRIPTION\n"
           "Runs large language models of GGUF files and Hugging Face folders: asks them, talks with them, "
           "serves "
           "them over HTTP, and measures them. Each command has a page of its own, which\n.B sluice help\n"
           ".I command\nprints in short.\n.SH COMMANDS\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf(".TP\n.B %s\n", COMMANDS[i].name);
        print_roff(COMMANDS[i].about, true);
        printf("\n");
    }
    printf(
        ".SH FILES\n.TP\n.I share/sluice/models\nThe built-in models, beside the program's folder: mini and "
        "mini\\-moe.\n.TP\n.I ~/.cache/sluice/models\nModels that\n.B sluice pull\nfetched.\n.TP\n"
        ".I ~/.config/sluice/config.json\nOptions that always count, as a JSON object by their long names.\n"
        ".SH SEE ALSO\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf(".BR sluice\\-%s (1)%s\n", COMMANDS[i].name, i + 1 < COMMAND_COUNT ? "," : "");
    }
}

int man_command(const settings *settings) {
    if (settings->argument_count == 0) {
        main_page();
        return DONE;
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(COMMANDS[i].name, settings->arguments[0]) == 0) {
            command_page(&COMMANDS[i]);
            return DONE;
        }
    }
    fail("man: there is no command %s (see sluice --help)", settings->arguments[0]);
    return WRONG_USAGE;
}
