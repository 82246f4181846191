// How `sluice serve` is started: options from --config, several models, and what systemd gives and is told.
//
//   node models.test.mjs [--server PATH] [--shared FOLDER]
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, test } from 'node:test';
import { ask, assertRefused, chatBody, endless, get, idle, option, program, run, send, Server, sleep, start, SUM,
  parseMetrics, temporaryFolder, until } from './support.mjs';

const CHAT = '/v1/chat/completions';
const shared = option('shared', path.join(path.dirname(fileURLToPath(import.meta.url)), '../../../shared'));
const stories = path.join(shared, 'models/stories260K.gguf');
const noStories = fs.existsSync(stories) ? false : `${stories} is not there`;
const python = (() => {
  try {
    execFileSync('python3', ['-c', 'import socket']);
    return false;
  } catch {
    return 'no python3 on this machine';
  }
})();
const folder = temporaryFolder();
const content = (answer) => answer.choices[0].message.content;

let files = 0;
function config(value) {
  const file = path.join(folder, `config-${files++}.json`);
  fs.writeFileSync(file, typeof value === 'string' ? value : JSON.stringify(value));
  return file;
}

async function started(options, body) {
  const server = await start(options);
  try {
    await body(server);
  } finally {
    await server.stop();
  }
}

// ---- drafts ---------------------------------------------------------------------------------------------------

describe('--speculate', () => {
  const ask = { temperature: 0, max_tokens: 40, ignore_eos: true };
  const counted = async (server) => {
    const { values } = parseMetrics((await fetch(`${server.url}/metrics`).then((answer) => answer.text())));
    const of = (name) => [...values].find(([key]) => key.startsWith(`sluice_spec_decode_num_${name}_tokens_total`))[1];
    return { drafted: of('draft'), accepted: of('accepted') };
  };
  test('the same answers with drafts, which are counted', async () => {
    let plain;
    await started({ args: ['--device', 'cpu'] }, async (server) => {
      plain = await get(server, CHAT, chatBody(SUM.question, ask));
      assert.equal('draft_n' in plain.timings, false);
      assert.deepEqual(await counted(server), { drafted: 0, accepted: 0 });
    });
    await started({ args: ['--device', 'cpu', '--draft', 'mini', '--drafts', '5', '--draft-always'] }, async (server) => {
      const drafted = await get(server, CHAT, chatBody(SUM.question, ask));
      assert.equal(content(drafted), content(plain));
      assert.ok(drafted.timings.draft_n > 20 && drafted.timings.draft_n_accepted === drafted.timings.draft_n, JSON.stringify(drafted.timings));
      assert.deepEqual(await counted(server), { drafted: drafted.timings.draft_n, accepted: drafted.timings.draft_n_accepted });
      const none = await get(server, CHAT, chatBody(SUM.question, { ...ask, 'speculative.n_max': 0 }));
      assert.equal(content(none), content(plain));
      assert.equal('draft_n' in none.timings, false);
      const single = await get(server, CHAT, chatBody(SUM.question, { ...ask, 'speculative.n_max': 1, 'speculative.p_min': 0.5 }));
      assert.equal(content(single), content(plain));
      assert.ok(single.timings.draft_n > 0 && single.timings.draft_n <= 20);
      const few = await get(server, CHAT, chatBody(SUM.question, { ...ask, 'speculative.n_max': 2, 'speculative.n_min': 3 }));
      assert.equal('draft_n' in few.timings, false);
    });
  });
});

// ---- --config ------------------------------------------------------------------------------------------------

/** Long names of all options, from the help: the last of those that mean the same. */
const names = execFileSync(program, ['serve', '--help'], { encoding: 'utf8' }).split('\n')
  .filter((line) => /^  -/.test(line)).flatMap((line) => [...line.slice(2).split(/ {2,}| [A-Z]/)[0].matchAll(/--([a-z-]+)/g)].map((found) => found[1]));

