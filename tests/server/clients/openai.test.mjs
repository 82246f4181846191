// The npm package `openai`, as published: chat, completions, models and responses. Its stream helpers check the
// order and the fields of every event on their own.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { chatml, idle, LONG_SUM, metric, MODEL, promptTokens, start, SUM, tokenize, until } from './support.mjs';

const key = 'a-key-of-the-clients-test';
let server, client;
before(async () => {
  server = await start({ key, args: ['--sequences', '4'] });
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
});
after(() => server?.stop());

const messages = [{ role: 'user', content: SUM.question }];
const ask = { model: MODEL, messages, temperature: 0, max_tokens: 32 };
const rejects = (promise, kind, check = () => {}) =>
  assert.rejects(promise, (error) => {
    assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`);
    check(error);
    return true;
  });

test('chat', async () => {
  const reply = await client.chat.completions.create(ask);
  assert.match(reply.id, /^chatcmpl-./);
  assert.equal(reply.object, 'chat.completion');
  assert.equal(reply.model, MODEL);
  assert.ok(Math.abs(reply.created - Date.now() / 1000) < 60);
  assert.equal(reply.choices.length, 1);
  const [choice] = reply.choices;
  assert.equal(choice.index, 0);
  assert.equal(choice.message.role, 'assistant');
  assert.equal(choice.message.content, SUM.answer);
  assert.equal(choice.finish_reason, 'stop');
  assert.equal(choice.logprobs, null);
  assert.equal(reply.usage.prompt_tokens, promptTokens(messages));
  assert.ok(reply.usage.completion_tokens >= tokenize(SUM.answer).length);
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  assert.equal(reply.usage.completion_tokens_details.reasoning_tokens, 0);
  const other = await client.chat.completions.create(ask);
  assert.notEqual(other.id, reply.id);
});

test('chat with a system message, parts, a developer and a longer history', async () => {
  const reply = await client.chat.completions.create({
    ...ask,
    messages: [
      { role: 'developer', content: 'You add numbers.' },
      { role: 'user', content: [{ type: 'text', text: SUM.question }] },
      { role: 'assistant', content: SUM.answer },
      { role: 'user', content: [{ type: 'text', text: LONG_SUM.question }] },
    ],
  });
  assert.equal(reply.choices[0].message.content, LONG_SUM.answer);
});

test('chat, streamed', async () => {
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) chunks.push(chunk);
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? '').join(''), SUM.answer);
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
  assert.equal(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.model} ${chunk.object}`)).size, 1);
  assert.equal(chunks[0].object, 'chat.completion.chunk');
});

test('chat, by the stream helper', async () => {
  const stream = client.chat.completions.stream({ ...ask, stream_options: { include_usage: true } });
  let deltas = '';
  const finished = [];
  stream.on('content.delta', ({ delta }) => (deltas += delta));
  stream.on('content.done', ({ content }) => finished.push(content));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas, SUM.answer);
  assert.deepEqual(finished, [SUM.answer]);
  assert.equal(final.choices[0].message.content, SUM.answer);
  assert.equal(final.choices[0].finish_reason, 'stop');
  assert.equal(final.usage.prompt_tokens, promptTokens(messages));
});

test('several choices, by the stream helper too', async () => {
  const body = { ...ask, n: 3, temperature: 1, seed: 11, max_tokens: 12, messages: [{ role: 'user', content: 'Tell me a story.' }] };
  const whole = await client.chat.completions.create(body);
  assert.deepEqual(whole.choices.map((choice) => choice.index).sort(), [0, 1, 2]);
  const texts = whole.choices.map((choice) => choice.message.content);
  assert.ok(new Set(texts).size > 1, 'choices draw with seeds of their own');
  assert.equal(whole.usage.prompt_tokens, promptTokens(body.messages), 'the prompt counts once');
  assert.ok(whole.usage.completion_tokens > 12 && whole.usage.completion_tokens <= 36);
  const streamed = await client.chat.completions.stream(body).finalChatCompletion();
  assert.deepEqual(streamed.choices.toSorted((a, b) => a.index - b.index).map((choice) => choice.message.content), texts);
});

test('a seed decides what is drawn', async () => {
  const body = { ...ask, temperature: 1, max_tokens: 24, messages: [{ role: 'user', content: 'Tell me a story.' }] };
  const draw = async (seed) => (await client.chat.completions.create({ ...body, seed })).choices[0].message.content;
  const one = await draw(1);
  assert.equal(await draw(1), one);
  const others = await Promise.all([2, 3, 4].map(draw));
  assert.ok(others.some((text) => text !== one));
});

