/* sluice eval: how many held-out tasks a model solves. */
#define _GNU_SOURCE
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { TASKS = 32 };

typedef struct item {
    const json_t *json; /* borrowed from the file */
    int task;
    char *question;  /* all that the user says */
    int32_t *tokens; /* the rendered prompt */
    size_t token_count;
    size_t limit;            /* tokens to generate at most */
    sluice_grammar *grammar; /* with --constrained; NULL: any text */
    char *text;              /* the answer so far */
    size_t length;
    bool done, ended; /* ended: by itself, not at the limit */
    bool exact;
} item;

typedef struct task {
    const char *name;
    int32_t items, exact;
    int32_t json, valid; /* answers that should be JSON, and those that are */
} task;

typedef struct slot {
    sluice_sequence *sequence;
    sluice_request *request;
    item *item;
} slot;

typedef struct evaluation {
    const settings *settings;
    const char *path; /* of the task file */
    session session;
    json_t *file;
    item *items; /* [item_count] */
    size_t item_count, next;
    task tasks[TASKS];
    int task_count;
    int32_t context; /* that the longest item needs */
    size_t prompt_tokens, generated_tokens;
    double seconds;
} evaluation;

/* ---- the task file: {"sentences": [...], "items": [{"task", "user", "answer" or "contains", ...}]} ------
 */

static int bad_item(const evaluation *e, size_t index, const char *rule) {
    return fail("%s: items[%zu]: %s", e->path, index, rule);
}

/* "before", then the sentences of "text" (texts, or numbers of the file's "sentences"), then "user". */
static char *question_of(const evaluation *e, const json_t *json) {
    const json_t *pool = json_object_get(e->file, "sentences"), *sentence;
    const char *before = json_string_value(json_object_get(json, "before"));
    const char *user = json_string_value(json_object_get(json, "user"));
    char *text = NULL;
    size_t length, index;
    FILE *out = user ? open_memstream(&text, &length) : NULL;
    bool good = out != NULL;
    if (!out) {
        return NULL;
    }
    fputs(before ? before : "", out);
    json_array_foreach(json_object_get(json, "text"), index, sentence) {
        if (json_is_integer(sentence)) {
            const json_int_t number = json_integer_value(sentence);
            sentence = number >= 0 ? json_array_get(pool, (size_t)number) : NULL;
        }
        good = good && json_is_string(sentence);
        fprintf(out, "%s%s", index ? " " : "", good ? json_string_value(sentence) : "");
    }
    fputs(user, out);
    good = !ferror(out) && good;
    if (fclose(out) || !good) {
        free(text);
        text = NULL;
    }
    return text;
}

static int task_of(evaluation *e, const char *name) {
    for (int i = 0; i < e->task_count; i++) {
        if (strcmp(e->tasks[i].name, name) == 0) {
            return i;
        }
    }
    if (e->task_count == TASKS) {
        return -1;
    }
    e->tasks[e->task_count].name = name;
    return e->task_count++;
}

/* What `serve` would hold an answer to, whose request has these tools, or asks for JSON. */
static int constrain_item(const evaluation *e, item *item) {
    const char *answer = json_string_value(json_object_get(item->json, "answer"));
    const json_t *tools = json_object_get(item->json, "tools");
    json_t *expected = answer ? json_loads(answer, 0, NULL) : NULL;
    sluice_grammar_options options = {.size = sizeof options,
                                      .kind = tools ? SLUICE_GRAMMAR_TEXT : SLUICE_GRAMMAR_JSON_OBJECT};
    sluice_error error;
    int code = DONE;
    char *list = tools ? json_dumps(tools, 0) : NULL;
    options.tools = list;
    if (tools && !list) {
        code = fail("out of memory for the tools");
    } else if ((tools || json_is_object(expected)) &&
               sluice_grammar_create(e->session.model, &options, &item->grammar, &error)) {
        code = fail_with(&error);
    }
    json_decref(expected);
    free(list);
    return code;
}

