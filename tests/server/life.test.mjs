// How `sluice serve` begins and ends: signals under load, ports, models, options, and closed descriptors.
//
//   --rounds N   SIGTERMs at random moments [100; with --short 6]
//   --seed N     of those moments [1]
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { after, test } from 'node:test';
import {
  ask, chatBody, endless, events, get, metric, option, program, run, send, Server, short, sleep, start, SUM, temporaryFolder, until,
} from './support.mjs';

const rounds = Number(option('rounds', short ? 6 : 100));
let state = Number(option('seed', 1)) >>> 0 || 1;
function random(below) {
  state = (state * 1664525 + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * below);
}

const CHAT = '/v1/chat/completions';
const neverAnswered = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE']);

/** What became of one request: 'whole', 'refused' (503), 'unseen' (no byte of an answer), or what is wrong with it. */
async function outcome(server, body) {
  let response;
  try {
    response = await send(server, CHAT, { body });
  } catch (error) {
    return neverAnswered.has(error.code) ? 'unseen' : `failed: ${error.message}`;
  }
  try {
    if (response.statusCode === 200 && body.stream) {
      let done = false, reasons = 0;
      for await (const event of events(response)) {
        if (event.data === '[DONE]') done = true;
        else if (event.data && JSON.parse(event.data).choices[0]?.finish_reason) reasons++;
      }
      return done && reasons === 1 ? 'whole' : `a stream without its end (${reasons} reasons, done: ${done})`;
    }
    const parts = [];
    for await (const part of response) parts.push(part);
    const reply = JSON.parse(Buffer.concat(parts));
    if (response.statusCode === 503) return reply.error?.message && response.headers['retry-after'] ? 'refused' : '503 without error or Retry-After';
    if (response.statusCode !== 200) return `status ${response.statusCode}`;
    return reply.choices[0].finish_reason === 'length' && reply.usage.completion_tokens === body.max_tokens ? 'whole' : 'cut short';
  } catch (error) {
    return `broken off: ${error.message}`;
  }
}

test(`${rounds} times SIGTERM at a random moment under load: no accepted request is lost`, { timeout: 3000000 }, async () => {
  const counts = {};
  for (let round = 0; round < rounds; round++) {
    const server = await start({ args: ['--sequences', '2', '-c', '512'] });
    const answers = Array.from({ length: 6 }, (_, i) =>
      outcome(server, chatBody(`Tell me about ${round} and ${i}.`, { max_tokens: 1 + random(40), ignore_eos: true, stream: i % 2 === 0 })));
    // In every other round all of them are known to be accepted before the signal; else some may not have come so far.
    const accepted = round % 2 === 0;
    if (accepted) {
      let ended = 0;
      answers.forEach((answer) => answer.then(() => ended++));
      await until('all requests to be accepted', async () =>
        ended + (await metric(server, 'num_requests_running')) + (await metric(server, 'num_requests_waiting')) >= 6 || ended === 6);
    }
    await sleep(random(accepted ? 60 : 30));
    server.signal(round % 3 === 0 ? 'SIGINT' : 'SIGTERM');
    await sleep(random(3) * 10);
    answers.push(outcome(server, chatBody('Late.', { max_tokens: 2, ignore_eos: true }))); // may come too late: refused or unseen
    const late = answers.length - 1;
    const got = await Promise.all(answers);
    await server.stop();
    for (const [i, one] of got.entries()) {
      const allowed = accepted && i < late ? ['whole', 'refused'] : ['whole', 'refused', 'unseen'];
      assert.ok(allowed.includes(one), `round ${round}, request ${i}: ${one}\n${server.tail}`);
      counts[one] = (counts[one] ?? 0) + 1;
    }
  }
  console.log(`# ${JSON.stringify(counts)}`);
  assert.ok(counts.whole > 0);
});

