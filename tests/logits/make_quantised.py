#!/usr/bin/env python3
"""Makes the folders of integers in fixtures/, and one of Gemma 4 in NVFP4 and FP8: the same codes, scales and zero points as every writer lays them out, and the
values that they stand for as F32. Needs nothing but Python.

    make_quantised.py OUTDIR

Written from the texts of compressed-tensors (pack_to_int32: codes plus half their range, the lowest bits first; zero
points of rows likewise, packed along rows), AutoGPTQ (QuantLinear.pack: words along columns, zero points less one),
GPTQModel (convert_gptq_v1_to_v2_format: that less one is of a whole word) and AutoAWQ (WQLinear_GEMM: words along rows, in
the order 0, 2, 4, 6, 1, 3, 5, 7). All of them mean (code - zero) * scale.

Gemma 4's is a mixed folder of compressed-tensors: experts in NVFP4, one module for each, beside q, k and v in FP8 with a
scale for each row. Its scales are powers of two, so that BF16 holds the values.
"""
import json
import os
import random
import struct
import sys

HIDDEN, WIDE, EXPERT, EXPERTS, HEADS, KV_HEADS, HEAD, LAYERS, VOCAB = 64, 128, 32, 4, 4, 2, 16, 2, 256
GROUP, EXPERTS_GROUP = 64, 32

CONFIG = {
    "attention_bias": False, "bos_token_id": 254, "dtype": "float32", "eos_token_id": 255, "head_dim": HEAD,
    "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": WIDE, "max_position_embeddings": 512,
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "tie_word_embeddings": False,
    "vocab_size": VOCAB}
DENSE = dict(CONFIG, architectures=["Qwen3ForCausalLM"], model_type="qwen3", use_sliding_window=False)
MOE = dict(CONFIG, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", decoder_sparse_step=1,
           mlp_only_layers=[], moe_intermediate_size=EXPERT, norm_topk_prob=True, num_experts_per_tok=2,
           num_local_experts=EXPERTS)