/* The prompt of an item in the model's chat format, and how long an answer may become. */
static int prepare_item(evaluation *e, size_t index, item *item) {
    const char *answer = json_string_value(json_object_get(item->json, "answer"));
    const json_t *tools = json_object_get(item->json, "tools");
    sluice_error error;
    int32_t *expected = NULL;
    size_t count = 0;
    item->question = question_of(e, item->json);
    if (!item->question || !(answer || json_is_array(json_object_get(item->json, "contains")))) {
        return bad_item(
            e, index, "wants a user text, sentences that exist, and an answer or a list of what it contains");
    }
    json_t *message = json_pack("[{s:s, s:s}]", "role", "user", "content", item->question);
    json_t *variables = json_pack("{s:b}", "enable_thinking", 0);
    if (tools) {
        json_object_set(variables, "tools", (json_t *)tools);
    }
    char *messages = json_dumps(message, 0), *options = json_dumps(variables, 0);
    json_decref(message);
    json_decref(variables);
    int code = messages && options ? DONE : fail("out of memory for the prompts");
    if (code == DONE &&
        (sluice_chat_tokens(e->session.model, messages, options, &item->tokens, &item->token_count, &error) ||
         (answer &&
          sluice_tokenize(e->session.model, answer, strlen(answer), 0, &expected, &count, &error)))) {
        code = fail_with(&error);
    }
    /* What is longer than the answer is wrong already; a story has no length of its own. */
    item->limit = answer ? count + 8 : 512;
    free(messages);
    free(options);
    sluice_free(expected);
    return code;
}

static bool is_wanted(const text_list *tasks, const char *name) {
    for (int i = 0; i < tasks->count; i++) {
        if (strcmp(tasks->items[i], name) == 0) {
            return true;
        }
    }
    return tasks->count == 0;
}

static int read_items(evaluation *e) {
    json_error_t error;
    size_t length;
    char *text = read_all(e->path, &length);
    if (!text) {
        return FAILED;
    }
    e->file = json_loadb(text, length, 0, &error);
    free(text);
    if (!e->file) {
        return fail("%s: line %d: %s", e->path, error.line, error.text);
    }
    const json_t *items = json_object_get(e->file, "items");
    const size_t count = json_array_size(items);
    e->items = calloc(count ? count : 1, sizeof *e->items);
    if (!e->items || count == 0) {
        return count ? fail("out of memory for the items") : fail("%s: items: there are none", e->path);
    }
    int code = DONE;
    for (size_t i = 0; i < count && code == DONE; i++) {
        const json_t *json = json_array_get(items, i);
        const char *name = json_string_value(json_object_get(json, "task"));
        if (name && !is_wanted(&e->settings->tasks, name)) {
            continue;
        }
        const int index = name ? task_of(e, name) : -1;
        if (index < 0) {
            return bad_item(e, i, "no name of a task, or too many tasks");
        }
        task *task = &e->tasks[index];
        if (e->settings->limit > 0 && task->items == e->settings->limit) {
            continue;
        }
        item *item = &e->items[e->item_count++];
        item->json = json;
        item->task = index;
        task->items++;
        code = prepare_item(e, i, item);
        code = code == DONE && e->settings->constrained ? constrain_item(e, item) : code;
        const size_t needed = item->token_count + item->limit;
        if (code == DONE && needed > INT32_MAX) {
            code = bad_item(e, i, "too long");
        }
        e->context = needed > (size_t)e->context ? (int32_t)needed : e->context;
    }
    return code == DONE && e->item_count == 0 ? fail("%s: no item is of a task asked for", e->path) : code;
}

/* ---- answers
 * -------------------------------------------------------------------------------------------------
 */

static void judge(evaluation *e, item *item) {
    const char *answer = json_string_value(json_object_get(item->json, "answer"));
    const char *text = item->text ? item->text : "";
    const json_t *part;
    size_t index;
    task *task = &e->tasks[item->task];
    item->exact = item->ended && (!answer || strcmp(text, answer) == 0);
    json_array_foreach(json_object_get(item->json, "contains"), index, part) {
        item->exact = item->exact && json_is_string(part) && strstr(text, json_string_value(part));
    }
    task->exact += item->exact;
    json_t *expected = answer ? json_loads(answer, 0, NULL) : NULL;
    if (expected) {
        json_t *found = json_loads(text, 0, NULL);
        task->json++;
        task->valid += found != NULL;
        json_decref(found);
    }
    json_decref(expected);
}

