// GET / as HTTP: the page's bytes, the policy that fits them, tags, and that it needs no key.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { ask, get, start } from './support.mjs';

const sources = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../server/page');
let server, page;
before(async () => {
  server = await start({ key: 'secret' });
  page = await ask(server, '/', { key: null, headers: { authorization: '' } });
});
after(() => server?.stop());

const hash = (text) => `'sha256-${createHash('sha256').update(text, 'utf8').digest('base64')}'`;
const policy = () =>
  new Map(page.headers['content-security-policy'].split(';').map((one) => one.trim().split(/ (.*)/s)));
/** What stands inside all elements of a name. */
const inside = (name) =>
  [...page.text.matchAll(new RegExp(`<${name}[^>]*>([^]*?)</${name}>`, 'g'))].map((match) => match[1]);

test('the page is open, and what it asks for is not', async () => {
  assert.equal(page.status, 200);
  assert.equal(page.headers['content-type'], 'text/html; charset=utf-8');
  assert.equal(page.headers['x-content-type-options'], 'nosniff');
  assert.equal(page.headers['referrer-policy'], 'no-referrer');
  assert.equal(Number(page.headers['content-length']), Buffer.byteLength(page.text));
  assert.equal((await ask(server, '/v1/models', { key: 'wrong' })).status, 401);
  assert.ok((await get(server, '/v1/models')).data.length > 0);
});

test('its policy allows one script and one style, by the hashes of what is served', () => {
  const rules = policy();
  const [script, style] = [inside('script'), inside('style')];
  assert.deepEqual([script.length, style.length], [1, 1]);
  assert.equal(rules.get('script-src'), hash(script[0]));
  assert.equal(rules.get('style-src'), hash(style[0]));
  for (const name of ['default-src', 'base-uri', 'form-action', 'frame-ancestors'])
    assert.equal(rules.get(name), "'none'", name);
  assert.equal(rules.get('connect-src'), "'self'");
  assert.equal(rules.get('img-src'), 'data: blob:');
  assert.equal(rules.get('require-trusted-types-for'), "'script'");
  assert.doesNotMatch(page.headers['content-security-policy'], /unsafe|\*|https?:/);
});

test('nothing in it is from another address, and no attribute is a script or a style', () => {
  const markup = page.text.replace(/<(script|style)>[^]*?<\/\1>/g, '').replace(/"data:[^"]*"/g, '""');
  assert.doesNotMatch(markup, /\s(on\w+|style)\s*=/i);
  const addresses = [...markup.matchAll(/\s(src|srcset|href|action|poster|data)\s*=\s*("[^"]*"|[^\s>]*)/gi)].map(
    (match) => match[2],
  );
  assert.ok(addresses.length > 0);
  for (const address of addresses) assert.match(address, /^"(#[^"]*)?"$/);
  assert.doesNotMatch(inside('style')[0], /@import|url\(|@font-face/);
  assert.doesNotMatch(
    inside('script')[0],
    /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bimport\(/,
  );
});

test('every source is in it as it stands', () => {
  for (const name of fs.readdirSync(sources)) {
    if (name !== 'page.html') assert.ok(page.text.includes(fs.readFileSync(path.join(sources, name), 'utf8')), name);
  }
});

test('HEAD is GET without the body', async () => {
  const head = await ask(server, '/', { method: 'HEAD' });
  assert.equal(head.status, 200);
  assert.equal(head.text, '');
  for (const name of ['content-type', 'content-length', 'etag', 'content-security-policy', 'cache-control']) {
    assert.equal(head.headers[name], page.headers[name], name);
  }
});

test('a page that the browser has is not sent again', async () => {
  const { etag } = page.headers;
  assert.match(etag, /^"[0-9a-f]{64}"$/);
  assert.equal(etag.slice(1, -1), createHash('sha256').update(page.text, 'utf8').digest('hex'));
  assert.equal(page.headers['cache-control'], 'no-cache');
  for (const known of [etag, `W/${etag}`, `"other", ${etag}`, `W/"a" ,\t${etag} `, '*']) {
    const answer = await ask(server, '/', { headers: { 'if-none-match': known } });
    assert.equal(answer.status, 304, known);
    assert.equal(answer.text, '');
    assert.equal(answer.headers.etag, etag);
  }
  for (const other of ['"other"', etag.slice(0, -2) + '"', etag.slice(1, -1), `${etag}x`, '', ',', 'W/']) {
    assert.equal((await ask(server, '/', { headers: { 'if-none-match': other } })).status, 200, other);
  }
});

test('other methods are refused by name', async () => {
  const answer = await ask(server, '/', { method: 'POST', body: '{}' });
  assert.equal(answer.status, 405);
  assert.match(answer.headers.allow, /GET, HEAD/);
});
