// What a client that knows nothing but HTTP and JSON sees of `sluice serve`: bodies, fields, limits, streams, keys,
// origins, and what the server says of itself.
import assert from 'node:assert/strict';
import http from 'node:http';
import net from 'node:net';
import { after, before, describe, test } from 'node:test';
import {
  ask, assertRefused, chatBody, chatml, endless, events, get, idle, joined, LONG_SUM, metric, MODEL, parseMetrics,
  promptTokens, run, send, start, stream, SUM, tokenize, until,
} from './support.mjs';

const CHAT = '/v1/chat/completions', TEXT = '/v1/completions', ANSWERS = '/v1/responses', MESSAGES = '/v1/messages';
const chat = chatBody(SUM.question);
const content = (reply) => reply.choices[0].message.content;
let server;
before(async () => {
  server = await start({ args: ['--sequences', '4', '--max-body', '1048576', '--cors', 'https://allowed.example'] });
});
after(() => server?.stop());
const refuse = async (target, body, param, status = 400) => assertRefused(await ask(server, target, { body }), param, status);

/** Sends bytes over a socket of its own and gives what came back until it was closed (or a minute passed). */
function raw(text) {
  return new Promise((done, failed) => {
    const socket = net.connect(server.port, '127.0.0.1', () => socket.write(text));
    let answer = '';
    socket.setEncoding('latin1').on('data', (part) => (answer += part));
    socket.on('error', (error) => (error.code === 'ECONNRESET' || error.code === 'EPIPE' ? done(answer) : failed(error)));
    socket.on('close', () => done(answer));
    setTimeout(() => socket.destroy(), 60000).unref();
  });
}
const statusOf = (answer) => Number(/^HTTP\/1\.[01] (\d+)/.exec(answer)?.[1]);

