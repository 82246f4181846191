// curl, as most people try a server first.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { MODEL, start, SUM, temporaryFolder } from './support.mjs';

const folder = temporaryFolder();
const socket = path.join(folder, 'socket');
let server, missing = false;
try {
  execFileSync('curl', ['--version'], { stdio: 'ignore' });
} catch {
  missing = 'no curl on this machine';
}
before(async () => {
  if (!missing) server = await start({ args: ['--unix', socket] });
});
after(() => server?.stop());

const curl = (...line) => execFileSync('curl', ['-sS', '--max-time', '60', ...line], { encoding: 'utf8' });
const body = (more = {}) => JSON.stringify({ model: MODEL, messages: [{ role: 'user', content: SUM.question }], temperature: 0, ...more });
const content = (text) => JSON.parse(text).choices[0].message.content;

test('a question, without any header', { skip: missing }, () => {
  assert.equal(content(curl(`${server.url}/v1/chat/completions`, '-H', 'Content-Type: application/json', '-d', body())), SUM.answer);
});

test('over HTTP/1.0, chunked, with Expect, and over a socket file', { skip: missing }, () => {
  const json = ['-H', 'Content-Type: application/json'];
  const url = `${server.url}/v1/chat/completions`;
  assert.equal(content(curl('-0', url, ...json, '-d', body())), SUM.answer);
  assert.equal(content(curl(url, ...json, '-H', 'Transfer-Encoding: chunked', '-d', body())), SUM.answer);
  assert.equal(content(curl(url, ...json, '-H', 'Expect: 100-continue', '-d', body())), SUM.answer);
  assert.equal(content(curl('--unix-socket', socket, 'http://localhost/v1/chat/completions', ...json, '-d', body())), SUM.answer);
  assert.equal(fs.statSync(socket).mode & 0o007, 0, 'a socket file is not for everybody');
});

test('a stream', { skip: missing }, () => {
  const text = curl('-N', `${server.url}/v1/chat/completions`, '-H', 'Content-Type: application/json', '-d', body({ stream: true }));
  assert.ok(text.startsWith('data: {') && text.endsWith('data: [DONE]\n\n'));
});

test('two requests over one connection', { skip: missing }, () => {
  const text = curl('-w', ' %{num_connects}\n', `${server.url}/health`, `${server.url}/v1/models`);
  assert.match(text, / 1\n[^]* 0\n$/);
});
