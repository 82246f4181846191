/* A home of its own for a program under test: LD_PRELOAD this, with SLUICE_TEST_HOME naming the folder that
 * the password database is to say. The program itself asks that database alone. */
#define _GNU_SOURCE
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int getpwuid_r(uid_t user, struct passwd *entry, char *buffer,
                                                      size_t size, struct passwd **result) {
    const char *home = getenv("SLUICE_TEST_HOME");
    memset(entry, 0, sizeof *entry);
    *result = NULL;
    if (home && snprintf(buffer, size, "%s", home) < (int)size) {
        entry->pw_uid = user;
        entry->pw_dir = buffer;
        *result = entry;
    }
    return 0;
}