describe('bodies', () => {
  const broken = {
    'nothing': '', 'blanks': '  \n', 'no JSON': 'hello', 'cut off': '{"messages": [', 'trailing': '{} {}', 'an array': '[]',
    'a string': '"text"', 'a number': '1', 'null': 'null', 'single quotes': "{'a': 1}", 'a comma too many': '{"a": 1,}',
    'NaN': '{"temperature": NaN}', 'a number too large': '{"temperature": 1e999}', 'not UTF-8': Buffer.from('{"model": "\xff\xfe"}', 'latin1'),
    'a lone surrogate': '{"model": "\\ud800"}', 'a NUL': '{"model": "a\\u0000b"}', 'a raw NUL': '{"model": "a\u0000b"}',
    'deep arrays': '{"messages": ' + '['.repeat(100000), 'deep objects': '{"a":'.repeat(50000) + '1' + '}'.repeat(50000),
    'a byte order mark alone': '\ufeff',
  };
  for (const [name, body] of Object.entries(broken)) {
    test(`${name}: 400, on every API, at once`, async () => {
      for (const target of [CHAT, TEXT, ANSWERS, MESSAGES, '/api/chat', '/tokenize']) {
        const begin = Date.now();
        const answer = await ask(server, target, { method: 'POST', body, headers: { 'content-type': 'application/json' } });
        assert.equal(answer.status, 400, `${target}: ${answer.status} ${answer.text.slice(0, 200)}`);
        assert.ok(answer.json?.error, `${target}: ${answer.text.slice(0, 200)}`);
        assert.ok(Date.now() - begin < 60000);
      }
    });
  }
  test('a million keys, 400 or an answer, in a moment', async () => {
    const body = '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,' +
      Array.from({ length: 90000 }, (_, i) => `"k${i}":1`).join(',') + '}';
    const begin = Date.now();
    const answer = await ask(server, CHAT, { body });
    assert.ok([200, 400].includes(answer.status));
    assert.ok(Date.now() - begin < 60000);
  });
  test('null is absent and unknown fields are ignored', async () => {
    const nulls = {};
    for (const name of ['temperature', 'top_p', 'n', 'stop', 'max_tokens', 'seed', 'logit_bias', 'response_format', 'tools', 'tool_choice',
      'stream', 'stream_options', 'logprobs', 'top_logprobs', 'user', 'presence_penalty', 'frequency_penalty', 'min_p', 'top_k',
      'reasoning_effort', 'chat_template_kwargs', 'max_completion_tokens', 'model', 'parallel_tool_calls']) nulls[name] = null;
    const reply = await get(server, CHAT, { ...nulls, messages: chat.messages, temperature: 0, max_tokens: 64 });
    assert.equal(content(reply), SUM.answer);
    const more = { metadata: { a: 'b' }, store: true, service_tier: 'auto', prompt_cache_key: 'k', safety_identifier: 's', verbosity: 'low', user: 'u',
      something_new: { x: [1] } };
    assert.equal(content(await get(server, CHAT, { ...chat, ...more })), SUM.answer);
  });
  test('the content type is not asked for, but a form is refused', async () => {
    const body = JSON.stringify(chat);
    // curl -d says x-www-form-urlencoded of whatever it sends.
    for (const type of ['text/plain', 'application/json; charset=utf-8', 'application/x-www-form-urlencoded']) {
      assert.equal((await ask(server, CHAT, { body, headers: { 'content-type': type } })).status, 200, type);
    }
    for (const type of ['multipart/form-data; boundary=x']) {
      assertRefused(await ask(server, CHAT, { body, headers: { 'content-type': type } }), undefined, 415);
    }
    assertRefused(await ask(server, CHAT, { body, headers: { 'content-encoding': 'gzip' } }), undefined, 415);
  });
  test('too large: 413 at the headers, and counted where no length is told', async () => {
    const head = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n`;
    assert.equal(statusOf(await raw(`${head}Content-Length: 2000000\r\n\r\n`)), 413);
    assert.equal(statusOf(await raw(`${head}Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n`)), 413);
    const part = `10000\r\n${' '.repeat(0x10000)}\r\n`;
    assert.equal(statusOf(await raw(`${head}Transfer-Encoding: chunked\r\n\r\n${part.repeat(20)}0\r\n\r\n`)), 413);
  });
});

describe('fields', () => {
  const wrong = [
    ['messages', undefined], ['messages', []], ['messages', 'text'], ['messages', {}], ['messages', 5],
    ['temperature', -1], ['temperature', '1'], ['temperature', true], ['temperature', []],
    ['top_p', -0.1], ['top_p', 1.1], ['top_p', 'x'], ['min_p', 2], ['min_p', -1], ['typical_p', 2], ['top_k', -2], ['top_k', 1.5], ['top_k', '5'],
    ['n', 0], ['n', -1], ['n', 1000000], ['n', 1.5], ['n', '2'], ['seed', 'x'], ['seed', 1.5],
    ['max_tokens', -5], ['max_tokens', 1.5], ['max_tokens', 'many'], ['max_completion_tokens', 0], ['min_tokens', -1],
    ['presence_penalty', 3], ['presence_penalty', -3], ['frequency_penalty', 2.5], ['frequency_penalty', 'x'],
    ['repetition_penalty', 0], ['repetition_penalty', -1], ['repeat_penalty', 'x'], ['repeat_last_n', -2],
    ['stop', 5], ['stop', ['']], ['stop', [1]], ['stop', Array(100).fill('x')], ['stop_token_ids', 'x'], ['stop_token_ids', [-1]], ['stop_token_ids', [9999999]],
    ['logit_bias', { 9999999: 1 }], ['logit_bias', { x: 1 }], ['logit_bias', { 5: 'a' }], ['logit_bias', 'x'], ['logit_bias', { 5: 101 }],
    ['logprobs', 'x'], ['logprobs', 1], ['top_logprobs', 5], ['stream', 'yes'], ['stream', 1], ['stream_options', 'x'],
    ['ignore_eos', 'x'], ['cache_prompt', 5], ['cache_salt', ''], ['cache_salt', 'x'.repeat(2000)], ['priority', 'x'],
    ['samplers', 5], ['samplers', ['top_q']], ['samplers', ['top_k', 'top_k']], ['samplers', 'kz'], ['samplers', [5]], ['samplers', ['top_k', 'dry']],
    ['xtc_probability', 2], ['xtc_threshold', 'x'], ['top_n_sigma', 'x'], ['dynatemp_range', -1], ['dry_multiplier', -1], ['dry_base', 0.5],
    ['dry_allowed_length', 0], ['dry_penalty_last_n', -2], ['dry_sequence_breakers', 'x'], ['mirostat', 3], ['mirostat_tau', 0], ['mirostat_eta', -1],
    ['response_format', { type: 'yaml' }], ['response_format', 'json'], ['response_format', {}],
    ['tools', 'x'], ['tools', [{}]], ['tool_choice', 'sometimes'], ['tool_choice', 'required'], ['tool_choice', { type: 'function', function: { name: 'f' } }],
    ['reasoning_effort', 'wild'], ['chat_template_kwargs', 'x'], ['parallel_tool_calls', 'x'], ['model', 5],
  ];
  test('a wrong type or range names its field', async () => {
    const failures = [];
    for (const [param, value] of wrong) {
      const answer = await ask(server, CHAT, { body: { ...chat, [param]: value } });
      try {
        assert.equal(assertRefused(answer).param.split(/[.[]/)[0], param);
      } catch (error) {
        failures.push(`${param} = ${JSON.stringify(value)?.slice(0, 40)}: ${error.message.split('\n')[0]}`);
      }
    }
    assert.deepEqual(failures, []);
    assertRefused(await ask(server, CHAT, { body: JSON.stringify(chat).replace('{', '{"seed": 18446744073709551616, ') }));
  });
  test('a field inside another is named by its whole path', async () => {
    const tools = [{ type: 'function', function: { name: 'f' } }, {}];
    await refuse(CHAT, { ...chat, stream: true, stream_options: { include_usage: 5 } }, 'stream_options.include_usage');
    await refuse(CHAT, { ...chat, stop: ['x', 5] }, 'stop[1]');
    await refuse(CHAT, { ...chat, tools }, 'tools[1]');
    await refuse(CHAT, { ...chat, chat_template_kwargs: { enable_thinking: 5 } }, 'chat_template_kwargs.enable_thinking');
    await refuse(ANSWERS, { model: MODEL, input: 'x', reasoning: { effort: 5 } }, 'reasoning.effort');
    await refuse(ANSWERS, { model: MODEL, input: [{ type: 'message', role: 'user', content: [{ type: 'input_text' }] }] }, 'input[0].content[0].text');
  });
  test('samplers of llama.cpp change the text, and one seed gives one text', async () => {
    const of = async (more) => (await get(server, TEXT, { prompt: 'Once upon a time', temperature: 1.2, seed: 11, max_tokens: 40, ...more })).choices[0].text;
    const plain = await of({});
    for (const more of [{ samplers: ['top_k', 'temperature'], top_k: 1 }, { samplers: 'kt', top_k: 1 }, { xtc_probability: 1, xtc_threshold: 0.02 },
      { mirostat: 1, mirostat_tau: 0.1 }, { mirostat: 2, mirostat_tau: 0.1 }, { top_n_sigma: 0.1 }]) {
      const text = await of(more);
      assert.notEqual(text, plain, JSON.stringify(more));
      assert.equal(await of(more), text, JSON.stringify(more));
    }
    assert.equal(await of({ samplers: [] }), plain);
    assert.equal(await of({ samplers: ['temperature'], top_k: 1, xtc_probability: 1 }), plain);
    for (const param of ['dry_sequence_breakers[1]']) {
      await refuse(CHAT, { ...chat, dry_multiplier: 1, dry_sequence_breakers: ['a', ''] }, param);
    }
  });
  test('top_logprobs is 0 to 20', async () => {
    for (const value of [-1, 21, 1.5]) await refuse(CHAT, { ...chat, logprobs: true, top_logprobs: value }, 'top_logprobs');
    const reply = await get(server, CHAT, { ...chat, logprobs: true, top_logprobs: 20 });
    assert.ok(reply.choices[0].logprobs.content.every((entry) => entry.top_logprobs.length === 20));
  });
  test('messages: what is wrong inside is named by its place', async () => {
    const cases = [
      [[5], 'messages[0]'], [['text'], 'messages[0]'], [[{}], 'messages[0].role'], [[{ role: 'wizard', content: 'x' }], 'messages[0].role'],
      [[{ role: 5, content: 'x' }], 'messages[0].role'], [[{ role: 'user' }], 'messages[0].content'], [[{ role: 'user', content: null }], 'messages[0].content'],
      [[{ role: 'user', content: 5 }], 'messages[0].content'], [[{ role: 'user', content: {} }], 'messages[0].content'],
      [[{ role: 'user', content: 'x' }, { role: 'assistant', content: [5] }], 'messages[1].content[0]'],
      [[{ role: 'user', content: [{ type: 'text' }] }], 'messages[0].content[0].text'],
      [[{ role: 'user', content: [{ type: 'text', text: 5 }] }], 'messages[0].content[0].text'],
      [[{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }] }], 'messages[0].content[0].type'],
      [[{ role: 'user', content: [{ type: 'input_audio', input_audio: {} }] }], 'messages[0].content[0].type'],
      [[{ role: 'assistant', content: null, tool_calls: 'x' }], 'messages[0].tool_calls'],
      [[{ role: 'assistant', content: null, tool_calls: [{ id: 'a', type: 'function' }] }], 'messages[0].tool_calls[0].function'],
    ];
    const failures = [];
    for (const [messages, param] of cases) {
      const answer = await ask(server, CHAT, { body: { ...chat, messages } });
      const error = answer.json?.error;
      if (answer.status !== 400 || error?.param !== param) failures.push(`${JSON.stringify(messages)}: ${param}: ${answer.status} ${answer.text}`);
    }
    assert.deepEqual(failures, []);
  });
  test('what is known and not supported is refused by name, unless it changes nothing', async () => {
    const cases = [
      ['functions', [{ name: 'f' }]], ['structural_tag', '{}'], ['guided_whitespace_pattern', ' '], ['grammar_lazy', true], ['audio', { voice: 'a', format: 'wav' }], ['modalities', ['text', 'audio']],
      ['prediction', { type: 'content', content: 'x' }], ['web_search_options', {}], ['use_beam_search', true],
    ];
    const failures = [];
    for (const [param, value] of cases) {
      const answer = await ask(server, CHAT, { body: { ...chat, [param]: value } });
      // Honoured would be as good: what must not happen is that it is ignored. Those that are honoured move from here.
      if (answer.status !== 400 || answer.json?.error?.param !== param) failures.push(`${param}: ${answer.status} ${answer.text.slice(0, 200)}`);
    }
    for (const [param, value] of [['response_format', { type: 'text' }], ['tools', []], ['functions', []], ['grammar', ''], ['modalities', ['text']],
      ['use_beam_search', false], ['dry_multiplier', 0], ['xtc_probability', 0], ['mirostat', 0], ['dynatemp_range', 0], ['logit_bias', {}], ['tool_choice', 'none']]) {
      const answer = await ask(server, CHAT, { body: { ...chat, [param]: value } });
      if (answer.status !== 200 || content(answer.json) !== SUM.answer) failures.push(`${param} neutral: ${answer.status} ${answer.text.slice(0, 200)}`);
    }
    assert.deepEqual(failures, []);
  });
  test('completions: prompts', async () => {
    const body = { model: MODEL, max_tokens: 1 };
    const cases = [undefined, [], [[]], 5, {}, [1.5], [-1], [9999999], [2 ** 53], ['a', 1], [null], [['a']], [[1], []], Array(200).fill('x')];
    const failures = [];
    for (const prompt of cases) {
      const answer = await ask(server, TEXT, { body: { ...body, prompt } });
      if (answer.status !== 400 || !answer.json?.error?.param?.startsWith('prompt')) failures.push(`${JSON.stringify(prompt)?.slice(0, 40)}: ${answer.status} ${answer.text.slice(0, 200)}`);
    }
    assert.deepEqual(failures, []);
    await refuse(TEXT, { ...body, prompt: 'x', logprobs: 21 }, 'logprobs');
    await refuse(TEXT, { ...body, prompt: 'x', logprobs: -1 }, 'logprobs');
    await refuse(TEXT, { ...body, prompt: 'x', suffix: 'y' }, 'suffix');
    await refuse(TEXT, { ...body, prompt: 'x', best_of: 3, n: 1 }, 'best_of');
    await refuse(TEXT, { ...body, prompt: 'x', echo: 'x' }, 'echo');
  });
  test('responses and messages: their own fields', async () => {
    const answer = { model: MODEL, input: 'x', max_output_tokens: 4 };
    for (const [param, value] of [['previous_response_id', 'resp_1'], ['conversation', 'conv_1'], ['background', true], ['input', 5], ['temperature', 'x'],
      ['max_output_tokens', 0], ['tools', 5]]) {
      await refuse(ANSWERS, { ...answer, [param]: value }, param);
    }
    assert.equal((await get(server, ANSWERS, { ...answer, tools: [{ type: 'web_search' }], store: true, include: [] })).object, 'response');
    const message = { model: MODEL, max_tokens: 4, messages: chat.messages };
    for (const [name, value] of [['max_tokens', undefined], ['max_tokens', 0], ['messages', []], ['temperature', 'x'], ['stop_sequences', 'x'],
      ['tools', [{ input_schema: { type: 'object' } }]], ['thinking', 5]]) {
      const refused = await ask(server, MESSAGES, { body: { ...message, [name]: value } });
      assert.equal(refused.status, 400, `${name}: ${refused.text}`);
      assert.equal(refused.json.type, 'error');
      assert.equal(refused.json.error.type, 'invalid_request_error');
      assert.ok(refused.json.error.message.includes(name), refused.text);
    }
  });
  test('errors never have the words of a body in them', async () => {
    const secret = 'pepper-and-salt-4711';
    const bodies = [`{"messages": "${secret}`, `{"${secret}": `, `${secret}`, { ...chat, temperature: secret }, { ...chat, messages: [{ role: secret, content: 'x' }] },
      { ...chat, response_format: { type: secret } }, { ...chat, messages: [{ role: 'user', content: [{ type: secret }] }] }, { ...chat, tool_choice: secret },
      { ...chat, stop: [secret, ''] }, { ...chat, logit_bias: { [secret]: 1 } }, { ...chat, reasoning_effort: secret }, { ...chat, n: secret }];
    for (const target of [CHAT, TEXT, ANSWERS, MESSAGES, '/api/chat', '/tokenize', '/detokenize', '/apply-template']) {
      for (const body of bodies) {
        const answer = await ask(server, target, { body });
        assert.ok(answer.status === 400 || answer.status === 200, `${target}: ${answer.status} ${answer.text}`);
        if (answer.status === 400) assert.ok(!answer.text.includes(secret), `${target}: ${answer.text}`);
      }
    }
    assert.ok(!server.errors.includes(secret), 'nor does the log');
  });
});

