// The page's view of a server: its figures, and how it lives with a server that comes and goes.
//
//   node tests/page/server_view.test.mjs
import assert from 'node:assert/strict';
import test from 'node:test';

import { become, document, listening, load, walk } from './page_dom.mjs';

const figures = load(['server_figures.js'], 'server_figures');

// ---- figures ----

const histogram = (name, buckets, sum) => {
  const count = buckets[buckets.length - 1][1];
  return `${buckets.map(([bound, upto]) => `${name}_bucket{model_name="m",le="${bound}"} ${upto}`).join('\n')}\n${name}_sum{model_name="m"} ${sum}\n${name}_count{model_name="m"} ${count}\n`;
};

test('the text of /metrics, with any prefix and awkward labels', () => {
  for (const prefix of ['sluice_', 'vllm:', '']) {
    const metrics = figures.metrics(`# HELP x y\n# TYPE x gauge\n${prefix}num_requests_running{model_name="a \\"b\\" \\\\ {c},d"} 3\n` +
      `${prefix}http_requests_total{handler="/v1/{id}",method="GET",status="200"} 4\n${prefix}http_requests_total{handler="/x",method="GET",status="404"} 1e3\nprocess_open_fds 7\nbroken line here too\n`);
    assert.equal(metrics.total('num_requests_running'), 3);
    assert.equal(metrics.rows('num_requests_running')[0].labels.get('model_name'), 'a "b" \\ {c},d');
    assert.deepEqual(metrics.rows('http_requests_total').map((row) => [row.labels.get('handler'), row.value]), [['/v1/{id}', 4], ['/x', 1000]]);
    assert.equal(metrics.total('process_open_fds'), 7);
    assert.equal(metrics.total('nothing'), 0);
  }
});

test("quantiles are those of Prometheus' histogram_quantile", () => {
  // By its definition: a rank of q * count, linear between the bounds of its bucket, from 0 in the first one.
  const of = (buckets) => figures.metrics(`x_num_requests_running 0\n${histogram('x_t', buckets, 1)}`).histogram('t');
  const h = of([[1, 2], [2, 6], [4, 10], ['+Inf', 10]]);
  assert.deepEqual(figures.quantile(h, 0.5), { value: 1.75, above: false }); // 5th of 10: 3 of 4 into (1, 2]
  assert.deepEqual(figures.quantile(h, 0.1), { value: 0.5, above: false }); // 1st: half of the first two
  assert.deepEqual(figures.quantile(h, 0.9), { value: 3.5, above: false }); // 9th: 3 of 4 into (2, 4]
  assert.deepEqual(figures.quantile(h, 1), { value: 4, above: false });
  assert.deepEqual(figures.quantile(of([[1, 2], ['+Inf', 10]]), 0.9), { value: 1, above: true });
  assert.equal(figures.quantile(of([[1, 0], ['+Inf', 0]]), 0.5), null);
  assert.equal(figures.quantile(figures.metrics('').histogram('t'), 0.5), null);
});

test('numbers for people', () => {
  assert.deepEqual([0, 5, 12.34, 1.234, 1234567, NaN].map(figures.number), ['0', '5', '12.3', '1.23', '1,234,567', '-']);
  assert.deepEqual([0, 1023, 1024, 14761984, 201326592, 2 ** 40].map(figures.bytes), ['0 B', '1023 B', '1.0 KiB', '14.1 MiB', '192 MiB', '1.0 TiB']);
  assert.deepEqual([0.0012345, 0.5, 1.5, 300].map(figures.seconds), ['1.23 ms', '500 ms', '1.50 s', '5 min']);
  assert.deepEqual([0, 0.0001, 0.05, 0.5, 1].map(figures.percent), ['0%', '< 0.1%', '5.0%', '50%', '100%']);
  assert.deepEqual([0, 1, 3, 51, 700].map(figures.ceiling), [10, 1, 5, 100, 1000]);
});