static int start(evaluation *e, slot *slot) {
    sluice_error error;
    item *item = &e->items[e->next++];
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = item->tokens,
                                      .token_count = item->token_count,
                                      .generate = item->limit,
                                      .grammar = item->grammar};
    slot->item = item;
    if (sluice_sequence_create(e->session.engine, &slot->sequence, &error) ||
        sluice_submit(slot->sequence, &options, &slot->request, &error)) {
        return fail_with(&error);
    }
    return DONE;
}

static void stop(slot *slot) {
    sluice_request_release(slot->request);
    sluice_sequence_release(slot->sequence);
    *slot = (struct slot){0};
}

static int take_text(item *item, const sluice_event *event) {
    char *larger = realloc(item->text, item->length + event->text_length + 1);
    if (!larger) {
        return fail("out of memory for the answers");
    }
    item->text = larger;
    if (event->text_length > 0) {
        memcpy(item->text + item->length, event->text, event->text_length);
    }
    item->length += event->text_length;
    item->text[item->length] = '\0';
    return DONE;
}

/* What has happened to a slot, waiting for it at most `timeout` ms. *busy: whether something had. */
static int follow(evaluation *e, slot *slot, int timeout, bool *busy) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    while (slot->request && event.kind != SLUICE_EVENT_DONE) {
        if (sluice_poll(slot->request, *busy ? 0 : timeout, &event, &error)) {
            return fail_with(&error);
        }
        if (event.kind == SLUICE_EVENT_NONE) {
            return DONE;
        }
        *busy = true;
        if (take_text(slot->item, &event)) {
            return FAILED;
        }
    }
    if (!slot->request) {
        return DONE;
    }
    if (event.finish == SLUICE_FINISH_ERROR) {
        return fail_with(&event.error);
    }
    slot->item->ended = event.finish == SLUICE_FINISH_EOS;
    slot->item->done = true;
    e->prompt_tokens += event.prompt_tokens;
    e->generated_tokens += event.generated_tokens;
    judge(e, slot->item);
    stop(slot);
    return DONE;
}

static int answer_all(evaluation *e, slot *slots, size_t count) {
    progress_bar bar = {.label = "answers"};
    const double begin = seconds_now();
    size_t done = 0;
    int code = DONE;
    catch_interrupt();
    while (code == DONE && done < e->item_count) {
        bool busy = false;
        done = 0;
        for (size_t i = 0; i < count && code == DONE; i++) {
            if (!slots[i].request && e->next < e->item_count) {
                code = start(e, &slots[i]);
            }
        }
        for (size_t i = 0; i < count && code == DONE; i++) {
            code = follow(e, &slots[i], 1, &busy);
        }
        for (size_t i = 0; i < e->item_count; i++) {
            done += e->items[i].done;
        }
        if (code == DONE && !progress_step(&bar, done, e->item_count)) {
            code = fail("cancelled");
        }
    }
    release_interrupt();
    progress_end(&bar);
    for (size_t i = 0; i < count; i++) {
        stop(&slots[i]);
    }
    e->seconds = seconds_now() - begin;
    return code;
}

static int run_items(evaluation *e) {
    sluice_engine_options options;
    engine_options(e->settings, 8, &options);
    options.context = options.context ? options.context : e->context;
    /* Twice as many as run at once, so that one waits for each that ends. */
    const size_t count = 2 * (size_t)options.sequences;
    slot *slots = calloc(count, sizeof *slots);
    int code =
        slots ? open_engine(e->settings, &e->session, &options) : fail("out of memory for the sequences");
    code = code == DONE ? answer_all(e, slots, count) : code;
    free(slots);
    return code;
}

/* ---- results
 * ---------------------------------------------------------------------------------------------------
 */

