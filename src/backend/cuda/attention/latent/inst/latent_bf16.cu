/* Latent attention over caches of bf16. */
#include "backend/cuda/attention/latent/latent_kernel.cuh"

const sl_latent_type sl_latent_cache_bf16 = {SL_QTYPE_BF16, latent_launch<SL_QTYPE_BF16>,
                                             latent_bytes<SL_QTYPE_BF16>, latent_prepare<SL_QTYPE_BF16>};
