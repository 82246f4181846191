#!/usr/bin/env python3
"""Trains a built-in model on one GPU and writes it as a Hugging Face folder (PyTorch 2.10 or later).

    models/train.py mini --tokenizer models/tokenizer --out mini --steps 9000
    models/train.py mini-moe --tokenizer models/tokenizer --out mini-moe --steps 9000

Sixteen processes make text all the time, so that almost no document is read twice. A run that is stopped after --seconds leaves
its state in --state and goes on from there when called again.
"""
import argparse
import collections
import inspect
import json
import math
import multiprocessing
import os
import queue
import random
import sys
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.varlen import varlen_attn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "corpus"))
import corpus  # noqa: E402
import encode  # noqa: E402

CONTEXT = 8192
BATCH = 131072  # tokens of a step
LEARNED = BATCH // 2  # at most so many of them are learned
KINDS = {"short": (1024, 4096), "long": (CONTEXT, 1024)}  # longest document, most documents in a batch

CONFIGS = {
    "mini": dict(width=512, layers=6, heads=8, kv_heads=4, head=64, inner=768, experts=0, used=0),
    "mini-moe": dict(width=256, layers=4, heads=4, kv_heads=4, head=64, inner=256, experts=16, used=4),
    "mini-moe-deep": dict(width=256, layers=7, heads=4, kv_heads=4, head=64, inner=128, experts=16, used=4),
}
VOCABULARY, THETA, EPS = 4096, 1e6, 1e-6

# ---- batches -----------------------------------------------------------------------------------------------------


class Batches:
    """Packs documents into flat batches. One per process."""

    def __init__(self, tokenizer, seed):
        self.encoder = encode.Encoder(tokenizer)
        self.rng = random.Random(seed)
        self.pool = []

    def sentence(self, rng):
        # Mostly sentences that were made before, whose tokens are known: ten times faster. They change all the time.
        if len(self.pool) < 20000 or rng.random() < 0.05:
            sentence = corpus.filler_sentence(rng)
            if len(self.pool) < 20000:
                self.pool.append(sentence)
            else:
                self.pool[rng.randrange(20000)] = sentence
            return sentence
        return rng.choice(self.pool)

    def documents(self, kind, progress):
        left = BATCH
        longest, most = KINDS[kind]
        reach = min(CONTEXT - 700, 1024 + (CONTEXT - 1024) * progress / 0.25) / 13  # sentences
        count = 0
        while left > 0 and count < most - 1:
            if kind == "long" and left > BATCH // 4:
                segments = corpus.long_document(self.rng, self.sentence, reach)
            else:
                segments = corpus.short_document(self.rng)
            ids, learned = self.encoder.segments(segments)
            if len(ids) <= longest:
                yield ids[:left], learned[:left]
                left -= len(ids)
                count += 1

    def make(self, kind, progress):
        return pack(list(self.documents(kind, progress)), KINDS[kind][1], BATCH, LEARNED)


def pack(documents, most, size, learned_size):
    tokens = np.zeros(size, np.int16)
    positions = np.zeros(size, np.int16)
    starts = np.full(most + 1, size, np.int32)
    rows = []
    at = 0
    for i, (ids, learned) in enumerate(documents):
        n = len(ids)
        tokens[at:at + n] = ids
        positions[at:at + n] = np.arange(n)
        starts[i] = at
        rows.append(np.flatnonzero(np.array(learned[1:], bool)) + at)
        at += n
    if at < size:  # what is left over is a document of its own, never learned
        positions[at:] = np.arange(size - at) % CONTEXT
        starts[len(documents)] = at
    found = np.concatenate(rows)[:learned_size].astype(np.int32)
    learned = np.full(learned_size, -1, np.int32)
    learned[:len(found)] = found
    return tokens, positions, starts, learned


def work(folder, seed, out, progress, share):
    from tokenizers import Tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.nice(5)
    batches = Batches(Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), seed)
    while True:
        kind = "long" if batches.rng.random() < share else "short"
        out.put((kind, batches.make(kind, progress.value)))


