// Three `sluice serve` behind HAProxy with the configuration that ships: restarts under load, a killed server, one that
// hangs; what is sent again and what is not; conversations that come back to their cache. Without haproxy it is skipped.
//
//   --server PATH   the program (else build/release/sluice)
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import path from 'node:path';
import { after, before, test } from 'node:test';
import {
  ask, chatBody, endless, get, joined, metric, send, sleep, start, stream, SUM, temporaryFolder, until,
} from '../server/support.mjs';
import * as haproxy from './haproxy_support.mjs';

const CHAT = '/v1/chat/completions';
const program = haproxy.find();
if (!program) {
  console.log('skipped: no haproxy on this machine');
  process.exit(77);
}
const [major, minor] = haproxy.version(program);
if (major * 100 + minor < 206) {
  console.log(`skipped: haproxy is ${major}.${minor}, the configuration is for 2.6 and newer`);
  process.exit(77);
}

test('the file that ships is in order', () => {
  const found = spawnSync(program, ['-c', '-f', haproxy.shipped], { encoding: 'utf8' });
  assert.equal(found.status, 0, found.stderr);
  assert.doesNotMatch(found.stderr, /WARNING|ALERT/, found.stderr);
});

// ---- what is sent again: servers that only count ------------------------------------------------------------------

const counted = new Set();
/** A server that is healthy, and answers POST by `answer(response, times, server)`. */
function counting(answer) {
  const server = http.createServer((request, response) => {
    if (request.method === 'GET') return response.end('{"status":"ok"}');
    request.resume().on('end', () => answer(response, ++server.times, server));
  });
  server.times = 0;
  counted.add(server);
  return new Promise((done) => server.listen(0, '127.0.0.1', () => done(server)));
}

// A test that fails leaves nothing open.
after(() => {
  for (const server of counted) {
    server.close();
    server.closeAllConnections();
  }
  haproxy.stopAll();
});

const fine = (response) => response.end('{}');
const failing = {
  'a 503 is sent to another server': { status: 200, again: true, answer: (response) => response.writeHead(503).end('{}') },
  'a 500 is not': { status: 500, again: false, answer: (response) => response.writeHead(500).end('{}') },
  'a connection that closes without an answer is not': { status: 502, again: false, answer: (response) => response.destroy() },
  'half a head is not': {
    status: 502, again: false, answer: ({ socket }) => socket.end('HTTP/1.1 200 OK\r\nContent-Le'),
  },
};
for (const [name, { status, again, answer }] of Object.entries(failing)) {
  test(name, async () => {
    const servers = [await counting(answer), await counting(fine), await counting(fine)];
    const proxy = await haproxy.start(servers.map((server) => server.address().port));
    let bad = 0;
    for (let i = 0; i < 12; i++) {
      const before = servers[0].times;
      const options = { body: chatBody('x'), headers: { 'x-session-id': `one-${i}` }, agent: new http.Agent() };
      const got = await ask(proxy, CHAT, options);
      assert.equal(got.status, servers[0].times > before ? status : 200, got.text);
      assert.ok(got.json?.error || got.status === 200 || status === 500, `its own errors are OpenAI's: ${got.text}`);
      bad += servers[0].times > before;
    }
    const total = servers.reduce((sum, server) => sum + server.times, 0);
    assert.ok(bad > 0, 'some went to the failing one');
    assert.equal(servers[0].times, bad, 'never twice to the failing one');
    assert.equal(total, 12 + (again ? bad : 0));
    await haproxy.stop(proxy);
    });
}

test('on a connection that had answers before, one that fails is the end of the connection', async () => {
  const servers = await Promise.all([1, 2, 3].map(() => counting((response, times) => (times > 1 ? response.destroy() : response.end('{}')))));
  const proxy = await haproxy.start(servers.map((server) => server.address().port));
  const options = { body: chatBody('x'), headers: { 'x-session-id': 'one' }, agent: new http.Agent({ keepAlive: true, maxSockets: 1 }) };
  assert.equal((await ask(proxy, CHAT, options)).status, 200);
  await assert.rejects(ask(proxy, CHAT, options), { code: 'ECONNRESET' });
  assert.equal(servers.reduce((sum, server) => sum + server.times, 0), 2);
  await haproxy.stop(proxy);
});

