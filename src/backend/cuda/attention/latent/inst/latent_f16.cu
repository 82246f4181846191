/* Latent attention over caches of f16. */
#include "backend/cuda/attention/latent/latent_kernel.cuh"

const sl_latent_type sl_latent_cache_f16 = {SL_QTYPE_F16, latent_launch<SL_QTYPE_F16>,
                                            latent_bytes<SL_QTYPE_F16>, latent_prepare<SL_QTYPE_F16>};