test('a request that runs gets its whole answer after SIGTERM, one that begins then gets 503', async () => {
  const server = await start({ args: ['--sequences', '1'] });
  // Connections that have begun a request are not idle: they may end it.
  const half = await new Promise((done) => {
    const socket = net.connect(server.port, '127.0.0.1', () => socket.write('GET /health HTTP/1.1\r\nHost: local', () => done(socket)));
    socket.on('error', () => {}); // reset when the server ends before it, where what ran was quicker than the drain
  });
  const response = await send(server, CHAT, { body: { ...endless({ max_tokens: 150 }), stream: true } });
  const whole = (async () => {
    let last, tokens = 0;
    for await (const { data } of events(response)) {
      if (data && data !== '[DONE]' && JSON.parse(data).choices[0].delta.content) tokens++;
      last = data ?? last;
    }
    return { last, tokens };
  })();
  await sleep(50);
  server.signal('SIGTERM');
  await until('the drain', () => /draining/.test(server.errors));
  let text = '';
  half.setEncoding('latin1').on('data', (part) => (text += part));
  half.write('host\r\n\r\n');
  const { last, tokens } = await whole;
  assert.equal(last, '[DONE]');
  assert.ok(tokens > 120, `${tokens} tokens`);
  await server.stop();
  if (text) {
    assert.match(text, /^HTTP\/1\.1 503 /);
    assert.match(text, /retry-after:/i);
  }
});

test('a request whose headers came before the end is answered, when its body comes after it', async () => {
  const server = await start();
  const body = JSON.stringify(chatBody(SUM.question));
  const head = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nExpect: 100-continue\r\n\r\n`;
  const socket = net.connect(server.port, '127.0.0.1', () => socket.write(head));
  let text = '';
  socket.setEncoding('utf8').on('data', (part) => (text += part));
  await until('the headers to be read', () => /^HTTP\/1\.1 100 .*\r\n\r\n/.test(text));
  text = '';
  server.signal('SIGTERM');
  await until('the drain', () => /draining/.test(server.errors));
  socket.write(body);
  await server.ended;
  assert.match(text, /^HTTP\/1\.1 200 /);
  assert.ok(text.includes(SUM.answer), text);
});

test('requests whose headers come at the moment of the signal, with nothing else open, are whole, refused or unseen', async () => {
  const body = JSON.stringify(chatBody(SUM.question));
  const head = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
  const counts = { whole: 0, refused: 0, unseen: 0 };
  for (let round = 0; round < rounds; round++) {
    const server = await start();
    const clients = await Promise.all(Array.from({ length: 8 }, () => new Promise((done, failed) => {
      const client = { text: '' };
      client.socket = net.connect({ port: server.port, host: '127.0.0.1', noDelay: true }, () => client.socket.write(head.slice(0, -2), () => done(client)));
      client.socket.setEncoding('utf8').on('data', (part) => (client.text += part)).on('error', failed);
      client.ended = new Promise((closed) => client.socket.on('close', closed));
    })));
    for (const { socket } of clients) socket.removeAllListeners('error').on('error', () => {}); // what is unseen may be reset
    await sleep(5);
    server.signal('SIGTERM');
    for (const { socket } of clients) {
      const until = performance.now() + random(400) / 1000;
      while (performance.now() < until);
      socket.write(`\r\n${body}`);
    }
    await server.stop();
    for (const [i, { text, ended }] of clients.entries()) {
      await ended;
      const outcome = text === '' ? 'unseen' : /^HTTP\/1\.1 503 .*retry-after: /is.test(text) ? 'refused' : /^HTTP\/1\.1 200 /.test(text) && text.includes(SUM.answer) ? 'whole' : text;
      assert.ok(outcome in counts, `round ${round}, request ${i}: ${outcome}\n${server.tail}`);
      counts[outcome]++;
    }
  }
  console.log(`# ${JSON.stringify(counts)}`);
});

test('idle connections do not hold up the end', async () => {
  const server = await start({ args: ['--drain-timeout', '600'] });
  const agent = new http.Agent({ keepAlive: true });
  await Promise.all(Array.from({ length: 20 }, async () => {
    const response = await send(server, '/health', { agent });
    for await (const _ of response);
  }));
  await server.stop(45);
  agent.destroy();
});

