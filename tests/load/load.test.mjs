// `sluice load` against a server of known delays (scripted.mjs), and against `sluice serve`.
//
//   node load.test.mjs [--program PATH]      else build/release/sluice
//
// Times are compared with when the server wrote, so a slow server makes no difference to what is expected. On a
// machine with other work both programs wait for their turn, which the generator measures: tests of milliseconds
// try again then, and add that to their tolerance.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { after, before, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Scripted } from './scripted.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const words = process.argv.slice(2);
const given = words.indexOf('--program');
const program = path.resolve(given >= 0 ? words[given + 1] : path.join(here, '../../build/release/sluice'));
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sluice-load-'));
const file = (name) => path.join(folder, name);
let server;
before(async () => (server = await Scripted.start()));
after(async () => {
  await server.stop();
  fs.rmSync(folder, { recursive: true });
});
beforeEach(() => server.clear());

/** Runs the program to its end: {code, stdout, stderr}. */
function run(line, options = {}) {
  const child = spawn(program, line, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...options.env } });
  const result = { stdout: '', stderr: '' };
  child.stdout.on('data', (text) => (result.stdout += text));
  child.stderr.on('data', (text) => (result.stderr += text));
  options.started?.(child);
  const timer = setTimeout(() => child.kill('SIGKILL'), 300000);
  return new Promise((done) =>
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      done({ ...result, code: code ?? signal });
    }));
}

/** The same with a script for the server: {code, figures, trace, stderr}; words like {'--rate': 5}. */
let traces = 0;
async function load(script, options = {}, more = {}) {
  const trace = file(`${traces++}.jsonl`);
  const line = ['load', more.url ?? server.url, ...(script ? ['--model', script] : []), '-o', 'json', '--trace', trace];
  for (const [name, value] of Object.entries({ '--seed': 1, ...options })) line.push(name, ...(value === true ? [] : [String(value)]));
  const result = await run(line, more);
  const rows = fs.existsSync(trace) ? fs.readFileSync(trace, 'utf8').split('\n').filter(Boolean).map((row) => JSON.parse(row)) : [];
  return { ...result, trace: rows, figures: result.stdout ? JSON.parse(result.stdout) : null };
}

/** The same, once more unless both programs had a processor when they wanted it: {..., late}, in ms at worst. */
async function quiet(script, options, most = 1) {
  let result;
  for (let i = 0; i < 2; i++) {
    server.clear();
    const lag = monitorEventLoopDelay({ resolution: 1 });
    lag.enable();
    result = await load(script, options);
    lag.disable();
    result.late = result.figures.max_generator_late_ms + lag.max / 1e6;
    if (result.figures.p99_generator_late_ms < most) break;
    if (i === 1) console.log(`# a busy machine: late by up to ${result.late} ms`);
  }
  return result;
}

/** As numpy.percentile has it: linear between the neighbours of q (n - 1). */
function quantile(values, q) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = q * (sorted.length - 1), below = Math.floor(at), above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const gaps = (values) => values.slice(1).map((value, i) => value - values[i]);
function near(value, expected, tolerance, what) {
  assert.ok(Math.abs(value - expected) <= tolerance, `${what}: ${value}, expected ${expected} within ${tolerance}`);
}
/** Between the end of a request and the beginning of the next, of one client. */
const pauses = (trace) => trace.slice(1).map((row, i) => row.start_ms - trace[i].start_ms - trace[i].end_ms + 1e-4);
const kinds = (figures) => Object.fromEntries(figures.failures.map((one) => [one.kind, one.count]));

// ---- times ---------------------------------------------------------------------------------------------------

