// What gateways that choose among model servers read of one, against the published protocol (model-server-protocol.json):
// metrics by vLLM's names, keys, models, usage; and their headers, which are theirs.
//
//   --server PATH   the program (else build/release/sluice)
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  ask, chatBody, endless, get, idle, joined, MODEL, parseMetrics, program, send, start, stream, SUM, until,
} from '../server/support.mjs';

const CHAT = '/v1/chat/completions';
const here = path.dirname(fileURLToPath(import.meta.url));
const protocol = JSON.parse(fs.readFileSync(path.join(here, 'model-server-protocol.json'), 'utf8'));
const SIZE = ['-c', '1024', '--sequences', '2', '--cache-tokens', '3072'];

/** Samples of a family: [{labels, value}]. */
function family({ values }, name) {
  return [...values].filter(([key]) => key.replace(/\{.*/, '') === name).map(([key, value]) => ({
    labels: Object.fromEntries([...key.matchAll(/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g)].map(([, label, text]) => [label, text])), value,
  }));
}
const scraped = async (server) => parseMetrics((await ask(server, '/metrics')).text);
/** The one number of a gauge. */
async function gauge(server, name) {
  const samples = family(await scraped(server), name);
  assert.equal(samples.length, 1, name);
  return samples[0].value;
}

test('metrics: names, types and labels are those of the protocol', async () => {
  const server = await start({ args: ['--metrics-prefix', 'vllm:', ...SIZE] });
  const all = await scraped(server);
  for (const { what, name, type, label, list } of protocol.metrics) {
    assert.equal(all.types.get(name), type, `${what}: ${name}`);
    const samples = family(all, name);
    assert.equal(samples.length, 1, `${what}: one sample of ${name}`);
    const [{ labels, value }] = samples;
    assert.ok(Number.isFinite(value), name);
    assert.equal(labels.model_name, MODEL, `${name} says of which model`);
    if (label) assert.match(labels[label] ?? '', /^\d+$/, `${what}: ${label} is a whole number`);
    if (list) assert.equal(labels[list], '', `${what}: ${list}, of which there are none`);
  }
  // Pages as `sluice plan` counts them.
  const plan = execFileSync(program, ['plan', MODEL, ...SIZE], { encoding: 'utf8' });
  const [, pages, tokens] = /(\d+) pages of (\d+) tokens/.exec(plan);
  const [{ labels }] = family(all, 'vllm:cache_config_info');
  assert.deepEqual([labels.num_gpu_blocks, labels.block_size], [pages, tokens]);
  const [{ value: updated }] = family(all, 'vllm:lora_requests_info');
  assert.ok(Math.abs(updated - Date.now() / 1000) < 10, 'the last update is now: adapters are never out of date');
  await server.stop();
});

test('metrics: they tell what runs, what waits and what the cache holds', async () => {
  const server = await start({ args: ['--metrics-prefix', 'vllm:', '-c', '1024', '--sequences', '1'] });
  assert.equal(await gauge(server, 'vllm:kv_cache_usage_perc'), 0);
  const leaving = new AbortController();
  const first = await send(server, CHAT, { body: endless({ max_tokens: 900, stream: true }), signal: leaving.signal });
  first.on('error', () => {}).resume();
  await until('it to run', async () => (await gauge(server, 'vllm:num_requests_running')) === 1);
  const second = send(server, CHAT, { body: endless({ max_tokens: 900 }), signal: leaving.signal }).catch(() => {});
  await until('the other to wait', async () => (await gauge(server, 'vllm:num_requests_waiting')) === 1);
  const usage = await gauge(server, 'vllm:kv_cache_usage_perc');
  assert.ok(usage > 0 && usage <= 1, `${usage}`);
  leaving.abort();
  await second;
  await until('nothing to run', async () =>
    (await gauge(server, 'vllm:num_requests_running')) + (await gauge(server, 'vllm:num_requests_waiting')) === 0);
  assert.equal(await gauge(server, 'vllm:kv_cache_usage_perc'), 0, 'what is only kept can be given up');
  await server.stop();
});

test('--open-metrics: a scraper needs no key, everybody else does', async () => {
  for (const open of [false, true]) {
    const server = await start({ args: [...SIZE, ...(open ? ['--open-metrics'] : [])], key: 'secret' });
    assert.equal((await ask(server, '/metrics', { key: null })).status, open ? 200 : 401);
    assert.equal((await ask(server, '/health', { key: null })).status, 200);
    for (const route of ['/v1/models', '/slots', '/props', '/load']) {
      assert.equal((await ask(server, route, { key: null })).status, 401, route);
    }
    assert.equal((await ask(server, CHAT, { body: chatBody(SUM.question), key: null })).status, 401);
    await server.stop();
  }
});

test('models, both APIs and usage are what pickers read', async () => {
  const server = await start({ args: SIZE });
  const list = await get(server, '/v1/models');
  assert.equal(list.object, 'list');
  assert.deepEqual(list.data.map(({ id, object }) => [id, object]), [[MODEL, 'model']]);
  const { usage } = await get(server, '/v1/completions', { prompt: 'Once upon a time', max_tokens: 4, temperature: 0 });
  const count = ({ prompt_tokens: prompt, completion_tokens: completion, total_tokens: total, prompt_tokens_details: details }) => {
    assert.ok(prompt > 0 && completion > 0 && total === prompt + completion, 'usage');
    assert.ok(Number.isInteger(details.cached_tokens));
  };
  count(usage);
  const { chunks } = await stream(server, CHAT, chatBody(SUM.question, { stream_options: { include_usage: true } }));
  count(chunks.at(-1).usage);
  await server.stop();
});

test('the headers of gateways change nothing', async () => {
  const server = await start({ args: SIZE });
  const headers = Object.fromEntries(protocol.headers.map((name) => [name, '127.0.0.1:1']));
  assert.ok(protocol.headers.length > 10);
  const { chunks, done } = await stream(server, CHAT, chatBody(SUM.question), { headers });
  assert.ok(done);
  assert.equal(joined(chunks), SUM.answer);
  await idle(server);
  await server.stop();
});
