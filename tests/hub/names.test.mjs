// Models by name, as somebody types them: pull, list, rm and -m NAME, against hosts on this machine.
//
//   node names.test.mjs [--server PATH] [--home LIBRARY]
//
// --home: a library to preload that gives the program a home of its own (home.c).
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, beforeEach, describe, test } from 'node:test';
import { chatBody, get, option, program, run, start, SUM, temporaryFolder, until } from '../server/support.mjs';
import { ggufHeader, Hosts, sha256, shardSafetensors, splitGguf, widenFeedForward } from './hosts.mjs';

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '../..');
const mini = fs.readFileSync(path.join(root, 'models/mini.gguf'));
const moe = fs.readFileSync(path.join(root, 'models/mini-moe.gguf'));
const fixture = path.join(root, 'tests/logits/fixtures/qwen3');
const [firstHalf, secondHalf] = splitGguf(mini, 2);
const small = Buffer.from(mini.subarray(0, 100000)); // no whole model: for what is only fetched
const work = temporaryFolder();
const hosts = new Hosts();
await hosts.start();
after(() => hosts.stop());

let folders = 0;
let cache;
beforeEach(() => {
  cache = path.join(work, `cache-${folders++}`);
  Object.assign(hosts, { repos: {}, manifests: {}, blobs: {}, plain: {}, delay: 0, cut: 0 });
  hosts.take();
});

const place = (command) => ['--cache-folder', cache, '--no-config', ...(command === 'rm' ? [] : ['--mirror', hosts.url])];
const sluice = (...line) => run([...line, ...place(line[0])]);
/** All files of a folder, by their paths in it. */
function files(folder = cache) {
  if (!fs.existsSync(folder)) return [];
  return fs.readdirSync(folder, { recursive: true }).filter((name) => fs.statSync(path.join(folder, name)).isFile()).sort();
}
const models = () => files().filter((name) => !/\.sluice\.(json|lock)$/.test(name));
async function works(...line) {
  const ended = await sluice(...line);
  assert.equal(ended.code, 0, `${line.join(' ')}: ${ended.stderr}`);
  return ended;
}
/** One line on stderr that matches, nothing on stdout, and no success. */
async function refused(words, ...line) {
  const ended = await sluice(...line);
  assert.ok(ended.code > 0, `${line.join(' ')}: it runs: ${ended.stdout}`);
  assert.match(ended.stderr, words);
  assert.equal(ended.stderr.trim().split('\n').length, 1, ended.stderr);
  assert.equal(ended.stdout, '');
  return ended;
}
const asJson = async (...line) => JSON.parse((await works(...line, '-o', 'json')).stdout);
const short = (repo) => repo.sha.slice(0, 12);
const question = [SUM.question, '--temp', '0', '--device', 'cpu'];

// ---- each kind of name ---------------------------------------------------------------------------------------

