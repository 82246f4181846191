// Twenty thousand short requests, one in ten given up: memory, descriptors and threads stay what they were.
//
//   --requests N   [20000; with --short 2000]
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { after, before, test } from 'node:test';
import { ask, chatBody, get, idle, option, program, resources, short, start, SUM } from './support.mjs';

const total = Number(option('requests', short ? 2000 : 20000));
let server;
before(async () => {
  // A small cache, so that it is soon full.
  server = await start({ args: ['--sequences', '8', '-c', '256', '--cache-tokens', '4096'] });
});
after(() => server?.stop());

async function requests(count, seed, tokens = 4) {
  const line = ['load', server.url, '--concurrency', '8', '--requests', String(count), '--endpoint', 'completions', '--token-ids', '260-2259', '--prompt-tokens', String(tokens),
    '--max-tokens', '2', '--ignore-eos', '--abort', '0.1', '--seed', String(seed), '-o', 'json'];
  const { stdout } = await promisify(execFile)(program, line, { timeout: 1200000 });
  const figures = JSON.parse(stdout);
  assert.equal(figures.failed, 0, stdout);
  assert.ok(figures.completed > count * 0.8, stdout);
  assert.ok(figures.aborted > count * 0.02, stdout);
}

/** The same odd requests each time: refused ones, other APIs, unknown routes. */
async function others() {
  for (const [target, body] of [['/v1/chat/completions', '{"messages": ['], ['/v1/chat/completions', { messages: [] }], ['/v1/messages', { max_tokens: 1, messages: [{ role: 'user', content: 'x' }] }],
    ['/v1/responses', { input: 'x', max_output_tokens: 1 }], ['/tokenize', { content: 'x' }], ['/metrics', undefined], ['/nowhere', undefined]]) await ask(server, target, { body });
}

test(`${total} requests`, { timeout: 1800000 }, async () => {
  const at = [];
  await requests(200, 9, 240); // every page of the cache is touched: it is taken at once and shows when it is used
  for (const [share, seed] of [[0.1, 1], [0.4, 2], [0.5, 3]]) {
    await requests(Math.round(total * share), seed);
    for (let i = 0; i < 20; i++) await others();
    await idle(server);
    at.push(resources(server.pid));
  }
  const [first, , last] = at;
  console.log(`# ${at.map((one) => `${one.resident} KiB, ${one.descriptors} descriptors, ${one.threads} threads`).join('; ')}`);
  assert.ok(last.descriptors <= first.descriptors + 2, `descriptors: ${first.descriptors}, then ${last.descriptors}`);
  assert.equal(last.threads, first.threads);
  // Of 18,000 requests between the two, 64 bytes each would show.
  assert.ok(last.resident - first.resident < Math.max(1024, total * 0.0625), `resident: ${first.resident}, then ${last.resident} KiB`);
  assert.equal((await get(server, '/v1/chat/completions', chatBody(SUM.question))).choices[0].message.content, SUM.answer);
});
