// The proxies' configurations of deploy/ as they stand, in front of a real server: nginx and Caddy, where they are installed.
//
//   node proxy.test.mjs nginx|caddy [--server PATH]
//
// Addresses, ports and the certificate are put in the place of the example's; nothing else is changed.
import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import https from 'node:https';
import net from 'node:net';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { chatBody, endless, events, idle, metric, SUM, sleep, start, temporaryFolder, until } from '../server/support.mjs';

const MAX_BODY = 64 * 1024 * 1024;
const WATCHED = 400; // tokens
const NAME = 'llm.example.org';
const which = process.argv[2];
const deploy = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../deploy');

const there = spawnSync(which === 'nginx' ? 'nginx' : 'caddy', ['version'], { stdio: 'ignore' }).error === undefined;
if (!there || spawnSync('openssl', ['version'], { stdio: 'ignore' }).error) {
  console.log(`skipped: ${there ? 'openssl' : which} is not installed`);
  process.exit(77);
}

/** A port that is free now. */
const freePort = () => new Promise((done) => {
  const holder = net.createServer().listen(0, '127.0.0.1', () => {
    const { port } = holder.address();
    holder.close(() => done(port));
  });
});

/** Replaces what must be there. */
function put(text, from, to) {
  assert.ok(text.includes(from), `the configuration has no "${from}" any more`);
  return text.replaceAll(from, to);
}

const folder = temporaryFolder();
const certificate = path.join(folder, 'certificate.pem'), key = path.join(folder, 'key.pem');
let server, proxy, port;
let log = '';

function nginx(backend) {
  let site = fs.readFileSync(path.join(deploy, 'nginx/sluice.conf'), 'utf8');
  site = put(site, 'listen 443 ssl', `listen 127.0.0.1:${port} ssl`);
  site = put(site, '127.0.0.1:8080', `127.0.0.1:${backend}`);
  site = put(put(site, `/etc/ssl/certs/${NAME}.pem`, certificate), `/etc/ssl/private/${NAME}.key`, key);
  fs.writeFileSync(path.join(folder, 'site.conf'), site);
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((kind) => `${kind}_temp_path ${folder}/${kind};`);
  fs.writeFileSync(path.join(folder, 'nginx.conf'), `daemon off;\nmaster_process off;\npid ${folder}/pid;\nerror_log stderr;\n` +
    `events {}\nhttp {\naccess_log off;\n${paths.join('\n')}\ninclude ${folder}/site.conf;\n}\n`);
  return ['nginx', ['-c', path.join(folder, 'nginx.conf'), '-e', 'stderr']];
}

function caddy(backend) {
  let site = fs.readFileSync(path.join(deploy, 'caddy/Caddyfile'), 'utf8');
  site = put(site, `${NAME} {`, `https://${NAME}:${port} {\n\tbind 127.0.0.1\n\ttls ${certificate} ${key}`);
  site = put(site, '127.0.0.1:8080', `127.0.0.1:${backend}`);
  // Nothing is written outside, and nothing listens besides: no certificates fetched, no administration.
  fs.writeFileSync(path.join(folder, 'Caddyfile'), `{\n\tadmin off\n\tauto_https off\n\tstorage file_system ${folder}\n}\n${site}`);
  return ['caddy', ['run', '--adapter', 'caddyfile', '--config', path.join(folder, 'Caddyfile')]];
}

before(async () => {
  execFileSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', `/CN=${NAME}`, '-addext',
    `subjectAltName=DNS:${NAME}`, '-keyout', key, '-out', certificate], { stdio: 'ignore' });
  server = await start({ args: ['--allowed-host', NAME] });
  port = await freePort();
  const [program, line] = (which === 'nginx' ? nginx : caddy)(server.port);
  const env = { ...process.env, HOME: folder, XDG_CONFIG_HOME: folder, XDG_DATA_HOME: folder };
  proxy = spawn(program, line, { stdio: ['ignore', 'pipe', 'pipe'], env });
  for (const stream of [proxy.stdout, proxy.stderr]) stream.setEncoding('utf8').on('data', (text) => (log += text));
  process.on('exit', () => proxy.kill('SIGKILL'));
  await until(`${which} to listen`, async () => {
    assert.equal(proxy.exitCode, null, `${which} ended: ${log}`);
    return through('GET', '/health').then((answer) => answer.status === 200, () => false);
  });
});

