/* Files that are written: a new file beside the target takes the target's name when it is complete. What
 * stands under that name must be a regular file or nothing: devices, FIFOs, sockets, folders and symbolic
 * links, dangling ones too, are refused, whoever asks. */
#ifndef SL_FORMAT_OUTPUT_FILE_H
#define SL_FORMAT_OUTPUT_FILE_H

#include "base/error.h"

#include <stdbool.h>

/* All pointers are borrowed for as long as the output is open. */
typedef struct sl_output_rules {
    bool replace; /* a regular file of that name may go */
    /* What is read, as it was named: a file, one shard of several, or a folder with all files in it. None of
     * these is ever replaced, under whatever name or hard link the output calls it. */
    const char *const *inputs;
    int input_count;
} sl_output_rules;

/* Whether `path` may be written; nothing is changed. SL_ERR_INVALID says why not. */
int sl_output_file_check(const char *path, const sl_output_rules *rules, sl_error *error);

typedef struct sl_output_file {
    const char *path;      /* borrowed */
    sl_output_rules rules; /* its inputs are borrowed */
    char *temporary;       /* NULL when nothing is open */
    int file;              /* to write to; -1 when nothing is open */
} sl_output_file;

/* Checks, and makes the file beside `path`, with the permissions of any new file. On failure nothing is
 * there. */
int sl_output_file_open(sl_output_file *output, const char *path, const sl_output_rules *rules,
                        sl_error *error);
/* Closes the file and gives it its name. Checks again what stands there by then. On failure the file is gone.
 */
int sl_output_file_commit(sl_output_file *output, sl_error *error);
/* Removes what is not complete; fine after commit, and on a zeroed struct that was never opened. */
void sl_output_file_discard(sl_output_file *output);

#endif