describe('hf: GGUF', () => {
  const quants = { 'm-Q4_K_M.gguf': mini, 'm-Q8_0.gguf': moe, 'mmproj-m-Q4_K_M.gguf': small, 'm.imatrix.gguf': small, 'README.md': Buffer.from('#') };
  test('without QUANT: Q4_K_M; bytes, places and hashes are the host\'s', async () => {
    const repo = hosts.add('house/m-GGUF', quants);
    const told = await works('pull', 'hf:house/m-GGUF');
    const file = `hf/house/m-GGUF/${short(repo)}/m-Q4_K_M.gguf`;
    assert.ok(told.stdout.includes(path.join(cache, file)), told.stdout);
    assert.deepEqual(models(), [file]);
    assert.equal(sha256(fs.readFileSync(path.join(cache, file))), sha256(mini));
    const record = JSON.parse(fs.readFileSync(path.join(cache, `${file}.sluice.json`)));
    assert.equal(record.name, 'hf:house/m-GGUF:Q4_K_M');
    assert.equal(record.version, repo.sha);
    assert.deepEqual(record.files.map((one) => [one.path, one.bytes, one.sha256]), [[file, mini.length, sha256(mini)]]);
    assert.ok(!files().some((name) => /\.(part|lock)/.test(name)), files().join());
  });
  test('what else is taken without QUANT, and never a projector, a matrix or an adapter', async () => {
    const choices = [
      [['m-Q8_0', 'm-Q2_K', 'm-F16'], 'm-Q8_0'], [['m-UD-Q4_K_XL', 'm-Q8_0'], 'm-UD-Q4_K_XL'], [['m-BF16', 'm-IQ1_S'], 'm-BF16'],
      [['only-this'], 'only-this'], [['mmproj-Q4_K_M', 'lora-Q4_K_M', 'm.Q6_K'], 'm.Q6_K'], [['m.q4_k_m', 'm.q8_0'], 'm.q4_k_m'],
    ];
    for (const [names, taken] of choices) {
      fs.rmSync(cache, { recursive: true, force: true });
      hosts.add('house/c', Object.fromEntries(names.map((name) => [`${name}.gguf`, small])));
      await works('pull', 'hf:house/c');
      assert.deepEqual(models().map((name) => path.basename(name)), [`${taken}.gguf`]);
    }
  });
  test('QUANT in any case, with words before it, in subfolders, between others that hold it', async () => {
    const repo = hosts.add('house/q', {
      'Q-UD-Q4_K_XL.gguf': small, 'Q-Q4_K_M.gguf': small, 'Q-UD-Q4_K_M.gguf': small, 'Q-IQ4_XS.gguf': small, 'BF16/Q-BF16.gguf': small, 'F16/weights.gguf': small,
    });
    for (const [asked, file] of [['q4_k_m', 'Q-Q4_K_M'], ['UD-Q4_K_XL', 'Q-UD-Q4_K_XL'], ['Q4_K_XL', 'Q-UD-Q4_K_XL'], ['ud-q4_k_m', 'Q-UD-Q4_K_M'],
      ['iq4_xs', 'Q-IQ4_XS'], ['bf16', 'BF16/Q-BF16'], ['F16', 'F16/weights']]) {
      fs.rmSync(cache, { recursive: true, force: true });
      await works('pull', `hf:house/q:${asked}`);
      assert.deepEqual(models(), [`hf/house/q/${short(repo)}/${file}.gguf`], asked);
    }
  });
  test('a wrong QUANT lists those that are there with sizes; one that several files have too', async () => {
    hosts.add('house/m-GGUF', quants);
    const { stderr } = await refused(/hf:house\/m-GGUF has no Q9_K; there are /, 'pull', 'hf:house/m-GGUF:Q9_K');
    assert.ok(stderr.includes(`Q4_K_M ${(mini.length / 1e6).toFixed(1)} MB, Q8_0 ${(moe.length / 1e6).toFixed(1)} MB`), stderr);
    assert.ok(!/mmproj|imatrix/.test(stderr), stderr);
    assert.deepEqual(files(), []);
    hosts.add('house/two', { 'a-Q8_0.gguf': small, 'b-Q8_0.gguf': small });
    await refused(/several files are Q8_0, name one as hf:house\/two\/FILE/, 'pull', 'hf:house/two:Q8_0');
    await works('pull', 'hf:house/two/b-Q8_0.gguf');
    assert.deepEqual(models().map((name) => path.basename(name)), ['b-Q8_0.gguf']);
  });
  test('a split file comes whole and answers; by the name of any part too', async () => {
    const repo = hosts.add('house/s', { 'Q8_0/s-Q8_0-00001-of-00002.gguf': firstHalf, 'Q8_0/s-Q8_0-00002-of-00002.gguf': secondHalf });
    const one = `hf/house/s/${short(repo)}/Q8_0/s-Q8_0-0000`;
    const ended = await works('run', 'hf:house/s:Q8_0', ...question);
    assert.equal(ended.stdout.trim(), SUM.answer);
    assert.deepEqual(models(), [`${one}1-of-00002.gguf`, `${one}2-of-00002.gguf`]);
    hosts.take();
    await works('run', 'hf:house/s/Q8_0/s-Q8_0-00002-of-00002.gguf', ...question);
    assert.deepEqual(hosts.take().urls, [], 'it is in the cache');
    delete repo.files['Q8_0/s-Q8_0-00002-of-00002.gguf'];
    await refused(/part 2 of 2/, 'pull', 'hf:house/s');
  });
  test('FILE in folders, REVISION, and pages as a browser has them', async () => {
    const repo = hosts.add('house/r', { 'deep/er/x.gguf': small, 'y-Q4_K_M.gguf': small }, { branches: ['v2'] });
    for (const [name, file] of [['hf:house/r@v2/deep/er/x.gguf', 'deep/er/x.gguf'], ['hf:house/r@v2:Q4_K_M', 'y-Q4_K_M.gguf'], [`hf:house/r@${repo.sha}`, 'y-Q4_K_M.gguf'],
      ['https://huggingface.co/house/r', 'y-Q4_K_M.gguf'], ['https://huggingface.co/house/r/blob/v2/deep/er/x.gguf', 'deep/er/x.gguf'],
      ['https://huggingface.co/house/r/resolve/main/y-Q4_K_M.gguf?download=true', 'y-Q4_K_M.gguf']]) {
      fs.rmSync(cache, { recursive: true, force: true });
      await works('pull', name);
      assert.deepEqual(models(), [`hf/house/r/${short(repo)}/${file}`], name);
    }
    await refused(/no revision v3/, 'pull', 'hf:house/r@v3');
    await refused(/has no file deep\/z.gguf; there are/, 'pull', 'hf:house/r/deep/z.gguf');
  });
});

describe('hf: folders', () => {
  const weights = fs.readFileSync(path.join(fixture, 'model.safetensors'));
  const folder = {
    'config.json': fs.readFileSync(path.join(fixture, 'config.json')), 'generation_config.json': Buffer.from('{"temperature": 0.5}'),
    'chat_template.jinja': Buffer.from('{{ messages[0].content }}'), 'additional_chat_templates/tool_use.jinja': Buffer.from('x'),
    'pytorch_model.bin': small, 'original/consolidated.00.pth': small, 'onnx/model.onnx': small, 'consolidated.safetensors': small,
    'README.md': Buffer.from('#'), '.gitattributes': Buffer.from('x'), 'onnx/config.json': Buffer.from('{}'),
  };
  const wanted = ['additional_chat_templates/tool_use.jinja', 'chat_template.jinja', 'config.json', 'generation_config.json'];
  for (const [kind, own] of [['one file', { 'model.safetensors': weights }], ['shards', { ...shardSafetensors(weights), 'model-00003-of-00003.safetensors': small }]]) {
    test(`${kind}: only what the loader opens`, async () => {
      const repo = hosts.add('house/tiny', { ...folder, ...own });
      await works('pull', 'hf:house/tiny');
      const inside = Object.keys(own).filter((name) => !/00003/.test(name));
      assert.deepEqual(models(), [...wanted, ...inside].map((name) => `hf/house/tiny/${short(repo)}/tiny/${name}`).sort());
      const { stdout } = await works('inspect', 'hf:house/tiny');
      assert.match(stdout, /family +qwen3 /);
      await refused(/has no GGUF files, so no Q4_K_M/, 'pull', 'hf:house/tiny:Q4_K_M');
    });
  }
  test('an index that names a file which is not there, or one outside; a repository without a model', async () => {
    for (const shard of ['gone.safetensors', '../x.safetensors', 'a/b.safetensors', 7]) {
      const index = Buffer.from(JSON.stringify({ weight_map: { w: shard } }));
      hosts.add('house/tiny', { ...folder, 'model.safetensors.index.json': index, 'a/b.safetensors': small });
      await refused(/the index of its weights names/, 'pull', 'hf:house/tiny');
    }
    hosts.add('house/torch', { 'config.json': folder['config.json'], 'pytorch_model.bin': small });
    await refused(/no model that sluice reads.*pytorch_model.bin/, 'pull', 'hf:house/torch');
  });
});

