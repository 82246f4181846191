#include "work.h"

#include <stdlib.h>
#include <string.h>

/* ---- random prompts --------------------------------------------------------------------------------------
 */

/* Words that vocabularies have as one token with the blank before them. */
static const char *const WORDS[] = {
    "the",    "of",    "and",   "to",     "in",    "is",    "that",   "for",     "it",     "as",    "was",
    "with",   "be",    "by",    "on",     "not",   "he",    "his",    "but",     "at",     "are",   "this",
    "have",   "from",  "or",    "had",    "an",    "they",  "which",  "one",     "you",    "were",  "all",
    "her",    "she",   "there", "would",  "their", "we",    "him",    "been",    "has",    "when",  "who",
    "will",   "no",    "more",  "if",     "out",   "so",    "up",     "said",    "what",   "its",   "about",
    "than",   "into",  "them",  "can",    "only",  "other", "time",   "new",     "some",   "could", "these",
    "two",    "may",   "first", "then",   "do",    "any",   "like",   "my",      "now",    "over",  "such",
    "our",    "man",   "me",    "even",   "most",  "made",  "after",  "also",    "well",   "did",   "many",
    "before", "must",  "years", "where",  "much",  "your",  "way",    "down",    "should", "long",  "each",
    "just",   "state", "those", "people", "too",   "how",   "little", "good",    "make",   "world", "still",
    "see",    "own",   "work",  "men",    "day",   "get",   "here",   "old",     "life",   "both",  "between",
    "being",  "under", "three", "never",  "know",  "same",  "last",   "another", "while",  "us",    "off",
    "might",  "great", "go",    "come",   "since", "right", "came",   "take",    "used",   "few",   "house",
    "use",    "place", "home",  "small",  "found", "say",   "part",   "once",    "high",   "every",
};
enum { WORD_COUNT = sizeof WORDS / sizeof *WORDS };

static int add_words(load_bytes *text, load_random *random, int64_t count) {
    int result = 0;
    for (int64_t i = 0; i < count && result == 0; i++) {
        const char *word = WORDS[load_random_below(random, WORD_COUNT)];
        result = text->length > 0 ? load_bytes_add(text, " ", 1) : 0;
        result = result == 0 ? load_bytes_add(text, word, strlen(word)) : result;
    }
    return result;
}

static int add_ids(const load_options *o, json_t *ids, load_random *random, int64_t count) {
    const int64_t span = (int64_t)o->id_most - o->id_least + 1;
    for (int64_t i = 0; i < count; i++) {
        if (json_array_append_new(ids, json_integer(o->id_least + load_random_below(random, span)))) {
            return -1;
        }
    }
    return 0;
}

/* The beginning that a conversation shares with its group. */
static load_random shared_random(const load_options *o, int64_t index) {
    return load_random_new(~o->seed, (uint64_t)(index % o->groups));
}

/* ---- files of prompts ------------------------------------------------------------------------------------
 */

static int refuse(const load_options *o, char message[LOAD_MESSAGE], size_t line, const char *why) {
    snprintf(message, LOAD_MESSAGE, "%s:%zu: %s", o->prompts_name, line, why);
    return -1;
}

static load_prompt *add_prompt(load_work *w) {
    if ((w->count & (w->count - 1)) == 0) { /* at 0 and powers of 2 */
        const size_t capacity = w->count ? 2 * w->count : 1;
        load_prompt *prompts = realloc(w->prompts, capacity * sizeof *prompts);
        if (!prompts) {
            return NULL;
        }
        w->prompts = prompts;
    }
    w->prompts[w->count] = (load_prompt){0};
    return &w->prompts[w->count++];
}

/* {"from": "human", "value": ...} or {"role": "user", "content": ...}: what a person said, else NULL. */
static json_t *said_by_person(const json_t *entry) {
    const json_t *from = json_object_get(entry, "from"), *role = json_object_get(entry, "role");
    const char *who = json_string_value(from ? from : role);
    json_t *value = json_object_get(entry, from ? "value" : "content");
    const bool person = who && (strcmp(who, "human") == 0 || strcmp(who, "user") == 0);
    return person && json_string_length(value) > 0 ? value : NULL;
}

/* A recorded conversation, as ShareGPT has them: the first thing a person said, and what followed. */
static int take_recorded(load_work *w, const json_t *entries) {
    load_prompt *prompt = NULL;
    for (size_t i = 0; i < json_array_size(entries); i++) {
        json_t *said = said_by_person(json_array_get(entries, i));
        if (said && !prompt) {
            prompt = add_prompt(w);
            if (!prompt || !(prompt->more = json_array())) {
                return -1;
            }
            prompt->content = json_incref(said);
        } else if (said && json_array_append(prompt->more, said)) {
            return -1;
        }
    }
    return 0;
}

