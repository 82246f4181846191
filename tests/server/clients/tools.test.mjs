// Calls of tools through the npm packages as published: openai, @anthropic-ai/sdk, ai and ollama. Temperatures are
// high where calls are asked for, so that what comes is what the grammar leaves and not what the model would say.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { Ollama } from 'ollama';
import OpenAI from 'openai';
import { ask, MODEL, start, SUM } from './support.mjs';

let server, openai, anthropic, ollama;
before(async () => {
  server = await start({ args: ['--sequences', '8'] });
  openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: server.url, apiKey: 'any', maxRetries: 0 });
  ollama = new Ollama({ host: server.url });
});
after(() => server?.stop());

// The model was trained on questions of this kind.
const TIMER = {
  name: 'set_timer',
  description: 'Set a timer',
  parameters: { type: 'object', properties: { minutes: { type: 'integer' } }, required: ['minutes'] },
};
const BOOK = {
  name: 'book.table-2',
  description: 'Book a table',
  parameters: {
    type: 'object',
    properties: { place: { type: 'string', maxLength: 12 }, seats: { type: 'integer', minimum: 1, maximum: 8 }, kind: { enum: ['in', 'out'] } },
    required: ['place', 'seats', 'kind'],
    additionalProperties: false,
  },
};
const PING = { name: 'ping' };
const functions = [TIMER, BOOK, PING];
const tools = functions.map((f) => ({ type: 'function', function: f }));
const question = 'Set a timer for 81 minutes.';
const messages = [{ role: 'user', content: question }];
const story = [{ role: 'user', content: 'Tell me a story about a "</tool_call>".' }];
const calm = { model: MODEL, messages, tools, temperature: 0, max_tokens: 120 };
const wild = { model: MODEL, messages: story, tools, temperature: 2, max_tokens: 400 };

/** What the parameters say, by hand. */
function assertFits({ name, arguments: text }) {
  const value = typeof text === 'string' ? JSON.parse(text) : text;
  if (name === 'ping') {
    assert.deepEqual(value, {});
    if (typeof text === 'string') assert.equal(text, '{}');
  } else if (name === 'set_timer') {
    assert.deepEqual(Object.keys(value), ['minutes']);
    assert.ok(Number.isInteger(value.minutes));
  } else {
    assert.equal(name, BOOK.name);
    assert.deepEqual(Object.keys(value), ['place', 'seats', 'kind']);
    assert.ok(typeof value.place === 'string' && [...value.place].length <= 12);
    assert.ok(Number.isInteger(value.seats) && value.seats >= 1 && value.seats <= 8);
    assert.ok(['in', 'out'].includes(value.kind));
  }
}
const functionOf = (call) => call.function;

/** A stream put together as the API's page says, with the rules that clients break on. */
function join(chunks) {
  const calls = [];
  let content = '', finish = null;
  for (const { choices: [choice] } of chunks) {
    content += choice.delta.content ?? '';
    for (const part of choice.delta.tool_calls ?? []) {
      assert.ok(Number.isInteger(part.index));
      if (part.index === calls.length) {
        assert.match(part.id, /^call_.+/);
        assert.equal(part.type, 'function');
        assert.ok(part.function.name);
        assert.equal(part.function.arguments, '');
        calls.push({ id: part.id, type: 'function', function: { name: part.function.name, arguments: '' } });
      } else {
        assert.equal(part.index, calls.length - 1, 'one call after the other');
        assert.deepEqual([part.id, part.type, part.function.name], [undefined, undefined, undefined], 'told once');
        assert.ok(part.function.arguments.length > 0);
        calls.at(-1).function.arguments += part.function.arguments;
      }
    }
    if (choice.finish_reason) {
      assert.equal(finish, null);
      finish = choice.finish_reason;
    }
  }
  return { content, calls, finish };
}

test('chat: the model calls by itself, and answers without a call where none is wanted', async () => {
  const { choices: [choice] } = await openai.chat.completions.create(calm);
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, null);
  assert.equal(choice.message.tool_calls.length, 1);
  assert.equal(choice.message.tool_calls[0].type, 'function');
  assert.deepEqual(functionOf(choice.message.tool_calls[0]), { name: 'set_timer', arguments: '{"minutes": 81}' });
  const none = await openai.chat.completions.create({ ...calm, messages: [{ role: 'user', content: SUM.question }], tool_choice: 'none' });
  assert.equal(none.choices[0].message.content, SUM.answer);
  assert.equal(none.choices[0].finish_reason, 'stop');
  assert.equal(none.choices[0].message.tool_calls, undefined);
});

