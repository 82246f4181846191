// Writes unigram.json: tokenizers of SentencePiece's unigram kind, small and made up, and what Hugging Face's tokenizers library
// (npm's @anush008/tokenizers, a binding of the Rust code) makes of texts with them.
// Run: npm install @anush008/tokenizers@0.6.0 && node make_unigram.mjs > unigram.json
import { createRequire } from 'node:module';
import { writeFileSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
const { Tokenizer } = createRequire(path.resolve('x.js'))('@anush008/tokenizers');

let state = 12345;
const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;

const TEXTS = [
  '', ' ', 'a', 'Hello world', ' Hello  world ', 'Hello\tworld\n', 'unbelievable unbelievers', 'aaaaaaaaaaaaaaaaaaaa',
  'The quick brown fox jumps over the lazy dog.', 'naïve café, naive cafe', 'ﬁne ﬂow', 'Ｆｕｌｌ　Ｗｉｄｔｈ', '①②③ ㌔メートル',
  'e\u0301t\u0301e', 'a\u200bb \u200b c', 'non\u00a0breaking', '日本語のテキスト', '日本 語', '안녕하세요', 'Привет, мир', 'שלום', '🤗 hugs 👩‍👩‍👧 🇩🇪',
  '▁already ▁marked', 'x▁y', 'q', 'qqq zq qz', 'tail   ', '   head', 'one\r\ntwo', 'a\u3000b', 'wordwordword', '\u0301alone',
  '1234567890', 'Hello<mask>world <mask> x', '</s><s>', 'punct!?...;:', 'ÀÉÎÕÜ àéîõü', 'l\u0327o\u0308\u0323ng marks z\u0308\u0308\u0308',
];

// darts-clone's double array over bytes, filled from the left.
function doubleArray(entries) {
  const units = [0], used = new Set([0]), bases = new Set();
  const tree = { children: new Map(), value: -1 };
  for (const [key, value] of entries) {
    let node = tree;
    for (const byte of Buffer.from(key)) {
      if (!node.children.has(byte)) node.children.set(byte, { children: new Map(), value: -1 });
      node = node.children.get(byte);
    }
    node.value = value;
  }
  const place = (node, at) => {
    const labels = [...(node.value >= 0 ? [0] : []), ...node.children.keys()];
    let base = 1;
    while (labels.some((label) => used.has(base ^ label)) || base === at || bases.has(base)) base++;
    bases.add(base); // shared by no two nodes, or texts would be found that are not there
    labels.forEach((label) => used.add(base ^ label));
    const offset = base ^ at;
    units[at] = ((units[at] ?? 0) | (offset << 10) | (node.value >= 0 ? 256 : 0)) >>> 0;
    if (node.value >= 0) units[base] = (node.value | 0x80000000) >>> 0;
    for (const [label, child] of node.children) {
      units[base ^ label] = label;
      place(child, base ^ label);
    }
  };
  place(tree, 0);
  while (units.length % 256) units.push(0);
  const out = Buffer.alloc(4 * units.length);
  for (let i = 0; i < units.length; i++) out.writeUInt32LE((units[i] ?? 0) >>> 0, 4 * i);
  return out;
}

function charsmap() {
  const map = [['\t', ' '], ['\n', ' '], ['\r', ' '], ['\u00a0', ' '], ['\u3000', ' '], ['\u200b', ''], ['ﬁ', 'fi'], ['ﬂ', 'fl'],
    ['①', '1'], ['②', '2'], ['③', '3'], ['㌔', 'キロ'], ['e\u0301', 'é'], ['o\u0308', 'ö'], ['z', 'Z'], ['z\u0308', 'z2']];
  for (let c = 0xff21; c <= 0xff5a; c++) map.push([String.fromCodePoint(c), String.fromCodePoint(c - 0xfee0)]);
  let pool = Buffer.alloc(0);
  const entries = map.map(([from, to]) => {
    const at = pool.length;
    pool = Buffer.concat([pool, Buffer.from(to), Buffer.from([0])]);
    return [from, at];
  });
  const trie = doubleArray(entries), size = Buffer.alloc(4);
  size.writeUInt32LE(trie.length);
  return Buffer.concat([size, trie, pool]).toString('base64');
}

function vocabulary(bytes) {
  const entries = [['<s>', 0], ['<pad>', 0], ['</s>', 0], ['<unk>', 0]], seen = new Set(entries.map((entry) => entry[0]));
  const add = (text, score) => {
    if (!seen.has(text)) {
      seen.add(text);
      entries.push([text, score]);
    }
  };
  if (bytes) for (let i = 0; i < 256; i++) add(`<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`, 0);
  for (const text of TEXTS.filter((each) => !/[q<]/.test(each))) {
    const marked = Array.from('▁' + text.normalize('NFKC').trim().replace(/\s+/g, '▁'));
    marked.forEach((character) => random() < 0.85 && add(character, -6 - 4 * random()));
    for (let i = 0; i < 2 * marked.length; i++) {
      const at = Math.floor(random() * marked.length), size = 2 + Math.floor(random() * 5);
      const piece = marked.slice(at, at + size).join('');
      if (!piece.includes('\u0000')) add(piece, -2 - 9 * random());
    }
  }
  add('tie', -4), add('ti', -2), add('e', -2), add('aa', -4), add('aaa', -6), add('a', -2);
  return [...entries, ['<mask>', 0]];
}

function tokenizer({ normalizer, pre, bytes }) {
  const vocab = vocabulary(bytes), mask = vocab.length - 1;
  const special = (id, content, lstrip = false) => ({ id, content, single_word: false, lstrip, rstrip: false, normalized: false, special: true });
  return {
    version: '1.0', truncation: null, padding: null,
    added_tokens: [special(0, '<s>'), special(1, '<pad>'), special(2, '</s>'), special(3, '<unk>'), special(mask, '<mask>', true)],
    normalizer, pre_tokenizer: pre,
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: '</s>', type_id: 0 } }],
      pair: ['<s>', 'A', '</s>', '</s>', 'B', '</s>'].map((id) => (id.length === 1 ? { Sequence: { id, type_id: 0 } } : { SpecialToken: { id, type_id: 0 } })),
      special_tokens: Object.fromEntries([['<s>', 0], ['</s>', 2]].map(([id, n]) => [id, { id, ids: [n], tokens: [id] }])),
    },
    decoder: { type: 'Metaspace', replacement: '▁', add_prefix_space: true },
    model: { type: 'Unigram', unk_id: 3, vocab, ...(bytes ? { byte_fallback: true } : {}) },
  };
}

