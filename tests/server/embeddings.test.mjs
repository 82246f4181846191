// Embeddings and scores over HTTP: the shapes of OpenAI, Ollama, llama-server and rerank, of the built-in model.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ask, assertRefused, chatBody, get, MODEL, start, SUM, tokenize } from './support.mjs';

let server;
before(async () => {
  server = await start({ args: ['--embeddings'] });
});
after(() => server?.stop());

const length = (vector) => Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0));
const embed = async (input, more = {}) => (await get(server, '/v1/embeddings', { model: MODEL, input, ...more })).data;

test('OpenAI: one vector for each text, of the length 1, in order', async () => {
  const answer = await get(server, '/v1/embeddings', { model: MODEL, input: ['a cat', 'a dog', 'a cat'] });
  assert.equal(answer.object, 'list');
  assert.deepEqual(answer.data.map((d) => [d.object, d.index]), [['embedding', 0], ['embedding', 1], ['embedding', 2]]);
  for (const { embedding } of answer.data) assert.ok(Math.abs(length(embedding) - 1) < 1e-5);
  assert.deepEqual(answer.data[0].embedding, answer.data[2].embedding);
  assert.notDeepEqual(answer.data[0].embedding, answer.data[1].embedding);
  assert.deepEqual((await embed('a cat'))[0].embedding, answer.data[0].embedding); // whatever stands beside it
  assert.equal(answer.usage.prompt_tokens, answer.usage.total_tokens);
});

test('OpenAI: base64 holds the same floats, tokens are taken as they are, dimensions cut and stretch', async () => {
  const [{ embedding }] = await embed('a bridge');
  const [{ embedding: encoded }] = await embed('a bridge', { encoding_format: 'base64' });
  const bytes = Buffer.from(encoded, 'base64');
  assert.equal(bytes.length, 4 * embedding.length);
  embedding.forEach((x, i) => assert.equal(Math.fround(x), bytes.readFloatLE(4 * i)));
  const { tokens } = await get(server, '/tokenize', { content: 'a bridge', add_special: true });
  assert.deepEqual((await embed([tokens]))[0].embedding, embedding);
  const [{ embedding: cut }] = await embed('a bridge', { dimensions: 8 });
  const whole = length(embedding.slice(0, 8));
  assert.equal(cut.length, 8);
  cut.forEach((x, i) => assert.ok(Math.abs(x - embedding[i] / whole) < 1e-5));
});

test("Ollama's, its older one's and llama-server's shapes hold the same vectors", async () => {
  const [{ embedding }] = await embed('a bridge');
  const ollama = await get(server, '/api/embed', { model: MODEL, input: ['a bridge', 'a cat'] });
  assert.deepEqual(ollama.embeddings[0], embedding);
  assert.equal(ollama.embeddings.length, 2);
  assert.ok(ollama.prompt_eval_count > 2);
  assert.deepEqual((await get(server, '/api/embeddings', { model: MODEL, prompt: 'a bridge' })).embedding, embedding);
  assert.deepEqual(await get(server, '/embedding', { content: 'a bridge' }), [{ index: 0, embedding: [embedding] }]);
});

test('rerank: the best first, as many as asked for, with their texts where asked for', async () => {
  const documents = ['a cat', { text: 'the bridge over the river' }, 'a dog', 'a cat'];
  const answer = await get(server, '/v1/rerank', { model: MODEL, query: 'cat', documents });
  assert.deepEqual(answer.results.map((r) => r.index).sort(), [0, 1, 2, 3]);
  answer.results.forEach((r, i) => {
    assert.ok(r.relevance_score > 0 && r.relevance_score < 1);
    assert.ok(i === 0 || r.relevance_score <= answer.results[i - 1].relevance_score);
  });
  const score = (index) => answer.results.find((r) => r.index === index).relevance_score;
  assert.equal(score(0), score(3));
  const best = await get(server, '/rerank', { query: 'cat', documents, top_n: 1, return_documents: true });
  assert.equal(best.results.length, 1);
  assert.equal(best.results[0].document.text, [documents[0], documents[1].text, 'a dog'][best.results[0].index]);
});

test('what is wrong is refused by its name', async () => {
  const refuse = async (target, body, param) => assertRefused(await ask(server, target, { body }), param, 400);
  await refuse('/v1/embeddings', { input: [] }, 'input');
  await refuse('/v1/embeddings', {}, 'input');
  await refuse('/v1/embeddings', { input: 'x', encoding_format: 'hex' }, 'encoding_format');
  await refuse('/v1/rerank', { documents: ['x'] }, 'query');
  await refuse('/v1/rerank', { query: 'x', documents: [] }, 'documents');
  assert.equal((await ask(server, '/v1/chat/completions', { body: chatBody(SUM.question) })).status, 400);
});

test('a hundred requests at once', async () => {
  const [{ embedding }] = await embed('a bridge');
  const all = await Promise.all(Array.from({ length: 100 }, (_, i) => embed([`text ${i}`, 'a bridge'])));
  for (const data of all) assert.deepEqual(data[1].embedding, embedding);
});