test('the parts of a bar fill it, and each can be seen', () => {
  const parts = figures.widths([1, 1000000, 0, 500000], 1000, 4);
  assert.ok(Math.abs(parts.reduce((sum, part) => sum + part, 0) - 1000) < 1e-9);
  assert.equal(parts[0], 4);
  assert.equal(parts[2], 0);
  assert.deepEqual(figures.widths([0, 0], 1000, 4), [0, 0]);
});

// ---- the view ----

const PLAN = {
  device: 'avx2, 2 threads', model: 'm', total_bytes: 3000, mapped_bytes: 77,
  memory: [{ name: 'weights', bytes: 1000, detail: '3 tensors' }, { name: 'cache full', bytes: 1990, detail: '5 pages' }, { name: 'step block', bytes: 10 }, { name: 'nothing', bytes: 0 }],
};
const PROPS = { model_alias: 'm', model_path: '/models/m.gguf', device: 'avx2, 2 threads', total_slots: 2, build_info: '0.1.0', default_generation_settings: { n_ctx: 4096 } };
const MODELS = { data: [{ id: 'm', meta: { n_ctx_train: 8192, n_params: 123456, size: 2048, n_vocab: 99 } }, { id: 'other' }] };

// A server, a clock and timers that the test moves.
function world() {
  const own = {
    now: 100, timers: new Map(), asked: [], tokens: 0, answer: () => null, busy: 1,
    async get(path) {
      own.asked.push(path);
      const other = own.answer(path);
      if (other) return other;
      return response(200, {
        '/plan': PLAN, '/props': PROPS, '/v1/models': MODELS,
        '/slots': [{ id: 0, n_ctx: 4096, is_processing: own.busy > 0, model: 'm', n_prompt_tokens: 12, request: 'r<b>' }, { id: 1, n_ctx: 4096, is_processing: false }],
        '/metrics': `sluice_num_requests_running{model_name="m"} ${own.busy}\nsluice_num_requests_waiting{model_name="m"} 5\nsluice_kv_cache_usage_perc{model_name="m"} 0.25\n` +
          'sluice_kv_cache_tokens{model_name="m"} 4000\nsluice_kv_cache_kept_tokens{model_name="m"} 500\nsluice_prefix_cache_hits_total 30\nsluice_prefix_cache_queries_total 120\n' +
          `sluice_iteration_tokens_total{model_name="m"} ${own.tokens * 3}\nprocess_resident_memory_bytes 1048576\n` +
          `sluice_http_requests_total{handler="/metrics",method="GET",status="200"} 9\nsluice_http_requests_total{handler="/v1/chat/completions",method="POST",status="200"} 4\n` +
          histogram('sluice_time_to_first_token_seconds', [[0.1, 2], [0.2, 4], ['+Inf', 4]], 0.4) + histogram('sluice_inter_token_latency_seconds', [[0.01, own.tokens], ['+Inf', own.tokens]], 1),
      }[path]);
    },
    // Lets answers come, then runs the timers that are due after `seconds`.
    async pass(seconds) {
      for (let i = 0; i < 30; i++) await null;
      own.now += seconds;
      for (const [id, { at, call }] of [...own.timers]) {
        if (at <= own.now + 1e-9 && own.timers.delete(id)) call();
      }
      for (let i = 0; i < 30; i++) await null;
    },
  };
  let next = 0;
  const scope = {
    performance: { now: () => own.now * 1000 },
    setTimeout: (call, wait) => (own.timers.set(++next, { at: own.now + wait / 1000, call }), next),
    clearTimeout: (id) => own.timers.delete(id),
  };
  own.view = load(['server_figures.js', 'server_view.js'], 'server_view', scope);
  own.element = document.createElement('div');
  return own;
}
const response = (status, body) => ({
  ok: status < 300, status, statusText: '', json: async () => (typeof body === 'string' ? JSON.parse(body) : body), text: async () => body,
});
const nodes = (own, kind) => [...walk(own.element)].filter((node) => node.nodeType === 1 && (node.getAttribute('class') ?? '').split(' ').includes(kind));
const state = (own) => nodes(own, 'sv-state')[0].textContent;
const row = (own, head) => {
  const found = [...walk(own.element)].find((node) => node.nodeName === 'TR' && node.firstChild?.textContent === head);
  return found?.childNodes.map((cell) => cell.textContent);
};
const fact = (own, name) => [...walk(own.element)].find((node) => node.nodeName === 'DT' && node.textContent === name)?.nextSibling.textContent;