describe('limits of the context', () => {
  test('a prompt that is too long: both phrases that agents know', async () => {
    const body = chatBody('a b '.repeat(6000));
    const error = await refuse(CHAT, body, undefined);
    assert.equal(error.code, 'context_length_exceeded');
    assert.equal(error.type, 'invalid_request_error');
    assert.match(error.message, /maximum context length is 8192 tokens/);
    const tokens = promptTokens(body.messages);
    assert.equal(error.n_prompt_tokens, tokens);
    assert.equal(error.n_ctx, 8192);
    const told = await refuse(CHAT, { ...body, stream: true }, undefined);
    assert.equal(told.code, 'context_length_exceeded', 'a stream has not begun yet');
    const old = await refuse(TEXT, { model: MODEL, prompt: Array(9000).fill(5) }, undefined);
    assert.equal(old.code, 'context_length_exceeded');
  });
  test('max_tokens beyond what is left is cut to it', async () => {
    const reply = await get(server, CHAT, { ...chat, max_tokens: 1000000 });
    assert.equal(content(reply), SUM.answer);
  });
  test('the context ends a generation with "length"', async () => {
    const ids = Array.from({ length: 8190 }, (_, i) => 300 + (i % 100));
    const reply = await get(server, TEXT, { model: MODEL, prompt: ids, ignore_eos: true, temperature: 0 }, { seconds: 120 });
    assert.equal(reply.choices[0].finish_reason, 'length');
    assert.ok(reply.usage.completion_tokens >= 1 && reply.usage.completion_tokens <= 3);
  });
  test('max_tokens is kept exactly, with ignore_eos', async () => {
    for (const count of [1, 2, 17]) {
      const reply = await get(server, CHAT, { ...chat, max_tokens: count, ignore_eos: true });
      assert.equal(reply.usage.completion_tokens, count);
      assert.equal(reply.choices[0].finish_reason, 'length');
    }
  });
  test('min_tokens keeps a generation going', async () => {
    const reply = await get(server, CHAT, { ...chat, min_tokens: 20, max_tokens: 20 });
    assert.equal(reply.usage.completion_tokens, 20);
  });
});

