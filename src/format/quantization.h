/* What config.json's quantization_config (or its text_config's) says about weights, or where there is none
 * hf_quant_config.json, for the schemes whose weights can be read: FP8 (E4M3), NVFP4 and MXFP4, as Hugging
 * Face ("fp8", "fbgemm_fp8", "mxfp4"), compressed-tensors and NVIDIA's ModelOpt write them, and integers of 4
 * and 8 bits as compressed-tensors ("pack-quantized", "int-quantized"), GPTQ's and AWQ's writers do.
 *
 * Of hf_quant_config.json, {"producer": {"name": "modelopt"}, "quantization": {...}}, "quantization" is read:
 * quant_algo (missing: weights are as they were), group_size, and of MIXED_PRECISION quantized_layers' own.
 * Which modules are quantised is left to their tensors, which differ; what is refused here would give tensors
 * of the same names another meaning. Scales of activations and of caches are left out of account: here
 * activations and caches have the engine's own types. */
#ifndef SL_FORMAT_QUANTIZATION_H
#define SL_FORMAT_QUANTIZATION_H

#include "format/hf.h"

/* How words of "qweight" lie: model/packed.h. */
typedef enum sl_hf_words { SL_HF_WORDS_NONE, SL_HF_WORDS_GPTQ, SL_HF_WORDS_AWQ } sl_hf_words;

typedef struct sl_hf_quantization {
    bool there;
    uint64_t block_rows, block_columns; /* that share a scale where scales are of blocks; 0 without */
    bool integers;                      /* of compressed-tensors, in some modules */
    sl_hf_words words;
    int32_t bits;        /* of qweight */
    uint64_t group;      /* of qweight: columns that share a scale; 0: all of a row */
    bool symmetric;      /* of qweight: every zero point is the middle of the codes */
    bool zeros_less_one; /* of qweight: qzeros are stored less one */
} sl_hf_quantization;

/* SL_ERR_UNSUPPORTED names file, key and value of what cannot be read, SL_ERR_FORMAT what is malformed. */
int sl_hf_read_quantization(const sl_hf *hf, sl_hf_quantization *quantization, sl_error *error);

#endif