test('chat: required, by name and one alone, held to their schemas', async () => {
  const required = await openai.chat.completions.create({ ...wild, tool_choice: 'required', n: 8, seed: 1 });
  for (const { message, finish_reason } of required.choices) {
    if (finish_reason === 'length') continue;
    assert.equal(finish_reason, 'tool_calls');
    assert.ok(message.tool_calls.length >= 1);
    assert.equal(message.content, null);
    message.tool_calls.map(functionOf).forEach(assertFits);
    assert.equal(new Set(message.tool_calls.map(({ id }) => id)).size, message.tool_calls.length);
  }
  assert.ok(required.choices.some(({ finish_reason }) => finish_reason === 'tool_calls'));
  for (const { name } of functions) {
    const one = await openai.chat.completions.create({
      ...wild, tool_choice: { type: 'function', function: { name } }, parallel_tool_calls: false, n: 4, seed: 2,
    });
    for (const { message, finish_reason } of one.choices) {
      assert.equal(finish_reason, 'tool_calls');
      assert.deepEqual(message.tool_calls.map(({ function: f }) => f.name), [name]);
      message.tool_calls.map(functionOf).forEach(assertFits);
    }
  }
  const allowed = await openai.chat.completions.create({
    ...wild, parallel_tool_calls: false, seed: 3,
    tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'required', tools: [{ type: 'function', function: { name: 'ping' } }] } },
  });
  assert.deepEqual(functionOf(allowed.choices[0].message.tool_calls[0]), { name: 'ping', arguments: '{}' });
});

test('chat: a stream joins to the answer in one piece, and a limit leaks no mark', async () => {
  for (const [i, body] of [calm, { ...wild, tool_choice: 'required', seed: 5 }, { ...wild, tool_choice: 'auto', seed: 6 }].entries()) {
    const whole = await openai.chat.completions.create(body);
    const [{ message, finish_reason }] = whole.choices;
    const chunks = [];
    for await (const chunk of await openai.chat.completions.create({ ...body, stream: true })) chunks.push(chunk);
    const { content, calls, finish } = join(chunks);
    assert.equal(content, message.content ?? '');
    assert.equal(finish, finish_reason);
    assert.deepEqual(calls.map(functionOf), (message.tool_calls ?? []).map(functionOf), `body ${i}`);
  }
  for (let limit = 1; limit < 26; limit++) {
    const { choices: [cut] } = await openai.chat.completions.create({ ...calm, max_tokens: limit });
    assert.equal(cut.message.content ?? '', '', `${limit} tokens`);
    if (cut.finish_reason === 'length') continue;
    assert.equal(cut.finish_reason, 'tool_calls');
  }
});

test("chat: openai's own helpers run the tools", async () => {
  const seen = [];
  const runner = openai.chat.completions.runTools({
    ...calm, tool_choice: { type: 'function', function: { name: TIMER.name } }, tools: [{ type: 'function', function: { ...TIMER, parse: JSON.parse, function: (given) => { seen.push(given); return 'The timer is set.'; } } }],
  });
  await runner.done();
  assert.deepEqual(seen, [{ minutes: 81 }]);
  const stream = openai.chat.completions.stream(calm);
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.equal(call.function.arguments, '{"minutes": 81}');
});

