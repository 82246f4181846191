// What the tests of `sluice serve` share: a server as a child process, plain HTTP, streams of events, and the
// command line's tokenizer as a second opinion.
//
//   node FILE.test.mjs [--server PATH] [--short] [NAME=VALUE...]
//
// --server: the program (else build/release/sluice). --short: fewer rounds, for slow builds.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const words = process.argv.slice(2);

/** The value of `--name VALUE` on the command line. */
export function option(name, otherwise) {
  const at = words.indexOf(`--${name}`);
  return at >= 0 && at + 1 < words.length ? words[at + 1] : otherwise;
}
export const short = words.includes('--short');
export const program = path.resolve(option('server', path.join(here, '../../build/release/sluice')));
export const MODEL = 'mini';
/** What `mini` answers at temperature 0: arithmetic that it was trained on, so anybody can check it. */
export const SUM = { question: 'What is 2+3?', answer: '2 + 3 = 5' };
export const LONG_SUM = { question: 'What is 123+456?', answer: '123 + 456 = 579' };

export const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Waits until `probe` gives something true; fails after `seconds`, which are many: they say that it will not be, not how soon it is. */
export async function until(what, probe, seconds = 120) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await probe();
    if (value) return value;
    assert.ok(Date.now() < end, `waited ${seconds} s for ${what}`);
    await sleep(10);
  }
}

// ---- the server ----------------------------------------------------------------------------------------------

const children = new Set();
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});

export class Server {
  constructor(child) {
    this.child = child;
    this.errors = '';
    this.output = '';
    this.port = 0;
    this.key = null;
    this.signalled = false;
    this.exit = null;
    child.stderr?.setEncoding('utf8').on('data', (text) => this.#read(text));
    child.stdout?.setEncoding('utf8').on('data', (text) => (this.output += text));
    children.add(child);
    // 'close' and not 'exit': by then all of stderr has been read.
    this.ended = new Promise((done) => {
      child.on('close', (code, signal) => {
        children.delete(child);
        this.exit = { code, signal };
        done(this.exit);
      });
    });
  }
  #read(text) {
    this.errors += text;
    const line = /listening on https?:\/\/[^\s"]*?:(\d+)\b/.exec(this.errors);
    if (line) this.port = Number(line[1]);
  }
  get pid() {
    return this.child.pid;
  }
  get url() {
    return `http://127.0.0.1:${this.port}`;
  }
  /** The end of its log, for messages. */
  get tail() {
    const report = this.errors.search(/^.*(WARNING|ERROR): \w+Sanitizer/m);
    if (report >= 0) return this.errors.slice(report, report + 8000);
    return this.errors.split('\n').filter((line) => !/ GET \/metrics /.test(line)).slice(-25).join('\n');
  }
  get isReady() {
    return /\bready: /.test(this.errors); // also in a line of --log-format json
  }
  async listening(seconds = 180) {
    await until('the server to listen', () => this.port > 0 || this.exit, seconds);
    assert.ok(this.port > 0, `the server ended early: ${JSON.stringify(this.exit)}\n${this.tail}`);
  }
  async ready(seconds = 300) {
    await until('the server to be ready', () => this.isReady || this.exit, seconds);
    assert.ok(this.isReady && !this.exit, `the server ended early: ${JSON.stringify(this.exit)}\n${this.tail}`);
  }
  signal(name) {
    this.signalled = true;
    this.child.kill(name);
  }
  /** Ends it with SIGTERM, unless it was told to end, and sees that it ends well. */
  async stop(seconds = 120) {
    if (!this.exit) {
      if (!this.signalled) this.signal('SIGTERM');
      let timer;
      const late = new Promise((done) => (timer = setTimeout(done, seconds * 1000, 'late')));
      const first = await Promise.race([this.ended, late]);
      clearTimeout(timer);
      if (first === 'late') {
        this.signal('SIGKILL');
        await this.ended;
        assert.fail(`no end within ${seconds} s of SIGTERM\n${this.tail}`);
      }
    }
    assert.deepEqual(this.exit, { code: 0, signal: null }, `how the server ended\n${this.tail}`);
  }
}

/** Starts `sluice serve` on a free port. wait: 'ready', 'listening' or nothing. */
export async function start(options = {}) {
  const { args = [], port = 0, key = null, wait = 'ready', env = {}, stdio = ['ignore', 'pipe', 'pipe'] } = options;
  const line = ['serve', '--host', '127.0.0.1', '--port', String(port), ...(key ? ['--api-key', key] : []), ...args];
  const server = new Server(spawn(program, line, { stdio, env: { ...process.env, ...env } }));
  server.key = key;
  try {
    if (wait === 'ready' || wait === 'listening') await server.listening();
    if (wait === 'ready') await server.ready();
  } catch (error) {
    server.signal('SIGKILL');
    throw error;
  }
  return server;
}

/** Runs the program to its end: {code, signal, stdout, stderr}. */
export async function run(line, options = {}) {
  const server = new Server(spawn(program, line, { stdio: ['ignore', 'pipe', 'pipe'], ...options }));
  const timer = setTimeout(() => server.signal('SIGKILL'), (options.seconds ?? 240) * 1000);
  const exit = await server.ended;
  clearTimeout(timer);
  return { ...exit, stdout: server.output, stderr: server.errors };
}

// ---- HTTP ----------------------------------------------------------------------------------------------------

/** Sends a request. Gives the response as it begins; its body is unread. */
export function send(server, target, options = {}) {
  const { method = options.body === undefined ? 'GET' : 'POST', headers = {}, body, agent, signal } = options;
  const bytes = body === undefined || Buffer.isBuffer(body) || typeof body === 'string' ? body : JSON.stringify(body);
  return new Promise((done, failed) => {
    const request = http.request(
      {
        host: '127.0.0.1', port: server.port, path: target, method, agent, signal,
        headers: {
          ...(bytes === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(bytes) }),
          ...(server.key && options.key !== null ? { authorization: `Bearer ${options.key ?? server.key}` } : {}),
          ...headers,
        },
      },
      (response) => done(response),
    );
    request.on('error', failed);
    request.setTimeout((options.seconds ?? 300) * 1000, () => request.destroy(new Error(`timeout: ${method} ${target}`)));
    request.end(bytes);
  });
}

