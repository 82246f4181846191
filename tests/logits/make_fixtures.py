#!/usr/bin/env python3
"""Makes the logits oracles under tests/logits/fixtures: make_fixtures.py [--jobs N] OUTDIR [CASE ...]

Needs torch and transformers (made with torch 2.11 and transformers 5.17). README.md beside this file says
what the files hold. Each case is a tiny model with random weights; it is saved, loaded again from the
folder in float32, and what is written down comes from the loaded one, so that the logits belong to the
bytes on disk.

A case is kept only when the network is worth comparing with: logits spread out, the last logits depend on
early tokens, no greedy choice and no expert choice is near a tie; otherwise the next seed is tried.
Mutants (the same folder under a config, or with weights, that a wrong model builder would amount to) must
then give visibly other logits, or the script fails.
"""
import argparse
import concurrent.futures
import copy
import importlib
import json
import multiprocessing
import os
import shutil
import struct
import sys
import time
import traceback
import zlib

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

VOCAB = 256
END_OF_TEXT = 255
LENGTH = 160
PROMPT = 20
GENERATED = 32
POSITIONS = [0, 1, 2, 3, 5, 8, 15, 16, 31, 32, 47, 48, 49, 63, 64, 65, 80, 95, 96, 111, 127, 128, 129, 143,
             159]

COMMON = dict(
    vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
    num_hidden_layers=3, max_position_embeddings=512, bos_token_id=254,
    eos_token_id=END_OF_TEXT, pad_token_id=None,
)


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


LLAMA3 = rope(10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
LLAMA3["rope_type"] = "llama3"
GEMMA_FULL = {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}
GEMMA_ROPE = {"full_attention": GEMMA_FULL, "sliding_attention": rope(10000.0)}
# text sits at the same place on all three axes, so the sections change nothing; published folders have them
MROPE = dict(mrope_interleaved=True, mrope_section=[2, 1, 1])
QWEN35_ROPE = rope(10000000.0, partial_rotary_factor=0.25, **MROPE)
MOE = dict(moe_intermediate_size=32, decoder_sparse_step=1, rope_parameters=rope(1000000.0))
EPS = {"eps": dict(rms_norm_eps=1e-6)}
GEMMA_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
QWEN3 = dict(head_dim=32, rope_parameters=rope(1000000.0))


def zero(*parts):
    """A mutant of the weights: those with one of the parts in their name are as good as left out."""
    return ("zero", parts)


# name: family, config class, config arguments, mutants (label: config arguments, or zero(...))
CASES = {
    "llama": ("llama", "LlamaConfig", dict(
        tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=rope(10000.0)), {
        "theta": dict(rope_parameters=rope(500000.0))}),
    "llama-scaled": ("llama", "LlamaConfig", dict(
        tie_word_embeddings=True, rms_norm_eps=1e-4, rope_parameters=LLAMA3), {
        **EPS, "unscaled": dict(rope_parameters=rope(10000.0)),
        "linear": dict(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0})}),
    "mistral": ("mistral", "MistralConfig", dict(
        tie_word_embeddings=False, head_dim=32, sliding_window=None, rope_parameters=rope(1000000.0)), {
        "window": dict(sliding_window=48)}),
    "qwen2": ("qwen2", "Qwen2Config", dict(
        tie_word_embeddings=True, intermediate_size=128, use_sliding_window=False,
        rope_parameters=rope(1000000.0)), {
        "no q bias": zero("q_proj.bias"), "no k bias": zero("k_proj.bias"),
        "no v bias": zero("v_proj.bias")}),
    "qwen3": ("qwen3", "Qwen3Config", dict(tie_word_embeddings=False, **QWEN3), {
        "unit q norm": zero("q_norm"), "unit k norm": zero("k_norm")}),
    "qwen3-tied": ("qwen3", "Qwen3Config", dict(tie_word_embeddings=True, rms_norm_eps=1e-4, **QWEN3), {
        "theta": dict(rope_parameters=rope(10000.0)), **EPS}),
    "qwen3-bf16": ("qwen3", "Qwen3Config", dict(tie_word_embeddings=False, **QWEN3), {
        "unit norms": zero("layernorm")}),
    "qwen3moe": ("qwen3moe", "Qwen3MoeConfig", dict(
        tie_word_embeddings=False, norm_topk_prob=True, num_experts=8, num_experts_per_tok=2, head_dim=16,
        **MOE), {
        "not normalised": dict(norm_topk_prob=False), "one expert": dict(num_experts_per_tok=1)}),
    "qwen3moe-nonorm": ("qwen3moe", "Qwen3MoeConfig", dict(
        tie_word_embeddings=True, norm_topk_prob=False, num_experts=6, num_experts_per_tok=3, head_dim=32,
        rms_norm_eps=1e-4, **MOE), {
        "normalised": dict(norm_topk_prob=True), **EPS}),
    "gemma3": ("gemma3", "Gemma3TextConfig", dict(
        num_hidden_layers=4, head_dim=32, query_pre_attn_scalar=20, sliding_window=48,
        layer_types=GEMMA_LAYERS,
        final_logit_softcapping=None, attn_logit_softcapping=None, tie_word_embeddings=True, pad_token_id=0,
        rms_norm_eps=1e-3, rope_parameters=GEMMA_ROPE), {
        **EPS,
        "window one less": dict(sliding_window=47), "window one more": dict(sliding_window=49),
        "scale": dict(query_pre_attn_scalar=32),
        "one theta": dict(rope_parameters={"full_attention": GEMMA_FULL,
                                           "sliding_attention": rope(1000000.0)}),
        "local scaled": dict(rope_parameters={"full_attention": GEMMA_FULL,
                                              "sliding_attention": {**GEMMA_FULL, "rope_theta": 10000.0}}),
        "full unscaled": dict(rope_parameters={"full_attention": rope(1000000.0),
                                               "sliding_attention": rope(10000.0)}),
        "all sliding": dict(layer_types=["sliding_attention"] * 4),
        "silu": dict(hidden_activation="silu"), "erf gelu": dict(hidden_activation="gelu"),
        "unit norms": zero("layernorm"), "unit q norm": zero("q_norm")}),
    "qwen3_5": ("qwen3_5", "Qwen3_5TextConfig", dict(
        num_hidden_layers=4, head_dim=32, tie_word_embeddings=False, rope_parameters=QWEN35_ROPE,
        layer_types=["linear_attention"] * 3 + ["full_attention"], linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4, rms_norm_eps=1e-4), {
        **EPS,
        "whole rope": dict(rope_parameters=rope(10000000.0, partial_rotary_factor=1.0)),
        "unit norms": zero("layernorm"), "unit gated norm": zero("linear_attn.norm"),
        "no dt bias": zero("dt_bias"),
        "no A": zero("A_log"), "no z": zero("in_proj_z"), "no a": zero("in_proj_a"),
        "no b": zero("in_proj_b")}),
}


# Folders with weights in 8 and 4 bits: widths that hold whole blocks of 128.
WIDE = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2)
WIDE_MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, decoder_sparse_step=1,
                norm_topk_prob=True)
CASES.update({
    "llama-fp8-block": ("llama", "LlamaConfig", dict(
        tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=rope(10000.0), **WIDE), {
        "theta": dict(rope_parameters=rope(500000.0))}),
    "qwen3-fp8-channel": ("qwen3", "Qwen3Config", dict(tie_word_embeddings=False, **QWEN3, **WIDE), {
        "unit q norm": zero("q_norm")}),
    "llama-nvfp4": ("llama", "LlamaConfig", dict(
        tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=rope(10000.0), **WIDE), {
        "theta": dict(rope_parameters=rope(500000.0))}),
    "qwen3moe-nvfp4": ("qwen3moe", "Qwen3MoeConfig", dict(
        tie_word_embeddings=False, **QWEN3, **WIDE, **WIDE_MOE), {
        "not normalised": dict(norm_topk_prob=False)}),
})