test('delays are those of the server', async () => {
  const { figures, trace, code, stderr, late } = await quiet('first=60,gap=12,count=20', { '--concurrency': 4, '--requests': 24, '--endpoint': 'completions' });
  assert.equal(code, 0, stderr);
  assert.equal(figures.completed, 24);
  const waits = server.requests.map((row) => row.written[0] - row.came);
  const between = server.requests.flatMap((row) => gaps(row.written));
  const whole = server.requests.map((row) => row.written.at(-1) - row.came);
  for (const q of [50, 90]) {
    // The way of the bytes through both programs.
    near(figures[`p${q}_ttft_ms`], quantile(waits, q / 100), 2 + 2 * late, `ttft p${q}`);
    near(figures[`p${q}_itl_ms`], quantile(between, q / 100), 1 + 2 * late, `itl p${q}`);
    near(figures[`p${q}_e2el_ms`], quantile(whole, q / 100), 3 + 2 * late, `e2e p${q}`);
  }
  near(figures.mean_itl_ms, mean(between), 0.2 + late / 5, 'mean itl');
  near(figures.mean_tpot_ms, mean(between), 0.2 + late / 5, 'mean tpot'); // a token an event
  // What the script says: a timer is never early.
  assert.ok(figures.median_ttft_ms >= 60 && figures.median_ttft_ms < 66 + 2 * late, `${figures.median_ttft_ms}`);
  assert.ok(figures.median_itl_ms >= 11 && figures.median_itl_ms < 14 + 2 * late, `${figures.median_itl_ms}`);
  assert.ok(figures.mean_first_byte_ms < figures.mean_ttft_ms - 40, 'the head comes long before the first token');
  assert.equal(trace.filter((row) => row.connect_ms !== null).length, server.connections);
  assert.ok(server.connections <= 4, 'connections are used again');
  assert.equal(figures.total_output_tokens, 480);
  assert.equal(figures.total_input_tokens, 264);
  near(figures.output_throughput, 480 / figures.duration, 1e-6 * figures.output_throughput, 'throughput');
});

test('all figures follow from the trace', async () => {
  const { figures, trace } = await load('first=10,gap=2,count=8,slow=1200,every=10', { '--concurrency': 5, '--requests': 100 });
  const done = trace.filter((row) => row.outcome === 'done');
  assert.equal(done.length, 100);
  const series = {
    ttft: done.map((row) => row.ttft_ms), itl: done.flatMap((row) => row.itl_ms), e2el: done.map((row) => row.last_token_ms),
    tpot: done.map((row) => (row.last_token_ms - row.ttft_ms) / (row.completion_tokens - 1)), first_byte: done.map((row) => row.first_byte_ms),
  };
  for (const [name, values] of Object.entries(series)) {
    for (const q of [50, 90, 95, 99]) near(figures[`p${q}_${name}_ms`], quantile(values, q / 100), 1e-3, `${name} p${q}`);
    near(figures[`median_${name}_ms`], quantile(values, 0.5), 1e-3, name);
    near(figures[`mean_${name}_ms`], mean(values), 1e-3, name);
    near(figures[`max_${name}_ms`], Math.max(...values), 1e-3, name);
    near(figures[`std_${name}_ms`], Math.sqrt(mean(values.map((x) => (x - mean(values)) ** 2))), 1e-3, name);
  }
  // The tenth that waits 1.2 s lies above the 90th percentile and not at the median.
  assert.ok(figures.p95_ttft_ms >= 1200 && figures.median_ttft_ms < 900, `${figures.p95_ttft_ms}, ${figures.median_ttft_ms}`);
});

test('events of one read are 0 apart, tokens are not events', async () => {
  const { figures, trace } = await load('first=5,gap=15,count=20,burst=5,tokens=3', { '--requests': 10 });
  const zeros = trace.flatMap((row) => row.itl_ms).filter((gap) => gap === 0);
  // 4 writes of 5 events: 4 gaps of 0 in each. A client that was asleep may find two writes in one read.
  assert.ok(zeros.length >= 10 * 16 && zeros.length <= 10 * 16 + 15, `${zeros.length} gaps of 0`);
  assert.equal(figures.median_itl_ms, 0);
  assert.ok(quantile(trace.flatMap((row) => row.itl_ms), 0.95) >= 10);
  assert.equal(figures.total_text_events, 200);
  assert.equal(figures.total_output_tokens, 600);
  for (const row of trace) assert.equal(row.completion_tokens, 60);
  near(figures.mean_tpot_ms, mean(trace.map((row) => (row.last_token_ms - row.ttft_ms) / 59)), 1e-3, 'tpot is by tokens');
});

