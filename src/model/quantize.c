/* Writes a model's weights in another type. */
#include "model/files.h"

int sl_quantize_file(const char *input, const char *output, sl_qtype type, const sl_file_progress *progress,
                     sl_error *error) {
    (void)output, (void)type, (void)progress;
    return sl_fail(error, SL_ERR_UNSUPPORTED, "%s: quantize is not built yet", input);
}