test('who waits for an answer is not timed out; a stream that falls silent is', async () => {
  const late = (response) => setTimeout(() => response.end('{}'), 4000);
  const servers = await Promise.all([1, 2, 3].map(() => counting(late)));
  const changes = [
    ['^    timeout client 60s$', '    timeout client 1500ms'], ['^    timeout http-request 60s$', '    timeout http-request 1500ms'],
    ['^    http-request set-timeout server 60s ', '    http-request set-timeout server 2500ms '],
  ];
  const proxy = await haproxy.start(servers.map((server) => server.address().port), { changes });
  const answers = await Promise.all([{}, { stream: false }, { stream: true }].map((more) =>
    ask(proxy, CHAT, { body: chatBody('x', more), agent: new http.Agent() })));
  assert.deepEqual(answers.map((answer) => answer.status), [200, 200, 504]);
  assert.equal(servers.reduce((sum, server) => sum + server.times, 0), 3, 'and it is not sent again');
  await haproxy.stop(proxy);
});

test('a body beyond the buffer is whole, is not repeated, and one beyond 64 MiB is 413', async () => {
  const bodies = [], heads = [];
  const servers = await Promise.all([1, 2, 3].map(() => counting((response, _, server) => response.writeHead(server.busy ? 503 : 200).end('{}'))));
  for (const server of servers) {
    server.on('request', (request) => {
      let length = 0;
      if (request.method === 'POST') heads.push(request.headers);
      if (request.method === 'POST') request.on('data', (part) => (length += part.length)).on('end', () => bodies.push(length));
    });
  }
  const proxy = await haproxy.start(servers.map((server) => server.address().port));
  const body = JSON.stringify(chatBody('y'.repeat(3 << 20), { prompt_cache_key: 'late' }));
  assert.equal((await ask(proxy, CHAT, { body, headers: { 'x-request-id': 'mine', authorization: 'Bearer key' } })).status, 200);
  assert.deepEqual(bodies, [Buffer.byteLength(body)]);
  assert.deepEqual([heads[0]['x-request-id'], heads[0].authorization], ['mine', 'Bearer key']);
  servers.forEach((server) => (server.busy = true)); // what cannot be kept cannot be sent again
  const busy = await ask(proxy, CHAT, { body });
  assert.deepEqual([busy.status, bodies.length], [503, 2], 'the 503 goes to the client');
  assert.match(heads[1]['x-request-id'], /^[0-9a-f-]{36}$/, 'who sends no id gets one');
  const refused = await new Promise((done, failed) => {
    const headers = { 'content-length': (64 << 20) + 1 };
    const request = http.request({ host: '127.0.0.1', port: proxy.port, path: CHAT, method: 'POST', headers }, done);
    request.on('error', failed).write('{');
  });
  refused.resume().socket.destroy();
  assert.equal(refused.statusCode, 413);
  await haproxy.stop(proxy);
});

test('conversations are told apart by header, by field and by key, in this order', async () => {
  const servers = await Promise.all([1, 2, 3].map(() => counting(fine)));
  const proxy = await haproxy.start(servers.map((server) => server.address().port));
  /** Which server gets it. */
  const place = async (headers, more = {}) => {
    const before = servers.map((server) => server.times);
    await get(proxy, CHAT, chatBody('x', more), { headers }).catch(() => {});
    return servers.findIndex((server, i) => server.times > before[i]);
  };
  const spread = async (make) => {
    const places = [];
    for (let i = 0; i < 12; i++) places.push(await place(...make(i)));
    return places.join('');
  };
  const ways = {
    'x-session-id': (i) => [{ 'x-session-id': `k${i}`, 'x-conversation-id': 'one' }, { prompt_cache_key: 'one' }],
    'x-conversation-id': (i) => [{ 'x-conversation-id': `k${i}` }, { prompt_cache_key: 'one' }],
    prompt_cache_key: (i) => [{ authorization: 'Bearer one' }, { prompt_cache_key: `k${i}`, user: 'one' }],
    'metadata.user_id': (i) => [{}, { metadata: { user_id: `k${i}` }, user: 'one' }],
    user: (i) => [{ authorization: 'Bearer one' }, { user: `k${i}` }],
  };
  let first;
  for (const [name, make] of Object.entries(ways)) {
    const places = await spread(make);
    first ??= places;
    assert.ok(new Set(places).size === 3, `${name}: all three are used: ${places}`);
    assert.equal(places, first, `${name}: where a key goes does not depend on how it came`);
  }
  // The body may come later than the head.
  const late = [];
  for (let i = 0; i < 12; i++) {
    const before = servers.map((server) => server.times);
    const body = JSON.stringify(chatBody('x', { prompt_cache_key: `k${i}` }));
    await new Promise((done, failed) => {
      const headers = { 'content-length': Buffer.byteLength(body) };
      const request = http.request({ host: '127.0.0.1', port: proxy.port, path: CHAT, method: 'POST', headers, agent: false }, (response) => {
        response.resume().on('end', done);
      });
      request.on('error', failed).flushHeaders();
      setTimeout(() => request.end(body), 50);
    });
    late.push(servers.findIndex((server, k) => server.times > before[k]));
  }
  assert.equal(late.join(''), first);
  const keys = await spread((i) => [{ authorization: `Bearer ${i}` }]);
  assert.ok(new Set(keys).size === 3, keys);
  assert.equal(await spread((i) => [{ authorization: `Bearer ${i}` }]), keys);
  assert.equal(new Set(await spread(() => [{}])).size, 1, 'one address, one server');
  await haproxy.stop(proxy);
});

