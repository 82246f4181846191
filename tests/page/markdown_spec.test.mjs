// The page's Markdown against CommonMark's own examples, and against another program's tables and strikethrough.
//
//   node tests/page/markdown_spec.test.mjs [--packages FOLDER]
//
// FOLDER gets the packages of markdown/package-lock.json (else build/page-packages). Examples are compared as HTML in
// which blanks that do not count are taken out. Differences that are meant are listed below; each of those examples is
// compared with what it must be instead, so none goes unlooked at.
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

import { here, html, loadMarkdown, root } from './page_dom.mjs';

const words = process.argv.slice(2);
const folder = path.resolve(words.includes('--packages') ? words[words.indexOf('--packages') + 1] : path.join(root, 'build/page-packages'));

function packages() {
  const lock = fs.readFileSync(path.join(here, 'markdown/package-lock.json'));
  const installed = path.join(folder, 'installed.json');
  if (fs.existsSync(installed) && fs.readFileSync(installed).equals(lock)) return;
  fs.mkdirSync(folder, { recursive: true });
  for (const name of ['package.json', 'package-lock.json', '.npmrc']) {
    fs.copyFileSync(path.join(here, 'markdown', name), path.join(folder, name));
  }
  try {
    execFileSync('npm', ['ci'], { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'], timeout: 120000 });
  } catch (error) {
    console.log(`skipped: npm ci in ${folder}: ${String(error.stderr ?? error.message).split('\n')[0]}`);
    process.exit(77);
  }
  fs.writeFileSync(installed, lock);
}
packages();
const require = createRequire(path.join(folder, 'package.json'));
const modules = (name) => import(pathToFileURL(require.resolve(name)).href);
const spec = fs.readFileSync(path.join(folder, 'node_modules/commonmark-spec/spec.txt'), 'utf8');
const commonmark = require('commonmark');
const { micromark } = await modules('micromark');
const { gfmTable, gfmTableHtml } = await modules('micromark-extension-gfm-table');
const { gfmStrikethrough, gfmStrikethroughHtml } = await modules('micromark-extension-gfm-strikethrough');

// ---- both sides in one form ----

const permitted = (url) => /^(?:https?:\/\/[^/?#\\]|mailto:[^?])/i.test(url);

// What the page writes in its own way, as CommonMark's reference writes it.
function common(element, inside) {
  const name = element.nodeName.toLowerCase();
  const kind = element.getAttribute('class') ?? '';
  const is = (word) => kind.split(' ').includes(word);
  if (name === 'div' && is('md-code')) return html(element.childNodes[1], common);
  if (name === 'div' && is('md-scroll')) return inside();
  if (name === 'p' && is('md-html')) return `\n${inside()}\n`;
  if (name === 'pre') return { attributes: [] };
  if (name === 'th' || name === 'td') return { attributes: ['left', 'center', 'right'].filter((one) => is(`md-${one}`)).map((value) => ({ name: 'align', value })) };
  if (name !== 'a' && !is('md-unlinked')) return null;
  const url = name === 'a' ? element.getAttribute('href') : element.getAttribute('title') ?? '';
  const title = name === 'a' && element.getAttribute('title') !== null ? [{ name: 'title', value: element.getAttribute('title') }] : [];
  if (!is('md-image')) return { name: 'a', attributes: [{ name: 'href', value: url }, ...title] };
  return { name: 'img', attributes: [{ name: 'src', value: url }, { name: 'alt', value: element.textContent }, ...title] };
}

const BLOCKS = 'p|h[1-6]|hr|blockquote|ul|ol|li|pre|table|thead|tbody|tr|th|td|div';
const BLOCK = new RegExp(`^</?(?:${BLOCKS})(?:\\s|>|/)`);
const decode = (text) => text.replace(/&quot;/g, '"').replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&amp;/g, '&');

// Tags with sorted attributes; blanks beside blocks' tags are dropped, others are one blank; code stays.
function normal(source) {
  const pieces = [];
  let code = 0;
  for (const [piece] of source.matchAll(/<\/?[a-z][^<>]*>|[^<]+|</gi)) {
    if (/^<\/?[a-z]/i.test(piece)) {
      if (/^<pre/.test(piece)) code++;
      if (/^<\/pre/.test(piece)) code--;
      const attributes = Array.from(piece.matchAll(/ ([a-z-]+)="([^"]*)"/g), ([, name, value]) => ` ${name}="${decode(value)}"`);
      const url = attributes.find((one) => / (?:href|src)=/.test(one));
      const kept = attributes.filter((one) => !one.startsWith(' title=') || !url || permitted(url.slice(url.indexOf('"') + 1, -1)));
      pieces.push(`${/^<\/?[a-z0-9]+/i.exec(piece)[0]}${kept.sort().join('')}>`);
    } else {
      const text = decode(piece);
      const last = pieces.length - 1;
      const joined = last >= 0 && pieces[last][0] === '\u0001' ? pieces.pop().slice(1) : '';
      pieces.push(`\u0001${joined}${code ? text : text.replace(/\s+/g, ' ')}`);
    }
  }
  for (let i = 0; i < pieces.length; i++) {
    if (pieces[i][0] !== '\u0001') continue;
    const inside = code || pieces[i - 1]?.startsWith('<code');
    if (i === 0 || BLOCK.test(pieces[i - 1]) || pieces[i - 1] === '<br>') pieces[i] = `\u0001${pieces[i].slice(1).replace(inside ? /^$/ : /^\s+/, '')}`;
    if (i === pieces.length - 1 || BLOCK.test(pieces[i + 1])) pieces[i] = pieces[i].replace(/\s+$/, '');
  }
  return pieces.filter((piece) => piece !== '\u0001').map((piece) => piece.replace('\u0001', '')).join('');
}

// ---- CommonMark's examples ----

const markdown = loadMarkdown();
const ours = (text) => normal(html(markdown.render(text), common));
const safe = (text) => normal(micromark(text));

// What is meant to be different: sections and single examples, why, and what the text must give instead.
const exactly = (expected) => () => normal(expected);
const HTML_IS_TEXT = ['raw HTML is shown as text', safe]; // micromark's output where HTML is not allowed
const DIFFERENT = {
  'HTML blocks': HTML_IS_TEXT,
  'Raw HTML': HTML_IS_TEXT,
  475: HTML_IS_TEXT,
  491: HTML_IS_TEXT,
  642: HTML_IS_TEXT,
  643: HTML_IS_TEXT,
  25: ["entities have HTML 4's names",
    exactly('<p>\u00a0 &amp; © Æ &amp;Dcaron;\n¾ &amp;HilbertSpace; &amp;DifferentialD;\n&amp;ClockwiseContourIntegral; &amp;ngE;</p>')],
  517: ['an image in a link is its alt text', exactly('<p><a href="/uri">moon</a></p>')],
  531: ['an image in a link is its alt text', exactly('<p><a href="/uri">moon</a></p>')],
  581: ['an image without alt text is shown by its address', exactly('<p><img src="/url" alt="/url" /></p>')],
  596: ['only http, https and mailto become links', exactly('<p>&lt;irc://foo.bar:2233/baz&gt;</p>')],
  598: ['only http, https and mailto become links', exactly('<p>&lt;a+b+c:d&gt;</p>')],
  599: ['only http, https and mailto become links', exactly('<p>&lt;made-up-scheme://foo,bar&gt;</p>')],
  601: ['only http, https and mailto become links', exactly('<p>&lt;localhost:5001/foo&gt;</p>')],
  602: ["an address is a link as it stands, as GFM's are",
    exactly('<p>&lt;<a href="https://foo.bar/baz">https://foo.bar/baz</a> bim&gt;</p>')],
  608: ["an address is a link as it stands, as GFM's are", exactly('<p>&lt; <a href="https://foo.bar">https://foo.bar</a> &gt;</p>')],
  611: ["an address is a link as it stands, as GFM's are", exactly('<p><a href="https://example.com">https://example.com</a></p>')],
};

const examples = [];
let section = '';
for (const [, head, text, expected] of spec.split('<!-- END TESTS -->')[0]
  .matchAll(/^#{1,6} +(.*)$|^`{32} example\n([\s\S]*?)^\.\n([\s\S]*?)^`{32}$/gm)) {
  if (head !== undefined) section = head;
  else examples.push({ number: examples.length + 1, section, text: text.replace(/→/g, '\t'), expected: expected.replace(/→/g, '\t') });
}

const reasons = new Map();
let failures = 0;
function fail(line) {
  failures++;
  console.log(`WRONG ${line}`);
}
const counts = { held: 0, different: 0, wrong: 0 };
for (const { number, section: part, text, expected } of examples) {
  const got = ours(text);
  const [why, instead] = DIFFERENT[number] ?? DIFFERENT[part] ?? [];
  if (got === normal(expected)) {
    counts.held++;
    if (DIFFERENT[number]) fail(`example ${number} is listed as different, and is not`);
  } else if (instead && got === instead(text)) {
    counts.different++;
    reasons.set(why, (reasons.get(why) ?? 0) + 1);
  } else {
    counts.wrong++;
    fail(`example ${number} (${part})\n  text     ${JSON.stringify(text)}\n  expected ${JSON.stringify((instead ?? (() => normal(expected)))(text))}
  got      ${JSON.stringify(got)}`);
  }
}
const total = examples.length;
console.log(`CommonMark 0.31.2, ${total} examples: ${counts.held} held, ${counts.different} deliberately different, ${counts.wrong} wrong`);
for (const [why, count] of reasons) console.log(`  ${count}: ${why}`);
if (total !== 652) fail(`spec.txt has ${total} examples, not 652`);

// ---- tables and strikethrough, against micromark ----

const gfm = (text) => normal(micromark(text, {
  extensions: [gfmTable(), gfmStrikethrough({ singleTilde: false })],
  htmlExtensions: [gfmTableHtml(), gfmStrikethroughHtml()],
}));

const TABLES = [
  '| foo | bar |\n| --- | --- |\n| baz | bim |', '| abc | defghi |\n:-: | -----------:\nbar | baz',
  '| f\\|oo  |\n| ------ |\n| b `\\|` az |\n| b **\\|** im |', '| abc | def |\n| --- | --- |\n| bar | baz |\n> bar',
  '| abc | def |\n| --- | --- |\n| bar | baz |\nbar\n\nbar', '| abc | def |\n| --- |\n| bar |',
  '| abc | def |\n| --- | --- |\n| bar |\n| bar | baz | boo |', '| abc | def |\n| --- | --- |', 'a | b\n- | -\n1 | 2', '| a |\n|---|\n| b |',
  'a\n:-', 'a\n-:\nb', 'a |\n--|', '|a|\n|:-:|', 'text\n| a | b |\n|---|---|\n| 1 | 2 |', 'text\nmore\na | b\n- | -\n1 | 2',
  '| a | b |\n|---|---|\n| 1 | 2 |\n- item', '| a | b |\n|---|---|\n| 1 | 2 |\n# head', '| a | b |\n|---|---|\n| 1 | 2 |\n```\ncode\n```',
  '| a | b |\n|---|---|\n| 1 | 2 |\n***', '| a | b |\n|---|---|\n| 1 | 2 |\n    code', '| a | b |\n|---|---|\n| 1 | 2 |\n1. one', '| a | b |\n|---|---|\n||\n|x',
  '> | a | b |\n> |---|---|\n> | 1 | 2 |', '> | a | b |\n> |---|---|\n| 1 | 2 |', '- | a | b |\n  |---|---|\n  | 1 | 2 |\n- x', '1. text\n   | a |\n   |---|\n   | 1 |',
  '| `a|b` | c |\n|---|---|---|\n| 1 | 2 | 3 |', '| *a | b* |\n|---|---|\n| [x](y|z) | 2 |', '| a | b |\n| :-- | --: |\n| \\\\| x |', '|a|b|\n|-|-|\n|\\|',
  '  | a | b |\n |---|---|\n   | 1 | 2 |', '| a | b |\n    |---|---|', '# x\n| a |\n| - |', '| a | b |\n|---|---|\n\n| 1 | 2 |', '|\n|-', '||\n|-|', 'a|b\n-|-|-',
  '| a | b |\n|===|---|', '| a | b |\n|--- ---|---|', '| a | b |\n| :-: | :- |\n| **x** | ~~y~~ |', '| a\n| -\n| b', '|a|\n|-|\n<div>\nx', '| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |\n| 4 | 5 |',
  '| x |\n|---|\n| a &#124; b |', '[a]: /u\n| b |\n|---|\n| [a] |', '- a\n| b |\n|---|', '> a\n| b |\n|---|', '| a |\n| - |\n| b |\n=====',
];
const STRUCK = [
  '~~Hi~~ Hello, there', 'This ~~has a\n\nnew paragraph~~.', 'This will ~~~not~~~ strike.', '~~a~~b~~', '~~ a~~', '~~a ~~', 'a~~b~~c', '~~*a*~~', '*~~a*~~', '**~~a~~**',
  '~~a **b~~ c**', '~~a~~~', '~~~a~~', '\\~~a~~', '~~a\\~~', '~a~', '~~a~ b~~', '`~~a~~`', '[~~a~~](/u)', '~~[a~~](/u)', '~~"a"~~b', '~~a~~ ~~b~~', '~~~~', '~~a ~~b~~ c~~',
];
for (const [what, texts] of [['tables', TABLES], ['strikethrough', STRUCK]]) {
  let held = 0;
  for (const text of texts) {
    const got = ours(text);
    if (got === gfm(text)) held++;
    else fail(`${what}\n  text      ${JSON.stringify(text)}\n  micromark ${JSON.stringify(gfm(text))}\n  got       ${JSON.stringify(got)}`);
  }
  console.log(`GFM ${what}: ${held} of ${texts.length} as micromark writes them`);
}

// ---- random texts of everything that changes how lines and marks are read: as the reference implementation writes
// them, or as micromark does, which knows tables ----

const renderer = new commonmark.HtmlRenderer();
renderer.html_inline = function (node) { this.out(node.literal); };
renderer.html_block = function (node) { this.cr(); this.out(node.literal); this.cr(); };
const reference = (text) => normal(renderer.render(new commonmark.Parser().parse(text)));


const PIECES = ['a', 'b ', '*', '**', '_', '__', '~~', '`', '``', '[', ']', '](/u)', '](/u "t")', '[r]', '\\', '\n', '\n', '\n', '\n\n', '> ', '- ', '* ',
  '1. ', '2) ', '  ', '    ', '\t', '# ', '```', '~~~', '---', '===', '| ', '|-|-|\n', '\n[r]: /x\n', '(', ')', '"', '<b>', '</b>', '<div>', '<!--', '-->', '&amp;', '  \n', '.', 'é', '“'];
let seed = 1;
const random = (below) => {
  seed = (seed * 1103515245 + 12345) % 2147483648;
  return Math.floor(seed / 2147483648 * below);
};
const ROUNDS = Number(words[words.indexOf('--rounds') + 1]) || 4000;
let same = 0;
for (let round = 0; round < ROUNDS; round++) {
  let text = '';
  for (let length = 1 + random(24); length > 0; length--) text += PIECES[random(PIECES.length)];
  const got = ours(text), expected = gfm(text);
  if (got === expected || got === reference(text)) same++;
  else if (failures < 20) fail(`random text ${round}\n  text      ${JSON.stringify(text)}\n  micromark ${JSON.stringify(expected)}\n  reference ${JSON.stringify(reference(text))}\n  got       ${JSON.stringify(got)}`);
}
console.log(`random texts: ${same} of ${ROUNDS} as commonmark.js or micromark writes them`);
process.exit(failures ? 1 : 0);
