// The page's colours of code: nothing of a text is lost, what is what, and how long it takes.
//
//   node tests/page/highlight.test.mjs
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';

import { document, html, load, loadMarkdownWithHighlight, made, root } from './page_dom.mjs';

const highlight = load(['highlight.js'], 'highlight');
const LANGUAGES = ['c', 'c++', 'cpp', 'cuda', 'python', 'javascript', 'typescript', 'json', 'bash', 'html', 'xml', 'css', 'rust', 'go', 'java', 'sql', 'yaml', 'diff', 'markdown'];
const ONE_EACH = LANGUAGES.filter((name) => !['c++', 'cpp', 'cuda', 'typescript', 'xml'].includes(name));

// [class, text] of every span.
const spans = (text, language) => highlight.code(text, language).childNodes
  .filter((node) => node.nodeType === 1).map((node) => [node.getAttribute('class').slice(3), node.textContent]);
// Each of `expected` is among the spans, as "class text".
function has(language, text, ...expected) {
  const found = spans(text, language).map(([kind, piece]) => `${kind} ${piece}`);
  for (const one of expected) assert.ok(found.includes(one), `${language}: no ${JSON.stringify(one)} in ${JSON.stringify(found)}`);
}
function lacks(language, text, ...unwanted) {
  const found = spans(text, language).map(([kind, piece]) => `${kind} ${piece}`);
  for (const one of unwanted) assert.ok(!found.includes(one), `${language}: ${JSON.stringify(one)}`);
}

test('the joined text is the text, for every language over files of this repository', () => {
  const tracked = execFileSync('git', ['-C', root, 'ls-files'], { encoding: 'utf8' }).split('\n')
    .filter((name) => /\.(c|h|cu|cuh|py|mjs|js|json|sh|md|css|html|yml|txt|cmake|service|gbnf)$/.test(name));
  const files = tracked.map((name) => path.join(root, name)).filter((name) => fs.statSync(name).size < 60000);
  assert.ok(files.length > 100, `${files.length} files`);
  const endings = new Set();
  files.forEach((name, i) => {
    const ending = path.extname(name);
    const some = endings.has(ending) && i % 37 !== 0 ? [] : ONE_EACH;
    endings.add(ending);
    const text = some.length ? fs.readFileSync(name, 'utf8') : '';
    for (const language of some) assert.equal(highlight.code(text, language).textContent, text, `${name} as ${language}`);
  });
});

test('texts cut anywhere keep their text', () => {
  const text = 'f("a\\"b", \'c\', `d ${e}`, /g[/]/, r#"h"#) # i\n/* j */ // k\n"""l"""\n<!-- m --><n o="p">&amp;\n--- q\n@@ r\n```s\nt\n```\n- [u](v)\n😀\u0000\u2028';
  for (const language of LANGUAGES) {
    for (let i = 0; i <= text.length; i++) {
      assert.equal(highlight.code(text.slice(0, i), language).textContent, text.slice(0, i), language);
      assert.equal(highlight.code(text.slice(i), language).textContent, text.slice(i), language);
    }
  }
});

