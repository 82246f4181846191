// The page's Markdown: hostile texts, texts that grow, and how long it all takes.
//
//   node tests/page/markdown.test.mjs
import assert from 'node:assert/strict';
import test from 'node:test';

import { SHAPES, URLS } from './hostile.mjs';
import { document, html, loadMarkdown, made, walk } from './page_dom.mjs';

const markdown = loadMarkdown();
const render = (text, options) => html(markdown.render(text, options));

// ---- nothing that runs, nothing that loads ----

const ELEMENTS = new Set(['A', 'BLOCKQUOTE', 'BR', 'BUTTON', 'CODE', 'DEL', 'DIV', 'EM', 'H1', 'H2', 'H3', 'H4', 'H5', 'H6', 'HR', 'INPUT', 'LI', 'OL',
  'P', 'PRE', 'SPAN', 'STRONG', 'TABLE', 'TBODY', 'TD', 'TH', 'THEAD', 'TR', 'UL']);
const ATTRIBUTES = new Set(['checked', 'class', 'disabled', 'href', 'rel', 'start', 'tabindex', 'target', 'title', 'type']);
const BIDI = /[\u202A-\u202E\u2066-\u2069]/;

function safe(tree, text) {
  let depth = 0;
  for (const node of walk(tree)) {
    if (node.nodeType === 3) {
      assert.ok(!BIDI.test(node.data), `a character that reorders text is left: ${JSON.stringify(text)}`);
      continue;
    }
    if (node.nodeType !== 1) continue;
    assert.ok(ELEMENTS.has(node.nodeName), `<${node.nodeName}> from ${JSON.stringify(text)}`);
    for (const { name, value } of node.attributes) {
      assert.ok(ATTRIBUTES.has(name), `attribute ${name} from ${JSON.stringify(text)}`);
      assert.ok(!BIDI.test(value), `attribute ${name} reorders text: ${JSON.stringify(text)}`);
      if (name === 'href') {
        // As browsers read addresses: WHATWG's parser drops tabs and line ends, and blanks in front.
        assert.ok(['http:', 'https:', 'mailto:'].includes(new URL(value, 'x-base:/').protocol), `${value} from ${JSON.stringify(text)}`);
        assert.equal(node.getAttribute('rel'), 'noopener noreferrer');
        assert.equal(node.getAttribute('target'), '_blank');
      }
    }
    let above = 0;
    for (let one = node; one; one = one.parentNode) above++;
    depth = Math.max(depth, above);
  }
  assert.ok(depth < 120, `${depth} elements deep`);
  return tree;
}

test('hostile texts give plain elements, and links to http, https and mailto alone', () => {
  assert.ok(SHAPES.length > 900);
  for (const text of SHAPES) {
    safe(markdown.render(text), text);
    const container = document.createElement('div');
    for (let end = 1; end <= Math.min(text.length, 60); end++) markdown.update(container, text.slice(0, end));
    markdown.update(container, text, { done: true });
    safe(container, text);
  }
});

test('no shape of a refused address becomes a link', () => {
  for (const url of URLS) {
    for (const text of [`[x](${url})`, `[x](<${url}>)`, `![x](${url})`, `[x]\n\n[x]: ${url}`, `<${url}>`]) {
      for (const node of walk(markdown.render(text))) {
        const href = node.nodeName === 'A' ? node.getAttribute('href') : null;
        assert.ok(href === null || (/^https?:\/\/a\.b/.test(href) && url.includes('https://a.b')), `${href} from ${JSON.stringify(text)}`);
      }
    }
  }
});

test('an address with a control character is text, wherever that stands', () => {
  for (const piece of ['&#1;', '&#9;', '&#10;', '&#127;', '&#x85;']) assert.doesNotMatch(render(`[x](https://a.b/${piece}c) [y](<https://a.b/${piece}>)`), /<a/, piece);
});

test('links that are allowed are links, whatever the case of their scheme', () => {
  for (const url of ['http://a.b', 'https://a.b/c?d=e&f#g', 'HTTPS://A.B', 'mailto:a@b.c', 'http://[::1]:8080/x', 'https://xn--a/b']) {
    assert.equal(render(`[x](${url})`), `<p><a href="${url.replace(/&/g, '&amp;')}" rel="noopener noreferrer" target="_blank">x</a></p>`);
  }
});