test('without usage tokens are events, and it is said', async () => {
  const { figures, trace } = await load('count=7,usage=0', { '--requests': 5 });
  assert.equal(figures.answers_with_usage, 0);
  assert.equal(figures.total_output_tokens, 35);
  assert.equal(trace[0].completion_tokens, null);
  const text = await run(['load', server.url, '--model', 'count=7,usage=0', '--requests', '5']);
  assert.match(text.stdout, /5 of 5 answers said no usage: their tokens are counted as events/);
});

test('tokens that are no text count all the same', async () => {
  const { figures, trace } = await load('count=6,mute=1', { '--requests': 5, '--objective': 'ttft:60000' });
  assert.equal(figures.completed, 5);
  assert.equal(figures.total_output_tokens, 30);
  assert.equal(figures.total_text_events, 0);
  assert.equal(figures.good, 0, 'a first token never came');
  assert.equal(trace[0].ttft_ms, null);
});

test('goodput counts exactly', async () => {
  // Every second request waits 500 ms, so half of them meet 250 ms; the gaps of all are above 1 ms.
  const script = 'first=10,gap=3,count=4,slow=500,every=2';
  const half = await quiet(script, { '--requests': 20, '--concurrency': 5, '--objective': 'ttft:250,e2e:5000' }, 10);
  assert.equal(half.figures.good, half.trace.filter((row) => row.ttft_ms <= 250).length);
  if (half.late < 100) assert.equal(half.figures.good, 10);
  near(half.figures.request_goodput, half.figures.good / half.figures.duration, 1e-6, 'goodput');
  // None is good that needs less than the server takes; a client would have to sleep for 300 ms to see less.
  const good = async (objective) => (await quiet('first=5,gap=150,count=3', { '--requests': 4, '--concurrency': 4, ...(objective ? { '--objective': objective } : {}) }, 10)).figures;
  assert.equal((await good('itl:20')).good, 0);
  assert.equal((await good('tpot:20')).good, 0);
  assert.equal((await good('e2e:20')).good, 0);
  assert.equal((await good('e2el:20000,tpot:10000,itl:10000,ttft:10000')).good, 4);
  assert.equal((await good()).request_goodput, null);
});

// ---- arrivals ------------------------------------------------------------------------------------------------

test('arrivals are a Poisson process of the rate', async () => {
  const { figures, trace, late } = await quiet('first=1,gap=0,count=1', { '--rate': 100, '--requests': 400 });
  const due = trace.map((row) => row.due_ms).sort((a, b) => a - b);
  const between = gaps(due);
  // 400 gaps of the mean 10 ms: four standard errors of the mean, and of the variance (that of an exponential: 8 mean^4 / n).
  near(mean(between), 10, 4 * (10 / Math.sqrt(400)), 'mean gap');
  const variance = mean(between.map((gap) => (gap - mean(between)) ** 2));
  near(variance, 100, 4 * Math.sqrt(8 * 10 ** 4 / 400), 'variance of gaps');
  // The server saw them when they were due.
  const seen = server.requests.map((row) => row.came);
  const way = quantile(seen.map((time, i) => time - due[i]), 0.5);
  const off = seen.map((time, i) => Math.abs(time - due[i] - way));
  assert.ok(quantile(off, 0.9) < 3 + 2 * late, `arrivals are ${quantile(off, 0.9)} ms off at p90`);
  assert.equal(figures.completed, 400);
  assert.equal(figures.request_rate, 100);
});