test('C, C++ and CUDA', () => {
  has('c', '#include <a.h>\nstatic int f(void) { return 0x1Fu + \'\\n\'; } // end\n/* a\nb */ char *s = "x\\"y";', 'keyword #include', 'keyword static', 'keyword int', 'name f',
    'keyword return', 'number 0x1Fu', "string '\\n'", 'comment // end', 'comment /* a\nb */', 'string "x\\"y"');
  has('c++', 'template <typename T> auto g() -> T { throw 1.5e3f; }', 'keyword template', 'keyword typename', 'name g', 'keyword throw', 'number 1.5e3f');
  has('cuda', '__global__ void k(float *a) { __shared__ int s; k<<<1, 2>>>(a); }', 'keyword __global__', 'name k', 'keyword __shared__', 'number 1');
  lacks('c', 'a = "// no comment";', 'comment // no comment";');
});
test('Python', () => {
  has('python', '@cache\ndef f(x):\n    """Says\n    it."""\n    return f"{x}" + \'a#b\' # c\n', 'name @cache', 'keyword def', 'name f', 'string """Says\n    it."""', 'string f"{x}"', "string 'a#b'", 'comment # c');
});
test('JavaScript and TypeScript', () => {
  has('javascript', 'const a = b / c / d; x.replace(/[/"]\\//g, `q ${1}`); return /y/;', 'keyword const', 'string /[/"]\\//g', 'string `q ${1}`', 'name replace', 'string /y/');
  lacks('javascript', 'a = b / c / d;', 'string / c /');
  has('typescript', 'interface A { readonly b: string }', 'keyword interface', 'keyword readonly', 'keyword string');
});
test('JSON', () => has('json', '{"a": "b", "c" : [1.5e-3, true, null]}', 'name "a"', 'string "b"', 'name "c"', 'number 1.5e-3', 'keyword true', 'keyword null'));
test('bash', () => {
  has('bash', 'for f in *.c; do echo "$f" --flag -n ${x:-y} $1 # all\ndone', 'keyword for', 'keyword in', 'keyword do', 'string "$f"', 'name --flag', 'name -n', 'name ${x:-y}', 'name $1', 'comment # all', 'keyword done');
  lacks('bash', 'a#b', 'comment #b');
});
test('HTML and XML', () => {
  has('html', '<!-- c --><a href="x" hidden>text &amp;</a>', 'comment <!-- c -->', 'keyword <a', 'name href', 'string "x"', 'name hidden', 'number &amp;', 'keyword </a');
  lacks('html', 'href="x"', 'string "x"');
  has('xml', '<?xml version="1.0"?><a:b c=\'d\'/>', 'comment <?xml version="1.0"?>', 'keyword <a:b', "string 'd'");
});
test('CSS', () => has('css', '/* c */\n@media print { .a:hover { color: #fff; margin: 1.5em !important } }', 'comment /* c */', 'keyword @media', 'keyword .a', 'name color', 'number #fff', 'number 1.5em', 'keyword !important'));
test('Rust', () => has('rust', "fn f<'a>(x: &'a str) -> u8 { println!(\"{}\", 'c'); r#\"a\"b\"# }", 'keyword fn', "name 'a", 'keyword str', 'name println!', "string 'c'", 'string r#"a"b"#'));
test('Go', () => has('go', 'func f() error { return fmt.Errorf(`a\nb`, nil) } // c', 'keyword func', 'name f', 'keyword error', 'name Errorf', 'string `a\nb`', 'comment // c'));
test('Java', () => has('java', '@Override public void f() { String s = "a"; int i = 10L; }', 'name @Override', 'keyword public', 'name f', 'string "a"', 'number 10L'));
test('SQL', () => has('sql', "SELECT count(*) FROM t WHERE a = 'it''s' -- c", 'keyword SELECT', 'name count', 'keyword FROM', "string 'it'", 'comment -- c'));
test('YAML', () => has('yaml', '---\na: 1\n"b": "c" # d\nlist:\n  - true\n  - &e x: *e\n', 'keyword ---', 'name a', 'number 1', 'name "b"', 'string "c"', 'comment # d', 'name list', 'keyword true', 'keyword &e'));
test('differences', () => has('diff', '--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same', 'name --- a/x', 'name +++ b/x', 'keyword @@ -1 +1 @@', 'removed -old', 'added +new'));
test('Markdown', () => has('markdown', '# Title\n- a **b** `c` [d](e)\n> f\n```\n# g\n```\n', 'keyword # Title', 'punctuation -', 'keyword **b**', 'string `c`', 'name [d](e)', 'comment > f', 'string ```\n# g\n```'));

test('an unknown language is plain, and names are found in any case', () => {
  assert.deepEqual(spans('int a = 1; // b', 'brainfuck'), []);
  assert.deepEqual(spans('int a = 1; // b', ''), []);
  assert.deepEqual(spans('int', 'constructor'), []);
  assert.deepEqual(spans('int', 'CPP'), [['keyword', 'int']]);
  for (const language of LANGUAGES) assert.ok(highlight.knows(language), language);
});

