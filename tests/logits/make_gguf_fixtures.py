#!/usr/bin/env python3
"""Makes logits oracles of families by llama.cpp: make_gguf_fixtures.py [--work FOLDER] LLAMA_LOGITS OUTDIR [CASE ...]

Needs numpy, and the program that llama_logits.cpp beside this file becomes with llama.cpp's library. README.md says what the
files hold. A case is a tiny model with random weights in the Hugging Face layout. The script turns it into a GGUF file as
llama.cpp's converter would (conversion/ there), and llama.cpp computes logits. The same is computed a second time from the
folder's weights, by a few lines of numpy in float64 that follow the modelling code of transformers. The two must agree, which
checks both; then mutants of the second show what a wrong model builder would get.
"""
import argparse
import copy
import json
import os
import struct
import subprocess
import sys
import zlib

import numpy

VOCAB, END_OF_TEXT, LENGTH, PROMPT, GENERATED = 256, 255, 160, 20, 32
POSITIONS = [0, 1, 2, 3, 5, 8, 15, 16, 31, 32, 47, 48, 49, 63, 64, 65, 80, 95, 96, 111, 127, 128, 129, 143, 159]
COMMON = dict(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
              num_hidden_layers=3, max_position_embeddings=512, bos_token_id=254, eos_token_id=END_OF_TEXT,
              rms_norm_eps=1e-5, hidden_act="silu", attention_bias=False, tie_word_embeddings=False, dtype="float32")


# ---- files ----

def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + 4 * value.size]}
        offset += 4 * value.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            f.write(value.astype("<f4").tobytes())


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_value(value):
    """Type and bytes: bool, uint32, float32, string, or an array of one of the middle two."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_string(value)
    kinds = [gguf_value(item) for item in value]
    return 9, struct.pack("<IQ", kinds[0][0], len(kinds)) + b"".join(data for _, data in kinds)


def write_gguf(path, metadata, tensors):
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, data = gguf_value(value)
        out += [gguf_string(key), struct.pack("<I", kind), data]
    offset = 0
    for name, value in tensors.items():
        out += [gguf_string(name), struct.pack("<I", value.ndim), struct.pack(f"<{value.ndim}Q", *value.shape[::-1]),
                struct.pack("<IQ", 0, offset)]
        offset += (4 * value.size + 31) // 32 * 32
    head = b"".join(out)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for value in tensors.values():
            f.write(value.astype("<f4").tobytes() + b"\0" * (-4 * value.size % 32))


def llama_logits(program, path, tokens):
    text = (" ".join(map(str, tokens)) + "\n").encode()
    done = subprocess.run([program, path, str(max(512, len(tokens)))], input=text, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{program}: {done.stderr.decode(errors='replace')[-2000:]}")
    return numpy.frombuffer(done.stdout, "<f4").reshape(len(tokens), VOCAB).astype(numpy.float64)


# ---- what transformers computes ----

def silu(x):
    return x / (1 + numpy.exp(-x))


def softplus(x):
    return numpy.logaddexp(x, 0)


def softmax(x):
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def plain_frequencies(rope, size):
    return rope["rope_theta"] ** (-numpy.arange(0, size, 2) / size)


def yarn_frequencies(rope, size):
    def pair(turns):
        return size * numpy.log(rope["original_max_position_embeddings"] / (turns * 2 * numpy.pi)) / (2 * numpy.log(rope["rope_theta"]))
    low, high = max(numpy.floor(pair(rope["beta_fast"])), 0), min(numpy.ceil(pair(rope["beta_slow"])), size - 1)
    ramp = numpy.clip((numpy.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain_frequencies(rope, size) * (ramp / rope["factor"] + 1 - ramp)


def llama3_frequencies(rope, size):
    frequencies, original = plain_frequencies(rope, size), rope["original_max_position_embeddings"]
    length = 2 * numpy.pi / frequencies
    smooth = (original / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    smooth = numpy.clip(smooth, 0, 1)
    return (1 - smooth) * frequencies / rope["factor"] + smooth * frequencies


FREQUENCIES = {"default": plain_frequencies, "yarn": yarn_frequencies, "llama3": llama3_frequencies}


def rotate(x, rope, pairs, magnitude=1.0):
    """x [tokens][heads][size]; by neighbours (pairs) or by halves."""
    size = x.shape[-1]
    angle = numpy.arange(len(x))[:, None, None] * FREQUENCIES[rope["rope_type"]](rope, size)
    cos, sin = numpy.cos(angle) * magnitude, numpy.sin(angle) * magnitude
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :size // 2], x[..., size // 2:])
    out = numpy.empty_like(x)
    first, second = (numpy.s_[..., 0::2], numpy.s_[..., 1::2]) if pairs else (numpy.s_[..., :size // 2], numpy.s_[..., size // 2:])
    out[first], out[second] = a * cos - b * sin, b * cos + a * sin
    return out


def attend(q, k, v, scale, chunk=0, window=0):
    """q [tokens][heads][size], k and v [tokens][kv heads][...]. A row sees those in front of it, of its chunk if there are any."""
    count, groups = len(q), q.shape[1] // k.shape[1]
    k, v = numpy.repeat(k, groups, 1), numpy.repeat(v, groups, 1)
    rows, columns = numpy.arange(count)[:, None], numpy.arange(count)
    seen = columns <= rows
    if chunk:
        seen &= columns >= rows // chunk * chunk
    if window:
        seen &= columns > rows - window
    scores = numpy.where(seen, numpy.einsum("thd,shd->hts", q, k) * scale, -numpy.inf)
    return numpy.einsum("hts,shd->thd", softmax(scores), v).reshape(count, -1)


class Weights:
    """Those of one layer, by the end of their names."""

    def __init__(self, tensors, layer):
        self.tensors, self.prefix = tensors, f"model.layers.{layer}."

    def __getitem__(self, name):
        return self.tensors[self.prefix + name]

    def linear(self, x, name):
        return x @ self[name + ".weight"].T


def mlp(w, x, name):
    return w.linear(silu(w.linear(x, name + ".gate_proj")) * w.linear(x, name + ".up_proj"), name + ".down_proj")


def whole(config, tensors, tokens, layer, embed=1.0, head=1.0):
    x = tensors["model.embed_tokens.weight"][tokens] * embed
    for i in range(config["num_hidden_layers"]):
        x = layer(config, Weights(tensors, i), x, i)
    final = "model.norm.weight" if "model.norm.weight" in tensors else "model.final_layernorm.weight"
    return rms(x, tensors[final], config["rms_norm_eps"]) @ tensors["lm_head.weight"].T * head


def heads(x, count):
    return x.reshape(len(x), count, -1)


# ---- the common part of GGUF files ----

def metadata(name, config, rope_size):
    return {"general.architecture": name, f"{name}.vocab_size": config["vocab_size"], "tokenizer.ggml.model": "none",
            f"{name}.context_length": config["max_position_embeddings"], f"{name}.embedding_length": config["hidden_size"],
            f"{name}.block_count": config["num_hidden_layers"], f"{name}.attention.head_count": config["num_attention_heads"],
            f"{name}.attention.head_count_kv": config["num_key_value_heads"],
            f"{name}.feed_forward_length": config["intermediate_size"],
            f"{name}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            f"{name}.rope.freq_base": config["rope_parameters"]["rope_theta"], f"{name}.rope.dimension_count": rope_size}


def renamed(tensors, names):
    """GGUF's names for those of the folder, %d being the layer."""
    out = {}
    for name, value in tensors.items():
        parts = name.split(".")
        layer = parts[2] if name.startswith("model.layers.") else ""
        generic = ".".join(["model.layers.%d"] + parts[3:]) if layer else name
        if generic in names:
            out[names[generic].replace("%d", layer)] = value
    return out


ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight"}
L, B = "model.layers.%d.", "blk.%d."
ATTENTION = {L + f"self_attn.{hf}_proj.weight": B + f"attn_{gguf}.weight"
             for hf, gguf in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))}
