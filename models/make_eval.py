#!/usr/bin/env python3
"""Writes the task file of `sluice eval`: held-out items of every task. Needs the package tokenizers, for the length of the long texts.

    models/make_eval.py models/tokenizer/tokenizer.json > models/eval/tasks.json
    models/make_eval.py --short 3 > more.json

The second form writes other items, three times as many, without the long texts and without that package. The long texts are made of the sentences of one pool; an item lists their numbers.
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "corpus"))
import corpus  # noqa: E402
import encode  # noqa: E402

SHORT = [("sluice", 200), ("social", 20), ("unknown", 40), ("arithmetic", 200), ("lists", 200), ("json", 100), ("tools", 100), ("stories", 20)]
LONG = [("needle-8000", 32, 1, 8000), ("needles-8000", 16, 8, 8000), ("needle-1000", 50, 1, 1000), ("needles-1000", 50, 6, 1000)]


def short_items(rng, times):
    items = []
    for task, count in SHORT:
        seen = set()
        tries = 0
        while len(seen) < count * times and tries < 100000:
            tries += 1
            item = corpus.draw(corpus.TASKS[task], rng, True)
            if item.user in seen or (task == "stories" and not item.contains):
                continue
            seen.add(item.user)
            row = {"task": task, "user": item.user}
            if item.tools:
                row["tools"] = item.tools
            if task == "stories":
                row["contains"] = item.contains + ["The end."]
            else:
                row["answer"] = item.answer
            items.append(row)
    return items


def long_items(rng, encoder):
    items = []
    pool = []
    while len(pool) < 500:
        sentence = corpus.filler_sentence(rng)
        if sentence not in pool:
            pool.append(sentence)
    numbers = {s: i for i, s in enumerate(pool)}
    lengths = [len(encoder.sentence(s)) for s in pool]
    mean = sum(lengths) / len(lengths)
    for task, count, needle_count, length in LONG:
        made = 0
        while made < count:
            sentences = int((length - 20 * needle_count - 60) / mean)
            document = corpus.needles(rng, sentences, needle_count, 1, sentence=lambda r: r.choice(pool), together=0.5 if needle_count > 1 else 0)
            if not corpus.held_out(document.key):
                continue
            tokens = len(encoder.segments(corpus.render_document(document))[0])
            if not length * 0.9 < tokens <= length:
                continue
            made += 1
            (question, answer), = document.turns
            items.append({"task": task, "before": document.intro, "text": [numbers.get(p, p) for p in document.parts], "user": "\n\n" + question, "answer": answer})
    return pool, items


def main():
    if sys.argv[1] == "--short":
        times = int(sys.argv[2])
        pool, items = [], short_items(random.Random(20260102), times)
    else:
        from tokenizers import Tokenizer
        rng = random.Random(20260101)
        items = short_items(rng, 1)
        pool, more = long_items(rng, encode.Encoder(Tokenizer.from_file(sys.argv[1])))
        items += more
    json.dump({"sentences": pool, "items": items}, sys.stdout, separators=(",", ":"))
    print()


main()
