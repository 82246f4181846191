/* Between config_read.c and the files that read what few families have. Inside src/model. */
#ifndef SL_MODEL_CONFIG_READER_H
#define SL_MODEL_CONFIG_READER_H

#include "model/config_fields.h"

typedef struct sl_config_reader {
    const char *file;
    const sl_source *source;
    const sl_gguf *gguf; /* or */
    const json_t *root, *text;
    const sl_family *family;
    sl_config_raw *raw;
    sl_error *error;
} sl_config_reader;

/* config_blocks.c, after the keys were read. Numbers of xIELU; factors on what projections leave; the
 * temperature of queries that do not rotate; in which layers moe_layers puts experts. */
int sl_config_derive_xielu(const sl_config_reader *r);
int sl_config_derive_factors(const sl_config_reader *r);
void sl_config_derive_temperature(const sl_config_reader *r);
int sl_config_listed_sparse(const sl_config_reader *r, const json_t *list);

#endif
