// The npm package `@anthropic-ai/sdk`, as published.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { idle, LONG_SUM, MODEL, promptTokens, start, SUM } from './support.mjs';

const key = 'a-key-of-the-clients-test';
let server, client;
before(async () => {
  server = await start({ key, args: ['--sequences', '4'] });
  client = new Anthropic({ baseURL: server.url, apiKey: key, maxRetries: 0 });
});
after(() => server?.stop());

const messages = [{ role: 'user', content: SUM.question }];
const ask = { model: MODEL, max_tokens: 32, temperature: 0, messages };
const rejects = (promise, kind, type) =>
  assert.rejects(promise, (error) => {
    assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`);
    if (type) {
      assert.equal(error.error?.type, 'error');
      assert.equal(error.error.error.type, type);
      assert.ok(error.error.error.message.length > 0);
    }
    return true;
  });

test('a message', async () => {
  const reply = await client.messages.create(ask);
  assert.match(reply.id, /^msg_./);
  assert.equal(reply.type, 'message');
  assert.equal(reply.role, 'assistant');
  assert.equal(reply.model, MODEL);
  assert.equal(reply.content.length, 1);
  assert.equal(reply.content[0].type, 'text');
  assert.equal(reply.content[0].text, SUM.answer);
  assert.equal(reply.stop_reason, 'end_turn');
  assert.equal(reply.stop_sequence, null);
  const { usage } = reply;
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens, promptTokens(messages));
  assert.ok(usage.output_tokens > 3);
});

test('how a message ends', async () => {
  const cut = await client.messages.create({ ...ask, max_tokens: 2 });
  assert.equal(cut.stop_reason, 'max_tokens');
  assert.equal(cut.usage.output_tokens, 2);
  const stopped = await client.messages.create({ ...ask, stop_sequences: ['nothing', ' ='] });
  assert.equal(stopped.stop_reason, 'stop_sequence');
  assert.equal(stopped.stop_sequence, ' =');
  assert.equal(stopped.content[0].text, '2 + 3');
});

test('system texts and blocks, parts, an assistant that is gone on from', async () => {
  const system = 'You add numbers.';
  const plain = await client.messages.create({ ...ask, system });
  assert.equal(plain.content[0].text, SUM.answer);
  const all = (usage) => usage.input_tokens + usage.cache_read_input_tokens;
  assert.equal(all(plain.usage), promptTokens([{ role: 'system', content: system }, ...messages]));
  const blocks = await client.messages.create({
    ...ask, system: [{ type: 'text', text: system, cache_control: { type: 'ephemeral' } }],
    messages: [{ role: 'user', content: [{ type: 'text', text: SUM.question, cache_control: { type: 'ephemeral' } }] }],
  });
  assert.equal(all(blocks.usage), all(plain.usage));
  const billed = await client.messages.create({
    ...ask, system: [{ type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.0; cch=abcde;' }, { type: 'text', text: system }],
  });
  assert.equal(all(billed.usage), all(plain.usage), 'a line that differs with every request is left out');
  const turn = await client.messages.create({
    ...ask, messages: [...messages, { role: 'assistant', content: [{ type: 'text', text: SUM.answer }] }, { role: 'user', content: LONG_SUM.question }],
  });
  assert.equal(turn.content[0].text, LONG_SUM.answer);
  const begun = await client.messages.create({ ...ask, messages: [...messages, { role: 'assistant', content: '2 + 3 =' }] });
  assert.equal(begun.content[0].text.trim(), '5');
});

test('a stream, by the helper', async () => {
  const stream = client.messages.stream(ask);
  const seen = [];
  let text = '';
  stream.on('streamEvent', (event) => seen.push(event));
  stream.on('text', (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.equal(text, SUM.answer);
  assert.equal(final.content[0].text, SUM.answer);
  assert.equal(final.stop_reason, 'end_turn');
  assert.ok(final.usage.output_tokens > 3);
  const types = seen.map((event) => event.type).filter((type) => type !== 'ping');
  assert.deepEqual(types.slice(0, 2), ['message_start', 'content_block_start']);
  assert.deepEqual(types.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
  assert.ok(types.slice(2, -3).every((type) => type === 'content_block_delta'));
  const { usage } = seen[0].message;
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens, promptTokens(messages));
});

test('count_tokens', async () => {
  const system = 'You add numbers.';
  const { input_tokens: count } = await client.messages.countTokens({ model: MODEL, system, messages });
  assert.equal(count, promptTokens([{ role: 'system', content: system }, ...messages]));
});

test('thinking is a choice that the server knows', async () => {
  for (const thinking of [{ type: 'disabled' }, { type: 'enabled', budget_tokens: 1024 }]) {
    const reply = await client.messages.create({ ...ask, max_tokens: 2048, thinking, temperature: undefined });
    assert.equal(reply.content.at(-1).type, 'text');
  }
  await rejects(client.messages.create({ ...ask, thinking: { type: 'perhaps' } }), Anthropic.BadRequestError, 'invalid_request_error');
});

test('Claude Code sends fields and a query of its own', async () => {
  const reply = await client.beta.messages.create({ ...ask, metadata: { user_id: 'somebody' }, betas: ['interleaved-thinking-2025-05-14'] });
  assert.equal(reply.content[0].text, SUM.answer);
});

test('errors are the classes that the package has for them', async () => {
  await rejects(client.messages.create({ ...ask, max_tokens: 0 }), Anthropic.BadRequestError, 'invalid_request_error');
  await rejects(client.messages.create({ ...ask, max_tokens: undefined }), Anthropic.BadRequestError, 'invalid_request_error');
  await rejects(client.messages.create({ ...ask, messages: [] }), Anthropic.BadRequestError, 'invalid_request_error');
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } };
  await rejects(client.messages.create({ ...ask, messages: [{ role: 'user', content: [image] }] }), Anthropic.BadRequestError, 'invalid_request_error');
  const stranger = new Anthropic({ baseURL: server.url, apiKey: 'wrong', maxRetries: 0 });
  await rejects(stranger.messages.create(ask), Anthropic.AuthenticationError, 'authentication_error');
  await rejects(client.post('/v1/messages/nowhere', { body: {} }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...ask, messages: [{ role: 'user', content: 'a b '.repeat(10000) }] }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.match(error.error.error.message, /prompt is too long: \d+ tokens > 8192 maximum/);
    return true;
  });
});

test('a client that leaves ends its request', async () => {
  const body = { ...ask, max_tokens: 7000, ignore_eos: true, messages: [{ role: 'user', content: 'Tell me a story.' }] };
  const stream = client.messages.stream(body);
  stream.on('text', () => stream.abort());
  await rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  const control = new AbortController();
  const whole = client.messages.create(body, { signal: control.signal });
  setTimeout(() => control.abort(), 100);
  await rejects(whole, Anthropic.APIUserAbortError);
  await idle(server);
  assert.equal((await client.messages.create(ask)).content[0].text, SUM.answer);
});