# Gemma 4: windowed and full layers of two shapes; the last layers read the caches of earlier ones.
GEMMA4_ROPE = {"full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
               "sliding_attention": rope(10000.0)}
S, F = "sliding_attention", "full_attention"
GEMMA4 = dict(head_dim=16, global_head_dim=32, sliding_window=48, rms_norm_eps=1e-3, tie_word_embeddings=True,
              pad_token_id=0, rope_parameters=GEMMA4_ROPE, final_logit_softcapping=5.0,
              hidden_activation="gelu_pytorch_tanh", vocab_size_per_layer_input=VOCAB, attention_dropout=0.0)
GEMMA4_E = dict(GEMMA4, num_hidden_layers=8, layer_types=[S, S, S, F, S, F, S, F], num_kv_shared_layers=4,
                hidden_size_per_layer_input=8, use_double_wide_mlp=True)
GEMMA4_PLAIN = dict(GEMMA4, num_hidden_layers=4, layer_types=[S, S, F, F], hidden_size_per_layer_input=0,
                    num_kv_shared_layers=0, attention_k_eq_v=True, num_global_key_value_heads=1)
GEMMA4_MOE = dict(GEMMA4_PLAIN, enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=24)
GEMMA4_WHOLE = {"full_attention": rope(1000000.0), "sliding_attention": rope(10000.0)}
GEMMA4_ONE = {"full_attention": GEMMA4_ROPE["full_attention"], "sliding_attention": rope(1000000.0)}
CASES.update({
    "gemma4-e": ("gemma4", "Gemma4TextConfig", GEMMA4_E, {
        "no per-layer embedding": zero("embed_tokens_per_layer"), "no per-layer projection": zero("per_layer_model_projection"),
        "no per-layer gate": zero("per_layer_input_gate"), "window one less": dict(sliding_window=47),
        "window one more": dict(sliding_window=49), "no layer scalar": zero("layer_scalar"),
        "whole rope": dict(rope_parameters=GEMMA4_WHOLE), "one theta": dict(rope_parameters=GEMMA4_ONE),
        "no cap": dict(final_logit_softcapping=None), "unit q norm": zero("q_norm"), **EPS}),
    "gemma4-dense": ("gemma4", "Gemma4TextConfig", GEMMA4_PLAIN, {
        "unit k norm": zero("k_norm"), "silu": dict(hidden_activation="silu"), "no layer scalar": zero("layer_scalar")}),
    "gemma4-moe": ("gemma4", "Gemma4TextConfig", GEMMA4_MOE, {
        "one expert": dict(top_k_experts=1), "unit expert factors": zero("per_expert_scale"),
        "unit router norm": zero("router.scale"), "no experts": zero("experts.down_proj"),
        "no dense block": zero("mlp.down_proj"), "unit norms": zero("feedforward_layernorm_")}),
})

# Qwen's next ones: a shared expert behind a gate; in Next another order of the recurrent projections.
QWEN_DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                  linear_conv_kernel_dim=4, rms_norm_eps=1e-4, head_dim=32, num_hidden_layers=4, tie_word_embeddings=False,
                  num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48,
                  layer_types=["linear_attention"] * 3 + ["full_attention"])
SHARED = {"no shared gate": zero("shared_expert_gate"), "no shared expert": zero("shared_expert.down_proj"),
          "no router": zero("mlp.gate.weight")}
CASES.update({
    "qwen3_5_moe": ("qwen3_5_moe", "Qwen3_5MoeTextConfig", dict(QWEN_DELTA, rope_parameters=QWEN35_ROPE), SHARED),
    "qwen3_next": ("qwen3_next", "Qwen3NextConfig", dict(
        QWEN_DELTA, decoder_sparse_step=1, mlp_only_layers=[1], norm_topk_prob=True,
        rope_parameters=rope(10000000.0, partial_rotary_factor=0.25)), {
        **SHARED, "no b and a": zero("in_proj_ba"), "not normalised": dict(norm_topk_prob=False)}),
})

OSS_YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 64,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
GPT_OSS = dict(head_dim=32, num_hidden_layers=4, sliding_window=48, num_local_experts=8, num_experts_per_tok=2,
               intermediate_size=32, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=OSS_YARN,
               layer_types=[S, F, S, F])
OSS_MUTANTS = {"no sinks": zero("sinks"), "no q bias": zero("q_proj.bias"), "no o bias": zero("o_proj.bias"),
               "no router bias": zero("router.bias"), "no expert bias": zero("gate_up_proj_bias"),
               "no down bias": zero("down_proj_bias"), "window one less": dict(sliding_window=47),
               "ramp rounded": dict(rope_parameters=dict(OSS_YARN, truncate=True)), "one expert": dict(num_experts_per_tok=1)}
CASES.update({
    "gpt_oss": ("gpt_oss", "GptOssConfig", GPT_OSS, OSS_MUTANTS),
    "gpt_oss-mxfp4": ("gpt_oss", "GptOssConfig", GPT_OSS, {"no sinks": zero("sinks")}),
})

# Rows: what differs from Llama is in the name of the class.
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 8.0, "original_max_position_embeddings": 32,
        "beta_fast": 32.0, "beta_slow": 1.0}
MINISTRAL_ROPE = dict(YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5)
HALF = rope(10000.0, partial_rotary_factor=0.5)
SIGMOID_MOE = dict(num_experts_per_tok=2, moe_intermediate_size=32, routed_scaling_factor=1.5, n_group=1, topk_group=1,
                   norm_topk_prob=True)
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 9.0],
        "original_max_position_embeddings": 64}
PHI = dict(num_hidden_layers=3, tie_word_embeddings=False, original_max_position_embeddings=64, sliding_window=None,
           rms_norm_eps=1e-5, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, partial_rotary_factor=0.75)
