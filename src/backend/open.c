/* Opens a backend by its name on the command line, and loads the CUDA module when it is wanted. */
#define _GNU_SOURCE
#include "backend/kernel_list.h"
#include "base/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char module_name[] = "libsluice-cuda.so";

/* Cuts the last part off a path; false when there is no directory. */
static bool directory_of(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash) {
        return false;
    }
    *slash = '\0';
    return true;
}

/* Where the module may lie, best first; false past the end. */
static bool candidate(int index, char *path, size_t size) {
    char place[PATH_MAX];
    Dl_info info;
    ssize_t length;
    switch (index) {
    case 0: /* beside this library (or the program it is linked into) */
    case 1: /* in a folder of its own there, as distributions want it */
        if (!dladdr((const void *)module_name, &info) || !info.dli_fname) {
            path[0] = '\0';
            return true;
        }
        snprintf(place, sizeof place, "%s", info.dli_fname);
        snprintf(path, size, "%s/%s%s", directory_of(place) ? place : ".", index == 1 ? "sluice/" : "",
                 module_name);
        return true;
    case 2: /* beside the program */
    case 3: /* in the lib folder next to the program's */
        length = readlink("/proc/self/exe", place, sizeof place - 1);
        place[length > 0 ? length : 0] = '\0';
        path[0] = '\0';
        if (directory_of(place)) {
            snprintf(path, size, "%s%s/%s", place, index == 2 ? "" : "/../lib", module_name);
        }
        return true;
    case 4: /* the loader's own rules */
        snprintf(path, size, "%s", module_name);
        return true;
    default:
        return false;
    }
}

/* The module stays loaded for the life of the process: a driver does not like to leave. */
static void *load_module(sl_error *error) {
    char path[PATH_MAX + 64];
    for (int i = 0; candidate(i, path, sizeof path); i++) {
        const bool is_path = strchr(path, '/') != NULL;
        if (path[0] == '\0' || (is_path && access(path, R_OK) != 0)) {
            continue;
        }
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (module) {
            return module;
        }
        if (is_path) { /* it is there but does not load: say why, and do not look for another */
            sl_fail(error, SL_ERR_UNSUPPORTED, "cuda: %s does not load: %s", path, dlerror());
            return NULL;
        }
    }
    sl_fail(error, SL_ERR_NOT_FOUND,
            "cuda: module not found: %s is neither beside the library nor beside the program, and the loader "
            "does not "
            "find it",
            module_name);
    return NULL;
}

static void log_line(void *context, sl_log_level level, const char *line) {
    (void)context;
    sl_log(level, "%s", line);
}

/* The module carries its own copy of the log; its lines go to the library's. */
static void forward_log(void *module) {
    void (*set)(sl_log_function function, void *context);
    void *symbol = dlsym(module, SL_CUDA_LOG_NAME);
    if (symbol) {
        memcpy(&set, &symbol, sizeof set);
        set(log_line, NULL);
    }
}

static int open_cuda(const sl_backend_options *options, sl_backend **backend, sl_error *error) {
    void *module = load_module(error);
    if (!module) {
        return error ? error->code : SL_ERR_UNSUPPORTED;
    }
    sl_cuda_entry entry;
    void *symbol = dlsym(module, SL_CUDA_ENTRY_NAME);
    if (!symbol) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "cuda: %s has no %s", module_name, SL_CUDA_ENTRY_NAME);
    }
    forward_log(module);
    memcpy(&entry, &symbol, sizeof entry); /* C has no cast from an object's to a function's address */
    return entry(SL_BACKEND_ABI, options, backend, error);
}

int sl_cuda_kernel_list(sl_cuda_kernel_at *at, sl_error *error) {
    void *module = load_module(error);
    if (!module) {
        return error ? error->code : SL_ERR_UNSUPPORTED;
    }
    void *symbol = dlsym(module, SL_CUDA_LIST_NAME);
    if (!symbol) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "cuda: %s has no %s", module_name, SL_CUDA_LIST_NAME);
    }
    memcpy(at, &symbol, sizeof *at);
    sl_kernel_entry first;
    return (*at)(SL_BACKEND_ABI, 0, &first)
               ? SL_OK
               : sl_fail(
                     error, SL_ERR_UNSUPPORTED,
                     "cuda: the module has another interface than the library; install both from one build");
}

/* "cuda" or "cuda:N", N decimal; *number stays when there is none. */
static bool parse_cuda(const char *device, int32_t *number) {
    if (strncmp(device, "cuda", 4) != 0) {
        return false;
    }
    if (device[4] == '\0') {
        return true;
    }
    const char *digits = device + 5;
    if (device[4] != ':' || strlen(digits) == 0 || strlen(digits) > 4 ||
        strspn(digits, "0123456789") != strlen(digits)) {
        return false;
    }
    *number = (int32_t)strtol(digits, NULL, 10);
    return true;
}

int sl_backend_open(const char *device, const sl_backend_options *options, sl_backend **backend,
                    sl_error *error) {
    sl_backend_options resolved = *options;
    sl_error why = {.code = SL_OK};
    if (strcmp(device, "cpu") == 0) {
        return sl_cpu_backend_create(options, backend, error);
    }
    if (strcmp(device, "auto") == 0) {
        if (open_cuda(&resolved, backend, &why) == SL_OK) {
            sl_log(SL_LOG_INFO, "device: %s: %s", (*backend)->name, (*backend)->description);
            return SL_OK;
        }
        sl_log(SL_LOG_INFO, "device: cpu, because %s", why.message);
        return sl_cpu_backend_create(options, backend, error);
    }
    if (!parse_cuda(device, &resolved.device)) {
        return sl_fail(error, SL_ERR_INVALID, "device %s: must be cpu, cuda, cuda:N or auto", device);
    }
    const int status = open_cuda(&resolved, backend, &why);
    return status ? sl_fail(error, status, "%s", why.message) : SL_OK;
}

void sl_backend_close(sl_backend *backend) {
    if (backend) {
        backend->functions->destroy(backend);
    }
}
