// The npm package `ollama`, as published.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Ollama } from 'ollama';
import { z } from 'zod';
import { chatml, idle, LONG_SUM, MODEL, promptTokens, start, SUM } from './support.mjs';

let server, client;
before(async () => {
  server = await start({ args: ['--sequences', '4'] });
  client = new Ollama({ host: server.url });
});
after(() => server?.stop());

const messages = [{ role: 'user', content: SUM.question }];
const options = { temperature: 0, num_predict: 32 };

function checkEnd(part) {
  assert.equal(part.done, true);
  assert.equal(part.done_reason, 'stop');
  assert.ok(!Number.isNaN(Date.parse(part.created_at)));
  assert.equal(part.prompt_eval_count, promptTokens(messages));
  assert.ok(part.eval_count > 3);
  for (const name of ['total_duration', 'prompt_eval_duration', 'eval_duration']) assert.ok(part[name] > 0, name);
  assert.ok(part.load_duration >= 0);
  assert.ok(part.total_duration >= part.eval_duration, 'nanoseconds, and the whole is more than a part');
}

test('chat', async () => {
  const reply = await client.chat({ model: MODEL, messages, options });
  assert.equal(reply.model, MODEL);
  assert.equal(reply.message.role, 'assistant');
  assert.equal(reply.message.content, SUM.answer);
  checkEnd(reply);
  const next = await client.chat({ model: `${MODEL}:latest`, options, messages: [...messages, reply.message, { role: 'user', content: LONG_SUM.question }] });
  assert.equal(next.message.content, LONG_SUM.answer);
});

test('chat, streamed', async () => {
  const parts = [];
  for await (const part of await client.chat({ model: MODEL, messages, options, stream: true })) parts.push(part);
  assert.equal(parts.map((part) => part.message.content).join(''), SUM.answer);
  assert.ok(parts.length > 2);
  assert.ok(parts.slice(0, -1).every((part) => part.done === false));
  checkEnd(parts.at(-1));
});

test('generate', async () => {
  const reply = await client.generate({ model: MODEL, prompt: SUM.question, options });
  assert.equal(reply.response, SUM.answer);
  checkEnd(reply);
  const raw = await client.generate({ model: MODEL, prompt: chatml(messages), raw: true, options });
  assert.equal(raw.response, SUM.answer);
  let text = '';
  for await (const part of await client.generate({ model: MODEL, prompt: SUM.question, options, stream: true })) text += part.response;
  assert.equal(text, SUM.answer);
  const cut = await client.generate({ model: MODEL, prompt: SUM.question, options: { ...options, num_predict: 2 } });
  assert.equal(cut.done_reason, 'length');
  assert.equal(cut.eval_count, 2);
  const stopped = await client.generate({ model: MODEL, prompt: SUM.question, options: { ...options, stop: [' ='] } });
  assert.equal(stopped.response, '2 + 3');
});

test('what there is: list, show, ps, version', async () => {
  const { models } = await client.list();
  assert.equal(models.length, 1);
  assert.ok([MODEL, `${MODEL}:latest`].includes(models[0].name));
  assert.ok(models[0].size > 1e6);
  assert.ok(models[0].details.family);
  const shown = await client.show({ model: models[0].name });
  assert.ok(shown.capabilities.includes('completion'));
  assert.equal(shown.model_info[`${shown.model_info['general.architecture']}.context_length`] > 0, true);
  assert.ok(shown.template.includes('<|im_start|>'));
  const running = await client.ps();
  assert.ok([MODEL, `${MODEL}:latest`].includes(running.models[0].name));
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+/);
});

test('errors', async () => {
  const refused = (promise, status) => assert.rejects(promise, (error) => {
    assert.equal(error.name, 'ResponseError', error.message);
    assert.equal(error.status_code, status, error.message);
    return true;
  });
  await refused(client.chat({ model: MODEL, messages, options: { temperature: -1 } }), 400);
  await refused(client.chat({ model: MODEL, messages, format: 'xml' }), 400);
  await refused(client.chat({ model: MODEL, messages: [{ role: 'wizard', content: 'x' }] }), 400);
});

test('a client that leaves ends its request', async () => {
  const stream = await client.generate({ model: MODEL, prompt: 'Tell me a story.', options: { num_predict: 7000 }, stream: true, raw: true });
  let parts = 0;
  await assert.rejects(async () => {
    for await (const _ of stream) if (++parts === 2) stream.abort();
  }, { name: 'AbortError' });
  await idle(server);
  assert.equal((await client.chat({ model: MODEL, messages, options })).message.content, SUM.answer);
});

// As in Ollama's documents of structured outputs: a schema made by zod, and the answer parsed by it.
test('format', async () => {
  const country = z.object({ name: z.string().max(20), population: z.number().int().min(0), languages: z.array(z.string()).max(3), landlocked: z.boolean() });
  const format = z.toJSONSchema(country);
  for (const seed of [1, 2, 3]) {
    const settings = { temperature: 1.8, seed, num_predict: 500 };
    const reply = await client.chat({ model: MODEL, messages: [{ role: 'user', content: 'Tell me of a country.' }], format, options: settings });
    assert.equal(reply.done_reason, 'stop');
    country.parse(JSON.parse(reply.message.content));
    let streamed = '';
    for await (const part of await client.chat({ model: MODEL, messages: [{ role: 'user', content: 'Tell me of a country.' }], format, options: settings, stream: true })) {
      streamed += part.message.content;
    }
    assert.equal(streamed, reply.message.content);
    country.parse(JSON.parse((await client.generate({ model: MODEL, prompt: 'Tell me of a country.', format, options: settings })).response));
  }
  const object = await client.chat({ model: MODEL, messages, format: 'json', options: { ...options, num_predict: 200 } });
  assert.ok(object.message.content.startsWith('{'));
  await assert.rejects(client.chat({ model: MODEL, messages, format: { enum: [] } }), /enum/);
});
