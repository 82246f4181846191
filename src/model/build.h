/* The one builder of programs: who calls the blocks, and the blocks. Inside src/model. */
#ifndef SL_MODEL_BUILD_H
#define SL_MODEL_BUILD_H

#include "model/builder.h"

/* Emits the whole program and checks it. Weights are bound already. */
int sl_model_build(const sl_config *config, sl_binding *binding, sl_program *program, sl_error *error);
/* The same with the config's head that drafts, into an empty program that has the weights of `bound`. */
int sl_model_build_drafting(const sl_config *config, sl_binding *binding, const sl_program *bound,
                            sl_program *program, sl_error *error);

/* build.c: the norm of the stream with what is pending, into to.value; their sum into to.pending, if that is
 * there. */
void sl_build_norm_stream(sl_builder *b, const sl_stream *from, int32_t weight, sl_stream to);
/* The norm in front of a layer's attention. */
int32_t sl_build_layer_norm(sl_builder *b);
/* One layer, b->layer, from the stream to the stream. */
void sl_build_layer(sl_builder *b);
/* The rows with outputs; logits and tokens of what the head reads, by the matrix `head`. */
int32_t sl_build_gather(sl_builder *b, int32_t value, const char *name);
void sl_build_head(sl_builder *b, sl_tensor_id head);
/* The rows' tokens, looked up in the weight `table`. */
int32_t sl_build_embed(sl_builder *b, int32_t table, const char *name);

/* draft.c. Behind the last layer: keeps the rows that the head reads, returns them, and writes the drafting
 * layer's keys and values. Then the list of ops that drafts. */
int32_t sl_build_draft_keys(sl_builder *b);
void sl_build_drafts(sl_builder *b);

/* The mixer and feed-forward blocks: from the normed stream `x` to what is added to it. Each returns the
 * value. */
int32_t sl_build_attention(sl_builder *b, int32_t x);
/* Of that only keys and values, into the cache. */
void sl_build_keys(sl_builder *b, int32_t x);
int32_t sl_build_delta(sl_builder *b, int32_t x);
int32_t sl_build_latent(sl_builder *b, int32_t x);
void sl_build_latent_keys(sl_builder *b, int32_t x);
int32_t sl_build_ssm(sl_builder *b, int32_t x);
int32_t sl_build_short_conv(sl_builder *b, int32_t x);
/* encoder.c: what stands in front of an encoder's layers, and one layer. Both leave the stream without
 * anything pending. */
void sl_build_encoder_embed(sl_builder *b);
void sl_build_encoder_layer(sl_builder *b);
int32_t sl_build_feed_forward(sl_builder *b, int32_t x);
/* Every layer's own embedding, from the model's `x`: value [layers][per_layer_width]. Before the first layer.
 */
int32_t sl_build_per_layer_embeddings(sl_builder *b, int32_t x);
/* The block that reads it, from the stream `x` that no norm has passed. */
int32_t sl_build_per_layer(sl_builder *b, int32_t x);
float sl_build_embed_scale(const sl_builder *b, int32_t table, int32_t width);

#endif