describe('--config', () => {
  const keys = path.join(folder, 'keys');
  fs.writeFileSync(keys, 'from-a-file\n');
  const template = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../models/chat_template.jinja'); // the model's own
  const values = {
    model: ['mini'], alias: ['house'], 'strict-model': true, host: '127.0.0.1', port: 0, unix: path.join(folder, 'socket'),
    'api-key': ['one-key', 'two-key'], 'api-key-file': keys, cors: 'https://a.example', 'cors-origin': 'https://b.example',
    'allowed-host': 'proxy.example', 'max-queue': 5, 'max-body': '2K', 'max-step-time': 12.5, 'drain-timeout': 7, 'drain-seconds': 8, 'drain-delay': 0, 'open-metrics': false,
    'log-format': 'json', 'metrics-prefix': 'house:', verbose: true, device: 'cpu', devices: 'cpu', split: 'auto', isa: 'plain', threads: 1, context: 512, 'ctx-size': 512,
    chunk: 64, 'ubatch-size': 64, sequences: 3, parallel: 3, 'kv-type': 'f32', 'cache-type-k': 'f32', 'cache-tokens': 2048, 'memory-limit': '1G', 'host-memory-limit': '1G', 'expert-cache': '1G', 'expert-pin': null, 'expert-stats': null, // there are no experts
    'gpu-layers': 0, 'n-gpu-layers': 0, 'n-cpu-moe': 0, 'cpu-experts': 0, 'cpu-moe': false, 'no-prefix-reuse': false, 'kv-budget': 256, 'kv-window': 32, 'kv-pool': 5,
    'cache-disk': path.join(folder, 'beginnings'), 'cache-disk-bytes': '10M', 'no-fusion': true, 'no-repack': true, 'no-graphs': true, kernel: 'linear/',
    deterministic: true, 'prompt-precision': 'bf16', 'weight-copies': 'never', 'chat-template': template, 'chat-template-file': template, 'template-option': ['enable_thinking=false'],
    'chat-template-kwargs': '{"tone": "kind"}', 'no-model-sampling': true, 'reasoning-budget': 64,
    speculate: 'draft', draft: 'mini', 'model-draft': 'mini', drafts: 3, 'draft-max': 3, 'draft-n': 3, 'draft-always': true, 'ngram-longest': 3, 'ngram-shortest': 1, embedding: false, embeddings: false,
    'cache-folder': path.join(folder, 'models'), offline: true, mirror: 'http://127.0.0.1:9', 'token-file': keys, connections: 2,
    'hf-repo': null, 'hf-file': null, 'model-url': null, 'hf-repo-draft': null, // other ways to write -m and --draft
  };
  const apart = ['config', 'no-config', 'help', 'tls-cert', 'tls-key']; // TLS: as in the tests of HTTP
  test('every option by its long name', async () => {
    for (const name of names) assert.ok(name in values || apart.includes(name), `a value for --${name} in this test`);
    await started({ args: ['--config', config(values)], key: null }, async (server) => {
      server.key = 'two-key';
      const list = (await get(server, '/v1/models')).data;
      assert.deepEqual(list.map((model) => [model.id, model.max_model_len]), [['house', 512]]);
      const props = await get(server, '/props');
      assert.equal(props.total_slots, 3);
      assertRefused(await ask(server, CHAT, { body: chatBody('x', { model: 'other' }) }), 'model', 404);
      for (const key of ['one-key', 'from-a-file']) assert.equal((await ask(server, '/v1/models', { key })).status, 200);
      assert.equal((await ask(server, '/v1/models', { key: 'no-key' })).status, 401);
      assert.equal((await ask(server, CHAT, { body: 'x'.repeat(3000) })).status, 413);
      for (const origin of ['https://a.example', 'https://b.example']) {
        const answer = await ask(server, '/health', { headers: { origin } });
        assert.equal(answer.headers['access-control-allow-origin'], origin);
      }
      assert.equal((await ask(server, '/health', { headers: { origin: 'https://a.example', host: 'proxy.example' } })).status, 200);
      assert.equal((await ask(server, '/health', { headers: { origin: 'https://a.example', host: 'other.example' } })).status, 403);
      assert.match((await ask(server, '/metrics')).text, /^house:num_requests_running/m);
      assert.ok(server.errors.split('\n').some((line) => line.startsWith('{') && JSON.parse(line)));
      const answer = await get(server, CHAT, chatBody(SUM.question, { model: 'house' }));
      assert.equal(content(answer), SUM.answer);
      const local = await new Promise((done, failed) => {
        http.get({ socketPath: values.unix, path: '/health' }, (response) => done(response.resume().statusCode)).on('error', failed);
      });
      assert.equal(local, 200);
    });
  });
  test('a wrong type, value or name: one line that names it', async () => {
    const cases = [
      [{ port: {} }, /--port in the file of --config/], [{ port: [{}] }, /--port/], [{ port: 'x' }, /--port wants a whole number/],
      [{ port: 99999 }, /--port wants a whole number from 0 to 65535/], [{ port: 1.5 }, /--port/], [{ 'log-format': 'xml' }, /--log-format/],
      [{ 'max-step-time': -1 }, /--max-step-time/], [{ 'strict-model': 'perhaps' }, /--strict-model/], [{ prt: 1 }, /no option --prt.*--port/],
      [{ config: 'x' }, /--config/], [{ help: true }, /--help/], [{ m: 'mini' }, /--m\b/], ['[]', /must be an object/], ['{"port": 1', /line 1/],
    ];
    for (const [value, words] of cases) {
      const ended = await run(['serve', '--config', config(value)]);
      const told = `${JSON.stringify(value)}: ${ended.code} ${ended.stderr}`;
      assert.ok(ended.code > 0, told);
      assert.match(ended.stderr, words, told);
      assert.equal(ended.stderr.trim().split('\n').length, 1, told);
    }
  });
  test('the command line wins, lists too; false and null are as if they were not there', () =>
    started({ args: ['--config', config({ alias: 'file', sequences: 7, 'no-prefix-reuse': true, 'strict-model': false, 'max-queue': null }), '--alias', 'line', '--sequences', '2'] },
      async (server) => {
        assert.deepEqual((await get(server, '/v1/models')).data.map((model) => model.id), ['line']);
        assert.equal((await get(server, '/props')).total_slots, 2);
        assert.equal((await ask(server, CHAT, { body: chatBody('x', { model: 'other', max_tokens: 1 }) })).status, 200);
      }));
});

