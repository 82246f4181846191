// Structured output: in every API, whatever its fields are called, an answer is what it is held to, at temperatures at
// which the model would write anything; what cannot be held is 400 before anything comes.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { ask, chatBody, get, joined, MODEL, resources, start, stream } from './support.mjs';

const CHAT = '/v1/chat/completions', TEXT = '/v1/completions', ANSWERS = '/v1/responses', MESSAGES = '/v1/messages';
const wild = { temperature: 2, max_tokens: 400 };
let server;
before(async () => {
  server = await start({ args: ['--sequences', '8'] });
});
after(() => server?.stop());

const schema = {
  type: 'object',
  properties: {
    title: { type: 'string', maxLength: 20 },
    year: { type: 'integer', minimum: 1900, maximum: 2030 },
    kind: { enum: ['book', 'film', null] },
    tags: { type: 'array', items: { type: 'string', pattern: '^[a-z]{2,6}$' }, minItems: 1, maxItems: 3 },
    seen: { type: 'boolean' },
  },
  required: ['title', 'year', 'kind', 'tags', 'seen'],
  additionalProperties: false,
};

/** What `schema` says, by hand. */
function assertFits(text) {
  const value = JSON.parse(text);
  assert.deepEqual(Object.keys(value), ['title', 'year', 'kind', 'tags', 'seen'], text);
  assert.ok(typeof value.title === 'string' && [...value.title].length <= 20, text);
  assert.ok(Number.isInteger(value.year) && value.year >= 1900 && value.year <= 2030, text);
  assert.ok(['book', 'film', null].includes(value.kind), text);
  assert.ok(value.tags.length >= 1 && value.tags.length <= 3 && value.tags.every((tag) => /^[a-z]{2,6}$/.test(tag)), text);
  assert.equal(typeof value.seen, 'boolean');
}
const assertObject = (text) => assert.ok(JSON.parse(text) !== null && !Array.isArray(JSON.parse(text)) && text.startsWith('{'), text);
const named = { type: 'json_schema', json_schema: { name: 'work', strict: true, schema } };
const flat = { type: 'json_schema', name: 'work', schema };
const contents = (reply) => reply.choices.map((choice) => choice.message?.content ?? choice.text);
const outputText = (reply) => reply.output.filter((item) => item.type === 'message').map((item) => item.content[0].text).join('');
const question = { messages: [{ role: 'user', content: 'Name a work of art.' }] };