class Folder:
    def __init__(self):
        self.tensors = {}

    def add(self, name, dtype, shape, data):
        self.tensors[name] = (dtype, shape, data)

    def write(self, folder, config, quantization):
        os.makedirs(folder, exist_ok=True)
        config = dict(config, quantization_config=quantization) if quantization else config
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file, indent=2, sort_keys=True)
            file.write("\n")
        header, at = {}, 0
        for name in sorted(self.tensors):
            dtype, shape, data = self.tensors[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in sorted(self.tensors):
                file.write(self.tensors[name][2])


def bf16(values):
    """Of numbers that it holds."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def f16(values):
    return struct.pack(f"<{len(values)}e", *values)


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def i32(words):
    return struct.pack(f"<{len(words)}I", *[word & 0xffffffff for word in words])


def flat(rows):
    return [value for row in rows for value in row]


def turned(rows):
    return [list(column) for column in zip(*rows)]


def packed(codes, bits):
    """Words of a list of codes, the lowest bits first."""
    per = 32 // bits
    codes = codes + [0] * (-len(codes) % per)
    return [sum(code << bits * i for i, code in enumerate(codes[at:at + per])) for at in range(0, len(codes), per)]


class Matrix:
    """codes [rows][columns], scales and zeros [rows][groups], without a sign."""

    def __init__(self, rows, columns, bits, group, zeros, rng):
        self.bits, self.group = bits, group or columns
        groups, top, middle = columns // self.group, (1 << bits) - 1, 1 << bits - 1
        self.codes = [[rng.randint(0, top) for _ in range(columns)] for _ in range(rows)]
        # of 8 significant bits: F16 and BF16 hold them
        self.scales = [[rng.randint(128, 255) * (2.0 ** -13 if bits == 4 else 2.0 ** -17) for _ in range(groups)]
                       for _ in range(rows)]
        self.zeros = [[rng.randint(0, top) if zeros else middle for _ in range(groups)] for _ in range(rows)]

    def values(self):
        return [(code - self.zeros[r][c // self.group]) * self.scales[r][c // self.group]
                for r, row in enumerate(self.codes) for c, code in enumerate(row)]

    @property
    def shape(self):
        return [len(self.codes), len(self.codes[0])]


def as_values(folder, stem, m):
    folder.add(stem + ".weight", "F32", m.shape, f32(m.values()))


def as_compressed(zeros, shape="I64", scale="BF16"):
    def add(folder, stem, m):
        rows, columns = m.shape
        groups = len(m.scales[0])
        folder.add(stem + ".weight_packed", "I32", [rows, columns * m.bits // 32],
                   i32(flat(packed(row, m.bits) for row in m.codes)))
        folder.add(stem + ".weight_scale", scale, [rows, groups],
                   {"BF16": bf16, "F32": f32}[scale](flat(m.scales)))
        folder.add(stem + ".weight_shape", shape, [2], struct.pack("<2q" if shape == "I64" else "<2i", rows, columns))
        if zeros:
            columns_of_zeros = [packed(column, m.bits) for column in turned(m.zeros)]
            folder.add(stem + ".weight_zero_point", "I32", [len(columns_of_zeros[0]), groups],
                       i32(flat(turned(columns_of_zeros))))
    return add


def as_bytes(folder, stem, m):
    folder.add(stem + ".weight", "I8", m.shape, bytes((code - 128) & 255 for code in flat(m.codes)))
    folder.add(stem + ".weight_scale", "F32", [m.shape[0], 1], f32(flat(m.scales)))


def as_gptq(version, bias=False):
    def add(folder, stem, m):
        rows, columns = m.shape
        groups = len(m.scales[0])
        words = turned([packed(row, m.bits) for row in m.codes])
        folder.add(stem + ".qweight", "I32", [columns * m.bits // 32, rows], i32(flat(words)))
        ones = 0x01010101 if m.bits == 8 else 0x11111111
        zeros = [word - (ones if version == 1 else 0) for column in turned(m.zeros) for word in packed(column, m.bits)]
        folder.add(stem + ".qzeros", "I32", [groups, rows * m.bits // 32], i32(zeros))
        folder.add(stem + ".scales", "F16", [groups, rows], f16(flat(turned(m.scales))))
        folder.add(stem + ".g_idx", "I32", [columns], i32([c // m.group for c in range(columns)]))
        if bias:
            folder.add(stem + ".bias", "F16", [rows], bytes(2 * rows))
    return add


def awq_words(codes):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return [sum(codes[at + order[i]] << 4 * i for i in range(8)) for at in range(0, len(codes), 8)]


def as_awq(folder, stem, m):
    rows, columns = m.shape
    folder.add(stem + ".qweight", "I32", [columns, rows // 8],
               i32(flat(awq_words(column) for column in turned(m.codes))))
    folder.add(stem + ".qzeros", "I32", [len(m.scales[0]), rows // 8],
               i32(flat(awq_words(column) for column in turned(m.zeros))))
    folder.add(stem + ".scales", "F16", [len(m.scales[0]), rows], f16(flat(turned(m.scales))))


def common(folder, rng):
    def floats(name, shape, spread, base=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        folder.add(name, "BF16", shape, bf16([base + rng.randint(-127, 127) / 128 * spread for _ in range(count)]))
    floats("model.embed_tokens.weight", [VOCAB, HIDDEN], 1.0)
    floats("lm_head.weight", [VOCAB, HIDDEN], 0.5)
    floats("model.norm.weight", [HIDDEN], 0.25, 1.0)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        floats(at + "input_layernorm.weight", [HIDDEN], 0.25, 1.0)
        floats(at + "post_attention_layernorm.weight", [HIDDEN], 0.25, 1.0)
        floats(at + "self_attn.q_norm.weight", [HEAD], 0.25, 1.0)
        floats(at + "self_attn.k_norm.weight", [HEAD], 0.25, 1.0)


ATTENTION = {"q_proj": (HEADS * HEAD, HIDDEN), "k_proj": (KV_HEADS * HEAD, HIDDEN), "v_proj": (KV_HEADS * HEAD, HIDDEN),
             "o_proj": (HIDDEN, HEADS * HEAD)}


def dense(add, bits, group, zeros):
    """The same numbers for the same bits, group and zeros."""
    folder, rng = Folder(), random.Random(100 * bits + group + zeros)
    common(folder, rng)
    for layer in range(LAYERS):
        parts = {"self_attn." + name: shape for name, shape in ATTENTION.items()}
        parts.update({"mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)})
        for name, (rows, columns) in parts.items():
            add(folder, f"model.layers.{layer}.{name}", Matrix(rows, columns, bits, group, zeros, rng))
    return folder


def in_one(folder, stem, matrices, scale):
    """All experts' in one tensor."""
    rows, columns = matrices[0].shape
    folder.add(stem + "_packed", "I32", [len(matrices), rows, columns // 8],
               i32([word for m in matrices for row in m.codes for word in packed(row, 4)]))
    folder.add(stem + "_scale", scale, [len(matrices), rows, columns // EXPERTS_GROUP],
               bf16([s for m in matrices for s in flat(m.scales)]))


def below(a, b):
    """One matrix with b's rows behind a's."""
    both = Matrix.__new__(Matrix)
    both.bits, both.group = a.bits, a.group
    both.codes, both.scales, both.zeros = a.codes + b.codes, a.scales + b.scales, a.zeros + b.zeros
    return both


def sparse(add, one):
    """Experts alone are of integers, as Kimi K2 Thinking has it."""
    folder, rng = Folder(), random.Random(7)
    common(folder, rng)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, (rows, columns) in ATTENTION.items():
            folder.add(f"{at}self_attn.{name}.weight", "BF16", [rows, columns],
                       bf16([rng.randint(-127, 127) / 1024 for _ in range(rows * columns)]))
        folder.add(at + "mlp.gate.weight", "BF16", [EXPERTS, HIDDEN],
                   bf16([rng.randint(-127, 127) / 128 for _ in range(EXPERTS * HIDDEN)]))
        gates, ups, downs = [], [], []
        for expert in range(EXPERTS):
            for name, rows, columns, kept in (("gate_proj", EXPERT, HIDDEN, gates), ("up_proj", EXPERT, HIDDEN, ups),
                                              ("down_proj", HIDDEN, EXPERT, downs)):
                m = Matrix(rows, columns, 4, EXPERTS_GROUP, False, rng)
                kept.append(m)
                if not one:
                    add(folder, f"{at}mlp.experts.{expert}.{name}", m)
        if one:
            in_one(folder, at + "mlp.experts.gate_up_proj", [below(g, u) for g, u in zip(gates, ups)], "BF16")
            in_one(folder, at + "mlp.experts.down_proj", downs, "BF16")
    return folder


def gemma4(experts, projections):
    """Two layers, a windowed one and a full one whose value is its key."""
    folder, rng = Folder(), random.Random(11)

    def floats(name, shape, spread, base=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        folder.add(name, "BF16", shape, bf16([base + rng.randint(-127, 127) / 128 * spread for _ in range(count)]))
    floats("model.embed_tokens.weight", [VOCAB, HIDDEN], 1.0)
    floats("model.norm.weight", [HIDDEN], 0.25, 1.0)
    for layer, (head, kv_heads) in enumerate(((16, 2), (32, 1))):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                     "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
            floats(f"{at}{name}.weight", [HIDDEN], 0.25, 1.0)
        for name, shape in (("self_attn.q_norm.weight", [head]), ("self_attn.k_norm.weight", [head]),
                            ("layer_scalar", [1]), ("router.per_expert_scale", [EXPERTS]), ("router.scale", [HIDDEN])):
            floats(at + name, shape, 0.25, 1.0)
        floats(at + "router.proj.weight", [EXPERTS, HIDDEN], 1.0)
        floats(at + "self_attn.o_proj.weight", [HIDDEN, HEADS * head], 0.125)
        for name, rows, columns in (("gate_proj", WIDE, HIDDEN), ("up_proj", WIDE, HIDDEN), ("down_proj", HIDDEN, WIDE)):
            floats(f"{at}mlp.{name}.weight", [rows, columns], 0.125)
        for name, rows in (("q_proj", HEADS * head), ("k_proj", kv_heads * head), ("v_proj", kv_heads * head)):
            if layer == 0 or name != "v_proj":
                projections(folder, f"{at}self_attn.{name}", rows, HIDDEN, rng)
        for expert in range(EXPERTS):
            for name, rows, columns in (("gate_proj", EXPERT, HIDDEN), ("up_proj", EXPERT, HIDDEN),
                                        ("down_proj", HIDDEN, EXPERT)):
                experts(folder, f"{at}experts.{expert}.{name}", rows, columns, rng)
    return folder


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def nvfp4(values):
    def add(folder, stem, rows, columns, rng):
        codes = [[rng.randint(0, 15) for _ in range(columns)] for _ in range(rows)]
        powers = [[rng.randint(-3, 3) for _ in range(columns // 16)] for _ in range(rows)]  # of E4M3: (7 + power) << 3
        if values:
            folder.add(stem + ".weight", "BF16", [rows, columns],
                       bf16([E2M1[code] * 2.0 ** (powers[r][c // 16] - 6) for r, row in enumerate(codes)
                             for c, code in enumerate(row)]))
            return
        folder.add(stem + ".weight_packed", "U8", [rows, columns // 2],
                   bytes(row[c] | row[c + 1] << 4 for row in codes for c in range(0, columns, 2)))
        folder.add(stem + ".weight_scale", "F8_E4M3", [rows, columns // 16], bytes(7 + p << 3 for p in flat(powers)))
        folder.add(stem + ".weight_global_scale", "F32", [1], f32([64.0]))
        folder.add(stem + ".input_global_scale", "F32", [1], f32([1.0]))
    return add


def fp8_rows(values):
    def add(folder, stem, rows, columns, rng):
        codes = [[rng.randint(8, 0x5f) | rng.randint(0, 1) << 7 for _ in range(columns)] for _ in range(rows)]
        powers = [rng.randint(-6, -4) for _ in range(rows)]
        if values:
            folder.add(stem + ".weight", "BF16", [rows, columns],
                       bf16([(-1) ** (code >> 7) * (8 + (code & 7)) * 2.0 ** ((code >> 3 & 15) - 10 + powers[r])
                             for r, row in enumerate(codes) for code in row]))
            return
        folder.add(stem + ".weight", "F8_E4M3", [rows, columns], bytes(flat(codes)))
        folder.add(stem + ".weight_scale", "BF16", [rows, 1], bf16([2.0 ** power for power in powers]))
    return add


GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "attention_bias": False, "attention_k_eq_v": True, "bos_token_id": 254,
    "dtype": "float32", "enable_moe_block": True, "eos_token_id": 255, "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": HIDDEN, "hidden_size_per_layer_input": 0,
    "intermediate_size": WIDE, "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 512,
    "model_type": "gemma4_text", "moe_intermediate_size": EXPERT, "num_attention_heads": HEADS, "num_experts": EXPERTS,
    "num_hidden_layers": 2, "num_key_value_heads": KV_HEADS, "num_kv_shared_layers": 0, "pad_token_id": 0,
    "per_layer_config": {"1": {"head_dim": 32, "num_key_value_heads": 1}}, "rms_norm_eps": 0.001,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 48, "tie_word_embeddings": True, "top_k_experts": 2, "use_double_wide_mlp": False,
    "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}


def mixed():
    def group(targets, weights):
        return {"targets": targets, "weights": weights, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": {
                "group_0": dict(group(["re:.*self_attn\\.(q|k|v)_proj$"],
                                      {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel",
                                       "group_size": None, "dynamic": False}), format="float-quantized"),
                "group_1": dict(group(["re:.*experts.*"],
                                      {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
                                       "group_size": 16, "dynamic": False}), format="nvfp4-pack-quantized")}}


def compressed(form, bits, group, symmetric=True, ignore=()):
    strategy = "group" if group else "channel"
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "ignore": ["lm_head", *ignore], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "output_activations": None,
                                          "weights": {"num_bits": bits, "type": "int", "symmetric": symmetric,
                                                      "strategy": strategy, "group_size": group, "dynamic": False,
                                                      "actorder": None, "block_structure": None,
                                                      "observer": "minmax", "observer_kwargs": {}}}}}


def gptq(bits, group, sym, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": sym,
            "damp_percent": 0.1, "true_sequential": True, "lm_head": False, **more}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
       "modules_to_not_convert": None}


def main():
    folders = {
        "qwen3-int4-values": (DENSE, dense(as_values, 4, GROUP, False), None),
        "qwen3-int4": (DENSE, dense(as_compressed(False), 4, GROUP, False), compressed("pack-quantized", 4, GROUP)),
        "qwen3-gptq": (DENSE, dense(as_gptq(1, bias=True), 4, GROUP, False), gptq(4, GROUP, True)),
        "qwen3-int4-zeros-values": (DENSE, dense(as_values, 4, GROUP, True), None),
        "qwen3-int4-zeros": (DENSE, dense(as_compressed(True), 4, GROUP, True),
                             compressed("pack-quantized", 4, GROUP, False)),
        "qwen3-gptq-zeros": (DENSE, dense(as_gptq(1), 4, GROUP, True),
                             gptq(4, GROUP, False, checkpoint_format="gptq")),
        "qwen3-gptq-v2": (DENSE, dense(as_gptq(2), 4, GROUP, True),
                          gptq(4, GROUP, False, checkpoint_format="gptq_v2", dynamic={"-:.*mlp\\.gate$": {}})),
        "qwen3-awq": (DENSE, dense(as_awq, 4, GROUP, True), AWQ),
        "qwen3-int8-values": (DENSE, dense(as_values, 8, 0, False), None),
        "qwen3-int8": (DENSE, dense(as_compressed(False, scale="F32"), 8, 0, False),
                       compressed("pack-quantized", 8, None)),
        "qwen3-int8-bytes": (DENSE, dense(as_bytes, 8, 0, False), compressed("int-quantized", 8, None)),
        "qwen3-gptq-8": (DENSE, dense(as_gptq(1), 8, 0, False), gptq(8, -1, True)),
        "qwen3moe-int4-values": (MOE, sparse(as_values, False), None),
        "qwen3moe-int4": (MOE, sparse(as_compressed(False, shape="I32"), False),
                          compressed("pack-quantized", 4, EXPERTS_GROUP, ignore=["re:.*self_attn.*"])),
        "qwen3moe-int4-one": (MOE, sparse(as_compressed(False), True),
                              compressed("pack-quantized", 4, EXPERTS_GROUP, ignore=["re:.*self_attn.*"])),
        "gemma4-mixed-values": (GEMMA4, gemma4(nvfp4(True), fp8_rows(True)), None),
        "gemma4-mixed": (GEMMA4, gemma4(nvfp4(False), fp8_rows(False)), mixed()),
    }
    for name, (config, folder, quantization) in folders.items():
        folder.write(os.path.join(sys.argv[1], name), config, quantization)


main()