// ---- several models ------------------------------------------------------------------------------------------

describe('two models', { skip: noStories }, () => {
  const both = ['-m', 'mini', '-m', stories];
  const loaded = async (server) => (await get(server, '/api/ps')).models.map((model) => model.name.replace(/:latest$/, '')).sort();
  const tell = (server, model, more = {}) => ask(server, '/v1/completions', { body: { model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0, ...more } });
  test('chosen by name, loaded when first asked for; an unknown name is the first', () => started({ args: both }, async (server) => {
    assert.deepEqual((await get(server, '/v1/models')).data.map((model) => model.id), ['mini', 'stories260K']);
    assert.deepEqual(await loaded(server), ['mini']);
    const answer = await tell(server, 'stories260K');
    assert.equal(answer.json.model, 'stories260K');
    assert.match(answer.json.choices[0].text, /^, there was a/); // llama2.c's stories begin so
    assert.deepEqual(await loaded(server), ['mini', 'stories260K']);
    const first = await get(server, CHAT, chatBody(SUM.question));
    const unknown = await get(server, CHAT, chatBody(SUM.question, { model: 'gpt-4o' }));
    assert.deepEqual([content(first), content(unknown), unknown.model], [SUM.answer, SUM.answer, 'mini']);
  }));
  test('--alias for each; --strict-model', () => started({ args: [...both, '--alias', 'sums', '--alias', 'tales', '--strict-model'] }, async (server) => {
    assert.deepEqual((await get(server, '/v1/models')).data.map((model) => model.id), ['sums', 'tales']);
    assert.equal((await tell(server, 'tales')).json.model, 'tales');
    assert.equal(content(await get(server, CHAT, chatBody(SUM.question, { model: 'sums' }))), SUM.answer);
    for (const name of ['stories260K', 'mini', 'gpt-4o']) assert.equal(assertRefused(await tell(server, name), 'model', 404).code, 'model_not_found');
  }));

  const size = ['--ctx-size', '512', '--cache-tokens', '1024', '--sequences', '2'];
  const bytes = (model) => Number(/^total +(\d+)/m.exec(execFileSync(program, ['plan', '-m', model, ...size], { encoding: 'utf8' }))[1]);
  const limited = (device = '') => [...both, ...size, '--memory-limit', device + String(bytes('mini') + Math.floor(bytes(stories) / 2))];
  for (const device of ['', 'cpu=']) test(`--memory-limit ${device}N: the one that was used longest ago makes room`, () => started({ args: [...limited(device), '--device', 'cpu'] }, async (server) => {
    assert.deepEqual(await loaded(server), ['mini']);
    for (let round = 0; round < 3; round++) {
      assert.match((await tell(server, 'stories260K')).json.choices[0].text, /^, there was a/);
      assert.deepEqual(await loaded(server), ['stories260K']);
      assert.equal(content(await get(server, CHAT, chatBody(SUM.question))), SUM.answer);
      assert.deepEqual(await loaded(server), ['mini']);
    }
  }));
  test('one that is in use stays: the other is told to come again', () => started({ args: limited() }, async (server) => {
    // So many that some are left when the other one is asked for.
    const running = await Promise.all(Array.from({ length: 24 }, () => send(server, CHAT, { body: { ...endless({ max_tokens: 400 }), stream: true } })));
    const refused = await tell(server, 'stories260K');
    assertRefused(refused, undefined, 503);
    assert.ok(Number(refused.headers['retry-after']) >= 1);
    for (const one of running) one.destroy();
    await idle(server);
    assert.equal((await tell(server, 'stories260K')).status, 200);
  }));
  test('asked at once, while they take turns in memory: told to come again, in the end all have their answer', () => started({ args: limited() }, async (server) => {
    await Promise.all(Array.from({ length: 40 }, async (_, i) => {
      await sleep(i * 25);
      const answer = await until(`answer ${i}`, async () => {
        const one = i % 2 ? await tell(server, 'stories260K') : await ask(server, CHAT, { body: chatBody(SUM.question) });
        if (one.status !== 503) return one;
        assert.ok(Number(one.headers['retry-after']) >= 1);
        await sleep(100 + i * 5);
        return null;
      });
      assert.equal(answer.status, 200, answer.text);
      if (i % 2) assert.match(answer.json.choices[0].text, /^, there was a/);
      else assert.equal(content(answer.json), SUM.answer);
    }));
    await idle(server);
    assert.equal((await loaded(server)).length, 1);
  }));
});

