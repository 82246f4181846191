#!/usr/bin/env python3
"""Trains the tokenizer on the corpus and writes tokenizer.json and tokenizer_config.json; needs the package tokenizers.

    models/train_tokenizer.py models/tokenizer
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "corpus"))
import corpus  # noqa: E402
import encode  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

SIZE = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def texts(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(" ".join(t) if isinstance(t, list) else t for t, _ in corpus.short_document(rng))
        yield " ".join(corpus.filler_sentence(rng) for _ in range(10))


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE - len(SPECIAL), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts(1, 60000), trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(HERE, "chat_template.jinja")) as file:
        template = file.read()
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
                   "add_bos_token": False, "clean_up_tokenization_spaces": False, "chat_template": template}, file, indent=1)
        file.write("\n")
    encoder = encode.Encoder(tokenizer)
    rng = random.Random(2)
    documents = [corpus.short_document(rng) for _ in range(2000)] + [corpus.long_document(rng, corpus.filler_sentence, 100) for _ in range(20)]
    wrong = sum(not encode.check(encoder, d) for d in documents)
    tokens = sum(len(encoder.segments(d)[0]) for d in documents[:2000])
    print(f"{tokenizer.get_vocab_size()} tokens; {tokens / 2000:.0f} tokens a document; the fast encoder differs in {wrong} of {len(documents)} documents")
    if wrong or tokenizer.get_vocab_size() != SIZE:
        sys.exit(1)


main()