test('responses', async () => {
  const given = functions.map((f) => ({ type: 'function', ...f, parameters: f.parameters ?? null, strict: false }));
  const body = { model: MODEL, input: question, tools: [...given, { type: 'web_search' }], temperature: 0, max_output_tokens: 120 };
  const reply = await openai.responses.create(body);
  assert.equal(reply.status, 'completed');
  const [call] = reply.output;
  assert.equal(reply.output.length, 1);
  assert.deepEqual([call.type, call.name, call.arguments, call.status], ['function_call', 'set_timer', '{"minutes": 81}', 'completed']);
  assert.ok(call.call_id && call.id && call.id !== call.call_id);
  const events = [];
  for await (const event of await openai.responses.create({ ...body, stream: true })) events.push(event);
  assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
  const deltas = events.filter((e) => e.type === 'response.function_call_arguments.delta');
  assert.equal(deltas.map((e) => e.delta).join(''), call.arguments);
  const done = events.find((e) => e.type === 'response.function_call_arguments.done');
  assert.equal(done.arguments, call.arguments);
  const added = events.find((e) => e.type === 'response.output_item.added'), ended = events.find((e) => e.type === 'response.output_item.done');
  assert.deepEqual([added.item.type, added.item.arguments, added.output_index], ['function_call', '', 0]);
  assert.ok(deltas.every((e) => e.item_id === added.item.id && e.output_index === 0));
  assert.equal(ended.item.arguments, call.arguments);
  const final = await openai.responses.stream(body).finalResponse();
  assert.equal(final.output[0].arguments, call.arguments);
  const next = await openai.responses.create({
    ...body, input: [{ role: 'user', content: question }, call, { type: 'function_call_output', call_id: call.call_id, output: 'Done.' }],
  });
  assert.ok(next.output_text.length > 0);
  const forced = await openai.responses.create({ ...body, input: 'x', temperature: 2, tool_choice: { type: 'function', name: BOOK.name }, parallel_tool_calls: false });
  assertFits(forced.output[0]);
});

test('messages', async () => {
  const given = functions.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters ?? { type: 'object', properties: {} } }));
  const body = { model: MODEL, max_tokens: 120, temperature: 0, messages, tools: [...given, { type: 'web_search_20250305', name: 'web_search' }] };
  const reply = await anthropic.messages.create(body);
  assert.equal(reply.stop_reason, 'tool_use');
  assert.equal(reply.content.length, 1);
  const [{ type, id, name, input }] = reply.content;
  assert.deepEqual({ type, name, input }, { type: 'tool_use', name: 'set_timer', input: { minutes: 81 } });
  const raw = [];
  for await (const event of await anthropic.messages.create({ ...body, stream: true })) raw.push(event);
  const begun = raw.find((e) => e.type === 'content_block_start');
  assert.deepEqual([begun.index, begun.content_block.type, begun.content_block.input], [0, 'tool_use', {}]);
  const parts = raw.filter((e) => e.type === 'content_block_delta');
  assert.ok(parts.every((e) => e.delta.type === 'input_json_delta'));
  assert.deepEqual(JSON.parse(parts.map((e) => e.delta.partial_json).join('')), { minutes: 81 });
  assert.equal(raw.filter((e) => e.type === 'content_block_stop').length, 1);
  assert.equal(raw.find((e) => e.type === 'message_delta').delta.stop_reason, 'tool_use');
  const final = await anthropic.messages.stream(body).finalMessage();
  assert.deepEqual(final.content[0].input, { minutes: 81 });
  const next = await anthropic.messages.create({
    ...body,
    messages: [...messages, { role: 'assistant', content: reply.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: 'Done.' }] }],
  });
  assert.equal(next.stop_reason, 'end_turn');
  const hot = { ...body, max_tokens: 400, temperature: 1, messages: story };
  const any = await anthropic.messages.create({ ...hot, tool_choice: { type: 'any', disable_parallel_tool_use: true } });
  assert.equal(any.content.length, 1);
  assertFits({ name: any.content[0].name, arguments: any.content[0].input });
  const named = await anthropic.messages.create({ ...hot, tool_choice: { type: 'tool', name: 'ping', disable_parallel_tool_use: true } });
  assert.deepEqual([named.content[0].name, named.content[0].input], ['ping', {}]);
  const counted = await anthropic.messages.countTokens({ model: MODEL, messages, tools: given });
  assert.ok(counted.input_tokens > (await anthropic.messages.countTokens({ model: MODEL, messages })).input_tokens);
});

