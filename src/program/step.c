/* The step block: its layout for given limits. */
#include "program/step.h"

/* Offset of an array of `count` elements at `*end`, which moves behind it to the next multiple of 64. The
 * factors are int32, so that no sum of them overflows. */
static uint64_t place(uint64_t *end, uint64_t count, uint64_t size) {
    const uint64_t offset = *end;
    *end = (offset + count * size + 63) & ~(uint64_t)63;
    return offset;
}

static uint64_t positive(int32_t value) {
    return value > 0 ? (uint64_t)value : 0;
}

void sl_step_layout_init(sl_step_layout *layout, const sl_limits *limits, int32_t group_count) {
    const uint64_t groups = positive(group_count), sequences = positive(limits->sequences);
    const uint64_t changes = groups * sequences * positive(sl_table_width(limits->context));
    const uint64_t copies = groups * sequences;
    uint64_t end = 0;
    layout->limits = *limits;
    layout->max_table_changes = changes > INT32_MAX ? INT32_MAX : (int32_t)changes;
    layout->max_page_copies = copies > INT32_MAX ? INT32_MAX : (int32_t)copies;
    place(&end, 1, sizeof(sl_step_header));
    layout->rows = place(&end, positive(limits->rows), sizeof(sl_step_row));
    layout->spans = place(&end, sequences, sizeof(sl_step_span));
    layout->outputs = place(&end, positive(limits->outputs), sizeof(sl_step_output));
    layout->history = place(&end, positive(limits->history), sizeof(int32_t));
    layout->page_copies = place(&end, (uint64_t)layout->max_page_copies, sizeof(sl_page_copy));
    layout->table_changes = place(&end, (uint64_t)layout->max_table_changes, sizeof(sl_table_change));
    layout->bytes = end;
}
