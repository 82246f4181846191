/* A Hugging Face model folder: config.json, hf_quant_config.json, generation_config.json, model.safetensors
 * or the shards that model.safetensors.index.json names, and the paths of the tokenizer's files. A folder
 * with tokenizer.json and no weights opens too, with no tensors; so does one without config.json that has
 * tokenizer.json. */
#ifndef SL_FORMAT_HF_H
#define SL_FORMAT_HF_H

#include "format/json.h"
#include "format/safetensors.h"

typedef struct sl_hf sl_hf;

enum { SL_HF_CONFIG_LIMIT = 16 << 20, SL_HF_INDEX_LIMIT = 256 << 20 /* bytes of JSON that are read */ };

/* On success *hf owns all maps; on failure it is NULL. Immutable afterwards, so any thread may read. Every
 * tensor of the index is found in its shard when the folder is opened. */
int sl_hf_open(const char *folder, sl_hf **hf, sl_error *error);
void sl_hf_close(sl_hf *hf); /* NULL is fine */
const char *sl_hf_path(const sl_hf *hf);
/* SL_ERR_NOT_FOUND, with what to do, when there is no config.json or no weights. */
int sl_hf_check_complete(const sl_hf *hf, sl_error *error);

/* config.json, borrowed: always an object; empty when the file is missing. */
const json_t *sl_hf_config(const sl_hf *hf);
sl_json_place sl_hf_config_place(const sl_hf *hf); /* the same with its path */
/* hf_quant_config.json, which ModelOpt writes: an object; root is NULL when the file is missing. */
sl_json_place sl_hf_quant_config_place(const sl_hf *hf);
/* generation_config.json: likewise. */
sl_json_place sl_hf_generation_place(const sl_hf *hf);
/* Typed look-ups into config.json: as sl_json_u64 and the others. */
int sl_hf_u64(const sl_hf *hf, const char *prefix, const char *key, uint64_t *value, sl_error *error);
int sl_hf_f64(const sl_hf *hf, const char *prefix, const char *key, double *value, sl_error *error);
int sl_hf_bool(const sl_hf *hf, const char *prefix, const char *key, bool *value, sl_error *error);
int sl_hf_string(const sl_hf *hf, const char *prefix, const char *key, const char **value, sl_error *error);

/* Paths of files in the folder that are there; NULL otherwise. Borrowed. */
const char *sl_hf_tokenizer_path(const sl_hf *hf);        /* tokenizer.json */
const char *sl_hf_tokenizer_config_path(const sl_hf *hf); /* tokenizer_config.json */

uint64_t sl_hf_tensor_count(const sl_hf *hf);
/* index < sl_hf_tensor_count; shard after shard, within a shard in the order of the data. */
const sl_safetensors_entry *sl_hf_tensor_at(const sl_hf *hf, uint64_t index);
/* Over all shards, refused ones too; NULL when there is none. */
const sl_safetensors_entry *sl_hf_find(const sl_hf *hf, const char *name);
/* Over all shards: SL_ERR_NOT_FOUND, or SL_ERR_UNSUPPORTED naming tensor, dtype and reason. */
int sl_hf_tensor(const sl_hf *hf, const char *name, const sl_tensor **tensor, sl_error *error);

#endif
