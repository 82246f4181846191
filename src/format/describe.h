/* What a file or folder holds, whether a model of it can run or not. */
#ifndef SL_FORMAT_DESCRIBE_H
#define SL_FORMAT_DESCRIBE_H

#include "format/json.h"

/* A new reference: {"path", "format", "parts", "version", "alignment", "type", "family", "name",
 * "tensor_count", "bytes", "types": [{"type", "tensors", "bytes"}], "keys": [{"key", "type", "count",
 * "value"}], "tensors":
 * [{"name", "type", "shape", "bytes"}]}. Shapes as the format has them: GGUF's innermost first, safetensors'
 * outermost first. An array's value is its first SL_DESCRIBE_ITEMS items. Of a split GGUF file whose other
 * parts are not all there, the part alone, with "incomplete": why. */
enum { SL_DESCRIBE_ITEMS = 16 };
int sl_describe(const char *path, json_t **description, sl_error *error);

#endif