/* One object of a file. NULL, or why it is wrong; "": no memory. */
static const char *take_object(load_work *w, const json_t *object) {
    const json_t *recorded = json_object_get(object, "conversations");
    json_t *text = json_object_get(object, "prompt"), *messages = json_object_get(object, "messages");
    const json_t *most = json_object_get(object, "max_tokens");
    if (json_is_array(recorded)) {
        return take_recorded(w, recorded) ? "" : NULL;
    }
    if (!json_is_string(text) && json_array_size(messages) == 0) {
        return "wants an object with \"prompt\", a text, or \"messages\", a list";
    }
    if (most && (!json_is_integer(most) || json_integer_value(most) < 1)) {
        return "\"max_tokens\" is a whole number above 0";
    }
    if (!json_is_string(text) && w->options->completions) {
        return "\"messages\" are for chat, not for --endpoint completions";
    }
    load_prompt *prompt = add_prompt(w);
    if (!prompt) {
        return "";
    }
    prompt->content = json_incref(json_is_string(text) ? text : messages);
    prompt->most = json_integer_value(most);
    return NULL;
}

static const char *take_line(load_work *w, const char *line, size_t length) {
    json_error_t error;
    if (line[0] == '{') {
        json_t *object = json_loadb(line, length, 0, &error);
        const char *why = json_is_object(object) ? take_object(w, object) : "begins like JSON and is none";
        json_decref(object);
        return why;
    }
    load_prompt *prompt = add_prompt(w);
    if (!prompt) {
        return "";
    }
    prompt->content = json_stringn(line, length);
    return prompt->content ? NULL : "is no UTF-8";
}

static int read_lines(load_work *w, char message[LOAD_MESSAGE]) {
    const load_options *o = w->options;
    size_t number = 1;
    for (size_t at = 0; at < o->prompts_length; number++) {
        const char *line = o->prompts + at, *end = memchr(line, '\n', o->prompts_length - at);
        size_t length = end ? (size_t)(end - line) : o->prompts_length - at;
        at += length + 1;
        length -= length > 0 && line[length - 1] == '\r';
        const char *why = length > 0 ? take_line(w, line, length) : NULL;
        if (why) {
            return refuse(o, message, number, *why ? why : "out of memory");
        }
    }
    return 0;
}

/* A JSON list of objects. */
static int read_list(load_work *w, char message[LOAD_MESSAGE]) {
    const load_options *o = w->options;
    json_error_t error;
    json_t *list = json_loadb(o->prompts, o->prompts_length, 0, &error);
    if (!list) {
        return refuse(o, message, error.line > 0 ? (size_t)error.line : 1, error.text);
    }
    const char *why = NULL;
    size_t i = 0;
    for (; i < json_array_size(list) && !why; i++) {
        why = take_object(w, json_array_get(list, i));
    }
    json_decref(list);
    if (why) {
        snprintf(message, LOAD_MESSAGE, "%s: entry %zu: %s", o->prompts_name, i,
                 *why ? why : "out of memory");
    }
    return why ? -1 : 0;
}

static int read_prompts(load_work *w, char message[LOAD_MESSAGE]) {
    const load_options *o = w->options;
    size_t at = 0;
    while (at < o->prompts_length && strchr(" \t\r\n", o->prompts[at]) && o->prompts[at]) {
        at++;
    }
    const int result =
        at < o->prompts_length && o->prompts[at] == '[' ? read_list(w, message) : read_lines(w, message);
    if (result == 0 && w->count == 0) {
        return refuse(o, message, 1, "there are no prompts");
    }
    return result;
}

/* ---- the fields of all requests --------------------------------------------------------------------------
 */

static int make_base(load_work *w, const char *model) {
    const load_options *o = w->options;
    w->base =
        json_pack("{s:s, s:b, s:{s:b}}", "model", model, "stream", 1, "stream_options", "include_usage", 1);
    int result = w->base ? 0 : -1;
    if (result == 0 && o->ignore_eos) {
        result = json_object_set_new(w->base, "ignore_eos", json_true());
    }
    if (result == 0 && o->temperature >= 0) {
        result = json_object_set_new(w->base, "temperature", json_real(o->temperature));
    }
    return result == 0 && o->extra ? json_object_update(w->base, (json_t *)(uintptr_t)o->extra) : result;
}

int load_work_open(load_work *w, const load_options *options, const char *model, char message[LOAD_MESSAGE]) {
    *w = (load_work){.options = options};
    if (make_base(w, model)) {
        snprintf(message, LOAD_MESSAGE, "the fields of requests: no memory, or a name that is no UTF-8");
        load_work_close(w);
        return -1;
    }
    if (options->prompts && read_prompts(w, message)) {
        load_work_close(w);
        return -1;
    }
    return 0;
}

void load_work_close(load_work *w) {
    for (size_t i = 0; i < w->count; i++) {
        json_decref(w->prompts[i].content);
        json_decref(w->prompts[i].more);
    }
    free(w->prompts);
    json_decref(w->base);
    *w = (load_work){0};
}

/* ---- conversations ---------------------------------------------------------------------------------------
 */

void load_talk_end(load_talk *talk) {
    json_decref(talk->messages);
    json_decref(talk->ids);
    load_bytes_free(&talk->text);
    *talk = (load_talk){0};
}