test('--drain-timeout: what still runs then ends with an error, and the exit code is 0', async () => {
  const server = await start({ args: ['--drain-timeout', '1', '--sequences', '2'] });
  const response = await send(server, CHAT, { body: { ...endless(), stream: true } });
  const running = ask(server, CHAT, { body: endless() });
  await until('both to run', async () => (await metric(server, 'num_requests_running')) === 2);
  const queued = ask(server, CHAT, { body: endless() });
  await until('one to wait', async () => (await metric(server, 'num_requests_waiting')) === 1);
  const begin = Date.now();
  server.signal('SIGTERM');
  const seen = [];
  try {
    for await (const { data } of events(response)) if (data) seen.push(data);
  } catch {} // how a stream that is broken off ends
  assert.notEqual(seen.at(-1), '[DONE]');
  assert.ok(JSON.parse(seen.at(-1)).error?.message, seen.at(-1));
  // 503 and Retry-After only for what was never begun: a proxy may send that to another server.
  assert.equal((await running).status, 500);
  assert.equal((await running).headers['retry-after'], undefined);
  assert.equal((await queued).status, 503);
  assert.ok((await queued).headers['retry-after']);
  await server.stop();
  assert.ok(Date.now() - begin > 800, `${Date.now() - begin} ms`);
});

test('--drain-delay: /health says 503 at once, requests are taken until it is over', { timeout: 600000 }, async () => {
  const server = await start({ args: ['--drain-delay', '8'] });
  const agent = new http.Agent({ keepAlive: true });
  assert.notEqual((await ask(server, '/health', { agent })).headers.connection, 'close');
  const begin = Date.now();
  server.signal('SIGTERM');
  await until('/health to say so', async () => (await ask(server, '/health', { agent })).status === 503, 7);
  const health = await ask(server, '/health');
  assert.equal(health.json.error.code, 'server_draining');
  assert.ok(health.headers['retry-after']);
  for (let served = 0; served < 20 && (served === 0 || Date.now() - begin < 4000); served++) {
    const answer = await ask(server, CHAT, { body: chatBody(SUM.question), agent });
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.json.choices[0].message.content, SUM.answer);
    assert.equal(answer.headers.connection, 'close', 'no connection is kept');
  }
  const last = await send(server, CHAT, { body: { ...endless({ max_tokens: 400 }), stream: true } });
  const whole = (async () => {
    let data;
    for await (const event of events(last)) data = event.data ?? data;
    return data;
  })();
  await server.stop();
  assert.equal(await whole, '[DONE]', 'what began in the delay is drained');
  assert.ok(Date.now() - begin >= 7950, `${Date.now() - begin} ms`);
  agent.destroy();
});

test('a second signal ends at once', async () => {
  const server = await start({ args: ['--sequences', '4', '--drain-timeout', '600'] });
  const response = await send(server, CHAT, { body: { ...endless({ n: 4 }), stream: true } }); // for many seconds
  response.on('error', () => {}).resume();
  await sleep(100);
  server.signal('SIGTERM');
  await until('the drain', () => /draining/.test(server.errors));
  await sleep(50);
  assert.equal(server.exit, null, 'one signal lets it finish');
  server.signal('SIGTERM');
  await server.ended;
  assert.notDeepEqual(server.exit, { code: 0, signal: null });
});

test('/health while it loads: 503 and Retry-After, then 200', async () => {
  const server = await start({ wait: 'listening' });
  let answers = 0;
  for (;;) {
    const ready = server.isReady;
    const answer = await ask(server, '/health');
    if (ready) assert.equal(answer.status, 200);
    assert.ok([200, 503].includes(answer.status));
    if (answer.status === 200) break;
    assert.ok(Number(answer.headers['retry-after']) >= 1);
    assert.ok(answer.json.error.message);
    const early = await ask(server, CHAT, { body: chatBody('x', { max_tokens: 1 }) });
    assert.ok([200, 503].includes(early.status), `${early.status} ${early.text}`);
    answers++;
  }
  console.log(`# ${answers} answers while loading`);
  await until('the line', () => server.isReady);
  assert.equal((await get(server, CHAT, chatBody(SUM.question))).choices[0].message.content, SUM.answer);
  await server.stop();
});

