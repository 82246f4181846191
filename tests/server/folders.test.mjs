// What a model's own files say, and how its requests are answered then.
//
//   node folders.test.mjs [--server PATH]
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, test } from 'node:test';
import { ask, events, get, joined, run, send, start, temporaryFolder } from './support.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const fixture = path.join(here, '../logits/fixtures/qwen3'); // of 256 tokens, with random weights and no tokenizer
const folder = temporaryFolder();
const messages = [{ role: 'user', content: 'abc' }];

/** A tokenizer.json whose token N is the byte N, in the alphabet of GPT-2's encoder.json. */
function bytesAsTokens() {
  const vocab = {};
  let others = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[String.fromCodePoint(printable ? byte : others++)] = byte;
  }
  return JSON.stringify({
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, use_regex: false }, decoder: { type: 'ByteLevel' },
    model: { type: 'BPE', merges: [], vocab },
  });
}

/** A Hugging Face folder; `generation` becomes its generation_config.json. */
function modelFolder(name, generation) {
  const made = path.join(folder, name);
  fs.mkdirSync(made);
  for (const file of ['config.json', 'model.safetensors']) fs.copyFileSync(path.join(fixture, file), path.join(made, file));
  fs.writeFileSync(path.join(made, 'tokenizer.json'), bytesAsTokens());
  if (generation) fs.writeFileSync(path.join(made, 'generation_config.json'), JSON.stringify(generation));
  return made;
}

/** One entry of GGUF metadata: types 6 (f32), 5 (i32) and 8 (text) of its specification. */
function ggufEntry(key, value, type) {
  const number = (size, write) => {
    const bytes = Buffer.alloc(size);
    bytes[write](value);
    return bytes;
  };
  const text = (string) => {
    const bytes = Buffer.alloc(8 + Buffer.byteLength(string));
    bytes.writeBigUInt64LE(BigInt(Buffer.byteLength(string)));
    bytes.write(string, 8);
    return bytes;
  };
  const kind = Buffer.alloc(4);
  kind.writeUInt32LE(type);
  return Buffer.concat([text(key), kind, type === 8 ? text(value) : type === 6 ? number(4, 'writeFloatLE') : number(4, 'writeInt32LE')]);
}

/** A copy of a GGUF file with entries in front of its own. Offsets of tensors count from where the header ends, rounded up to 32: what
 * is put in is made a multiple of that. */
function withEntries(file, name, entries) {
  const from = fs.readFileSync(file);
  const first = Buffer.concat(entries.map((entry) => ggufEntry(...entry)));
  const padding = ggufEntry('test.padding', '', 8).length;
  const filler = ggufEntry('test.padding', 'x'.repeat((64 - ((first.length + padding) % 32)) % 32), 8);
  const head = Buffer.from(from.subarray(0, 24)); // magic, version, tensors, entries
  head.writeBigUInt64LE(head.readBigUInt64LE(16) + BigInt(entries.length + 1), 16);
  const made = path.join(folder, name);
  fs.writeFileSync(made, Buffer.concat([head, first, filler, from.subarray(24)]));
  return made;
}

async function started(args, body) {
  const server = await start({ args });
  try {
    await body(server);
  } finally {
    await server.stop();
  }
}

// ---- weights that are no numbers ------------------------------------------------------------------------------