test('ollama', async () => {
  const body = { model: MODEL, messages, tools, options: { temperature: 0, num_predict: 120 } };
  const reply = await ollama.chat(body);
  assert.equal(reply.message.content, '');
  assert.equal(reply.message.tool_calls.length, 1);
  assert.deepEqual([reply.message.tool_calls[0].function.name, reply.message.tool_calls[0].function.arguments], ['set_timer', { minutes: 81 }]);
  const calls = [];
  for await (const part of await ollama.chat({ ...body, stream: true })) {
    calls.push(...(part.message.tool_calls ?? []));
    assert.equal(part.message.content, '');
  }
  assert.deepEqual(calls.map(({ function: f }) => [f.name, f.arguments]), [['set_timer', { minutes: 81 }]]);
  const next = await ollama.chat({ ...body, messages: [...messages, reply.message, { role: 'tool', tool_name: 'set_timer', content: 'Done.' }] });
  assert.ok(next.message.content.length > 0);
});

test('ai', async () => {
  const model = createOpenAICompatible({ name: 'sluice', baseURL: `${server.url}/v1`, apiKey: 'any' })(MODEL);
  const seen = [];
  const set = tool({ description: TIMER.description, inputSchema: jsonSchema(TIMER.parameters), execute: async (given) => { seen.push(given); return 'Done.'; } });
  const settings = { model, prompt: question, tools: { set_timer: set }, temperature: 0, maxOutputTokens: 120, maxRetries: 0, stopWhen: stepCountIs(2) };
  const result = await generateText(settings);
  assert.deepEqual(seen, [{ minutes: 81 }]);
  assert.equal(result.steps.length, 2);
  assert.equal(result.steps[0].finishReason, 'tool-calls');
  const streamed = streamText({ ...settings, stopWhen: stepCountIs(1), toolChoice: 'required' });
  const [call] = await streamed.toolCalls;
  assert.deepEqual([call.toolName, call.input], ['set_timer', { minutes: 81 }]);
});

test('what cannot be is refused before anything comes', async () => {
  const CHAT = '/v1/chat/completions';
  const cases = [
    [{ tool_choice: { type: 'function', function: { name: 'other' } } }, /not among the tools/],
    [{ tools: [], tool_choice: 'required' }, /no tools/],
    [{ tool_choice: 'sometimes' }, /tool_choice/],
    [{ tools: [{ type: 'function', function: { name: 'a b' } }] }, /tools\[0\]\.function\.name/],
    [{ tools: [tools[0], tools[0]] }, /tools\[1\]\.function\.name/],
    [{ tools: [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: { a: { enum: [] } }, required: ['a'] } } }] }, /tools\[0\]\.function\.parameters/],
    [{ tools: [{ type: 'function', function: { name: 'f', parameters: [] } }] }, /tools\[0\]\.function\.parameters/],
  ];
  for (const [fields, message] of cases) {
    const answer = await ask(server, CHAT, { body: { ...calm, ...fields } });
    assert.equal(answer.status, 400, `${JSON.stringify(fields)}: ${answer.text}`);
    assert.match(answer.json.error.message, message);
  }
});

test('a hundred tools', async () => {
  const many = Array.from({ length: 100 }, (_, i) => ({ type: 'function', function: { name: `timer-${i}`, parameters: TIMER.parameters } }));
  const begin = Date.now();
  const { choices: [choice] } = await openai.chat.completions.create({
    ...wild, messages: [{ role: 'user', content: 'x' }], tools: many, parallel_tool_calls: false, seed: 1,
    tool_choice: { type: 'function', function: { name: 'timer-71' } },
  });
  const { name, arguments: text } = choice.message.tool_calls[0].function;
  assert.equal(name, 'timer-71');
  assertFits({ name: TIMER.name, arguments: text });
  assert.ok(Date.now() - begin < 240000);
});

test('the answer is held to a schema where no call comes', async () => {
  const schema = { type: 'object', properties: { sum: { type: 'integer' } }, required: ['sum'], additionalProperties: false };
  const { choices } = await openai.chat.completions.create({
    ...wild, n: 8, seed: 9, response_format: { type: 'json_schema', json_schema: { name: 'sum', schema } },
  });
  for (const { message, finish_reason } of choices) {
    if (finish_reason === 'length') continue;
    if (message.tool_calls) message.tool_calls.map(functionOf).forEach(assertFits);
    else assert.deepEqual(Object.keys(JSON.parse(message.content)), ['sum']);
  }
});
