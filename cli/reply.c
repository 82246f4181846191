/* Replies to prompts in the chat format: thinking and answer apart. */
#include "cli.h"

#include <string.h>
#include <unistd.h>

int begin_reply(reply_reader *reader, sluice_model *model, sluice_request_options *request) {
    sluice_error error;
    sluice_thought thought;
    if (sluice_prompt_thought(model, request->tokens, request->token_count, false, &thought, &error)) {
        return fail_with(&error);
    }
    const sluice_reply_options options = {.size = sizeof options, .opened = thought == SLUICE_THOUGHT_OPEN};
    if (sluice_reply_create(model, &options, &reader->reply, &error)) {
        return fail_with(&error);
    }
    request->special_text = true;
    return DONE;
}

void read_reply_text(reply_reader *reader, const sluice_event *event) {
    sluice_reply_event part = {.size = sizeof part};
    const bool last = event->kind == SLUICE_EVENT_DONE;
    if (!reader->reply) {
        reader->take(reader->context, event->text, event->text_length, false);
        return;
    }
    if (sluice_reply_feed(reader->reply, event->text, event->text_length, NULL) ||
        (last && sluice_reply_finish(reader->reply, event->finish != SLUICE_FINISH_EOS, NULL))) {
        reader->failed = true;
        return;
    }
    while (sluice_reply_next(reader->reply, &part), part.kind != SLUICE_REPLY_NONE) {
        const bool thought = part.kind == SLUICE_REPLY_REASONING;
        reader->thought_bytes += thought ? part.text_length : 0;
        reader->take(reader->context, part.text, part.text_length, thought);
    }
}

void end_reply(reply_reader *reader) {
    sluice_reply_release(reader->reply);
    reader->reply = NULL;
}

/* Thinking is faint on a terminal, and no part of what a pipe gets. */
void print_reply_text(bool *faint, const char *text, size_t length, bool thought) {
    const bool terminal = isatty(STDOUT_FILENO);
    if (thought && !terminal) {
        return;
    }
    if (thought != *faint && terminal) {
        fputs(thought ? "\033[2m" : "\033[0m\n\n", stdout);
        *faint = thought;
    }
    fwrite(text, 1, length, stdout);
    fflush(stdout);
}

void end_faint(bool *faint) {
    if (*faint) {
        fputs("\033[0m", stdout);
        fflush(stdout);
        *faint = false;
    }
}

bool explain_thinking(const reply_reader *reader, const sluice_event *done) {
    const bool cut = done->finish == SLUICE_FINISH_LENGTH || done->finish == SLUICE_FINISH_CONTEXT;
    if (reader->thought_bytes == 0) {
        return false;
    }
    fail("no answer: the model %s (%s--reasoning-budget bounds its thinking)",
         cut ? "was still thinking when the tokens ran out" : "only thought",
         cut ? "-n asks for more, " : "");
    return true;
}