after(async () => {
  proxy?.kill('SIGTERM');
  await server?.stop();
});

/** A request through the proxy; the response as it begins. */
const open = (method, target, body, headers = {}, signal) => new Promise((done, failed) => {
  const bytes = body === undefined ? undefined : Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body));
  const request = https.request({
    host: '127.0.0.1', port, servername: NAME, ca: fs.readFileSync(certificate), path: target, method, signal, agent: false,
    headers: { host: NAME, ...(bytes ? { 'content-type': 'application/json', 'content-length': bytes.length } : {}), ...headers },
  }, done);
  request.on('error', failed);
  request.setTimeout(60000, () => request.destroy(new Error(`no answer: ${method} ${target}\n${log}`)));
  request.end(bytes);
});

async function through(method, target, body, headers) {
  const response = await open(method, target, body, headers);
  const parts = [];
  for await (const part of response) parts.push(part);
  return { status: response.statusCode, headers: response.headers, text: Buffer.concat(parts).toString() };
}

test('an answer', async () => {
  const answer = await through('POST', '/v1/chat/completions', chatBody(SUM.question));
  assert.equal(answer.status, 200, answer.text);
  assert.equal(JSON.parse(answer.text).choices[0].message.content, SUM.answer);
});

test('a page of that name may ask, one of another may not', async () => {
  const body = chatBody(SUM.question);
  const own = await through('POST', '/v1/chat/completions', body, { origin: `https://${NAME}` });
  assert.equal(own.status, 200, own.text);
  const foreign = await through('GET', '/v1/models', undefined, { origin: 'https://foreign.example', host: 'foreign.example' })
    .catch(() => ({ text: '' })); // Caddy knows no site of that name
  assert.doesNotMatch(foreign.text, /"object":\s*"(list|model)"/, 'a Host that nobody allowed, with an Origin');
});

test('tokens come as they are made, and the engine hears of a client that leaves', async () => {
  const aborted = await metric(server, 'request_success_total', 'finished_reason="abort"');
  const leaving = new AbortController();
  const response = await open('POST', '/v1/chat/completions', endless({ stream: true }), {}, leaving.signal);
  assert.equal(response.statusCode, 200);
  let pieces = 0;
  const moments = new Set();
  await assert.rejects(async () => {
    for await (const event of events(response)) {
      if (!event.data || !JSON.parse(event.data).choices[0]?.delta.content) continue;
      moments.add(Math.floor(performance.now()));
      if (++pieces === 1) assert.equal(await metric(server, 'num_requests_running'), 1, 'the first token came when all was over');
      if (pieces === WATCHED) leaving.abort();
    }
  }, /abort/);
  assert.ok(pieces >= WATCHED && pieces < 2 * WATCHED, `${pieces} pieces came before the end was heard of`);
  // A proxy that collects passes on 4 or 8 KiB at a time: some 20 tokens.
  assert.ok(moments.size > WATCHED / 10, `${pieces} tokens came at ${moments.size} moments: something holds them back`);
  await idle(server);
  assert.equal(await metric(server, 'request_success_total', 'finished_reason="abort"'), aborted + 1);
});

test('bodies up to 64 MiB pass, longer ones do not', async () => {
  const padded = (bytes) => {
    const body = { ...chatBody(SUM.question), metadata: { padding: '' } };
    body.metadata.padding = 'x'.repeat(bytes - JSON.stringify(body).length);
    return Buffer.from(JSON.stringify(body));
  };
  const largest = await through('POST', '/v1/chat/completions', padded(MAX_BODY));
  assert.equal(largest.status, 200, largest.text.slice(0, 300));
  const status = await through('POST', '/v1/chat/completions', padded(MAX_BODY + 1))
    .then((answer) => answer.status, (error) => error.code);
  assert.ok([413, 'EPIPE', 'ECONNRESET'].includes(status), `one byte more: ${status}`);
});

test('what is inside stays inside', async () => {
  for (const target of ['/metrics', '/slots', '/props', '/load']) {
    assert.equal((await through('GET', target)).status, 404, target);
  }
});

test('a hundred requests on few connections', async () => {
  const before = await metric(server, 'http_connections');
  for (let i = 0; i < 100; i++) assert.equal((await through('GET', '/health')).status, 200);
  await sleep(100);
  const now = await metric(server, 'http_connections');
  assert.ok(now - before < 70, `${now - before} more connections stand open`);
});