describe('ollama:', () => {
  const layers = [['model', mini], ['template', Buffer.from('{{ .Prompt }}')], ['license', Buffer.from('one')], ['license', Buffer.from('two')],
    ['params', Buffer.from('{"stop": ["x"]}')], ['projector', Buffer.from('p')]];
  test('the model\'s layer by its digest, small layers beside it, others named', async () => {
    hosts.addOllama('library/house/1b', layers);
    const { stderr } = await works('pull', 'ollama:house:1b');
    assert.match(stderr, /left out.*: projector$/m);
    const at = `ollama/library/house/1b/${sha256(mini).slice(0, 12)}`;
    assert.deepEqual(models(), ['2-license.txt', 'house-1b.gguf', 'license.txt', 'params.json', 'template.txt'].map((name) => `${at}/${name}`));
    assert.ok(fs.readFileSync(path.join(cache, at, 'house-1b.gguf')).equals(mini));
    assert.equal((await works('run', 'ollama:house:1b', ...question)).stdout.trim(), SUM.answer);
  });
  test('latest, USER/NAME, and what is not there', async () => {
    hosts.addOllama('library/house/latest', layers.slice(0, 1));
    hosts.addOllama('somebody/house/latest', layers.slice(0, 1));
    await works('pull', 'ollama:house', 'ollama:somebody/house');
    const at = sha256(mini).slice(0, 12);
    assert.deepEqual(models(), [`ollama/library/house/latest/${at}/house-latest.gguf`, `ollama/somebody/house/latest/${at}/house-latest.gguf`]);
    await refused(/no such model or tag/, 'pull', 'ollama:house:70b');
    hosts.addOllama('library/wrong/latest', [['model', mini, 'a'.repeat(64)]]);
    await refused(/SHA-256|sha256|hash/i, 'pull', 'ollama:wrong');
    hosts.addOllama('library/lora/latest', [['adapter', small]]);
    await refused(/names no layer of the kind .*model/, 'pull', 'ollama:lora');
  });
});

describe('URLs', () => {
  test('a file, a split one, what is no model', async () => {
    hosts.plain = { '/a/mini.gguf': mini, '/s/m-00001-of-00002.gguf': firstHalf, '/s/m-00002-of-00002.gguf': secondHalf, '/page.gguf': Buffer.from('<html>') };
    const at = `url/${hosts.filesUrl.slice(7).replace(':', '_')}`;
    assert.equal((await works('run', `${hosts.filesUrl}/a/mini.gguf`, ...question)).stdout.trim(), SUM.answer);
    await works('pull', `${hosts.filesUrl}/s/m-00001-of-00002.gguf`);
    assert.deepEqual(models(), [`${at}/a/mini.gguf`, `${at}/s/m-00001-of-00002.gguf`, `${at}/s/m-00002-of-00002.gguf`]);
    await refused(/is no GGUF file/, 'pull', `${hosts.filesUrl}/page.gguf`);
    await refused(/404/, 'pull', `${hosts.filesUrl}/gone.gguf`);
  });
});

// ---- names and answers that may not be -----------------------------------------------------------------------

test('hostile names: one line, nothing asked, nothing made', async () => {
  const wrong = [
    'hf:', 'hf:x', 'hf:../..', 'hf:a/..', 'hf:a/.ssh', 'hf:a/b/../../c.gguf', 'hf:a/b//c.gguf', 'hf:a/b/.c.gguf', 'hf:a/b/c.safetensors', 'hf:a/b:', 'hf:a/b:x/y', 'hf:a/b..c', 'hf:a..b/c', 'hf:a/b@v..w', 'ollama:a:b..c', 'hf:a/b@', 'hf:a/b@..',
    'hf:a/b:\x01', 'hf:a/b:Q4 K', 'hf:a\\b/c', `hf:a/${'b'.repeat(200)}`, `hf:a/b:${'q'.repeat(100)}`, `hf:${'a/'.repeat(300)}b`, 'hf:a%2fb/c', 'hf:a/b?x', 'hf:ä/b', 'ollama:', 'ollama:a/b/c',
    'ollama:../x', 'ollama:a:b:c', 'ollama:a:../b', 'ollama:.a', 'https://', 'https://host', 'https://host/', 'https://host/x.bin', 'https://host/x.gguf?key=secret', 'https://u:p@host/x.gguf',
    'https://host/../x.gguf', 'https://../x.gguf', 'https://host/a/.ssh/x.gguf', 'http://ho st/x.gguf', 'ftp://host/x.gguf', '/etc/passwd', 'model.gguf', '',
  ];
  for (const name of wrong) {
    const ended = await refused(/./, 'pull', name);
    assert.ok(!/secret|u:p/.test(ended.stderr), ended.stderr);
  }
  assert.deepEqual(hosts.take().urls, []);
  assert.ok(!fs.existsSync(cache));
});