test('HTML is text, and <br> breaks a line of a cell', () => {
  assert.equal(markdown.render('<b>x</b> & <script>y</script>').textContent, '<b>x</b> & <script>y</script>');
  assert.equal(render('a<br>b'), '<p>a&lt;br&gt;b</p>');
  assert.match(render('| a |\n|---|\n| b<br/>c |'), /<td>b<br>c<\/td>/);
});

test('images are links with their alt text, and never loaded', () => {
  const a = (inside) => `<p><a href="https://a.b/c.png" rel="noopener noreferrer" target="_blank" class="md-image">${inside}</a></p>`;
  assert.equal(render('![a *cat*](https://a.b/c.png)'), a('a cat'));
  assert.equal(render('![](https://a.b/c.png)'), a('https://a.b/c.png'));
  assert.equal(render('![x](data:image/png;base64,AA)'), '<p><span class="md-unlinked md-image" title="data:image/png;base64,AA">x</span></p>');
});

test('characters that reorder text: marks in code, gone elsewhere, kept for who copies the code', () => {
  assert.equal(render('a\u202Eb'), '<p>ab</p>');
  assert.equal(render('`a\u202Eb`'), '<p><code>a<span class="md-bidi">U+202E</span>b</code></p>');
  const tree = markdown.render('```\nx\u2066y\n```', { highlight: false });
  assert.match(html(tree), /<code>x<span class="md-bidi">U\+2066<\/span>y\n<\/code>/);
  for (let code = 0x202a; code <= 0x2069; code++) {
    const c = String.fromCharCode(code);
    if (BIDI.test(c)) assert.ok(!BIDI.test(markdown.render(`a${c} \`b${c}\` [c${c}](https://a.b/${c} "${c}")\n\n    d${c}`).textContent), code.toString(16));
  }
});

test('addresses as they stand', () => {
  const link = (url) => `<a href="${url}" rel="noopener noreferrer" target="_blank">${url}</a>`;
  assert.equal(render('see https://a.b/c_d_e. (http://a.b/f(g)) **https://a.b** "https://a.b", xhttps://a.b'),
    `<p>see ${link('https://a.b/c_d_e')}. (${link('http://a.b/f(g)')}) <strong>${link('https://a.b')}</strong> &quot;${link('https://a.b')}&quot;, xhttps://a.b</p>`);
  assert.equal(render('去 https://a.b/c。好'), `<p>去 ${link('https://a.b/c')}。好</p>`);
  assert.equal(render('https:// and `https://a.b`'), '<p>https:// and <code>https://a.b</code></p>');
});

test('tables: how columns are aligned, and which are not squeezed', () => {
  assert.equal(render(`|a|b|c|d|\n|:-|:-:|-:|-|\n|1|2|${'x'.repeat(40)}|`), '<div class="md-scroll" tabindex="0"><table><thead><tr><th class="md-left">a</th><th class="md-center">b</th>' +
    '<th class="md-right">c</th><th>d</th></tr></thead><tbody><tr><td class="md-left">1</td><td class="md-center">2</td>' +
    `<td class="md-right md-long">${'x'.repeat(40)}</td><td></td></tr></tbody></table></div>`);
});

test('lists of tasks', () => {
  assert.equal(render('- [ ] a\n- [x] b\n- [y] c\n- [ ]'), '<ul><li class="md-task"><input type="checkbox" disabled=""> a</li>' +
    '<li class="md-task"><input type="checkbox" disabled="" checked=""> b</li><li>[y] c</li><li>[ ]</li></ul>');
});

test('code blocks carry their language and text', () => {
  const tree = markdown.render('```py x\na\n```', { highlight: false });
  assert.equal(html(tree), '<div class="md-code"><div class="md-code-bar"><span class="md-language">py</span><button class="md-copy" type="button">Copy</button></div>' +
    '<pre tabindex="0"><code class="language-py">a\n</code></pre></div>');
  const coloured = markdown.render('```py\na\n```', { highlight: (text, language) => {
    const part = document.createDocumentFragment();
    part.appendChild(document.createTextNode(`${language}:${text}`));
    return part;
  } });
  assert.match(html(coloured), /<code class="language-py">py:a\n<\/code>/);
});

// ---- texts that grow ----

const LONG = `# A title with *marks*

A paragraph with **strong** and a [link](https://a.b/c "t"), \`code\`, ~~old~~ and [a reference][r].
It has a second line.  
And a third.

1. one
2. two
   - nested *item*
   - [x] done

   more of two
3. three

| a | b |
|:--|--:|
| 1 | **2** |
| 3 | 4 |

> quoted
lazily

\`\`\`python
def f(x):
    return x ** 2
\`\`\`

Title
=====

    indented

***

[r]: https://a.b/r "R"

* a
*b* and __c__
`;