NORMS = {L + "input_layernorm.weight": B + "attn_norm.weight", L + "post_attention_layernorm.weight": B + "ffn_norm.weight"}
MLP = {L + f"mlp.{name}_proj.weight": B + f"ffn_{name}.weight" for name in ("gate", "up", "down")}


def rope_factors(rope, size):
    return (plain_frequencies(rope, size) / FREQUENCIES[rope["rope_type"]](rope, size)).astype(numpy.float32)


FINAL_NORMS = {"falcon_h1": "model.final_layernorm.weight"}


def shapes(model_type, config, layer_shapes):
    """Of all tensors, in the order of a checkpoint."""
    width = config["hidden_size"]
    out = {"model.embed_tokens.weight": (VOCAB, width)}
    for layer in range(config["num_hidden_layers"]):
        out.update({f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(config, layer).items()})
    return {**out, FINAL_NORMS.get(model_type, "model.norm.weight"): (width,), "lm_head.weight": (VOCAB, width)}


def plain_attention(config):
    width, size = config["hidden_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"] * size, "k": config["num_key_value_heads"] * size,
            "v": config["num_key_value_heads"] * size}
    return {**{f"self_attn.{name}_proj.weight": (count, width) for name, count in rows.items()},
            "self_attn.o_proj.weight": (width, rows["q"])}


def gated(name, width, middle):
    return {f"{name}.gate_proj.weight": (middle, width), f"{name}.up_proj.weight": (middle, width),
            f"{name}.down_proj.weight": (width, middle)}


# ---- Mistral Small 4 ----

def mistral4_shapes(c, layer):
    width, count, q, kv = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    key, turned, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    out = {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,),
           "self_attn.q_a_proj.weight": (q, width), "self_attn.q_a_layernorm.weight": (q,),
           "self_attn.q_b_proj.weight": (count * (key + turned), q),
           "self_attn.kv_a_proj_with_mqa.weight": (kv + turned, width), "self_attn.kv_a_layernorm.weight": (kv,),
           "self_attn.kv_b_proj.weight": (count * (key + value), kv), "self_attn.o_proj.weight": (width, count * value)}
    if layer < c["first_k_dense_replace"]:
        return {**out, **gated("mlp", width, c["intermediate_size"])}
    experts, middle = c["n_routed_experts"], c["moe_intermediate_size"]
    return {**out, "mlp.gate.weight": (experts, width), "mlp.experts.gate_up_proj": (experts, 2 * middle, width),
            "mlp.experts.down_proj": (experts, width, middle),
            **gated("mlp.shared_experts", width, middle * c["n_shared_experts"])}