test('a seed says when requests come, burstiness how evenly', async () => {
  const options = { '--rate': 500, '--requests': 200 };
  const dues = async (more) => (await load('first=1,count=1', { ...options, ...more })).trace.map((row) => row.due_ms).sort((a, b) => a - b);
  const spread = (due) => Math.sqrt(mean(gaps(due).map((gap) => (gap - mean(gaps(due))) ** 2))) / mean(gaps(due));
  const [a, b, c, even] = await Promise.all([dues({ '--seed': 4 }), dues({ '--seed': 4 }), dues({ '--seed': 5 }), dues({ '--burstiness': 100 })]);
  // All times of a run but for when it began.
  gaps(a).forEach((gap, i) => near(gap, gaps(b)[i], 1e-2, 'the same seed'));
  assert.ok(Math.abs(gaps(a)[0] - gaps(c)[0]) > 1e-6, 'another seed');
  near(spread(a), 1, 0.3, 'spread of a Poisson process');
  near(spread(even), 0.1, 0.03, 'spread with the shape 100');
});

test('a closed loop has never more than its clients', async () => {
  const { figures } = await load('first=5,gap=1,count=5', { '--concurrency': 7, '--requests': 120 });
  assert.equal(server.most, 7);
  assert.equal(figures.max_concurrent_requests, 7);
  assert.equal(server.requests.length, 120);
});

test('a rate with a cap holds arrivals back', async () => {
  const { figures, trace } = await quiet('first=40,count=1', { '--rate': 400, '--concurrency': 3, '--requests': 40 });
  assert.equal(server.most, 3);
  assert.equal(figures.arrivals_held, true);
  assert.ok(trace.at(-1).start_ms - trace.at(-1).due_ms > 100, 'the last one waited');
  assert.ok(figures.p90_generator_late_ms < 100, 'which is not the lateness of the generator');
});

test('the warmup does not count, and the end cuts', async () => {
  const { figures, trace, code, late } = await quiet('first=30,gap=10,count=8', { '--concurrency': 2, '--warmup': 0.5, '--time': 1 });
  assert.equal(code, 0);
  near(figures.duration, 1, 1e-3, 'seconds');
  const counted = trace.filter((row) => row.start_ms + row.end_ms >= 500);
  assert.equal(figures.completed, counted.filter((row) => row.outcome === 'done').length);
  assert.ok(figures.completed < trace.filter((row) => row.outcome === 'done').length);
  assert.equal(figures.unfinished, counted.filter((row) => row.outcome === 'unfinished').length);
  assert.ok(figures.unfinished >= 1 && figures.unfinished <= 2, `${figures.unfinished}`);
  // Tokens that came within the second, of those cut off too.
  const times = server.requests.flatMap((row) => row.written);
  const last = Math.max(...times), within = times.filter((time) => time > last - 1000).length;
  near(figures.total_output_tokens, within, 4 + late / 2, 'tokens of the second'); // 2 clients, about 10 ms each
});

// ---- what goes wrong -----------------------------------------------------------------------------------------

test('errors are counted by kind', async () => {
  const cases = [
    ['status=400', 'HTTP 400', 'status 400'], ['status=500', 'HTTP 500', 'status 500'], ['break=2', null, ''], ['fault=2', 'an error in the answer', 'out of order'],
    ['quiet=1', 'the stream broke off before its end', ''], ['garbage=1', 'what came is no JSON', ''], ['wrong=1', 'an error in the answer', 'not today'], ['moved=/elsewhere', 'HTTP 302', ''],
  ];
  await Promise.all(cases.map(async ([script, kind, example]) => {
    const { figures, code, trace } = await load(script, { '--requests': 3, '--concurrency': 3 });
    assert.equal(code, 1, script);
    assert.equal(figures.failed, 3, script);
    assert.equal(figures.completed, 0, script);
    assert.deepEqual(Object.values(kinds(figures)), [3], script);
    if (kind) assert.deepEqual(Object.keys(kinds(figures)), [kind], script);
    assert.ok(figures.failures[0].example.includes(example), `${script}: ${figures.failures[0].example}`);
    assert.equal(trace[0].outcome, 'failed');
    assert.equal(figures.mean_ttft_ms, 0, 'failed requests have no times');
  }));
});

test('a character NUL is text like any other', async () => {
  const { figures, code } = await load('nul=1,count=4', { '--requests': 2, '--concurrency': 1 });
  assert.equal(code, 0);
  assert.equal(figures.completed, 2);
});

