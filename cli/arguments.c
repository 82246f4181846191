/* Bare arguments: sluice run MODEL "prompt", and either alone; sluice chat MODEL and its like. */
#include "cli.h"

#include "hub/hub.h"

#include <string.h>
#include <sys/stat.h>

/* A text is a prompt unless a model answers to it: a built-in one, a folder, or what ends as GGUF files do.
 */
static bool names_model(const char *text) {
    char path[DATA_PATH_SIZE];
    struct stat status;
    const size_t length = strlen(text);
    if (hub_is_name(text)) {
        return true;
    }
    if (length > 5 && strcmp(text + length - 5, ".gguf") == 0 && !strpbrk(text, "\n\r")) {
        return true;
    }
    if (length == 0 || length >= sizeof path) {
        return false;
    }
    return model_path(text, path) != text || (stat(text, &status) == 0 && S_ISDIR(status.st_mode));
}

static int given_twice(const command *command, const char *what, const char *option, const char *argument) {
    const bool model = strcmp(option, "-m") == 0;
    fail("%s: %s is given twice: with %s and as \"%s\"%s", command->name, what, option, argument,
         model ? "" : ", which is no model");
    return WRONG_USAGE;
}

static int place(const command *command, const char *option, const char *argument, settings *settings) {
    return is_given(settings, option)
               ? given_twice(command, strcmp(option, "-m") == 0 ? "the model" : "the prompt", option,
                             argument)
               : set_option(command, option, argument, settings);
}

int optional_arguments(const command *command) {
    if (command->bit & (IN_PULL | IN_LIST | IN_RM)) {
        return LIST_ITEMS - command->argument_count;
    }
    return command->bit & (IN_RUN | IN_EMBED | IN_RERANK)   ? 2
           : command->needs_model || command->bit == IN_MAN ? 1
                                                            : 0;
}

/* MODEL, FILE or both. */
static int place_file(const command *command, settings *settings) {
    const char *const *a = settings->arguments;
    const int count = settings->argument_count;
    const bool model = count == 2 || (!is_given(settings, "-m") && names_model(a[0]));
    const int code = model ? place(command, "-m", a[0], settings) : DONE;
    return code == DONE && (count == 2 || !model) ? place(command, "-f", a[count - 1], settings) : code;
}

int place_arguments(const command *command, settings *settings) {
    const char *const *a = settings->arguments;
    const int count = settings->argument_count;
    if (!command->needs_model || count == 0) {
        return DONE;
    }
    if (command->bit & (IN_EMBED | IN_RERANK)) {
        return place_file(command, settings);
    }
    if (command->bit != IN_RUN) {
        return place(command, "-m", a[0], settings);
    }
    if (count == 2 && is_given(settings, "-m")) {
        fail("run: -m names the model, so one prompt may follow: put it in quotes");
        return WRONG_USAGE;
    }
    const bool model = count == 2 || (!is_given(settings, "-m") && names_model(a[0]));
    int code = model ? place(command, "-m", a[0], settings) : DONE;
    if (code == DONE && is_given(settings, "-f") && (count == 2 || !model)) {
        return given_twice(command, "the prompt", "-f", a[count - 1]);
    }
    return code == DONE && (count == 2 || !model) ? place(command, "-p", a[count - 1], settings) : code;
}