async function readAll(response) {
  const parts = [];
  for await (const part of response) parts.push(part);
  return Buffer.concat(parts).toString('utf8');
}

/** A whole exchange: {status, headers, text, json} (json: undefined when it is none). */
export async function ask(server, target, options = {}) {
  const response = await send(server, target, options);
  const text = await readAll(response);
  let json;
  if (/^application\/json\b/.test(response.headers['content-type'] ?? '') && text) json = JSON.parse(text);
  return { status: response.statusCode, headers: response.headers, text, json };
}

/** 200 and its JSON. */
export async function get(server, target, body, options = {}) {
  const answer = await ask(server, target, { body, ...options });
  assert.equal(answer.status, 200, `${target}: ${answer.text}`);
  assert.ok(answer.json, `${target}: no JSON: ${answer.headers['content-type']}`);
  return answer.json;
}

/** The events of a stream as they come: {event, data}; comments as {comment}. */
export async function* events(response) {
  let rest = '';
  response.setEncoding('utf8');
  for await (const text of response) {
    rest += text;
    for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
      const event = {};
      for (const line of rest.slice(0, end).split('\n')) {
        const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (line.startsWith(':')) event.comment = line.slice(1);
        else if (name === 'data') event.data = event.data === undefined ? value : `${event.data}\n${value}`;
        else event[name] = value;
      }
      yield event;
    }
  }
  assert.equal(rest, '', 'a stream ends with a blank line');
}

/** Streams `body` and gives all chunks. `done`: whether [DONE] came, and came last. */
export async function stream(server, target, body, options = {}) {
  const response = await send(server, target, { body: { ...body, stream: true }, ...options });
  if (response.statusCode !== 200) assert.fail(`${target}: ${response.statusCode} ${await readAll(response)}`);
  assert.match(response.headers['content-type'], /^text\/event-stream\b/);
  const chunks = [];
  let done = false;
  for await (const event of events(response)) {
    if (event.data === undefined) continue;
    assert.ok(!done, 'nothing comes after [DONE]');
    if (event.data === '[DONE]') done = true;
    else chunks.push(JSON.parse(event.data));
  }
  return { headers: response.headers, chunks, done };
}

/** The text of choice `index` of a stream of chat or completions. */
export function joined(chunks, index = 0) {
  return chunks.flatMap((chunk) => chunk.choices)
    .filter((choice) => choice.index === index)
    .map((choice) => choice.text ?? choice.delta.content ?? '').join('');
}

