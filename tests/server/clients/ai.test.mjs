// The npm packages `ai` and `@ai-sdk/openai-compatible`, as published.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateObject, generateText, streamObject, streamText } from 'ai';
import { z } from 'zod';
import { idle, LONG_SUM, MODEL, promptTokens, start, SUM } from './support.mjs';

const key = 'a-key-of-the-clients-test';
let server, provider, model;
before(async () => {
  server = await start({ key, args: ['--sequences', '4'] });
  provider = createOpenAICompatible({ name: 'sluice', baseURL: `${server.url}/v1`, apiKey: key, includeUsage: true });
  model = provider(MODEL);
});
after(() => server?.stop());

const settings = { temperature: 0, maxOutputTokens: 32, maxRetries: 0 };
const tokens = promptTokens([{ role: 'user', content: SUM.question }]);

test('generateText', async () => {
  const result = await generateText({ model, prompt: SUM.question, ...settings });
  assert.equal(result.text, SUM.answer);
  assert.equal(result.finishReason, 'stop');
  assert.equal(result.usage.inputTokens, tokens);
  assert.ok(result.usage.outputTokens > 3);
  assert.equal(result.response.modelId, MODEL);
  assert.match(result.response.id, /^chatcmpl-/);
  const cut = await generateText({ model, prompt: SUM.question, ...settings, maxOutputTokens: 2 });
  assert.equal(cut.finishReason, 'length');
  const stopped = await generateText({ model, prompt: SUM.question, ...settings, stopSequences: [' ='] });
  assert.equal(stopped.text, '2 + 3');
});

test('a conversation', async () => {
  const { text } = await generateText({
    model, ...settings,
    messages: [{ role: 'user', content: SUM.question }, { role: 'assistant', content: SUM.answer }, { role: 'user', content: LONG_SUM.question }],
  });
  assert.equal(text, LONG_SUM.answer);
});

test('streamText', async () => {
  const result = streamText({ model, prompt: SUM.question, ...settings });
  let text = '', parts = 0;
  for await (const part of result.textStream) [text, parts] = [text + part, parts + 1];
  assert.equal(text, SUM.answer);
  assert.ok(parts > 1, 'it comes in parts');
  assert.equal(await result.finishReason, 'stop');
  const usage = await result.usage;
  assert.equal(usage.inputTokens, tokens);
  assert.ok(usage.outputTokens > 3);
});

test('completions', async () => {
  const { text } = await generateText({ model: provider.completionModel(MODEL), prompt: 'What is', ...settings, maxOutputTokens: 4 });
  assert.ok(text.length > 0);
});

test('errors', async () => {
  const refused = (promise, status) => assert.rejects(promise, (error) => {
    assert.ok(APICallError.isInstance(error), `${error.name}: ${error.message}`);
    assert.equal(error.statusCode, status);
    assert.equal(error.isRetryable, false);
    return true;
  });
  await refused(generateText({ model, prompt: 'x', ...settings, temperature: -1 }), 400);
  const stranger = createOpenAICompatible({ name: 'sluice', baseURL: `${server.url}/v1`, apiKey: 'wrong' })(MODEL);
  await refused(generateText({ model: stranger, prompt: 'x', ...settings }), 401);
});

test('a client that leaves ends its request', async () => {
  const control = new AbortController();
  const result = streamText({ model, prompt: 'Tell me a story.', temperature: 0.8, maxRetries: 0, abortSignal: control.signal,
    providerOptions: { sluice: { ignore_eos: true } }, onError: () => {} });
  let parts = 0;
  try {
    for await (const _ of result.textStream) if (++parts === 3) control.abort();
  } catch (error) {
    assert.equal(error.name, 'AbortError');
  }
  assert.ok(parts >= 3);
  await idle(server);
  const { text } = await generateText({ model, prompt: SUM.question, ...settings });
  assert.equal(text, SUM.answer);
});

// The package validates what comes, and fails when it does not fit.
const work = z.object({ title: z.string().max(20), year: z.number().int().min(1900).max(2030), tags: z.array(z.enum(['a', 'b'])).max(3) });
const held = () => createOpenAICompatible({ name: 'sluice', baseURL: `${server.url}/v1`, apiKey: key, supportsStructuredOutputs: true })(MODEL);
const wild = { prompt: 'Name a work of art.', temperature: 1.8, maxOutputTokens: 500, maxRetries: 0 };

test('generateObject', async () => {
  for (const seed of [1, 2, 3]) {
    const { object, finishReason } = await generateObject({ model: held(), schema: work, seed, ...wild });
    assert.ok(work.safeParse(object).success);
    assert.equal(finishReason, 'stop');
  }
  const { object } = await generateObject({ model: held(), output: 'enum', enum: ['yes', 'no', 'perhaps'], ...wild });
  assert.ok(['yes', 'no', 'perhaps'].includes(object));
  const list = await generateObject({ model: held(), output: 'array', schema: z.object({ n: z.number().int() }), ...wild, temperature: 0 }).catch((error) => error);
  assert.ok(Array.isArray(list.object) || list.finishReason === 'length', String(list));
});

test('streamObject', async () => {
  const { partialObjectStream, object } = streamObject({ model: held(), schema: work, seed: 5, ...wild });
  let parts = 0;
  for await (const part of partialObjectStream) parts += part !== undefined;
  assert.ok(parts > 1);
  assert.ok(work.safeParse(await object).success);
});
