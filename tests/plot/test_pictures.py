#!/usr/bin/env python3
"""Pictures read back: what is drawn must be what was asked for, by the axes' own labels.

test_pictures.py DRAW_CHART [SLUICE]    with SLUICE also what --plot of its commands draws against what -o json says

An XML parser reads every file. The scale of an axis comes from its first and last tick label alone; the other ticks,
points, whiskers and limits must then lie where that scale puts their values. Texts are measured with Helvetica's widths,
made wider; no two may overlap, and nothing may leave the picture."""
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"
# Adobe's published advance widths of Helvetica, U+0020 to U+007E, in thousandths; other sans-serif fonts are mostly wider.
HELVETICA = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556,
    556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584]
WIDER = 1.1
UNITS = {"B": 1, "KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30, "TiB": 2 ** 40, "PiB": 2 ** 50, "EiB": 2 ** 60}
failures = []
asked = []


def check(name, fact, what):
    if not fact:
        failures.append(name)
        print(f"FAILED {name}: {what}")
    return fact


# ---- reading a picture ------------------------------------------------------------------------------------------

def classes(element):
    return element.get("class", "").split()


def number_of(label):
    """"20 000", "1e-6", "12 MiB" """
    words = label.split(" ")
    if words[-1] in UNITS:
        return float("".join(words[:-1])) * UNITS[words[-1]]
    return float("".join(words))


def path_points(d):
    """Absolute points of a path of M, L, H, V, h, v, l, z."""
    points, x, y = [], 0.0, 0.0
    for letter, rest in re.findall(r"([MLHVhvlmz])([^MLHVhvlmz]*)", d):
        numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", rest)]
        if letter in "ML":
            for x, y in zip(numbers[::2], numbers[1::2]):
                points.append((x, y))
        elif letter in "lm":
            for dx, dy in zip(numbers[::2], numbers[1::2]):
                x, y = x + dx, y + dy
                points.append((x, y))
        elif letter in "Hh":
            x = numbers[0] + (x if letter == "h" else 0)
            points.append((x, y))
        elif letter in "Vv":
            y = numbers[0] + (y if letter == "v" else 0)
            points.append((x, y))
    return points


def mark_place(element):
    match = re.fullmatch(r"translate\((-?[\d.]+) (-?[\d.]+)\)", element.get("transform", ""))
    return float(match.group(1)), float(match.group(2))


def width_of(c):
    """Of a character, in the font's size."""
    if 32 <= ord(c) < 127:
        return min(HELVETICA[ord(c) - 32] / 1000 * WIDER, 1)  # the widest letters differ least
    return 0 if unicodedata.combining(c) else 1 if unicodedata.east_asian_width(c) in "WF" else 0.8


def text_box(element):
    """(left, top, right, bottom)"""
    kind, text = classes(element), element.text or ""
    size = 16 if "title" in kind else 11 if "number" in kind else 13
    bold = 1.1 if {"title", "strong", "number"} & set(kind) else 1
    width = sum(map(width_of, text)) * size * bold
    anchor = "middle" if "number" in kind else element.get("text-anchor", "start")
    x, y = float(element.get("x")), float(element.get("y"))
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
    return left, y - 0.75 * size, left + width, y + 0.22 * size


class Axis:
    """The scale that the first and the last tick give; `wrong` when the others contradict it."""
    def __init__(self, ticks):
        self.ticks = sorted(ticks)
        (self.value0, self.at0), (self.value1, self.at1) = self.ticks[0], self.ticks[-1]
        self.count = len(ticks)
        linear = max((abs(self.place(v, False) - at) for v, at in ticks), default=0)
        self.logarithmic = linear > 0.05
        if self.logarithmic and self.value0 <= 0:
            self.wrong = linear
        else:
            self.wrong = max(abs(self.place(v, self.logarithmic) - at) for v, at in ticks)

    def place(self, value, logarithmic=None):
        logarithmic = self.logarithmic if logarithmic is None else logarithmic
        scale = math.log10 if logarithmic and value > 0 and self.value0 > 0 else lambda v: v / 2
        share = (scale(value) - scale(self.value0)) / (scale(self.value1) - scale(self.value0))
        return self.at0 + share * (self.at1 - self.at0)


def axes_of(name, chart):
    """The axes of a chart, of tick labels and the lines beside them."""
    texts = list(chart.iter(SVG + "text"))
    grid = [path_points(p.get("d"))[0][1] for p in chart.iter(SVG + "path") if classes(p) == ["grid"]]
    notches = [path_points(p.get("d"))[0][0] for p in chart.iter(SVG + "path")
               if classes(p) == ["axis"] and p.get("d").endswith("v5")]
    y_labels = [t for t in texts if "y-tick" in classes(t)]
    x_labels = [t for t in texts if "x-tick" in classes(t)]
    check(name, len(grid) == len(y_labels) >= 2, f"{len(grid)} lines and {len(y_labels)} labels at the left")
    for y, label in zip(grid, y_labels):
        check(name, abs(float(label.get("y")) - y) < 6, f"label {label.text} stands away from its line")
    check(name, len(notches) == len(x_labels) or len(x_labels) == 1, f"{len(notches)} notches, {len(x_labels)} labels")
    x_ticks = [(number_of(label.text), x) for x, label in zip(notches, x_labels)]
    return (Axis(x_ticks) if len(x_ticks) > 1 else None), Axis([(number_of(label.text), y) for y, label in zip(grid, y_labels)])


# ---- what holds of every picture --------------------------------------------------------------------------------

def read(name, path):
    """Parses, and checks what every file must keep."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        data.decode("utf-8")
        root = ElementTree.fromstring(data)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        check(name, False, f"no XML: {error}")
        return None
    text = data.decode("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    for word in ("http", "<script", "href", "url(", "@import", "@font-face", "data:", "nan", "inf"):
        if word not in ("nan", "inf"):
            check(name, word not in text, f"{word} is in it")
        else:
            numbers = re.findall(r'\b(?:x|y|d|width|height|transform)="([^"]*)"', text)
            check(name, not any(word in n for n in numbers), f"{word} is a place")
    check(name, "prefers-color-scheme:dark" in text, "no dark colours")
    check(name, root.get("role") == "img", "no role")
    for part in ("title", "desc"):
        found = root.find(SVG + part)
        check(name, found is not None and found.get("id") in root.get("aria-labelledby").split(), f"no {part}")
    check_boxes(name, root)
    return root


def check_boxes(name, root):
    _, _, width, height = map(float, root.get("viewBox").split())
    check(name, float(root.get("width")) == width and float(root.get("height")) == height, "size and view box differ")
    boxes = [(text_box(t), t.text) for t in root.iter(SVG + "text") if (t.text or "").strip()]
    for box, text in boxes:
        check(name, box[0] >= 0 and box[1] >= 0 and box[2] <= width + 1 and box[3] <= height, f"\"{text}\" leaves the picture: {box}")
    boxes.sort(key=lambda item: item[0][1])
    for i, (a, text) in enumerate(boxes):
        for b, other in boxes[i + 1:]:
            if b[1] >= a[3]:
                break
            check(name, a[2] <= b[0] or b[2] <= a[0], f"\"{text}\" and \"{other}\" overlap: {a} {b}")
    for path in root.iter(SVG + "path"):
        if path.get("transform") is None:
            for x, y in path_points(path.get("d")):
                check(name, -0.01 <= x <= width + 0.01 and -0.01 <= y <= height + 0.01, f"a line leaves the picture at {x}, {y}")


def draw(description, then):
    """Remembers a picture; `then` gets its path and the line that refuses it, or ""."""
    asked.append((description, then))


def draw_all(folder):
    """All at once, as starting a program takes longer than drawing."""
    done = subprocess.run([PROGRAM, folder], input=json.dumps([d for d, _ in asked]), capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.split("\n")[:-1]
    if not check("all pictures", done.returncode == 0 and len(lines) == len(asked), f"{len(lines)} lines, exit {done.returncode}, {done.stderr}"):
        return
    for i, (_, then) in enumerate(asked):
        then(os.path.join(folder, f"{i}.svg"), lines[i])
    left = set(os.listdir(folder)) - {f"{i}.svg" for i in range(len(asked))}
    check("all pictures", not left, f"files are left: {left}")


# ---- charts of lines --------------------------------------------------------------------------------------------

def near(a, b):
    return abs(a - b) < 0.06  # places have two digits behind the point


def check_series(name, group, series, x_axis, y_axis):
    points = series["points"]
    line = next(p for p in group if set(classes(p)) & {"line", "limit"})
    places = path_points(line.get("d"))
    if series.get("is_limit") and len(points) == 1:
        check(name, all(near(y, y_axis.place(points[0][1])) for _, y in places), f"limit {points[0]}")
        return
    marks = [mark_place(e) for e in group if "mark" in classes(e)]
    if len(points) > 1:
        check(name, len(places) == len(points), f"{len(places)} places of {len(points)} points")
    if not series.get("is_limit") and len(points) <= 40:
        check(name, len(marks) == len(points), f"{len(marks)} marks of {len(points)} points")
    whiskers = [path_points(p.get("d")) for p in group if classes(p) == ["whisker"]]
    spread = [p for p in points if len(p) == 4 and p[2] < p[3] and not series.get("is_limit")]
    if len(points) <= 40:
        check(name, len(whiskers) == len(spread), f"{len(whiskers)} whiskers of {len(spread)}")
        for place, point in zip(whiskers, spread):
            check(name, near(place[0][1], y_axis.place(point[2])) and near(place[1][1], y_axis.place(point[3])), f"whisker of {point}")
    for (x, y), point in list(zip(places, points)) + (list(zip(marks, points)) if len(points) <= 40 else []):
        right = (x_axis is None or near(x, x_axis.place(point[0]))) and near(y, y_axis.place(point[1]))
        if not check(name, right, f"{point} is drawn at {x}, {y}"):
            return


def check_lines(name, description):
    draw(description, lambda path, message: check(name, message == "", message) and check_lines_file(name, description, path))


def check_lines_file(name, description, path):
    root = read(name, path)
    if root is None:
        return
    charts = [g for g in root.iter(SVG + "g") if "chart" in classes(g)]
    check(name, len(charts) == len(description["charts"]), f"{len(charts)} charts")
    for chart, wanted in zip(charts, description["charts"]):
        x_axis, y_axis = axes_of(name, chart)
        check(name, y_axis.wrong < 0.1, f"ticks at the left contradict each other by {y_axis.wrong}")
        check(name, x_axis is None or x_axis.wrong < 0.1, f"ticks below contradict each other by {x_axis and x_axis.wrong}")
        groups = [g for g in chart.iter(SVG + "g") if "series" in classes(g)]
        some = [s for s in wanted["series"] if s["points"]]
        ordered = [s for s in some if s.get("is_limit")] + [s for s in some if not s.get("is_limit")]
        check(name, len(groups) == len(ordered), f"{len(groups)} lines of {len(ordered)}")
        for group, series in zip(groups, ordered):
            check_series(name, group, series, x_axis, y_axis)
        for series in some:
            if isinstance(series["name"], str) and series["name"].isalnum() and len(series["name"]) < 20:
                check(name, series["name"] in root.find(SVG + "desc").text, f"{series['name']} is not in the description")
                check(name, any(t.text == series["name"] for t in chart.iter(SVG + "text")), f"{series['name']} has no label")


def chart(series, **axes):
    return {"title": "A chart", "x": {"label": "x", **axes.get("x", {})}, "y": {"label": "y", **axes.get("y", {})}, "series": series}


def line(name, points, **more):
    return {"name": name, "points": points, **more}


HOSTILE = ["<script>alert(1)</script>", "a & b \"c\" 'd' ]]>", {"hex": "01021b5b33316d7f"}, {"hex": "c3"}, {"hex": "edA080f4908080".lower()},
           "x" * 10000, "W" * 10000, "", " ", "\u202egnp.exe", "漢字" * 200, "a\nb\tc", "🙂" * 50, "مرحبا", "--", "<!-- ]]> -->", "&#x0;",
           {"hex": "efbfbf"}, "e\u0301" * 300]


def lines_by_hand():
    few = [[1, 10, 9, 11], [2, 20, 18, 25], [4, 15, 15, 15]]
    cases = {
        "three points": [line("first", few)],
        "one point": [line("first", [[5, 7]])],
        "one point with a spread": [line("first", [[5, 7, 6, 8]])],
        "equal values": [line("first", [[i, 3] for i in range(5)])],
        "equal places": [line("first", [[2, i] for i in range(5)])],
        "all zero": [line("first", [[0, 0], [0, 0]])],
        "negative": [line("first", [[-5, -1e5], [-2, -3], [7, 12]])],
        "small and large": [line("first", [[1e-300, 1e-300], [1e300, 1e300]])],
        "to both ends": [line("first", [[-1e300, -1e300], [0, 0], [1e300, 1e300]])],
        "smallest": [line("first", [[5e-324, 5e-324], [1e-310, 1e-310]])],
        "nearly equal": [line("first", [[1e15, 1 + 1e-15], [1e15 + 2, 1 + 3e-15]])],
        "a thousand points": [line("first", [[i, math.sin(i / 50) * i, math.sin(i / 50) * i - 20, math.sin(i / 50) * i + 9] for i in range(1000)])],
        "an empty line among others": [line("first", few), line("nothing", [])],
        "limits": [line("first", few), line("limit", [[1, 100], [4, 90]], is_limit=True), line("flat", [[3, 50]], is_limit=True)],
        "many lines": [line(f"line{i}", [[x, (i + 1) * x] for x in range(1, 6)]) for i in range(64)],
        "ends that meet": [line(f"line{i}", [[1, i], [2, 50 + i / 1000]]) for i in range(5)],
        "ends in the middle": [line("short", [[1, 5], [2, 6]]), line("long", [[1, 7], [9, 2]])],
        "hostile names": [line(name, [[1, i + 1], [2, i + 2]]) for i, name in enumerate(HOSTILE)],
    }
    for name, series in cases.items():
        check_lines(name, {"charts": [chart(series)]})
        check_lines(name + ", from zero", {"charts": [chart(series, x={"from_zero": True}, y={"from_zero": True})]})
        check_lines(name + ", twice", {"title": "Both", "subtitle": "of them " * 40, "charts": [chart(series), chart(series)]})
    for i, text in enumerate(HOSTILE):
        whole = chart([line(text, few)], x={"label": text}, y={"label": text})
        check_lines(f"hostile text {i}", {"title": text, "subtitle": text, "charts": [{**whole, "title": text, "subtitle": text}]})
    powers = [[2 ** i, 100 * 1.7 ** i] for i in range(8)]
    check_lines("powers of two", {"charts": [chart([line("first", powers)], x={"logarithmic": True}, y={"logarithmic": True})]})
    wide = [[10.0 ** i, 10.0 ** -i] for i in range(-300, 301, 60)]
    check_lines("600 decades", {"charts": [chart([line("first", wide)], x={"logarithmic": True}, y={"logarithmic": True})]})


def lines_by_chance():
    chance = random.Random(11)
    for number in range(150):
        logarithmic = {axis: chance.random() < 0.3 for axis in "xy"}
        size = {axis: 10 ** chance.uniform(-12, 12) for axis in "xy"}

        def value(axis, share):
            return size[axis] * (10 ** (share * 4) if logarithmic[axis] else share * chance.choice([1, 1, 1, -1]))

        series = []
        for i in range(chance.randint(1, 9)):
            points = []
            for x in sorted(value("x", chance.random()) for _ in range(chance.choice([1, 2, 5, 12, 60]))):
                y = value("y", chance.random())
                low, high = sorted((y, y * chance.uniform(0.7, 1.3)))
                points.append([x, y, low, high] if chance.random() < 0.5 else [x, y])
            name = "".join(chance.choice("abcdefghijklmnopqrstuvwxyzWM") for _ in range(chance.choice([1, 5, 12, 30, 90])))
            series.append(line(name, points, is_limit=chance.random() < 0.15 and i > 0))
        axes = {axis: {"logarithmic": logarithmic[axis], "from_zero": chance.random() < 0.5} for axis in "xy"}
        check_lines(f"chance {number}", {"charts": [chart(series, **axes)]})


def refusals():
    bad = {"nan": "no finite number", "inf": "no finite number", "-inf": "no finite number", 1e301: "beyond 1e300"}
    for value, reason in bad.items():
        for place in range(4):
            point = [2, 20, 18, 25]
            point[place] = value
            refused({"charts": [chart([line("first", [[1, 10], point])])]}, reason)
    refused({"charts": [chart([])]}, "without a point")
    refused({"charts": [chart([line("first", [])])]}, "without a point")
    refused({"charts": [chart([line("first", [[0, 1]])], x={"logarithmic": True})]}, "logarithmic")
    refused({"charts": [chart([line("first", [[2, 1], [1, 1]])])]}, "left of the one before")
    refused({"charts": [chart([line(str(i), [[1, 1]]) for i in range(65)])]}, "more than 64 lines")
    refused({"title": "t", "charts": []}, "1 to 16")
    refused({"bars": []}, "1 to 64")
    refused({"bars": [{"name": "b", "parts": [{"name": "p", "value": "nan"}]}]}, "not from 0 to 1e300")
    refused({"bytes": True, "bars": [{"name": "b", "parts": [{"name": "p", "value": 1e19}]}]}, "not from 0 to 1e18 bytes")
    refused({"bars": [{"name": "b", "parts": []}]}, "0 parts")


def refused(description, reason):
    draw(description, lambda path, message: check(f"refusal: {reason}", reason in message and not os.path.exists(path), message))


# ---- bars -------------------------------------------------------------------------------------------------------

def check_bars(name, description):
    draw(description, lambda path, message: check(name, message == "", message) and check_bars_file(name, description, path))


def check_bars_file(name, description, path):
    root = read(name, path)
    groups = [g for g in root.iter(SVG + "g") if "bar" in classes(g)] if root is not None else []
    check(name, len(groups) == len(description["bars"]), f"{len(groups)} bars")
    for group, bar in zip(groups, description["bars"]):
        labels = [t for t in group.iter(SVG + "text") if "x-tick" in classes(t)]
        notches = [path_points(p.get("d"))[0][0] for p in group.iter(SVG + "path") if classes(p) == ["axis"]]
        if not check(name, len(labels) == len(notches) >= 2, f"{len(labels)} labels of {len(notches)} notches"):
            continue
        axis = Axis([(number_of(t.text), x) for t, x in zip(labels, notches)])
        check(name, axis.wrong < 0.1 and not axis.logarithmic, f"ticks contradict each other by {axis.wrong}")
        parts = [r for r in group.iter(SVG + "rect") if "part" in classes(r)]
        check(name, len(parts) == len(bar["parts"]), f"{len(parts)} parts")
        before = 0
        for rect, part in zip(parts, bar["parts"]):
            left, width = float(rect.get("x")), float(rect.get("width"))
            end = axis.place(before + part["value"])
            check(name, near(left, axis.place(before)) and (near(left + width, end) or near(left + width + 1, end)), f"{part} from {left} to {left + width}")
            before += part["value"]
        marks = [path_points(p.get("d"))[0][0] for p in group.iter(SVG + "path") if "limit-at" in classes(p)]
        for x in marks:
            check(name, near(x, axis.place(bar["limit"])), f"the limit {bar['limit']} is marked at {x}")
        texts = [t.text for t in root.iter(SVG + "text")]
        if bar.get("limit"):
            check(name, marks or any(p.get("class") == "limit-mark" for p in group.iter(SVG + "path")), "no mark for the limit")
        for part in bar["parts"]:
            if description.get("bytes") and part["value"] < 1e15:
                exact = f"{part['value']:,.0f}".replace(",", " ") if part["value"] >= 10000 else f"{part['value']:.0f}"
                check(name, f"{exact} bytes" in texts, f"{exact} bytes is nowhere")


def bars():
    pools = [{"name": "weights", "value": 14761984, "detail": "43 tensors"}, {"name": "cache", "value": 12582912, "detail": "d" * 400},
             {"name": "tables", "value": 144}, {"name": "blocks", "value": 205824}]
    for limit in (0, 20e6, 40e6, 24e9, 1):
        check_bars(f"bytes, limit {limit}", {"title": "Memory", "bytes": True, "bars": [{"name": "one", "parts": pools, "limit": limit}]})
    check_bars("two bars", {"title": "Memory", "bytes": True, "bars": [
        {"name": "one", "parts": pools, "limit": 40e6, "limit_name": "of the device"}, {"name": "two", "parts": pools[:2], "limit": 1e12}]})
    check_bars("no bytes", {"title": "Time", "unit": "ms", "bars": [{"name": "step", "parts": [{"name": "a", "value": 1.25}, {"name": "b", "value": 0.5}]}]})
    for value in (0, 1, 1e-300, 1e3, 1e18, 1e25, 1e290):
        for is_bytes in (True, False) if value <= 1e18 else (False,):
            check_bars(f"value {value}", {"title": "t", "bytes": is_bytes, "unit": "s", "bars": [{"name": "b", "parts": [{"name": "p", "value": value}]}]})
    hostile = [{"name": name, "detail": name, "value": i + 1} for i, name in enumerate(HOSTILE)]
    for i, text in enumerate(HOSTILE):
        check_bars(f"hostile bar {i}", {"title": text, "subtitle": text, "unit": text, "bytes": i % 2 == 0, "bars": [
            {"name": text, "parts": hostile, "limit": 100 + i * 40, "limit_name": text}]})


# ---- the program's own pictures -----------------------------------------------------------------------------------

def run(*command):
    return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout


def plan(sluice, folder):
    """The picture of a plan has the plan's bytes."""
    path = os.path.join(folder, "plan.svg")
    options = ["plan", "mini", "-c", "512", "--sequences", "4", "--device", "cpu", "-t", "1", "--memory-limit", "64M"]
    facts = json.loads(run(sluice, *options, "-o", "json", "--plot", path))
    check("plan", facts["memory_limit"] == 64 << 20, f"the limit is {facts['memory_limit']}")
    parts = [{"name": row["name"], "value": row["bytes"]} for row in facts["memory"]]
    check_bars_file("plan", {"bytes": True, "bars": [{"parts": parts, "limit": 64 << 20}]}, path)


def bench(sluice, folder):
    """Speeds as the rows have them: a chart for prompts and one for generations, a line for each number of sequences."""
    path = os.path.join(folder, "bench.svg")
    rows = json.loads(run(sluice, "bench", "-m", "mini", "-p", "8,32,16", "-n", "4", "-d", "0,64,16", "--sequences", "2,1", "-t", "1", "-r", "3",
                          "--device", "cpu", "-o", "json", "--plot", path))
    check("bench", len(rows) == 24, f"{len(rows)} rows")

    def points(prompt, sequences):
        chosen = [r for r in rows if r["n_prompt"] == prompt and r["n_sequences"] == sequences]
        return sorted([r["n_depth"], r["avg_ts"], min(r["samples_ts"]), max(r["samples_ts"])] for r in chosen)

    def limit(name, prompt, sequences):
        chosen = [r for r in rows if r["n_prompt"] == prompt and r["n_sequences"] == sequences]
        return line(f"limit, {name}", sorted([r["n_depth"], r["limit_ts"]] for r in chosen), is_limit=True)

    def named(prompt, sequences):
        return (f"{prompt} tokens, " if prompt else "") + f"{sequences} sequence{'s' * (sequences > 1)}"

    read_prompts = [(p, n) for n in (2, 1) for p in (8, 32, 16)]
    order = sorted(range(6), key=lambda i: [r["n_prompt"] * 10 + r["n_sequences"] for r in rows if r["n_prompt"]].index(
        (8, 32, 16)[i % 3] * 10 + (2, 1)[i // 3]))
    charts = [chart([line(named(*which), points(*which)) for which in some] + [limit(named(*which), *which) for which in some])
              for some in ([read_prompts[i] for i in order], [(0, 2), (0, 1)])]
    check_lines_file("bench", {"charts": charts}, path)
    names = [t.text for t in ElementTree.parse(path).getroot().iter(SVG + "text") if "name" in classes(t)]
    check("bench", names == [s["name"] for c in charts for s in c["series"]], f"lines are called {names}")


def divergence(sluice, folder):
    """Mean and 99 % where the figures say; windows whose mean is the mean; half of the tokens below the median."""
    base, small, text, path = (os.path.join(folder, name) for name in ("base.kl", "small.gguf", "text", "kl.svg"))
    with open(text, "w", encoding="utf-8") as file:
        file.write("Water runs through a sluice when its gate is lifted, and stands when it is let down. " * 12)
    options = ["-f", text, "--scoring", "second-half", "--window", "48", "-t", "1", "--device", "cpu"]
    run(sluice, "quantize", "mini", small, "Q4_K_M")
    run(sluice, "perplexity", *options, "--kl-write", base)
    facts = json.loads(run(sluice, "perplexity", "-m", small, *options, "--kl", base, "-o", "json", "--plot", path))["divergence"]
    root = read("divergence", path)
    over_text, over_tokens = (g for g in root.iter(SVG + "g") if "chart" in classes(g))
    for name, part in (("over the text", over_text), ("over the tokens", over_tokens)):
        x_axis, y_axis = axes_of(name, part)
        groups = [g for g in part.iter(SVG + "g") if "series" in classes(g)]
        limits = [path_points(p.get("d"))[0][1] for g in groups for p in g if classes(p) == ["limit"]]
        wanted = [facts["mean"]] + ([facts["p99"]] if part is over_tokens else [])
        check(name, len(limits) == len(wanted) and all(near(y, y_axis.place(v)) for y, v in zip(limits, wanted)), f"limits at {limits}")
        places = path_points(next(p for p in groups[-1] if "line" in classes(p)).get("d"))
        if part is over_text:
            mean = sum(y for _, y in places) / len(places)  # a linear axis: the mean of places is the place of the mean
            check(name, len(places) > 3 and near(mean, y_axis.place(facts["mean"])), f"{len(places)} windows, mean at {mean}")
        else:
            half = min(places, key=lambda place: abs(place[0] - x_axis.place(50)))
            check(name, abs(half[1] - y_axis.place(facts["median"])) < 1, f"the median is at {half}")
            check(name, near(places[-1][1], y_axis.place(facts["maximum"])), f"the largest is at {places[-1]}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for pictures in (refusals, lines_by_hand, lines_by_chance, bars):
            pictures()
        draw_all(folder)
        if len(sys.argv) > 2:
            for picture in (plan, bench, divergence):
                picture(sys.argv[2], folder)
    print(f"{len(asked)} pictures, {len(failures)} failures")
    return 1 if failures else 0


PROGRAM = sys.argv[1]
sys.exit(main())
