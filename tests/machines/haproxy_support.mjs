// HAProxy with the configuration that ships, for tests: on ports that the system chooses, in front of any servers.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { ask, parseMetrics, temporaryFolder, until } from '../server/support.mjs';

export const shipped = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../deploy/haproxy/haproxy.cfg');
export const NAMES = ['a', 'b', 'c'];

/** Where haproxy is: its path, or null. */
export function find() {
  for (const place of [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/usr/local/sbin']) {
    const file = path.join(place, 'haproxy');
    if (place && fs.existsSync(file)) return file;
  }
  return null;
}

/** [major, minor] of its version. */
export function version(program) {
  const found = /version (\d+)\.(\d+)/.exec(execFileSync(program, ['-v'], { encoding: 'utf8' }));
  return [Number(found[1]), Number(found[2])];
}

/** `text` with the one match of `pattern` replaced: a test of a line that is not there any more tests nothing. */
function replaced(text, pattern, value) {
  const matches = text.match(new RegExp(pattern, 'gm')) ?? [];
  assert.equal(matches.length, 1, `${pattern} stands once in ${shipped}`);
  return text.replace(new RegExp(pattern, 'm'), value);
}

/** The shipped configuration with sockets 3 and 4, these servers' ports, and without the system's log, user and folders. */
function configuration(ports, changes) {
  let text = fs.readFileSync(shipped, 'utf8');
  for (const line of ['log /dev/log local0', 'chroot .*', 'user haproxy', 'group haproxy', 'stats socket .*']) {
    text = replaced(text, `^    ${line}$`, '');
  }
  text = text.replace(/^ +(log global|option httplog|capture .*|option dontlognull).*$/gm, '');
  text = replaced(text, '^    bind :8080$', '    bind fd@3');
  text = replaced(text, '^    bind 127.0.0.1:8405$', '    bind fd@4');
  NAMES.forEach((name, i) => {
    text = replaced(text, `^    server ${name} \\S+ id ${i + 1}$`, `    server ${name} 127.0.0.1:${ports[i]} id ${i + 1}`);
  });
  for (const [pattern, value] of changes) text = replaced(text, pattern, value);
  return text;
}

const children = new Set();
const folder = temporaryFolder();
let files = 0;
process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

const listening = () => new Promise((done, failed) => {
  const server = net.createServer();
  server.on('error', failed).listen(0, '127.0.0.1', () => done(server));
});

/** Starts it in front of `ports`. changes: [pattern, value] more. port and metrics are its own. */
export async function start(ports, { changes = [], scheme = 'http' } = {}) {
  const file = path.join(folder, `haproxy-${files++}.cfg`);
  fs.writeFileSync(file, configuration(ports, changes));
  const sockets = [await listening(), await listening()];
  const child = spawn(find(), ['-db', '-f', file], {
    stdio: ['ignore', 'pipe', 'pipe', ...sockets.map((socket) => socket._handle.fd)],
  });
  const [port, metrics] = sockets.map((socket) => socket.address().port);
  const proxy = { child, port, metrics: { port: metrics }, key: null, output: '', exit: null };
  for (const out of [child.stdout, child.stderr]) out.setEncoding('utf8').on('data', (text) => (proxy.output += text));
  children.add(child);
  proxy.ended = new Promise((done) => child.on('close', (code) => done((proxy.exit = { code }))));
  await new Promise((done) => setTimeout(done, 200)); // while our own process has the sockets too, nobody connects
  for (const socket of sockets) socket.close();
  await until(`haproxy over ${scheme} to run`, async () => {
    assert.equal(proxy.exit, null, proxy.output);
    return up(proxy).then(() => true, () => false);
  });
  return proxy;
}

export async function stop(proxy) {
  proxy.child.kill('SIGTERM');
  await proxy.ended;
  children.delete(proxy.child);
}

export function stopAll() {
  for (const child of children) child.kill('SIGKILL');
}

/** Names of the servers that it sends requests to, by its exporter. */
export async function up(proxy) {
  const { values } = parseMetrics((await ask(proxy.metrics, '/metrics', { seconds: 60 })).text);
  return NAMES.filter((name) => {
    const key = `haproxy_server_status{proxy="sluice",server="${name}",state="UP"}`;
    assert.ok(values.has(key), `its exporter has ${key}`);
    return values.get(key) === 1;
  });
}

export const isUp = async (proxy, name) => (await up(proxy)).includes(name);