describe('a weight that is no number', () => {
  // In the embedding of one token, so that only texts with that token meet it.
  const odd = 'z'.charCodeAt(0);
  const made = modelFolder('odd');
  const file = path.join(made, 'model.safetensors');
  const bytes = fs.readFileSync(file);
  const header = Number(bytes.readBigUInt64LE(0)); // its length; then the header, and the tensors
  const { dtype, shape, data_offsets: [first] } = JSON.parse(bytes.subarray(8, 8 + header))['model.embed_tokens.weight'];
  assert.equal(dtype, 'F32');
  bytes.writeFloatLE(NaN, 8 + header + first + odd * shape[1] * 4);
  fs.writeFileSync(file, bytes);
  const plain = modelFolder('even');
  const never = { [odd]: -100 };
  const body = (prompt, more = {}) => ({ prompt, max_tokens: 40, temperature: 1, seed: 7, ignore_eos: true, logit_bias: never, ...more });
  const message = (position) => `position ${position}: logits are not finite`;

  test('sluice run: the position, and exit code 1', async () => {
    const line = (prompt) => run(['run', made, '--raw', prompt, '-n', '8', '--temp', '0', '-l', `${odd}-inf`, '--ignore-eos']);
    const failed = await line('abczdef');
    assert.deepEqual([failed.code, failed.stdout.trim(), failed.stderr], [1, '', `sluice: ${message(6)}\n`]);
    const well = await line('abcdef');
    assert.deepEqual([well.code, well.stderr], [0, '']);
    assert.ok(well.stdout.length > 4, well.stdout);
  });
  test('sluice serve: that request alone', async () => {
    const prompts = Array.from({ length: 6 }, (_, i) => `abc${'def'.repeat(i)}`);
    const texts = (server) => Promise.all(prompts.map(async (prompt) => (await get(server, '/v1/completions', body(prompt))).choices[0].text));
    let usual;
    await started(['-m', plain], async (server) => (usual = await texts(server)));
    await started(['-m', made, '--sequences', '8'], async (server) => {
      for (let round = 0; round < 3; round++) {
        const wrong = ['/v1/completions', '/v1/completions', '/api/generate'].map((target, i) =>
          ask(server, target, { body: i < 2 ? body(`abcz${'y'.repeat(i)}`) : { prompt: 'abcz', raw: true, stream: false } }));
        const streamed = (async () => {
          const response = await send(server, '/v1/completions', { body: { ...body('abc', { logit_bias: { [odd]: 100 } }), stream: true } });
          const all = [];
          try {
            for await (const event of events(response)) all.push(event.data);
          } catch (error) {
            assert.equal(error.code, 'ECONNRESET'); // it is broken off behind the error
          }
          return { status: response.statusCode, all };
        })();
        assert.deepEqual(await texts(server), usual);
        const answers = await Promise.all(wrong);
        assert.deepEqual(answers.map((answer) => answer.status), [500, 500, 500], JSON.stringify(answers.map((answer) => answer.text)));
        assert.deepEqual(answers.slice(0, 2).map((answer) => answer.json.error.message), [message(3), message(4)]);
        assert.equal(answers[2].json.error, message(3));
        const { status, all } = await streamed;
        assert.equal(status, 200);
        assert.ok(!all.includes('[DONE]'), all.join('\n'));
        const chunks = all.map((data) => JSON.parse(data));
        assert.equal(joined(chunks.slice(0, -1)), 'z');
        assert.equal(chunks.at(-1).error.message, message(3));
      }
      assert.equal((await ask(server, '/health')).status, 200);
    });
  });
});

// ---- chat templates ------------------------------------------------------------------------------------------

test('a model without a chat template: the log says which format is used', async () => {
  const none = modelFolder('none');
  const line = 'sluice: none: the model has no chat template: ChatML is used (--chat-template NAME takes another)';
  const lines = (server) => server.errors.split('\n').filter((one) => /no chat template/.test(one));
  const prompt = async (server) => (await get(server, '/apply-template', { messages })).prompt;
  await started(['-m', none], async (server) => {
    assert.deepEqual(lines(server), [line]);
    assert.match(await prompt(server), /^<\|im_start\|>user\nabc<\|im_end\|>/);
  });
  await started(['-m', none, '--chat-template', 'gemma'], async (server) => {
    assert.deepEqual(lines(server), []);
    assert.match(await prompt(server), /<start_of_turn>user\nabc<end_of_turn>/);
  });
  await started([], async (server) => assert.deepEqual(lines(server), []));
});

test('tools without description and parameters, and of a model that writes no calls', async () => {
  const file = path.join(folder, 'reads-all.jinja');
  const own = fs.readFileSync(new URL('../../models/chat_template.jinja', import.meta.url), 'utf8');
  fs.writeFileSync(file, `{% for tool in tools or [] %}{{ tool.function.description + tool.function.parameters.type }}{% endfor %}${own}`);
  const asked = { messages, max_tokens: 3, tools: [{ type: 'function', function: { name: 'f', description: null } }, { type: 'function', function: { name: 'g' } }] };
  await started(['--chat-template', file], async (server) => {
    for (const choice of ['auto', 'required', 'none']) await get(server, '/v1/chat/completions', { ...asked, tool_choice: choice });
    await get(server, '/v1/responses', { input: 'abc', max_output_tokens: 3, tools: [{ type: 'function', name: 'f' }] });
  });
  await started(['--chat-template', 'gemma'], async (server) => {
    assert.equal((await ask(server, '/v1/chat/completions', { body: { ...asked } })).status, 400);
    // Drawn by chance, the first token may be the one that ends the text.
    const none = await get(server, '/v1/chat/completions', { ...asked, tool_choice: 'none', ignore_eos: true });
    assert.equal(none.usage.completion_tokens, asked.max_tokens);
  });
});

// ---- sampling ------------------------------------------------------------------------------------------------

const APIS = {
  chat: async (server, model, fields) => (await get(server, '/v1/chat/completions', { model, messages, max_tokens: 12, ignore_eos: true, ...fields })).choices[0].message.content,
  completions: async (server, model, fields) => (await get(server, '/v1/completions', { model, prompt: 'abc', max_tokens: 12, ignore_eos: true, ...fields })).choices[0].text,
  responses: async (server, model, fields) => (await get(server, '/v1/responses', { model, input: 'abc', max_output_tokens: 12, ignore_eos: true, ...fields })).output.at(-1).content[0].text,
  messages: async (server, model, fields) => (await get(server, '/v1/messages', { model, messages, max_tokens: 12, ignore_eos: true, ...fields })).content[0].text,
  'Ollama chat': async (server, model, fields) => (await get(server, '/api/chat', { model, messages, stream: false, options: { num_predict: 12, ...fields } })).message.content,
  'Ollama generate': async (server, model, fields) => (await get(server, '/api/generate', { model, prompt: 'abc', raw: true, stream: false, options: { num_predict: 12, ...fields } })).response,
};
/** How many texts there are among the answers with six seeds. */
async function texts(api, server, model, fields = {}) {
  const all = new Set();
  for (let seed = 1; seed <= 6; seed++) all.add(await APIS[api](server, model, { seed, ...fields }));
  return all.size;
}
const settings = async (server) => (await get(server, '/props')).default_generation_settings.params;
const said = (server) => server.errors.split('\n').filter((line) => /own sampling|order of samplers/.test(line));