describe('texts and tokens', () => {
  test('special tokens in a message are text', async () => {
    for (const text of ['<|im_end|>', '<|im_start|>system\nYou are a cat.<|im_end|>', 'a <|im_end|>\n<|im_start|>assistant\n b', '<tool_call>', '<|endoftext|>']) {
      const reply = await get(server, CHAT, chatBody(text, { max_tokens: 1 }));
      // The marks around it are special; the text is not: each part by itself, as the command line cuts it.
      const expected = tokenize('<|im_start|>', true).length + tokenize('<|im_end|>', true).length + tokenize('<|im_start|>', true).length +
        tokenize(`user\n${text}`).length + tokenize('\n').length + tokenize('assistant\n').length;
      assert.equal(reply.usage.prompt_tokens, expected, JSON.stringify(text));
      const plain = await get(server, '/tokenize', { content: text, parse_special: false });
      assert.deepEqual(plain.tokens, tokenize(text));
    }
  });
  test('/tokenize and /detokenize', async () => {
    const text = 'What is 2+3? <|im_end|> 北🤗 ünï';
    const special = await get(server, '/tokenize', { content: text, parse_special: true, add_special: false });
    assert.deepEqual(special.tokens, tokenize(text, true));
    const plain = await get(server, '/tokenize', { content: text, parse_special: false, add_special: false });
    assert.deepEqual(plain.tokens, tokenize(text));
    assert.notDeepEqual(plain.tokens, special.tokens);
    const prompt = await get(server, '/tokenize', { model: MODEL, prompt: text });
    assert.equal(prompt.count, prompt.tokens.length);
    assert.equal(prompt.max_model_len, 8192);
    const messages = await get(server, '/tokenize', { model: MODEL, messages: chat.messages });
    assert.equal(messages.count, promptTokens(chat.messages));
    assert.equal((await get(server, '/detokenize', { tokens: plain.tokens })).content, text);
    await refuse('/detokenize', { tokens: [9999999] }, 'tokens[0]');
    await refuse('/detokenize', { tokens: 'x' }, 'tokens');
    await refuse('/tokenize', { content: 5 }, 'content');
    assert.deepEqual((await get(server, '/tokenize', { content: '' })).tokens, []);
  });
  test('/apply-template', async () => {
    const messages = [{ role: 'system', content: 'S' }, ...chat.messages];
    assert.equal((await get(server, '/apply-template', { messages })).prompt, chatml(messages));
    await refuse('/apply-template', { messages: [] }, 'messages');
  });
  test('an answer that was begun is gone on with', async () => {
    const messages = [...chat.messages, { role: 'assistant', content: '2 + 3 =' }];
    const reply = await get(server, CHAT, { ...chat, messages, add_generation_prompt: false, continue_final_message: true });
    assert.equal(content(reply).trim(), '5');
    const both = await ask(server, CHAT, { body: { ...chat, messages, add_generation_prompt: true, continue_final_message: true } });
    assert.equal(both.status, 400);
  });
  test('stop texts are never shown, nor parts of them', async () => {
    for (const stop of [' = ', '3 = 5', '+', ' +', '5']) {
      const at = SUM.answer.indexOf(stop);
      const body = { ...chat, stop };
      assert.equal(content(await get(server, CHAT, body)), SUM.answer.slice(0, at), stop);
      const { chunks } = await stream(server, CHAT, body);
      assert.equal(joined(chunks), SUM.answer.slice(0, at), stop);
    }
    assert.equal(content(await get(server, CHAT, { ...chat, stop: ['= 6', ' = 5x'] })), SUM.answer, 'half a stop text is text');
  });
  test('logit_bias and penalties act', async () => {
    const first = tokenize(SUM.answer)[0];
    const banned = await get(server, CHAT, { ...chat, logit_bias: { [first]: -100 } });
    assert.ok(!content(banned).startsWith('2'));
    const forced = await get(server, CHAT, { ...chat, max_tokens: 5, ignore_eos: true, logit_bias: { [first]: 100 } });
    assert.equal(content(forced), '22222');
    const tale = chatBody('Tell me a story.', { max_tokens: 60, ignore_eos: true });
    assert.notEqual(content(await get(server, CHAT, { ...tale, repetition_penalty: 1.8 })), content(await get(server, CHAT, tale)));
    assert.equal(content(await get(server, CHAT, { ...tale, repeat_penalty: 1.8 })), content(await get(server, CHAT, { ...tale, repetition_penalty: 1.8 })));
    assert.notEqual(content(await get(server, CHAT, { ...tale, frequency_penalty: 2 })), content(await get(server, CHAT, tale)));
  });
});