CASES.update({
    "ministral3": ("ministral3", "Ministral3Config", dict(
        head_dim=32, tie_word_embeddings=False, sliding_window=None, rope_parameters=MINISTRAL_ROPE), {
        "no temperature": dict(rope_parameters=dict(MINISTRAL_ROPE, llama_4_scaling_beta=0.0))}),
    "smollm3": ("smollm3", "SmolLM3Config", dict(
        num_hidden_layers=4, tie_word_embeddings=True, no_rope_layers=[1, 1, 0, 1], use_sliding_window=False, pad_token_id=0,
        rope_parameters=rope(2000000.0)), {"rope everywhere": dict(no_rope_layers=[1, 1, 1, 1])}),
    "granite": ("granite", "GraniteConfig", dict(
        tie_word_embeddings=False, embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.1,
        logits_scaling=0.5, rope_parameters=rope(10000.0)), {
        "embedding": dict(embedding_multiplier=1.0), "residual": dict(residual_multiplier=1.0),
        "attention": dict(attention_multiplier=0.25), "logits": dict(logits_scaling=1.0)}),
    "seed_oss": ("seed_oss", "SeedOssConfig", dict(
        head_dim=32, attention_bias=True, attention_out_bias=False, tie_word_embeddings=False, rope_parameters=rope(1e7),
        attention_dropout=0.0, residual_dropout=0.0), {"no q bias": zero("q_proj.bias")}),
    "olmo2": ("olmo2", "Olmo2Config", dict(tie_word_embeddings=False, pad_token_id=0, rope_parameters=rope(500000.0)), {
        "unit q norm": zero("q_norm"), "unit norms": zero("layernorm")}),
    "olmo3": ("olmo3", "Olmo3Config", dict(
        num_hidden_layers=4, tie_word_embeddings=False, pad_token_id=0, sliding_window=48, layer_types=[S, S, S, F],
        rope_parameters={F: dict(YARN, attention_factor=1.2), S: rope(1000000.0)}), {
        "window": dict(sliding_window=47), "unit k norm": zero("k_norm")}),
    "exaone4": ("exaone4", "Exaone4Config", dict(
        num_hidden_layers=4, tie_word_embeddings=False, sliding_window=48, sliding_window_pattern=4, layer_types=[S, S, S, F],
        head_dim=16, rope_parameters=rope(1000000.0)), {
        "window": dict(sliding_window=47), "unit q norm": zero("q_norm")}),
    "hunyuan": ("hunyuan", "HunYuanDenseV1Config", dict(
        head_dim=16, tie_word_embeddings=True, pad_token_id=0, rope_parameters=rope(10000.0)), {
        "unit q norm": zero("query_layernorm"), "unit k norm": zero("key_layernorm")}),
    "glm4": ("glm4", "Glm4Config", dict(
        head_dim=16, tie_word_embeddings=False, attention_bias=True, pad_token_id=0, rope_parameters=HALF), {
        "no bias": zero("q_proj.bias"), "unit norms": zero("layernorm")}),
    "ernie4_5": ("ernie4_5", "Ernie4_5Config", dict(
        head_dim=16, tie_word_embeddings=True, use_bias=False, pad_token_id=0, rope_parameters=rope(500000.0)), {
        "theta": dict(rope_parameters=rope(10000.0))}),
    "phi3": ("phi3", "Phi3Config", dict(PHI, max_position_embeddings=64, rope_parameters=rope(
        10000.0, partial_rotary_factor=0.75)), {"theta": dict(rope_parameters=rope(500000.0, partial_rotary_factor=0.75))}),
    "phi3-long": ("phi3", "Phi3Config", dict(PHI, rope_parameters=LONG), {
        "no factors": dict(rope_parameters=dict(LONG, long_factor=[1.0] * 6))}),
    "glm4_moe": ("glm4_moe", "Glm4MoeConfig", dict(
        SIGMOID_MOE, n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, head_dim=16, use_qk_norm=True,
        attention_bias=True, tie_word_embeddings=False, pad_token_id=0, rope_parameters=HALF), {
        "unit q norm": zero("q_norm"), "no bias": zero("k_proj.bias"), "scaling": dict(routed_scaling_factor=1.0),
        "no correction": zero("e_score_correction_bias"), "no shared": zero("shared_experts.down_proj")}),
    "minimax_m2": ("minimax_m2", "MiniMaxM2Config", dict(
        num_local_experts=8, num_experts_per_tok=2, intermediate_size=32, head_dim=16, rotary_dim=8, tie_word_embeddings=False,
        pad_token_id=0, rope_parameters=HALF), {
        "unit q norm": zero("q_norm"), "no correction": zero("e_score_correction_bias"),
        "one expert": dict(num_experts_per_tok=1)}),
    "ernie4_5_moe": ("ernie4_5_moe", "Ernie4_5_MoeConfig", dict(
        moe_num_experts=8, moe_k=2, moe_num_shared_experts=1, moe_intermediate_size=32, moe_layer_start_index=1,
        moe_layer_end_index=2, moe_layer_interval=1, use_bias=False, tie_word_embeddings=True, pad_token_id=0,
        rope_parameters=rope(500000.0)), {
        "no correction": zero("e_score_correction_bias"), "no shared": zero("shared_experts.down_proj")}),
})


# ---- weights of 8 and 4 bits: each function gives the tensors that take a weight's place, and its value ----

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fp8(values):
    return values.clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_block(stem, w):
    """Blocks of 128 x 128, those at the ends smaller; scales in BF16 as Qwen's folders have them."""
    rows, columns = -(-w.shape[0] // 128), -(-w.shape[1] // 128)
    scales = torch.empty(rows, columns, dtype=torch.bfloat16)
    codes, value = torch.empty_like(w, dtype=torch.float8_e4m3fn), torch.empty_like(w)
    for i in range(rows):
        for j in range(columns):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scales[i, j] = w[at].abs().max() / 448
            codes[at] = fp8(w[at] / scales[i, j].float())
            value[at] = codes[at].float() * scales[i, j].float()
    return {stem + ".weight": codes, stem + ".weight_scale_inv": scales}, value


def fp8_channel(stem, w):
    scales = (w.abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    codes = fp8(w / scales.float())
    return {stem + ".weight": codes, stem + ".weight_scale": scales}, codes.float() * scales.float()


def nvfp4_codes(w, scales):
    """Codes [rows][columns] and packed, the first of two in the low nibble."""
    scaled = w.reshape(w.shape[0], -1, 16) / scales[..., None].clamp(min=1e-30)
    codes = (scaled[..., None] - E2M1).abs().argmin(-1).reshape(w.shape)
    return codes, (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)


def nvfp4_value(w, codes, scales):
    return (E2M1[codes].reshape(w.shape[0], -1, 16) * scales[..., None]).reshape(w.shape)


def nvfp4_modelopt(stem, w):
    """weight_scale_2 multiplies."""
    second = w.abs().max() / (6 * 448)
    scales = fp8(w.reshape(w.shape[0], -1, 16).abs().amax(-1) / 6 / second)
    codes, packed = nvfp4_codes(w, scales.float() * second)
    return {stem + ".weight": packed, stem + ".weight_scale": scales, stem + ".weight_scale_2": second,
            stem + ".input_scale": torch.tensor(0.01)}, nvfp4_value(w, codes, scales.float() * second)


def nvfp4_packed(stem, w):
    """weight_global_scale divides."""
    whole = (6 * 448) / w.abs().max()
    scales = fp8(w.reshape(w.shape[0], -1, 16).abs().amax(-1) / 6 * whole)
    codes, packed = nvfp4_codes(w, scales.float() / whole)
    return {stem + ".weight_packed": packed, stem + ".weight_scale": scales,
            stem + ".weight_global_scale": whole.reshape(1), stem + ".input_global_scale": torch.ones(1)}, \
        nvfp4_value(w, codes, scales.float() / whole)


def group(weights, activations):
    return {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations,
                        "output_activations": None}}


# as the folders of Qwen, Red Hat (compressed-tensors) and NVIDIA (ModelOpt) say it
QUANTISED = {
    "llama-fp8-block": (fp8_block, {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "weight_block_size": [128, 128]}),
    "qwen3-fp8-channel": (fp8_channel, {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "kv_cache_scheme": None, "quantization_status": "compressed", "config_groups": group(
            {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False,
             "group_size": None, "block_structure": None},
            {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True})}),
    "llama-nvfp4": (nvfp4_modelopt, {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.29.0"}, "config_groups": group(
            {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
            {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False})}),
    "qwen3moe-nvfp4": (nvfp4_packed, {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "ignore": ["lm_head", "re:.*mlp.gate$"], "kv_cache_scheme": None,
        "quantization_status": "compressed", "config_groups": group(
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "symmetric": True,
             "dynamic": False, "group_size": 16},
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "symmetric": True,
             "dynamic": "local", "group_size": 16})}),
}


def swapped(*parts):
    """A mutant of the weights: of those with one of the parts in their name, the first two thirds of the rows change places."""
    return ("swap", parts)


# What a machine that has made the others has not yet made: latent attention, Mamba2, short convolutions, and rows.
OSS_ROUNDED = dict(OSS_YARN, truncate=True)
LLAMA4 = dict(
    num_hidden_layers=4, head_dim=16, intermediate_size=32, intermediate_size_mlp=96, num_local_experts=4,
    num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layers=[1, 1, 1, 0], attention_chunk_size=48,
    attn_temperature_tuning=True, floor_scale=32, attn_scale=0.5, use_qk_norm=True, tie_word_embeddings=False,
    rope_parameters=rope(500000.0))
LATENT_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
               "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
LATENT = dict(num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
              n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=16, tie_word_embeddings=False)
DEEPSEEK3 = dict(LATENT, q_lora_rank=24, n_routed_experts=16, n_group=4, topk_group=2, num_experts_per_tok=4,
                 routed_scaling_factor=2.5, norm_topk_prob=True, rope_interleave=True, rope_parameters=LATENT_ROPE)