test('hostile file names from the server: refused or left out, and nothing lies outside', async () => {
  const names = ['../../x.gguf', '/tmp/x.gguf', '.ssh/x.gguf', 'a/../../x.gguf', 'a//x.gguf', 'a\\..\\x.gguf', `${'x'.repeat(300)}.gguf`, `${'a/'.repeat(400)}x.gguf`, 'x\n.gguf', './x.gguf', 'a/./x.gguf',
    'x.sluice.json/y.gguf/../z.gguf'];
  for (const name of names) {
    const repo = hosts.add('house/h', { 'x.gguf': small });
    repo.lie['x.gguf'] = { name };
    const ended = await refused(/which is no plain path/, 'pull', 'hf:house/h');
    assert.ok(!/\n./.test(ended.stderr), 'one line');
  }
  hosts.add('house/h', {}, { raw: `{"sha": "${'a'.repeat(40)}", "siblings": [{"rfilename": "x\\u0000.gguf", "size": 3}]}` });
  await refused(/no JSON object/, 'pull', 'hf:house/h');
  for (const raw of ['', '[]', '{}', '{"sha": "../../..", "siblings": []}', `{"sha": "${'a'.repeat(40)}", "siblings": [7, {}, {"rfilename": 3}]}`, `{"sha": "${'a'.repeat(40)}", "siblings": {}}`,
    `{"sha": "${'a'.repeat(40)}", "siblings": [{"rfilename": "x.gguf", "size": 9000000000000000000}]}`]) {
    hosts.add('house/h', {}, { raw });
    await refused(/./, 'pull', 'hf:house/h');
  }
  hosts.manifests['library/h/latest'] = { layers: [{ mediaType: 'application/vnd.ollama.image.model', digest: 'sha256:../../x', size: 3 }] };
  await refused(/names no layer/, 'pull', 'ollama:h');
  assert.deepEqual(files(), []);
  assert.deepEqual(fs.readdirSync(work).filter((name) => !/^cache-|^home|token/.test(name)), []);
});

test('a lying size, a wrong hash, a missing file: no model, and the next pull is clean', async () => {
  const repo = hosts.add('house/l', { 'l-Q8_0.gguf': mini });
  for (const [lie, words] of [[{ size: mini.length + 1 }, /size|bytes/], [{ size: 1000 }, /size|bytes/], [{ sha256: 'b'.repeat(64) }, /SHA-256|sha256|hash/i], [{ sha256: 'xyz' }, /SHA-256/]]) {
    repo.lie['l-Q8_0.gguf'] = lie;
    await refused(words, 'pull', 'hf:house/l');
    assert.ok(!models().some((name) => name.endsWith('.gguf')), models().join());
    await refused(/not in the cache/, 'run', 'hf:house/l', '--offline', 'x');
  }
  repo.lie = {};
  assert.equal((await works('run', 'hf:house/l', ...question)).stdout.trim(), SUM.answer);
});

// ---- access --------------------------------------------------------------------------------------------------

test('gated and private: what to do is said; a token goes to its own host alone', async () => {
  const token = 'hf_SecretSecretSecret';
  hosts.add('house/gated', { 'g-Q8_0.gguf': mini }, { gated: 'manual', token });
  hosts.add('house/private', { 'p-Q8_0.gguf': mini }, { hidden: true, token });
  await refused(/gated: ask for access.*--token-file FILE/, 'pull', 'hf:house/gated');
  await refused(/no such repository, or it is private.*--token-file FILE/, 'pull', 'hf:house/private');
  await refused(/no such repository/, 'pull', 'hf:house/none');
  const file = path.join(work, 'token');
  fs.writeFileSync(file, 'hf_wrong\n', { mode: 0o600 });
  await refused(/the token of --token-file has no access/, 'pull', 'hf:house/private', '--token-file', file);
  fs.writeFileSync(file, `${token}\n`);
  hosts.take();
  const ended = await works('pull', 'hf:house/gated', 'hf:house/private', '--token-file', file);
  assert.equal(ended.stderr, '');
  const { asked } = hosts.take();
  assert.ok(asked.filter((one) => one.port === 'api').every((one) => one.authorization === `Bearer ${token}`));
  assert.ok(asked.some((one) => one.port === 'files') && asked.filter((one) => one.port === 'files').every((one) => !one.authorization), 'not behind the redirect');
  hosts.addOllama('library/o/latest', [['model', mini]]);
  hosts.plain['/x.gguf'] = mini;
  fs.chmodSync(file, 0o644);
  const open = await works('pull', 'ollama:o', `${hosts.filesUrl}/x.gguf`, '--token-file', file);
  assert.match(open.stderr, /others can read this token: chmod 600/);
  assert.ok(hosts.take().asked.every((one) => !one.authorization), 'other hosts never see it');
  const clear = await run(['pull', 'hf:house/gated', '--token-file', file, '--mirror', 'http://mirror.invalid', '--no-config', '--cache-folder', cache]);
  assert.match(clear.stderr, /a token is not sent over http:/);
  for (const text of ['', 'two words', 'x'.repeat(600)]) {
    fs.writeFileSync(file, text);
    await refused(/one token/, 'pull', 'hf:house/gated', '--token-file', file);
  }
  for (const text of [ended, open]) assert.ok(!text.stderr.includes(token) && !text.stdout.includes(token));
});

