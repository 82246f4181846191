#!/usr/bin/env python3
"""Draws the loss curves and the held-out items of the training logs as one picture.

    models/plot_loss.py models/logs/mini.json models/logs/mini-moe.json > models/loss.svg
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 460, 260, 60, 40, 90
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"]
TESTS = ["sluice", "arithmetic", "lists", "json", "tools", "needle-8000"]


def text(x, y, words, size=11, anchor="start", color="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def panel(out, x, y, title, steps, low, high, marks, logarithmic, series):
    def at(step, value):
        part = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return x + step / steps * WIDTH, y + HEIGHT * (1 - min(max(part, 0), 1))

    out.append(text(x, y - 12, title, 13))
    for mark in marks:
        height = at(0, mark)[1]
        out.append(f'<path d="M{x} {height:.1f}h{WIDTH}" stroke="#ddd"/>' + text(x - 6, height + 4, f"{mark:g}", anchor="end"))
    for step in range(0, steps + 1, 1000):
        out.append(text(at(step, low)[0], y + HEIGHT + 16, step, anchor="middle"))
    for i, (name, points) in enumerate(series):
        path = "".join(f"{'L' if n else 'M'}{px:.1f} {py:.1f}" for n, (px, py) in enumerate(at(*p) for p in points))
        out.append(f'<path d="{path}" fill="none" stroke="{COLORS[i]}" stroke-width="1.5"/>')
        out.append(text(x + WIDTH - 4, y + (14 if logarithmic else HEIGHT - 14 * len(series)) + 14 * i, name, anchor="end", color=COLORS[i]))


def main():
    logs = [json.load(open(path)) for path in sys.argv[1:]]
    out = []
    for i, log in enumerate(logs):
        x = LEFT + i * (WIDTH + GAP)
        losses = [(kind, [(step, means[kind]) for step, means in log["loss"] if kind in means]) for kind in ("short", "long")]
        panel(out, x, TOP, f"{log['config']}: loss of learned tokens", log["steps"], 0.02, 10, (0.02, 0.05, 0.1, 0.3, 1, 3, 10), True, losses)
        tests = [(t, [(step, found[t]) for step, found in log["eval"]]) for t in TESTS]
        panel(out, x, TOP + HEIGHT + 70, f"{log['config']}: held-out items answered exactly, percent", log["steps"], 60, 100, range(60, 101, 10), False, tests)
    width, height = LEFT + len(logs) * (WIDTH + GAP), 2 * (TOP + HEIGHT) + 60
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">')
    print(f'<rect width="{width}" height="{height}" fill="white"/>')
    print("\n".join(out))
    print("</svg>")


main()