DEEPSEEK2_ROPE = dict(LATENT_ROPE, mscale=0.707, mscale_all_dim=0.707)
NO_MSCALE = {k: v for k, v in LATENT_ROPE.items() if not k.startswith("mscale")}
LATENT_MUTANTS = {"no mscale": dict(rope_parameters=NO_MSCALE), "no shared": zero("shared_experts.down_proj"),
                  "unit latent norm": zero("kv_a_layernorm")}
DEEPSEEK3_MUTANTS = {
    **LATENT_MUTANTS, "no correction": zero("e_score_correction_bias"), "no groups": dict(n_group=1, topk_group=1),
    "halves": dict(rope_interleave=False), "not normalised": dict(norm_topk_prob=False),
    "scaling": dict(routed_scaling_factor=1.0)}
MAMBA_MUTANTS = {"no D": zero(".D"), "no dt bias": zero("dt_bias"), "no A": zero("A_log"), "no conv bias": zero("conv1d.bias")}
# the library's own path holds time steps at time_step_min or more, which no other engine does; 0 it cannot start with
NEMOTRON = dict(
    layers_block_type=["mamba", "moe", "attention", "mlp", "mamba"], num_hidden_layers=5, head_dim=16, mamba_num_heads=4,
    mamba_head_dim=16, ssm_state_size=16, n_groups=2, conv_kernel=4, chunk_size=32, time_step_min=1e-30, use_conv_bias=True,
    mlp_hidden_act="relu2", n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32,
    moe_shared_expert_intermediate_size=48, routed_scaling_factor=2.5, norm_topk_prob=True, rescale_prenorm_residual=False,
    layer_norm_epsilon=1e-4, tie_word_embeddings=False)
NEMOTRON_MUTANTS = {
    **MAMBA_MUTANTS, "unit gated norm": zero("mixer.norm"), "no correction": zero("e_score_correction_bias"),
    "silu": dict(mlp_hidden_act="silu"), "no shared": zero("shared_experts.down_proj"),
    "time steps held": dict(time_step_min=0.1), "eps": dict(layer_norm_epsilon=1e-6)}
GRANITE_H = dict(
    layer_types=["linear_attention", "full_attention", "linear_attention"], mamba_n_heads=8, mamba_d_head=16, mamba_expand=2,
    mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=32, shared_intermediate_size=64,
    intermediate_size=32, num_experts_per_tok=2, position_embedding_type="nope", embedding_multiplier=3.0,
    residual_multiplier=0.6, attention_multiplier=0.4, logits_scaling=0.5, tie_word_embeddings=False,
    rope_parameters=rope(10000.0))
GRANITE_H_MUTANTS = {
    **MAMBA_MUTANTS, "embedding": dict(embedding_multiplier=1.0), "residual": dict(residual_multiplier=1.0),
    "attention": dict(attention_multiplier=0.25), "logits": dict(logits_scaling=1.0),
    "rope": dict(position_embedding_type="rope")}
# 150 becomes 2/3 of it, then the next multiple of 32: 128
LFM2 = dict(layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, conv_bias=False, norm_eps=1e-4,
            tie_word_embeddings=True, rope_parameters=rope(1000000.0))
LFM2_MUTANTS = {"b and c swapped": swapped("conv.in_proj"), "unit q norm": zero("q_layernorm"),
                "theta": dict(rope_parameters=rope(10000.0)), "eps": dict(norm_eps=1e-6)}
FALCON = dict(
    head_dim=16, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4,
    mamba_chunk_size=32, mamba_rms_norm=True, mamba_norm_before_gate=False, embedding_multiplier=3.0, lm_head_multiplier=0.7,
    mlp_multipliers=[0.8, 1.3], ssm_multipliers=[0.9, 1.2, 0.8, 1.1, 0.7], key_multiplier=0.6, attention_in_multiplier=1.2,
    attention_out_multiplier=0.8, ssm_in_multiplier=1.25, ssm_out_multiplier=0.9, tie_word_embeddings=False,
    rope_parameters=rope(100000.0))
BLOCKS = {
    "gpt_oss-truncate": ("gpt_oss", "GptOssConfig", dict(GPT_OSS, rope_parameters=OSS_ROUNDED), {
        "ramp not rounded": dict(rope_parameters=OSS_YARN)}),
    "hunyuan-alpha": ("hunyuan", "HunYuanDenseV1Config", dict(
        head_dim=16, tie_word_embeddings=True, rope_parameters=rope(10000.0, rope_type="dynamic", alpha=50.0, factor=1.0)), {
        "no alpha": dict(rope_parameters=rope(10000.0))}),
    "hunyuan_moe": ("hunyuan_moe", "HunYuanMoEV1Config", dict(
        num_hidden_layers=2, head_dim=16, intermediate_size=32, num_experts=8, moe_topk=2, tie_word_embeddings=True,
        rope_parameters=rope(10000.0)), {
        "unit q norm": zero("query_layernorm"), "no shared": zero("shared_mlp.down_proj"), "one expert": dict(moe_topk=1)}),
    "glm4_moe-plain": ("glm4_moe", "Glm4MoeConfig", dict(
        SIGMOID_MOE, n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, head_dim=16, use_qk_norm=False,
        attention_bias=False, tie_word_embeddings=False, rope_parameters=HALF), {
        "no correction": zero("e_score_correction_bias"), "whole rope": dict(rope_parameters=rope(
            10000.0, partial_rotary_factor=1.0))}),
    "llama4": ("llama4", "Llama4TextConfig", LLAMA4, {
        "no temperature": dict(attn_temperature_tuning=False), "chunk one more": dict(attention_chunk_size=49),
        "chunk one less": dict(attention_chunk_size=47), "no qk norm": dict(use_qk_norm=False),
        "rope everywhere": dict(no_rope_layers=[1, 1, 1, 1], layer_types=["chunked_attention"] * 3 + [F]),
        "no shared": zero("shared_expert.down_proj")}),
    "cohere2": ("cohere2", "Cohere2Config", dict(
        num_hidden_layers=4, layer_types=[S, S, S, F], sliding_window=48, logit_scale=0.7, layer_norm_eps=1e-4,
        tie_word_embeddings=True, rope_parameters=rope(10000.0)), {
        "scale": dict(logit_scale=1.0), "window one less": dict(sliding_window=47), "unit norms": zero("layernorm"),
        "rope everywhere": dict(layer_types=[S] * 4, sliding_window=400)}),
    "starcoder2": ("starcoder2", "Starcoder2Config", dict(
        sliding_window=48, use_bias=True, norm_epsilon=1e-4, tie_word_embeddings=True, rope_parameters=rope(100000.0)), {
        "window one less": dict(sliding_window=47), "no norm bias": zero("layernorm.bias"), "no c_fc bias": zero("c_fc.bias"),
        "no c_proj bias": zero("c_proj.bias"), "no o bias": zero("o_proj.bias"), "silu": dict(hidden_act="silu")}),
    "apertus": ("apertus", "ApertusConfig", dict(
        hidden_act="xielu", tie_word_embeddings=False, rms_norm_eps=1e-4, rope_parameters=LLAMA3), {
        "unscaled": dict(rope_parameters=rope(10000.0)), "unit q norm": zero("q_norm"), "alpha p": zero("act_fn.alpha_p"),
        "alpha n": zero("act_fn.alpha_n"), **EPS}),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3Config", DEEPSEEK3, {**DEEPSEEK3_MUTANTS, "unit q norm": zero("q_a_layernorm")}),
    "deepseek_v3-noq": ("deepseek_v3", "DeepseekV3Config", dict(DEEPSEEK3, q_lora_rank=None), DEEPSEEK3_MUTANTS),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2Config", dict(
        LATENT, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1, topk_method="greedy",
        norm_topk_prob=False, routed_scaling_factor=1.0, rope_parameters=DEEPSEEK2_ROPE), {
        **LATENT_MUTANTS, "scaling": dict(routed_scaling_factor=2.0)}),
    "nemotron_h": ("nemotron_h", "NemotronHConfig", NEMOTRON, NEMOTRON_MUTANTS),
    "nemotron_h-latent": ("nemotron_h", "NemotronHConfig", dict(NEMOTRON, moe_latent_size=32), {
        "no shared": zero("shared_experts.down_proj"), "no experts": zero("fc2_latent_proj")}),
    "granite-h": ("granite_h", "GraniteMoeHybridConfig", dict(GRANITE_H, num_local_experts=0), GRANITE_H_MUTANTS),
    "granite-h-moe": ("granite_h", "GraniteMoeHybridConfig", dict(GRANITE_H, num_local_experts=8), {
        **GRANITE_H_MUTANTS, "one expert": dict(num_experts_per_tok=1), "no shared": zero("shared_mlp.output_linear")}),
    "lfm2": ("lfm2", "Lfm2Config", dict(
        LFM2, intermediate_size=150, block_multiple_of=32, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True),
        LFM2_MUTANTS),
    "lfm2_moe": ("lfm2_moe", "Lfm2MoeConfig", dict(
        LFM2, num_dense_layers=1, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, use_expert_bias=True,
        routed_scaling_factor=1.5, norm_topk_prob=True), {
        **LFM2_MUTANTS, "no expert bias": zero("expert_bias"), "not normalised": dict(norm_topk_prob=False),
        "scaling": dict(routed_scaling_factor=1.0)}),
    "falcon_h1": ("falcon_h1", "FalconH1Config", FALCON, {
        **MAMBA_MUTANTS, "unit gated norm": zero("mamba.norm"), "embedding": dict(embedding_multiplier=1.0),
        "head": dict(lm_head_multiplier=1.0), "mlp": dict(mlp_multipliers=[1.0, 1.0]), "key": dict(key_multiplier=1.0),
        "ssm": dict(ssm_multipliers=[1.0] * 5), "attention in": dict(attention_in_multiplier=1.0),
        "attention out": dict(attention_out_multiplier=1.0), "ssm in": dict(ssm_in_multiplier=1.0),
        "ssm out": dict(ssm_out_multiplier=1.0), "norm before gate": dict(mamba_norm_before_gate=True)}),
}
CASES.update(BLOCKS)
BLOCK_FAMILIES = {case[0] for case in BLOCKS.values()} - {"gpt_oss", "hunyuan", "glm4_moe"}