test('a stream that stalls ends by the timeout', async () => {
  const { figures, code } = await load('stall=3,count=9', { '--requests': 2, '--concurrency': 2, '--timeout': 0.4 });
  assert.equal(code, 1);
  assert.deepEqual(kinds(figures), { 'timed out': 2 });
  assert.ok(figures.duration >= 0.4 && figures.duration < 60, `${figures.duration}`);
});

test('nobody listens', async () => {
  const closed = await Scripted.start();
  await closed.stop();
  const { figures, code } = await load('x', { '--requests': 2 }, { url: closed.url });
  assert.equal(code, 1);
  assert.equal(figures.failed, 2);
  assert.match(figures.failures[0].kind, /connect/);
  const none = await run(['load', closed.url]);
  assert.equal(none.code, 1);
  assert.match(none.stderr, /^sluice: load: http:\/\/127\.0\.0\.1:\d+\/v1\/models: .*connect.*\n$/);
});

test('refusals are counted, and Retry-After is waited for', async () => {
  const without = await load('status=429', { '--requests': 3 });
  assert.deepEqual([without.figures.refused, without.figures.refused_with_retry_after, without.figures.failed], [3, 0, 3]);
  assert.equal(without.code, 1);
  assert.ok(Math.min(...pauses(without.trace)) >= 100, `a refused client waits 100 ms: ${pauses(without.trace)}`);
  server.clear();
  const told = await load('status=503,wait=0.4', { '--requests': 2 });
  assert.deepEqual([told.figures.refused, told.figures.refused_with_retry_after, told.figures.failed], [2, 2, 2]);
  assert.ok(pauses(told.trace)[0] >= 400);
  assert.equal(told.trace[0].retry_after_s, 0.4);
});

test('clients that leave', async () => {
  const { figures, code } = await load('first=5,gap=2,count=120', { '--requests': 60, '--concurrency': 6, '--abort': 0.5, '--max-tokens': 30 });
  assert.equal(code, 0);
  assert.equal(figures.failed, 0);
  assert.equal(figures.completed + figures.aborted, 60);
  near(figures.aborted, 30, 4 * Math.sqrt(60 * 0.25), 'half of 60');
  const left = () => server.requests.filter((row) => row.left).length;
  for (const end = performance.now() + 30000; left() < figures.aborted && performance.now() < end;) await new Promise((done) => setTimeout(done, 20));
  assert.equal(server.requests.filter((row) => row.left).length, figures.aborted, 'as the server saw it');
  const counts = new Set(server.requests.filter((row) => row.left).map((row) => row.written.length));
  assert.ok(counts.size >= 5, 'at different tokens');
});

test('an answer that is no stream', async () => {
  const { figures, trace, code } = await load('plain=1,first=20,count=6', { '--requests': 3 });
  assert.equal(code, 0);
  assert.equal(figures.answers_not_streamed, 3);
  assert.equal(figures.total_output_tokens, 18);
  assert.ok(trace[0].ttft_ms >= 20 && trace[0].ttft_ms === trace[0].last_token_ms);
});

// ---- what is asked -------------------------------------------------------------------------------------------

test('shared beginnings, as the server sees them', async () => {
  await load('count=1', { '--requests': 6, '--shared': 40, '--groups': 3, '--prompt-tokens': 10 });
  const prompts = server.requests.map((row) => row.body.messages[0].content.split(' '));
  for (const prompt of prompts) assert.equal(prompt.length, 50);
  const heads = prompts.map((prompt) => prompt.slice(0, 40).join(' ')), tails = prompts.map((prompt) => prompt.slice(40).join(' '));
  assert.equal(new Set(heads).size, 3);
  assert.equal(heads[0], heads[3]);
  assert.equal(new Set(tails).size, 6);
});