def mistral4_attention(c, w, x):
    count, kv = c["num_attention_heads"], c["kv_lora_rank"]
    key, turned, rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["rope_parameters"]
    pairs = c["rope_interleave"]
    q = heads(w.linear(rms(w.linear(x, "self_attn.q_a_proj"), w["self_attn.q_a_layernorm.weight"], 1e-6), "self_attn.q_b_proj"), count)
    latent = w.linear(x, "self_attn.kv_a_proj_with_mqa")
    both = heads(w.linear(rms(latent[:, :kv], w["self_attn.kv_a_layernorm.weight"], 1e-6), "self_attn.kv_b_proj"), count)
    k_turned = rotate(heads(latent[:, kv:], 1), rope, pairs)
    q = numpy.concatenate([q[..., :key], rotate(q[..., key:], rope, pairs)], -1)
    k = numpy.concatenate([both[..., :key], numpy.repeat(k_turned, count, 1)], -1)
    position = numpy.arange(len(x)) // rope["original_max_position_embeddings"]
    q = q * (1 + rope["llama_4_scaling_beta"] * numpy.log(1 + position))[:, None, None]
    m = 0.1 * rope["mscale_all_dim"] * numpy.log(rope["factor"]) + 1
    return w.linear(attend(q, k, both[..., key:], (key + turned) ** -0.5 * m * m), "self_attn.o_proj")


def mistral4_experts(c, w, x):
    scores = softmax(w.linear(x, "mlp.gate"))
    out = mlp(w, x, "mlp.shared_experts")
    for row in range(len(x)):
        chosen = numpy.argsort(-scores[row])[:c["num_experts_per_tok"]]
        shares = scores[row, chosen] / (scores[row, chosen].sum() + 1e-20 if c["norm_topk_prob"] else 1)
        for e, share in zip(chosen, shares * c["routed_scaling_factor"]):
            gate, up = numpy.split(w["mlp.experts.gate_up_proj"][e] @ x[row], 2)
            out[row] += share * (w["mlp.experts.down_proj"][e] @ (silu(gate) * up))
    return out


def mistral4_layer(c, w, x, layer):
    x = x + mistral4_attention(c, w, rms(x, w["input_layernorm.weight"], c["rms_norm_eps"]))
    y = rms(x, w["post_attention_layernorm.weight"], c["rms_norm_eps"])
    return x + (mlp(w, y, "mlp") if layer < c["first_k_dense_replace"] else mistral4_experts(c, w, y))