def mxfp4(w):
    """Blocks of 32 along the last axis, the first of two in the low nibble; scales are powers of two."""
    blocks = w.reshape(*w.shape[:-1], -1, 32)
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=2.0 ** -100))) - 2
    codes = (blocks[..., None] / torch.exp2(exponents)[..., None, None] - E2M1).abs().argmin(-1)
    value = (E2M1[codes] * torch.exp2(exponents)[..., None]).reshape(w.shape)
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8), (exponents + 127).to(torch.uint8), value


def quantise_experts(folder):
    """gpt-oss: the experts' matrices lie transposed in a folder of floats, as rows in one of MXFP4."""
    path, kept, packed = os.path.join(folder, "model.safetensors"), {}, {}
    for name, w in load_file(path).items():
        kept[name] = packed[name] = w
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            blocks, scales, value = mxfp4(w.transpose(1, 2).contiguous())
            kept[name] = value.transpose(1, 2).contiguous()
            del packed[name]
            packed[name + "_blocks"], packed[name + "_scales"] = blocks, scales
    save_file(kept, path, metadata={"format": "pt"})
    save_file(packed, os.path.join(folder, "packed"), metadata={"format": "pt"})


QUANTISED["gpt_oss-mxfp4"] = (None, {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})


def quantise(case, folder):
    """The folder's weights become what is left of them; beside them, what is to take their place."""
    if case == "gpt_oss-mxfp4":
        return quantise_experts(folder)
    path, kept, packed = os.path.join(folder, "model.safetensors"), {}, {}
    for name, w in load_file(path).items():
        stem = name.removesuffix(".weight")
        if not stem.endswith("_proj"):
            kept[name] = packed[name] = w
        else:
            tensors, kept[name] = QUANTISED[case][0](stem, w)
            packed.update(tensors)
    save_file(kept, path, metadata={"format": "pt"})
    save_file(packed, os.path.join(folder, "packed"), metadata={"format": "pt"})


def put_packed(case, folder):
    os.replace(os.path.join(folder, "packed"), os.path.join(folder, "model.safetensors"))
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = QUANTISED[case][1]
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def centred(family, name):
    """Whether a norm's weight counts from zero, that is, multiplies as 1 + w."""
    return family in ("gemma3", "qwen3_5", "qwen3_5_moe", "qwen3_next") and "linear_attn.norm" not in name


def block_weight(name, shape, n):
    """What random_weight's rules would draw too small, too large or not at all in the families of BLOCKS; None: they do."""
    if name.endswith(".D"):
        return 1.0 + 0.5 * n
    if name.endswith("expert_bias"):
        return 0.15 * n
    if name.endswith((".alpha_p", ".alpha_n")):
        return 0.5 * n
    if name.endswith("bias") and ("norm" in name or "conv" in name):
        return 0.25 * n
    if name.endswith(("q_b_proj.weight", "kv_b_proj.weight")):  # read rows of the rank's width
        return 1.3 * shape[-1] ** -0.5 * n
    if name.endswith((".gate.weight", "gate.wg.weight")):
        return 0.25 * n
    if name.endswith(".embeddings.weight"):
        return 0.25 * n
    if name.endswith(".conv.weight"):
        return 0.5 * n
    return None


def random_weight(family, name, shape, gen):
    """Scales that keep every part of the network at work at width 64; names say the role."""
    n = torch.randn(shape, generator=gen)
    value = block_weight(name, shape, n) if family in BLOCK_FAMILIES else None
    if value is not None:
        return value
    if family == "gemma4":  # whose scores are not divided by sqrt(D)
        if "q_norm" in name or "k_norm" in name:
            return 0.6 + 0.2 * n
        if "embed_tokens" in name:
            return 0.09 * n
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return 1.0 + 0.25 * n
    if name.endswith("e_score_correction_bias"):
        return 0.15 * n
    if name.endswith("sinks"):
        return n
    if name.endswith(("router.weight", "router.proj.weight")):
        return 0.25 * n
    if name.endswith("experts.gate_up_proj") and family == "gpt_oss":  # so that the limit of 7 is met
        return 0.45 * n
    if name.endswith("_proj_bias"):
        return 0.5 * n
    if "norm" in name and len(shape) == 1:
        # sharper attention than a norm weight of one would give with D = 32
        mean = 0.5 if ("q_norm" in name or "k_norm" in name) else 0.0
        return mean + 0.25 * n + (0.0 if centred(family, name) else 1.0)
    if name.endswith("A_log"):  # decay rates from 0.03 to 1.6 per step: long and short memories
        return torch.rand(shape, generator=gen) * 4.0 - 3.5
    if name.endswith("dt_bias"):
        return -1.0 + 0.8 * n
    if name.endswith(".bias"):
        return 0.5 * n
    if name.endswith("conv1d.weight"):
        return 0.45 * n
    if name.endswith("mlp.gate.weight"):  # a router
        return 0.25 * n
    if "embed_tokens" in name or "lm_head" in name:  # gemma3 multiplies by 8 on the way in
        return (0.09 if family == "gemma3" else 0.25) * n
    if "q_proj" in name or "k_proj" in name:
        return 0.18 * n
    return 0.14 * n


def config_of(case, changes=None):
    _, cls, args, _ = CASES[case]
    return getattr(transformers, cls)(**copy.deepcopy({**COMMON, **args, **(changes or {})}))


