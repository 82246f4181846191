/* The C API: a step's profile as text. */
#include "api/plans.h"

static json_t *make_json(const sl_plan_profile *profile) {
    json_t *rows = json_array();
    for (int32_t r = 0; rows && r < profile->row_count; r++) {
        const sl_profile_row *row = &profile->rows[r];
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f}", "kernel", row->kernel,
                                        "shape", row->shape, "calls", row->calls, "ops", row->ops, "seconds",
                                        row->seconds, "operations", row->cost.operations, "weight_bytes",
                                        row->cost.weight_bytes, "value_bytes", row->cost.value_bytes));
    }
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:o}", "rows",
                     profile->step.rows[SL_ROWS_STEP], "outputs", profile->step.rows[SL_ROWS_OUTPUT],
                     "bucket_rows", profile->bucket_rows, "keys", profile->step.keys, "ops",
                     profile->op_count, "step_seconds", profile->step_seconds, "read_bytes_per_second",
                     profile->rates.read_bytes, "int8_operations_per_second",
                     profile->rates.operations[SL_WITH_INT8], "tensor_operations_per_second",
                     profile->rates.operations[SL_WITH_BF16], "f32_operations_per_second",
                     profile->rates.operations[SL_WITH_F32], "kernels", rows);
}

int sl_api_profile_text(const sl_plan_profile *profile, sluice_text_format format, char **text,
                        sluice_error *error) {
    if (format == SLUICE_JSON) {
        return sl_api_give_json(make_json(profile), text, error);
    }
    sl_buffer buffer = {0};
    sl_plan_print_profile(profile, &buffer);
    return sl_api_give_text(&buffer, text, NULL, error);
}