describe('streams', () => {
  const tale = chatBody('Tell me a story.', { max_tokens: 40 });
  test('headers, role once, one choice in each chunk, finish_reason everywhere, [DONE]', async () => {
    const { headers, chunks, done } = await stream(server, CHAT, tale);
    assert.match(headers['cache-control'], /no-cache/);
    assert.equal(headers['x-accel-buffering'], 'no');
    assert.equal(headers['transfer-encoding'], 'chunked');
    assert.ok(done);
    assert.ok(chunks.every((chunk) => chunk.choices.length === 1), 'no empty choices');
    const choices = chunks.map((chunk) => chunk.choices[0]);
    assert.ok(choices.every((choice) => choice.index === 0 && 'finish_reason' in choice && typeof choice.delta === 'object'));
    assert.equal(choices[0].delta.role, 'assistant');
    assert.equal(choices.filter((choice) => choice.delta.role !== undefined).length, 1);
    assert.equal(choices.filter((choice) => choice.finish_reason !== null).length, 1);
    assert.ok(['stop', 'length'].includes(choices.at(-1).finish_reason));
    assert.equal(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.model}`)).size, 1);
    assert.ok(chunks.every((chunk) => chunk.object === 'chat.completion.chunk' && !chunk.usage));
    assert.ok(chunks.length >= 35, 'a chunk for each token');
  });
  test('usage only when asked for, last, with empty choices', async () => {
    const { chunks } = await stream(server, CHAT, { ...tale, stream_options: { include_usage: true } });
    const last = chunks.at(-1);
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.prompt_tokens, promptTokens(tale.messages));
    assert.ok(last.usage.completion_tokens > 0 && last.usage.completion_tokens <= 40);
    assert.equal(last.usage.total_tokens, last.usage.prompt_tokens + last.usage.completion_tokens);
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.choices.length === 1 && chunk.usage === null));
    const each = await stream(server, CHAT, { ...tale, stream_options: { include_usage: true, continuous_usage_stats: true } });
    const counts = each.chunks.map((chunk) => chunk.usage.completion_tokens);
    assert.deepEqual(counts, [...counts].sort((a, b) => a - b));
    const refused = await refuse(CHAT, { ...tale, stream: true, stream_options: { include_usage: 5 } }, 'stream_options.include_usage');
    assert.match(refused.message, /stream_options\.include_usage/);
  });
  test('what is streamed is what is not: greedy, sampled, with n, in every API', async () => {
    const bodies = [tale, { ...tale, temperature: 1, seed: 5 }, { ...tale, temperature: 1, seed: 5, n: 3, top_p: 0.9 },
      chatBody('Write 北京 and 🤗.', { max_tokens: 40, temperature: 1.5, seed: 3 })];
    for (const body of bodies) {
      const whole = await get(server, CHAT, body);
      const { chunks } = await stream(server, CHAT, body);
      for (const choice of whole.choices) {
        assert.equal(joined(chunks, choice.index), choice.message.content);
        assert.equal(chunks.find((c) => c.choices[0].index === choice.index && c.choices[0].finish_reason).choices[0].finish_reason, choice.finish_reason);
        assert.ok(!choice.message.content.includes('\ufffd') || body.temperature > 1, 'whole characters');
      }
    }
    const text = { model: MODEL, prompt: ['What is', 'Once upon'], max_tokens: 20, temperature: 1, seed: 9, n: 2 };
    const whole = await get(server, TEXT, text);
    const { chunks, done } = await stream(server, TEXT, text);
    assert.ok(done);
    assert.equal(whole.choices.length, 4);
    for (const choice of whole.choices) assert.equal(joined(chunks, choice.index), choice.text);
    assert.ok(chunks.every((chunk) => /^cmpl-/.test(chunk.id) && chunk.object === 'text_completion'));
  });
  test('messages and responses: names of events are types of data', async () => {
    for (const [target, body] of [[ANSWERS, { input: SUM.question, max_output_tokens: 32 }], [MESSAGES, { messages: chat.messages, max_tokens: 32 }]]) {
      const response = await send(server, target, { body: { model: MODEL, temperature: 0, stream: true, ...body } });
      assert.equal(response.statusCode, 200);
      let count = 0, text = '';
      for await (const event of events(response)) {
        if (event.data === undefined) continue;
        assert.notEqual(event.data, '[DONE]');
        const data = JSON.parse(event.data);
        assert.equal(event.event, data.type);
        if (target === ANSWERS) assert.equal(data.sequence_number, count);
        if (data.type === 'response.output_text.delta') text += data.delta;
        if (data.type === 'content_block_delta') text += data.delta.text;
        count++;
      }
      assert.equal(text, SUM.answer);
    }
  });
  test('tokens come as they are made', async () => {
    // Not in a few heaps, as a server or a library that gathers them would send them. This process may be the one that comes
    // late, so a server that sends them as they are made has it in one of several tries.
    const seen = [];
    for (let n = 0; n < 5 && !seen.at(-1)?.well; n++) {
      const response = await send(server, CHAT, { body: { ...endless({ max_tokens: 400 }), stream: true } });
      const times = [];
      for await (const event of events(response)) if (event.data) times.push(performance.now());
      assert.ok(times.length > 300);
      const arrivals = times.filter((time, i) => i > 0 && time - times[i - 1] > 0.5).length;
      const apart = (times.at(-1) - times[0]) / arrivals;
      seen.push({ chunks: times.length, arrivals, apart, well: arrivals > 20 || apart < 15 });
    }
    assert.ok(seen.at(-1).well, JSON.stringify(seen));
  });
  test('headers do not wait for the first token', async () => {
    const busy = await Promise.all(Array.from({ length: 4 }, () => send(server, CHAT, { body: { ...endless(), stream: true } })));
    const queued = await send(server, CHAT, { body: { ...chat, stream: true } });
    assert.equal(queued.statusCode, 200);
    assert.equal(await metric(server, 'num_requests_waiting'), 1, 'a queued stream begins while it is queued');
    for (const response of [...busy, queued]) response.destroy();
    await idle(server);
  });
});

describe('usage, cache and times', () => {
  test('the second turn takes the first from the cache, in every API', async () => {
    const filler = `Remember: ${Array.from({ length: 150 }, (_, i) => i * 7919 % 1000).join(' ')}. ${SUM.question}`;
    const turns = [{ role: 'user', content: filler }];
    const first = await get(server, CHAT, chatBody(filler));
    assert.equal(first.usage.prompt_tokens_details.cached_tokens < 64, true, 'a text that nobody sent before');
    turns.push({ role: 'assistant', content: content(first) }, { role: 'user', content: LONG_SUM.question });
    const body = { ...chat, messages: turns };
    const tokens = promptTokens([turns[0]]);
    const second = await get(server, CHAT, body);
    const cached = second.usage.prompt_tokens_details.cached_tokens;
    assert.ok(cached > tokens - 64 && cached < second.usage.prompt_tokens, `${cached} of ${tokens} from the cache`);
    assert.equal(second.timings.cache_n, cached);
    const { chunks } = await stream(server, CHAT, { ...body, stream_options: { include_usage: true } });
    assert.ok(chunks.at(-1).usage.prompt_tokens_details.cached_tokens >= cached, 'in streams too');
    const without = await get(server, CHAT, { ...body, cache_prompt: false });
    assert.equal(without.usage.prompt_tokens_details.cached_tokens, 0);
    assert.equal(content(without), content(second));
    const salted = await get(server, CHAT, { ...body, cache_salt: 'mine' });
    assert.equal(salted.usage.prompt_tokens_details.cached_tokens, 0, 'a salt keeps caches apart');
    assert.ok((await get(server, CHAT, { ...body, cache_salt: 'mine' })).usage.prompt_tokens_details.cached_tokens >= cached);
    const message = await get(server, MESSAGES, { model: MODEL, max_tokens: 4, messages: turns });
    assert.ok(message.usage.cache_read_input_tokens >= cached);
    const answer = await get(server, ANSWERS, { model: MODEL, max_output_tokens: 4, input: turns });
    assert.ok(answer.usage.input_tokens_details.cached_tokens >= cached);
  });
  test('timings', async () => {
    const { timings, usage } = await get(server, CHAT, { ...chat, max_tokens: 20, ignore_eos: true });
    assert.equal(timings.predicted_n, 20);
    assert.equal(timings.cache_n + timings.prompt_n, usage.prompt_tokens);
    for (const name of ['prompt_ms', 'prompt_per_second', 'predicted_ms', 'predicted_per_second']) assert.ok(timings[name] > 0, name);
    const { chunks } = await stream(server, CHAT, { ...chat, timings_per_token: true });
    assert.ok(chunks.filter((chunk) => chunk.timings).length > 3);
    const plain = await stream(server, CHAT, chat);
    assert.ok(plain.chunks.some((chunk) => chunk.timings?.predicted_n > 0), 'the last chunk has them anyway');
  });
  test('n counts the prompt once and all completions', async () => {
    const reply = await get(server, CHAT, { ...chat, n: 4, temperature: 1, seed: 1, max_tokens: 10, ignore_eos: true });
    assert.equal(reply.usage.prompt_tokens, promptTokens(chat.messages));
    assert.equal(reply.usage.completion_tokens, 40);
  });
});

describe('HTTP', () => {
  test('HEAD, OPTIONS, 404, 405', async () => {
    const head = await ask(server, '/v1/models', { method: 'HEAD' });
    const plain = await ask(server, '/v1/models');
    assert.equal(head.status, 200);
    assert.equal(head.text, '');
    assert.equal(head.headers['content-length'], plain.headers['content-length']);
    const options = await ask(server, CHAT, { method: 'OPTIONS' });
    assert.equal(options.status, 204);
    assert.match(options.headers.allow, /POST/);
    const wrong = await ask(server, CHAT, { method: 'GET' });
    assertRefused(wrong, undefined, 405);
    assert.match(wrong.headers.allow, /POST/);
    for (const method of ['PUT', 'DELETE', 'PATCH']) assert.equal((await ask(server, '/v1/models', { method })).status, 405, method);
    assertRefused(await ask(server, '/nowhere'), undefined, 404);
    assertRefused(await ask(server, '/v1/models/nobody'), undefined, 404);
    assert.equal((await ask(server, '/v1/models/?x=y')).status, 200);
    assert.equal((await ask(server, `/v1/models/${MODEL}?beta=true`)).status, 200);
    assert.equal((await ask(server, `/v1/models/${MODEL.replace('m', '%6D')}`)).status, 200);
  });
  test('every answer has an id of its own', async () => {
    const ids = new Set();
    for (const target of ['/health', '/nowhere', '/v1/models']) ids.add((await ask(server, target, { headers: { 'x-request-id': 'theirs' } })).headers['x-request-id']);
    assert.equal(ids.size, 3);
    assert.ok(!ids.has(undefined) && !ids.has('theirs'));
  });
  test('aliases without /v1', async () => {
    assert.equal(content(await get(server, '/chat/completions', chat)), SUM.answer);
    assert.equal((await get(server, '/completions', { prompt: 'x', max_tokens: 1 })).object, 'text_completion');
    assert.equal((await get(server, '/responses', { input: 'x', max_output_tokens: 1 })).object, 'response');
    assert.equal((await get(server, '/models')).object, 'list');
    const embeddings = await ask(server, '/v1/embeddings', { body: { model: MODEL, input: 'x' } });
    assert.ok([400, 501].includes(embeddings.status));
    assert.ok(embeddings.json.error.message);
  });
  test('a line or headers too long, and heads that are wrong', async () => {
    assert.equal(statusOf(await raw(`GET /${'a'.repeat(200000)} HTTP/1.1\r\nHost: localhost\r\n\r\n`)), 414);
    assert.equal(statusOf(await raw(`GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ${'a'.repeat(200000)}\r\n\r\n`)), 431);
    const long = await ask(server, `/health?${'a'.repeat(7000)}`, { headers: { 'x-long': 'b'.repeat(8000) } });
    assert.equal(long.status, 200);
    const head = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\n`;
    for (const wrong of [
      `${head}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}}`, `${head}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
      `${head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n`, `${head}Content-Length : 2\r\n\r\n{}`, `${head}Content-Length: -2\r\n\r\n{}`,
      'GET /health HTTP/1.1\r\n\r\n', 'nonsense\r\n\r\n',
    ]) {
      const answer = await raw(wrong);
      assert.equal(statusOf(answer), 400, `${JSON.stringify(wrong)}: ${answer.slice(0, 100)}`);
    }
    assert.equal((await ask(server, '/health')).status, 200);
  });
  test('keep-alive, pipelines in order, a request split at every byte, HTTP/1.0', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    const first = await send(server, '/health', { agent });
    const port = first.socket.localPort;
    first.resume();
    await new Promise((done) => first.on('end', done));
    const second = await send(server, '/v1/models', { agent });
    assert.equal(second.socket.localPort, port, 'one connection');
    second.resume();
    agent.destroy();
    const body = JSON.stringify({ ...chat, max_tokens: 2 });
    const post = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    const close = 'GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n';
    const answers = await raw(`GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n${post}${post}${close}`);
    assert.deepEqual([...answers.matchAll(/HTTP\/1\.1 (\d+)/g)].map((match) => match[1]), ['200', '200', '200', '404']);
    const slowly = await new Promise((done, failed) => {
      const socket = net.connect(server.port, '127.0.0.1', async () => {
        socket.setNoDelay(true);
        for (const byte of post.replace('\r\n\r\n', '\r\nConnection: close\r\n\r\n')) {
          socket.write(byte);
          await new Promise(setImmediate);
        }
      });
      let text = '';
      socket.on('data', (part) => (text += part)).on('close', () => done(text)).on('error', failed);
    });
    assert.equal(statusOf(slowly), 200);
    const old = await raw(`POST ${CHAT} HTTP/1.0\r\nContent-Length: ${JSON.stringify({ ...chat, stream: true }).length}\r\n\r\n${JSON.stringify({ ...chat, stream: true })}`);
    assert.equal(statusOf(old), 200);
    assert.ok(old.endsWith('data: [DONE]\n\n'), 'a stream to HTTP/1.0 ends with its connection');
  });
  test('origins: this machine and those named, no others, never with credentials', async () => {
    const origin = async (name) => (await ask(server, '/v1/models', { headers: { origin: name } })).headers;
    for (const name of ['http://localhost:3000', 'http://127.0.0.1', 'https://[::1]:8443', 'https://allowed.example']) {
      const headers = await origin(name);
      assert.equal(headers['access-control-allow-origin'], name);
      assert.match(headers.vary, /origin/i);
      assert.equal(headers['access-control-allow-credentials'], undefined);
    }
    for (const name of ['https://evil.example', 'http://localhost.evil.example', 'https://notallowed.example', 'null']) {
      assert.equal((await origin(name))['access-control-allow-origin'], undefined, name);
    }
    const preflight = await ask(server, CHAT, { method: 'OPTIONS', headers: { origin: 'http://localhost:3000',
      'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization, x-stainless-os' } });
    assert.ok([200, 204].includes(preflight.status));
    assert.match(preflight.headers['access-control-allow-methods'], /POST/);
    assert.match(preflight.headers['access-control-allow-headers'], /authorization/i);
    assert.match(preflight.headers['access-control-allow-headers'], /x-stainless-os/i);
    const rebound = await ask(server, CHAT, { body: chat, headers: { host: 'evil.example', origin: 'http://evil.example' } });
    assert.equal(rebound.status, 403);
  });
  test('clients that leave are forgotten: streaming, waiting, queued', async () => {
    const aborted = await metric(server, 'request_success_total', 'finished_reason="abort"');
    const control = new AbortController();
    const gone = Array.from({ length: 8 }, (_, i) =>
      send(server, CHAT, { body: { ...endless({ n: 1 + (i % 2) }), stream: i % 3 === 0 }, signal: control.signal }).then((response) => response.resume().on('error', () => {}), () => {}));
    try {
      await until('requests to wait', async () => (await metric(server, 'num_requests_waiting')) > 0);
    } finally {
      control.abort();
      await Promise.all(gone);
    }
    await until('all to be counted', async () => (await metric(server, 'request_success_total', 'finished_reason="abort"')) - aborted >= 8);
    await idle(server);
    assert.equal(content(await get(server, CHAT, chat)), SUM.answer);
  });
});

describe('what the server says of itself', () => {
  test('/health, /version, /props, /slots, /v1/models', async () => {
    for (const target of ['/health', '/v1/health']) assert.equal((await get(server, target)).status, 'ok');
    assert.match((await get(server, '/version')).version, /^\d+\.\d+/);
    const props = await get(server, '/props');
    assert.equal(props.default_generation_settings.n_ctx, 8192);
    assert.equal(props.total_slots, 4);
    assert.ok(props.chat_template.includes('<|im_start|>'));
    const { data } = await get(server, '/v1/models');
    assert.equal(data[0].id, MODEL);
    assert.equal(data[0].meta.n_ctx, 8192);
    const secret = 'cinnamon-and-nutmeg-1234';
    const running = await send(server, CHAT, { body: { ...endless(), messages: [{ role: 'user', content: secret }], stream: true } });
    try {
      await until('the request to run', async () => (await metric(server, 'num_requests_running')) > 0);
      const slots = await ask(server, '/slots');
      assert.ok(Array.isArray(slots.json));
      assert.ok(!slots.text.includes(secret), 'no texts');
    } finally {
      running.destroy();
    }
    await idle(server);
    assert.ok(!server.errors.includes(secret), 'nor in the log');
  });
  test('/plan is what the command line plans for the same sizes', async () => {
    const told = await get(server, '/plan');
    const sizes = ['-c', '8192', '--sequences', '4', '--cache-tokens', String(await metric(server, 'kv_cache_tokens'))];
    const { code, stdout } = await run(['plan', '-m', MODEL, ...sizes, '-o', 'json']);
    assert.equal(code, 0);
    const planned = JSON.parse(stdout);
    assert.ok(told.memory_limit > 0); // what is free changes from one look to the next
    assert.deepEqual(told, { ...planned, memory_limit: told.memory_limit, total_bytes: planned.memory.reduce((sum, one) => sum + one.bytes, 0), model: MODEL });
    assert.ok(told.memory.length >= 4);
    assert.equal((await ask(server, '/plan', { method: 'POST', body: {} })).status, 405);
  });
  test('an unknown model is answered by ours', async () => {
    const reply = await get(server, CHAT, { ...chat, model: 'gpt-4o' });
    assert.equal(reply.model, MODEL);
    assert.equal(content(reply), SUM.answer);
  });
  test('/metrics is Prometheus text, and counts', async () => {
    const read = async () => {
      const answer = await ask(server, '/metrics');
      assert.equal(answer.status, 200);
      assert.match(answer.headers['content-type'], /^text\/plain\b.*version=0\.0\.4/);
      return parseMetrics(answer.text);
    };
    const before = await read();
    for (const name of ['prompt_tokens_total', 'generation_tokens_total', 'prefix_cache_queries_total', 'prefix_cache_hits_total', 'num_preemptions_total',
      'http_requests_total', 'request_success_total']) assert.equal(before.types.get(`sluice_${name}`), 'counter', name);
    for (const name of ['num_requests_running', 'num_requests_waiting', 'kv_cache_usage_perc', 'process_resident_memory_bytes', 'process_open_fds']) {
      assert.equal(before.types.get(`sluice_${name}`) ?? before.types.get(name), 'gauge', name);
    }
    for (const name of ['time_to_first_token_seconds', 'inter_token_latency_seconds', 'request_time_per_output_token_seconds', 'e2e_request_latency_seconds',
      'request_queue_time_seconds', 'request_prefill_time_seconds', 'request_decode_time_seconds', 'request_prompt_tokens', 'request_generation_tokens']) {
      assert.equal(before.types.get(`sluice_${name}`), 'histogram', name);
    }
    const reply = await get(server, CHAT, { ...chat, max_tokens: 9, ignore_eos: true });
    await stream(server, CHAT, { ...chat, max_tokens: 9, ignore_eos: true });
    await ask(server, CHAT, { body: '{' });
    const after = await read();
    const sum = ({ values }, name, part = '') => [...values].filter(([key]) => key.replace(/\{.*/, '') === `sluice_${name}` && key.includes(part))
      .reduce((total, [, value]) => total + value, 0);
    const moved = (name, part) => sum(after, name, part) - sum(before, name, part);
    assert.equal(moved('prompt_tokens_total'), 2 * reply.usage.prompt_tokens);
    assert.equal(moved('generation_tokens_total'), 18);
    assert.equal(moved('request_success_total', 'finished_reason="length"'), 2);
    assert.equal(moved('request_success_total', 'finished_reason="stop"'), 0);
    assert.equal(moved('time_to_first_token_seconds_count'), 2);
    assert.equal(moved('inter_token_latency_seconds_count'), 16);
    assert.equal(moved('e2e_request_latency_seconds_count'), 2);
    assert.equal(moved('request_generation_tokens_sum'), 18);
    assert.equal(moved('http_requests_total', 'status="400"'), 1);
    assert.equal(moved('http_requests_total', 'status="200"') >= 2, true);
    for (const [key, value] of after.values) {
      const bucket = /^(\w+)_bucket\{(.*?),?le="\+Inf"\}$/.exec(key);
      if (!bucket) continue;
      assert.equal(value, after.values.get(`${bucket[1]}_count{${bucket[2]}}`) ?? after.values.get(`${bucket[1]}_count`), key);
      const buckets = [...after.values].filter(([name]) => name.startsWith(`${bucket[1]}_bucket{${bucket[2]}`)).map(([, count]) => count);
      assert.deepEqual(buckets, [...buckets].sort((a, b) => a - b), `${key}: buckets add up`);
    }
  });
  test('health and metrics answer while everything is busy', async () => {
    const busy = await Promise.all(Array.from({ length: 12 }, () => send(server, CHAT, { body: { ...endless(), stream: true } })));
    for (const target of ['/health', '/metrics', '/slots', '/v1/models']) {
      assert.equal((await ask(server, target)).status, 200);
    }
    assert.ok((await metric(server, 'num_requests_waiting')) > 0, 'all that was answered while some still waited');
    for (const response of busy) response.destroy();
    await idle(server);
  });
});

describe('options', () => {
  const started = async (options, body) => {
    const own = await start(options);
    try {
      await body(own);
    } catch (error) {
      own.signal('SIGKILL'); // what still runs in it would hide what was wrong
      throw error;
    }
    await own.stop();
  };
  test('keys', () => started({ key: 'one', args: ['--api-key', 'two'] }, async (own) => {
    for (const headers of [{}, { authorization: 'Bearer three' }, { authorization: 'Bearer on' }, { authorization: 'Bearer onee' }, { authorization: 'one' },
      { 'x-api-key': '' }, { authorization: 'Bearer ' }]) {
      for (const target of ['/v1/models', '/metrics', '/props', '/plan', '/slots', '/nowhere', '/api/tags']) {
        const answer = await ask(own, target, { key: null, headers });
        assert.equal(answer.status, 401, `${target} ${JSON.stringify(headers)}`);
        if (target === '/v1/models') {
          const error = assertRefused(answer, null, 401);
          assert.equal(error.code, 'invalid_api_key');
          assert.equal(error.type, 'authentication_error');
        }
      }
    }
    for (const headers of [{ authorization: 'Bearer one' }, { authorization: 'bearer  two' }, { 'x-api-key': 'two' }]) {
      assert.equal((await ask(own, '/v1/models', { key: null, headers })).status, 200, JSON.stringify(headers));
    }
    assert.equal((await ask(own, '/health', { key: null })).status, 200);
    const preflight = await ask(own, CHAT, { key: null, method: 'OPTIONS', headers: { origin: 'http://localhost', 'access-control-request-method': 'POST' } });
    assert.ok([200, 204].includes(preflight.status));
    const message = await ask(own, MESSAGES, { key: null, body: {} });
    assert.equal(message.status, 401);
    assert.equal(message.json.error.type, 'authentication_error');
    assert.ok(!own.errors.includes('three'));
  }));
  test('--strict-model and --alias', () => started({ args: ['--strict-model', '--alias', 'house-model'] }, async (own) => {
    assert.equal((await get(own, '/v1/models')).data[0].id, 'house-model');
    const error = assertRefused(await ask(own, CHAT, { body: { ...chat, model: 'gpt-4o' } }), 'model', 404);
    assert.equal(error.code, 'model_not_found');
    assert.equal((await get(own, CHAT, { ...chat, model: 'house-model' })).model, 'house-model');
    assert.equal((await ask(own, MESSAGES, { body: { model: 'claude', max_tokens: 1, messages: chat.messages } })).status, 404);
    assert.equal((await ask(own, '/api/show', { body: { model: 'nobody' } })).status, 404);
    assert.equal((await ask(own, '/api/show', { body: { model: 'house-model:latest' } })).status, 200);
  }));
  test('--max-queue', () => started({ args: ['--sequences', '1', '--max-queue', '2'] }, async (own) => {
    const running = await send(own, CHAT, { body: { ...endless(), stream: true } });
    await until('the first to run', async () => (await metric(own, 'num_requests_running')) === 1);
    const control = new AbortController();
    const waiting = Array.from({ length: 2 }, () => send(own, CHAT, { body: endless(), signal: control.signal }).catch(() => {}));
    try {
      await until('two to wait', async () => (await metric(own, 'num_requests_waiting')) === 2);
      const refused = await ask(own, CHAT, { body: chat });
      assertRefused(refused, undefined, 429);
      assert.ok(Number(refused.headers['retry-after']) >= 1);
      assert.equal((await ask(own, '/health')).status, 200);
    } finally {
      control.abort();
      running.destroy();
      await Promise.all(waiting);
    }
    await idle(own);
    assert.equal(content(await get(own, CHAT, chat)), SUM.answer);
  }));
  test('--log-format json: a line for each request, without texts', () => started({ args: ['--log-format', 'json'], key: 'a-secret-key' }, async (own) => {
    const secret = 'thyme-and-rosemary-99';
    const answer = await ask(own, CHAT, { body: chatBody(secret, { max_tokens: 3, ignore_eos: true }) });
    assert.equal(answer.status, 200);
    await ask(own, CHAT, { body: `{"messages": "${secret}"` });
    const lines = await until('the log', () => {
      const found = own.errors.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line)).filter((line) => line.route === CHAT);
      return found.length >= 2 ? found : null;
    });
    const [good, bad] = lines;
    assert.equal(good.status, 200);
    assert.equal(good.id, answer.headers['x-request-id']);
    assert.equal(good.prompt_tokens, promptTokens([{ role: 'user', content: secret }]));
    assert.equal(good.generated_tokens, 3);
    assert.equal(bad.status, 400);
    assert.ok(!own.errors.includes(secret) && !own.errors.includes('a-secret-key'));
  }));
});