def build(case, seed):
    family, config = CASES[case][0], config_of(case)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        drawn = ("layer_scalar", "e_score_correction_bias", "expert_bias")
        buffers = [(name, p) for name, p in model.named_buffers() if name.endswith(drawn)]
        for name, p in list(model.named_parameters()) + buffers:  # tied ones come once
            gen = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()))
            p.copy_(random_weight(family, name, tuple(p.shape), gen))
    return model


def save(case, model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    if case == "qwen3-bf16":
        model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="200KB")
    else:
        model.save_pretrained(folder)
    if case in QUANTISED:
        quantise(case, folder)


def load(folder, config=None, dtype=torch.float32):
    more = {} if config is None else {"config": config}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **more)
    model.eval()
    if hasattr(model, "set_experts_implementation"):
        try:
            model.set_experts_implementation("eager")
        except Exception as why:  # a model without experts may refuse
            print(f"  {type(model).__name__}: experts stay as they are: {why}", flush=True)
    return model


@torch.no_grad()
def forward(model, tokens):
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def mutate(case, folder, what):
    family = CASES[case][0]
    if isinstance(what, dict):
        return load(folder, config_of(case, what))
    model = load(folder)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if not any(part in name for part in what[1]):
                continue
            if what[0] == "swap":
                first, second, rest = p.chunk(3)
                p.copy_(torch.cat([second, first, rest]))
                continue
            factor = name.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
            norm = "norm" in name and not name.endswith(".bias") and not centred(family, name)
            p.fill_(1.0 if factor or norm else 0.0)
    return model


def expert_margin(model, tokens):
    """Smallest gap between the last expert taken and the first one left out, of what experts are chosen by: the router's
    logits, or with a correction bias the sigmoid's."""
    gaps, handles, config = [], [], model.config
    k = next((getattr(config, key) for key in ("num_experts_per_tok", "top_k_experts", "moe_k")
              if getattr(config, key, None)), 0)
    count = next((getattr(config, key) for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
                  if getattr(config, key, None)), 0)
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if k and name.endswith(("gate", "gate.wg", "router", "router.proj")) and weight is not None and weight.ndim == 2 \
                and weight.shape[0] == count:
            def hook(mod, inputs, _, name=name):
                rows = inputs[0].reshape(-1, inputs[0].shape[-1])
                scores = rows @ mod.weight.T
                if getattr(mod, "bias", None) is not None:
                    scores = scores + mod.bias
                correction = [b for n, b in list(model.named_buffers()) + list(model.named_parameters())
                              if n.endswith(("e_score_correction_bias", "expert_bias"))
                              and n.startswith(name.rsplit(".", 1)[0] + ".")]
                if correction:
                    softmax = type(model).__name__.startswith("Ernie")
                    scores = (scores.softmax(-1) if softmax else scores.sigmoid()) + correction[0].reshape(-1)
                groups, kept = getattr(mod, "num_group", None) or 1, getattr(mod, "topk_group", None) or 1
                if correction and kept < groups:  # the best groups by their two best
                    parts = scores.reshape(len(scores), groups, -1)
                    best = torch.topk(parts.topk(2, dim=-1).values.sum(-1), kept + 1, dim=-1)
                    gaps.append((best.values[:, kept - 1] - best.values[:, kept]).min().item())
                    stays = torch.zeros(len(scores), groups, dtype=torch.bool).scatter_(1, best.indices[:, :kept], True)
                    scores = parts.masked_fill(~stays[..., None], -torch.inf).reshape(scores.shape)
                top = torch.topk(scores, k + 1, dim=-1).values
                gaps.append((top[:, k - 1] - top[:, k]).min().item())
            handles.append(module.register_forward_hook(hook))
    forward(model, tokens)
    for h in handles:
        h.remove()
    if k and count and not gaps:
        print(f"  {type(model).__name__}: no router found, its choices are not checked for ties", flush=True)
    return min(gaps) if gaps else None


@torch.no_grad()
def greedy(model, prompt):
    ids, margins = list(prompt), []
    for _ in range(GENERATED):
        best = torch.topk(forward(model, ids)[-1], 2)
        margins.append((best.values[0] - best.values[1]).item())
        ids.append(best.indices[0].item())
    return ids[len(prompt):], min(margins)


@torch.no_grad()
def greedy_cached(model, prompt):
    """The same with the library's cache: for qwen3_5 this runs the token by token recurrence."""
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    ids = [out.logits[0, -1].argmax().item()]
    while len(ids) < GENERATED:
        out = model(input_ids=torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values, use_cache=True)
        ids.append(out.logits[0, -1].argmax().item())
    return ids


FIRST = ("qwen3moe", "qwen3moe-nonorm", "qwen3moe-nvfp4")  # whose seeds were chosen with a wider margin


class Rejected(Exception):
    pass


def attempt(what):
    """What it gives, or in words why it gives nothing: a case is worth keeping where only a check cannot be run."""
    try:
        return what()
    except Exception as why:
        traceback.print_exc()
        return f"failed: {why!r}"


def need(ok, why):
    if not ok:
        raise Rejected(why)


def examine(case, seed, folder):
    """Builds, saves and loads one candidate; returns what is to be written, or raises Rejected."""
    save(case, build(case, seed), folder)
    model = load(folder)
    gen = torch.Generator().manual_seed(seed + 17)
    tokens = torch.randint(0, 250, (LENGTH,), generator=gen).tolist()
    logits = forward(model, tokens)
    need(torch.isfinite(logits).all().item(), "not finite")
    std = logits.std().item()
    need(0.3 < std < 8.0, f"std {std:.3f}")
    need(len(set(logits.argmax(-1).tolist())) > 20, "few distinct best tokens")

    margin = expert_margin(model, tokens)
    need(margin is None or margin > (5e-4 if case in FIRST else 1e-4), f"expert margin {margin}")
    new, greedy_margin = greedy(model, tokens[:PROMPT])
    need(greedy_margin > 0.005, f"greedy margin {greedy_margin:.4f}")
    need(END_OF_TEXT not in new and len(set(new)) >= 8, "greedy text ends or repeats")
    cached = None
    if case not in BLOCKS:
        need(greedy_cached(model, tokens[:PROMPT]) == new, "cached decoding differs")
    else:
        cached = attempt(lambda: greedy_cached(model, tokens[:PROMPT]) == new)

    report = {"std": std, "expert_margin": margin, "greedy_margin": greedy_margin, "distinct": len(set(new)),
              "cached decoding": cached, "far": {}}
    for where in (0, 20, 100):
        other = list(tokens)
        other[where] = (other[where] + 101) % 250
        delta = (forward(model, other) - logits).abs()
        need(where == 0 or delta[:where].max().item() < 1e-4, "not causal")
        report["far"][where] = delta[-1].max().item()
        need(delta[-1].max().item() > 0.003, f"last logits do not see token {where}")

    exact = attempt(lambda: forward(load(folder).double(), tokens)) if case in BLOCKS else \
        forward(load(folder).double(), tokens)
    if isinstance(exact, str):  # nothing is known of the noise: a generous guess
        report["float64"], exact = exact, logits.double() + 5e-5
    noise = (exact - logits.double()).abs().max().item()
    need(noise < 1e-4, f"float32 noise {noise:.2e}")

    report["mutants"], report["unseen"] = {}, []
    for label, what in CASES[case][3].items():
        other = attempt(lambda: forward(mutate(case, folder, what), tokens)) if case in BLOCKS else \
            forward(mutate(case, folder, what), tokens)
        if isinstance(other, str):
            report["unseen"].append(f"{label} ({other})")
            continue
        delta = (other - logits).abs().amax(-1)
        stored, seen = delta[POSITIONS].max().item(), (delta > 10 * noise).nonzero()
        report["mutants"][label] = {"max": stored, "first": seen[0].item() if len(seen) else None}
        if not stored > 20 * noise:
            report["unseen"].append(label)
    return tokens, logits, std, noise, new, greedy_margin, report


