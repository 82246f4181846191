// Markdown's blocks: lines to a tree. CommonMark 0.31.2 and GFM's tables. https://spec.commonmark.org/0.31.2/#blocks-and-inlines
//
// Blocks nest up to DEPTH; what would lie deeper is text. Each line is looked at once for every open block, so the
// whole is linear.
const markdown_block = (() => {
  'use strict';

  const { destination, unescape, normal_label, sticky, TITLE, REFERENCE } = markdown_inline;
  const DEPTH = 24;
  const COLUMNS = 256;

  const NAMES = 'address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|' +
    'dt|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu|' +
    'menuitem|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|track|ul';
  const ATTRIBUTE = '\\s+[A-Za-z_:][\\w.:-]*(?:\\s*=\\s*(?:[^\\s"\'=<>`]+|\'[^\']*\'|"[^"]*"))?';
  // How HTML begins and where it ends; null: at a blank line. The last cannot interrupt a paragraph.
  const HTML = [
    [/^<(?:script|pre|style|textarea)(?:\s|>|$)/i, /<\/(?:script|pre|style|textarea)>/i],
    [/^<!-{2}/, /-->/],
    [/^<\?/, /\?>/],
    [/^<![A-Za-z]/, />/],
    [/^<!\[CDATA\[/, /\]\]>/],
    [new RegExp(`^</?(?:${NAMES})(?:\\s|/?>|$)`, 'i'), null],
    [new RegExp(`^(?:<[A-Za-z][A-Za-z0-9-]*(?:${ATTRIBUTE})*\\s*/?>|</[A-Za-z][A-Za-z0-9-]*\\s*>)\\s*$`), null],
  ];
  const RULE = /^(?:\*[ \t]*){3,}$|^(?:_[ \t]*){3,}$|^(?:-[ \t]*){3,}$/;
  const HEADING = /^(#{1,6})(?:[ \t]+|$)/;
  const FENCE = /^(?:(`{3,})[^`]*|(~{3,}).*)$/;
  const SETEXT = /^(?:=+|-+)[ \t]*$/;
  const MARKER = /^(?:([-+*])|(\d{1,9})([.)]))(?=[ \t]|$)/;
  const DELIMITERS = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
  const VERBATIM = { fence: true, indented: true, html: true };

  /* ---- a line, and how far it has been read ---- */

  function locate(c) {
    let { at, column } = c;
    for (; at < c.line.length; at++) {
      if (c.line[at] === ' ') column++;
      else if (c.line[at] === '\t') column += 4 - (column % 4);
      else break;
    }
    c.next = at;
    c.indent = column - c.column;
    c.blank = at >= c.line.length;
  }

  // Reads columns of blanks; a tab may be read in part.
  function skip(c, columns) {
    while (columns > 0 && c.at < c.line.length) {
      const width = c.line[c.at] === '\t' ? 4 - (c.column % 4) : 1;
      c.partial = width > columns;
      c.column += Math.min(width, columns);
      if (!c.partial) c.at++;
      columns -= width;
    }
    locate(c);
  }

  // Reads up to the next character that is no blank, and `count` characters.
  function read(c, count) {
    c.column += c.indent + count;
    c.at = c.next + count;
    c.partial = false;
    locate(c);
  }

  function rest(c) {
    return c.partial ? ' '.repeat(4 - (c.column % 4)) + c.line.slice(c.at + 1) : c.line.slice(c.at);
  }

  /* ---- the blocks that are open: state.open, from the document to the innermost ---- */

  function tip(state) {
    return state.open[state.open.length - 1];
  }

  function close_to(state, count) {
    while (state.open.length > count) {
      const block = state.open.pop();
      if (block.kind === 'paragraph') take_definitions(state, block);
    }
  }

  function add(state, block) {
    if (block.kind !== 'item' && tip(state).kind === 'list') close_to(state, state.open.length - 1);
    const parent = tip(state);
    block.begin = block.finish = state.number;
    block.children = [];
    if (parent.kind === 'document') block.start = state.start;
    parent.children.push(block);
    state.open.push(block);
    return block;
  }

  function touch(state) {
    for (const block of state.open) block.finish = state.number;
  }

  /* ---- definitions of references, at a paragraph's beginning ---- */

  function definition(text, at) {
    const label = sticky(REFERENCE, text, at);
    if (label === null || label.length > 1001 || !/\S/.test(label.slice(1, -1)) || text[at + label.length] !== ':') return null;
    const blanks = /[ \t]*\n?[ \t]*/y;
    let end = at + label.length + 1;
    end += sticky(blanks, text, end).length;
    const where = destination(text, end);
    if (!where || where.end === end) return null;
    end = where.end;
    let title = null;
    const gap = sticky(blanks, text, end).length;
    const quoted = gap ? sticky(TITLE, text, end + gap) : null;
    const behind = quoted === null ? null : sticky(/[ \t]*(?:\n|$)/y, text, end + gap + quoted.length);
    if (behind !== null) {
      title = unescape(quoted.slice(1, -1));
      end += gap + quoted.length + behind.length;
    } else {
      const line = sticky(/[ \t]*(?:\n|$)/y, text, end);
      if (line === null) return null;
      end += line.length;
    }
    return { label: normal_label(label.slice(1, -1)), url: where.url, title, end };
  }

  function take_definitions(state, block) {
    if (!block.lines.length || block.lines[0][0] !== '[') return;
    const text = block.lines.join('\n');
    let at = 0;
    for (let found; text[at] === '[' && (found = definition(text, at)); at = found.end) {
      const whole = found.end < text.length || !state.growing || block.finish < state.last;
      if (whole && !state.definitions.has(found.label)) {
        const top = state.open.length > 1 ? state.open[1] : block;
        state.definitions.set(found.label, { url: found.url, title: found.title, start: top.start });
      }
    }
    if (at > 0) block.lines = at < text.length ? text.slice(at).split('\n') : [];
  }

  /* ---- does a line go on with an open block? ---- */

  function item_goes_on(block, c) {
    if (c.blank ? !block.children.length : c.indent < block.width) return false;
    skip(c, Math.min(c.indent, block.width));
    return true;
  }

  // true, false, or 'done' when the line was the block's end.
  function goes_on(state, block, c) {
    switch (block.kind) {
      case 'quote':
        if (c.indent > 3 || c.line[c.next] !== '>') return false;
        read(c, 1);
        if (c.indent > 0) skip(c, 1);
        block.finish = state.number;
        return true;
      case 'list': return true;
      case 'item': return item_goes_on(block, c);
      case 'fence':
        if (c.indent < 4 && c.line[c.next] === block.mark) {
          const found = /^(`+|~+)[ \t]*$/.exec(c.line.slice(c.next));
          if (found && found[1].length >= block.length) return 'done';
        }
        skip(c, Math.min(c.indent, block.indent));
        return true;
      case 'indented':
        if (c.indent < 4 && !c.blank) return false;
        skip(c, Math.min(c.indent, 4));
        return true;
      case 'html': return !(c.blank && block.end === null);
      case 'paragraph': case 'table': return !c.blank;
      default: return false;
    }
  }

  /* ---- what begins at a line: null, or a function that adds it once the blocks that end here are closed; it gives
   * 'line' when nothing of the line is left ---- */

  function last_is(state, kind) {
    return tip(state).kind === kind;
  }

  function quote(state, c) {
    if (c.line[c.next] !== '>' || state.open.length > DEPTH) return null;
    return () => {
      read(c, 1);
      if (c.indent > 0) skip(c, 1);
      add(state, { kind: 'quote' });
    };
  }

  function heading(state, c) {
    const line = c.line.slice(c.next);
    const found = HEADING.exec(line);
    if (!found) return null;
    let text = line.slice(found[0].length).trim();
    let end = text.length;
    while (end > 0 && text[end - 1] === '#') end--;
    if (end === 0 || ' \t'.includes(text[end - 1])) text = text.slice(0, end).trimEnd();
    return () => {
      add(state, { kind: 'heading', level: found[1].length, text });
      return 'line';
    };
  }

  function fence(state, c) {
    const found = FENCE.exec(c.line.slice(c.next));
    if (!found) return null;
    const mark = found[1] || found[2];
    return () => {
      const information = unescape(c.line.slice(c.next + mark.length).trim());
      add(state, { kind: 'fence', mark: mark[0], length: mark.length, indent: c.indent, lines: [], information });
      return 'line';
    };
  }

  function html(state, c, matched) {
    if (c.line[c.next] !== '<') return null;
    const line = c.line.slice(c.next);
    const kind = HTML.findIndex(([begin]) => begin.test(line));
    if (kind < 0 || (kind === HTML.length - 1 && last_is(state, 'paragraph'))) return null;
    return () => {
      const block = add(state, { kind: 'html', end: HTML[kind][1], lines: [rest(c)] });
      if (block.end && block.end.test(line)) close_to(state, state.open.length - 1);
      return 'line';
    };
  }

  function setext(state, c, matched) {
    const block = tip(state);
    if (block.kind !== 'paragraph' || matched < state.open.length || !SETEXT.test(c.line.slice(c.next))) return null;
    take_definitions(state, block);
    if (!block.lines.length) return null;
    return () => {
      block.kind = 'heading';
      block.level = c.line[c.next] === '=' ? 1 : 2;
      block.text = block.lines.join('\n').trimEnd();
      touch(state);
      return 'line';
    };
  }

  function rule(state, c) {
    if (!RULE.test(c.line.slice(c.next))) return null;
    return () => {
      add(state, { kind: 'rule' });
      return 'line';
    };
  }

  function list_item(state, c, matched) {
    const found = MARKER.exec(c.line.slice(c.next, c.next + 12));
    if (!found || state.open.length + 1 > DEPTH) return null;
    const [marker, bullet, digits, delimiter] = found;
    const empty = !/[^ \t]/.test(c.line.slice(c.next + marker.length));
    const interrupts = last_is(state, 'paragraph') && matched === state.open.length;
    if (interrupts && (empty || (digits && Number(digits) !== 1))) return null;
    return () => {
      const outer = c.indent;
      read(c, marker.length);
      const padding = empty || c.indent > 4 ? 1 : c.indent;
      const list = tip(state);
      const mark = bullet || delimiter;
      if (list.kind !== 'list' || list.mark !== mark) {
        add(state, { kind: 'list', mark, ordered: !bullet, first: digits ? Number(digits) : 0 });
      }
      add(state, { kind: 'item', width: outer + marker.length + padding });
      skip(c, empty ? c.indent : padding);
      return undefined;
    };
  }

  function indented(state, c) {
    if (c.indent < 4 || c.blank || last_is(state, 'paragraph')) return null;
    return () => {
      skip(c, 4);
      add(state, { kind: 'indented', lines: [rest(c)] });
      return 'line';
    };
  }

  // Cells of a row; "\|" is a bar inside one.
  function cells(line) {
    const text = line.trim();
    const row = [];
    let begin = text[0] === '|' ? 1 : 0;
    for (let i = begin; i < text.length; i++) {
      if (text[i] === '\\') {
        i++;
      } else if (text[i] === '|') {
        row.push(text.slice(begin, i).trim());
        begin = i + 1;
      }
    }
    if (begin < text.length) row.push(text.slice(begin).trim());
    return row.map((cell) => (cell.includes('\\|') ? cell.replace(/\\\|/g, '|') : cell));
  }

  function alignment(cell) {
    const left = cell[0] === ':', right = cell[cell.length - 1] === ':';
    return left ? (right ? 'center' : 'left') : right ? 'right' : '';
  }

  // The last line of the innermost paragraph becomes the header of a table.
  function begin_table(state, header, align) {
    let block = tip(state);
    if (block.lines.length > 1) {
      block.lines.pop();
      const { number } = state;
      const { start } = block; // read again from there: alone, an indented line could be code
      state.number = block.last_number;
      close_to(state, state.open.length - 1);
      block = add(state, {});
      block.start = start;
      state.number = number;
    }
    Object.assign(block, { kind: 'table', header, align, rows: [] });
    touch(state);
  }

  function table(state, c, matched) {
    const line = c.line.slice(c.next);
    const block = tip(state);
    if (block.kind !== 'paragraph' || matched < state.open.length || !block.lines.length || !/[|:]/.test(line) ||
        !DELIMITERS.test(line)) {
      return null;
    }
    const header = cells(block.lines[block.lines.length - 1]);
    const columns = cells(line);
    if (columns.length !== header.length || header.length > COLUMNS) return null;
    return () => {
      begin_table(state, header, columns.map(alignment));
      return 'line';
    };
  }

  const BEGINNINGS = [quote, heading, fence, html, setext, rule, list_item, table];

  // Adds one block that begins here: true, 'line' when it took the whole line, or false.
  function begin(state, c, matched) {
    if (c.blank) return false;
    if (c.indent > 3) {
      const add_code = indented(state, c);
      if (!add_code) return false;
      close_to(state, tip_is_leaf(state, matched) ? matched - 1 : matched);
      return add_code();
    }
    for (const kind of BEGINNINGS) {
      const apply = kind(state, c, matched);
      if (apply) {
        if (kind !== setext && kind !== table) {
          close_to(state, tip_is_leaf(state, matched) ? matched - 1 : matched);
        }
        return apply() || true;
      }
    }
    return false;
  }

  // A paragraph or table that would go on ends where another block begins.
  function tip_is_leaf(state, matched) {
    const { kind } = state.open[matched - 1];
    return kind === 'paragraph' || kind === 'table' || kind === 'heading' || kind === 'rule';
  }

  /* ---- lines ---- */

  function verbatim_line(state, c, block) {
    block.lines.push(rest(c));
    if (block.kind === 'fence' || !c.blank) touch(state);
    if (block.end && block.end.test(c.line.slice(c.at))) close_to(state, state.open.length - 1);
  }

  function text_line(state, c, matched) {
    const lazy = matched < state.open.length && last_is(state, 'paragraph');
    if (c.blank) {
      close_to(state, matched);
      return;
    }
    if (!lazy) close_to(state, matched);
    const block = tip(state);
    if (block.kind === 'table') {
      block.rows.push(cells(c.line.slice(c.next)));
    } else {
      const text = block.kind === 'paragraph' ? block : add(state, { kind: 'paragraph', lines: [] });
      text.lines.push(c.line.slice(c.next));
      text.last_number = state.number;
    }
    touch(state);
  }

  function line(state, text) {
    const c = { line: text, at: 0, column: 0, partial: false, next: 0, indent: 0, blank: false };
    locate(c);
    let matched = 1;
    for (; matched < state.open.length; matched++) {
      const result = goes_on(state, state.open[matched], c);
      if (result === 'done') {
        close_to(state, matched + 1);
        touch(state);
        close_to(state, matched);
        return;
      }
      if (!result) break;
      if (state.open[matched].kind === 'quote') {
        for (let i = 0; i <= matched; i++) state.open[i].finish = state.number;
      }
    }
    const block = state.open[matched - 1];
    if (VERBATIM[block.kind]) {
      verbatim_line(state, c, block);
      return;
    }
    for (;;) {
      const result = begin(state, c, matched);
      if (result === 'line') return;
      if (!result) break;
      matched = state.open.length;
    }
    text_line(state, c, matched);
  }

  // While a text grows: a last line of marks alone may become anything, so it waits. So does a number that is not the
  // text's first line (an answer may be one), and a definition.
  function undecided(text, first) {
    return text.length < 200 && (/^[ \t>]*(?:[-=*_+#`~|:>]+|\d{1,9}[.)]|[-*+] \[[ xX]?\]?)[ \t]*$/.test(text) ||
      /^[ \t>]*\|?[ \t]*[-:][-:| \t]*$/.test(text) || /^ {0,3}\[[^[\]]+\]:/.test(text) || (!first && /^[ \t>]*\d{1,9}$/.test(text)));
  }

  // The blocks of `text` from the offset `from` on, where nothing is open: {blocks, definitions}. Each block has its
  // `start`. growing: the text goes on later, and its last line may not be complete.
  function parse(text, from, growing) {
    const document = { kind: 'document', children: [], finish: 0 };
    const state = {
      open: [document], number: 0, start: from, growing, last: Infinity, definitions: new Map(),
    };
    while (state.start < text.length) {
      const found = text.indexOf('\n', state.start);
      const end = found < 0 ? text.length : found;
      const one = text.slice(state.start, end);
      if (growing && found < 0) {
        if (undecided(one, state.start === 0)) break;
        state.last = state.number;
      }
      line(state, one);
      state.number++;
      state.start = end + 1;
    }
    const block = tip(state);
    if (growing && block.kind === 'paragraph' && block.lines.length === 1 && /^\|.*[^|\s]/.test(block.lines[0])) {
      const header = cells(block.lines[0]); // most likely of a table
      if (header.length <= COLUMNS) begin_table(state, header, header.map(() => ''));
    }
    close_to(state, 0);
    return { blocks: document.children, definitions: state.definitions };
  }

  // Is there a blank line between its items, or between the blocks of one of them?
  function is_loose(list) {
    let before = null;
    for (const item of list.children) {
      if (before && before.finish + 1 < item.begin) return true;
      before = item;
      for (let i = 1; i < item.children.length; i++) {
        if (item.children[i - 1].finish + 1 < item.children[i].begin) return true;
      }
    }
    return false;
  }

  return { parse, is_loose };
})();
