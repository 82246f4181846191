// A DOM as small as the page's scripts need it, and the scripts themselves. What is not here does not exist: a script
// that calls innerHTML, outerHTML or insertAdjacentHTML fails.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import vm from 'node:vm';

export const here = path.dirname(fileURLToPath(import.meta.url));
export const root = path.resolve(here, '../..');

export const made = { elements: 0, texts: 0 };

class Node {
  constructor(type, name) {
    this.nodeType = type;
    this.nodeName = name;
    this.parentNode = null;
    this.childNodes = [];
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get nextSibling() {
    const all = this.parentNode?.childNodes;
    return all ? all[all.indexOf(this) + 1] ?? null : null;
  }
  #take(node) {
    const nodes = node.nodeType === 11 ? node.childNodes : [node];
    if (node.nodeType === 11) node.childNodes = [];
    else node.parentNode?.removeChild(node);
    for (const one of nodes) one.parentNode = this;
    return nodes;
  }
  appendChild(node) {
    for (const one of this.#take(node)) this.childNodes.push(one);
    return node;
  }
  append(...nodes) {
    for (const node of nodes) this.appendChild(typeof node === 'string' ? new Text(node) : node);
  }
  insertBefore(node, before) {
    if (!before) return this.appendChild(node);
    const nodes = this.#take(node);
    const at = this.#index(before);
    this.childNodes = [...this.childNodes.slice(0, at), ...nodes, ...this.childNodes.slice(at)];
    return node;
  }
  replaceChild(node, old) {
    this.insertBefore(node, old);
    return this.removeChild(old);
  }
  removeChild(node) {
    this.childNodes.splice(this.#index(node), 1);
    node.parentNode = null;
    return node;
  }
  #index(node) {
    const at = this.childNodes.indexOf(node);
    if (at < 0) throw new Error('NotFoundError: not a child of this node');
    return at;
  }
  get textContent() {
    return this.nodeType === 3 ? this.data : this.childNodes.map((child) => child.textContent).join('');
  }
  set textContent(text) {
    for (const child of this.childNodes) child.parentNode = null;
    this.childNodes = text === '' ? [] : [new Text(text)];
    if (this.firstChild) this.firstChild.parentNode = this;
  }
}

class Text extends Node {
  constructor(text) {
    super(3, '#text');
    made.texts++;
    this.data = String(text);
  }
}

class Element extends Node {
  constructor(name) {
    super(1, name.toUpperCase());
    if (!/^[a-z][a-z0-9]*$/.test(name)) throw new Error(`InvalidCharacterError: ${name}`);
    made.elements++;
    this.attributes = [];
  }
  setAttribute(name, value) {
    if (!/^[a-zA-Z][a-zA-Z0-9-]*$/.test(name) || name === 'style' || /^on/.test(name)) throw new Error(`not an attribute to set: ${name}`);
    const old = this.attributes.find((one) => one.name === name);
    if (old) old.value = String(value);
    else this.attributes.push({ name, value: String(value) });
  }
  getAttribute(name) {
    return this.attributes.find((one) => one.name === name)?.value ?? null;
  }
  set innerHTML(text) {
    throw new Error(`innerHTML is not to be used: ${text}`);
  }
}

class VectorElement extends Element {
  constructor(name) {
    super(name);
    this.nodeName = name;
  }
}

const listeners = new Map();
export const document = {
  visibilityState: 'visible',
  addEventListener: (name, call) => listeners.set(call, name),
  removeEventListener: (name, call) => listeners.delete(call),
  createElementNS: (space, name) => new VectorElement(name),
  createElement: (name) => new Element(name),
  createTextNode: (text) => new Text(text),
  createDocumentFragment: () => new Node(11, '#document-fragment'),
};

/** The page is shown or hidden. */
export function become(state) {
  document.visibilityState = state;
  for (const [call, name] of [...listeners]) if (name === 'visibilitychange') call();
}
export const listening = () => listeners.size;

/** What scripts of server/page define, in one scope as the page has them: load(['a.js'], 'a'). more: names of that scope. */
export function load(names, result, more = {}) {
  const source = names.map((name) => fs.readFileSync(path.join(root, 'server/page', name), 'utf8')).join('\n');
  const scope = { document, ...more };
  const made_by = vm.runInThisContext(`(function (${Object.keys(scope)}) {\n${source}\nreturn ${result};\n})`, { filename: names.join('+') });
  return made_by(...Object.values(scope));
}

const MARKDOWN = ['markdown_inline.js', 'markdown_block.js', 'markdown.js'];
export const loadMarkdown = () => load(MARKDOWN, 'markdown');
export const loadMarkdownWithHighlight = () => load(['highlight.js', ...MARKDOWN], 'markdown');

/** Every node below, itself included. */
export function* walk(node) {
  const stack = [node];
  while (stack.length) {
    const one = stack.pop();
    yield one;
    for (let i = one.childNodes.length - 1; i >= 0; i--) stack.push(one.childNodes[i]);
  }
}

const escape = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');
const EMPTY = new Set(['BR', 'HR', 'IMG', 'INPUT']);

/** HTML of a tree; change(element) may give {name, attributes, inside} or text to be written in its place. */
export function html(node, change = () => null) {
  if (node.nodeType === 3) return escape(node.data);
  const inside = () => node.childNodes.map((child) => html(child, change)).join('');
  if (node.nodeType === 11) return inside();
  const other = change(node, inside);
  if (typeof other === 'string') return other;
  const { name = node.nodeName.toLowerCase(), attributes = node.attributes } = other ?? {};
  const list = attributes.map((one) => ` ${one.name}="${escape(one.value)}"`).join('');
  return EMPTY.has(name.toUpperCase()) ? `<${name}${list}>` : `<${name}${list}>${inside()}</${name}>`;
}
