/* sluice completion: what a shell needs to complete command lines, made from the tables of commands and
 * options.
 */
#include "options.h"

#include <string.h>

/* ---- what an option's value can be -----------------------------------------------------------------------
 */

static bool takes_file(const option *o) {
    static const char *const names[] = {"MODEL", "FILE", "FOLDER", "PATH", "NAME|FILE"};
    for (size_t i = 0; o->argument && i < sizeof names / sizeof *names; i++) {
        if (strcmp(o->argument, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Words that may stand there, with spaces between; "" when there is no telling. */
static void print_values(const option *o) {
    if (o->kind == CHOICE) {
        for (const char *at = o->argument; *at; at++) {
            putchar(*at == '|' ? ' ' : *at);
        }
    } else if (o->argument && strcmp(o->argument, "MODEL") == 0) {
        printf("mini mini-moe");
    } else if (o->argument && strcmp(o->argument, "NAME|FILE") == 0) {
        for (int i = 0; sluice_chat_format_name(i); i++) {
            printf("%s%s", i ? " " : "", sluice_chat_format_name(i));
        }
    }
}

static bool has_values(const option *o) {
    return o->kind == CHOICE ||
           (o->argument && (strcmp(o->argument, "MODEL") == 0 || strcmp(o->argument, "NAME|FILE") == 0));
}

static void print_commands(const char *separator) {
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf("%s%s", i ? separator : "", COMMANDS[i].name);
    }
}

/* The names of an option with something between them. */
static void print_names(const option *o, const char *separator) {
    char name[NAME_SIZE];
    for (int k = 0; name_at(o->names, k, name); k++) {
        printf("%s%s", k ? separator : "", name);
    }
}

/* Words of commands that have no options to speak of. */
static const char *words_of(const command *command) {
    return command->bit == IN_COMPLETION ? "bash zsh fish" : NULL;
}

/* ---- bash ------------------------------------------------------------------------------------------------
 */

static void bash_command(const command *command) {
    printf("    %s)\n        words='", command->name);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (OPTIONS[i].commands & command->bit) {
            print_names(&OPTIONS[i], " ");
            putchar(' ');
        }
    }
    printf("'\n        case $previous in\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const option *o = &OPTIONS[i];
        if (!(o->commands & command->bit) || o->kind == FLAG) {
            continue;
        }
        printf("        ");
        print_names(o, " | ");
        printf(") values='");
        print_values(o);
        printf("' files=%s value=yes ;;\n", takes_file(o) ? "yes" : "");
    }
    printf("        esac\n");
    if (words_of(command)) {
        printf("        [[ $current == -* ]] || words='%s'\n", words_of(command));
    }
    printf("        ;;\n");
}

static void bash_script(void) {
    printf("# Completion of sluice's command lines for bash; made by `sluice completion bash`.\n"
           "_sluice() {\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local words= values= files= value=\n"
           "    COMPREPLY=()\n"
           "    if [[ $COMP_CWORD == 1 || ( $COMP_CWORD == 2 && $previous =~ ^(help|man)$ && $current != -* "
           ") ]]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W '");
    print_commands(" ");
    printf(" help version' -- \"$current\")\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        bash_command(&COMMANDS[i]);
    }
    printf("    esac\n"
           "    if [[ $value ]]; then\n"
           "        words=$values\n"
           "    elif [[ $current != -* ]]; then\n"
           "        files=yes\n"
           "        [[ $words == -* ]] && words=\n"
           "    fi\n"
           "    mapfile -t COMPREPLY < <(\n"
           "        compgen -W \"$words\" -- \"$current\"\n"
           "        [[ $files ]] && compgen -f -- \"$current\"\n"
           "    )\n"
           "}\n"
           "complete -o filenames -F _sluice sluice\n");
}

/* ---- zsh -------------------------------------------------------------------------------------------------
 */

/* Inside single quotes and _arguments' own marks. */
static void zsh_text(const char *text) {
    for (; *text; text++) {
        if (*text == '\'') {
            printf("'\\''");
        } else {
            printf(strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
        }
    }
}

static void zsh_option(const option *o) {
    const bool several = strchr(o->names, ' ') != NULL;
    const bool repeated = o->kind == TEXTS || o->kind == BIASES;
    printf("            ");
    if (repeated) {
        printf("'*'");
    } else if (several) {
        printf("'(%s)'", o->names);
    }
    if (several) {
        putchar('{');
        print_names(o, ",");
        putchar('}');
    } else {
        printf("%s", o->names);
    }
    printf("'[");
    zsh_text(o->help);
    putchar(']');
    if (o->kind != FLAG) {
        putchar(':');
        zsh_text(o->argument);
        putchar(':');
        if (has_values(o) && !takes_file(o)) {
            putchar('(');
            print_values(o);
            putchar(')');
        } else if (has_values(o)) {
            printf("{ compadd -- ");
            print_values(o);
            printf("; _files }");
        } else if (takes_file(o)) {
            printf("_files");
        }
    }
    printf("' \\\n");
}

static void zsh_script(void) {
    printf("#compdef sluice\n"
           "# Completion of sluice's command lines for zsh; made by `sluice completion zsh`.\n"
           "_sluice() {\n"
           "    local -a commands\n"
           "    commands=(\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf("        '%s:", COMMANDS[i].name);
        zsh_text(COMMANDS[i].about);
        printf("'\n");
    }
    printf("        'help:explain a command'\n"
           "        'version:print the version'\n"
           "    )\n"
           "    if (( CURRENT == 2 )) || [[ CURRENT -eq 3 && $words[2] == (help|man) ]]; then\n"
           "        _describe command commands\n"
           "        return\n"
           "    fi\n"
           "    local name=$words[2]\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $name in\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf("    %s)\n        _arguments \\\n", COMMANDS[i].name);
        for (int k = 0; k < OPTION_COUNT; k++) {
            if (OPTIONS[k].commands & COMMANDS[i].bit) {
                zsh_option(&OPTIONS[k]);
            }
        }
        if (words_of(&COMMANDS[i])) {
            printf("            '1:shell:(%s)'\n        ;;\n", words_of(&COMMANDS[i]));
        } else {
            printf("            '*:file:_files'\n        ;;\n");
        }
    }
    printf("    esac\n"
           "}\n"
           "_sluice \"$@\"\n");
}

/* ---- fish ------------------------------------------------------------------------------------------------
 */

static void fish_text(const char *text) {
    putchar('\'');
    for (; *text; text++) {
        printf(*text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    putchar('\'');
}

static void fish_option(const command *command, const option *o) {
    char name[NAME_SIZE];
    printf("complete -c sluice -n '__fish_seen_subcommand_from %s'", command->name);
    for (int k = 0; name_at(o->names, k, name); k++) {
        if (name[1] == '-') {
            printf(" -l %s", name + 2);
        } else {
            printf(name[2] ? " -o %s" : " -s %s", name + 1);
        }
    }
    if (o->kind != FLAG) {
        printf(takes_file(o) ? " -r -F" : " -x");
        if (has_values(o)) {
            printf(" -a '");
            print_values(o);
            putchar('\'');
        }
    }
    printf(" -d ");
    fish_text(o->help);
    putchar('\n');
}

static void fish_script(void) {
    printf("# Completion of sluice's command lines for fish; made by `sluice completion fish`.\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf("complete -c sluice -f -n __fish_use_subcommand -a %s -d ", COMMANDS[i].name);
        fish_text(COMMANDS[i].about);
        putchar('\n');
    }
    printf("complete -c sluice -f -n __fish_use_subcommand -a 'help version'\n"
           "complete -c sluice -f -n '__fish_seen_subcommand_from help man' -a '");
    print_commands(" ");
    printf("'\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        for (int k = 0; k < OPTION_COUNT; k++) {
            if (OPTIONS[k].commands & COMMANDS[i].bit) {
                fish_option(&COMMANDS[i], &OPTIONS[k]);
            }
        }
        if (words_of(&COMMANDS[i])) {
            printf("complete -c sluice -f -n '__fish_seen_subcommand_from %s' -a '%s'\n", COMMANDS[i].name,
                   words_of(&COMMANDS[i]));
        }
    }
}

int completion_command(const settings *settings) {
    const char *shell = settings->arguments[0];
    if (strcmp(shell, "bash") == 0) {
        bash_script();
    } else if (strcmp(shell, "zsh") == 0) {
        zsh_script();
    } else if (strcmp(shell, "fish") == 0) {
        fish_script();
    } else {
        fail("completion: bash, zsh or fish, not \"%s\"", shell);
        return WRONG_USAGE;
    }
    return DONE;
}