class Feed:
    """The newest batches of all processes; when they are slower than the GPU, one of the last is read again."""

    def __init__(self, source):
        self.source = source
        self.fresh = {k: collections.deque() for k in KINDS}
        self.kept = {k: collections.deque(maxlen=1200) for k in KINDS}
        self.made = self.taken = 0
        self.event = threading.Event()
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self):
        while True:
            kind, batch = self.source.get()
            self.fresh[kind].append(batch)
            self.made += 1
            self.event.set()
            while sum(map(len, self.fresh.values())) > 200:
                time.sleep(0.05)

    def take(self, kind, rng):
        self.taken += 1
        while not self.fresh[kind] and len(self.kept[kind]) < 20:
            self.event.clear()
            self.event.wait(1)
        if self.fresh[kind]:
            batch = self.fresh[kind].popleft()
            self.kept[kind].append(batch)
            return batch
        return rng.choice(self.kept[kind])


# ---- the model: qwen3 and qwen3_moe as transformers 5 computes them ----------------------------------------------------

CAUSAL = {"is_causal": True} if "is_causal" in inspect.signature(varlen_attn).parameters else {"window_size": (-1, 0)}


def norm(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS) * weight).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def matrix(rows, columns, scale=1.0):
    return nn.Parameter(torch.randn(rows, columns) * scale / math.sqrt(columns))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        w, q, kv = c["width"], c["heads"] * c["head"], c["kv_heads"] * c["head"]
        out = 0.5 / math.sqrt(c["layers"])
        self.q_proj, self.k_proj, self.v_proj = matrix(q, w), matrix(kv, w), matrix(kv, w)
        self.o_proj = matrix(w, q, out)
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(c["head"])), nn.Parameter(torch.ones(c["head"]))
        self.norm1, self.norm2 = nn.Parameter(torch.ones(w)), nn.Parameter(torch.ones(w))
        e, i = max(c["experts"], 1), c["inner"]
        self.gate, self.up = (nn.Parameter(torch.randn(e, i, w) / math.sqrt(w)) for _ in range(2))
        self.down = nn.Parameter(torch.randn(e, w, i) * out / math.sqrt(i))
        if c["experts"]:
            self.router = nn.Parameter(torch.randn(e, w) * 0.02)

    def forward(self, x, cos, sin, starts, longest):
        c, n = self.c, x.shape[0]
        y = norm(x, self.norm1)
        q = F.linear(y, self.q_proj.to(y.dtype)).view(n, c["heads"], c["head"])
        k = F.linear(y, self.k_proj.to(y.dtype)).view(n, c["kv_heads"], c["head"])
        v = F.linear(y, self.v_proj.to(y.dtype)).view(n, c["kv_heads"], c["head"])
        q, k = rotate(norm(q, self.q_norm), cos, sin), rotate(norm(k, self.k_norm), cos, sin)
        group = c["heads"] // c["kv_heads"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = varlen_attn(q, k, v, starts, starts, longest, longest, **CAUSAL)
        x = x + F.linear(y.reshape(n, -1), self.o_proj.to(y.dtype))
        y = norm(x, self.norm2)
        e, i, w = self.gate.shape
        # Every expert for every row: with so small experts a dense product is faster than sorting rows.
        inside = F.silu(F.linear(y, self.gate.to(y.dtype).view(e * i, w))) * F.linear(y, self.up.to(y.dtype).view(e * i, w))
        load = x.new_zeros((), dtype=torch.float32)
        if c["experts"]:
            p = torch.softmax(F.linear(y.float(), self.router), -1)
            top, chosen = p.topk(c["used"], -1)
            mask = torch.zeros_like(p).scatter(-1, chosen, 1.0)
            weights = p * mask / top.sum(-1, keepdim=True)
            inside = (inside.view(n, e, i) * weights.to(y.dtype).unsqueeze(-1)).view(n, e * i)
            load = e * (mask.mean(0) / c["used"] * p.mean(0)).sum()
        down = self.down.to(y.dtype).permute(1, 0, 2).reshape(w, e * i)
        return x + F.linear(inside, down), load


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, c["width"]) * 0.02)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.Parameter(torch.ones(c["width"]))
        frequency = THETA ** (-torch.arange(0, c["head"], 2).double() / c["head"])
        angle = torch.arange(CONTEXT).double()[:, None] * frequency
        self.register_buffer("cos", angle.cos().float()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin().float()[:, None], persistent=False)

    def hidden(self, tokens, positions, starts, longest, blocks=None):
        x = self.embedding[tokens.long()].bfloat16()
        positions = positions.long()
        cos, sin = self.cos[positions], self.sin[positions]
        load = 0.0
        for block in blocks or self.blocks:
            x, more = block(x, cos, sin, starts, longest)
            load = load + more
        return x, load

    def head(self, x, targets):
        logits = F.linear(norm(x, self.norm), self.embedding.to(x.dtype)).float()
        return F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum"), logits.argmax(-1)


