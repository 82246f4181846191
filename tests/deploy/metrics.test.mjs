// The dashboard and the rules of alerts ask for what a running server has: every metric and every label of their expressions is
// in /metrics. promtool reads rules and configuration as well, where it is installed.
//
//   node metrics.test.mjs [--server PATH]
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ask, chatBody, get, parseMetrics, start, SUM } from '../server/support.mjs';

const deploy = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../deploy');
const dashboard = JSON.parse(fs.readFileSync(path.join(deploy, 'grafana/sluice.json'), 'utf8'));
const rules = fs.readFileSync(path.join(deploy, 'prometheus/sluice.rules.yml'), 'utf8');

// PromQL's words that are no metrics; what Prometheus adds to every sample; what it writes itself.
const WORDS = new Set(['by', 'without', 'on', 'ignoring', 'group_left', 'group_right', 'and', 'or', 'unless', 'bool', 'offset']);
const ADDED = new Set(['job', 'instance']);
const OWN = new Set(['up']);

/** [{metric, labels}] of an expression; labels that it groups by count for each of its metrics. */
function wanted(expression) {
  const groups = [...expression.matchAll(/\b(?:by|without)\s*\(([^)]*)\)/g)].flatMap(([, list]) => list.split(','));
  const bare = expression.replace(/\b(?:by|without)\s*\([^)]*\)/g, ' ').replace(/\[[^\]]*\]/g, ' ');
  const found = [];
  for (const [, name, next, selector = ''] of bare.matchAll(/([a-zA-Z_:][\w:]*)\s*(\{((?:[^}"]|"[^"]*")*)\}|\(?)/g)) {
    if (WORDS.has(name) || next === '(') continue; // a function
    found.push({ metric: name, labels: [...selector.matchAll(/([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)/g)].map((label) => label[1]) });
  }
  for (const one of found) one.labels.push(...groups.map((label) => label.trim()).filter(Boolean));
  return found;
}

function dashboardExpressions() {
  const all = [];
  for (const panel of dashboard.panels) {
    for (const { expr } of panel.targets ?? []) all.push([`panel "${panel.title}"`, expr]);
  }
  for (const { name, query } of dashboard.templating.list) {
    const expression = /^label_values\((.*),\s*(\w+)\)$/s.exec(query?.query ?? '');
    if (expression) all.push([`variable ${name}`, expression[1]]);
  }
  return all;
}

/** The `expr:` of every alert: on its line, or the indented lines behind a bar. */
function ruleExpressions() {
  const all = [];
  let alert, block;
  for (const line of rules.split('\n')) {
    const indent = /^ */.exec(line)[0].length;
    if (block && indent > block.indent) { block.entry[1] += ` ${line.trim()}`; continue; }
    block = undefined;
    alert = /^ *- alert: (\w+)$/.exec(line)?.[1] ?? alert;
    const expression = /^ *expr: (.*)$/.exec(line);
    if (!expression) continue;
    const entry = [`alert ${alert}`, expression[1] === '|' ? '' : expression[1]];
    all.push(entry);
    if (expression[1] === '|') block = { indent, entry };
  }
  assert.equal(all.length, (rules.match(/- alert:/g) ?? []).length, 'an expression for each alert');
  return all;
}

test('expressions are taken apart', () => {
  assert.deepEqual(wanted('sum by (le, x) (rate(a_bucket{s=~"5..", t="}"}[5m])) > 0.01 * b'), [
    { metric: 'a_bucket', labels: ['s', 't', 'le', 'x'] }, { metric: 'b', labels: ['le', 'x'] }]);
});

test('every metric and label is there', async () => {
  const server = await start();
  try {
    await get(server, '/v1/chat/completions', chatBody(SUM.question));
    await ask(server, '/health');
    const labels = new Map();
    for (const key of parseMetrics((await ask(server, '/metrics')).text).values.keys()) {
      const [, name, list = ''] = /^([^{]+)(?:\{(.*)\})?$/.exec(key);
      const own = labels.get(name) ?? labels.set(name, new Set()).get(name);
      for (const [, label] of list.matchAll(/(\w+)="/g)) own.add(label);
    }
    const expressions = [...dashboardExpressions(), ...ruleExpressions()];
    assert.ok(expressions.length > 30, `${expressions.length} expressions`);
    for (const [where, expression] of expressions) {
      const metrics = wanted(expression);
      assert.ok(metrics.length > 0, `${where}: no metric in ${expression}`);
      for (const { metric, labels: asked } of metrics) {
        if (OWN.has(metric)) continue;
        assert.ok(labels.has(metric), `${where}: the server has no metric ${metric}`);
        for (const label of asked) assert.ok(ADDED.has(label) || labels.get(metric).has(label), `${where}: ${metric} has no label ${label}`);
      }
    }
  } finally {
    await server.stop();
  }
});

test('panels lie beside each other, each once', () => {
  const taken = new Map(), ids = new Set();
  for (const { id, title, gridPos: { x, y, w, h } } of dashboard.panels) {
    assert.ok(!ids.has(id), `panel ${id} is there twice`);
    ids.add(id);
    assert.ok(x + w <= 24, `"${title}" is wider than the page`);
    for (let cell = 0; cell < w * h; cell++) {
      const place = `${x + (cell % w)},${y + Math.floor(cell / w)}`;
      assert.ok(!taken.has(place), `"${title}" lies on "${taken.get(place)}"`);
      taken.set(place, title);
    }
  }
});

test('promtool reads rules and configuration', (context) => {
  const check = (...line) => spawnSync('promtool', ['check', ...line], { encoding: 'utf8', cwd: path.join(deploy, 'prometheus') });
  const first = check('rules', 'sluice.rules.yml');
  if (first.error) return context.skip('promtool is not installed');
  assert.equal(first.status, 0, first.stdout + first.stderr);
  const second = check('config', 'prometheus.yml');
  assert.equal(second.status, 0, second.stdout + second.stderr);
});
