// Downloads from a server that behaves, or misbehaves: what the call returns, what it says, and what is on disk.
//
//   node download.test.mjs [--fetch PATH] [--short]
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';
import { nobody, serve } from './server.mjs';
import {
  CONTENT, DENIED, MEGABYTE, NAME, NETWORK, NOT_FOUND, OK, STOPPED, checkClaims, checkWhole, folder, get, names, randomBytes, run,
  sha256,
} from './support.mjs';

const body = randomBytes(18 * MEGABYTE + 12345, 1); // five pieces or so
const small = randomBytes(100_000, 2);
const next = randomBytes(18 * MEGABYTE + 12345, 3);
const long = randomBytes(40 * MEGABYTE, 4);
const hash = sha256(body), smallHash = sha256(small);

/** A test with a server of `route`, and a folder of its own. */
function on(name, route, options, check) {
  test(name, async () => {
    const server = await serve(route, { body, ...options });
    const at = folder();
    try {
      await check(server, path.join(at, 'file.bin'), at);
    } finally {
      await server.close();
    }
  });
}

/** After a call that was stopped while the server held the rest back: now it sends all, and the log is of that. */
async function goOn(server) {
  await server.settled();
  server.options.most = undefined;
  server.log.length = 0;
}

/** A route and what comes of it: code, message, what is left. */
function ends(name, route, expected) {
  on(name, route, expected.server, async (server, to, at) => {
    const result = await get(server, to, { options: ['--retries', 1], ...expected.get });
    assert.equal(result.code, expected.code, `${result.code}: ${result.message}`);
    if (expected.code === OK) {
      checkWhole(to, expected.content ?? server.options.body);
    } else {
      assert.ok(result.message.startsWith(`${server.origin}/folder/file.bin: `), result.message);
      assert.match(result.message, expected.says);
      assert.ok(!fs.existsSync(to), 'something lies at the path');
      if (expected.kept) {
        assert.deepEqual(names(at), ['file.bin.part', 'file.bin.part.json']);
        assert.ok(checkClaims(to, server.options.body) > 0);
        assert.match(result.message, /; run it again to go on from \d+ % of file\.bin$/);
      } else {
        assert.deepEqual(names(at), []);
      }
    }
    // By the clock of the one that waits: what the server noted would be when it had a processor.
    if (expected.seconds) assert.ok(result.seconds > expected.seconds - 0.05, `a wait of ${result.seconds}, not ${expected.seconds} s`);
    expected.asked?.(server, result);
  });
}

