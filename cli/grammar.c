/* --json-schema, --grammar, --regex and --reasoning-budget: what an answer is held to. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct source {
    const char *option, *given;
    sluice_grammar_kind kind;
} source;

enum { KINDS = 3 };

/* Is it the text itself, or does it name a file? A grammar defines rules, a schema is a JSON value. */
static bool is_text(const source *s) {
    const char *first = s->given + strspn(s->given, " \t\r\n");
    return s->kind == SLUICE_GRAMMAR_REGEX ? true
           : s->kind == SLUICE_GRAMMAR_GBNF
               ? strstr(s->given, "::=") != NULL
               : *first == '{' || strcmp(first, "true") == 0 || strcmp(first, "false") == 0;
}

/* The one that was given; `option` NULL: none was. */
static int choose(const settings *s, source *chosen) {
    const source all[KINDS] = {{"--json-schema", s->json_schema, SLUICE_GRAMMAR_JSON_SCHEMA},
                               {"--grammar", s->grammar, SLUICE_GRAMMAR_GBNF},
                               {"--regex", s->regex, SLUICE_GRAMMAR_REGEX}};
    *chosen = (source){0};
    for (int i = 0; i < KINDS; i++) {
        if (all[i].given && chosen->given) {
            fail("%s and %s exclude each other", chosen->option, all[i].option);
            return WRONG_USAGE;
        }
        *chosen = all[i].given ? all[i] : *chosen;
    }
    return DONE;
}

static int compile(const source *from, sluice_thought thought, sluice_model *model,
                   sluice_grammar **grammar) {
    sluice_error error;
    const bool text = is_text(from);
    sluice_grammar_options options = {
        .size = sizeof options, .kind = from->kind, .text = from->given, .thought = thought};
    if (!text && access(from->given, R_OK) != 0) {
        return fail("%s: \"%s\" is no %s, and no file that can be read", from->option, from->given,
                    from->kind == SLUICE_GRAMMAR_GBNF ? "grammar (root ::= ...)" : "schema ({...})");
    }
    char *read = text ? NULL : read_all(from->given, &options.length);
    if (!text && !read) {
        return FAILED;
    }
    options.text = read ? read : from->given;
    options.length = read ? options.length : strlen(from->given);
    const int code = sluice_grammar_create(model, &options, grammar, &error)
                         ? fail("%s: %s", from->option, error.message)
                         : DONE;
    free(read);
    return code;
}

int hold_to_grammar(held_grammar *held, const settings *settings, sluice_model *model,
                    sluice_request_options *request) {
    source from;
    sluice_thought thought = SLUICE_THOUGHT_NONE;
    const bool bounded = held->answers && settings->reasoning_budget >= 0;
    int code = choose(settings, &from);
    if (code != DONE || (!from.given && !bounded)) {
        return code;
    }
    sluice_error error;
    if (held->answers &&
        sluice_prompt_thought(model, request->tokens, request->token_count, false, &thought, &error)) {
        return fail_with(&error);
    }
    if (code == DONE && bounded) {
        request->thought = thought;
        request->thought_tokens = (size_t)settings->reasoning_budget;
    }
    if (!from.given) {
        return code;
    }
    if (code == DONE && (!held->grammar || held->thought != thought)) {
        release_grammar(held);
        held->thought = thought;
        code = compile(&from, thought, model, &held->grammar);
    }
    request->grammar = held->grammar;
    return code;
}

void release_grammar(held_grammar *held) {
    sluice_grammar_release(held->grammar);
    held->grammar = NULL;
}