// ---- real servers ---------------------------------------------------------------------------------------------------

const DRAIN_DELAY = 3; // as the shipped file says
const ARGUMENTS = ['--device', 'cpu', '--threads', '1', '-c', '2048', '--sequences', '6', '--drain-delay', String(DRAIN_DELAY),
  '--drain-timeout', '20'];
const KEY = 'house-key';
const serve = (port = 0) => start({ args: ARGUMENTS, key: KEY, port });

/** What a conversation asks, turn by turn; what one server alone answers comes with it. */
const TOPICS = ['a cat', 'the sea', 'two friends', 'a red ball', 'the moon', 'a small boat'];
const TURNS = 3;
let conversations;
let servers, proxy;

async function answersAlone() {
  const alone = await serve();
  const made = [];
  for (const [number, topic] of TOPICS.entries()) {
    const messages = [], turns = [];
    for (let turn = 0; turn < TURNS; turn++) {
      messages.push({ role: 'user', content: turn === 0 ? `Tell me a story about ${topic}.` : `And then? Part ${turn + 1} of ${topic}.` });
      const body = chatBody('', { messages: [...messages], max_tokens: 32 });
      const text = (await get(alone, CHAT, body)).choices[0].message.content;
      turns.push({ body, text });
      messages.push({ role: 'assistant', content: text });
    }
    // Half of them are told by a header, half by OpenAI's field.
    const name = `conversation-${number}`;
    if (number % 2) for (const { body } of turns) body.prompt_cache_key = name;
    made.push({ turns, headers: number % 2 ? {} : { 'x-session-id': name } });
  }
  alone.signal('SIGKILL');
  await alone.ended;
  return made;
}

before(async () => {
  conversations = await answersAlone();
  servers = await Promise.all([serve(), serve(), serve()]);
  proxy = await haproxy.start(servers.map((server) => server.port));
  proxy.key = KEY;
  await until('all servers to be up', async () => (await haproxy.up(proxy)).length === 3);
});
after(async () => {
  for (const server of servers ?? []) {
    server.signal('SIGCONT');
    server.signal('SIGKILL');
  }
});

/** Lines of generations in a server's log, of all its lives: {status: count}. */
const past = haproxy.NAMES.map(() => '');
function logged(i) {
  const counts = {};
  for (const [, status] of (past[i] + servers[i].errors).matchAll(/ POST \/v1\/chat\/completions (\d+) /g)) {
    counts[status] = (counts[status] ?? 0) + 1;
  }
  return counts;
}
const total = (status) => servers.reduce((sum, _, i) => sum + (logged(i)[status] ?? 0), 0);

/** One turn through the proxy. Its text, and how many of its tokens came from a cache. */
async function turn(conversation, number, streamed) {
  const { body } = conversation.turns[number];
  const options = { headers: conversation.headers };
  if (!streamed) {
    const reply = await get(proxy, CHAT, body, options);
    return { text: reply.choices[0].message.content, usage: reply.usage };
  }
  const { chunks, done } = await stream(proxy, CHAT, { ...body, stream_options: { include_usage: true } }, options);
  assert.ok(done, 'a stream has its end');
  return { text: joined(chunks), usage: chunks.at(-1).usage };
}