describe('what is asked for is what comes', () => {
  for (const seed of [1, 2, 3, 4]) {
    test(`chat, seed ${seed}`, async () => {
      const reply = await get(server, CHAT, { ...chatBody('Name a work of art.'), ...wild, seed, n: 2, response_format: named });
      for (const choice of reply.choices) {
        assertFits(choice.message.content);
        assert.equal(choice.finish_reason, 'stop');
      }
    });
  }
  test('at temperature 0', async () => {
    assertFits(contents(await get(server, CHAT, { ...chatBody('Name a work of art.'), temperature: 0, response_format: named }))[0]);
  });
  test('without it nothing like that comes', async () => {
    const [text] = contents(await get(server, CHAT, { ...chatBody('Name a work of art.'), ...wild, seed: 1 }));
    assert.throws(() => assertFits(text));
  });
  test('a stream joins to the answer in one piece', async () => {
    const body = { ...chatBody('Name a work of art.'), ...wild, seed: 5, response_format: named };
    const whole = contents(await get(server, CHAT, body))[0];
    assert.equal(joined((await stream(server, CHAT, body)).chunks), whole);
    assertFits(whole);
  });
  test('json_object', async () => {
    for (const body of [{ response_format: { type: 'json_object' } }, { structured_outputs: { json_object: true } }]) {
      const reply = await get(server, CHAT, { ...chatBody('Name a work of art.'), ...wild, temperature: 0, ...body });
      if (reply.choices[0].finish_reason === 'stop') assertObject(contents(reply)[0]);
      else assert.ok(contents(reply)[0].startsWith('{'));
    }
  });
  test('fields of vLLM, llama-server and completions', async () => {
    const cases = [
      [{ json_schema: schema }, assertFits], [{ guided_json: schema }, assertFits], [{ guided_json: JSON.stringify(schema) }, assertFits],
      [{ structured_outputs: { json: schema } }, assertFits],
      [{ structured_outputs: { json: schema, disable_any_whitespace: true } }, (text) => { assertFits(text); assert.equal(text, JSON.stringify(JSON.parse(text))); }],
      [{ response_format: { type: 'json_object', schema } }, assertFits],
      [{ guided_regex: '(yes|no), [0-9]{3}' }, (text) => assert.match(text, /^(yes|no), [0-9]{3}$/)],
      [{ structured_outputs: { regex: '[A-F]{2,9}x' } }, (text) => assert.match(text, /^[A-F]{2,9}x$/)],
      [{ guided_choice: ['to "be"', 'or\nnot', 'c:\\'] }, (text) => assert.ok(['to "be"', 'or\nnot', 'c:\\'].includes(text), text)],
      [{ structured_outputs: { choice: ['北京', '🤗 hug'] } }, (text) => assert.ok(['北京', '🤗 hug'].includes(text), text)],
      [{ grammar: 'root ::= "<" [a-c]{1,5} ">"' }, (text) => assert.match(text, /^<[a-c]{1,5}>$/)],
      [{ guided_grammar: 'root ::= pair{1,9}\npair ::= "ab" | "cd"' }, (text) => assert.match(text, /^(ab|cd){1,9}$/)],
      [{ structured_outputs: { grammar: 'root ::= "x" | "(" root ")"' } }, (text) => assert.match(text, /^\(*x\)*$/)],
    ];
    for (const target of [CHAT, TEXT]) {
      for (const [more, check] of cases) {
        const body = { model: MODEL, ...wild, seed: 3, ...more, ...(target === CHAT ? question : { prompt: 'It is ' }) };
        const [text] = contents(await get(server, target, body));
        check(text);
      }
    }
  });
  test('bounds and constants keep all of their digits', async () => {
    const exact = { type: 'object', required: ['a', 'b'], properties: { a: { const: 0.30000000000000004 }, b: { type: 'number', const: 0.1, maximum: Number.MAX_VALUE } } };
    const text = '{"a":0.30000000000000004,"b":0.1}';
    const form = { structured_outputs: { json: { ...exact, additionalProperties: false }, disable_any_whitespace: true } };
    assert.equal(contents(await get(server, CHAT, { ...chatBody('Two numbers.'), ...wild, ...form }))[0], text);
    const tools = [{ type: 'function', function: { name: 'put', parameters: exact } }];
    const { message } = (await get(server, CHAT, { ...chatBody('Two numbers.'), ...wild, tools, tool_choice: 'required', parallel_tool_calls: false })).choices[0];
    assert.equal(message.tool_calls[0].function.arguments.replaceAll(/\s/g, ''), text);
  });
  test('Responses, Messages and Ollama', async () => {
    const answer = await get(server, ANSWERS, { input: 'Name a work of art.', temperature: 1.9, text: { format: flat } });
    assertFits(outputText(answer));
    assert.deepEqual(answer.text.format, flat);
    for (const more of [{ output_config: { format: flat } }, { output_format: flat }]) {
      const reply = await get(server, MESSAGES, { ...question, max_tokens: 400, temperature: 1, ...more });
      assertFits(reply.content[0].text);
      assert.equal(reply.stop_reason, 'end_turn');
    }
    const ollama = { model: MODEL, stream: false, options: { temperature: 2, seed: 3 } };
    assertFits((await get(server, '/api/chat', { ...ollama, ...question, format: schema })).message.content);
    assertFits((await get(server, '/api/generate', { ...ollama, prompt: 'Name a work of art.', format: schema })).response);
    const object = await get(server, '/api/chat', { ...ollama, ...question, format: 'json', options: { temperature: 0, num_predict: 300 } });
    assert.ok(object.message.content.startsWith('{'));
  });
});

test('sixteen different ones at once, cached or not, are as alone', async () => {
  const bodies = Array.from({ length: 16 }, (_, i) => ({
    ...chatBody('Name a work of art.'), ...wild, max_tokens: 60, seed: i, cache_prompt: i % 3 !== 0,
    ...(i % 4 === 3 ? {} : { guided_regex: `${'abcdefghijklmnop'[i]}([a-z]{1,7} ){${3 + i % 5}}[a-z]+` }),
  }));
  const alone = [];
  for (const body of bodies) alone.push(contents(await get(server, CHAT, body))[0]);
  const together = await Promise.all(bodies.map(async (body) => contents(await get(server, CHAT, body))[0]));
  assert.deepEqual(together, alone);
});

test('one schema is compiled once, and many do not stay', async () => {
  const before = resources(server.pid).resident;
  const body = (i) => ({ ...chatBody('Count.'), max_tokens: 2, guided_regex: `n${i}: [0-9]{3}` });
  for (let i = 0; i < 150; i++) await get(server, CHAT, body(i));
  await Promise.all(Array.from({ length: 24 }, () => get(server, CHAT, body('same'))));
  assert.ok(resources(server.pid).resident < before + 256 * 1024);
});