test('--offline: what is there runs, what is not says how it comes', async () => {
  hosts.add('house/m', { 'm-Q4_K_M.gguf': mini, 'm-Q8_0.gguf': mini });
  await refused(/not in the cache.*--offline.*: sluice pull hf:house\/m$/m, 'run', '-m', 'hf:house/m', '--offline', 'x');
  await works('pull', 'hf:house/m:Q8_0');
  hosts.take();
  assert.equal((await works('run', 'hf:house/m:q8_0', '--offline', ...question)).stdout.trim(), SUM.answer);
  await refused(/there is hf:house\/m:Q8_0: sluice pull hf:house\/m$/m, 'run', 'hf:house/m', '--offline', 'x');
  await refused(/--offline/, 'pull', 'hf:house/m', '--offline');
  assert.deepEqual(hosts.take().urls, []);
});

// ---- commands that take a model ------------------------------------------------------------------------------

test('-m NAME and llama.cpp\'s ways to write it, fetched once', async () => {
  hosts.add('house/m', { 'm-Q4_K_M.gguf': mini, 'sub/m-Q8_0.gguf': mini });
  hosts.plain['/mini.gguf'] = mini;
  for (const line of [['-m', 'hf:house/m'], ['-hf', 'house/m'], ['--hf-repo', 'house/m:Q8_0'], ['--hf-repo', 'house/m', '--hf-file', 'sub/m-Q8_0.gguf'], ['-mu', `${hosts.filesUrl}/mini.gguf`]]) {
    assert.equal((await works('run', ...line, ...question)).stdout.trim(), SUM.answer, line.join(' '));
  }
  hosts.take();
  assert.match((await works('tokenize', '-m', 'hf:house/m', '-p', 'Once')).stdout, /"Once"/);
  assert.match((await works('quantize', '--dry-run', 'hf:house/m', 'q8_0')).stdout, /^the file has \d+ bytes$/m);
  assert.equal((await works('run', '-hf', 'house/m', '-hfd', 'house/m:Q8_0', ...question)).stdout.trim(), SUM.answer);
  assert.equal((await works('run', '--draft', 'hf:house/m', ...question)).stdout.trim(), SUM.answer);
  assert.deepEqual(hosts.take().urls, [], 'all of it is there');
  await refused(/given twice/, 'run', '-hf', 'house/m', '-m', 'mini', 'x');
  await refused(/--hf-file needs --hf-repo/, 'run', '--hf-file', 'x.gguf', 'x');
});

test('serve -m NAME: fetched before it listens, by its file\'s or folder\'s name', async () => {
  hosts.add('house/m', { 'm-Q4_K_M.gguf': mini });
  const server = await start({ args: ['-m', 'hf:house/m', '--device', 'cpu', ...place()] });
  try {
    assert.deepEqual((await get(server, '/v1/models')).data.map((model) => model.id), ['m-Q4_K_M']);
    assert.equal((await get(server, '/v1/chat/completions', chatBody(SUM.question))).choices[0].message.content, SUM.answer);
  } finally {
    await server.stop();
  }
});

test('a revision that moves on: pull takes the new one, -m what is there, equal files are not fetched again', async () => {
  const old = hosts.add('house/m', { 'm-Q4_K_M.gguf': mini });
  await works('pull', 'hf:house/m');
  const fresh = hosts.add('house/m', { 'm-Q4_K_M.gguf': mini, 'README.md': Buffer.from('#') }, { salt: '2' });
  hosts.take();
  await works('inspect', 'hf:house/m');
  assert.deepEqual(hosts.take().urls, []);
  await works('pull', 'hf:house/m');
  assert.equal(hosts.take().served, 0);
  assert.deepEqual(models(), [`hf/house/m/${short(old)}/m-Q4_K_M.gguf`, `hf/house/m/${short(fresh)}/m-Q4_K_M.gguf`].sort());
  const newest = await works('inspect', 'hf:house/m', '-o', 'json');
  assert.equal(newest.code, 0);
  const { stdout } = await works('rm', '-y', `hf:house/m@${short(old)}`);
  assert.match(stdout, /^1 model, 0 bytes came free/m, 'the bytes have another name');
  assert.deepEqual(models(), [`hf/house/m/${short(fresh)}/m-Q4_K_M.gguf`]);
});

// ---- list, rm ------------------------------------------------------------------------------------------------