/** The server that answered last: its log grew. */
async function placeOf(work) {
  const before = servers.map((_, i) => logged(i)[200] ?? 0);
  const result = await work();
  await until('its line in a log', () => servers.some((_, i) => (logged(i)[200] ?? 0) > before[i]));
  return [servers.findIndex((_, i) => (logged(i)[200] ?? 0) > before[i]), result];
}

async function restart(i) {
  const { port } = servers[i];
  past[i] += servers[i].errors;
  servers[i] = await serve(port);
  await until(`${haproxy.NAMES[i]} to be up again`, () => haproxy.isUp(proxy, haproxy.NAMES[i]));
}

test('answers, ids and keys come through; the numbers of one server do not', async () => {
  const answer = await ask(proxy, CHAT, { body: chatBody(SUM.question) });
  assert.equal(answer.json.choices[0].message.content, SUM.answer);
  assert.match(answer.headers['x-request-id'], /^req_/);
  assert.equal((await ask(proxy, CHAT, { body: chatBody(SUM.question), key: 'wrong' })).status, 401);
  assert.equal((await ask(proxy, '/health', { key: null })).status, 200);
  for (const one of ['/metrics', '/slots', '/load']) assert.equal((await ask(proxy, one)).status, 404, one);
});

test('a conversation comes back to the server that has its beginning', async () => {
  const places = [];
  for (const [number, conversation] of conversations.entries()) {
    const seen = new Set();
    for (let t = 0; t < TURNS; t++) {
      const [place, { text, usage }] = await placeOf(() => turn(conversation, t, t % 2 === 1));
      assert.equal(text, conversation.turns[t].text);
      seen.add(place);
      const cached = usage.prompt_tokens_details.cached_tokens;
      if (t > 0) assert.ok(cached > usage.prompt_tokens / 2, `turn ${t}: ${cached} of ${usage.prompt_tokens} tokens were cached`);
    }
    assert.equal(seen.size, 1, `conversation ${number} stays on one server`);
    places.push([...seen][0]);
  }
  conversations.forEach((conversation, i) => (conversation.place = places[i]));
  assert.ok(new Set(places).size >= 2, `not all on one: ${places}`);
});

test('a client that leaves ends its work on the server', async () => {
  for (const streamed of [true, false]) {
    const leaving = new AbortController();
    const body = endless({ stream: streamed, max_tokens: 1900 });
    const aborted = async () =>
      (await Promise.all(servers.map((server) => metric(server, 'request_success_total', 'finished_reason="abort"')))).reduce((a, b) => a + b);
    const before = await aborted();
    const left = ask(proxy, CHAT, { body, signal: leaving.signal }).catch((error) => error);
    const running = async () => (await Promise.all(servers.map((server) => metric(server, 'num_requests_running')))).reduce((a, b) => a + b);
    await until('it to run', running);
    leaving.abort();
    assert.notEqual((await left).status, 200, 'it was not complete');
    await until('nothing to run', async () => (await running()) === 0);
    assert.equal(await aborted(), before + 1, 'it was ended, and not answered to its end');
  }
});

test('all three are restarted under load: nothing is lost, cut or done twice', async () => {
  const before = { 200: total(200), 503: total(503), 500: total(500) };
  let sent = 0, going = true, wrong = [];
  const load = conversations.map(async (conversation, number) => {
    for (let round = 0; going; round++) {
      for (let t = 0; t < TURNS; t++) {
        sent++;
        try {
          const { text } = await turn(conversation, t, (round + t + number) % 2 === 0);
          if (text !== conversation.turns[t].text) wrong.push(`another text: ${text}`);
        } catch (error) {
          wrong.push(error.message);
        }
        await sleep(20);
      }
    }
  });
  const counts = [];
  for (let i = 0; i < 3; i++) {
    const begin = sent;
    servers[i].signal('SIGTERM');
    await until('it to be out', async () => !(await haproxy.isUp(proxy, haproxy.NAMES[i])), DRAIN_DELAY);
    await servers[i].stop(20);
    await restart(i);
    counts.push(sent - begin);
  }
  going = false;
  await Promise.all(load);
  console.log(`# ${sent} requests, ${counts} of them while each was restarted`);
  assert.deepEqual(wrong, []);
  assert.ok(counts.every((count) => count > 10), `there was load: ${counts}`);
  await until('all lines in the logs', () => total(200) - before[200] >= sent);
  assert.equal(total(200) - before[200], sent, 'each was done once');
  assert.equal(total(503) - before[503], 0, 'no server had to say no');
  assert.equal(total(500) - before[500], 0);
});

