/* Memory that a model holds beside its maps. Large parts of it are copies of matrices, which can be given up
 * and made again as long as the source is open. Inside src/model. */
#ifndef SL_MODEL_OWNED_H
#define SL_MODEL_OWNED_H

#include "base/error.h"
#include "format/tensor.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct sl_copy sl_copy;
struct sl_scaled;

/* Zero-initialise before use. */
typedef struct sl_owned {
    void **blocks;
    size_t count, capacity;
    uint64_t bytes;
    sl_copy *copies;
    size_t copy_count, copy_capacity;
    bool later; /* binding a model leaves the copies to be made */
} sl_owned;

/* `bytes` of memory aligned to 64, freed with the others; NULL when memory ran out. */
void *sl_owned_alloc(sl_owned *owned, uint64_t bytes);
void sl_owned_free(sl_owned *owned);

/* Says that owned memory at `to` is for the tensor's bytes or, where that is NULL, for what sl_scaled_pack
 * makes. Both are borrowed from the source, *scaled itself is copied. False when memory ran out. */
bool sl_owned_add_copy(sl_owned *owned, const sl_tensor *tensor, const struct sl_scaled *scaled, void *to);
/* Makes all of them, with all processors. On failure what they hold is undefined. */
int sl_owned_make_copies(const sl_owned *owned, sl_error *error);
/* Gives their memory back to the system: they hold nothing of use until they are made again. */
void sl_owned_drop_copies(const sl_owned *owned);

#endif