test('an answer that a limit cuts says so', async () => {
  const reply = await get(server, CHAT, { ...chatBody('Name a work of art.'), temperature: 0, max_tokens: 4, response_format: named });
  assert.equal(reply.choices[0].finish_reason, 'length');
  assert.ok(reply.choices[0].message.content.startsWith('{'));
});

test('a budget bounds no answer of a model that does not think', async () => {
  const [text] = contents(await get(server, CHAT, { ...chatBody('Name a work of art.'), temperature: 0, thinking_token_budget: 0, response_format: named }));
  assertFits(text);
});

describe('what cannot be held is refused', () => {
  const bad = (properties) => ({ type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object', properties } } });
  const deep = (depth) => (depth ? { type: 'array', items: deep(depth - 1) } : { type: 'integer' });
  const cases = [
    [CHAT, { response_format: bad({ a: { enum: [] } }) }, 'response_format.json_schema.schema', /\/properties\/a\/enum|properties.*a/],
    [CHAT, { response_format: bad({ a: { type: 'wish' } }) }, 'response_format.json_schema.schema', /type/],
    [CHAT, { response_format: bad({ a: { type: 'string', pattern: '(a' } }) }, 'response_format.json_schema.schema', /pattern/],
    [CHAT, { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { $ref: '#' } } } }, 'response_format.json_schema.schema', /./],
    [CHAT, { response_format: { type: 'json_schema', json_schema: { name: 'x' } } }, 'response_format.json_schema.schema', /missing/],
    [CHAT, { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: 5 } } }, 'response_format.json_schema.schema', /number/],
    [CHAT, { json_schema: [] }, 'json_schema', /array/],
    [CHAT, { grammar: 'root ::= other' }, 'grammar', /other/],
    [CHAT, { grammar: 5 }, 'grammar', /string/],
    [CHAT, { guided_regex: '(a' }, 'guided_regex', /./],
    [CHAT, { guided_regex: 'a(?=b)' }, 'guided_regex', /lookahead/],
    [CHAT, { guided_regex: '((a{1000}){1000}){1000}b' }, null, /./],
    [CHAT, { guided_choice: [1] }, 'guided_choice', /string/],
    [CHAT, { structured_outputs: { choice: [] } }, 'structured_outputs.choice', /at least one/],
    [CHAT, { structured_outputs: { json: schema, regex: 'a' } }, 'structured_outputs.regex', /not to both/],
    [CHAT, { structured_outputs: { structural_tag: '{}' } }, 'structured_outputs.structural_tag', /./],
    [CHAT, { grammar: 'root ::= "a"', guided_regex: 'a' }, 'guided_regex', /not to both/],
    [TEXT, { response_format: bad({ a: { enum: [] } }) }, 'response_format.json_schema.schema', /enum/],
    [ANSWERS, { text: { format: { type: 'json_schema', name: 'x', schema: { enum: [] } } } }, 'text.format.schema', /enum/],
    [ANSWERS, { text: { format: { type: 'grammar' } } }, 'text.format', /json_schema/],
    [CHAT, { guided_json: deep(200) }, null, /./],
  ];
  for (const [target, more, param, words] of cases) {
    test(`${target} ${JSON.stringify(more).slice(0, 90)}`, async () => {
      const prompt = target === TEXT ? { prompt: 'x' } : target === ANSWERS ? { input: 'x' } : question;
      const begin = Date.now();
      const answer = await ask(server, target, { body: { model: MODEL, max_tokens: 3, max_output_tokens: 3, stream: true, ...prompt, ...more } });
      assert.ok(Date.now() - begin < 60000, 'not exponential');
      if (param === null && answer.status === 200) return; // bounded, and answered
      assert.equal(answer.status, 400, answer.text);
      if (param) assert.equal(answer.json.error.param, param);
      assert.match(answer.json.error.message, words);
    });
  }
  test('in the shapes of the other APIs', async () => {
    const broken = { type: 'json_schema', schema: { enum: [] } };
    for (const more of [{ output_config: { format: broken } }, { output_format: broken }]) {
      const answer = await ask(server, MESSAGES, { body: { ...question, max_tokens: 5, ...more } });
      assert.equal(answer.status, 400);
      assert.equal(answer.json.error.type, 'invalid_request_error');
      assert.match(answer.json.error.message, /enum/);
    }
    const answer = await ask(server, '/api/chat', { body: { model: MODEL, ...question, format: { enum: [] } } });
    assert.equal(answer.status, 400);
    assert.match(answer.json.error, /enum/);
    assert.equal((await ask(server, '/api/chat', { body: { model: MODEL, ...question, format: 'xml' } })).status, 400);
  });
});