test('what a server says is shown', async () => {
  const own = world();
  own.view.mount(own.element, own);
  await own.pass(0);
  own.tokens = 40;
  await own.pass(2);
  assert.equal(state(own), 'The server is running.');
  assert.deepEqual(['Running', 'Waiting', 'Tokens/s', 'Cache in use', 'Resident memory'].map((name) => fact(own, name)), ['1', '5', '20', '25%', '1.0 MiB']);
  assert.deepEqual(row(own, 'Of running sequences'), ['Of running sequences', '1,000', '25%']);
  assert.deepEqual(row(own, 'Kept for reuse'), ['Kept for reuse', '500', '13%']);
  assert.deepEqual(row(own, 'Free'), ['Free', '2,500', '63%']);
  assert.deepEqual(row(own, 'Tokens of prompts taken from it so far'), ['Tokens of prompts taken from it so far', '30', '25%']);
  assert.deepEqual(row(own, 'To the first token'), ['To the first token', '4', '100 ms', '100 ms', '180 ms', '198 ms']);
  assert.deepEqual(row(own, '/v1/chat/completions'), ['/v1/chat/completions', 'POST', '200', '4']);
  assert.equal(row(own, '/metrics'), undefined);
  assert.deepEqual(row(own, '0'), ['0', 'm', '12', 'r<b>']);
  assert.equal(nodes(own, 'sv-note')[0].textContent, 'One choice of an answer runs or waits. 2 can run at once.');
  assert.equal(nodes(own, 'sv-note')[1].textContent, 'Pages and figures like these: 9.');
  assert.equal(fact(own, 'File'), '/models/m.gguf');
  assert.equal(fact(own, 'Parameters'), '123,456');
  assert.equal(fact(own, 'Served too'), 'other');
  own.view.unmount();
});

test('the plan is a bar with its bytes in a table beside it, the largest first', async () => {
  const own = world();
  own.view.mount(own.element, own);
  await own.pass(0);
  assert.deepEqual(row(own, 'cache full'), ['cache full', '1,990', '1.9 KiB', '66%', '5 pages']);
  assert.deepEqual(row(own, 'step block'), ['step block', '10', '10 B', '0.3%', '']);
  assert.deepEqual(row(own, 'total'), ['total', '3,000', '2.9 KiB', '', 'avx2, 2 threads']);
  assert.equal(row(own, 'nothing'), undefined);
  const bar = nodes(own, 'sv-bar')[1];
  assert.equal(bar.getAttribute('role'), 'img');
  assert.equal(bar.getAttribute('aria-label'), 'Memory: cache full 1.9 KiB, weights 1000 B, step block 10 B');
  assert.equal(bar.childNodes.length, 3);
  const ends = bar.childNodes.map((part) => Number(part.getAttribute('x')) + Number(part.getAttribute('width')));
  assert.ok(ends[2] > 998 && ends[2] <= 1000.01, String(ends));
  assert.match(nodes(own, 'sv-note')[2].textContent, /^77 bytes/);
  own.view.unmount();
});

test('it asks once a second, for what changes alone, and not while nobody looks', async () => {
  const own = world();
  own.view.mount(own.element, own);
  await own.pass(0);
  assert.deepEqual(own.asked, ['/metrics', '/slots', '/props', '/v1/models', '/plan']);
  own.asked.length = 0;
  await own.pass(0.9);
  assert.deepEqual(own.asked, []);
  await own.pass(0.1);
  assert.deepEqual(own.asked, ['/metrics', '/slots']);
  become('hidden');
  await own.pass(60);
  await own.pass(60);
  assert.deepEqual(own.asked, ['/metrics', '/slots']);
  become('visible');
  await own.pass(0);
  assert.equal(own.asked.length, 4);
  own.view.unmount();
  await own.pass(10);
  assert.equal(own.asked.length, 4);
  assert.equal(own.timers.size, 0);
  assert.equal(listening(), 0);
  assert.equal(own.element.childNodes.length, 0);
});