describe('list', () => {
  test('nothing yet', async () => {
    assert.match((await works('list')).stdout, /^No model is in .*: sluice pull NAME/);
    assert.deepEqual((await asJson('list')).models, []);
  });
  test('the table and JSON: what a plan asks for, and estimates from the rates that are printed', async () => {
    hosts.add('house/m', { 'm-Q8_0.gguf': mini });
    hosts.addOllama('library/moe/latest', [['model', moe]]);
    await works('pull', 'hf:house/m', 'ollama:moe');
    const { stdout } = await works('list');
    const rows = stdout.trim().split('\n');
    assert.equal(rows.length, 4, stdout);
    assert.match(rows[1], /^hf:house\/m:Q8_0 +qwen3 +13\.9 M +q8_0 +14\.9 MB +8192 +yes, [\d.]+ MB of [\d.]+ GB +~[\d.]+ t\/s +~[\d.]+ t\/s +today$/);
    assert.match(rows[2], /^ollama:moe:latest +qwen3moe +14\.7 M +q8_0 /);
    assert.match(rows[3], /estimates for one sequence on cpu: .* read at [\d.]+ [MG]B\/s just now/);
    const list = await asJson('list');
    const [dense, sparse] = list.models;
    const plan = JSON.parse((await run(['plan', 'mini', '--sequences', '1', '-o', 'json'])).stdout);
    const asked = plan.memory.reduce((sum, row) => sum + row.bytes, 0) + plan.mapped_bytes;
    assert.equal(dense.memory_needed, asked);
    assert.equal(dense.fits, true);
    // What a token reads, counted from the tensors: all matrices but rows of the embedding are the head's too; experts
    // four of sixteen.
    for (const [row, model] of [[dense, 'mini'], [sparse, 'mini-moe']]) {
      const facts = JSON.parse((await run(['inspect', model, '-o', 'json'])).stdout);
      const read = facts.weights.reduce((sum, w) => sum + (w.experts > 1 ? w.bytes * facts.experts_used / facts.experts : w.bytes), 0);
      const estimate = 0.75 * list.memory_bytes_per_second / read;
      assert.ok(Math.abs(row.estimated_tokens_per_second_generated / estimate - 1) < 0.02, `${model}: ${row.estimated_tokens_per_second_generated}, ${estimate}`);
      assert.ok(row.estimated_tokens_per_second_read > 0 && row.complete && row.path.endsWith('.gguf'));
    }
    assert.equal((await asJson('list', 'ollama:moe')).models.length, 1);
    assert.equal((await asJson('list', 'mini')).models[0].memory_needed, asked);
  });
  test('one that is not there: its header alone is fetched, and nothing stays', async () => {
    const big = Buffer.concat([mini, Buffer.alloc(40 << 20)]); // more than is fetched of a header at once
    hosts.add('house/m', { 'm-Q8_0.gguf': big }, {});
    hosts.take();
    const list = await asJson('list', 'hf:house/m');
    const { served } = hosts.take();
    assert.ok(served >= ggufHeader(mini) && served <= 3 << 20, `${served} bytes for a header of ${ggufHeader(mini)}`);
    const there = (await asJson('list', 'mini')).models[0];
    for (const key of ['family', 'parameters', 'context', 'memory_needed', 'type']) assert.equal(list.models[0][key], there[key], key);
    assert.equal(list.models[0].complete, false);
    assert.deepEqual(files(), []);
    const dry = await asJson('pull', '--dry-run', 'hf:house/m');
    assert.deepEqual([dry[0].bytes, dry[0].memory_needed, dry[0].files.length], [big.length, there.memory_needed, 1]);
    assert.match((await works('pull', '--dry-run', 'hf:house/m')).stdout, /m-Q8_0\.gguf\n.*\n.*hf:house\/m:Q8_0 +qwen3 .*yes, .*not here/s);
    assert.deepEqual(fs.readdirSync(cache), []);
    assert.ok(hosts.take().served < 7 << 20);
  });
  test('folders that are not there, of kinds whose weights are copied when they are opened too, and a split file', async () => {
    // FP8, NVFP4 and a tensor for each expert are copied into blocks; of a stand-in there is nothing to copy.
    for (const kind of ['qwen3', 'qwen3-fp8-channel', 'llama-nvfp4', 'qwen3moe', 'qwen3moe-nvfp4', 'gpt_oss-mxfp4']) {
      const at = path.join(root, 'tests/logits/fixtures', kind);
      hosts.add('house/tiny', { 'config.json': fs.readFileSync(path.join(at, 'config.json')), ...shardSafetensors(fs.readFileSync(path.join(at, 'model.safetensors'))) });
      const [tiny] = (await asJson('list', 'hf:house/tiny')).models;
      const [local] = (await asJson('list', at)).models;
      for (const key of ['memory_needed', 'parameters', 'type', 'family']) assert.equal(tiny[key], local[key], `${kind}: ${JSON.stringify(tiny)}`);
    }
    hosts.add('house/s', { 's-Q8_0-00001-of-00002.gguf': firstHalf, 's-Q8_0-00002-of-00002.gguf': secondHalf });
    const [split] = (await asJson('list', 'hf:house/s')).models;
    assert.equal(split.memory_needed, (await asJson('list', 'mini')).models[0].memory_needed);
    assert.deepEqual(fs.readdirSync(cache), []);
  });
  test('what does not run says why, and what does not fit too', async () => {
    hosts.add('house/w', { 'w-Q8_0.gguf': small });
    await works('pull', 'hf:house/w');
    const [row] = (await asJson('list')).models;
    assert.equal(row.runs, false);
    assert.ok(row.why_not && !row.why_not.startsWith(cache), row.why_not);
    assert.match((await works('list')).stdout, /hf:house\/w:Q8_0 +100\.0 kB; does not run: /);
    // Sixteen layers of some 27 GB each: more than any machine has, and none of it is there.
    const plain = path.join(work, 'cache-narrow.gguf');
    const made = await run(['synth', 'qwen3', plain, '--type', 'q8_0', '--layers', '16', '--width', '2048',
      '--heads', '2', '--kv-heads', '1', '--head-size', '64', '--feed-forward', '256']);
    assert.equal(made.code, 0, made.stderr);
    const { header, size } = widenFeedForward(fs.readFileSync(plain), 256, 2 ** 22);
    const repo = hosts.add('house/huge', { 'huge-Q8_0.gguf': header });
    repo.lie['huge-Q8_0.gguf'] = { size };
    const [huge] = (await asJson('list', 'hf:house/huge')).models;
    assert.equal(huge.fits, false, JSON.stringify(huge));
    assert.ok(huge.memory_needed > 4e11 && huge.memory_available < huge.memory_needed);
    assert.match((await works('list', 'hf:house/huge')).stdout, /^hf:house\/huge:Q8_0 +qwen3 .* no, [\d.]+ GB of [\d.]+ GB +/m);
    await refused(/needs .* more, and .* has room for/, 'pull', 'hf:house/huge');
  });
});