def write(case, seed, folder, result):
    tokens, logits, std, noise, new, greedy_margin, _ = result
    rows = logits[POSITIONS].contiguous()
    with open(os.path.join(folder, "logits.f32"), "wb") as f:
        f.write(struct.pack(f"<{rows.numel()}f", *rows.flatten().tolist()))
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump({"family": CASES[case][0], "seed": seed, "vocab": VOCAB, "tokens": tokens,
                   "positions": POSITIONS, "logits_std": round(std, 6),
                   "float64_max_abs_diff": float(f"{noise:.3e}")}, f)
        f.write("\n")
    with open(os.path.join(folder, "greedy.json"), "w") as f:
        json.dump({"prompt": tokens[:PROMPT], "tokens": new, "min_margin": round(greedy_margin, 6)}, f)
        f.write("\n")
    if case in QUANTISED:
        put_packed(case, folder)


def listing(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(folder, name), framework="pt") as f:
                for key in f.keys():
                    t = f.get_slice(key)
                    out[key] = [name, t.get_dtype(), list(t.get_shape())]
    return out


DRAFTED = [0, 1, 2, 5, 15, 31, 63, 64, 100, 127, 158]

# Cases with a layer that drafts beside them (add_drafts): the library's layer and norm; what stands in front of the names
# of the layer's parts and of the others; those names; whether embedding and head are its own.
NEXTN = {"join": "eh_proj", "embedding norm": "enorm", "hidden norm": "hnorm", "norm": "shared_head.norm",
         "embedding": "embed_tokens", "head": "shared_head.head"}
DRAFTERS = {
    "qwen3_5": ("Qwen3_5DecoderLayer", "Qwen3_5RMSNorm", "mtp.layers.0.", "mtp.", {
        "join": "fc", "embedding norm": "pre_fc_norm_embedding", "hidden norm": "pre_fc_norm_hidden", "norm": "norm"}, False),
    "glm4_moe": ("Glm4MoeDecoderLayer", "Glm4MoeRMSNorm", "model.layers.3.", "model.layers.3.", NEXTN, True),
    "deepseek_v3": ("DeepseekV3DecoderLayer", "DeepseekV3RMSNorm", "model.layers.3.", "model.layers.3.", NEXTN, False),
}


@torch.no_grad()
def drafter(case, model, seed):
    """A family's layer that drafts, put together from the library's parts: what joins token and row, norms of both, the
    layer, the norm behind it, and embedding and head of its own or the model's."""
    layer, norm, _, _, _, own = DRAFTERS[case]
    config, module = model.config, importlib.import_module(f"transformers.models.{case}.modeling_{case}")
    width, eps, norm = config.hidden_size, config.rms_norm_eps, getattr(module, norm)
    index = config.layer_types.index(F) if case == "qwen3_5" else config.num_hidden_layers - 1  # one of the kind
    parts = torch.nn.ModuleDict({
        "join": torch.nn.Linear(2 * width, width, bias=False), "embedding norm": norm(width, eps=eps),
        "hidden norm": norm(width, eps=eps), "layer": getattr(module, layer)(config, index), "norm": norm(width, eps=eps)})
    if own:
        parts["embedding"] = torch.nn.Embedding(config.vocab_size, width)
        parts["head"] = torch.nn.Linear(width, config.vocab_size, bias=False)
    parts = parts.float().eval()
    for name, p in named(case, parts).items():
        gen = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()))
        role = name.replace("shared_head.head", "lm_head")
        p.copy_(random_weight(CASES[case][0], role, tuple(p.shape), gen))
    return parts


def named(case, parts):
    """Parameters and drawn buffers by the names that folders give them; experts stay as the library has them."""
    _, _, layer, others, names, _ = DRAFTERS[case]
    found = {}
    for name, p in [*parts.named_parameters(), *parts.named_buffers()]:
        part, rest = name.split(".", 1)
        found[(layer if part == "layer" else others + names[part] + ".") + rest] = p
    return found


def as_published(tensors):
    """One tensor for each expert's matrix."""
    out = {}
    for name, w in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for e, rows in enumerate(w):
                for part, half in zip(("gate_proj", "up_proj"), rows.chunk(2)):
                    out[name.replace("gate_up_proj", f"{e}.{part}.weight")] = half.clone()
        elif name.endswith("experts.down_proj"):
            for e, rows in enumerate(w):
                out[name.replace("down_proj", f"{e}.down_proj.weight")] = rows.clone()
        else:
            out[name] = w.clone()
    return out


@torch.no_grad()
def drafts(model, parts, tokens, hidden, wrong=None):
    """Logits of the first and second draft behind each position of DRAFTED, and the token drafted first. A row pairs a token
    with the normed row in front of it: the model's, then the layer's own (SGLang's deepseek_nextn.py, glm4_moe_nextn.py;
    vLLM's qwen3_5_mtp.py). wrong: what a wrong engine would do."""
    embedding = parts["embedding"] if "embedding" in parts and wrong != "the model's embedding" else model.model.embed_tokens
    head = parts["head"] if "head" in parts and wrong != "the model's head" else model.lm_head

    def joined(ids, rows, first):
        embedded = embedding(torch.tensor(ids))
        if wrong == "first embedding left out" and first:
            embedded[0] = 0
        both = [parts["embedding norm"](embedded), parts["hidden norm"](rows)]
        return parts["join"](torch.cat(both[::-1] if wrong == "hidden first" else both, -1))

    def behind(rows):  # row p pairs token p + 1 with the trunk's row p and stands at p + 1
        count = len(rows)
        places = torch.arange(1, count + 1).view(1, -1)
        axes = places.expand(3, 1, -1) if "mrope_section" in (getattr(model.config, "rope_parameters", None) or {}) else places
        mask = torch.full((count, count), torch.finfo(rows.dtype).min, dtype=rows.dtype).triu(1)[None, None]
        turned = model.model.rotary_emb(rows[None], axes)
        out = parts["layer"](rows[None], position_embeddings=turned, attention_mask=mask, position_ids=places)
        return (out[0] if isinstance(out, tuple) else out)[0]

    rows = joined(tokens[1:], hidden[:-1], True)
    raw = behind(rows)
    seen = parts["norm"](raw)
    first, tokens_drafted, second = head(seen[DRAFTED]), [], []
    kept = raw if wrong == "second before the norm" else seen
    for i, p in enumerate(DRAFTED):
        tokens_drafted.append(first[i].argmax().item())
        own = joined(tokens_drafted[-1:], kept[p:p + 1], False)
        second.append(head(parts["norm"](behind(torch.cat([rows[:p + 1], own]))[-1])))
    return first, torch.stack(second), tokens_drafted


@torch.no_grad()
def draft_margin(model, parts, run):
    """Smallest gap of an expert choice on the way (expert_margin, of the layer's router alone)."""
    router = getattr(parts["layer"].mlp, "gate", None)
    if router is None or not hasattr(router, "e_score_correction_bias"):
        return None
    gaps, k, kept = [], model.config.num_experts_per_tok, model.config.topk_group

    def hook(mod, inputs, _):
        rows = inputs[0].reshape(-1, inputs[0].shape[-1])
        scores = (rows @ mod.weight.T).sigmoid() + mod.e_score_correction_bias
        parts_of = scores.reshape(len(scores), model.config.n_group, -1)
        if kept < model.config.n_group:
            best = torch.topk(parts_of.topk(2, dim=-1).values.sum(-1), kept + 1, dim=-1)
            gaps.append((best.values[:, kept - 1] - best.values[:, kept]).min().item())
            stays = torch.zeros(parts_of.shape[:2], dtype=torch.bool).scatter_(1, best.indices[:, :kept], True)
            scores = parts_of.masked_fill(~stays[..., None], -torch.inf).reshape(scores.shape)
        top = torch.topk(scores, k + 1, dim=-1).values
        gaps.append((top[:, k - 1] - top[:, k]).min().item())
    handle = router.register_forward_hook(hook)
    run()
    handle.remove()
    return min(gaps)