test('a text that grew, in steps of any size, looks like the text at once', () => {
  const whole = render(LONG);
  for (const step of [1, 2, 3, 7, 50, 10000]) {
    const container = document.createElement('div');
    for (let end = step; end < LONG.length; end += step) markdown.update(container, LONG.slice(0, end));
    markdown.update(container, LONG, { done: true });
    assert.equal(html(container), `<div>${whole}</div>`, `steps of ${step}`);
  }
});

test('random texts that grow, with lines ended in three ways', () => {
  const pieces = ['a', 'b ', '*', '**', '_', '~~', '`', '[r]', '](/u)', '\n', '\n\n', '\r\n', '> ', '- ', '1. ', '  ', '    ', '# ', '```', '---', '| a ', '|\n|-|\n', '\n[r]: https://a.b\n', '\n[r]: https://c.d\n', '<b>', '<!--'];
  let seed = 7;
  const random = (below) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor(seed / 2147483648 * below);
  };
  for (let round = 0; round < 1500; round++) {
    const container = document.createElement('div');
    let text = '';
    for (let length = 2 + random(20); length > 0; length--) {
      text += pieces[random(pieces.length)];
      markdown.update(container, text);
    }
    markdown.update(container, text, { done: true });
    assert.equal(html(container), `<div>${render(text)}</div>`, JSON.stringify(text));
  }
});

test('a text that turned into another is shown, and a shorter one', () => {
  const container = document.createElement('div');
  for (const text of ['# a\n\nb\n\nc', '# x\n\nb\n\nc', '# x', '', 'y\n\n- z']) {
    markdown.update(container, text, { done: true });
    assert.equal(html(container), `<div>${render(text)}</div>`);
  }
});

test('only blocks that changed are made again', () => {
  const container = document.createElement('div');
  const text = 'para *a* `b`\n\n- x\n- y\n\n'.repeat(200);
  markdown.update(container, text);
  const nodes = container.childNodes.slice(0, -1);
  const before = made.elements;
  markdown.update(container, `${text}new`);
  markdown.update(container, `${text}new words`);
  markdown.update(container, `${text}new words\n\nand more`);
  assert.ok(made.elements - before < 40, `${made.elements - before} elements were made`);
  nodes.forEach((node, i) => assert.equal(container.childNodes[i], node));
});

test('the nodes of a block that grows stay, its text is set', () => {
  const container = document.createElement('div');
  markdown.update(container, '```\nfirst\n');
  const code = container.firstChild.childNodes[1].firstChild;
  const text = code.firstChild;
  markdown.update(container, '```\nfirst\nsecond\n');
  assert.equal(container.firstChild.childNodes[1].firstChild, code);
  assert.equal(code.firstChild, text);
  assert.equal(text.data, 'first\nsecond\n');
});

test('a definition that comes late mends what refers to it, and nothing else', () => {
  const container = document.createElement('div');
  markdown.update(container, 'see [x]\n\nplain\n\n');
  const plain = container.childNodes[1];
  markdown.update(container, 'see [x]\n\nplain\n\n[x]: https://a.b\n\nend');
  assert.match(html(container.firstChild), /<p>see <a href="https:\/\/a\.b"/);
  assert.equal(container.childNodes[1], plain);
});

test('marks that are open at the end do not flicker', () => {
  const shape = (text) => {
    const container = document.createElement('div');
    markdown.update(container, text);
    return html(container).slice(5, -6);
  };
  assert.equal(shape('a **bo'), '<p>a <strong>bo</strong></p>');
  for (const tail of ['a **bold', 'a **bold*', 'a **bold**']) assert.equal(shape(tail), '<p>a <strong>bold</strong></p>', tail);
  for (const tail of ['a ', 'a *', 'a **']) assert.equal(shape(tail), '<p>a</p>', tail);
  assert.equal(shape('a *b **c'), '<p>a <em>b <strong>c</strong></em></p>');
  assert.equal(shape('a ~~b'), '<p>a <del>b</del></p>');
  assert.equal(shape('a `co'), '<p>a <code>co</code></p>');
  assert.equal(shape('a [text](https://exa'), '<p>a <span class="md-unlinked">text</span></p>');
  assert.equal(shape('2 * 3 and 4'), '<p>2 * 3 and 4</p>');
  for (const tail of ['x\n', 'x\n-', 'x\n---', 'x\n=', 'x\n``', 'x\n#', 'x\n1.', 'x\n- ', 'x\n>']) assert.equal(shape(tail), '<p>x</p>', JSON.stringify(tail));
  for (const tail of ['```c\nx\n', '```c\nx\n`', '```c\nx\n```']) assert.match(shape(tail), /<code class="language-c">x\n<\/code>/);
  for (const tail of ['| a | b |', '| a | b |\n', '| a | b |\n|', '| a | b |\n| --', '| a | b |\n| --- | :-', '| a | b |\n|---|---|\n']) {
    assert.match(shape(tail), /<thead><tr><th>a<\/th><th>b<\/th><\/tr><\/thead><\/table>/, JSON.stringify(tail));
  }
});