def loss_of(model, batch, longest, head=None, blocks=None):
    tokens, positions, starts, learned = batch
    x, load = model.hidden(tokens, positions, starts, longest, blocks)
    rows = learned.clamp(min=0).long()
    targets = torch.where(learned >= 0, tokens[(rows + 1).clamp(max=len(tokens) - 1)].long(), -1)
    total, best = (head or model.head)(x[rows], targets)
    return total / (targets >= 0).sum(), load, best, targets


# ---- the optimizer: Muon for matrices, AdamW for the rest --------------------------------------------------------------


@torch.compile(dynamic=False)
def orthogonal(g):
    """The nearest orthogonal matrix, roughly, by five Newton-Schulz steps (Jordan and others, 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    x = x.mT if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if flip else x


class Muon:
    def __init__(self, parameters, rate, decay):
        self.rate, self.decay = rate, decay
        groups = collections.defaultdict(list)
        for p in parameters:
            groups[p.shape[-2:]].append(p)
        self.groups = list(groups.values())
        self.momentum = [torch.zeros(sum(p.numel() // (p.shape[-1] * p.shape[-2]) for p in g), *g[0].shape[-2:], device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, factor, momentum=0.95):
        for group, m in zip(self.groups, self.momentum):
            rows, columns = m.shape[-2:]
            g = torch.cat([p.grad.reshape(-1, rows, columns) for p in group])
            m.lerp_(g, 1 - momentum)
            update = orthogonal(g.lerp(m, momentum)) * math.sqrt(max(1, rows / columns))
            at = 0
            for p in group:
                n = p.numel() // (rows * columns)
                p.mul_(1 - self.rate * factor * self.decay).add_(update[at:at + n].reshape(p.shape), alpha=-self.rate * factor)
                at += n


def optimizers(model, args):
    matrices, rest = [], []
    for name, p in model.named_parameters():
        (matrices if p.ndim >= 2 and "embedding" not in name and "router" not in name else rest).append(p)
    return Muon(matrices, args.rate, 0.1), torch.optim.AdamW(rest, lr=args.rate_rest, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True)


def rate_factor(step, steps):
    return min(1, (step + 1) / 150) * min(1, max(0.01, (steps - step) / (0.5 * steps)))


# ---- held-out items during training ------------------------------------------------------------------------------------


def evaluation_batches(folder):
    """task -> (batch, index of the item of every learned row)."""
    from tokenizers import Tokenizer
    encoder = encode.Encoder(Tokenizer.from_file(os.path.join(folder, "tokenizer.json")))
    rng = random.Random(99)
    found = {}
    for task in corpus.TASKS:
        if task != "stories":
            found[task] = [encoder.segments(corpus.render(corpus.draw(corpus.TASKS[task], rng, True))) for _ in range(300)]
    samples = [len(encoder.sentence(corpus.filler_sentence(rng))) for _ in range(2000)]
    mean = sum(samples) / len(samples)
    for task, count, length, items in (("needle-1000", 1, 980, 60), ("needle-8000", 1, 8000, 30), ("needles-8000", 8, 8000, 15)):
        found[task] = []
        while len(found[task]) < items:
            document = corpus.needles(rng, int((length - 60 - 20 * count) / mean), count, 1, together=0.5 if count > 1 else 0)
            ids = encoder.segments(corpus.render_document(document))
            if corpus.held_out(document.key) and len(ids[0]) <= CONTEXT:
                found[task].append(ids)
    result = {}
    for task, documents in found.items():
        size = sum(len(ids) for ids, _ in documents)
        batch = pack(documents, len(documents), size, sum(sum(m) for _, m in documents))
        owner = np.repeat(np.arange(len(documents)), [sum(m) for _, m in documents])
        result[task] = ([torch.from_numpy(a).cuda() for a in batch], torch.from_numpy(owner).cuda(), len(documents))
    return result


@torch.no_grad()
def evaluate(model, batches):
    """An answer is right when every token of it, and its end, is the likeliest one: what greedy decoding finds."""
    result = {}
    for task, (batch, owner, count) in batches.items():
        _, _, best, targets = loss_of(model, batch, CONTEXT)
        wrong = torch.zeros(count, device="cuda").index_add_(0, owner, (best != targets).float())
        result[task] = round((wrong == 0).float().mean().item() * 100, 1)
    return result


# ---- a Hugging Face folder ---------------------------------------------------------------------------------------------


def save(model, folder, tokenizer, log):
    import shutil
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    c = model.c
    moe = c["experts"] > 0
    tensors = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    for i, b in enumerate(model.blocks):
        p = f"model.layers.{i}."
        for n in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
            tensors[p + f"self_attn.{n}.weight"] = getattr(b, n)
        tensors[p + "input_layernorm.weight"], tensors[p + "post_attention_layernorm.weight"] = b.norm1, b.norm2
        for n in ("gate", "up", "down"):
            for e, w in enumerate(getattr(b, n)):
                tensors[p + (f"mlp.experts.{e}.{n}_proj.weight" if moe else f"mlp.{n}_proj.weight")] = w
        if moe:
            tensors[p + "mlp.gate.weight"] = b.router
    tensors = {n: t.detach().half().cpu().contiguous().clone() for n, t in tensors.items()}
    shards = [{}]
    for n, t in tensors.items():
        if sum(x.numel() * 2 for x in shards[-1].values()) + t.numel() * 2 > 15e6:
            shards.append({})
        shards[-1][n] = t
    where = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, os.path.join(folder, file), metadata={"format": "pt"})
        where.update({n: file for n in shard})
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM"], "model_type": "qwen3_moe" if moe else "qwen3",
        "hidden_size": c["width"], "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"], "num_key_value_heads": c["kv_heads"],
        "head_dim": c["head"], "intermediate_size": c["inner"] * (c["used"] if moe else 1), "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
        "rope_theta": THETA, "rope_parameters": {"rope_type": "default", "rope_theta": THETA}, "rms_norm_eps": EPS, "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "torch_dtype": "float16",
        "bos_token_id": None, "eos_token_id": 4095, "pad_token_id": 4093, "use_sliding_window": False}
    if moe:
        config.update(num_experts=c["experts"], num_experts_per_tok=c["used"], moe_intermediate_size=c["inner"], norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    for name, value in (("config.json", config), ("model.safetensors.index.json", {"metadata": {}, "weight_map": where}), ("log.json", log)):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), folder)


@torch.no_grad()
def compare(model, folder, batches):
    """The largest difference of logits between this model and transformers' on one held-out document, over their spread."""
    from transformers import AutoModelForCausalLM
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda()
    (tokens, positions, starts, _), _, _ = batches["sluice"]
    n = int(starts[1])
    x, _ = model.hidden(tokens[:n], positions[:n], starts[:2].clone(), CONTEXT)
    ours = F.linear(norm(x, model.norm), model.embedding.to(x.dtype)).float()
    theirs = other(tokens[:n].long()[None]).logits[0].float()
    agree = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    print(f"transformers: difference {((ours - theirs).abs().max() / theirs.std()).item():.4f} of the spread (bf16 against f32), same likeliest token {agree * 100:.1f} %", flush=True)