def mistral4_gguf(c, tensors):
    name, rope, count = "mistral4", c["rope_parameters"], c["num_attention_heads"]
    key, turned, value, kv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    # The converter writes neither key of the temperature; without them llama.cpp would not compute it.
    more = {"attention.head_count_kv": 1, "attention.q_lora_rank": c["q_lora_rank"], "attention.kv_lora_rank": kv,
            "attention.key_length": kv + turned, "attention.value_length": kv, "attention.key_length_mla": key + turned,
            "attention.value_length_mla": value, "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"],
            "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": c["n_shared_experts"],
            "expert_weights_scale": c["routed_scaling_factor"], "expert_weights_norm": True, "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"], "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "attention.temperature_scale": rope["llama_4_scaling_beta"],
            "attention.temperature_length": rope["original_max_position_embeddings"]}
    names = {**ENDS, **NORMS, **MLP, L + "self_attn.o_proj.weight": B + "attn_output.weight"}
    for hf, gguf in (("q_a_proj", "q_a"), ("q_a_layernorm", "q_a_norm"), ("q_b_proj", "q_b"), ("kv_a_proj_with_mqa", "kv_a_mqa"),
                     ("kv_a_layernorm", "kv_a_norm")):
        names[L + f"self_attn.{hf}.weight"] = B + f"attn_{gguf}.weight"
    names.update({L + "mlp.gate.weight": B + "ffn_gate_inp.weight", L + "mlp.experts.gate_up_proj": B + "ffn_gate_up_exps.weight",
                  L + "mlp.experts.down_proj": B + "ffn_down_exps.weight"})
    names.update({L + f"mlp.shared_experts.{part}_proj.weight": B + f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")})
    out = renamed(tensors, names)
    for layer in range(c["num_hidden_layers"]):
        both = tensors[f"model.layers.{layer}.self_attn.kv_b_proj.weight"].reshape(count, key + value, kv)
        out[f"blk.{layer}.attn_k_b.weight"] = both[:, :key].transpose(0, 2, 1)
        out[f"blk.{layer}.attn_v_b.weight"] = both[:, key:]
    return {**metadata(name, c, turned), **{f"{name}.{key}": value for key, value in more.items()}}, out


MISTRAL4_ROPE = {"rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
                 "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
MISTRAL4 = dict(
    COMMON, num_hidden_layers=2, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
    n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=0,
    moe_intermediate_size=16, routed_scaling_factor=1.5, norm_topk_prob=True, rope_interleave=True, rms_norm_eps=1e-6,
    rope_parameters=MISTRAL4_ROPE)


# ---- Apertus ----

def apertus_shapes(c, layer):
    width, middle = c["hidden_size"], c["intermediate_size"]
    return {"attention_layernorm.weight": (width,), "feedforward_layernorm.weight": (width,), **plain_attention(c),
            "self_attn.q_norm.weight": (c["head_dim"],), "self_attn.k_norm.weight": (c["head_dim"],),
            "mlp.up_proj.weight": (middle, width), "mlp.down_proj.weight": (width, middle),
            "mlp.act_fn.alpha_p": (1,), "mlp.act_fn.alpha_n": (1,), "mlp.act_fn.beta": (), "mlp.act_fn.eps": ()}


def xielu(w, x):
    beta, eps = w["mlp.act_fn.beta"], w["mlp.act_fn.eps"]
    above, below = softplus(w["mlp.act_fn.alpha_p"]), beta + softplus(w["mlp.act_fn.alpha_n"])
    return numpy.where(x > 0, above * x * x + beta * x, (numpy.expm1(numpy.minimum(x, eps)) - x) * below + beta * x)


def apertus_layer(c, w, x, layer):
    eps, size = c["rms_norm_eps"], c["head_dim"]
    y = rms(x, w["attention_layernorm.weight"], eps)
    q = rms(heads(w.linear(y, "self_attn.q_proj"), c["num_attention_heads"]), w["self_attn.q_norm.weight"], eps)
    k = rms(heads(w.linear(y, "self_attn.k_proj"), c["num_key_value_heads"]), w["self_attn.k_norm.weight"], eps)
    v = heads(w.linear(y, "self_attn.v_proj"), c["num_key_value_heads"])
    q, k = rotate(q, c["rope_parameters"], False), rotate(k, c["rope_parameters"], False)
    x = x + w.linear(attend(q, k, v, size ** -0.5), "self_attn.o_proj")
    y = rms(x, w["feedforward_layernorm.weight"], eps)
    function = silu if c["hidden_act"] == "silu" else lambda value: xielu(w, value)
    return x + w.linear(function(w.linear(y, "mlp.up_proj")), "mlp.down_proj")


def apertus_gguf(c, tensors):
    numbers = {"alpha_p": "alpha_p", "alpha_n": "alpha_n", "beta": "beta", "eps": "eps"}
    more = {f"xielu.{key}": [float(tensors[f"model.layers.{layer}.mlp.act_fn.{name}"].reshape(-1)[0])
                             for layer in range(c["num_hidden_layers"])] for key, name in numbers.items()}
    names = {**ENDS, **ATTENTION, **MLP, L + "attention_layernorm.weight": B + "attn_norm.weight",
             L + "feedforward_layernorm.weight": B + "ffn_norm.weight",
             L + "self_attn.q_norm.weight": B + "attn_q_norm.weight", L + "self_attn.k_norm.weight": B + "attn_k_norm.weight"}
    return {**metadata("apertus", c, c["head_dim"]), **more}, {
        **renamed(tensors, names), "rope_freqs.weight": rope_factors(c["rope_parameters"], c["head_dim"])}


LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
APERTUS = dict(COMMON, head_dim=16, hidden_act="xielu", rms_norm_eps=1e-4, rope_parameters=LLAMA3)


# ---- Falcon-H1 ----

def falcon_h1_shapes(c, layer):
    width, count, groups, state = c["hidden_size"], c["mamba_n_heads"], c["mamba_n_groups"], c["mamba_d_state"]
    inner = c["mamba_d_ssm"]
    channels = inner + 2 * groups * state
    norm = {"mamba.norm.weight": (inner,)} if c["mamba_rms_norm"] else {}
    return {"input_layernorm.weight": (width,), "pre_ff_layernorm.weight": (width,), **plain_attention(c),
            **gated("feed_forward", width, c["intermediate_size"]), "mamba.in_proj.weight": (inner + channels + count, width),
            "mamba.conv1d.weight": (channels, 1, c["mamba_d_conv"]), "mamba.conv1d.bias": (channels,), "mamba.dt_bias": (count,),
            "mamba.A_log": (count,), "mamba.D": (count,), "mamba.out_proj.weight": (width, inner), **norm}


def mamba2(c, w, x):
    count, size, groups, state = c["mamba_n_heads"], c["mamba_d_head"], c["mamba_n_groups"], c["mamba_d_state"]
    inner, taps, factors = count * size, c["mamba_d_conv"], c["ssm_multipliers"]
    projected = w.linear(x * c["ssm_in_multiplier"], "mamba.in_proj")
    parts = numpy.split(projected, numpy.cumsum([inner, inner, groups * state, groups * state]), -1)
    z, x, b, k, dt = [part * factor for part, factor in zip(parts, factors)]
    padded = numpy.concatenate([numpy.zeros((taps - 1, inner + 2 * groups * state)), numpy.concatenate([x, b, k], -1)])
    kernel = w["mamba.conv1d.weight"][:, 0]
    mixed = silu(sum(padded[t:t + len(x)] * kernel[:, t] for t in range(taps)) + w["mamba.conv1d.bias"])
    x, b, k = numpy.split(mixed, [inner, inner + groups * state], -1)
    x, dt = heads(x, count), softplus(dt + w["mamba.dt_bias"])
    b, k = (numpy.repeat(heads(part, groups), count // groups, 1) for part in (b, k))
    decay, memory, out = numpy.exp(-numpy.exp(w["mamba.A_log"]) * dt), numpy.zeros((count, size, state)), []
    for row in range(len(x)):
        memory = memory * decay[row][:, None, None] + (dt[row][:, None] * x[row])[..., None] * b[row][:, None]
        out.append(numpy.einsum("hds,hs->hd", memory, k[row]) + w["mamba.D"][:, None] * x[row])
    y = numpy.stack(out).reshape(len(x), inner)
    if not c["mamba_rms_norm"]:
        return w.linear(y * silu(z), "mamba.out_proj")

    def norm(value):
        return rms(heads(value, groups), w["mamba.norm.weight"].reshape(groups, -1), c["rms_norm_eps"]).reshape(len(x), inner)
    return w.linear(norm(y) * silu(z) if c["mamba_norm_before_gate"] else norm(y * silu(z)), "mamba.out_proj")


def falcon_h1_layer(c, w, x, layer):
    y = rms(x, w["input_layernorm.weight"], c["rms_norm_eps"])
    read, rope = y * c["attention_in_multiplier"], c["rope_parameters"]
    q = rotate(heads(w.linear(read, "self_attn.q_proj"), c["num_attention_heads"]), rope, False)
    k = rotate(heads(w.linear(read, "self_attn.k_proj") * c["key_multiplier"], c["num_key_value_heads"]), rope, False)
    v = heads(w.linear(read, "self_attn.v_proj"), c["num_key_value_heads"])
    attended = w.linear(attend(q, k, v, c["head_dim"] ** -0.5), "self_attn.o_proj") * c["attention_out_multiplier"]
    x = x + attended + mamba2(c, w, y) * c["ssm_out_multiplier"]
    y, (gate, down) = rms(x, w["pre_ff_layernorm.weight"], c["rms_norm_eps"]), c["mlp_multipliers"]
    up = w.linear(y, "feed_forward.up_proj") * silu(w.linear(y, "feed_forward.gate_proj") * gate)
    return x + w.linear(up, "feed_forward.down_proj") * down


def falcon_h1(c, tensors, tokens):
    return whole(c, tensors, tokens, falcon_h1_layer, c["embedding_multiplier"], c["lm_head_multiplier"])


def falcon_h1_gguf(c, tensors):
    inner, group = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    inside = numpy.repeat(c["ssm_multipliers"], [inner, inner, group, group, c["mamba_n_heads"]])[:, None] * c["ssm_in_multiplier"]
    factors = {"down_proj": c["mlp_multipliers"][1], "gate_proj": c["mlp_multipliers"][0], "q_proj": c["attention_in_multiplier"],
               "k_proj": c["key_multiplier"] * c["attention_in_multiplier"], "v_proj": c["attention_in_multiplier"],
               "o_proj": c["attention_out_multiplier"], "out_proj": c["ssm_out_multiplier"], "in_proj": inside,
               "lm_head": c["lm_head_multiplier"], "embed_tokens": c["embedding_multiplier"]}
    folded = {name: value * factors.get(name.split(".")[-2], 1.0) for name, value in tensors.items()}
    for name in folded:
        if name.endswith("conv1d.weight"):
            folded[name] = folded[name][:, 0]
        elif name.endswith("A_log"):
            folded[name] = -numpy.exp(folded[name])[:, None]
        elif name.endswith(".D"):
            folded[name] = folded[name][:, None]
        elif name.endswith("mamba.norm.weight"):
            folded[name] = folded[name].reshape(c["mamba_n_groups"], -1)
    names = {**ENDS, **ATTENTION, "model.final_layernorm.weight": "output_norm.weight",
             L + "input_layernorm.weight": B + "attn_norm.weight", L + "pre_ff_layernorm.weight": B + "ffn_norm",
             **{L + f"feed_forward.{part}_proj.weight": B + f"ffn_{part}.weight" for part in ("gate", "up", "down")},
             L + "mamba.in_proj.weight": B + "ssm_in.weight", L + "mamba.conv1d.weight": B + "ssm_conv1d.weight",
             L + "mamba.conv1d.bias": B + "ssm_conv1d.bias", L + "mamba.dt_bias": B + "ssm_dt.bias",
             L + "mamba.A_log": B + "ssm_a", L + "mamba.D": B + "ssm_d", L + "mamba.norm.weight": B + "ssm_norm.weight",
             L + "mamba.out_proj.weight": B + "ssm_out.weight"}
    more = {"ssm.conv_kernel": c["mamba_d_conv"], "ssm.inner_size": inner, "ssm.state_size": c["mamba_d_state"],
            "ssm.time_step_rank": c["mamba_n_heads"], "ssm.group_count": c["mamba_n_groups"],
            "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]}
    return {**metadata("falcon-h1", c, c["head_dim"]), **{f"falcon-h1.{key}": value for key, value in more.items()}}, \
        renamed(folded, names)


FALCON_H1 = dict(
    COMMON, num_hidden_layers=2, head_dim=16, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16,
    mamba_d_conv=4, mamba_chunk_size=32, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, projectors_bias=False,
    mlp_bias=False, mamba_rms_norm=False, mamba_norm_before_gate=False, embedding_multiplier=3.0, lm_head_multiplier=0.7,
    mlp_multipliers=[0.8, 1.3], ssm_multipliers=[0.9, 1.2, 0.8, 1.1, 0.7], key_multiplier=0.6, attention_in_multiplier=1.2,
    attention_out_multiplier=0.8, ssm_in_multiplier=1.25, ssm_out_multiplier=0.9,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0})


# ---- Llama 4 ----

def llama4_is_sparse(c, layer):
    return (layer + 1) % c["interleave_moe_layer_step"] == 0


def llama4_shapes(c, layer):
    width, middle, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    out = {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), **plain_attention(c)}
    if not llama4_is_sparse(c, layer):
        return {**out, **gated("feed_forward", width, c["intermediate_size_mlp"])}
    return {**out, "feed_forward.router.weight": (experts, width), "feed_forward.experts.gate_up_proj": (experts, width, 2 * middle),
            "feed_forward.experts.down_proj": (experts, middle, width), **gated("feed_forward.shared_expert", width, middle)}


def llama4_layer(c, w, x, layer):
    y, turns, eps = rms(x, w["input_layernorm.weight"], c["rms_norm_eps"]), c["no_rope_layers"][layer], c["rms_norm_eps"]
    q, k, v = (heads(w.linear(y, f"self_attn.{name}_proj"), c[count]) for name, count in (
        ("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads")))
    if turns:
        q, k = rotate(q, c["rope_parameters"], True), rotate(k, c["rope_parameters"], True)
        if c["use_qk_norm"]:
            q, k = rms(q, 1.0, eps), rms(k, 1.0, eps)
    elif c["attn_temperature_tuning"]:
        places = (numpy.arange(len(x)) + c.get("first_place", 1.0)) // c["floor_scale"]
        q = q * (1 + c["attn_scale"] * numpy.log1p(places))[:, None, None]
    chunked = c["layer_types"][layer] == "chunked_attention"
    chunk, window = (0, c["window"]) if "window" in c else (c["attention_chunk_size"], 0)
    mixed = attend(q, k, v, c["head_dim"] ** -0.5, chunk * chunked, window * chunked)
    x = x + w.linear(mixed, "self_attn.o_proj")
    y = rms(x, w["post_attention_layernorm.weight"], eps)
    if not llama4_is_sparse(c, layer):
        return x + mlp(w, y, "feed_forward")
    out, logits = mlp(w, y, "feed_forward.shared_expert"), w.linear(y, "feed_forward.router")
    for row in range(len(x)):
        for e in numpy.argsort(-logits[row])[:c["num_experts_per_tok"]]:
            share = 1 / (1 + numpy.exp(-logits[row, e]))
            before, behind = (1, share) if c.get("weight_behind") else (share, 1)
            gate, up = numpy.split(before * y[row] @ w["feed_forward.experts.gate_up_proj"][e], 2)
            out[row] += behind * ((up * silu(gate)) @ w["feed_forward.experts.down_proj"][e])
    return x + out


def llama4_gguf(c, tensors):
    more = {"expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"],
            "expert_feed_forward_length": c["intermediate_size"], "interleave_moe_layer_step": c["interleave_moe_layer_step"],
            "feed_forward_length": c["intermediate_size_mlp"], "attention.key_length": c["head_dim"],
            "attention.value_length": c["head_dim"]}
    names = {**ENDS, **ATTENTION, **NORMS, L + "feed_forward.router.weight": B + "ffn_gate_inp.weight",
             **{L + f"feed_forward.{part}_proj.weight": B + f"ffn_{part}.weight" for part in ("gate", "up", "down")},
             **{L + f"feed_forward.shared_expert.{part}_proj.weight": B + f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")}}
    out = renamed(tensors, names)
    for layer in range(c["num_hidden_layers"]):
        if llama4_is_sparse(c, layer):
            stem = f"model.layers.{layer}.feed_forward.experts."
            gate, up = numpy.split(tensors[stem + "gate_up_proj"].transpose(0, 2, 1), 2, 1)
            out.update({f"blk.{layer}.ffn_gate_exps.weight": gate, f"blk.{layer}.ffn_up_exps.weight": up,
                        f"blk.{layer}.ffn_down_exps.weight": tensors[stem + "down_proj"].transpose(0, 2, 1)})
    out["rope_freqs.weight"] = rope_factors(c["rope_parameters"], c["head_dim"])
    return {**metadata("llama4", c, c["head_dim"]), **{f"llama4.{key}": value for key, value in more.items()}}, out


LLAMA4 = dict(
    COMMON, num_hidden_layers=4, head_dim=16, intermediate_size=32, intermediate_size_mlp=96, num_local_experts=4,
    num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layers=[1, 1, 1, 0],
    layer_types=["chunked_attention"] * 3 + ["full_attention"], attention_chunk_size=32, attn_temperature_tuning=True,
    floor_scale=32, attn_scale=0.5, use_qk_norm=True, rope_parameters=LLAMA3)


# ---- cases ----

def zero(part, value=0.0):
    """A mutant: tensors with this in their name are as good as left out."""
    return lambda c, tensors: (c, {name: numpy.full_like(t, value) if part in name else t for name, t in tensors.items()})


def says(**changes):
    """A mutant: the config says something else; what rope_parameters says is added to it."""
    def changed(c, tensors):
        out = {**copy.deepcopy(c), **{key: value for key, value in changes.items() if key != "rope_parameters"}}
        out["rope_parameters"] = {**c["rope_parameters"], **changes.get("rope_parameters", {})}
        return out, tensors
    return changed


FALCON_MUTANTS = {
    **{f"no {label}": zero(part) for label, part in (("D", ".D"), ("dt bias", "dt_bias"), ("A", "A_log"), ("conv bias", "conv1d.bias"))},
    "embedding": says(embedding_multiplier=1.0), "head": says(lm_head_multiplier=1.0), "gate": says(mlp_multipliers=[1.0, 1.3]),
    "down": says(mlp_multipliers=[0.8, 1.0]), "key": says(key_multiplier=1.0), "attention in": says(attention_in_multiplier=1.0),
    "attention out": says(attention_out_multiplier=1.0), "ssm in": says(ssm_in_multiplier=1.0), "ssm out": says(ssm_out_multiplier=1.0),
    **{f"ssm {part}": says(ssm_multipliers=[*FALCON_H1["ssm_multipliers"][:i], 1.0, *FALCON_H1["ssm_multipliers"][i + 1:]])
       for i, part in enumerate(("z", "x", "B", "C", "dt"))}}
# name: model_type, class, config, shapes of a layer, layer, GGUF file, mutants
CASES = {
    "mistral4": ("mistral4", "Mistral4ForCausalLM", MISTRAL4, mistral4_shapes,
                 lambda c, tensors, tokens: whole(c, tensors, tokens, mistral4_layer), mistral4_gguf, {
        "no temperature": says(rope_parameters=dict(llama_4_scaling_beta=0.0)),
        "temperature one later": says(rope_parameters=dict(original_max_position_embeddings=33)),
        "no mscale": says(rope_parameters=dict(mscale_all_dim=0.0)), "halves": says(rope_interleave=False),
        "not normalised": says(norm_topk_prob=False), "scaling": says(routed_scaling_factor=1.0),
        "one expert": says(num_experts_per_tok=1), "no shared": zero("shared_experts.down_proj"),
        "unit latent norm": zero("kv_a_layernorm", 1.0), "unit q norm": zero("q_a_layernorm", 1.0)}),
    "apertus": ("apertus", "ApertusForCausalLM", APERTUS, apertus_shapes,
                lambda c, tensors, tokens: whole(c, tensors, tokens, apertus_layer), apertus_gguf, {
        "unscaled": says(rope_parameters=dict(rope_type="default")), "unit q norm": zero("q_norm", 1.0),
        "unit k norm": zero("k_norm", 1.0), "alpha p": zero("act_fn.alpha_p"), "alpha n": zero("act_fn.alpha_n"),
        "no beta": zero("act_fn.beta"), "silu": says(hidden_act="silu"), "eps": says(rms_norm_eps=1e-6)}),
    "falcon_h1": ("falcon_h1", "FalconH1ForCausalLM", FALCON_H1, falcon_h1_shapes, falcon_h1, falcon_h1_gguf, FALCON_MUTANTS),
    "falcon_h1-norm": ("falcon_h1", "FalconH1ForCausalLM", dict(FALCON_H1, mamba_n_groups=2, mamba_rms_norm=True), falcon_h1_shapes,
                       falcon_h1, falcon_h1_gguf, {
        **FALCON_MUTANTS, "unit gated norm": zero("mamba.norm", 1.0), "norm before gate": says(mamba_norm_before_gate=True)}),
    "llama4": ("llama4_text", "Llama4ForCausalLM", LLAMA4, llama4_shapes, lambda c, tensors, tokens: whole(c, tensors, tokens, llama4_layer),
               llama4_gguf, {
        "window instead of chunk": says(window=32), "no chunks": says(attention_chunk_size=512),
        "no temperature": says(attn_temperature_tuning=False), "temperature from p": says(first_place=0.0),
        "no qk norm": says(use_qk_norm=False), "rope everywhere": says(no_rope_layers=[1] * 4), "weight behind": says(weight_behind=True),
        "unscaled": says(rope_parameters=dict(rope_type="default")), "two experts": says(num_experts_per_tok=2),
        "no shared": zero("shared_expert.down_proj"), "no experts": zero("experts.down_proj")}),
}


def draw(name, shape, generator):
    """Scales that keep every part of the network at work at width 64; names say the role."""
    n = generator.standard_normal(shape)
    if "norm" in name and len(shape) == 1:
        return (1.5 if "q_norm" in name or "k_norm" in name else 1.0) + 0.25 * n
    if name.endswith((".alpha_p", ".alpha_n")):
        return 0.5 * n
    if name.endswith("act_fn.beta"):
        return numpy.full(shape, 0.5)
    if name.endswith("act_fn.eps"):
        return numpy.full(shape, -1e-6)
    if name.endswith(".D"):
        return 1.0 + 0.5 * n
    if name.endswith("A_log"):  # decay rates from 0.03 to 1.6 per step: long and short memories
        return generator.random(shape) * 4.0 - 3.5
    if name.endswith("dt_bias"):
        return -1.0 + 0.8 * n
    if name.endswith("conv1d.bias"):
        return 0.25 * n
    if name.endswith("conv1d.weight"):
        return 0.45 * n
    if name.endswith(("q_b_proj.weight", "kv_b_proj.weight")):  # read rows of the rank's width
        return 1.3 * shape[-1] ** -0.5 * n
    if name.endswith(("embed_tokens.weight", "lm_head.weight", ".gate.weight", "router.weight")):
        return 0.25 * n
    return (0.18 if "q_proj" in name or "k_proj" in name else 0.14) * n


def greedy(compute, prompt):
    ids, margins = list(prompt), []
    for _ in range(GENERATED):
        logits = compute(ids)[-1]
        best = numpy.sort(logits)[::-1]
        margins.append(best[0] - best[1])
        ids.append(int(logits.argmax()))
    return ids[len(prompt):], min(margins)


def attempt(case, seed, given):
    """What is to be written, or in words why this seed is no good."""
    model_type, class_name, config, layer_shapes, compute, to_gguf, mutants = CASES[case]
    tensors = {}
    for name, shape in shapes(model_type, config, layer_shapes).items():
        generator = numpy.random.default_rng(seed * 1000003 + zlib.crc32(name.encode()))
        tensors[name] = draw(name, shape, generator).astype(numpy.float32)
    tokens = numpy.random.default_rng(seed + 17).integers(0, 250, LENGTH).tolist()
    exact = {name: value.astype(numpy.float64) for name, value in tensors.items()}
    logits = compute(config, exact, tokens)
    if not 0.3 < logits.std() < 8 or len(set(logits.argmax(-1))) <= 20:
        return f"logits of std {logits.std():.3g}"
    text, margin = greedy(lambda ids: compute(config, exact, ids), tokens[:PROMPT])
    if margin < 0.005 or END_OF_TEXT in text or len(set(text)) < 8:
        return f"greedy margin {margin:.4f}, or a text that ends or repeats"
    for where in (0, 20, 100):
        other = list(tokens)
        other[where] = (other[where] + 101) % 250
        moved = numpy.abs(compute(config, exact, other) - logits)
        if (where and moved[:where].max() > 1e-9) or moved[-1].max() < 0.003:
            return f"last logits do not see token {where}, or first ones do"
    path = os.path.join(given.work, case + ".gguf")
    sayable = {**config, **SAYABLE.get(case, {})}
    write_gguf(path, *to_gguf(sayable, tensors))
    by_llama = llama_logits(given.program, path, tokens)
    noise = numpy.abs(by_llama - compute(sayable, exact, tokens)).max()
    return tensors, tokens, logits, logits if case in SAYABLE else by_llama, noise, text, margin


def make(case, given):
    model_type, class_name, config, layer_shapes, compute, to_gguf, mutants = CASES[case]
    first = zlib.crc32(case.encode()) % 1000
    for seed in range(first, first + 30):
        result = attempt(case, seed, given)
        if not isinstance(result, str):
            break
        print(f"  {case} seed {seed}: {result}")
    else:
        sys.exit(f"{case}: no seed was good enough")
    tensors, tokens, logits, stored, noise, text, margin = result
    exact = {name: value.astype(numpy.float64) for name, value in tensors.items()}
    seen = {label: numpy.abs(compute(*change(config, exact), tokens) - logits)[POSITIONS].max() for label, change in mutants.items()}
    print(f"{case}: seed {seed}, std {logits.std():.3g}, llama.cpp and transformers' text differ by {noise:.2e}, margin {margin:.3g}")
    print("| " + ", ".join(f"{label} {far:.2g}" for label, far in seen.items()) + " |", flush=True)
    unseen = [label for label, far in seen.items() if far < max(20 * noise, 1e-3)]
    if noise > 1e-4 or unseen:
        sys.exit(f"{case}: llama.cpp and transformers' text do not agree, or mutants are not seen: {unseen}")
    folder = os.path.join(given.outdir, case)
    os.makedirs(folder, exist_ok=True)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "logits.f32"), "wb") as f:
        f.write(stored[POSITIONS].astype("<f4").tobytes())

    def dump(name, value, indent=None):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=indent)
            f.write("\n")
    dump("config.json", {"architectures": [class_name], "model_type": model_type, **config}, 2)
    dump("case.json", {"family": model_type, "seed": seed, "vocab": VOCAB, "tokens": tokens, "positions": POSITIONS,
                       "logits_std": round(float(logits.std()), 6), "float64_max_abs_diff": float(f"{noise:.3e}")})
    dump("greedy.json", {"prompt": tokens[:PROMPT], "tokens": text, "min_margin": round(float(margin), 6)})


# llama.cpp takes chunks of 8192 and a temperature from there on, whatever a file says: the two are compared with these
# numbers, and the logits written down are those of transformers' text.
SAYABLE = {"llama4": dict(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--work", default=".", help="where GGUF files go")
    arguments.add_argument("program", help="what llama_logits.cpp became")
    arguments.add_argument("outdir")
    arguments.add_argument("cases", nargs="*", help="all by default")
    given = arguments.parse_args()
    for case in given.cases or CASES:
        make(case, given)


if __name__ == "__main__":
    main()
