/* What the files of the C API share of replies. */
#ifndef SL_API_REPLIES_H
#define SL_API_REPLIES_H

#include "api/models.h"

/* Finds out how the model writes replies, when its templates are open. */
int sl_api_open_replies(sluice_model *model, sl_error *error);
void sl_api_close_replies(sluice_model *model);
/* The format of conversations with tools or without; the model's. */
const sl_reply_format *sl_api_reply_format(const sluice_model *model, bool tools);
/* The functions of a caller's JSON array of tools, checked: a new reference. SL_ERR_INVALID names what is
 * wrong.
 */
int sl_api_read_tools(const char *text, json_t **tools, sl_error *error);

#endif
