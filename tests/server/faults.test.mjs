// Every kind of call of a running server fails once, at one place after the other: the server lives on, at most the
// request of that moment fails, and says so, and the next one is right.
//
//   --fail PATH   the library of fail.c (else beside the tests in the build folder)
//   --all         every place instead of a sample
//   --trace       the calls that led to each failure, on the server's stderr
//   --only KIND   of the kinds below
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { chatBody, endless, events, get, idle, option, program, send, sleep, start, SUM, temporaryFolder } from './support.mjs';

const library = path.resolve(option('fail', path.join(path.dirname(program), 'tests/server/libfail.so')));
const everything = process.argv.includes('--all');
const trace = process.argv.includes('--trace') ? 128 : 0;
const only = option('only');
const MOST_PLACES = everything ? Infinity : 24; // of one request and kind
const KINDS = { memory: 1, read: 2, write: 4, accept: 8, 'epoll_wait': 16, 'epoll_ctl': 32, open: 64 };

// The control block of fail.c: mask, fired, remaining; shared memory to the server, a file here.
const control = path.join(temporaryFolder(), 'control');
fs.writeFileSync(control, Buffer.alloc(16));
const file = fs.openSync(control, 'r+');
function arm(mask, place) {
  const bytes = Buffer.alloc(16);
  bytes.writeBigInt64LE(BigInt(place), 8);
  fs.writeSync(file, Buffer.alloc(4), 0, 4, 0);
  fs.writeSync(file, bytes, 4, 12, 4);
  bytes.writeUInt32LE(mask, 0);
  fs.writeSync(file, bytes, 0, 4, 0);
}
function disarm() {
  fs.writeSync(file, Buffer.alloc(4), 0, 4, 0);
  const bytes = Buffer.alloc(16);
  fs.readSync(file, bytes, 0, 16, 0);
  return { fired: bytes.readUInt32LE(4), remaining: Number(bytes.readBigInt64LE(8)) };
}

let server;
const begin = async () => (server = await start({ args: ['--sequences', '2', '-c', '512'], env: { LD_PRELOAD: library, SLUICE_FAIL: control } }));
before(begin);
after(async () => {
  disarm();
  await server?.stop();
});

const chat = chatBody(SUM.question);
const REQUESTS = {
  health: { target: '/health', read: (text) => JSON.parse(text).status === 'ok' },
  plan: { target: '/plan', read: (text) => JSON.parse(text).total_bytes > 0 },
  chat: { target: '/v1/chat/completions', body: chat, read: (text) => JSON.parse(text).choices[0].message.content === SUM.answer },
  'chat with log-probabilities and choices': {
    target: '/v1/chat/completions', body: { ...chat, n: 2, logprobs: true, top_logprobs: 3 },
    read: (text) => JSON.parse(text).choices.every((choice) => choice.message.content === SUM.answer && choice.logprobs.content.length > 3),
  },
  'an answer held to a grammar': {
    target: '/v1/chat/completions', body: { ...chat, guided_regex: '(yes|no|perhaps), [0-9]{2,4}!' },
    read: (text) => /^(yes|no|perhaps), [0-9]{2,4}!$/.test(JSON.parse(text).choices[0].message.content),
  },
  'a stream': { target: '/v1/chat/completions', body: { ...chat, stream: true }, read: streamed },
  completions: { target: '/v1/completions', body: { prompt: 'What is', max_tokens: 3, echo: true, logprobs: 1 }, read: (text) => JSON.parse(text).choices[0].text.startsWith('What is') },
  responses: { target: '/v1/responses', body: { input: SUM.question, temperature: 0 }, read: (text) => JSON.parse(text).output[0].content[0].text === SUM.answer },
  messages: { target: '/v1/messages', body: { messages: chat.messages, max_tokens: 30, temperature: 0 }, read: (text) => JSON.parse(text).content[0].text === SUM.answer },
  'Ollama chat': { target: '/api/chat', body: { messages: chat.messages, stream: false, options: { temperature: 0 } }, read: (text) => JSON.parse(text).message.content === SUM.answer },
  models: { target: '/v1/models', read: (text) => JSON.parse(text).data.length === 1 },
  metrics: { target: '/metrics', read: (text) => text.includes('sluice_generation_tokens_total') },
  tokenize: { target: '/tokenize', body: { content: SUM.question }, read: (text) => JSON.parse(text).tokens.length > 3 },
};