test('turns send all before, after a pause', async () => {
  const { figures, trace } = await load('count=3', { '--requests': 6, '--turns': 3, '--think': 0.6, '--concurrency': 1 });
  const bodies = server.requests.map((row) => row.body.messages);
  assert.deepEqual(bodies.map((messages) => messages.length), [1, 3, 5, 1, 3, 5]);
  assert.deepEqual(bodies[2].slice(0, 3), bodies[1]);
  assert.deepEqual(bodies[2].map((message) => message.role), ['user', 'assistant', 'user', 'assistant', 'user']);
  assert.equal(bodies[1][1].content, 'w0 w1 w2 ', "the server's own answer");
  const [first, second, none, third, fourth] = pauses(trace);
  for (const pause of [first, second, third, fourth]) assert.ok(pause >= 600, `the pause: ${pause}`);
  assert.ok(none < 550, `none before another conversation: ${none}`);
  assert.deepEqual(trace.map((row) => row.turn), [1, 2, 3, 1, 2, 3]);
  assert.equal(figures.completed, 6);
});

test('lengths, fields and keys', async () => {
  fs.writeFileSync(file('key'), ' secret \n');
  await load('count=1', {
    '--requests': 40, '--prompt-tokens': '30:8', '--max-tokens': '20:5', '--temp': 0, '--ignore-eos': true, '--body': '{"top_k": 3}', '--api-key-file': file('key'), '--header': 'X-Tag: a b',
  });
  const lengths = server.requests.map((row) => row.body.messages[0].content.split(' ').length);
  near(mean(lengths), 30, 4 * 8 / Math.sqrt(40), 'words');
  assert.ok(new Set(lengths).size > 8);
  near(mean(server.requests.map((row) => row.body.max_tokens)), 20, 4 * 5 / Math.sqrt(40), 'max_tokens');
  const { body, headers, path: where } = server.requests[0];
  assert.deepEqual([body.temperature, body.ignore_eos, body.top_k, body.stream, body.stream_options], [0, true, 3, true, { include_usage: true }]);
  assert.deepEqual([headers.authorization, headers['x-tag'], headers['content-type'], headers.expect], ['Bearer secret', 'a b', 'application/json', undefined]);
  assert.equal(where, '/v1/chat/completions');
  server.clear();
  await load('count=1', { '--requests': 1, '--endpoint': 'completions', '--token-ids': '5-6', '--prompt-tokens': 9 }, { url: `127.0.0.1:${server.port}/v1/` });
  assert.equal(server.requests[0].path, '/v1/completions');
  assert.equal(server.requests[0].body.prompt.length, 9);
});

test('prompts of a file, and the first model', async () => {
  fs.writeFileSync(file('prompts'), 'one\n{"prompt": "two", "max_tokens": 3}\n');
  const { figures } = await load(null, { '--requests': 3, '--prompts': file('prompts') });
  assert.deepEqual(server.requests.map((row) => row.body.messages[0].content), ['one', 'two', 'one']);
  assert.deepEqual(server.requests.map((row) => row.body.max_tokens), [128, 3, 128]);
  assert.equal(figures.model_id, 'first=5,count=2');
  assert.deepEqual(server.others.map((other) => [other.method, other.path]), [['GET', '/v1/models']]);
});

test('it talks to nobody else', async () => {
  const other = await Scripted.start();
  const proxies = Object.fromEntries(['http_proxy', 'HTTP_PROXY', 'all_proxy', 'ALL_PROXY', 'https_proxy'].map((name) => [name, other.url]));
  await load(`moved=${other.url}/v1/chat/completions`, { '--requests': 2 }, { env: proxies });
  assert.equal(server.requests.length, 2);
  assert.equal(other.connections, 0);
  await other.stop();
});

test('HTTPS, with the certificates of a file', async () => {
  try {
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', file('key.pem'), '-out', file('cert.pem'), '-days', '2', '-subj', '/CN=test', '-addext', 'subjectAltName=IP:127.0.0.1'], { stdio: 'ignore' });
  } catch {
    console.log('# no openssl on this machine: HTTPS is not tested');
    return;
  }
  const safe = await Scripted.start({ key: fs.readFileSync(file('key.pem')), cert: fs.readFileSync(file('cert.pem')) });
  const believed = await load('count=3', { '--requests': 4, '--ca-file': file('cert.pem') }, { url: safe.url });
  assert.deepEqual([believed.code, believed.figures?.completed], [0, 4], believed.stderr);
  const unknown = await load('count=3', { '--requests': 1 }, { url: safe.url });
  assert.deepEqual([unknown.code, unknown.figures.failed], [1, 1]);
  assert.match(unknown.figures.failures[0].kind, /certificate/i);
  await safe.stop();
});