export const chatBody = (content, more = {}) => ({
  model: MODEL, messages: [{ role: 'user', content }], temperature: 0, max_tokens: 64, ...more,
});

/** A request that runs for long unless somebody ends it. */
export const endless = (more = {}) => chatBody('Tell me a story.', { max_tokens: 7000, ignore_eos: true, ...more });

/** 400 (or `status`) in OpenAI's shape, about `param`. Gives the error. */
export function assertRefused(answer, param, status = 400) {
  assert.equal(answer.status, status, `expected ${status} for ${param}: ${answer.status} ${answer.text.slice(0, 300)}`);
  assert.ok(answer.json?.error, `an error body: ${answer.text.slice(0, 300)}`);
  const { error } = answer.json;
  for (const key of ['message', 'type', 'param', 'code']) assert.ok(key in error, `error.${key}: ${answer.text}`);
  assert.ok(typeof error.message === 'string' && error.message.length > 0);
  if (param !== undefined) assert.equal(error.param, param, answer.text);
  return error;
}

// ---- what the server says of itself --------------------------------------------------------------------------

/** Prometheus' text format, strictly: Map of `name{labels}` to number. */
export function parseMetrics(text) {
  const values = new Map();
  const types = new Map();
  assert.ok(text.endsWith('\n'));
  for (const line of text.split('\n').slice(0, -1)) {
    if (line === '') continue;
    const comment = /^# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)$/.exec(line);
    if (comment) {
      if (comment[1] === 'TYPE') {
        assert.match(comment[3], /^(counter|gauge|histogram|summary|untyped)$/, line);
        assert.ok(!types.has(comment[2]), `one TYPE each: ${line}`);
        types.set(comment[2], comment[3]);
      }
      continue;
    }
    const sample =
      /^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*",?)*\})? ([+-]?(?:Inf|NaN|[0-9.eE+-]+))$/
        .exec(line);
    assert.ok(sample, `a sample: ${line}`);
    const base = sample[1].replace(/_(bucket|sum|count)$/, '');
    assert.ok(types.has(sample[1]) || types.get(base) === 'histogram', `a type before its sample: ${line}`);
    const key = sample[1] + (sample[2] ?? '');
    assert.ok(!values.has(key), `no sample twice: ${key}`);
    values.set(key, sample[3] === '+Inf' ? Infinity : Number(sample[3]));
  }
  return { values, types };
}

/** The sum of a metric over all its labels; `label` is a part of them. */
export async function metric(server, name, label = '') {
  const { values } = parseMetrics((await ask(server, '/metrics')).text);
  let sum = 0, found = false;
  for (const [key, value] of values) {
    if (key.replace(/\{.*/, '') === `sluice_${name}` && key.includes(label)) [sum, found] = [sum + value, true];
  }
  assert.ok(found || label, `there is a metric sluice_${name}`);
  return sum;
}

/** Nothing runs and nothing waits any more. */
export async function idle(server, seconds = 120) {
  await until('the engine to be idle', async () =>
    (await metric(server, 'num_requests_running')) + (await metric(server, 'num_requests_waiting')) === 0, seconds);
}

/** Resident memory in KiB and open descriptors of a process. */
export function resources(pid) {
  const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
  return {
    resident: Number(/^VmRSS:\s+(\d+)/m.exec(status)[1]),
    threads: Number(/^Threads:\s+(\d+)/m.exec(status)[1]),
    descriptors: fs.readdirSync(`/proc/${pid}/fd`).length,
  };
}

// ---- a second opinion ----------------------------------------------------------------------------------------

/** Token ids of a text, by the command line. */
export function tokenize(text, special = false) {
  const line = ['tokenize', '-m', MODEL, '--ids', ...(special ? ['--special'] : [])];
  const ids = execFileSync(program, line, { input: text, encoding: 'utf8' }).trim();
  return ids === '' ? [] : ids.split(/[\s,]+/).map(Number);
}

/** ChatML as models/chat_template.jinja defines it, up to where the assistant begins. */
export const chatml = (messages) =>
  messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`).join('') + '<|im_start|>assistant\n';

/** Tokens of a conversation whose contents hold no special token's text. */
export const promptTokens = (messages) => tokenize(chatml(messages), true).length;

export function temporaryFolder() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sluice-server-'));
  process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
  return folder;
}