test('stop texts and limits', async () => {
  const stopped = await client.chat.completions.create({ ...ask, stop: [' ='] });
  assert.equal(stopped.choices[0].message.content, '2 + 3');
  assert.equal(stopped.choices[0].finish_reason, 'stop');
  const cut = await client.chat.completions.create({ ...ask, max_tokens: 2 });
  assert.equal(cut.choices[0].finish_reason, 'length');
  assert.equal(cut.usage.completion_tokens, 2);
  assert.ok(SUM.answer.startsWith(cut.choices[0].message.content));
  const newer = await client.chat.completions.create({ ...ask, max_tokens: 32, max_completion_tokens: 3 });
  assert.equal(newer.usage.completion_tokens, 3);
});

test('log-probabilities of chat', async () => {
  const reply = await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 5 });
  const { content } = reply.choices[0].logprobs;
  assert.equal(Buffer.from(content.flatMap((entry) => entry.bytes)).toString(), SUM.answer);
  assert.equal(content.map((entry) => entry.token).join(''), SUM.answer);
  for (const entry of content) {
    assert.ok(entry.logprob <= 0);
    assert.equal(entry.top_logprobs.length, 5);
    const logs = entry.top_logprobs.map((top) => top.logprob);
    assert.deepEqual(logs, logs.toSorted((a, b) => b - a));
    assert.ok(logs.reduce((sum, log) => sum + Math.exp(log), 0) < 1 + 1e-4, 'probabilities');
    assert.equal(entry.top_logprobs[0].token, entry.token, 'greedy takes the likeliest');
    assert.ok(Math.abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-6);
  }
  let streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 5, stream: true })) {
    streamed = streamed.concat(chunk.choices[0].logprobs?.content ?? []);
  }
  assert.deepEqual(streamed, content);
});

test('completions: text and token prompts, lists of them', async () => {
  const prompt = chatml(messages);
  const ids = tokenize(prompt, true);
  const body = { model: MODEL, temperature: 0, max_tokens: 32 };
  const text = await client.completions.create({ ...body, prompt });
  assert.match(text.id, /^cmpl-./);
  assert.equal(text.object, 'text_completion');
  assert.equal(text.choices[0].text, SUM.answer);
  assert.equal(text.choices[0].finish_reason, 'stop');
  assert.equal(text.choices[0].logprobs, null);
  assert.equal(text.usage.prompt_tokens, ids.length);
  const tokens = await client.completions.create({ ...body, prompt: ids });
  assert.equal(tokens.choices[0].text, SUM.answer);
  const both = await client.completions.create({ ...body, prompt: [prompt, chatml([{ role: 'user', content: LONG_SUM.question }])] });
  assert.deepEqual(both.choices.map(({ index, text: t }) => [index, t]), [[0, SUM.answer], [1, LONG_SUM.answer]]);
  const lists = await client.completions.create({ ...body, prompt: [ids, ids] });
  assert.deepEqual(lists.choices.map((choice) => choice.text), [SUM.answer, SUM.answer]);
  assert.equal(lists.usage.prompt_tokens, 2 * ids.length);
});

test('completions, streamed', async () => {
  let joined = '', reason = null;
  for await (const chunk of await client.completions.create({ model: MODEL, prompt: chatml(messages), temperature: 0, max_tokens: 32, stream: true })) {
    assert.equal(chunk.object, 'text_completion');
    joined += chunk.choices[0].text;
    reason ??= chunk.choices[0].finish_reason;
  }
  assert.equal(joined, SUM.answer);
  assert.equal(reason, 'stop');
});

test('completions: echo and log-probabilities in the old shape', async () => {
  const body = { model: MODEL, temperature: 0, logprobs: 3 };
  const made = (await client.completions.create({ ...body, prompt: 'What is', max_tokens: 6 })).choices[0];
  assert.equal(made.logprobs.tokens.length, 6);
  assert.equal(made.logprobs.tokens.join(''), made.text);
  const scored = (await client.completions.create({ ...body, prompt: `What is${made.text}`, max_tokens: 0, echo: true })).choices[0];
  assert.equal(scored.text, `What is${made.text}`);
  const { tokens, token_logprobs: logs, top_logprobs: tops, text_offset: offsets } = scored.logprobs;
  assert.equal(tokens.join(''), scored.text);
  assert.equal(logs[0], null);
  assert.equal(tops[0], null);
  assert.equal(offsets[0], 0);
  for (let i = 1; i < tokens.length; i++) {
    assert.equal(offsets[i], offsets[i - 1] + tokens[i - 1].length);
    assert.ok(logs[i] <= 0 && Object.keys(tops[i]).length >= 3);
  }
  const again = tokenize(scored.text);
  if (again.length === tokenize('What is').length + 6) {
    // Cut into the same tokens: reading them gives what making them gave.
    logs.slice(-6).forEach((log, i) => assert.ok(Math.abs(log - made.logprobs.token_logprobs[i]) < 1e-4));
  }
});

