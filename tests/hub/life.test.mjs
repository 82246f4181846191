// Downloads that are killed, that meet each other, that find no room; certificates, texts, and memory that runs out.
//
//   node life.test.mjs [--fetch PATH] [--fail PATH] [--all] [--short] [--megabytes N]
//
//   --fail       the library of tests/server/fail.c; without it the test of memory is skipped
//   --all        each allocation fails, not a sample of them
//   --short      for slow builds: no speed
//   --megabytes  of the file whose speed is measured (256)
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { serve } from './server.mjs';
import {
  BUSY, CONTENT, DENIED, DISK, MEGABYTE, NETWORK, NOT_FOUND, OK, begin, checkClaims, checkWhole, folder, get, names, option,
  randomBytes, record, root, run, sha256, short,
} from './support.mjs';

const body = randomBytes(18 * MEGABYTE + 12345, 1);
const hash = sha256(body);
const everything = process.argv.includes('--all');
const small = randomBytes(100_000, 2);
const file = () => path.join(folder(), 'file.bin');

async function until(what, probe) {
  for (const end = Date.now() + 120_000; !probe(); await sleep(5)) assert.ok(Date.now() < end, `waited for ${what}`);
}
/** A test with a server. */
function on(name, route, options, check) {
  test(name, async (context) => {
    const server = await serve(route, { body, ...options });
    await check(server, file(), context);
    await server.close();
  });
}