describe('rm', () => {
  test('by name, by repository, by age; bytes that come free; nothing else', async () => {
    hosts.add('house/m', { 'm-Q4_K_M.gguf': mini, 'm-Q8_0.gguf': moe });
    hosts.addOllama('library/o/latest', [['model', small], ['license', Buffer.from('x')]]);
    await works('pull', 'hf:house/m', 'hf:house/m:Q8_0', 'ollama:o');
    const blocks = fs.statSync(path.join(cache, models().find((name) => /Q8_0/.test(name)))).blocks * 512;
    const one = await works('rm', 'hf:house/m:Q8_0');
    assert.match(one.stdout, new RegExp(`^hf:house/m:Q8_0: removed\n1 model, ${blocks} bytes came free`));
    await refused(/is not in the cache/, 'rm', 'hf:house/m:Q8_0');
    const bystander = path.join(work, 'bystander.gguf');
    fs.writeFileSync(bystander, 'not in the cache');
    for (const name of [bystander, 'model.gguf', '../x', cache]) await refused(/no model's name/, 'rm', name);
    assert.ok(fs.existsSync(bystander));
    await refused(/NAME\.\.\. or --unused/, 'rm');
    const record = path.join(cache, files().find((name) => /^ollama.*\.sluice\.json$/.test(name)));
    fs.utimesSync(record, new Date(), new Date(Date.now() - 40 * 86400e3));
    assert.match((await works('rm', '--unused', '41')).stdout, /^0 models/);
    assert.match((await works('rm', '--unused', '39')).stdout, /^ollama:o:latest: removed/);
    await works('pull', 'hf:house/m:Q8_0');
    assert.match((await works('rm', 'hf:house/m')).stdout, /2 models/);
    assert.deepEqual(fs.readdirSync(cache), [], 'empty folders go too');
  });
  test('use is noted', async () => {
    hosts.add('house/m', { 'm-Q8_0.gguf': mini });
    await works('pull', 'hf:house/m');
    const record = path.join(cache, files().find((name) => /\.sluice\.json$/.test(name)));
    fs.utimesSync(record, new Date(0), new Date(Date.now() - 40 * 86400e3));
    assert.match((await works('list')).stdout, / 40 days ago$/m);
    await works('inspect', 'hf:house/m');
    assert.match((await works('list')).stdout, / today$/m);
  });
  test('a record or a link that leads outside is not followed', async () => {
    hosts.add('house/m', { 'd/m-Q8_0.gguf': small });
    await works('pull', 'hf:house/m');
    const inside = path.dirname(path.join(cache, models()[0]));
    const record = files(inside).find((name) => /\.sluice\.json$/.test(name));
    const text = JSON.parse(fs.readFileSync(path.join(inside, record)));
    const outside = path.join(work, 'cache-outside');
    fs.renameSync(inside, outside);
    fs.symlinkSync(outside, inside);
    const kept = files(outside);
    await sluice('rm', '-y', 'hf:house/m');
    assert.deepEqual(files(outside), kept, 'a folder with its record');
    fs.unlinkSync(inside);
    fs.mkdirSync(inside, { recursive: true });
    fs.symlinkSync(outside, path.join(inside, 'link'));
    const inRoot = path.relative(cache, inside);
    fs.writeFileSync(path.join(inside, record), JSON.stringify({ ...text, files: kept.map((name) => ({ path: `${inRoot}/link/${name}`, bytes: 1 })).slice(0, 1) }));
    await works('rm', '-y', 'hf:house/m');
    assert.deepEqual(files(outside), kept, 'a folder on the way');
    fs.mkdirSync(inside, { recursive: true });
    const bystander = path.join(work, 'bystander');
    fs.writeFileSync(bystander, 'x');
    fs.writeFileSync(path.join(inside, record), JSON.stringify({ ...text, files: [{ path: path.relative(cache, bystander), bytes: 1 }] }));
    await refused(/not in the cache/, 'rm', '-y', 'hf:house/m');
    assert.ok(fs.existsSync(bystander));
  });
});

// ---- at once, interrupted ------------------------------------------------------------------------------------

test('two pulls at once: each byte comes once, both end well', async () => {
  hosts.add('house/m', { 'm-Q8_0.gguf': mini });
  hosts.delay = 5;
  const ended = await Promise.all([sluice('pull', 'hf:house/m'), sluice('pull', 'hf:house/m'), sluice('run', 'hf:house/m', ...question)]);
  for (const one of ended) assert.equal(one.code, 0, one.stderr);
  assert.equal(ended[2].stdout.trim(), SUM.answer);
  assert.ok(hosts.take().served < mini.length * 1.1);
  assert.deepEqual(files().map((name) => name.replace(/.*m-Q8_0/, '')), ['.gguf', '.gguf.sluice.json']);
});

test('Ctrl-C and a kill: it says how to go on, list says how much is there, pull goes on, rm takes it away', async () => {
  hosts.add('house/m', { 'm-Q8_0.gguf': mini });
  const begin = async (signal) => {
    const child = spawn(program, ['pull', 'hf:house/m', ...place()], { stdio: ['ignore', 'ignore', 'pipe'] });
    let errors = '';
    child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
    const ended = new Promise((done) => child.on('close', (code, by) => done({ code, by, errors })));
    [hosts.served, hosts.most] = [0, 6 << 20]; // then it waits, however long what is asked meanwhile takes
    await until('some bytes', () => hosts.served >= hosts.most);
    return { child, ended, signal: () => child.kill(signal) };
  };
  const first = await begin('SIGINT');
  const [busy] = (await asJson('list')).models;
  assert.deepEqual([busy.busy, busy.complete, busy.bytes], [true, false, mini.length]);
  const removal = await sluice('rm', '-y', 'hf:house/m');
  assert.equal(removal.code, 1);
  assert.match(removal.stderr, /another process is fetching it/);
  first.signal();
  const { code, errors } = await first.ended;
  assert.equal(code, 1, errors);
  assert.match(errors.trim().split('\n').at(-1), /hf:house\/m: stopped; .*run it again to go on/);
  const second = await begin('SIGKILL');
  second.signal();
  await second.ended;
  hosts.most = Infinity;
  const [row] = (await asJson('list')).models;
  assert.ok(!row.busy && !row.complete && row.bytes_there > 1 << 20 && row.bytes_there < mini.length, JSON.stringify(row));
  assert.match((await works('list')).stdout, /not finished: [\d.]+ MB of 14\.9 MB is there; sluice pull hf:house\/m:Q8_0 goes on/);
  hosts.take();
  await works('pull', 'hf:house/m');
  const { served } = hosts.take();
  assert.ok(served < mini.length - (1 << 20), `${served} bytes came again`);
  assert.equal((await works('run', 'hf:house/m', '--offline', ...question)).stdout.trim(), SUM.answer);
  await works('rm', '-y', 'hf:house/m');
  const third = await begin('SIGKILL');
  third.signal();
  await third.ended;
  hosts.most = Infinity;
  await works('rm', '-y', 'hf:house/m');
  assert.deepEqual(fs.readdirSync(cache), []);
});

// ---- the user's own file -------------------------------------------------------------------------------------

const preload = option('home');
describe('~/.config/sluice/config.json', { skip: preload ? false : 'no --home library to preload' }, () => {
  const home = path.join(work, 'home');
  const file = path.join(home, '.config/sluice/config.json');
  const env = { ...process.env, LD_PRELOAD: preload && path.resolve(preload), SLUICE_TEST_HOME: home };
  const at = (...line) => run(line, { env });
  const write = (value) => {
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, typeof value === 'string' ? value : JSON.stringify(value));
  };
  test('its options count for the commands that have them; the command line wins; the cache is in the home', async () => {
    hosts.add('house/m', { 'm-Q8_0.gguf': mini });
    write({ mirror: hosts.url, connections: 2, context: 300, 'cache-folder': null, offline: false });
    const pulled = await at('pull', 'hf:house/m');
    assert.equal(pulled.code, 0, pulled.stderr);
    assert.ok(files(path.join(home, '.cache/sluice/models/hf/house/m')).length === 2);
    const plan = JSON.parse((await at('plan', 'hf:house/m', '-o', 'json', '--sequences', '1')).stdout);
    assert.match(JSON.stringify(plan.memory), /\b5 pages of 64 tokens/, '300 tokens');
    const wider = JSON.parse((await at('plan', 'hf:house/m', '-o', 'json', '--sequences', '1', '-c', '640')).stdout);
    assert.match(JSON.stringify(wider.memory), /\b10 pages of 64 tokens/);
    write({ offline: true });
    assert.match((await at('pull', 'hf:house/m')).stderr, /--offline/);
    assert.equal((await at('synth', 'qwen3', path.join(work, 'cache-x.gguf'), '--layers', '1')).code, 0, 'a command without such options');
    const without = await at('pull', 'hf:house/m', '--no-config', '--mirror', hosts.url);
    assert.equal(without.code, 0, without.stderr);
  });
  test('a wrong key, type or text: one line with the file\'s name', async () => {
    for (const [value, words] of [[{ conections: 2 }, /--conections/], [{ prompt: 'x' }, /--prompt/], [{ 'no-config': true }, /--no-config/], [{ connections: 'many' }, /--connections wants a whole number/],
      [{ connections: [1] }, /--connections/], [{ offline: 'yes' }, /--offline/], [{ mirror: true }, /--mirror/], ['{', /line 1/], ['[]', /must be an object/], [{ connections: {} }, /--connections/]]) {
      write(value);
      const ended = await at('list');
      assert.ok(ended.code > 0, JSON.stringify(value));
      assert.match(ended.stderr, words);
      assert.ok(ended.stderr.includes(file), ended.stderr);
      assert.equal(ended.stderr.trim().split('\n').length, 1, ended.stderr);
      assert.equal((await at('list', '--no-config')).code, 0);
    }
    fs.rmSync(home, { recursive: true });
  });
});