describe('downloads', { concurrency: 6 }, () => {
  // ---- what goes well ----
  on('several ranges at once, then nothing is asked', 'good', { rate: 20 * MEGABYTE }, async (server, to) => {
    const result = await get(server, to, { size: body.length, hash });
    assert.equal(result.code, OK, result.message);
    checkWhole(to, body);
    assert.ok(server.connections > 1 && server.connections <= 4, `${server.connections} connections`);
    assert.equal(server.bytesAsked(), body.length); // the first range did not know the size
    assert.equal(result.done, body.length);
    assert.equal(result.total_bytes, body.length);
    assert.equal(result.checked, body.length);
    assert.equal(result.resumed, 0);
    const asked = server.log.length;
    const again = await get(server, to, { size: body.length, hash });
    assert.equal(again.code, OK);
    assert.equal(again.resumed, body.length);
    assert.equal(server.log.length, asked);
  });
  for (const connections of [1, 2, 16]) {
    on(`${connections} connections`, 'good', { rate: 40 * MEGABYTE }, async (server, to) => {
      assert.equal((await get(server, to, { options: ['--connections', connections] })).code, OK);
      checkWhole(to, body);
      assert.ok(server.connections <= connections, `${server.connections} connections`);
    });
  }
  on('the rate and what is left', 'good', { rate: 3 * MEGABYTE }, async (server, to) => {
    const { errors, code } = await get(server, to, { options: ['--tell', '--connections', 2] });
    assert.equal(code, OK);
    const lines = [...errors.matchAll(/^fetching file\.bin (\d+) of (\d+), .*?(\d+)\/s, ([\d.]+) s, at ([\d.]+) s$/gm)].map((m) => m.slice(1).map(Number));
    assert.ok(lines.length >= 5, `told ${lines.length} times`);
    const [first] = lines;
    const off = [];
    for (const [done, total, rate, left, at] of lines.slice(1)) {
      if (total > 0) assert.equal(total, body.length); // 0: no answer has told
      assert.ok(rate < 9 * MEGABYTE, `${rate} bytes/s, 2 connections of ${3 * MEGABYTE}`);
      if (total > 0 && rate > 0) assert.ok(Math.abs(left - (total - done) / rate) < 0.2, `${left} s left`);
      // A rate reaches 5 s back; before that it is of all that came.
      if (rate > 0 && at < 5) off.push(Math.abs(rate / ((done - first[0]) / (at - first[4])) - 1));
    }
    const middle = off.sort((a, b) => a - b)[off.length >> 1];
    assert.ok(middle < 0.1, `of ${off.length} rates the middle one is ${middle} off`);
  });
  ends('a small file', 'good', { server: { body: small }, get: { size: small.length, hash: smallHash }, code: OK });
  ends('a small file of which nothing is promised', 'good', { server: { body: small }, code: OK });
  ends('a file of one byte', 'good', { server: { body: Buffer.from('x') }, code: OK });
  ends('an empty file', 'good', { server: { body: Buffer.alloc(0) }, code: OK });
  ends('an empty file with its hash', 'good', { server: { body: Buffer.alloc(0) }, get: { hash: sha256(Buffer.alloc(0)) }, code: OK });
  ends('an empty file without ranges', 'no ranges', { server: { body: Buffer.alloc(0) }, code: OK });
  ends('a hash in capitals', 'good', { server: { body: small }, get: { hash: smallHash.toUpperCase() }, code: OK });
  ends('a file without ETag and date', 'good', { server: { etag: null }, get: { hash }, code: OK });
  ends('an early hint', 'hints first', { code: OK });

  test('many files, and one that is missing', async () => {
    const server = await serve('paths', { body: small });
    const at = folder();
    const to = (i) => path.join(at, `file${i}`);
    const files = (count, missing) => [...Array(count).keys()].flatMap((i) => [`${server.origin}/${i === missing ? 'missing' : i}`, to(i), small.length, smallHash]);
    const failed = await run(['file', ...files(20, 12)]);
    assert.equal(failed.code, NOT_FOUND);
    assert.match(failed.message, /\/missing: the server answered 404: there is no such file; file12 was not fetched$/);
    const there = names(at).filter((name) => !name.includes('.part'));
    assert.ok(there.includes('file0') && !there.includes('file12') && !there.includes('file19'), there.join(' '));
    const before = server.log.length;
    const result = await run(['file', ...files(20)]);
    assert.equal(result.code, OK, result.message);
    for (let i = 0; i < 20; i++) checkWhole(to(i), small);
    assert.ok(server.log.length - before <= 20 - there.length, 'complete ones were asked for');
    assert.equal(result.done, 20 * small.length);
    assert.ok(result.resumed >= there.length * small.length);
    assert.ok(server.connections <= 8); // of two calls
    await server.close();
  });
  test('another file of another size is replaced', async () => {
    const server = await serve('good', { body: small });
    const to = path.join(folder(), 'file.bin');
    fs.writeFileSync(to, 'older');
    assert.equal((await get(server, to, { size: small.length })).code, OK);
    checkWhole(to, small);
    await server.close();
  });

  // ---- servers without ranges, lengths that lie ----
  ends('no ranges', 'no ranges', { get: { hash }, code: OK, asked: (server) => assert.equal(server.log.length, 1) });
  ends('no length, in chunks', 'chunked', { code: OK });
  ends('no length, in chunks, promised', 'chunked', { get: { size: body.length, hash }, code: OK });
  ends('in chunks, shorter than promised', 'chunked and short', { get: { size: body.length }, code: CONTENT, says: /has 9443356 bytes, 18886713 were promised/, kept: true });
  ends('in chunks, longer than promised', 'chunked and long', { get: { size: body.length }, code: CONTENT, says: /sends more bytes than/, kept: true });
  ends('no length, nothing promised', 'until it closes', { code: CONTENT, says: /says no length.*; file\.bin was not fetched$/ });
  ends('no length, a size promised', 'until it closes', { get: { size: body.length }, code: OK });
  ends('no length, a hash promised', 'until it closes', { get: { hash }, code: OK });
  ends('no length, closed too early', 'closes too early', { get: { size: body.length }, code: NETWORK, says: /ended at byte 9443356, not at 18886713 \(tries without a byte of progress: 2\)/, kept: true });
  ends('says less than it sends', 'says less', { get: { size: body.length }, code: CONTENT, says: /has 18885713 bytes, 18886713 were promised; file\.bin was not fetched$/ });
  ends('says less than it sends, with a hash', 'says less', { get: { hash }, code: CONTENT, says: /SHA-256 begins with [0-9a-f]{12}, promised is [0-9a-f]{12}/ });
  ends('says more than it sends', 'says more', { code: NETWORK, says: /the connection broke: .*1000 bytes remaining/, kept: true });
  ends('a length that is none', 'length that is none', { get: { size: body.length }, code: NETWORK, says: /tries/ });
  ends('more than its range', 'sends more than its range', { code: CONTENT, says: /sends more bytes than it was asked for/, kept: true });
  ends('shorter ranges than asked', 'shorter ranges', { get: { hash }, code: OK });
  ends('ends before its range, and goes on later', 'ends before its range', { server: { body: small }, get: { options: ['--retries', 3, '--stop', 90_000] }, code: STOPPED, says: /stopped/, kept: true });
  ends('another range', 'other range', { code: CONTENT, says: /bytes 0 to 4194303 were asked for, Content-Range says 1 to 4194302; file\.bin was not fetched$/ });
  ends('a larger range', 'more range', { code: CONTENT, says: /Content-Range says 0 to 18886712/ });
  ends('206 without Content-Range', 'range without its place', { code: CONTENT, says: /without saying which bytes/ });
  ends('206 with a Content-Range that is none', 'range that is none', { code: CONTENT, says: /without saying which bytes/ });
  ends('Content-Range and length at odds', 'range and length at odds', { code: CONTENT, says: /do not fit/ });
  ends('ranges of an unknown whole', 'range without total', { get: { hash }, code: OK });
  ends('another total than promised', 'other total', { get: { size: body.length }, code: CONTENT, says: /has 18887713 bytes, 18886713 were promised/ });
  ends('another total each time', 'other total each time', { code: CONTENT, says: /changes all the time/ });
  ends('another ETag each time', 'other tag each time', { code: CONTENT, says: /changes all the time/ });
  ends('another ETag each time, but a hash', 'other tag each time', { get: { hash }, code: OK });
  ends('206 to what was no range', 'part of the whole', { server: { body: small }, code: OK });
  ends('ranges refused', 'ranges refused', { get: { hash }, code: OK });
  ends('416 always', 'always 416', { code: CONTENT, says: /answered 416/ });
  ends('compressed', 'compressed', { code: CONTENT, says: /compressed \(gzip\)/ });
  ends('fields without end', 'fields without end', { code: CONTENT, says: /fields are too long/ });
  ends('no HTTP', 'no HTTP', { code: CONTENT, says: /no HTTP/ });
  ends('a wrong hash', 'good', { get: { hash: sha256(next) }, code: CONTENT, says: new RegExp(`SHA-256 begins with ${hash.slice(0, 12)}, promised is ${sha256(next).slice(0, 12)}.* file\\.bin is damaged and was removed; run it again`) });

  // ---- refusals, and servers that are busy ----
  for (const [status, code, says] of [
    [401, DENIED, /401: it needs a token, and none was given; file\.bin was not fetched$/], [403, DENIED, /403/], [404, NOT_FOUND, /404: there is no such file/],
    [410, NOT_FOUND, /410/], [400, CONTENT, /answered 400/], [418, CONTENT, /answered 418/], [304, CONTENT, /answered 304/], [204, CONTENT, /answered 204/],
    [500, NETWORK, /answered 500 \(tries without a byte of progress: 2\); nothing of file\.bin is kept, run it again$/], [502, NETWORK, /502/], [504, NETWORK, /504/],
  ]) {
    ends(`status ${status}`, 'status', { server: { status }, code, says });
  }
  ends('a token without access', 'status', { server: { status: 403 }, get: { options: ['--token', 'hidden'] }, code: DENIED, says: /403: the token gives no access/ });
  ends('404 in the middle', 'status after two', { server: { status: 404 }, code: NOT_FOUND, says: /404/, kept: true });
  ends('busy once, with Retry-After', 'busy once', { server: { body: small }, code: OK, seconds: 1, asked: (_, result) => assert.match(result.doing, /waiting/) });
  ends('busy until a date', 'busy until a date', { server: { body: small }, code: OK, seconds: 1 });
  ends('busy for a day', 'busy for long', { code: NETWORK, says: /answered 503 and asks to wait 86400 s, more than 120/ });
  ends('busy for ever', 'busy for ever', { code: NETWORK, says: /answered 503 \(tries/, seconds: 0.5 });
  ends('an error twice', 'broken inside, twice', { server: { body: small }, get: { options: ['--retries', 2] }, code: OK, seconds: 1.5 });
  ends('only two at once', 'two at once', { server: { rate: 10 * MEGABYTE }, get: { hash }, code: OK });

  // ---- redirects and the token ----
  ends('five redirects', 'redirect', { server: { hops: 5 }, get: { hash }, code: OK });
  ends('six redirects', 'redirect', { server: { hops: 6 }, code: CONTENT, says: /more than 5 redirects/ });
  for (const status of [301, 303, 307, 308]) ends(`a redirect by ${status}`, 'redirect', { server: { hops: 1, status, body: small }, code: OK });
  ends('a redirect to nowhere', 'redirect to', { code: CONTENT, says: /a redirect \(302\) to nowhere/ });
  ends('a redirect to another scheme', 'redirect to', { server: { to: 'ftp://127.0.0.1/file' }, code: CONTENT, says: /redirect to another scheme, from http to ftp/ });
  ends('a redirect to a file', 'redirect to', { server: { to: 'file:///etc/passwd' }, code: CONTENT, says: /redirect to another scheme/ });
  ends('a redirect with a password', 'redirect to', { server: { to: 'http://a:secret@127.0.0.1:1/' }, code: CONTENT, says: /a user or a password/ });
  test('the token stays with its host', async () => {
    const other = await serve('good', { body });
    for (const [to, sent] of [['/hop9', true], [`${other.origin}/x`, false]]) {
      const server = await serve(to === '/hop9' ? 'redirect' : 'redirect to', { body, hops: 1, to });
      const file = path.join(folder(), 'file.bin');
      assert.equal((await get(server, file, { options: ['--token', 'hidden'] })).code, OK);
      assert.ok(server.log.every((one) => one.headers.authorization === 'Bearer hidden'));
      assert.ok(other.log.every((one) => one.headers.authorization === undefined));
      assert.equal(other.log.length > 0, !sent);
      await server.close();
    }
    await other.close();
  });
  ends('a signed URL that expires', 'signed', {
    get: { hash: sha256(long), options: ['--connections', 1] }, server: { body: long }, code: OK, asked: (server) => assert.ok(server.state.signature >= 2, `${server.state.signature} signatures`),
  });
  ends('a signed URL that is denied', 'signed and denied', { code: DENIED, says: /answered 403/ });

  // ---- connections ----
  ends('breaks after each megabyte', 'breaks after a megabyte', { server: { body: body.subarray(0, 3_500_000) }, get: { hash: sha256(body.subarray(0, 3_500_000)) }, code: OK });
  ends('breaks at once', 'breaks at once', { code: NETWORK, says: /the connection broke: .*\(tries without a byte of progress: 2\)/ });
  ends('breaks without an answer', 'breaks without an answer', { code: NETWORK, says: /tries/ });
  ends('breaks in the second half', 'breaks in the second half', { code: NETWORK, says: /tries/, kept: true });
  ends('no ranges, breaks in the middle', 'no ranges, breaks in the middle', { code: NETWORK, says: /the connection broke/, kept: true });
  ends('no ranges, breaks once', 'no ranges, breaks once', { get: { hash }, code: OK });
  ends('in chunks, breaks once', 'chunked, breaks once', { get: { hash }, code: OK });
  ends('stalls', 'stalls at once', { get: { options: ['--stall', 0.3, '--retries', -1] }, code: NETWORK, says: /no byte came for 0\.3 s/ });
  // Behind a stall that must be comes what must not stall: long enough for a server that waits for a processor.
  ends('stalls at first', 'stalls at first', {
    server: { body: small }, get: { options: ['--stall', 3] }, code: OK, seconds: 3.5, asked: (server) => assert.ok(server.log.length >= 2),
  });
  ends('stalls after half of each', 'stalls after half', { server: { body: small.subarray(0, 3000) }, get: { options: ['--stall', 2] }, code: OK });
  test('nobody there', async () => {
    const at = folder();
    const url = `http://127.0.0.1:${await nobody()}/file?key=secret`;
    const result = await run(['--retries', 5, 'file', url, path.join(at, 'file'), 0, '-']);
    assert.equal(result.code, NETWORK);
    assert.match(result.message, /connect.*\(tries without a byte of progress: 3\)/i);
    assert.deepEqual(names(at), []);
  });

  // ---- what is not sent, what is not read ----
  on('fields of a request', 'cookies', {}, async (server, to, at) => {
    fs.writeFileSync(path.join(at, '.netrc'), 'machine 127.0.0.1 login a password secret\n', { mode: 0o600 });
    const dead = `http://127.0.0.1:${await nobody()}`;
    const env = { HOME: at, NETRC: path.join(at, '.netrc'), http_proxy: dead, HTTP_PROXY: dead, all_proxy: dead, ALL_PROXY: dead };
    assert.equal((await get(server, to, { env })).code, OK);
    assert.ok(server.log.length > 1);
    for (const { headers } of server.log) {
      assert.match(headers['user-agent'], /^sluice\/\d/);
      assert.equal(headers['accept-encoding'], 'identity');
      assert.equal(headers.authorization, undefined);
      assert.equal(headers.cookie, undefined);
    }
  });
  for (const [what, url, hashes, to] of [
    ['no URL', 'model.gguf', '-', 'x'], ['another scheme', 'ftp://127.0.0.1/x', '-', 'x'], ['a password', 'http://a:secret@127.0.0.1/x', '-', 'x'],
    ['a hash that is none', 'http://127.0.0.1:1/x', 'abc', 'x'], ['no path', 'http://127.0.0.1:1/x', '-', ''], ['a folder', 'http://127.0.0.1:1/x', '-', '/tmp/'],
  ]) {
    test(`refused: ${what}`, async () => assert.equal((await run(['file', url, to, 0, hashes])).code, NAME));
  }
  on('a token that is none', 'good', {}, async (server, to, at) => {
    assert.equal((await get(server, to, { options: ['--token', 'a\nHost: b'] })).code, NAME);
    assert.deepEqual(names(at), []);
  });

  // ---- going on ----
  on('stopped, and gone on', 'good', { most: 12 * MEGABYTE }, async (server, to) => {
    const stopped = await get(server, to, { hash, options: ['--stop', 8 * MEGABYTE] });
    assert.equal(stopped.code, STOPPED);
    const claimed = checkClaims(to, body);
    assert.ok(stopped.message.endsWith(`: stopped; run it again to go on from ${Math.floor((100 * claimed) / body.length)} % of file.bin`), stopped.message);
    assert.ok(claimed >= 8 * MEGABYTE);
    await goOn(server);
    const result = await get(server, to, { hash });
    assert.equal(result.code, OK);
    assert.equal(result.resumed, claimed);
    assert.equal(server.bytesAsked(), body.length - claimed);
    checkWhole(to, body);
  });
  for (const [what, change, asked] of [
    ['the same ETag', {}, 'rest'], ['another ETag', { etag: '"two"', body: next }, 'all'], ['another size', { body: small, etag: '"two"' }, 'all'],
    ['shorter, without an ETag', { body: small, etag: null, modified: 'Sun, 06 Nov 1994 08:49:37 GMT' }, 'all'],
  ]) {
    on(`gone on without a hash: ${what}`, 'good', { most: 12 * MEGABYTE }, async (server, to) => {
      assert.equal((await get(server, to, { options: ['--stop', 8 * MEGABYTE] })).code, STOPPED);
      const claimed = checkClaims(to, body);
      Object.assign(server.options, change);
      await goOn(server);
      assert.equal((await get(server, to)).code, OK);
      checkWhole(to, server.options.body);
      assert.equal(server.log[0].headers['if-range'], '"one"');
      if (asked === 'rest') assert.equal(server.bytesAsked(), body.length - claimed);
    });
  }
  for (const [what, tags, validator] of [['a date', { etag: null, modified: 'Sun, 06 Nov 1994 08:49:37 GMT' }, 'Sun, 06 Nov 1994 08:49:37 GMT'], ['a weak ETag', { etag: 'W/"one"' }, undefined]]) {
    on(`gone on with ${what}`, 'good', { most: 12 * MEGABYTE, ...tags }, async (server, to) => {
      assert.equal((await get(server, to, { options: ['--stop', 8 * MEGABYTE] })).code, STOPPED);
      await goOn(server);
      const result = await get(server, to);
      assert.equal(result.code, OK);
      assert.ok(result.resumed >= 8 * MEGABYTE);
      assert.equal(server.log[0].headers['if-range'], validator);
      checkWhole(to, body);
    });
  }
  for (const [what, first, second] of [
    ['nothing tells what it is', { server: { etag: null } }, {}], ['another hash', { get: { hash: sha256(next) } }, { get: { hash } }],
    ['another URL', {}, { path: '/other.bin' }], ['another promised size', { get: { size: body.length } }, { server: { body: small, etag: '"two"' }, get: { size: small.length } }],
  ]) {
    on(`not gone on: ${what}`, 'good', { most: 12 * MEGABYTE, ...first.server }, async (server, to) => {
      assert.equal((await get(server, to, { ...first.get, options: ['--stop', 8 * MEGABYTE] })).code, STOPPED);
      Object.assign(server.options, second.server);
      await goOn(server);
      const result = await get(server, to, { ...second.get, url: second.path ? server.origin + second.path : server.url });
      assert.equal(result.code, OK, result.message);
      assert.equal(result.resumed, 0);
      checkWhole(to, server.options.body);
    });
  }
  on('changes while it is fetched', 'changes once', { next, rate: 20 * MEGABYTE }, async (server, to) => {
    const result = await get(server, to);
    assert.equal(result.code, OK, result.message);
    checkWhole(to, next);
  });
  on('all is there but the name', 'good', {}, async (server, to) => {
    fs.writeFileSync(`${to}.part`, body);
    fs.writeFileSync(`${to}.part.json.new`, '{"vers'); // left by a process that was killed
    fs.writeFileSync(`${to}.part.json`, JSON.stringify({ version: 1, url: '', size: body.length, sha256: hash, etag: '', last_modified: '', ranges: [[0, body.length]] }));
    assert.equal((await get(server, to, { hash })).code, OK);
    assert.equal(server.log.length, 0);
    checkWhole(to, body);
  });
  const good = { version: 1, url: '', size: small.length, sha256: smallHash, etag: '"one"', last_modified: '', ranges: [[0, 50_000]] };
  for (const [what, text] of Object.entries({
    'empty': '', 'no JSON': '{"version": 1', 'a list': '[]', 'another version': { ...good, version: 2 }, 'no size': { ...good, size: 0 }, 'a size below 0': { ...good, size: -5 },
    'a size that is text': { ...good, size: '100000' }, 'ranges that meet': { ...good, ranges: [[0, 1000], [1000, 2000]] }, 'ranges that overlap': { ...good, ranges: [[0, 1000], [500, 2000]] },
    'ranges out of order': { ...good, ranges: [[5000, 6000], [0, 1000]] }, 'an empty range': { ...good, ranges: [[5, 5]] }, 'a range beyond the size': { ...good, ranges: [[0, 100_001]] },
    'a range beyond what is there': { ...good, ranges: [[0, 60_000]] }, 'a range below 0': { ...good, ranges: [[-1, 5]] }, 'half a range': { ...good, ranges: [[1]] }, 'no ranges': { ...good, ranges: 7 },
    'an ETag with a line end': { ...good, etag: '"a"\r\nHost: x' }, 'a long ETag': { ...good, etag: `"${'a'.repeat(5000)}"` }, 'an ETag that is a number': { ...good, etag: 7 },
    'endless': ' '.repeat(2 * MEGABYTE), 'deep': '['.repeat(100_000), 'NUL': '\0', 'large numbers': '{"version": 1, "size": 99999999999999999999999}',
  })) {
    on(`a record that is ${what}`, 'good', { body: small }, async (server, to) => {
      fs.writeFileSync(`${to}.part`, Buffer.alloc(50_000, 'x')); // wrong: it must not be used
      fs.writeFileSync(`${to}.part.json`, typeof text === 'string' ? text : JSON.stringify(text));
      const result = await get(server, to, { hash: smallHash });
      assert.equal(result.code, OK, result.message);
      assert.equal(result.resumed, 0);
      assert.equal(server.bytesAsked(), small.length);
      checkWhole(to, small);
    });
  }
  on('a record that is right of bytes that are wrong', 'good', { body: small }, async (server, to, at) => {
    fs.writeFileSync(`${to}.part`, Buffer.alloc(50_000, 'x'));
    fs.writeFileSync(`${to}.part.json`, JSON.stringify(good));
    const result = await get(server, to, { hash: smallHash });
    assert.equal(result.code, CONTENT);
    assert.match(result.message, /damaged and was removed/);
    assert.deepEqual(names(at), []);
    assert.equal((await get(server, to, { hash: smallHash })).code, OK);
    checkWhole(to, small);
  });
});
