// What the tests of downloads share: files of bytes that look random, the driver `fetch`, folders that vanish.
//
//   node download.test.mjs [--fetch PATH] [--fail PATH] [--short]
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const words = process.argv.slice(2);
export function option(name, otherwise) {
  const at = words.indexOf(`--${name}`);
  return at >= 0 && at + 1 < words.length ? words[at + 1] : otherwise;
}
export const short = words.includes('--short');
export const program = path.resolve(option('fetch', path.join(here, '../../build/release/tests/hub/fetch')));

// The codes of hub/download.h.
export const OK = 0, NOMEM = -1, NAME = -2, NOT_FOUND = -3, DENIED = -4, NETWORK = -5, CONTENT = -6, DISK = -7, STOPPED = -8, BUSY = -9;

export const MEGABYTE = 1 << 20;
/** Bytes that no two calls have in common. */
export function randomBytes(length, seed) {
  const key = crypto.createHash('sha256').update(String(seed)).digest().subarray(0, 16);
  return crypto.createCipheriv('aes-128-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(length));
}
export const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

export const root = fs.mkdtempSync(path.join(os.tmpdir(), 'sluice-hub-'));
const children = new Set();
after(() => {
  for (const child of children) child.kill('SIGKILL');
  fs.rmSync(root, { recursive: true, force: true });
});
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});
export const folder = () => fs.mkdtempSync(path.join(root, 'f'));

/** Starts the driver; `child` may be killed, `told()` is its stderr so far, `result` is its JSON, or null. */
export function begin(line, options = {}) {
  const child = spawn(program, line.map(String), { stdio: ['ignore', 'pipe', 'pipe'], ...options, env: { ...process.env, ...options.env } });
  children.add(child);
  let output = '', errors = '';
  child.stdout.setEncoding('utf8').on('data', (text) => (output += text));
  child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
  const result = new Promise((done) => {
    child.on('close', (code, signal) => {
      children.delete(child);
      const report = /^.*(WARNING|ERROR): \w+Sanitizer[^]*/m.exec(errors);
      let parsed = null;
      try {
        parsed = JSON.parse(output);
      } catch { /* killed */ }
      done({ signal, exit: code, errors, report: report?.[0].slice(0, 6000), parsed });
    });
  });
  return { child, result, told: () => errors };
}

/** Runs the driver to its end. What it says holds no secret and no more than one line. */
export async function run(line, options = {}) {
  const { exit, signal, errors, report, parsed } = await begin(line, options).result;
  assert.equal(report, undefined);
  assert.ok(exit === 0 && parsed, `fetch ended with ${exit ?? signal}: ${errors}`);
  for (const one of Array.isArray(parsed) ? parsed : [parsed]) {
    assert.doesNotMatch(one.message, /secret|key=|signature|\n/);
    assert.equal(one.message === '', one.code === OK, `${one.code}: ${one.message}`);
    assert.ok(one.message.length < 512);
  }
  return Array.isArray(parsed) ? parsed : { ...parsed, errors };
}

/** Fetches what a server has to `to`; {size, sha256} are promises, `options` words for the driver. */
export const get = (server, to, { size = 0, hash = '-', options = [], url = server.url, ...rest } = {}) =>
  run([...options, 'file', url, to, size, hash], rest);

/** The names in a folder, in order. */
export const names = (at) => fs.readdirSync(at).sort();
/** The ranges that a record claims. */
export const record = (to) => JSON.parse(fs.readFileSync(`${to}.part.json`, 'utf8'));

/** Only claimed bytes are there, and those are right. */
export function checkClaims(to, body) {
  const part = fs.readFileSync(`${to}.part`);
  let claimed = 0;
  for (const [from, end] of record(to).ranges) {
    assert.ok(end <= part.length, `claims up to ${end} of ${part.length} bytes`);
    assert.ok(part.subarray(from, end).equals(body.subarray(from, end)), `bytes ${from} to ${end} are wrong`);
    claimed += end - from;
  }
  return claimed;
}

/** The file is whole, and nothing else is there. */
export function checkWhole(to, body) {
  assert.ok(fs.readFileSync(to).equals(body), 'the content differs');
  assert.deepEqual(names(path.dirname(to)).filter((name) => name === path.basename(to) || name.startsWith(`${path.basename(to)}.`)), [path.basename(to)]);
}
