// Markdown's inlines: the text of a paragraph, heading or cell to DOM nodes. CommonMark 0.31.2, and GFM's
// strikethrough and bare addresses. https://spec.commonmark.org/0.31.2/#inlines
//
// The text becomes a flat list of tokens; delimiters that match are marked on them as opening or closing, always
// properly nested, so that one walk over the list writes the nodes. Everything is linear in the text's length.
const markdown_inline = (() => {
  'use strict';

  const DEPTH = 32; // of elements in each other; what lies deeper keeps its text and loses its form
  const LABEL = 999; // characters of a reference's label
  const PARENTHESES = 32; // open ones in a link's address

  const PLAIN = /[^\n\\`*_~[\]!<&:]+/y;
  const PUNCTUATION = /[!-/:-@[-`{-~]/;
  const UNICODE_PUNCTUATION = /[\p{P}\p{S}]/u;
  const WHITE = /\s/;
  const ENTITY = /&(?:#[xX][0-9a-fA-F]{1,6}|#[0-9]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});/y;
  const ESCAPED = /\\([!-/:-@[-`{-~])|&(?:#[xX][0-9a-fA-F]{1,6}|#[0-9]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});/g;
  const AUTOLINK = /<([A-Za-z][A-Za-z0-9.+-]{1,31}:[^\x00-\x20<>]*)>/y;
  const ADDRESS =
    /<([\w.!#$%&'*+/=?^`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,32})>/y;
  const TAG_ATTRIBUTE = '\\s+[A-Za-z_:][\\w.:-]*(?:\\s*=\\s*(?:[^\\s"\'=<>`]+|\'[^\']*\'|"[^"]*"))?';
  const TAG = new RegExp(`<[A-Za-z][A-Za-z0-9-]*(?:${TAG_ATTRIBUTE})*\\s*/?>|</[A-Za-z][A-Za-z0-9-]*\\s*>`, 'y');
  const BREAK_TAG = /^<br\s*\/?>$/i;
  const POINTED = /<[^<>\n\\]*(?:\\.[^<>\n\\]*)*>/y;
  const TITLE = /"[^"\\]*(?:\\[\s\S][^"\\]*)*"|'[^'\\]*(?:\\[\s\S][^'\\]*)*'|\([^()\\]*(?:\\[\s\S][^()\\]*)*\)/y;
  const REFERENCE = /\[[^[\]\\]*(?:\\[\s\S][^[\]\\]*)*\]/y;
  const SPACES = /[ \t]*\n?[ \t]*/y;
  // What can turn the order of the characters around it.
  const BIDI = /[\u202A-\u202E\u2066-\u2069]/g;

  /* ---- entities: the names of HTML 4 ---- */

  const ENTITIES = new Map([['quot', 34], ['amp', 38], ['apos', 39], ['lt', 60], ['gt', 62]]);
  const RANGES = [
    [160, 'nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute ' +
      'micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig ' +
      'Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash ' +
      'Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc ' +
      'euml igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml ' +
      'yacute thorn yuml'],
    [913, 'Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho - Sigma Tau Upsilon Phi ' +
      'Chi Psi Omega'],
    [945, 'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigmaf sigma tau upsilon ' +
      'phi chi psi omega'],
    [8592, 'larr uarr rarr darr harr'],
    [8656, 'lArr uArr rArr dArr hArr'],
  ];
  const SINGLE = {
    OElig: 338, oelig: 339, Scaron: 352, scaron: 353, Yuml: 376, fnof: 402, circ: 710, tilde: 732, thetasym: 977,
    upsih: 978, piv: 982, ensp: 8194, emsp: 8195, thinsp: 8201, zwnj: 8204, zwj: 8205, lrm: 8206, rlm: 8207, ndash: 8211,
    mdash: 8212, lsquo: 8216, rsquo: 8217, sbquo: 8218, ldquo: 8220, rdquo: 8221, bdquo: 8222, dagger: 8224, Dagger: 8225,
    bull: 8226, hellip: 8230, permil: 8240, prime: 8242, Prime: 8243, lsaquo: 8249, rsaquo: 8250, oline: 8254, frasl: 8260,
    euro: 8364, image: 8465, weierp: 8472, real: 8476, trade: 8482, alefsym: 8501, crarr: 8629, forall: 8704, part: 8706,
    exist: 8707, empty: 8709, nabla: 8711, isin: 8712, notin: 8713, ni: 8715, prod: 8719, sum: 8721, minus: 8722,
    lowast: 8727, radic: 8730, prop: 8733, infin: 8734, ang: 8736, and: 8743, or: 8744, cap: 8745, cup: 8746, int: 8747,
    there4: 8756, sim: 8764, cong: 8773, asymp: 8776, ne: 8800, equiv: 8801, le: 8804, ge: 8805, sub: 8834, sup: 8835,
    nsub: 8836, sube: 8838, supe: 8839, oplus: 8853, otimes: 8855, perp: 8869, sdot: 8901, lceil: 8968, rceil: 8969,
    lfloor: 8970, rfloor: 8971, lang: 10216, rang: 10217, loz: 9674, spades: 9824, clubs: 9827, hearts: 9829, diams: 9830,
  };
  for (const [first, names] of RANGES) names.split(' ').forEach((name, i) => ENTITIES.set(name, first + i));
  for (const name of Object.keys(SINGLE)) ENTITIES.set(name, SINGLE[name]);

  // The characters of "&...;", or null for a name that is not known.
  function entity(source) {
    let code;
    if (source[1] === '#') {
      code = /[xX]/.test(source[2]) ? parseInt(source.slice(3), 16) : parseInt(source.slice(2), 10);
      if (code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) code = 0xfffd;
    } else {
      code = ENTITIES.get(source.slice(1, -1));
    }
    return code === undefined ? null : String.fromCodePoint(code);
  }

  function unescape(source) {
    return source.replace(ESCAPED, (whole, mark) => mark || (entity(whole) ?? whole));
  }

  /* ---- addresses ---- */

  // As CommonMark's reference programs write addresses: what may not stand in one is percent-encoded.
  function normal_url(url) {
    const host = /^https?:\/\/\[[0-9a-f:.]+\]/i.exec(url); // IPv6
    const begin = host ? host[0] : '';
    return begin + url.slice(begin.length).replace(/%(?:[0-9a-f]{2})?|[^\w\-.~:/?#@!$&'()*+,;=%]+/gi, (piece) => {
      if (piece[0] === '%') return piece.length > 1 ? piece : '%25';
      return encodeURIComponent(piece.replace(/[\uD800-\uDFFF]/gu, '\uFFFD'));
    });
  }

  // Only these ever become an href. Everything else stays text.
  function permitted(url) {
    return !/[\x00-\x20\x7F-\x9F]/.test(url) && /^(?:https?:\/\/[^/?#\\]|mailto:[^?])/i.test(url);
  }

  function normal_label(label) {
    return label.trim().replace(/\s+/g, ' ').toLowerCase().toUpperCase();
  }

  function sticky(pattern, source, at) {
    pattern.lastIndex = at;
    const found = pattern.exec(source);
    return found ? found[0] : null;
  }

  // An address at `at`: {url, end}, or null.
  function destination(source, at) {
    if (source[at] === '<') {
      const pointed = sticky(POINTED, source, at);
      return pointed === null ? null : { url: unescape(pointed.slice(1, -1)), end: at + pointed.length };
    }
    let end = at;
    let depth = 0;
    for (; end < source.length; end++) {
      const c = source.charCodeAt(end);
      if (c <= 0x20 || c === 0x7f) break;
      if (c === 0x5c && end + 1 < source.length && PUNCTUATION.test(source[end + 1])) end++;
      else if (c === 0x28 && ++depth > PARENTHESES) return null;
      else if (c === 0x29 && --depth < 0) break;
    }
    return depth > 0 ? null : { url: unescape(source.slice(at, end)), end };
  }

  // "(address "title")" at `at`: {url, title, end}, or null.
  function target(source, at) {
    const begin = at + 1 + sticky(SPACES, source, at + 1).length;
    const where = destination(source, begin);
    if (!where) return null;
    let end = where.end + sticky(SPACES, source, where.end).length;
    let title = null;
    if (end > where.end) {
      const quoted = sticky(TITLE, source, end);
      if (quoted !== null) {
        title = unescape(quoted.slice(1, -1));
        end += quoted.length;
        end += sticky(SPACES, source, end).length;
      }
    }
    return source[end] === ')' ? { url: where.url, title, end: end + 1 } : null;
  }

  /* ---- text to tokens ---- */

  function before(source, at) {
    const c = source.charCodeAt(at - 1);
    return at > 1 && c >= 0xdc00 && c <= 0xdfff ? source.slice(at - 2, at) : source[at - 1];
  }

  function run_at(source, at) {
    const mark = source[at];
    let end = at + 1;
    while (source[end] === mark) end++;
    const left = at > 0 ? before(source, at) : '\n';
    const right = end < source.length ? String.fromCodePoint(source.codePointAt(end)) : '\n';
    const left_white = WHITE.test(left), right_white = WHITE.test(right);
    const left_mark = UNICODE_PUNCTUATION.test(left), right_mark = UNICODE_PUNCTUATION.test(right);
    const opens = !right_white && (!right_mark || left_white || left_mark);
    const closes = !left_white && (!left_mark || right_white || right_mark);
    const under = mark === '_';
    return {
      kind: 'run', mark, place: at, length: end - at, whole: end - at, opens: [], closes: [], before: null, after: null,
      can_open: opens && (!under || !closes || left_mark), can_close: closes && (!under || !opens || right_mark),
    };
  }

  function take_out(state, run) {
    if (run.before) run.before.after = run.after;
    if (run.after) run.after.before = run.before;
    else state.last = run.before;
  }

  function fits(opener, closer) {
    if (opener.mark !== closer.mark || !opener.can_open) return false;
    const either = opener.can_close || closer.can_open;
    return closer.mark === '~' || !either || (opener.whole + closer.whole) % 3 !== 0 ||
      (opener.whole % 3 === 0 && closer.whole % 3 === 0);
  }

  // Marks which runs behind `bottom` open and close, and takes them all out of the list.
  function match_runs(state, bottom) {
    if (state.last === bottom) return;
    const floors = new Map(); // kind of closer -> no opener for it is at or before that place
    const least = bottom ? bottom.place : -1;
    let closer = state.last;
    while (closer && closer.before !== bottom) closer = closer.before;
    while (closer) {
      const next = closer.after;
      if (!closer.can_close) {
        closer = next;
        continue;
      }
      const kind = `${closer.mark}${closer.can_open ? 1 : 0}${closer.whole % 3}`;
      const floor = floors.get(kind) ?? least;
      let opener = closer.before;
      while (opener && opener.place > floor && !fits(opener, closer)) opener = opener.before;
      if (opener && opener.place > floor) {
        const used = opener.length >= 2 && closer.length >= 2 ? 2 : 1;
        const name = closer.mark === '~' ? 'del' : used === 2 ? 'strong' : 'em';
        opener.opens.push(name);
        closer.closes.push(name);
        opener.length -= used;
        closer.length -= used;
        opener.after = closer; // what lies between is text
        closer.before = opener;
        if (opener.length === 0) take_out(state, opener);
        if (closer.length > 0) continue;
        take_out(state, closer);
      } else {
        floors.set(kind, closer.before ? closer.before.place : -1);
        if (!closer.can_open) take_out(state, closer);
      }
      closer = next;
    }
  }

  function clear_runs(state, bottom) {
    state.last = bottom;
    if (bottom) bottom.after = null;
  }

  // A code span, or the backticks as text.
  function code_span(state, at) {
    const source = state.source;
    let end = at + 1;
    while (source[end] === '`') end++;
    const length = end - at;
    if (!state.backticks) {
      state.backticks = new Map();
      for (let i = source.length - 1; i >= 0; i--) {
        if (source[i] !== '`') continue;
        const last = i + 1;
        while (i > 0 && source[i - 1] === '`') i--;
        const places = state.backticks.get(last - i);
        if (places) places.push(i);
        else state.backticks.set(last - i, [i]);
      }
    }
    const places = state.backticks.get(length) ?? []; // none: a backslash took the first of them
    while (places.length && places[places.length - 1] < end) places.pop();
    let inside, next;
    if (places.length) {
      const close = places[places.length - 1];
      inside = source.slice(end, close).replace(/\n/g, ' ');
      next = close + length;
    } else if (state.growing && end < source.length) {
      inside = source.slice(end).replace(/\n/g, ' ');
      next = source.length;
    } else {
      state.tokens.push({ kind: 'text', text: source.slice(at, end) });
      return end;
    }
    if (inside.length > 1 && inside[0] === ' ' && inside[inside.length - 1] === ' ' && /[^ ]/.test(inside)) {
      inside = inside.slice(1, -1);
    }
    state.tokens.push({ kind: 'code', text: inside });
    return next;
  }

  // What begins with "<": an address, a tag (which is shown), or the character.
  function pointed(state, at) {
    const { source, tokens } = state;
    AUTOLINK.lastIndex = ADDRESS.lastIndex = at;
    let found = AUTOLINK.exec(source);
    if (found) {
      tokens.push({ kind: 'address', url: found[1], text: found[1], shown: found[0] });
      return at + found[0].length;
    }
    if ((found = ADDRESS.exec(source))) {
      tokens.push({ kind: 'address', url: `mailto:${found[1]}`, text: found[1], shown: found[0] });
      return at + found[0].length;
    }
    let tag = sticky(TAG, source, at);
    const special = [['<!\x2d-', '-->'], ['<?', '?>'], ['<![CDATA[', ']]>'], ['<!', '>']];
    for (let i = 0; tag === null && i < special.length; i++) {
      const [open, close] = special[i];
      if (!source.startsWith(open, at) || (i === 3 && !/[A-Za-z]/.test(source[at + 2] || ''))) continue;
      if (i === 0 && /^<!-{2,3}>/.test(source.slice(at, at + 6))) {
        tag = source.slice(at, source.indexOf('>', at) + 1);
        break;
      }
      if (state.unclosed.has(open)) break; // looked for once
      const end = source.indexOf(close, at + open.length);
      if (end < 0) state.unclosed.add(open);
      else tag = source.slice(at, end + close.length);
      break;
    }
    tokens.push({ kind: tag === null ? 'text' : 'tag', text: tag === null ? '<' : tag });
    return at + (tag === null ? 1 : tag.length);
  }

  function open_bracket(state, text) {
    const token = { kind: 'bracket', text, link: null };
    if (state.brackets.length) state.brackets[state.brackets.length - 1].nested = true;
    state.brackets.push({ token, bottom: state.last, image: text[0] === '!', at: state.at + text.length, nested: false });
    state.tokens.push(token);
    return state.at + text.length;
  }

  // The link of a bracket that closes at `at`, by reference: {url, title, end}, or null.
  function referenced(state, opener, at) {
    const { source } = state;
    const given = sticky(REFERENCE, source, at + 1);
    let label = null, end = at + 1;
    if (given !== null && given.length > 2 && given.length <= LABEL + 2) {
      label = given.slice(1, -1);
      end += given.length;
    } else if (!opener.nested && at - opener.at <= LABEL) {
      label = source.slice(opener.at, at);
      end += given === '[]' ? 2 : 0;
    }
    if (label === null || !/\S/.test(label)) return null;
    const found = state.context.lookup(normal_label(label));
    return found ? { url: found.url, title: found.title, end } : null;
  }

  function close_bracket(state, at) {
    const { source, tokens, brackets } = state;
    const opener = brackets.pop();
    if (!opener || (!opener.image && brackets.length < state.closed)) { // no link inside a link
      state.closed = Math.min(state.closed, brackets.length);
      tokens.push({ kind: 'text', text: ']' });
      return at + 1;
    }
    let link = source[at + 1] === '(' ? target(source, at + 1) : null;
    link = link || referenced(state, opener, at);
    if (!link && state.growing && !opener.image && source.length - at < 2000 &&
        /^\]\((?:[^\s()]*|[^\s()]+\s+["'(][^"')]*)$/.test(source.slice(at))) {
      link = { url: '', title: null, end: source.length }; // still being written
    }
    if (!link) {
      tokens.push({ kind: 'text', text: ']' });
      state.closed = Math.min(state.closed, brackets.length);
      return at + 1;
    }
    match_runs(state, opener.bottom);
    clear_runs(state, opener.bottom);
    opener.token.link = { url: link.url, title: link.title, image: opener.image };
    tokens.push({ kind: 'end', image: opener.image });
    state.closed = opener.image ? Math.min(state.closed, brackets.length) : brackets.length;
    return link.end;
  }

  // "http://..." as it stands: the end of the address whose colon is at `at`, or 0.
  function bare_end(source, at) {
    let end = at + 3;
    let depth = 0;
    if (!/[\p{L}\p{N}]/u.test(source.slice(end, end + 2))) return 0;
    for (; end < source.length; end++) {
      const c = source[end];
      if (/[\s<>[\]`"|\\\u3000-\u303F\uFF00-\uFFEF]/.test(c) || (c === ')' && --depth < 0)) break;
      if (c === '(') depth++;
    }
    while (end > at + 3 && /[?!.,:;*_~']/.test(source[end - 1])) end--;
    return end;
  }

  function colon(state, at) {
    const { source, tokens } = state;
    const last = tokens[tokens.length - 1];
    if (source.startsWith('://', at) && last && last.kind === 'text') {
      const scheme = /(?:^|[^A-Za-z0-9])(https?)$/i.exec(last.text.slice(-6));
      const end = scheme ? bare_end(source, at) : 0;
      if (end) {
        const url = source.slice(at - scheme[1].length, end);
        last.text = last.text.slice(0, -scheme[1].length);
        tokens.push({ kind: 'address', url, text: url, shown: url });
        return end;
      }
    }
    tokens.push({ kind: 'text', text: ':' });
    return at + 1;
  }

  function line_end(state, at) {
    const { source, tokens } = state;
    const last = tokens[tokens.length - 1];
    let hard = false;
    if (last && last.kind === 'text') {
      let end = last.text.length;
      while (end > 0 && last.text[end - 1] === ' ') end--;
      hard = last.text.length - end >= 2;
      last.text = last.text.slice(0, end);
    }
    tokens.push(hard ? { kind: 'break' } : { kind: 'text', text: '\n' });
    let next = at + 1;
    while (source[next] === ' ' || source[next] === '\t') next++;
    return next;
  }

  function backslash(state, at) {
    const { source, tokens } = state;
    const next = source[at + 1];
    if (next === '\n') {
      tokens.push({ kind: 'break' });
      let end = at + 2;
      while (source[end] === ' ' || source[end] === '\t') end++;
      return end;
    }
    const escapes = next !== undefined && PUNCTUATION.test(next);
    tokens.push({ kind: 'text', text: escapes ? next : '\\' });
    return at + (escapes ? 2 : 1);
  }

  function special(state, at) {
    const { source, tokens } = state;
    switch (source[at]) {
      case '\n': return line_end(state, at);
      case '\\': return backslash(state, at);
      case '`': return code_span(state, at);
      case '<': return pointed(state, at);
      case ']': return close_bracket(state, at);
      case ':': return colon(state, at);
      case '[': return open_bracket(state, '[');
      case '!': if (source[at + 1] === '[') return open_bracket(state, '![');
        break;
      case '&': {
        const found = sticky(ENTITY, source, at);
        const text = found === null ? null : entity(found);
        if (text !== null) {
          tokens.push({ kind: 'character', text });
          return at + found.length;
        }
        break;
      }
      default: {
        const run = run_at(source, at);
        if (run.mark === '~' && run.length !== 2) {
          tokens.push({ kind: 'text', text: source.slice(at, at + run.length) });
        } else {
          tokens.push(run);
          if (run.can_open || run.can_close) {
            run.before = state.last;
            if (state.last) state.last.after = run;
            state.last = run;
          }
        }
        return at + run.length;
      }
    }
    tokens.push({ kind: 'text', text: source[at] });
    return at + 1;
  }

  // While a text grows, marks at its very end may become longer or close something: they wait.
  function settled(source) {
    let end = source.length;
    while (end > 0 && '*_~`\\'.includes(source[end - 1])) end--;
    return source.slice(0, end).trimEnd();
  }

  function tokens_of(text, context) {
    const source = context.growing ? settled(text) : text;
    const state = {
      source, context, growing: context.growing, tokens: [], at: 0, last: null, brackets: [], closed: 0,
      backticks: null, unclosed: new Set(),
    };
    while (state.at < source.length) {
      const plain = sticky(PLAIN, source, state.at);
      if (plain !== null) {
        state.tokens.push({ kind: 'text', text: plain });
        state.at += plain.length;
      } else {
        state.at = special(state, state.at);
      }
    }
    match_runs(state, null);
    if (context.growing) close_runs(state);
    return state.tokens;
  }

  // What is still open at the end of a growing text is taken as closed there.
  function close_runs(state) {
    const names = [];
    const marks = { '*': ['em', 'strong'], _: ['em', 'strong'], '~': ['', 'del'] };
    let first = state.last;
    while (first && first.before) first = first.before;
    for (let run = first; run; run = run.after) {
      const name = run.can_open && marks[run.mark][run.length - 1];
      if (!name) continue;
      run.opens.push(name);
      run.length = 0;
      names.unshift(name);
    }
    state.tokens.push({ kind: 'run', mark: '', length: 0, opens: [], closes: names });
  }

  /* ---- tokens to nodes ---- */

  function link_element(url, title) {
    if (permitted(url)) {
      const a = document.createElement('a');
      a.setAttribute('href', normal_url(url));
      a.setAttribute('rel', 'noopener noreferrer');
      a.setAttribute('target', '_blank');
      if (title !== null) a.setAttribute('title', title.replace(BIDI, ''));
      return a;
    }
    const span = document.createElement('span');
    span.setAttribute('class', 'md-unlinked');
    if (url) span.setAttribute('title', normal_url(url));
    return span;
  }

  // The characters that reorder text, as marks that can be seen.
  function append_visible(parent, text) {
    let at = 0;
    for (const found of text.matchAll(BIDI)) {
      if (found.index > at) parent.appendChild(document.createTextNode(text.slice(at, found.index)));
      const mark = document.createElement('span');
      mark.setAttribute('class', 'md-bidi');
      mark.textContent = `U+${found[0].codePointAt(0).toString(16).toUpperCase()}`;
      parent.appendChild(mark);
      at = found.index + 1;
    }
    if (at < text.length || at === 0) parent.appendChild(document.createTextNode(text.slice(at)));
  }

  function writer(parent) {
    return { parents: [parent], skipped: 0, text: '', alt: null, images: 0, links: 0, image: null };
  }

  function flush(w) {
    if (w.text) w.parents[w.parents.length - 1].appendChild(document.createTextNode(w.text.replace(BIDI, '')));
    w.text = '';
  }

  function put(w, node) {
    flush(w);
    w.parents[w.parents.length - 1].appendChild(node);
  }

  function push(w, make) {
    if (w.images) return;
    if (w.parents.length > DEPTH) {
      w.skipped++;
      return;
    }
    const element = make();
    put(w, element);
    w.parents.push(element);
  }

  function pop(w) {
    if (w.images) return;
    flush(w);
    if (w.skipped) w.skipped--;
    else if (w.parents.length > 1) w.parents.pop();
  }

  function write_image(w) {
    const { url, title } = w.image;
    const text = w.alt.replace(BIDI, '');
    w.alt = w.image = null;
    if (w.links) {
      w.text += text;
      return;
    }
    const element = link_element(url, title);
    element.setAttribute('class', permitted(url) ? 'md-image' : 'md-unlinked md-image');
    element.textContent = text || url.replace(BIDI, '');
    put(w, element);
  }

  function say(w, text) {
    if (w.images) w.alt += text;
    else w.text += text;
  }

  function write_bracket(w, token) {
    if (!token.link) {
      say(w, token.text);
    } else if (token.link.image) {
      if (w.images++ === 0) {
        w.alt = '';
        w.image = token.link;
      }
    } else {
      push(w, () => link_element(token.link.url, token.link.title));
      if (!w.images) w.links++;
    }
  }

  function write_end(w, token) {
    if (token.image) {
      if (--w.images === 0) write_image(w);
    } else {
      pop(w);
      if (!w.images) w.links--;
    }
  }

  function write_address(w, token) {
    if (w.images || w.links) {
      say(w, token.text);
    } else if (permitted(token.url)) {
      const a = link_element(token.url, null);
      a.textContent = token.text.replace(BIDI, '');
      put(w, a);
    } else {
      say(w, token.shown); // "<std::string>" is an address by CommonMark's rules
    }
  }

  function write_run(w, token) {
    for (let i = 0; i < token.closes.length; i++) pop(w);
    if (token.length) say(w, token.mark.repeat(token.length));
    for (let i = token.opens.length - 1; i >= 0; i--) push(w, () => document.createElement(token.opens[i]));
  }

  function write_code(w, token) {
    if (w.images) {
      w.alt += token.text;
      return;
    }
    const code = document.createElement('code');
    append_visible(code, token.text);
    put(w, code);
  }

  function write_break(w) {
    if (w.images) w.alt += '\n';
    else put(w, document.createElement('br'));
  }

  // Appends `text` to `parent`. context: lookup(label) gives {url, title} or null; growing: this is the end of a
  // text that goes on; cell: of a table, where <br> breaks a line.
  function write(parent, text, context) {
    const w = writer(parent);
    for (const token of tokens_of(text, context)) {
      switch (token.kind) {
        case 'bracket': write_bracket(w, token); break;
        case 'end': write_end(w, token); break;
        case 'run': write_run(w, token); break;
        case 'code': write_code(w, token); break;
        case 'break': write_break(w); break;
        case 'address': write_address(w, token); break;
        case 'tag':
          if (context.cell && BREAK_TAG.test(token.text)) write_break(w);
          else say(w, token.text);
          break;
        default: say(w, token.text);
      }
    }
    flush(w);
  }

  return { write, destination, unescape, normal_label, append_visible, sticky, TITLE, REFERENCE, BIDI };
})();