test('it asks nothing when it is made while nobody looks', async () => {
  const own = world();
  become('hidden');
  own.view.mount(own.element, own);
  await own.pass(5);
  assert.deepEqual(own.asked, []);
  become('visible');
  await own.pass(0);
  assert.equal(state(own), 'The server is running.');
  own.view.unmount();
});

test('an answer that comes after unmount changes nothing', async () => {
  const own = world();
  own.view.mount(own.element, own);
  own.view.unmount();
  await own.pass(5);
  assert.equal(own.element.childNodes.length, 0);
  assert.equal(own.timers.size, 0);
});

test('a server that goes away: said once, what was known stays, and it is found again', async () => {
  const own = world();
  own.view.mount(own.element, own);
  await own.pass(0);
  const before = nodes(own, 'sv-state')[0].firstChild;
  own.answer = () => { throw new TypeError('Failed to fetch'); };
  await own.pass(1);
  assert.match(state(own), /does not answer/);
  const said = nodes(own, 'sv-state')[0].firstChild;
  assert.notEqual(said, before);
  assert.equal(nodes(own, 'sv-stale').length, 1);
  assert.equal(fact(own, 'Waiting'), '5');
  for (let i = 0; i < 5; i++) await own.pass(1);
  assert.equal(nodes(own, 'sv-state')[0].firstChild, said, 'the same is not announced again');
  own.answer = () => null;
  own.asked.length = 0;
  await own.pass(1);
  assert.equal(state(own), 'The server is running.');
  assert.equal(nodes(own, 'sv-stale').length, 0);
  assert.ok(own.asked.includes('/plan'), 'another server may be there now');
  own.view.unmount();
});

test('a server that loads, or wants a key, is told in its own words', async () => {
  const own = world();
  own.answer = (path) => (path === '/props' ? response(503, { error: { message: 'the model is being loaded; try again soon' } }) : null);
  own.view.mount(own.element, own);
  await own.pass(0);
  assert.equal(state(own), 'The server answers: the model is being loaded; try again soon');
  assert.equal(fact(own, 'Waiting'), '5', 'figures come all the same');
  own.answer = () => response(502, 'no JSON');
  await own.pass(1);
  assert.equal(state(own), 'The server answers: 502');
  own.answer = () => null;
  await own.pass(1);
  assert.equal(state(own), 'The server is running.');
  own.view.unmount();
});

test('the line of speed: means of what was made, gaps where nobody looked, nothing negative after a restart', async () => {
  const own = world();
  own.view.mount(own.element, own);
  await own.pass(0);
  for (let i = 0; i < 20; i++) {
    own.tokens += 30;
    await own.pass(1);
  }
  const line = () => nodes(own, 'sv-line-0')[0].getAttribute('d');
  assert.equal(line().match(/M/g).length, 1);
  assert.equal(line().match(/L/g).length, 19);
  assert.equal(fact(own, 'Tokens/s'), '30');
  assert.match(nodes(own, 'sv-chart')[0].getAttribute('aria-label'), /now 30, at most 30/);
  nodes(own, 'sv-more')[0].open = true;
  become('hidden');
  await own.pass(30);
  become('visible');
  await own.pass(0);
  own.tokens = 0; // it was started again
  await own.pass(1);
  own.tokens = 5;
  await own.pass(1);
  assert.equal(line().match(/M/g).length, 2);
  assert.ok(!line().includes('-1'), line());
  assert.equal(fact(own, 'Tokens/s'), '5');
  assert.deepEqual(row(own, '0 to 10'), ['0 to 10', '5', '15']);
  await own.pass(400);
  assert.equal(line().match(/M/g), null, 'what is older than five minutes is gone');
  own.view.unmount();
});