test('SIGTERM while it loads', async () => {
  for (const milliseconds of [0, 5, 20, 50]) {
    const server = await start({ wait: 'listening' });
    await sleep(milliseconds);
    await server.stop();
  }
});

const folder = temporaryFolder();
test('what is wrong at the start: one line, not exit code 0, and soon', async (t) => {
  const holder = net.createServer().listen(0, '127.0.0.1');
  await new Promise((done) => holder.on('listening', done));
  after(() => holder.close());
  const taken = String(holder.address().port);
  const cases = [
    [['--port', taken], new RegExp(taken)], [['--port', '99999'], /port/], [['--port', '-1'], /port/], [['--port', 'x'], /port/],
    [['--port', '0', '-m', path.join(folder, 'missing.gguf')], /missing\.gguf/], [['--port', '0', '-m', '/dev/null'], /null/],
    [['--port', '0', '--nonsense'], /nonsense/], [['--port', '0', '--sequences', 'many'], /sequences/], [['--port', '0', '--log-format', 'xml'], /log-format/],
    [['--port', '0', '--api-key-file', path.join(folder, 'missing')], /missing/], [['--port', '0', '--tls-cert', path.join(folder, 'no.pem')], /tls|no\.pem/],
    [['--port', '0', '--config', path.join(folder, 'no.json')], /no\.json/], [['--port', '0', '--unix', path.join(folder, 'no/such/socket')], /socket/],
    [['--port', '0', '--host', '203.0.113.1'], /203\.0\.113\.1/], [['--port', '0', '--kv-type', 'int3'], /kv-type|int3/],
  ];
  for (const [line, words] of cases) {
    await t.test(line.join(' ').replace(folder, '...').replace(taken, 'TAKEN'), async () => {
      const ended = await run(['serve', '--host', '127.0.0.1', ...line]);
      assert.equal(ended.signal, null, 'it ended by itself');
      assert.ok(ended.code > 0, `exit code ${ended.code}`);
      const lines = ended.stderr.split('\n').filter((text) => text && !/listening on/.test(text));
      assert.equal(lines.length, 1, ended.stderr);
      assert.match(lines[0], /^sluice: /);
      assert.match(lines[0], words);
      assert.equal(ended.stdout, '');
    });
  }
});

test('again on the same port, at once, also after a kill with open connections', async () => {
  let server = await start();
  const { port } = server;
  for (let i = 0; i < 3; i++) {
    const response = await send(server, CHAT, { body: { ...endless(), stream: true } });
    response.on('error', () => {}).resume();
    server.signal('SIGKILL');
    await server.ended;
    server = await start({ port });
    assert.equal(server.port, port);
  }
  await server.stop();
  await (await start({ port })).stop();
});

test('closed standard descriptors do not end it, nor get a socket', async () => {
  for (const closed of ['1>&-', '2>&-', '0<&- 1>&- 2>&-']) {
    const free = net.createServer().listen(0, '127.0.0.1');
    await new Promise((done) => free.on('listening', done));
    const { port } = free.address();
    await new Promise((done) => free.close(done));
    const server = new Server(spawn('/bin/sh', ['-c', `exec "$0" "$@" ${closed}`, program, 'serve', '--host', '127.0.0.1', '--port', String(port)], { stdio: ['ignore', 'pipe', 'pipe'] }));
    server.port = port;
    await until('an answer', async () => server.exit || (await ask(server, '/health').catch(() => null))?.status === 200);
    assert.equal(server.exit, null, closed);
    assert.equal((await get(server, CHAT, chatBody(SUM.question))).choices[0].message.content, SUM.answer, closed);
    await server.stop();
  }
  // A reader that has gone: every line of the log then fails with EPIPE.
  const server = await start();
  server.child.stderr.destroy();
  server.child.stdout.destroy();
  for (let i = 0; i < 5; i++) assert.equal((await ask(server, CHAT, { body: chatBody(SUM.question) })).status, 200);
  await server.stop();
});