@torch.no_grad()
def add_drafts(case, folder, out, seed, tokens):
    """Writes drafts.safetensors, drafts.json and drafts.f32; says how far drafts of wrong engines lie."""
    model, caught = load(folder), []
    handle = model.model.norm.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0][0]))
    hidden = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    handle.remove()
    for again in range(200):
        parts = drafter(case, model, seed + 1000 * again)
        first, second, drafted = drafts(model, parts, tokens, hidden)
        best = torch.topk(first, 2).values
        margin = draft_margin(model, parts, lambda: drafts(model, parts, tokens, hidden))
        if (best[:, 0] - best[:, 1]).min().item() > 0.01 and len(set(drafted)) > 4 and (margin is None or margin > 1e-4):
            break
    else:
        raise RuntimeError("no drafts that are far from a tie")
    exact = load(folder).double()
    hidden64 = exact.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    theirs = drafts(exact, copy.deepcopy(parts).double(), tokens, hidden64)
    noise = max((theirs[0] - first).abs().max().item(), (theirs[1] - second).abs().max().item())
    if drafted != theirs[2] or not noise < 2e-4:
        raise RuntimeError(f"float32 noise of drafts {noise:.2e}")
    save_file({n: w.contiguous() for n, w in as_published(named(case, parts)).items()},
              os.path.join(out, "drafts.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "drafts.f32"), "wb") as f:
        both = torch.cat([first, second])
        f.write(struct.pack(f"<{both.numel()}f", *both.flatten().tolist()))
    with open(os.path.join(out, "drafts.json"), "w") as f:
        json.dump({"positions": DRAFTED, "drafted": drafted, "float64_max_abs_diff": float(f"{noise:.3e}")}, f)
        f.write("\n")
    labels = ["hidden first", "second before the norm", "first embedding left out"]
    labels += ["the model's embedding", "the model's head"] if DRAFTERS[case][-1] else []
    wrong = {label: drafts(model, parts, tokens, hidden, label) for label in labels}
    wrong["before the norm"] = drafts(model, parts, tokens, caught[0])
    return {"drafts: " + label: {"max": (other[0] - first).abs().max().item(), "second": (other[1] - second).abs().max().item()}
            for label, other in wrong.items()}


def make(case, outdir):
    folder = os.path.join(outdir, case)
    first = zlib.crc32(case.encode()) % 1000
    for seed in range(first, first + 30):
        try:
            result = examine(case, seed, folder)
        except Rejected as why:
            print(f"  {case} seed {seed}: {why}", flush=True)
            continue
        write(case, seed, folder, result)
        if case in DRAFTERS:
            result[6]["mutants"].update(add_drafts(case, folder, folder, seed, result[0]))
        return {"seed": seed, "noise": result[3], **result[6], "tensors": listing(folder)}
    raise RuntimeError(f"{case}: no seed was good enough")


# Models whose last hidden rows are what one wants: config class, model class, arguments. Both sides are seen but in the first.
BERT = dict(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, intermediate_size=96, num_hidden_layers=3,
            max_position_embeddings=130, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0)
EMBEDDERS = {
    "embed-qwen3": ("Qwen3Config", "Qwen3Model", dict(COMMON, tie_word_embeddings=True, **QWEN3)),
    "embed-gemma3": ("Gemma3TextConfig", "Gemma3TextModel", dict(
        COMMON, num_hidden_layers=4, head_dim=32, query_pre_attn_scalar=20, sliding_window=48, layer_types=GEMMA_LAYERS,
        tie_word_embeddings=True, pad_token_id=0, rope_parameters=GEMMA_ROPE, use_bidirectional_attention=True)),
    "embed-bert": ("BertConfig", "BertModel", dict(BERT, hidden_act="gelu", type_vocab_size=2)),
    "embed-xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", dict(BERT, hidden_act="gelu", type_vocab_size=1,
                                                                      pad_token_id=1, bos_token_id=0, eos_token_id=2)),
}


def make_embedder(case, outdir):
    """texts.json: token ids of each text; hidden.f32: [rows of all texts][hidden_size], what the model ends with."""
    config_class, model_class, args = EMBEDDERS[case]
    folder, seed = os.path.join(outdir, case), zlib.crc32(case.encode()) % 1000
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**copy.deepcopy(args)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            gen = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()))
            n = torch.randn(tuple(p.shape), generator=gen)
            factor = 1.0 if "LayerNorm.weight" in name else 0.0
            family = "gemma3" if "gemma3" in case else "bert"
            p.copy_(factor + 0.25 * n if "LayerNorm" in name else random_weight(family, name, tuple(p.shape), gen)
                    if "bert" not in case and "roberta" not in case else (0.5 if name.endswith("bias") else 0.2) * n)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    model = getattr(transformers, model_class).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    gen, texts, rows, far = torch.Generator().manual_seed(seed + 17), [], [], None
    for length in (1, 7, 40, 100):
        tokens = torch.randint(3, 250, (length,), generator=gen).tolist()
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, length, dtype=torch.long)
                           ).last_hidden_state[0]
            other = list(tokens)
            other[-1] = (other[-1] + 101) % 247 + 3
            moved = model(input_ids=torch.tensor([other]), attention_mask=torch.ones(1, length, dtype=torch.long)
                          ).last_hidden_state[0]
        far = (moved - hidden)[0].abs().max().item()  # does the first row see the last one?
        texts.append(tokens)
        rows += hidden.flatten().tolist()
    with open(os.path.join(folder, "hidden.f32"), "wb") as f:
        f.write(struct.pack(f"<{len(rows)}f", *rows))
    with open(os.path.join(folder, "texts.json"), "w") as f:
        json.dump({"texts": texts, "width": args["hidden_size"]}, f)
        f.write("\n")
    return {"seed": seed, "first sees last": far, "unseen": [], "tensors": listing(folder)}


def make_one(case, outdir):
    """What to print, what to keep of the case (None: it failed), and what was wrong with it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    transformers.utils.logging.disable_progress_bar()
    begin = time.time()
    try:
        made = make_embedder(case, outdir) if case in EMBEDDERS else make(case, outdir)
    except Exception:
        return f"{case}: {traceback.format_exc()}", None, case
    folder = os.path.join(outdir, case)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    brief = {k: v for k, v in made.items() if k != "tensors"}
    wrong = f"{case} (mutants not seen: {', '.join(made['unseen'])})" if made["unseen"] else None
    return f"{case}: {size} bytes, {time.time() - begin:.1f} s, {json.dumps(brief)}", made, wrong


def table(summary, cases):
    """A line for each case: its name and how far its mutants' logits get, as README.md has them."""
    for case in cases or summary:
        print(f"| `{case}` | " + ", ".join(f"{label} {seen['max']:.2g}" for label, seen in summary[case].get(
            "mutants", {}).items()) + " |")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--jobs", type=int, default=1, help="cases at once, each in a process of its own")
    arguments.add_argument("--table", action="store_true", help="only print README.md's third column of OUTDIR/summary.json")
    arguments.add_argument("outdir")
    arguments.add_argument("cases", nargs="*", help="all by default")
    given = arguments.parse_args()
    if given.table:
        with open(os.path.join(given.outdir, "summary.json")) as f:
            table(json.load(f), given.cases)
        return
    os.makedirs(given.outdir, exist_ok=True)
    print("torch", torch.__version__, "transformers", transformers.__version__, flush=True)
    summary, failed = {}, []
    with concurrent.futures.ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(make_one, case, given.outdir): case for case in given.cases or [*CASES, *EMBEDDERS]}
        for done in concurrent.futures.as_completed(running):
            text, made, wrong = done.result()
            print(text, flush=True)
            if made:
                summary[running[done]] = made
            if wrong:
                failed.append(wrong)
    # beside the folders, for the eye only
    with open(os.path.join(given.outdir, "summary.json"), "w") as f:
        json.dump(summary, f, indent=1)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