test('models', async () => {
  const list = await client.models.list();
  assert.deepEqual(list.data.map((model) => model.id), [MODEL]);
  assert.equal(list.data[0].object, 'model');
  assert.equal(list.data[0].max_model_len, 8192);
  assert.equal(list.data[0].meta.n_ctx, 8192);
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  await rejects(client.models.retrieve('no-such-model'), OpenAI.NotFoundError, (error) => assert.equal(error.code, 'model_not_found'));
});

test('responses', async () => {
  const reply = await client.responses.create({ model: MODEL, input: SUM.question, temperature: 0, max_output_tokens: 32, metadata: { a: 'b' } });
  assert.match(reply.id, /^resp_./);
  assert.equal(reply.object, 'response');
  assert.equal(reply.status, 'completed');
  assert.equal(reply.error, null);
  assert.equal(reply.incomplete_details, null);
  assert.equal(reply.model, MODEL);
  assert.deepEqual(reply.metadata, { a: 'b' });
  assert.equal(reply.output_text, SUM.answer);
  assert.equal(reply.output[0].type, 'message');
  assert.equal(reply.output[0].role, 'assistant');
  assert.equal(reply.output[0].content[0].type, 'output_text');
  assert.deepEqual(reply.output[0].content[0].annotations, []);
  assert.equal(reply.usage.input_tokens, promptTokens(messages));
  assert.equal(reply.usage.total_tokens, reply.usage.input_tokens + reply.usage.output_tokens);
  assert.ok('cached_tokens' in reply.usage.input_tokens_details);
  assert.equal(reply.usage.output_tokens_details.reasoning_tokens, 0);
  const cut = await client.responses.create({ model: MODEL, input: SUM.question, temperature: 0, max_output_tokens: 2 });
  assert.equal(cut.status, 'incomplete');
  assert.deepEqual(cut.incomplete_details, { reason: 'max_output_tokens' });
});

test('responses: items, instructions, and a conversation carried by the client', async () => {
  const input = [{ role: 'user', content: [{ type: 'input_text', text: SUM.question }] }];
  const first = await client.responses.create({ model: MODEL, instructions: 'You add numbers.', input, temperature: 0, max_output_tokens: 32 });
  assert.equal(first.output_text, SUM.answer);
  const second = await client.responses.create({
    model: MODEL, instructions: 'You add numbers.', temperature: 0, max_output_tokens: 32,
    input: [...input, ...first.output, { type: 'message', role: 'user', content: LONG_SUM.question }],
  });
  assert.equal(second.output_text, LONG_SUM.answer);
});

test('responses, streamed: every event, by the helper', async () => {
  const stream = client.responses.stream({ model: MODEL, input: SUM.question, temperature: 0, max_output_tokens: 32 });
  const seen = [];
  for await (const event of stream) seen.push(event);
  const final = await stream.finalResponse();
  assert.equal(final.output_text, SUM.answer);
  assert.equal(final.status, 'completed');
  assert.deepEqual(seen.map((event) => event.sequence_number), seen.map((_, i) => i));
  const types = seen.map((event) => event.type);
  assert.deepEqual(types.slice(0, 4), ['response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added']);
  assert.deepEqual(types.slice(-4), ['response.output_text.done', 'response.content_part.done', 'response.output_item.done', 'response.completed']);
  assert.ok(types.slice(4, -4).every((type) => type === 'response.output_text.delta'));
  const deltas = seen.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), SUM.answer);
  for (const event of deltas) {
    assert.equal(event.output_index, 0);
    assert.equal(event.content_index, 0);
    assert.ok(Array.isArray(event.logprobs));
    assert.equal(event.item_id, final.output[0].id);
  }
  const cut = await client.responses.stream({ model: MODEL, input: SUM.question, temperature: 0, max_output_tokens: 2 }).finalResponse();
  assert.equal(cut.status, 'incomplete');
});