// ---- systemd -------------------------------------------------------------------------------------------------

// sd_listen_fds(3) and sd_notify(3): descriptor 3 is the socket, LISTEN_PID who it is for, NOTIFY_SOCKET a
// datagram socket. What comes there is printed.
const activation = `
import os, socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
told.bind(sys.argv[1])
os.dup2(listener.fileno(), 3)
command = 'LISTEN_PID=$$ LISTEN_FDS=1 NOTIFY_SOCKET="$0" exec "$@"'
child = subprocess.Popen(["sh", "-c", command, sys.argv[1]] + sys.argv[2:], pass_fds=[3])
print("port", listener.getsockname()[1], child.pid, flush=True)
listener.close()
told.settimeout(0.2)
while True:
    over = child.poll() is not None
    try:
        print(told.recv(4096).decode().replace("\\n", " "), flush=True)
    except socket.timeout:
        if over:
            break
print("exit", child.returncode, flush=True)
`;

test('a socket from systemd, and what it is told', { skip: python }, async () => {
  const notify = path.join(folder, 'notify');
  const server = new Server(spawn('python3', ['-c', activation, notify, program, 'serve'], { stdio: ['ignore', 'pipe', 'pipe'] }));
  const lines = () => server.output.split('\n');
  const [, port, pid] = (await until('the port', () => lines().find((line) => line.startsWith('port ')))).split(' ').map(Number);
  server.port = port;
  await until('READY=1', () => lines().some((line) => /\bREADY=1\b/.test(line)));
  assert.equal(content(await get(server, CHAT, chatBody(SUM.question))), SUM.answer);
  assert.ok(!lines().some((line) => /STOPPING=1/.test(line)));
  process.kill(pid, 'SIGTERM');
  await until('STOPPING=1', () => lines().some((line) => /\bSTOPPING=1\b/.test(line)));
  await server.ended;
  assert.ok(lines().includes('exit 0'), server.output);
  assert.ok(!server.errors.includes(':8080'), 'it listens on that socket only');
});
