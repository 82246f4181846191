/* Latent attention over caches of q8_0. */
#include "backend/cuda/attention/latent/latent_kernel.cuh"

const sl_latent_type sl_latent_cache_q8_0 = {SL_QTYPE_Q8_0, latent_launch<SL_QTYPE_Q8_0>,
                                             latent_bytes<SL_QTYPE_Q8_0>, latent_prepare<SL_QTYPE_Q8_0>};