test('errors are the classes that the package has for them', async () => {
  await rejects(client.chat.completions.create({ ...ask, temperature: -1 }), OpenAI.BadRequestError, (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, 'temperature');
    assert.equal(error.type, 'invalid_request_error');
    assert.match(error.requestID ?? '', /./);
  });
  await rejects(client.chat.completions.create({ ...ask, stream: true, n: 0 }), OpenAI.BadRequestError, (error) => assert.equal(error.param, 'n'));
  const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'wrong', maxRetries: 0 });
  await rejects(stranger.models.list(), OpenAI.AuthenticationError, (error) => assert.equal(error.code, 'invalid_api_key'));
  await rejects(client.get('/nowhere'), OpenAI.NotFoundError);
  await rejects(client.responses.create({ model: MODEL, input: 'x', previous_response_id: 'resp_1' }), OpenAI.BadRequestError,
    (error) => assert.equal(error.param, 'previous_response_id'));
  await rejects(client.responses.retrieve('resp_1'), OpenAI.NotFoundError);
  await rejects(client.chat.completions.create({ ...ask, messages: [{ role: 'user', content: 'a b '.repeat(10000) }] }), OpenAI.BadRequestError,
    (error) => assert.equal(error.code, 'context_length_exceeded'));
});

test('a client that leaves ends its request', async () => {
  const body = { model: MODEL, messages: [{ role: 'user', content: 'Tell me a story.' }], max_tokens: 7000, ignore_eos: true };
  const before = await metric(server, 'request_success_total', 'finished_reason="abort"');
  const stream = client.chat.completions.stream(body);
  await rejects((async () => {
    let count = 0;
    for await (const _ of stream) if (++count === 3) stream.abort();
  })(), OpenAI.APIUserAbortError);
  const control = new AbortController();
  const whole = client.chat.completions.create(body, { signal: control.signal });
  setTimeout(() => control.abort(), 100);
  await rejects(whole, OpenAI.APIUserAbortError);
  const iterated = await client.chat.completions.create({ ...body, stream: true });
  for await (const _ of iterated) break;
  const responses = client.responses.stream({ model: MODEL, input: 'Tell me a story.', ignore_eos: true, max_output_tokens: 7000 });
  await rejects((async () => {
    for await (const event of responses) if (event.type === 'response.output_text.delta') responses.abort();
  })(), OpenAI.APIUserAbortError);
  await idle(server);
  const aborted = async () => (await metric(server, 'request_success_total', 'finished_reason="abort"')) - before;
  await until('all four to be counted', async () => (await aborted()) >= 4);
  assert.equal(await aborted(), 4);
  assert.equal((await client.chat.completions.create(ask)).choices[0].message.content, SUM.answer);
});

// ---- structured output: the package's own helpers make the schemas, parse the answers and validate them

const Work = z.object({
  title: z.string().max(20),
  year: z.number().int().min(1900).max(2030),
  kind: z.enum(['book', 'film']),
  tags: z.array(z.string()).max(3),
  maker: z.object({ name: z.string(), born: z.number().int().nullable() }),
});
const wild = { ...ask, messages: [{ role: 'user', content: 'Name a work of art.' }], temperature: 1.8, max_tokens: 600 };

test('answers held to a schema, parsed by the package', async () => {
  for (const seed of [1, 2, 3]) {
    const reply = await client.chat.completions.parse({ ...wild, seed, n: 2, response_format: zodResponseFormat(Work, 'work') });
    for (const choice of reply.choices) {
      assert.equal(choice.finish_reason, 'stop');
      assert.ok(Work.safeParse(choice.message.parsed).success, choice.message.content);
      assert.deepEqual(JSON.parse(choice.message.content), choice.message.parsed);
      assert.equal(choice.message.refusal ?? null, null);
    }
  }
});

test('answers held to a schema, streamed', async () => {
  const stream = client.chat.completions.stream({ ...wild, seed: 4, response_format: zodResponseFormat(Work, 'work') });
  const snapshots = [];
  stream.on('content.delta', ({ parsed }) => snapshots.push(parsed));
  const final = await stream.finalChatCompletion();
  assert.ok(Work.safeParse(final.choices[0].message.parsed).success);
  assert.ok(snapshots.length > 1);
  const whole = await client.chat.completions.parse({ ...wild, seed: 4, response_format: zodResponseFormat(Work, 'work') });
  assert.deepEqual(final.choices[0].message.parsed, whole.choices[0].message.parsed);
});

test('a response held to a schema, parsed by the package', async () => {
  const reply = await client.responses.parse({
    model: MODEL, input: 'Name a work of art.', temperature: 1.8, text: { format: zodTextFormat(Work, 'work') },
  });
  assert.equal(reply.status, 'completed');
  assert.ok(Work.safeParse(reply.output_parsed).success, reply.output_text);
});

test('a schema that cannot be held', async () => {
  await rejects(
    client.chat.completions.create({ ...wild, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { enum: [] } } } }),
    OpenAI.BadRequestError, (error) => assert.equal(error.param, 'response_format.json_schema.schema'));
});

test('an answer that a limit cuts is an error of the package', async () => {
  await assert.rejects(client.chat.completions.parse({ ...wild, max_tokens: 3, response_format: zodResponseFormat(Work, 'work') }), /length/i);
});
