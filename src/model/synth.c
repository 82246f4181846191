/* Models of true shape with random weights. */
#include "model/files.h"

int sl_synth_file(const char *output, const sl_synth_options *options, const sl_file_progress *progress,
                  sl_error *error) {
    (void)options, (void)progress;
    return sl_fail(error, SL_ERR_UNSUPPORTED, "%s: synth is not built yet", output);
}