static double percent(int32_t part, int32_t whole) {
    return whole ? 100.0 * part / whole : 0;
}

static void print_table(const evaluation *e) {
    int32_t items = 0, exact = 0;
    printf("| %-14s | %5s | %5s | %7s | %10s |\n", "task", "items", "exact", "percent", "valid JSON");
    printf("|:%.14s-|%.5s-:|%.5s-:|%.7s-:|%.10s-:|\n", "--------------", "------", "------", "-------",
           "----------");
    for (int i = 0; i < e->task_count; i++) {
        const task *t = &e->tasks[i];
        char valid[16] = "";
        if (t->json) {
            snprintf(valid, sizeof valid, "%.1f", percent(t->valid, t->json));
        }
        printf("| %-14s | %5d | %5d | %7.1f | %10s |\n", t->name, t->items, t->exact,
               percent(t->exact, t->items), valid);
        items += t->items;
        exact += t->exact;
    }
    printf("| %-14s | %5d | %5d | %7.1f | %10s |\n", "all", items, exact, percent(exact, items), "");
    printf("\n%zu prompt tokens and %zu generated tokens in %.1f s; %s\n", e->prompt_tokens,
           e->generated_tokens, e->seconds, sluice_engine_device(e->session.engine));
}

/* Of a long question the end, where what is asked stands. */
static json_t *wrong_item(const evaluation *e, const item *item) {
    enum { SHOWN = 400 };
    const size_t length = strlen(item->question);
    const char *question = item->question + (length > SHOWN ? length - SHOWN : 0);
    json_t *answer = json_object_get(item->json, "answer");
    json_t *expected = answer ? answer : json_object_get(item->json, "contains");
    return json_pack("{s:s, s:o, s:O, s:s, s:b}", "task", e->tasks[item->task].name, "question",
                     json_string_nocheck(question), "expected", expected, "answer",
                     item->text ? item->text : "", "ended", (int)item->ended);
}

static int print_results(const evaluation *e) {
    json_t *tasks = json_array(), *wrong = json_array();
    for (int i = 0; i < e->task_count; i++) {
        const task *t = &e->tasks[i];
        json_t *row = json_pack("{s:s, s:i, s:i, s:f}", "task", t->name, "items", (int)t->items, "exact",
                                (int)t->exact, "percent", percent(t->exact, t->items));
        if (t->json) {
            json_object_set_new(row, "valid_json", json_real(percent(t->valid, t->json)));
        }
        json_array_append_new(tasks, row);
    }
    for (size_t i = 0; i < e->item_count; i++) {
        if (!e->items[i].exact) {
            json_array_append_new(wrong, wrong_item(e, &e->items[i]));
        }
    }
    return print_json(json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:f}", "model", e->settings->model,
                                "device", sluice_engine_device(e->session.engine), "kv_type",
                                e->settings->kv_type, "tasks", tasks, "wrong", wrong, "prompt_tokens",
                                (json_int_t)e->prompt_tokens, "generated_tokens",
                                (json_int_t)e->generated_tokens, "seconds", e->seconds));
}

int eval_command(const settings *settings) {
    evaluation e = {.settings = settings, .path = settings->file};
    char path[DATA_PATH_SIZE];
    if (!e.path) {
        e.path = path;
        if (!find_data("models/eval/tasks.json", path)) {
            return fail("eval: the tasks of sluice are not installed: name a task file with -f");
        }
    }
    int code = open_model(settings, &e.session);
    code = code == DONE ? read_items(&e) : code;
    code = code == DONE ? run_items(&e) : code;
    if (code == DONE && strcmp(settings->output, "json") == 0) {
        code = print_results(&e);
    } else if (code == DONE) {
        print_table(&e);
    }
    for (size_t i = 0; i < e.item_count; i++) {
        sluice_grammar_release(e.items[i].grammar);
        free(e.items[i].question);
        free(e.items[i].text);
        sluice_free(e.items[i].tokens);
    }
    free(e.items);
    json_decref(e.file);
    close_session(&e.session);
    return code;
}
