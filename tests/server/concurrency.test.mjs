// Many requests at once give the texts that they give alone: greedy and sampled, cached or not, streamed or not, over
// several APIs, while other clients leave.
//
//   --requests N   how many at once [64; with --short 16]
import assert from 'node:assert/strict';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { endless, get, idle, joined, metric, MODEL, option, resources, send, short, sleep, start, stream } from './support.mjs';

const count = Number(option('requests', short ? 16 : 64));
const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
let server;
before(async () => {
  server = await start({ args: ['--sequences', '8'] });
});
after(async () => {
  agent.destroy();
  await server?.stop();
});

// Numbers by a formula, so that every run asks the same.
const topics = ['a river', 'the sea', 'two brothers', 'an old clock', 'rain', 'a lighthouse', 'bread', 'winter'];
const shared = `Rules of the house: ${Array.from({ length: 90 }, (_, i) => (i * 37) % 101).join(' ')}.`;

function request(i) {
  const sampled = i % 2 === 1;
  const sampling = sampled ? { temperature: 1.2, seed: 1000 + i, top_p: i % 4 === 1 ? 0.9 : 1, top_k: i % 8 === 3 ? 20 : -1 } : { temperature: 0 };
  const more = {
    model: MODEL, ...sampling, max_tokens: 8 + (i * 7) % 17, ignore_eos: i % 3 === 0, cache_prompt: i % 5 !== 0,
    ...(i % 9 === 4 ? { n: 2 } : {}), ...(i % 7 === 5 ? { frequency_penalty: 0.7, presence_penalty: 0.3 } : {}),
    ...(i % 11 === 6 ? { stop: ['.'] } : {}),
    ...(i % 5 === 3 ? { guided_regex: '([a-z]{1,9} ){3,30}[a-z]+', ignore_eos: false } : {}),
  };
  const topic = topics[i % topics.length];
  if (i % 6 === 2) return { target: '/v1/completions', body: { ...more, prompt: `Once upon a time, ${topic} ` } };
  // Half of them begin alike, so that they meet in the cache; lengths differ, so that steps mix prompts and tokens.
  const text = `${i % 4 < 2 ? shared : ''} Tell me about ${topic}${' and more'.repeat((i * 5) % 40)}.`;
  return { target: '/v1/chat/completions', body: { ...more, messages: [{ role: 'user', content: text }] } };
}

async function texts({ target, body }, streamed) {
  if (streamed) {
    const { chunks, done } = await stream(server, target, body, { agent });
    assert.ok(done, 'the stream is whole');
    return Array.from({ length: body.n ?? 1 }, (_, index) => joined(chunks, index));
  }
  const reply = await get(server, target, body, { agent });
  return [...reply.choices].sort((a, b) => a.index - b.index).map((choice) => choice.text ?? choice.message.content);
}

const requests = Array.from({ length: count }, (_, i) => request(i));
let alone;

function compare(together, what) {
  const wrong = together.flatMap((got, i) =>
    JSON.stringify(got) === JSON.stringify(alone[i]) ? [] : [`${i} ${JSON.stringify(requests[i].body).slice(0, 120)}: ${JSON.stringify(got)}, alone ${JSON.stringify(alone[i])}`]);
  assert.deepEqual(wrong, [], `${what}: ${wrong.length} of ${count} differ`);
}

test('alone, one after the other', async () => {
  alone = [];
  for (const one of requests) alone.push(await texts({ ...one, body: { ...one.body, cache_prompt: false } }, false));
  assert.ok(new Set(alone.map(String)).size > count / 3, 'they are not all the same');
});

test('all at once', async () => {
  compare(await Promise.all(requests.map((one, i) => texts(one, i % 3 === 1))), 'first');
});

test('all at once, when all of them were there before', async () => {
  compare(await Promise.all(requests.map((one, i) => texts({ ...one, body: { ...one.body, cache_prompt: true } }, i % 3 === 0))), 'cached');
});

test('all at once, while others leave', async () => {
  const leaving = Promise.all(Array.from({ length: count / 2 }, async (_, i) => {
    await sleep((i * 53) % 400);
    const control = new AbortController();
    setTimeout(() => control.abort(), (i * 29) % 150);
    try {
      const response = await send(server, '/v1/chat/completions', { body: { ...endless({ n: 1 + (i % 3) }), stream: i % 2 === 0 }, signal: control.signal });
      for await (const _ of response);
    } catch (error) {
      assert.ok(control.signal.aborted, `not by this client: ${error.message}`);
    }
  }));
  compare(await Promise.all(requests.map((one, i) => texts(one, i % 2 === 1))), 'with others leaving');
  await leaving;
  await idle(server);
});

test('the first ones are first: nobody waits for ever behind long requests', async () => {
  const control = new AbortController();
  const long = Array.from({ length: 12 }, () => send(server, '/v1/chat/completions', { body: { ...endless({ max_tokens: short ? 60 : 200 }), stream: true }, signal: control.signal }));
  const [first] = await Promise.all(long);
  assert.equal(first.statusCode, 200);
  const answer = await texts(requests[0], false);
  assert.deepEqual(answer, alone[0]);
  control.abort();
  for (const one of long) (await one).on('error', () => {});
  await idle(server);
});

test('nothing is left behind', async () => {
  assert.equal(await metric(server, 'num_requests_running'), 0);
  assert.ok(resources(server.pid).descriptors < 200 + 2 * count);
});
