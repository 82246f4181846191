// Markdown as DOM nodes: what models write, shown without ever trusting it.
//
//   markdown.render(text, options)             a DocumentFragment of the whole text
//   markdown.update(container, text, options)  makes `container` show a text that grows; `done: true` when it is whole
//
// Nodes are made by createElement, createTextNode and setAttribute alone. Raw HTML is shown as text, images are links,
// links go to http, https and mailto only. options:
//   highlight(code, language)   gives a fragment for the text of a code block; without it, highlight.js's when it is
//                               there; false: none
//   done                        of update: the text ends here. Until then marks that are open at its end are taken as
//                               closed there, and marks whose meaning the next characters decide wait for those
//
// A code block is div.md-code > (div.md-code-bar > span.md-language, button.md-copy) + pre > code; what the button does
// is the page's: markdown.code_of(button) is the text that it stands for, as it was written.
const markdown = (() => {
  'use strict';

  const { BIDI, append_visible, write } = markdown_inline;
  const PADDING = 5000; // cells that all short rows of a table get at most
  const LONG = 32; // characters of a cell that is not to be squeezed
  const shown = new WeakMap(); // container -> what it shows
  const codes = new WeakMap(); // code element -> its text

  function make(name, kind) {
    const element = document.createElement(name);
    if (kind) element.setAttribute('class', kind);
    return element;
  }

  function text_of(block) {
    return block.lines.join('\n').trimEnd();
  }

  // The characters that reorder text inside highlighted code, as marks.
  function show_bidi(node) {
    for (const child of Array.from(node.childNodes)) {
      if (child.nodeType !== 3) {
        show_bidi(child);
      } else if (child.data.search(BIDI) >= 0) {
        const part = document.createDocumentFragment();
        append_visible(part, child.data);
        node.replaceChild(part, child);
      }
    }
  }

  function code_block(text, language, context) {
    const box = make('div', 'md-code');
    const bar = make('div', 'md-code-bar');
    const name = make('span', 'md-language');
    name.textContent = language;
    bar.appendChild(name);
    const copy = make('button', 'md-copy');
    copy.setAttribute('type', 'button');
    copy.textContent = 'Copy';
    bar.appendChild(copy);
    box.appendChild(bar);
    const pre = make('pre');
    pre.setAttribute('tabindex', '0');
    const code = make('code', language && language.length <= 64 ? `language-${language}` : '');
    codes.set(code, text);
    const colour = context.highlight;
    if (colour && language) code.appendChild(colour(text, language));
    else code.textContent = text;
    if (text.search(BIDI) >= 0) show_bidi(code);
    pre.appendChild(code);
    box.appendChild(pre);
    return box;
  }

  const fence_text = (block) => (block.lines.length ? `${block.lines.join('\n')}\n` : '');
  const fence_language = (block) => block.information.replace(BIDI, '').split(/\s/)[0];
  const fenced = (block, context) => code_block(fence_text(block), fence_language(block), context);

  function indented(block, context) {
    let end = block.lines.length;
    while (end > 0 && !block.lines[end - 1].trim()) end--;
    return code_block(`${block.lines.slice(0, end).join('\n')}\n`, '', context);
  }

  function inline(element, text, context, growing) {
    write(element, text, { lookup: context.lookup, growing, cell: element.nodeName === 'TD' || element.nodeName === 'TH' });
    return element;
  }

  function row(cells, block, name, context, growing) {
    const tr = make('tr');
    const columns = block.align.length;
    for (let i = 0; i < columns; i++) {
      if (i >= cells.length && --context.padding < 0) break;
      const long = i < cells.length && cells[i].length > LONG ? 'md-long' : '';
      const cell = make(name, [block.align[i] && `md-${block.align[i]}`, long].filter(Boolean).join(' '));
      if (i < cells.length) inline(cell, cells[i], context, growing && i === cells.length - 1);
      tr.appendChild(cell);
    }
    return tr;
  }

  function table(block, context, growing) {
    const box = make('div', 'md-scroll');
    box.setAttribute('tabindex', '0');
    const element = make('table');
    const head = make('thead');
    context.padding = PADDING;
    head.appendChild(row(block.header, block, 'th', context, growing && !block.rows.length));
    element.appendChild(head);
    if (block.rows.length) {
      const body = make('tbody');
      block.rows.forEach((cells, i) => body.appendChild(row(cells, block, 'td', context, growing && i === block.rows.length - 1)));
      element.appendChild(body);
    }
    box.appendChild(element);
    return box;
  }

  // "[ ] " or "[x] " at an item's beginning becomes a box that cannot be ticked.
  function task(element, block) {
    const first = block.children[0];
    const found = first && first.kind === 'paragraph' && first.lines.length ? /^\[([ xX])\][ \t]+(?=\S)/.exec(first.lines[0]) : null;
    if (!found) return null;
    element.setAttribute('class', 'md-task');
    const box = make('input');
    box.setAttribute('type', 'checkbox');
    box.setAttribute('disabled', '');
    if (found[1] !== ' ') box.setAttribute('checked', '');
    return { box, length: found[0].length };
  }

  function item(block, tight, context, growing) {
    const element = make('li');
    const ticked = task(element, block);
    block.children.forEach((child, i) => {
      const last = growing && i === block.children.length - 1;
      if (child.kind !== 'paragraph') {
        add_block(element, child, context, last);
        return;
      }
      if (!child.lines.length) return;
      const text = text_of(child);
      const parent = tight ? element : make('p');
      const box = i === 0 ? ticked : null;
      if (box) {
        parent.appendChild(box.box);
        parent.appendChild(document.createTextNode(' '));
      }
      inline(parent, box ? text.slice(box.length) : text, context, last);
      if (!tight) element.appendChild(parent);
    });
    return element;
  }

  function list(block, context, growing) {
    const element = make(block.ordered ? 'ol' : 'ul');
    if (block.ordered && block.first !== 1) element.setAttribute('start', String(block.first));
    const tight = !markdown_block.is_loose(block);
    block.children.forEach((child, i) => {
      element.appendChild(item(child, tight, context, growing && i === block.children.length - 1));
    });
    return element;
  }

  function quote(block, context, growing) {
    const element = make('blockquote');
    block.children.forEach((child, i) => add_block(element, child, context, growing && i === block.children.length - 1));
    return element;
  }

  function raw(block) {
    const element = make('p', 'md-html');
    let end = block.lines.length;
    while (end > 0 && !block.lines[end - 1].trim()) end--;
    element.textContent = block.lines.slice(0, end).join('\n').replace(BIDI, '');
    return element;
  }

  // The one node of a block; null for a paragraph of definitions.
  function block_node(block, context, growing) {
    switch (block.kind) {
      case 'paragraph': return block.lines.length ? inline(make('p'), text_of(block), context, growing) : null;
      case 'heading': return inline(make(`h${block.level}`), block.text, context, growing);
      case 'rule': return make('hr');
      case 'quote': return quote(block, context, growing);
      case 'list': return list(block, context, growing);
      case 'fence': return fenced(block, context);
      case 'indented': return indented(block, context);
      case 'table': return table(block, context, growing);
      default: return raw(block);
    }
  }

  function add_block(parent, block, context, growing) {
    const node = block_node(block, context, growing);
    if (node) parent.appendChild(node);
  }

  /* ---- whole texts ---- */

  function highlighter(options) {
    if (options.highlight !== undefined) return options.highlight;
    return typeof highlight === 'undefined' ? false : highlight.code;
  }

  function clean(text, growing) {
    let all = growing && text.endsWith('\r') ? text.slice(0, -1) : text;
    if (all.includes('\r')) all = all.replace(/\r\n?/g, '\n');
    return all.includes('\0') ? all.replace(/\0/g, '\uFFFD') : all;
  }

  function render(text, options = {}) {
    const { blocks, definitions } = markdown_block.parse(clean(String(text), false), 0, false);
    const context = { lookup: (label) => definitions.get(label) || null, highlight: highlighter(options), padding: 0 };
    const fragment = document.createDocumentFragment();
    for (const block of blocks) add_block(fragment, block, context, false);
    return fragment;
  }

  /* ---- texts that grow ---- */

  function same_shape(a, b) {
    if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return false;
    if (a.nodeType === 3) return true;
    if (a.attributes.length !== b.attributes.length) return false;
    for (const { name, value } of Array.from(b.attributes)) {
      if (a.getAttribute(name) !== value) return false;
    }
    return true;
  }

  // Makes `node` look like `wanted`, keeping every node that need not change: selections and scrolled code stay.
  function morph(node, wanted) {
    if (node.nodeType === 3) {
      if (node.data !== wanted.data) node.data = wanted.data;
      return;
    }
    if (codes.has(wanted)) codes.set(node, codes.get(wanted));
    let old = node.firstChild;
    let next = wanted.firstChild;
    while (next) {
      const following = next.nextSibling;
      if (!old) {
        node.appendChild(next);
      } else {
        const behind = old.nextSibling;
        if (same_shape(old, next)) morph(old, next);
        else node.replaceChild(next, old);
        old = behind;
      }
      next = following;
    }
    while (old) {
      const behind = old.nextSibling;
      node.removeChild(old);
      old = behind;
    }
  }

  function begin(container) {
    container.textContent = '';
    const view = { text: '', blocks: [], done: 0, from: 0, committed: new Map(), known: new Map(), highlight: null };
    shown.set(container, view);
    return view;
  }

  // A block's node in the container, in place of the one that was there.
  function place(container, entry, node) {
    if (entry.node && node && same_shape(entry.node, node)) {
      morph(entry.node, node);
      return;
    }
    if (entry.node && node) container.replaceChild(node, entry.node);
    else if (entry.node) container.removeChild(entry.node);
    entry.node = node;
  }

  function draw(container, view, entry, growing) {
    const looked = new Set();
    const lookup = (label) => {
      looked.add(label);
      return view.known.get(label) || null;
    };
    const fresh = !entry.node;
    place(container, entry, block_node(entry.block, { lookup, highlight: view.highlight, padding: 0 }, growing));
    entry.looked = looked.size ? looked : null;
    entry.block = looked.size ? entry.block : null; // needed again only if a definition comes
    return fresh && entry.node;
  }

  // The last block, when it is code that goes on: what is coloured already stays. false: to be drawn as any block.
  function extend_code(view, entry, block) {
    const usual = typeof highlight !== 'undefined' && view.highlight === highlight.code;
    if (!usual || block.kind !== 'fence' || !entry.code || entry.code.information !== block.information) return false;
    const code = entry.node.childNodes[1].firstChild;
    const text = fence_text(block);
    const { mark } = entry.code;
    if (mark && codes.get(code).slice(0, mark.at) !== text.slice(0, mark.at)) return false;
    if (text.search(BIDI) >= 0) return false;
    const reached = highlight.extend(code, text, fence_language(block), mark);
    if (!reached) return false;
    entry.code.mark = reached;
    codes.set(code, text);
    return true;
  }

  // Labels whose meaning is another than at the last update.
  function changed_labels(before, after) {
    const labels = new Set();
    const same = (a, b) => a && b && a.url === b.url && a.title === b.title;
    for (const [label, found] of after) if (!same(before.get(label), found)) labels.add(label);
    for (const label of before.keys()) if (!after.has(label)) labels.add(label);
    return labels;
  }

  function next_node(view, index) {
    for (let i = index; i < view.blocks.length; i++) if (view.blocks[i].node) return view.blocks[i].node;
    return null;
  }

  function insert(container, view, index) {
    const { node } = view.blocks[index];
    const behind = next_node(view, index + 1);
    if (behind) container.insertBefore(node, behind);
    else container.appendChild(node);
  }

  // Blocks before the last are final, unless the last began in a line that is not complete.
  function commit(view, text, definitions) {
    const line = text.lastIndexOf('\n') + 1;
    let keep = view.blocks.length - 1;
    if (keep > 0 && view.blocks[keep].start >= line) keep--;
    while (keep > 0 && view.blocks[keep - 1].start === view.blocks[keep].start) keep--;
    if (keep <= view.done) return;
    view.done = keep;
    view.from = view.blocks[keep].start;
    for (const [label, found] of definitions) {
      if (found.start < view.from && !view.committed.has(label)) view.committed.set(label, found);
    }
  }

  function update(container, text, options = {}) {
    const growing = !options.done;
    const all = clean(String(text), growing);
    let view = shown.get(container);
    const colour = highlighter(options);
    if (!view || !all.startsWith(view.text.slice(0, view.from)) || view.highlight !== colour) view = begin(container);
    view.highlight = colour;
    const { blocks, definitions } = markdown_block.parse(all, view.from, growing);
    let labels = null;
    if (definitions.size || view.known !== view.committed) {
      const known = new Map(view.committed);
      for (const [label, found] of definitions) if (!known.has(label)) known.set(label, found);
      labels = changed_labels(view.known, known);
      view.known = definitions.size ? known : view.committed;
    }
    if (labels && labels.size) {
      for (let i = 0; i < view.done; i++) {
        const entry = view.blocks[i];
        if (entry.looked && Array.from(entry.looked).some((label) => labels.has(label))) draw(container, view, entry, false);
      }
    }
    blocks.forEach((block, i) => {
      const index = view.done + i;
      const entry = view.blocks[index] || (view.blocks[index] = { node: null, block: null, looked: null, code: null, start: 0 });
      const last = growing && i === blocks.length - 1;
      entry.start = block.start;
      if (last && extend_code(view, entry, block)) return;
      entry.block = block;
      entry.code = block.kind === 'fence' ? { information: block.information, mark: null } : null;
      if (draw(container, view, entry, last)) insert(container, view, index);
    });
    for (const entry of view.blocks.splice(view.done + blocks.length)) if (entry.node) container.removeChild(entry.node);
    view.text = all;
    commit(view, all, definitions);
  }

  // The text of the code block that `element` (its button, say) belongs to; null: none.
  function code_of(element) {
    const box = element.closest('.md-code');
    const code = box && box.querySelector('code');
    return code ? codes.get(code) ?? code.textContent : null;
  }

  return { render, update, code_of };
})();
