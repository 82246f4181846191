/* Broken variants of model files, each opened and run by the library in a process of its own.
 *
 * The rule (invariant 7): a process ends with exit code 0 when the file is still valid, or with 1 and exactly
 * one line on stderr that names the file; never by a signal, never with anything held, within a second of
 * processor time and 64 MiB above what the valid file takes. */
#ifndef TESTS_MALFORMED_CASES_H
#define TESTS_MALFORMED_CASES_H

#include "unit/format/bytes.h"

#include <jansson.h>
#include <stdbool.h>

/* The cases are counted in a fixed order; every worker walks through all of them and builds its share. */
typedef struct suite suite;

/* True when the next case is this worker's: then build its file and call run_case. One case in `sampling` is
 * taken (in sanitizer builds one in `sampling` times a constant). */
bool wanted(suite *s, unsigned sampling);
/* Opens `path`, relative to the worker's folder; `path` must stand in the error line. */
void run_case(suite *s, const char *path, const char *name);
/* The unbroken file: must run, and is what memory is measured against. */
void run_valid(suite *s, const char *path, const char *name);

/* A new file each time: rewriting one in place waits for the disk on some file systems. */
void put_file(const char *path, const void *data, size_t size);

void gguf_cases(suite *s);
void folder_cases(suite *s);

#endif