// ---- the command ---------------------------------------------------------------------------------------------

/** Does something to the program once the server has seen so many requests. */
const when = (count, act) => (child) => {
  const timer = setInterval(() => {
    if (server.requests.length < count && child.exitCode === null) return;
    clearInterval(timer);
    act(child);
  }, 5);
};

test('Ctrl-C prints what was measured so far', async () => {
  const begin = performance.now();
  const { figures, code } = await load('first=5,gap=5,count=5', { '--concurrency': 2, '--time': 50 }, { started: when(20, (child) => child.kill('SIGINT')) });
  assert.equal(code, 0);
  assert.equal(figures.interrupted, true);
  assert.ok(figures.completed >= 18, `${figures.completed}`);
  assert.ok(figures.completed + figures.unfinished === figures.num_prompts);
  assert.ok(performance.now() - begin < 45000);
});

test('a generator that is late says so', async () => {
  const stop = (child) => {
    child.kill('SIGSTOP');
    setTimeout(() => child.kill('SIGCONT'), 400);
  };
  const { figures, stderr } = await load('first=5,gap=2,count=5', { '--concurrency': 2, '--time': 2 }, { started: when(5, stop) });
  assert.ok(figures.max_generator_late_ms >= 380 && figures.max_generator_late_ms < 20000, `as long as it was stopped: ${figures.max_generator_late_ms}`);
  assert.match(stderr, /warning: the generator itself was late/);
});

test('a sweep, and its picture', async () => {
  const picture = file('sweep.svg');
  const { figures, code, stderr } = await load('first=5,gap=1,count=3', { '--concurrency': '1,2,4', '--requests': 20, '--plot': picture });
  assert.equal(code, 0, stderr);
  assert.deepEqual(figures.map((one) => one.max_concurrency), [1, 2, 4]);
  assert.deepEqual(figures.map((one) => one.completed), [20, 20, 20]);
  const prompts = server.requests.map((row) => row.body.messages[0].content);
  assert.equal(new Set(prompts).size, 60, 'no row asks what another asked');
  assert.match(fs.readFileSync(picture, 'utf8'), /^<svg[\s\S]*<\/svg>\s*$/);
  const single = await load('first=5,gap=1,count=3', { '--requests': 20, '--plot': file('one.svg') });
  assert.equal(single.code, 0, single.stderr);
  assert.match(fs.readFileSync(file('one.svg'), 'utf8'), /^<svg[\s\S]*first token[\s\S]*<\/svg>\s*$/);
});

test('sluice serve counts what is sent', async () => {
  let line = '';
  const child = spawn(program, ['serve', '--port', '0', '-t', '1', '--sequences', '4'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const port = await new Promise((done, failed) => {
    child.stderr.on('data', (text) => {
      line += text;
      if (/\bready: /.test(line)) done(/listening on http:\/\/[^\s]*:(\d+)/.exec(line)[1]);
    });
    child.on('close', () => failed(new Error(line)));
  });
  try {
    const { figures, code, stderr } = await load(null, {
      '--requests': 12, '--concurrency': 3, '--endpoint': 'completions', '--seed': 7, '--token-ids': '300-900', '--prompt-tokens': 20, '--max-tokens': 16, '--ignore-eos': true,
    }, { url: `http://127.0.0.1:${port}` });
    assert.equal(code, 0, stderr);
    assert.equal(figures.model_id, 'mini');
    assert.equal(figures.completed, 12);
    assert.equal(figures.total_output_tokens, 12 * 16);
    assert.equal(figures.total_input_tokens, 12 * 20, 'token ids are tokens');
    assert.equal(figures.prompt_tokens_wanted, 20);
    assert.equal(figures.answers_shorter_than_asked, 0);
  } finally {
    child.kill('SIGTERM');
    await new Promise((done) => child.on('close', done));
  }
});