int load_talk_begin(load_work *w, load_talk *talk, int64_t index) {
    const load_options *o = w->options;
    load_talk_end(talk);
    talk->index = index;
    talk->random = load_random_new(o->seed, (uint64_t)index + 1);
    if (o->completions && o->id_most > 0) {
        talk->ids = json_array();
        return talk->ids ? 0 : -1;
    }
    talk->messages = o->completions ? NULL : json_array();
    return o->completions || talk->messages ? 0 : -1;
}

bool load_talk_goes_on(const load_work *w, const load_talk *talk) {
    const bool recorded = talk->prompt && talk->prompt->more;
    return talk->turn < w->options->turns &&
           (!recorded || (size_t)talk->turn <= json_array_size(talk->prompt->more));
}

static int add_message(load_talk *talk, const char *role, const char *text, size_t length) {
    return json_array_append_new(talk->messages,
                                 json_pack("{s:s, s:s%}", "role", role, "content", text, length));
}

/* The text of a turn, `shared` being what it begins with. */
static int add_text(load_work *w, load_talk *talk, load_bytes *text) {
    const load_options *o = w->options;
    int result = 0;
    if (talk->turn == 0 && o->shared > 0) {
        load_random random = shared_random(o, talk->index);
        result = add_words(text, &random, o->shared);
        talk->wanted += o->shared;
    }
    if (talk->prompt) {
        const json_t *said = talk->turn > 0 && talk->prompt->more
                                 ? json_array_get(talk->prompt->more, (size_t)talk->turn - 1)
                                 : talk->prompt->content;
        result = result == 0 && text->length > 0 ? load_bytes_add(text, " ", 1) : result;
        return result == 0 ? load_bytes_add(text, json_string_value(said), json_string_length(said)) : result;
    }
    const int64_t count = load_random_length(&talk->random, &o->prompt);
    talk->wanted += count;
    return result == 0 ? add_words(text, &talk->random, count) : result;
}

static int add_id_turn(load_work *w, load_talk *talk) {
    const load_options *o = w->options;
    int result = 0;
    if (talk->turn == 0 && o->shared > 0) {
        load_random random = shared_random(o, talk->index);
        result = add_ids(o, talk->ids, &random, o->shared);
        talk->wanted += o->shared;
    }
    const int64_t count = load_random_length(&talk->random, &o->prompt);
    talk->wanted += count;
    return result == 0 ? add_ids(o, talk->ids, &talk->random, count) : result;
}

static int add_chat_turn(load_work *w, load_talk *talk) {
    load_bytes text = {0};
    int result = 0;
    if (talk->prompt && json_is_array(talk->prompt->content)) {
        if (talk->turn == 0 && w->options->shared > 0) {
            load_random random = shared_random(w->options, talk->index);
            result = add_words(&text, &random, w->options->shared);
            result = result == 0 ? add_message(talk, "system", text.data, text.length) : result;
        }
        result = result == 0 ? json_array_extend(talk->messages, talk->prompt->content) : result;
    } else {
        result = add_text(w, talk, &text);
        result = result == 0 ? add_message(talk, "user", text.data ? text.data : "", text.length) : result;
    }
    load_bytes_free(&text);
    return result;
}

/* What this turn adds to the conversation, and how long its answer may be. */
static int add_turn(load_work *w, load_talk *talk) {
    const load_options *o = w->options;
    if (w->count > 0 && !(talk->turn > 0 && talk->prompt->more)) {
        talk->prompt = &w->prompts[w->next++ % w->count];
    }
    int result = talk->ids        ? add_id_turn(w, talk)
                 : talk->messages ? add_chat_turn(w, talk)
                                  : add_text(w, talk, &talk->text);
    talk->most = o->answer.mean > 0 ? load_random_length(&talk->random, &o->answer) : 0;
    talk->most = talk->prompt && talk->prompt->most > 0 ? talk->prompt->most : talk->most;
    talk->leave_after = -1;
    if (load_random_unit(&talk->random) < o->abort_share) {
        talk->leave_after = load_random_below(&talk->random, talk->most > 0 ? talk->most : 64);
    }
    talk->turn++;
    return result;
}

char *load_talk_body(load_work *w, load_talk *talk) {
    if (add_turn(w, talk)) {
        return NULL;
    }
    json_t *body = json_copy(w->base), *prompt;
    if (talk->messages) {
        prompt = json_incref(talk->messages);
    } else if (talk->ids) {
        prompt = json_incref(talk->ids);
    } else {
        prompt = json_stringn(talk->text.data ? talk->text.data : "", talk->text.length);
    }
    int result = json_object_set_new(body, talk->messages ? "messages" : "prompt", prompt);
    if (result == 0 && talk->most > 0 && !json_object_get(body, "max_tokens")) {
        result = json_object_set_new(body, "max_tokens", json_integer(talk->most));
    }
    char *text = result == 0 ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

int load_talk_answer(load_work *w, load_talk *talk, const load_bytes *answer) {
    (void)w;
    const char *text = answer->data ? answer->data : "";
    if (talk->messages) {
        return add_message(talk, "assistant", text, answer->length);
    }
    return load_bytes_add(&talk->text, text, answer->length);
}
