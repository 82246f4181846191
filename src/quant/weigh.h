/* One block of a type, encoded by importance: what weighted.c chooses from; nobody else includes it. */
#ifndef SL_QUANT_WEIGH_H
#define SL_QUANT_WEIGH_H

void sl_weigh_q2_k(const float *values, const float *importance, void *block);
void sl_weigh_q3_k(const float *values, const float *importance, void *block);
void sl_weigh_q4_k(const float *values, const float *importance, void *block);
void sl_weigh_q5_k(const float *values, const float *importance, void *block);
void sl_weigh_q6_k(const float *values, const float *importance, void *block);
void sl_weigh_iq4_nl(const float *values, const float *importance, void *block);
void sl_weigh_iq4_xs(const float *values, const float *importance, void *block);
void sl_weigh_iq3_xxs(const float *values, const float *importance, void *block);
void sl_weigh_iq3_s(const float *values, const float *importance, void *block);
void sl_weigh_iq2_xxs(const float *values, const float *importance, void *block);
void sl_weigh_iq2_xs(const float *values, const float *importance, void *block);
void sl_weigh_iq2_s(const float *values, const float *importance, void *block);
void sl_weigh_iq1_s(const float *values, const float *importance, void *block);
void sl_weigh_iq1_m(const float *values, const float *importance, void *block);

#endif