describe('the life of downloads', { concurrency: 6 }, () => {
  // ---- ended, and met ----
  on('killed ten times', 'good', { body: randomBytes(48 * MEGABYTE, 5), rate: 2 * MEGABYTE }, async (server, to, context) => {
    const whole = sha256(server.options.body);
    const rate = 4 * server.options.rate;
    const claims = () => (fs.existsSync(`${to}.part.json`) ? record(to).ranges.reduce((sum, [from, end]) => sum + end - from, 0) : 0);
    const late = [];
    let claimed = 0, again = 0;
    for (let i = 0; i < 10; i++) {
      const sent = server.sent;
      const age = () => (fs.existsSync(`${to}.part.json`) ? Date.now() - fs.statSync(`${to}.part.json`).mtimeMs : Infinity);
      const { child, result } = begin(['file', server.url, to, 0, whole]);
      await until('the first bytes', () => server.sent > sent);
      const started = Date.now();
      // Every other time not before something was written down.
      if (i % 2) await until('a record of more', () => claims() > claimed);
      await sleep(50 + 900 * Math.random());
      child.kill('SIGKILL');
      assert.equal((await result).signal, 'SIGKILL');
      assert.ok(!fs.existsSync(to));
      const now = age() < Infinity ? checkClaims(to, server.options.body) : 0;
      const lost = server.sent - sent - (now - claimed);
      assert.ok(now >= claimed, `${claimed} bytes were claimed, now ${now}`);
      assert.ok(i % 2 === 0 || now > claimed, 'nothing was written down');
      const seconds = Math.min(age(), Date.now() - started) / 1000;
      if (lost > rate * (seconds + 1.5) + MEGABYTE) late.push(`${lost} bytes are lost, of ${rate} a second in ${seconds} s`);
      claimed = now;
      again += lost;
    }
    assert.ok(late.length <= 2, late.join('\n')); // one that had no processor just then may lose more
    server.options.rate = 0;
    await server.settled();
    server.log.length = 0;
    const result = await get(server, to, { hash: whole });
    assert.equal(result.code, OK, result.message);
    assert.equal(result.resumed, claimed);
    assert.equal(server.bytesAsked(), server.options.body.length - claimed);
    checkWhole(to, server.options.body);
    context.diagnostic(`fetched twice: ${(again / MEGABYTE).toFixed(1)} of ${server.options.body.length / MEGABYTE} MiB`);
  });
  on('two processes at once', 'good', { most: 8 * MEGABYTE }, async (server, to) => {
    const both = [1, 2].map(() => begin(['--tell', 'file', server.url, to, 0, hash]));
    await until('one to wait for the other', () => both.some((one) => /^locked /m.test(one.told())));
    server.options.most = undefined;
    const results = (await Promise.all(both.map((one) => one.result))).map((one) => one.parsed);
    assert.deepEqual(results.map((one) => one.code), [OK, OK]);
    assert.deepEqual(results.map((one) => /locked/.test(one.doing)).sort(), [false, true]);
    assert.equal(server.bytesAsked(), body.length);
    checkWhole(to, body);
  });
  on('three threads at once', 'good', { rate: 8 * MEGABYTE }, async (server, to) => {
    const results = await run(['--threads', 3, 'file', server.url, to, 0, hash]);
    assert.deepEqual(results.map((one) => one.code), [OK, OK, OK]);
    assert.equal(server.bytesAsked(), body.length);
    checkWhole(to, body);
  });
  on('the one that works is killed, the one that waits goes on', 'good', { most: 8 * MEGABYTE }, async (server, to) => {
    const first = begin(['file', server.url, to, 0, hash]);
    await until('a record of what is there', () => fs.existsSync(`${to}.part.json`) && record(to).ranges.length > 0);
    const second = begin(['--tell', 'file', server.url, to, 0, hash]);
    await until('the second to wait', () => /^locked /m.test(second.told()));
    first.child.kill('SIGKILL');
    await first.result;
    server.options.most = undefined;
    const result = (await second.result).parsed;
    assert.equal(result.code, OK, result.message);
    assert.match(result.doing, /^locked fetching/);
    assert.ok(result.resumed > 0);
    checkWhole(to, body);
  });
  on('the one that works has stopped', 'good', { most: 8 * MEGABYTE }, async (server, to) => {
    const first = begin(['file', server.url, to, 0, hash]);
    await until('a record', () => fs.existsSync(`${to}.part.json`));
    first.child.kill('SIGSTOP');
    const result = await get(server, to, { hash, options: ['--stall', 0.3] });
    assert.equal(result.code, BUSY);
    const [, seconds] = /another process has .*file\.bin\.part open and has done nothing with it for ([\d.]+) s; end that one/.exec(result.message);
    assert.ok(seconds >= 1.2 && seconds - 0.01 <= result.seconds, `${seconds} of ${result.seconds} s`);
    first.child.kill('SIGCONT');
    server.options.most = undefined;
    assert.equal((await first.result).parsed.code, OK);
    checkWhole(to, body);
  });
  on('the one that works waits for its server', 'stalls at first', { body: small }, async (server, to) => {
    const first = begin(['--stall', 13, 'file', server.url, to, 0, '-']);
    await until('a request', () => server.log.length > 0);
    // BUSY after 12 s without a sign, which comes every second where a flush is quick and every five where it is not.
    const result = await get(server, to, { options: ['--stall', 3] });
    assert.equal(result.code, OK, result.message);
    assert.equal((await first.result).parsed.code, OK);
    assert.equal(server.log.length, 2);
  });

  on('a progress function that takes longer than a stall', 'good', { body: body.subarray(0, 2 * MEGABYTE), rate: MEGABYTE }, async (server, to) => {
    const result = await get(server, to, { options: ['--slow', 3.5, '--stall', 3, '--connections', 1, '--retries', -1] });
    assert.equal(result.code, OK, result.message);
    assert.equal(server.bytesAsked(), server.options.body.length); // nothing twice
    checkWhole(to, server.options.body);
  });

  // ---- the disk ----
  on('a limit of file sizes', 'good', {}, async (server, to) => {
    const result = await get(server, to, { options: ['--limit', 5 * MEGABYTE] });
    assert.equal(result.code, DISK);
    assert.match(result.message, /file\.bin\.part: 18886713 bytes, and this process may write files of 5242880 bytes: raise ulimit -f; nothing of file\.bin is kept/);
    assert.deepEqual(names(path.dirname(to)), []);
  });
  on('a limit of file sizes, met midway', 'chunked', {}, async (server, to) => {
    const result = await get(server, to, { options: ['--limit', 5 * MEGABYTE] });
    assert.equal(result.code, DISK);
    assert.match(result.message, /may write files of 5242880 bytes/);
    assert.deepEqual(names(path.dirname(to)), []);
  });
  on('no folder, a folder in the way', 'good', {}, async (server, to) => {
    const result = await get(server, path.join(path.dirname(to), 'none/file.bin'));
    assert.equal(result.code, DISK);
    assert.match(result.message, /none\/file\.bin\.part: cannot be written: No such file or directory/);
    for (const name of [to, `${to}.part`]) {
      fs.mkdirSync(name);
      assert.equal((await get(server, to)).code, DISK);
      fs.rmdirSync(name);
    }
    assert.equal(server.log.length, 0);
  });
  test('a disk that is full, and one that is read-only', async (context) => {
    const at = folder();
    const mount = (...words) => spawnSync('mount', [...words, '-t', 'tmpfs', 'tmpfs', at], { encoding: 'utf8' });
    const mounted = mount('-o', 'size=8m');
    if (mounted.status !== 0) return context.skip(`no tmpfs: ${mounted.error ?? mounted.stderr.trim()}`);
    try {
      const to = path.join(at, 'file.bin');
      const server = await serve('good', { body });
      for (const size of [body.length, 0]) {
        const lacking = await get(server, to, { size });
        assert.equal(lacking.code, DISK);
        assert.match(lacking.message, /file\.bin: 10\.\d MB of room are missing: 18\.9 MB to fetch, 8\.4 MB available; nothing of file\.bin is kept, run it again$/);
        assert.deepEqual(names(at), []);
      }
      const two = [server.url, to, 5_000_000, '-', server.url, `${to}2`, 5_000_000, '-'];
      assert.match((await run(['file', ...two])).message, /1\.6 MB of room are missing: 10\.0 MB to fetch/);
      await server.close();

      const endless = await serve('chunked', { body });
      const full = await get(endless, to);
      assert.equal(full.code, DISK);
      assert.match(full.message, /file\.bin\.part: cannot be written: No space left on device/);
      assert.deepEqual(names(at), []);
      await endless.close();

      // Another one takes the room in the meantime; later it is there again.
      const slow = await serve('good', { body: body.subarray(0, 6 * MEGABYTE), most: 2 * MEGABYTE });
      const first = begin(['file', slow.url, to, 0, '-']);
      await until('a record of what is there', () => fs.existsSync(`${to}.part.json`) && record(to).ranges.length > 0);
      const filler = fs.openSync(path.join(at, 'filler'), 'w');
      assert.throws(() => {
        for (;;) fs.writeSync(filler, Buffer.alloc(4096));
      }, /ENOSPC/);
      slow.options.most = undefined;
      const { parsed } = await first.result;
      assert.equal(parsed.code, DISK);
      assert.match(parsed.message, /No space left on device; run it again to go on from \d+ % of file\.bin$/);
      assert.ok(checkClaims(to, slow.options.body) > 0);
      fs.closeSync(filler);
      fs.rmSync(path.join(at, 'filler'));
      const result = await get(slow, to);
      assert.equal(result.code, OK, result.message);
      assert.ok(result.resumed > 0);
      checkWhole(to, slow.options.body);

      mount('-o', 'remount,ro');
      const refused = await get(slow, `${to}3`);
      assert.equal(refused.code, DISK);
      assert.match(refused.message, /file\.bin3\.part: cannot be written: Read-only file system/);
      await slow.close();
    } finally {
      spawnSync('umount', ['-l', at]);
    }
  });

  // ---- https ----
  describe('https', () => {
    const at = path.join(root, 'tls');
    const made = (name, subject) => spawnSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
      '-subj', '/CN=test', '-addext', `subjectAltName=${subject}`, '-keyout', path.join(at, `${name}.key`), '-out', path.join(at, `${name}.pem`)], { encoding: 'utf8' });
    fs.mkdirSync(at);
    const missing = made('own', 'IP:127.0.0.1').error ?? made('other', 'DNS:example.org').error;
    const tls = (name) => ({ key: fs.readFileSync(path.join(at, `${name}.key`)), cert: fs.readFileSync(path.join(at, `${name}.pem`)) });
    const skip = missing ? `no openssl: ${missing.message}` : false;
    const ca = ['--ca', path.join(at, 'own.pem')];
    test('a certificate that nobody knows, and one that is known', { skip }, async () => {
      const server = await serve('good', { body, tls: tls('own') });
      const to = file();
      const refused = await get(server, to);
      assert.equal(refused.code, NETWORK);
      assert.match(refused.message, /certificate is not trusted/);
      assert.equal(server.connections, 1);
      assert.deepEqual(names(path.dirname(to)), []);
      assert.equal(server.log.length, 0);
      assert.equal((await get(server, to, { hash, options: ca })).code, OK);
      checkWhole(to, body);
      await server.close();
    });
    test('a certificate of another host', { skip }, async () => {
      const server = await serve('good', { body: small, tls: tls('other') });
      const result = await get(server, file(), { options: ['--ca', path.join(at, 'other.pem')] });
      assert.equal(result.code, NETWORK);
      assert.match(result.message, /certificate is not trusted/);
      assert.equal(server.log.length, 0);
      await server.close();
    });
    test('no file of certificates', { skip }, async () => {
      const server = await serve('good', { body: small, tls: tls('own') });
      assert.match((await get(server, file(), { options: ['--ca', path.join(at, 'none.pem')] })).message, /none\.pem: no file of certificates/);
      await server.close();
    });
    test('a redirect from https to http', { skip }, async () => {
      const plain = await serve('good', { body: small });
      const server = await serve('redirect to', { to: `${plain.origin}/file`, tls: tls('own') });
      const result = await get(server, file(), { options: [...ca, '--token', 'hidden'] });
      assert.equal(result.code, CONTENT);
      assert.match(result.message, /a redirect to another scheme, from https to http/);
      assert.equal(plain.log.length, 0);
      await Promise.all([plain.close(), server.close()]);
    });
    test('a redirect from http to https', { skip }, async () => {
      const server = await serve('good', { body: small, tls: tls('own') });
      const plain = await serve('redirect to', { to: `${server.origin}/file` });
      const to = file();
      assert.equal((await get(plain, to, { options: [...ca, '--token', 'hidden'] })).code, OK);
      assert.ok(server.log.every((one) => one.headers.authorization === undefined));
      checkWhole(to, small);
      await Promise.all([plain.close(), server.close()]);
    });
  });

  // ---- small answers ----
  const text = Buffer.from('{"a": "ä"}');
  on('a text', 'good', { body: text }, async (server) => {
    const result = await run(['--token', 'hidden', 'text', server.url, 'application/json', 100]);
    assert.equal(result.code, OK, result.message);
    assert.equal(result.text, text.toString());
    assert.equal(server.log[0].headers.accept, 'application/json');
    assert.equal(server.log[0].headers.authorization, 'Bearer hidden');
    assert.equal(server.log[0].headers.range, undefined);
    assert.equal((await run(['text', server.url, '-', text.length])).text, text.toString());
    const long = await run(['text', server.url, '-', text.length - 1]);
    assert.equal(long.code, CONTENT);
    assert.match(long.message, /the answer has more than 10 bytes/);
    assert.equal(long.text, null);
  });
  for (const [route, options, code, says] of [
    ['chunked', {}, OK], ['redirect', { hops: 3 }, OK], ['busy once', {}, OK], ['until it closes', {}, OK], ['status', { status: 404 }, NOT_FOUND, /404/],
    ['status', { status: 401 }, DENIED, /token/], ['compressed', {}, CONTENT, /gzip/], ['part of the whole', {}, CONTENT, /other bytes/], ['says more', {}, NETWORK, /broke/],
    ['always 416', {}, CONTENT, /other bytes/], ['breaks without an answer', {}, NETWORK, /tries/], ['stalls at once', {}, NETWORK, /no byte came/],
  ]) {
    on(`a text from: ${route} ${options.status ?? ''}`, route, { body: text, ...options }, async (server) => {
      const result = await run(['--retries', 1, '--stall', route.startsWith('stalls') ? 0.3 : 10, 'text', server.url, '-', 5000]);
      assert.equal(result.code, code, result.message);
      assert.equal(result.text, code === OK ? text.toString() : null);
      if (says) assert.match(result.message, says);
    });
  }
  on('an endless text', 'chunked', { body }, async (server) => {
    assert.match((await run(['text', server.url, '-', 1000])).message, /more than 1000 bytes/);
  });
  const letters = Buffer.from('abcdefghijklmnopqrstuvwxyz'.repeat(1000));
  for (const [route, size, total] of [['good', 100, 26000], ['good', 30000, 26000], ['no ranges', 100, 26000], ['no ranges', 30000, 26000], ['chunked', 100, 0], ['chunked', 30000, 26000], ['ranges refused', 100, 26000], ['range without total', 100, 0]]) {
    on(`the head of a file: ${route}, ${size} bytes`, route, { body: letters }, async (server) => {
      const result = await run(['head', server.url, size]);
      assert.equal(result.code, OK, result.message);
      assert.equal(result.text, letters.subarray(0, size).toString());
      assert.equal(result.length, Math.min(size, letters.length));
      assert.equal(result.total, total);
    });
  }
  on('the head of a large file', 'no ranges', { body }, async (server) => {
    assert.equal((await run(['head', server.url, 1])).length, 1);
    assert.equal((await run(['head', `${server.origin}/x`, 0])).code, OK);
  });
  on('the head of an empty file', 'good', { body: Buffer.alloc(0) }, async (server) => {
    const result = await run(['head', server.url, 10]);
    assert.deepEqual([result.code, result.length, result.total], [OK, 0, 0]);
  });
  on('the head from another place', 'other range', { body: letters }, async (server) => {
    assert.equal((await run(['head', server.url, 10])).code, CONTENT);
  });

  // ---- memory ----
  test('each allocation fails once', { skip: !option('fail') && 'needs --fail LIBRARY' }, async (context) => {
    const control = path.join(root, 'control');
    fs.writeFileSync(control, Buffer.alloc(16));
    const env = { LD_PRELOAD: path.resolve(option('fail')), SLUICE_FAIL: control };
    const files = small.length;
    const server = await serve('redirect', { body: small, hops: 1 });
    const to = file();
    const line = (place) => ['--control', control, '--place', place, '--retries', 1, 'file', server.url, to, files, sha256(small)];
    const { allocations, code } = await run(line(2 ** 40), { env });
    assert.equal(code, OK);
    const step = Math.max(1, Math.ceil(allocations / (everything ? Infinity : 100)));
    let failed = 0;
    for (let place = 1; place <= allocations; place += step) {
      fs.rmSync(to, { force: true });
      const result = await run(line(place), { env });
      assert.equal(result.fired, 1, `place ${place} of ${allocations}`);
      if (result.code !== OK) {
        failed++;
        assert.ok(!fs.existsSync(to));
        assert.equal((await get(server, to, { size: files, hash: sha256(small) })).code, OK, `after place ${place}`);
      }
      checkWhole(to, small);
    }
    assert.ok(failed > 0);
    context.diagnostic(`${allocations} allocations, of ${Math.ceil(allocations / step)} that failed ${failed} ended the call`);
    await server.close();
  });
});

test('speed', { skip: short && 'a slow build' }, async (context) => {
  const size = Number(option('megabytes', 256)) * MEGABYTE;
  const large = Buffer.alloc(size);
  const block = randomBytes(64 * MEGABYTE, 7);
  for (let at = 0; at < size; at += block.length) block.copy(large, at);
  const server = await serve('good', { body: large });
  for (const promised of ['-', sha256(large)]) {
    const to = file();
    const began = process.hrtime.bigint();
    const result = await get(server, to, { hash: promised });
    const seconds = Number(process.hrtime.bigint() - began) / 1e9;
    assert.equal(result.code, OK, result.message);
    assert.equal(fs.statSync(to).size, size);
    context.diagnostic(`${size / MEGABYTE} MiB ${promised === '-' ? 'without' : 'with'} SHA-256: ${(size / 1e6 / seconds).toFixed(0)} MB/s`);
    fs.rmSync(to);
  }
  await server.close();
});
