/* Latent attention over caches of fp8. */
#include "backend/cuda/attention/latent/latent_kernel.cuh"

const sl_latent_type sl_latent_cache_fp8 = {SL_QTYPE_FP8, latent_launch<SL_QTYPE_FP8>,
                                            latent_bytes<SL_QTYPE_FP8>, latent_prepare<SL_QTYPE_FP8>};
