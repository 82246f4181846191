/* The files that come with sluice: the built-in models and the tasks of `sluice eval`. They lie in
 * share/sluice beside the program's folder when it is installed, and inside the build folder when it is not.
 */
#define _GNU_SOURCE
#include "cli.h"

#include <string.h>
#include <unistd.h>

static const char *const FOLDERS[] = {"../share/sluice/", "share/sluice/"};

bool find_data(const char *name, char path[DATA_PATH_SIZE]) {
    char program[DATA_PATH_SIZE];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) {
        return false;
    }
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (!slash) {
        return false;
    }
    slash[1] = '\0';
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        const int written = snprintf(path, DATA_PATH_SIZE, "%s%s%s", program, FOLDERS[i], name);
        if (written > 0 && written < DATA_PATH_SIZE && access(path, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

const char *model_path(const char *model, char path[DATA_PATH_SIZE]) {
    char name[64];
    if (strchr(model, '/') || snprintf(name, sizeof name, "models/%s.gguf", model) >= (int)sizeof name ||
        !find_data(name, path)) {
        return model;
    }
    if (access(model, F_OK) == 0) {
        fprintf(stderr, "sluice: %s is the built-in model; ./%s is what lies here under that name\n", model,
                model);
    }
    return path;
}