test('over a whole text, no block turns into another while it grows', () => {
  const container = document.createElement('div');
  let names = [];
  let changes = 0;
  for (let end = 1; end <= LONG.length; end++) {
    markdown.update(container, LONG.slice(0, end));
    const now = container.childNodes.map((node) => node.nodeName);
    for (let i = 0; i < names.length; i++) if (now[i] !== names[i]) changes++;
    names = now;
  }
  assert.ok(changes <= 2, `${changes} blocks changed their kind`); // a title that is underlined; "[r]", of a definition
});

// ---- time and depth ----

const K100 = 100000;
const fill = (piece) => piece.repeat(Math.ceil(K100 / piece.length));
const HOSTILE = {
  '[': fill('['), '![': fill('!['), ']': fill(']'), '[]': fill('[]'), '[](': fill('[]('), '[a](b': fill('[a](b'), '[a](<b': fill('[a](<b'), '[a](b "': fill('[a](b "'), "[a](b '": fill("[a](b '"),
  '[a](b (': fill('[a](b ('), '[ then ]': '['.repeat(K100 / 2) + ']'.repeat(K100 / 2), '[[ then ](u)': `${'['.repeat(K100 / 2)}${'](u)'.repeat(K100 / 8)}`, '![ then ](u)': `${'!['.repeat(K100 / 4)}${'](u)'.repeat(K100 / 8)}`,
  '[ and many links': '['.repeat(K100 / 2) + '[a](b)'.repeat(K100 / 12), '[a][b': fill('[a][b'), '[a]: b': fill('[a]: b\n'), 'definitions': Array.from({ length: 8000 }, (_, i) => `[a${i}]: b`).join('\n') + '\n\n' + '[a1]'.repeat(1000),
  '*': fill('*'), '* spaced': fill('* '), '*a': fill('*a '), 'a*': fill('a* '), '**a *a': fill('**a *a '), '*a_': fill('*a_ '), '_ in words': fill('a_'), 'a**b': fill('a**b'), '*a then a*': fill('*a ').slice(0, K100 / 2) + fill('a* ').slice(0, K100 / 2),
  '***a then': fill('***a ').slice(0, K100 / 2) + fill('a** ').slice(0, K100 / 2), '*_~~': fill('*_~~a '), '~~': fill('~~a '), '~': fill('~'), 'a***b': fill('a***b*c'),
  '>': fill('>'), '> ': fill('> '), '> lines': fill('> a\n'), '>>>> lines': fill(`${'>'.repeat(60)}\n`), '- - -': fill('- '), '- lines': fill('- a\n'), 'nested lists': Array.from({ length: 440 }, (_, i) => `${' '.repeat(i)}- a`).join('\n'),
  '1. 1. 1.': fill('1. '), 'many items, deep': fill(`${'- '.repeat(20)}a\n`), 'deep, then blank lines': `${'- '.repeat(23)}a\n${fill('\n')}`, 'deep, then indented lines': `${'- '.repeat(23)}a\n${fill(`${' '.repeat(48)}b\n`)}`,
  '`': fill('`'), '` ``': Array.from({ length: 440 }, (_, i) => '`'.repeat(i + 1)).join(' '), '`a': fill('`a``b'), '`` unclosed': fill('``a`'), '\\`': fill('\\`'), '```': fill('```\n'), '``` unclosed': `\`\`\`\n${fill('a\n')}`,
  '<': fill('<'), '<a': fill('<a '), '<a b="': fill('<a b="'), "<a b='": fill("<a b='\""), '<!--': fill('<!--'), '<!-- b': fill('a <!-- b '), '<?': fill('a <?'), '<![CDATA[': fill('a <![CDATA['), '<!A': fill('a <!A'),
  '<a:': fill('<a:'), '<aa:': fill('<aa:b'), '<a@': fill('<a@b.'), '<a attributes': `<a${fill(' b')}`, '<a blanks': `<a${fill(' ')}`, '</': fill('</'), '<div>': fill('<div>\n'), 'a@b': `<a@${fill('b.')}>`,
  '&': fill('&'), '&a': fill('&amp'), '&#': fill('&#1'), '\\': fill('\\'), '!': fill('!'), ':': fill(':'), 'http://': fill('http://'), 'http://a': fill('http://a.b '), 'http://a(': `http://a${fill('(')}`, 'http://a)))': `http://a${fill('.,')}`,
  'blanks': fill(' '), 'tabs': fill('\t'), 'lines': fill('\n'), 'blanks and lines': fill(' \n'), 'a  ': `a${fill(' ')}b`, 'blanks in a line': fill('a        \n'), '#': fill('#'), '# #': `# a${fill(' #')}`, '# lines': fill('# a\n'), '---': fill('-'), '- rule x': `${fill('- ')}x`, '* * x': `${fill('* ')}x`, '=': fill('a\n=\n'),
  '|': fill('|'), '| lines': fill('|\n'), '| a': fill('| a '), 'wide table': `${fill('|a').slice(0, K100 / 3)}\n${fill('|-').slice(0, K100 / 3)}\n`, 'long table': `|a|b|\n|-|-|\n${fill('|c|d|\n')}`, 'short rows of a wide table': `${'|a'.repeat(250)}\n${'|-'.repeat(250)}\n${fill('|\n')}`,
  'delimiters': `a\n${fill('|-').slice(0, K100)}x`, 'delimiters of blanks': `a|b\n-|${fill(' ')}x`, 'tables': fill('|a|\n|-|\n|b|\n\n'), 'one long word': fill('a'), 'one character of each': Array.from({ length: 40000 }, (_, i) => String.fromCharCode(i + 32)).join(''), 'half characters': fill('\uD800'),
  'setext of definitions': fill('[a]: b\n==='), 'quote and fence': fill('> ```\n'), 'label of 999': fill(`[${'a'.repeat(990)}][${'b'.repeat(990)}`), 'bidi': fill('\u202E'), 'bidi in code': `\`\`\`\n${fill('\u202Ea')}\n\`\`\``, 'tasks': fill('- [x] a\n'),
};
const BOUND = 5000; // milliseconds of a processor; linear takes 10 to 300, on a slow machine twice that, and what is quadratic tens of seconds
const processor = () => {
  const { user, system } = process.cpuUsage(); // what runs beside it on this machine does not count
  return (user + system) / 1000;
};