test('after its restart a server gets its conversations again', async () => {
  for (const conversation of conversations) {
    for (const again of [false, true]) {
      const [place, { text, usage }] = await placeOf(() => turn(conversation, TURNS - 1, again));
      assert.equal(text, conversation.turns[TURNS - 1].text);
      assert.equal(place, conversation.place);
      if (again) assert.ok(usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens / 2);
    }
  }
});

test('a server that is killed costs what ran on it, and that is not repeated', async () => {
  const conversation = conversations[0], i = conversation.place;
  const { headers } = conversation;
  const plain = ask(proxy, CHAT, { body: endless({ max_tokens: 1900 }), headers, agent: new http.Agent() });
  const response = await send(proxy, CHAT, { body: endless({ max_tokens: 1900, stream: true }), headers });
  const streamed = (async () => {
    for await (const _ of response);
  })().then(() => 'whole', () => 'cut');
  await until('both to run there', async () => (await metric(servers[i], 'num_requests_running')) === 2);
  const others = haproxy.NAMES.map((_, k) => k).filter((k) => k !== i);
  const before = others.map((k) => JSON.stringify(logged(k)));
  servers[i].signal('SIGKILL');
  const answer = await plain;
  assert.equal(answer.status, 502);
  assert.equal(answer.json.error.code, 'server_lost');
  assert.equal(await streamed, 'cut', 'a stream that is broken off does not look whole');
  await servers[i].ended;
  await sleep(300);
  for (const k of others) assert.equal(await metric(servers[k], 'num_requests_running'), 0, 'nobody does it again');
  assert.deepEqual(others.map((k) => JSON.stringify(logged(k))), before);
  // What comes next finds another server, before the checks know of it and after.
  for (let n = 0; n < 2; n++) {
    const { text } = await turn(conversation, 0, false);
    assert.equal(text, conversation.turns[0].text);
    await until('it to be out', async () => !(await haproxy.isUp(proxy, haproxy.NAMES[i])));
  }
  await restart(i);
  const [place] = await placeOf(() => turn(conversation, 0, false));
  assert.equal(place, i);
});

test('a server that hangs is out within its time, and back when it goes on', async () => {
  const conversation = conversations[1], i = conversation.place;
  servers[i].signal('SIGSTOP');
  const begin = Date.now();
  await until('it to be out', async () => !(await haproxy.isUp(proxy, haproxy.NAMES[i])));
  const seconds = (Date.now() - begin) / 1000;
  assert.ok(seconds < 60, `${seconds} s`); // 5.25 s, and a loaded machine
  const { text } = await turn(conversation, 0, true);
  assert.equal(text, conversation.turns[0].text);
  servers[i].signal('SIGCONT');
  await until('it to be up again', () => haproxy.isUp(proxy, haproxy.NAMES[i]));
  const [place] = await placeOf(() => turn(conversation, 0, false));
  assert.equal(place, i);
});

test('TLS at the proxy', async (t) => {
  const folder = temporaryFolder();
  const [key, certificate, both] = ['key.pem', 'certificate.pem', 'both.pem'].map((name) => path.join(folder, name));
  try {
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', key,
      '-out', certificate, '-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1'], { stdio: 'ignore' });
  } catch {
    return t.skip('no openssl here to make a certificate');
  }
  fs.writeFileSync(both, fs.readFileSync(certificate, 'utf8') + fs.readFileSync(key, 'utf8'));
  // The line that ships in a comment, with this file and socket.
  const changes = [['^    bind fd@3$', ''], ['^    # bind :443 ssl crt \\S+ alpn h2,http/1.1 .*$', `    bind fd@3 ssl crt ${both} alpn h2,http/1.1`]];
  const secure = await haproxy.start(servers.map((server) => server.port), { changes, scheme: 'https' });
  const text = await new Promise((done, failed) => {
    const body = JSON.stringify(chatBody(SUM.question));
    const request = https.request({
      host: '127.0.0.1', port: secure.port, path: CHAT, method: 'POST', ca: fs.readFileSync(certificate),
      headers: { 'content-length': Buffer.byteLength(body), authorization: `Bearer ${KEY}` },
    }, async (response) => {
      let all = '';
      for await (const part of response.setEncoding('utf8')) all += part;
      done(all);
    });
    request.on('error', failed).end(body);
  });
  assert.equal(JSON.parse(text).choices[0].message.content, SUM.answer);
  await haproxy.stop(secure);
});
