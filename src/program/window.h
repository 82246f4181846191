/* What a row sees of its sequence, one definition for host and device. */
#ifndef SL_PROGRAM_WINDOW_H
#define SL_PROGRAM_WINDOW_H

#include "program/program.h"
#include "quant/convert.h"

/* A group's window as kernels take it: below 0 for chunks, whose size is a power of two, and so a mask too.
 */
SL_INLINE int32_t sl_group_window(const sl_cache_group *group) {
    return group->chunked ? -group->window : group->window;
}
/* First index that the row at `index` sees. */
SL_INLINE int32_t sl_first_seen(int32_t window, int32_t index) {
    const int32_t behind = window > 0 && index >= window ? index - window + 1 : 0;
    return window < 0 ? index & window : behind;
}

#endif