const metaspace = { type: 'Metaspace', replacement: '▁', add_prefix_space: true };
const precompiled = () => ({ type: 'Precompiled', precompiled_charsmap: charsmap() });
const kinds = {
  'XLM-R': { normalizer: precompiled(), pre: { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, metaspace] } },
  T5: {
    normalizer: { type: 'Sequence', normalizers: [precompiled(), { type: 'Strip', strip_left: false, strip_right: true },
      { type: 'Replace', pattern: { Regex: ' {2,}' }, content: '▁' }] },
    pre: metaspace,
  },
  bytes: { normalizer: { type: 'Strip', strip_left: true, strip_right: true }, pre: metaspace, bytes: true },
};

const folder = mkdtempSync(path.join(tmpdir(), 'unigram-')), out = [];
for (const [name, kind] of Object.entries(kinds)) {
  const made = tokenizer(kind), file = path.join(folder, 'tokenizer.json');
  writeFileSync(file, JSON.stringify(made));
  const library = Tokenizer.fromFile(file), cases = [];
  for (const text of TEXTS) {
    const ids = (await library.encode(text, null, { addSpecialTokens: true })).getIds();
    cases.push({ text, ids: Array.from(ids), decoded: await library.decode(ids, true) });
  }
  const pair = Array.from((await library.encode('Hello', 'world', { addSpecialTokens: true })).getIds());
  out.push({ name, pair, tokenizer: made, cases });
}
process.stdout.write(JSON.stringify(out) + '\n');