test("Markdown's code blocks are coloured by it", () => {
  const tree = loadMarkdownWithHighlight().render('```c\nint\u202E a;\n```');
  assert.match(html(tree), /<span class="hl-keyword">int<\/span><span class="md-bidi">U\+202E<\/span> a/);
});

test('a text that grows is coloured as the text at once', () => {
  const names = ['server/page/markdown_inline.js', 'server/native.c', 'tests/tree/check_tree.py', 'docs/server.md', 'server/page/page.css', 'tests/server/run_clients.sh', 'server/page/page.html'];
  for (const name of names) {
    const text = fs.readFileSync(path.join(root, name), 'utf8').slice(0, 5000);
    for (const language of ONE_EACH) {
      const element = document.createElement('code');
      let mark = null;
      for (let end = 0; end < text.length; end += 53) mark = highlight.extend(element, text.slice(0, end), language, mark);
      highlight.extend(element, text, language, mark);
      assert.equal(html(element), `<code>${html(highlight.code(text, language))}</code>`, `${name} as ${language}`);
    }
  }
});

test('what is settled is not made again', () => {
  const text = 'int a = 1; // b\n'.repeat(500);
  const element = document.createElement('code');
  const mark = highlight.extend(element, text, 'c', null);
  const first = element.childNodes.slice(0, 1000);
  const before = made.elements;
  highlight.extend(element, `${text}int`, 'c', mark);
  assert.ok(made.elements - before < 400, `${made.elements - before} made`);
  first.forEach((node, i) => assert.equal(element.childNodes[i], node));
});

test("code that grows in Markdown", () => {
  const markdown = loadMarkdownWithHighlight();
  const text = `a\n\n\`\`\`c\n${'int a = f("b"); /* c\n d */\n'.repeat(120)}\`\`\`\n\nb`;
  const container = document.createElement('div');
  let before = 0;
  for (let end = 0; end < text.length; end += 11) {
    if (end > 2500 && end < 2511) before = made.elements;
    if (end > 2700 && end < 2711) assert.ok(made.elements - before < 18 * 400, `${made.elements - before} made`); // 1,000 spans each time, else
    markdown.update(container, text.slice(0, end));
  }
  const code = container.childNodes[1].childNodes[1].firstChild;
  markdown.update(container, text, { done: true });
  assert.equal(container.childNodes[1].childNodes[1].firstChild, code);
  assert.equal(html(container), `<div>${html(markdown.render(text))}</div>`);
});

test('40 KB of anything takes linear time', () => {
  const pieces = ['/', '/*', '/[', '/\\', '"', "'", '`', '"""', 'r#"', "'a", '#', '$', '${', '<', '<!--', '<a b="', '&', '@', '-', '--', '+', '*', '**', '_', '[', '](', '(', '{', 'a', 'a ', 'a(', 'a:', '0', '0x', '1e', '.', '\\',
    ' ', '\t', '\n', 'a\n', '- ', '```\n', '~~~', '@@', '===', 'é', '😀', '\u2028', '"a', 'a"', '[a', 'a.b', 'a-b', '$(', 'r"', 'f"', '!', '#[', '*a', '**a', ' #', ': ', '": '];
  let worst = [0, ''];
  for (const language of ONE_EACH) {
    for (const piece of pieces) {
      const text = piece.repeat(40000 / piece.length);
      const begin = process.cpuUsage();
      highlight.code(text, language);
      const { user, system } = process.cpuUsage(begin);
      const time = (user + system) / 1000;
      if (time > worst[0]) worst = [time, `${language} ${JSON.stringify(piece)}`];
      assert.ok(time < 3000, `${language} ${JSON.stringify(piece)}: ${time} ms`);
    }
  }
  console.log(`# slowest: ${worst[1]}, ${worst[0].toFixed(0)} ms`);
});