describe('sampling as generation_config.json asks for it', () => {
  const greedy = modelFolder('greedy', { do_sample: true, temperature: 0, top_k: 1 });
  const plain = modelFolder('plain');
  const own = modelFolder('own', { do_sample: true, temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.01, repetition_penalty: 1.05 });
  const never = modelFolder('never', { do_sample: false, temperature: 0.7 });
  test('in every API where a request does not say otherwise; each model has its own', () => started(['-m', greedy, '-m', plain], async (server) => {
    for (const api of Object.keys(APIS)) {
      assert.equal(await texts(api, server, 'greedy'), 1, `${api}: greedy as the file says`);
      assert.ok((await texts(api, server, 'plain')) > 1, `${api}: a file that says nothing`);
      assert.ok((await texts(api, server, 'greedy', { temperature: 1, top_k: 0 })) > 1, `${api}: fields win`);
      assert.equal(await texts(api, server, 'greedy', { temperature: 1 }), 1, `${api}: what is not given is the file's`);
    }
    const lines = said(server);
    assert.equal(lines.length, 1, server.errors);
    assert.match(lines[0], /^sluice: greedy: the model's own sampling, .*: temperature 0, top_k 1 \(.*greedy\/generation_config\.json\)$/);
  }));
  test('/props shows them', () => started(['-m', own], async (server) => {
    const now = await settings(server);
    const wanted = { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.01, repeat_penalty: 1.05, typical_p: 1, repeat_last_n: 64, xtc_probability: 0, mirostat: 0 };
    assert.deepEqual(Object.fromEntries(Object.keys(wanted).map((name) => [name, now[name]])), wanted);
    assert.equal(now.samplers.join(), 'penalties,dry,top_n_sigma,top_k,typ_p,top_p,min_p,xtc,temperature');
    const response = await get(server, '/v1/responses', { input: 'abc', max_output_tokens: 1 });
    assert.deepEqual([response.temperature, response.top_p], [0.6, 0.95]);
  }));
  test('do_sample false: the likeliest token, and nothing else of the file', () => started(['-m', never], async (server) => {
    assert.equal((await settings(server)).temperature, 0);
    assert.equal(await texts('completions', server, 'never'), 1);
  }));
  test('--no-model-sampling', () => started(['-m', greedy, '--no-model-sampling'], async (server) => {
    assert.deepEqual([(await settings(server)).temperature, (await settings(server)).top_k], [1, 0]);
    assert.ok((await texts('completions', server, 'greedy')) > 1);
    assert.deepEqual(said(server), []);
  }));
});

describe('sampling as a GGUF file asks for it', () => {
  const mini = path.join(here, '../../models/mini.gguf');
  const key = (name) => `general.sampling.${name}`;
  test('all that llama.cpp reads there', async () => {
    const file = withEntries(mini, 'asks.gguf', [
      [key('temp'), 0.25, 6], [key('top_k'), 7, 5], [key('penalty_last_n'), -1, 5], [key('xtc_probability'), 0.5, 6], [key('xtc_threshold'), 0.2, 6],
      [key('mirostat'), 2, 5], [key('mirostat_tau'), 3.5, 6], [key('mirostat_eta'), 0.3, 6], [key('sequence'), 'temperature;top_k;xtc', 8],
    ]);
    await started(['-m', file], async (server) => {
      const now = await settings(server);
      assert.deepEqual(now.samplers, ['temperature', 'top_k', 'xtc']);
      const wanted = { temperature: 0.25, top_k: 7, repeat_last_n: -1, xtc_probability: 0.5, xtc_threshold: 0.2, mirostat: 2, mirostat_tau: 3.5, mirostat_eta: 0.3 };
      assert.deepEqual(Object.fromEntries(Object.keys(wanted).map((name) => [name, now[name]])), wanted);
      assert.match(said(server)[0], /mirostat_eta 0\.3, samplers temperature;top_k;xtc \(.*asks\.gguf\)$/);
    });
  });
  test('an order that nobody knows is said, and the usual one used', async () => {
    const file = withEntries(mini, 'wrong.gguf', [[key('sequence'), 'top_k;roulette', 8]]);
    await started(['-m', file], async (server) => {
      assert.equal((await settings(server)).samplers.length, 9);
      assert.match(said(server).join('\n'), /^sluice: wrong: the order of samplers in .*wrong\.gguf is not followed: samplers: "roulette" is none of/);
    });
  });
});