# ---- training ----------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", choices=CONFIGS)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--state", default="")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--rate-rest", type=float, default=0.004)
    parser.add_argument("--long", type=float, default=0.25, help="share of steps with long documents")
    parser.add_argument("--workers", type=int, default=15)
    args = parser.parse_args()
    begin = time.time()

    state = torch.load(args.state, map_location="cpu", weights_only=False) if args.state and os.path.exists(args.state) else None
    first = state["step"] if state else 0
    source = multiprocessing.Queue(64)
    progress = multiprocessing.Value("d", first / args.steps)
    for i in range(args.workers):
        multiprocessing.Process(target=work, args=(args.tokenizer, args.seed * 1000003 + first * 101 + i, source, progress, args.long), daemon=True).start()
    feed = Feed(source)

    torch.manual_seed(args.seed)
    model = Model(CONFIGS[args.config]).cuda()
    muon, adam = optimizers(model, args)
    log = {"config": args.config, "seed": args.seed, "steps": args.steps, "batch": BATCH, "loss": [], "eval": [], "seconds": 0.0}
    if state:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.momentum = [m.cuda() for m in state["muon"]]
        log = state["log"]
    spent = log["seconds"]
    active = sum(p.numel() for n, p in model.named_parameters())
    print(f"{args.config}: {active / 1e6:.2f} M parameters", flush=True)
    tests = evaluation_batches(args.tokenizer)
    print(f"{time.time() - begin:.0f} s: {feed.made} batches made; items held out: " + ", ".join(f"{t} {n}" for t, (_, _, n) in tests.items()), flush=True)
    rng = random.Random(args.seed + first)
    torch._dynamo.config.recompile_limit = 64
    blocks = [torch.compile(b, dynamic=False) for b in model.blocks]
    head = torch.compile(model.head, dynamic=False)
    running, since, clock = None, 0, time.time()
    step = first
    stopped = False
    while step < args.steps and not stopped:
        progress.value = step / args.steps
        kind = "long" if rng.random() < args.long else "short"
        batch = [torch.from_numpy(a).cuda(non_blocking=True) for a in feed.take(kind, rng)]
        loss, load, _, _ = loss_of(model, batch, KINDS[kind][0], head, blocks)
        (loss + 0.01 * load).backward()
        factor = rate_factor(step, args.steps)
        muon.step(factor)
        for group in adam.param_groups:
            group["lr"] = args.rate_rest * factor
        adam.step()
        for p in model.parameters():
            p.grad = None
        step += 1
        since += 1
        running = running or {}
        running.setdefault(kind, []).append(loss.detach())
        stopped = time.time() - begin > args.seconds
        if step % 100 == 0 or step == args.steps or stopped or step in (first + 5, first + 20):
            means = {k: round(torch.stack(v).mean().item(), 4) for k, v in running.items()}
            now = time.time()
            log["loss"].append([step, means])
            if step % 500 == 0 or step <= first + 20:
                print(f"{step} loss {means} load {float(load):.3f} {since * BATCH / (now - clock) / 1e6:.2f} Mtok/s made {feed.made} taken {feed.taken} {now - begin:.0f} s", flush=True)
            running, since, clock = None, 0, now
        if step % 1000 == 0 or step == args.steps or stopped:
            log["eval"].append([step, evaluate(model, tests)])
            print(f"  {step} {log['eval'][-1][1]}", flush=True)
            clock = time.time()
    log["seconds"] = spent + time.time() - begin
    if step < args.steps and args.state:
        os.makedirs(os.path.dirname(args.state), exist_ok=True)
        torch.save({"step": step, "model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.momentum, "log": log}, args.state)
        print(f"stopped at step {step}; the state is in {args.state}", flush=True)
    save(model, args.out, args.tokenizer, log)
    compare(model, args.out, tests)
    print(f"{time.time() - begin:.0f} s", flush=True)
    os._exit(0)  # the processes that make text are daemons and hold the queue


main()
