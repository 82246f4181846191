// Colours for code: a text as spans of a few classes.
//
//   highlight.code(text, language)   a DocumentFragment whose text is `text`; an unknown language is plain
//   highlight.extend(element, text, language, mark)   the same for a text that grows, at the cost of what came
//   highlight.knows(language)
//
// A language is a table of rules, tried in order at each place. A rule takes what it looked at, or looks at a bounded
// stretch, so the whole is linear. Classes: hl-keyword, hl-string, hl-number, hl-comment, hl-name, hl-punctuation, and
// for differences hl-added and hl-removed.
const highlight = (() => {
  'use strict';

  const LONGEST = 400000; // characters; what is longer is plain
  const MARGIN = 700; // no rule looks further ahead without taking what it looked at

  const words = (text) => new Set(text.split(/\s+/));

  /* ---- rules that languages share: [class, pattern, more]; class 'word': by the language's words ---- */

  const line_comment = ['comment', /\/\/.*/y];
  const block_comment = ['comment', /\/\*[\s\S]*?(?:\*\/|$(?![\s\S]))/y];
  const hash_comment = ['comment', /#.*/y];
  const double_quoted = ['string', /"[^"\\\n]*(?:\\[\s\S][^"\\\n]*)*"?/y];
  const single_quoted = ['string', /'[^'\\\n]*(?:\\[\s\S][^'\\\n]*)*'?/y];
  const number = ['number', /(?:0[xX][\da-fA-F_']+|0[bB][01_']+|0[oO][0-7_]+|(?:\d[\d_']*)?\.?\d[\d_]*(?:\.(?!\.))?(?:[eE][+-]?\d+)?)[\w]*/y];
  const word = ['word', /[\p{L}_$][\p{L}\p{N}_$]*/uy];
  const punctuation = ['punctuation', /[{}()[\];,.:?!=+\-*/%&|^~<>@\\]+/y];
  const marks = ['punctuation', /[{}()[\];,.:?!=+\-*%&|^~<>@\\]+|\//y]; // "/" alone: it may begin a comment

  const C_WORDS = `alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class co_await co_return co_yield
    concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum
    explicit export extern false final float for friend goto if inline int long mutable namespace new noexcept NULL nullptr
    operator override private protected public register reinterpret_cast requires restrict return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename typeof union
    unsigned using virtual void volatile wchar_t while _Atomic _Bool _Complex _Generic _Noreturn _Static_assert _Thread_local
    size_t ssize_t ptrdiff_t intptr_t uintptr_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t half float2
    float4 dim3 __global__ __device__ __host__ __shared__ __constant__ __restrict__ __launch_bounds__ __syncthreads__`;
  const JS_WORDS = `abstract any as async await boolean break case catch class const continue debugger declare default delete do else
    enum export extends false finally for from function get if implements import in infer instanceof interface is keyof let
    module namespace never new null number object of override private protected public readonly return satisfies set static
    string super switch symbol this throw true try type typeof undefined unknown var void while with yield NaN Infinity`;
  const PYTHON_WORDS = `False None True and as assert async await break case class continue def del elif else except finally for from
    global if import in is lambda match nonlocal not or pass raise return self try while with yield`;
  const BASH_WORDS = `if then else elif fi for while until do done case esac in function select time return exit break continue local
    export readonly declare typeset unset shift source alias set eval exec trap true false`;
  const RUST_WORDS = `as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut
    pub ref return self Self static struct super trait true type union unsafe use where while bool char str u8 u16 u32 u64 u128
    usize i8 i16 i32 i64 i128 isize f32 f64 String Vec Option Some None Result Ok Err Box`;
  const GO_WORDS = `break case chan const continue default defer else fallthrough for func go goto if import interface map package range
    return select struct switch type var true false nil iota any bool byte rune string error int int8 int16 int32 int64 uint
    uint8 uint16 uint32 uint64 uintptr float32 float64 complex64 complex128`;
  const JAVA_WORDS = `abstract assert boolean break byte case catch char class const continue default do double else enum extends false
    final finally float for goto if implements import instanceof int interface long native new null package permits private
    protected public record return sealed short static strictfp super switch synchronized this throw throws transient true try
    var void volatile while yield String`;
  const SQL_WORDS = `add all alter and any as asc between bigint boolean by cascade case cast char check column commit constraint create
    cross current_date current_timestamp database date decimal default delete desc distinct double drop else end except exists
    explain false fetch float for foreign from full function grant group having if in index inner insert int integer intersect
    into is join key left like limit natural not null numeric offset on or order outer over partition primary procedure
    references replace returning revoke right rollback row rows select serial set smallint table text then time timestamp to
    transaction trigger true truncate union unique update using values varchar view when where window with`;

  const HTML_TEXT = [
    ['comment', /<!-{2}[\s\S]*?(?:-->|$(?![\s\S]))/y], ['comment', /<![^>]*>?/y], ['comment', /<\?[^>]*>?/y],
    ['keyword', /<\/?[A-Za-z][\w:.-]*/y, { mode: 'tag' }], ['number', /&(?:#?\w{1,32});/y], ['', /[^<&]+/y],
  ];
  const HTML_TAG = [
    ['keyword', /\/?>/y, { mode: 'text' }], ['string', /"[^"]*"?|'[^']*'?/y], ['name', /[^\s"'<>/=]+/y], ['punctuation', /[=/]/y], ['', /\s+/y],
  ];

  const LANGUAGES = {
    c: {
      rules: [line_comment, block_comment, ['keyword', /#[ \t]*\w+/y, { fresh: true }], double_quoted, ['string', /(?:u8?|U|L)?'(?:[^'\\\n]|\\.){1,8}'/y],
        number, word, marks],
      words: words(C_WORDS),
    },
    python: {
      rules: [hash_comment, ['string', /[rRbBfFuU]{0,2}(?:"""[\s\S]*?(?:"""|$(?![\s\S]))|'''[\s\S]*?(?:'''|$(?![\s\S])))/y],
        ['string', /[rRbBfFuU]{0,2}(?:"[^"\\\n]*(?:\\[\s\S][^"\\\n]*)*"?|'[^'\\\n]*(?:\\[\s\S][^'\\\n]*)*'?)/y], ['name', /@[\w.]+/y, { fresh: true }],
        number, word, punctuation],
      words: words(PYTHON_WORDS),
    },
    javascript: {
      rules: [line_comment, block_comment, double_quoted, single_quoted, ['string', /`[^`\\]*(?:\\[\s\S][^`\\]*)*`?/y],
        ['string', /\/(?![*/])(?:[^\\/[\n]|\\.|\[(?:[^\]\\\n]|\\.){0,200}\]){1,400}\/[a-z]*/y, { operand: true }], number, word, marks],
      words: words(JS_WORDS),
    },
    json: {
      rules: [line_comment, block_comment, ['name', /"[^"\\\n]*(?:\\.[^"\\\n]*)*"(?=\s{0,20}:)/y], double_quoted, ['number', /-?\d[\d.]*(?:[eE][+-]?\d+)?/y],
        word, marks],
      words: words('true false null'), calls: false,
    },
    bash: {
      rules: [['comment', /#.*/y, { spaced: true }], ['string', /"[^"\\]*(?:\\[\s\S][^"\\]*)*"?/y], ['string', /\$?'[^']*'?/y],
        ['name', /\$(?:\{[^}\n]{0,200}\}|[\w@*#?$!-])\w*/y], ['number', /\d[\d.]*(?![\w-])/y], ['name', /--?[A-Za-z][\w-]*/y, { spaced: true }],
        ['word', /[\w-]+/y], ['punctuation', /[|&;<>()[\]{}=!]+/y]],
      words: words(BASH_WORDS), calls: false,
    },
    html: { rules: HTML_TEXT, modes: { text: HTML_TEXT, tag: HTML_TAG }, words: new Set(), calls: false },
    css: {
      rules: [block_comment, double_quoted, single_quoted, ['keyword', /@[\w-]+|![a-z]+/y], ['number', /#[\da-fA-F]{3,8}\b|-?(?:\d+\.?\d*|\.\d+)[\w%]*/y],
        ['name', /-{0,2}[A-Za-z][\w-]*(?=[ \t]{0,20}:[^;{}\n]{0,200}[;}\n])/y], ['keyword', /[.#&]-?[A-Za-z_][\w-]*|::?[a-z-]+/y], ['', /[\w-]+/y],
        ['punctuation', /[{}()[\];,:>+~=*]+/y]],
      words: new Set(), calls: false,
    },
    rust: {
      rules: [line_comment, block_comment, ['string', /b?r(#{0,8})"(?:[\s\S]*?"\1|[\s\S]*)/y], ['string', /b?"[^"\\]*(?:\\[\s\S][^"\\]*)*"?/y],
        ['string', /b?'(?:[^'\\\n]|\\(?:u\{[\da-fA-F_]{1,8}\}|x[\da-fA-F]{2}|.))'/y], ['name', /'[a-z_]\w*/y], ['name', /#!?\[[^\]\n]{0,200}\]/y],
        ['name', /[a-z_]\w*!(?!=)/y], number, word, marks],
      words: words(RUST_WORDS),
    },
    go: { rules: [line_comment, block_comment, double_quoted, single_quoted, ['string', /`[^`]*`?/y], number, word, marks], words: words(GO_WORDS) },
    java: {
      rules: [line_comment, block_comment, ['string', /"""[\s\S]*?(?:"""|$(?![\s\S]))/y], double_quoted, single_quoted, ['name', /@[\w.]+/y], number, word, marks],
      words: words(JAVA_WORDS),
    },
    sql: {
      rules: [['comment', /--.*/y], block_comment, ['string', /'[^']*'?/y], ['name', /"[^"]*"?|`[^`]*`?/y], ['number', /\d[\d.]*/y], word, ['punctuation', /[();,.=<>*+%|:]+|[-/]/y]],
      words: words(SQL_WORDS), any_case: true,
    },
    yaml: {
      rules: [['comment', /#.*/y, { spaced: true }], ['keyword', /---|\.\.\./y, { fresh: true }], ['name', /[\w./$][^:#\n'"{}[\]]{0,100}(?=:(?:[ \t]|$))/my, { spaced: true }],
        ['name', /"[^"\\\n]{0,200}"(?=:[ \t\n])|'[^'\n]{0,200}'(?=:[ \t\n])/y], double_quoted, ['string', /'[^'\n]*'?/y, { spaced: true }], ['keyword', /[&*!][\w./-]+/y],
        ['number', /-?\d[\d._]*(?:[eE][+-]?\d+)?(?![\w-])/y, { spaced: true }], ['word', /[\w.$/-]+/y], ['punctuation', /[-[\]{},:|>?]+/y]],
      words: words('true false null yes no on off True False Null ~'), calls: false,
    },
    diff: {
      rules: [['name', /(?:diff |index |Index:|\+\+\+|---|rename |similarity |new file|deleted file|old mode|new mode).*/y, { fresh: true }],
        ['keyword', /@@.*/y, { fresh: true }], ['added', /[+>].*/y, { fresh: true }], ['removed', /[-<].*/y, { fresh: true }], ['', /.+/y]],
      words: new Set(), calls: false,
    },
    markdown: {
      rules: [['keyword', /#{1,6}[ \t].*/y, { fresh: true }], ['string', /(`{3,8}|~{3,8})[^\n]*\n(?:[\s\S]*?\n\1|[\s\S]*)/y, { fresh: true }], ['string', /`[^`\n]+`/y],
        ['comment', />.*/y, { fresh: true }], ['punctuation', /(?:[-+*]|\d{1,9}[.)])(?=[ \t])/y, { fresh: true }], ['keyword', /(\*\*|__)(?=\S)[^*_\n]{1,300}\1/y],
        ['name', /!?\[[^[\]\n]{0,300}\](?:\([^()\n]{0,500}\)|\[[^[\]\n]{0,300}\])?/y], ['name', /<?https?:\/\/[^\s<>]+>?/y], ['', /[\p{L}\p{N}]+/uy]],
      words: new Set(), calls: false,
    },
  };

  const ALIASES = {
    c: 'cpp c++ cc cxx h hpp hh cu cuda cuh objc objective-c glsl hlsl metal arduino', python: 'py python3 py3 gyp starlark', javascript: 'js jsx mjs cjs ts tsx typescript node',
    json: 'json5 jsonc jsonl ndjson', bash: 'sh shell zsh console shell-session terminal ksh dockerfile makefile make', html: 'xml xhtml svg htm vue svelte rss xsl xsd',
    css: 'scss less', rust: 'rs', go: 'golang', java: 'kotlin kt scala cs csharp c# swift dart', sql: 'mysql postgres postgresql sqlite plsql', yaml: 'yml toml ini',
    diff: 'patch', markdown: 'md mdx',
  };
  const NAMES = new Map();
  for (const name of Object.keys(LANGUAGES)) {
    NAMES.set(name, LANGUAGES[name]);
    for (const alias of ALIASES[name].split(' ')) NAMES.set(alias, LANGUAGES[name]);
  }

  const find = (language) => NAMES.get(String(language).toLowerCase().replace(/^\./, ''));

  // May this rule begin at `at`? fresh: first on its line; spaced: behind a blank; operand: where a value can begin.
  function applies(more, text, at, state) {
    if (!more) return true;
    if (more.fresh) return state.fresh;
    if (more.spaced) return at === 0 || /[\s;(=[{,|]/.test(text[at - 1]);
    if (more.operand) return state.last === '' || state.kind === 'keyword' || /[=(,[!&|?{};:+\-*%~^<>]/.test(state.last);
    return true;
  }

  function kind_of_word(language, piece, text, end) {
    if (language.words.has(language.any_case ? piece.toLowerCase() : piece)) return 'keyword';
    if (language.calls === false) return '';
    return text[end] === '(' || (text[end] === ' ' && text[end + 1] === '(') ? 'name' : '';
  }

  // The token at `at`: {kind, piece}. Moves state on to what follows it.
  function next_token(text, at, language, state) {
    let piece = '', kind = '';
    for (const [name, pattern, more] of state.rules) {
      pattern.lastIndex = at;
      const found = applies(more, text, at, state) ? pattern.exec(text) : null;
      if (!found || !found[0]) continue;
      piece = found[0];
      kind = name === 'word' ? kind_of_word(language, piece, text, at + piece.length) : name;
      if (more && more.mode) state.rules = language.modes[more.mode];
      break;
    }
    if (!piece) piece = String.fromCodePoint(text.codePointAt(at));
    const newline = piece.lastIndexOf('\n');
    state.fresh = newline >= 0 ? !piece.slice(newline + 1).trim() : state.fresh && !piece.trim();
    if (piece.trim()) {
      state.last = piece[piece.length - 1];
      state.kind = kind;
    }
    return { kind, piece };
  }

  // Appends the text from mark.at on to `parent`, whose first mark.nodes nodes are of what is before. Gives a mark from
  // where to go on when the text has grown: a line's rest and a stretch of the end may still turn into something else.
  function append(parent, text, language, mark) {
    const settled = Math.min(text.lastIndexOf('\n') + 1, text.length - MARGIN);
    const state = { ...mark.state };
    let { at, nodes } = mark, plain = '', reached = mark;
    const flush = () => {
      if (plain) parent.appendChild(document.createTextNode(plain));
      nodes += plain ? 1 : 0;
      plain = '';
    };
    while (at < text.length) {
      const before = { ...state };
      const { kind, piece } = next_token(text, at, language, state);
      if (kind) {
        flush();
        if (at <= settled) reached = { at, nodes, state: before };
        const span = document.createElement('span');
        span.setAttribute('class', `hl-${kind}`);
        span.textContent = piece;
        parent.appendChild(span);
        nodes++;
      } else {
        plain += piece;
      }
      at += piece.length;
    }
    flush();
    return reached;
  }

  const beginning = (language) => ({ at: 0, nodes: 0, state: { fresh: true, last: '', kind: '', rules: language.rules } });

  function code(text, language) {
    const fragment = document.createDocumentFragment();
    const table = find(language);
    if (table && text.length <= LONGEST) append(fragment, text, table, beginning(table));
    else if (text) fragment.appendChild(document.createTextNode(text));
    return fragment;
  }

  // Makes `element`, which shows a beginning of the text, show all of it. mark: what this gave for that beginning, or
  // null. Gives null, and changes nothing, for a language that is not known.
  function extend(element, text, language, mark) {
    const table = find(language);
    if (!table || text.length > LONGEST) return null;
    const from = mark ?? beginning(table);
    while (element.childNodes.length > from.nodes) element.removeChild(element.childNodes[element.childNodes.length - 1]);
    return append(element, text, table, from);
  }

  return { code, extend, knows: (language) => find(language) !== undefined };
})();