/** A stream that says it is whole has the whole answer; null: it was broken off, or told of an error. */
function streamed(text) {
  const data = [...text.matchAll(/^data: (.*)$/gm)].map((match) => match[1]);
  if (data.at(-1) !== '[DONE]') return null;
  return data.slice(0, -1).map((one) => JSON.parse(one).choices[0].delta.content ?? '').join('') === SUM.answer;
}

/** 'right', 'failed' (with a 5xx or without a whole answer), or what is wrong. */
async function outcome({ target, body, read }) {
  let response, text = '';
  try {
    response = await send(server, target, { body, seconds: 60, agent: false }); // a connection of its own
    response.setEncoding('utf8');
    for await (const part of response) text += part;
  } catch (error) {
    return /timeout/.test(error.message) ? 'no answer for a minute' : 'failed';
  }
  if (response.statusCode >= 500) return 'failed';
  if (response.statusCode !== 200) return `status ${response.statusCode} blames the client: ${text}`;
  try {
    const right = read(text);
    return right === null ? 'failed' : right ? 'right' : `a wrong answer: ${text}`;
  } catch (error) {
    return `an answer that cannot be read: ${error.message}: ${text}`;
  }
}

/** The server is there, idle, and right. */
async function check(place) {
  assert.equal(server.exit, null, `the server ended with ${place}: ${JSON.stringify(server.exit)}\n${server.tail}`);
  const wrong = await outcome(REQUESTS.chat);
  if (wrong !== 'right') await sleep(200); // a crash is told of a little later
  assert.equal(wrong, 'right', `after ${place}: ${wrong}; ${server.exit ? `the server ended: ${JSON.stringify(server.exit)}` : 'the server runs'}\n${server.tail}`);
}

async function exercise(name, kind) {
  const request = REQUESTS[name];
  arm(0, 0);
  assert.equal(await outcome(request), 'right', `${name} without a fault`);
  arm(KINDS[kind], 2 ** 40); // counts, fails nothing
  assert.equal(await outcome(request), 'right');
  const calls = 2 ** 40 - disarm().remaining;
  const step = Math.max(1, Math.ceil(calls / MOST_PLACES));
  let failed = 0, fired = 0;
  for (let place = 1; place <= calls; place += step) {
    arm(KINDS[kind] | trace, place);
    const got = await outcome(request);
    fired += disarm().fired;
    assert.ok(got === 'right' || got === 'failed', `${name}, ${kind} call ${place} of ${calls}: ${got}\n${server.tail}`);
    failed += got === 'failed';
    await check(`${name}, ${kind} call ${place} of ${calls}`);
  }
  console.log(`# ${name}, ${kind}: ${calls} calls, ${fired} failed, ${failed} requests with them`);
}

for (const kind of Object.keys(KINDS).filter((one) => !only || one === only)) {
  test(`${kind} fails`, { timeout: 3600000 }, async (t) => {
    for (const name of Object.keys(REQUESTS)) {
      await t.test(name, async () => {
        try {
          await exercise(name, kind);
        } finally {
          disarm();
          await sleep(100);
          if (server.exit) await begin(); // what comes next is about something else
        }
      });
    }
  });
}

test('others go on while a request fails', async () => {
  const running = await send(server, '/v1/chat/completions', { body: { ...endless({ max_tokens: 300 }), stream: true } });
  const whole = (async () => {
    let last;
    for await (const { data } of events(running)) last = data ?? last;
    return last;
  })();
  // Before the first token: what fails then is the other one's.
  for (let place = 1; place <= 5; place++) {
    arm(KINDS.accept, 1);
    await outcome(REQUESTS.tokenize);
    disarm();
  }
  assert.equal(await whole, '[DONE]');
});

test('nothing is left running', async () => {
  await sleep(50);
  await idle(server);
  assert.equal((await get(server, '/v1/chat/completions', chat)).choices[0].message.content, SUM.answer);
});
