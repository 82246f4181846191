/* Reports of what went wrong, on standard error. */
#include "grid.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void emu_report(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulated GPU: %s\n", line);
}

/* The kernels are static functions, whose names only the debugger's tables have: addr2line reads them. */
void emu_report_place(const char *prefix, const void *address) {
    Dl_info info = {};
    if (!dladdr(address, &info) || !info.dli_fname) {
        emu_report("%s%p", prefix, address);
        return;
    }
    const size_t offset = (size_t)((const char *)address - (const char *)info.dli_fbase);
    char command[1024], line[512] = "";
    snprintf(command, sizeof command, "addr2line -Cfpi -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
    FILE *pipe = popen(command, "r");
    bool said = false;
    while (pipe && fgets(line, sizeof line, pipe)) {
        line[strcspn(line, "\n")] = '\0';
        emu_report("%s%s", said ? "    " : prefix, line);
        said = true;
    }
    if (pipe) {
        pclose(pipe);
    }
    if (!said) {
        emu_report("%s%s+0x%zx", prefix, info.dli_fname, offset);
    }
}