test('100 KB of anything hostile takes linear time and bounded depth', () => {
  const slow = [];
  for (const [name, text] of Object.entries(HOSTILE)) {
    const begin = processor();
    const tree = markdown.render(text, { highlight: false });
    const time = processor() - begin;
    slow.push([time, name]);
    assert.ok(time < BOUND, `${name}: ${time.toFixed(0)} ms`);
    safe(tree, name);
  }
  slow.sort((a, b) => b[0] - a[0]);
  console.log(`# slowest of ${slow.length}: ${slow.slice(0, 5).map(([time, name]) => `${name} ${time.toFixed(0)} ms`).join(', ')}`);
});

test('what grew by one character costs what its last block costs', () => {
  const cost = (before) => {
    const container = document.createElement('div');
    let text = 'a paragraph with *some* `marks`\n\n'.repeat(before);
    markdown.update(container, text);
    const begin = processor(), elements = made.elements;
    for (let i = 0; i < 2000; i++) {
      text += i % 40 === 39 ? '\n\n' : 'x';
      markdown.update(container, text);
    }
    return [processor() - begin, made.elements - elements];
  };
  const [, fewMade] = cost(30), [many, manyMade] = cost(3000); // 1 KB and 100 KB
  assert.equal(manyMade, fewMade);
  const begin = processor();
  for (let i = 0; i < 5; i++) markdown.update(document.createElement('div'), 'a paragraph with *some* `marks`\n\n'.repeat(3000));
  const whole = (processor() - begin) / 5, each = many / 2000;
  console.log(`# an update behind 100 KB: ${each.toFixed(2)} ms, all of it: ${whole.toFixed(0)} ms`);
  // Looking for the last block still reads the text once.
  assert.ok(each < whole / 8, `${each.toFixed(2)} ms, and ${whole.toFixed(2)} ms for all of it`);
});
