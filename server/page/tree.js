// A conversation as a tree: every edit and every other answer is a sibling, and `chosen` says which one is shown.
//
// A message: {id, conversation, parent (null: the first), role ('user' or 'assistant'), content, created,
// files: [{name, text}]}; an answer has besides {model, reasoning, reasoningTime (ms), calls: [{id, name, arguments}],
// state, error, finish, stats}. State: 'running', 'done', 'stopped', 'broken' (the connection), 'failed' (the server
// said why).
const tree = (() => {
  const ROOT = 'first';

  // A random id. crypto.randomUUID is for pages of https and of this machine only.
  function newId() {
    return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(36).padStart(2, '0')).join('');
  }

  function create(defaults) {
    const now = Date.now();
    return {
      id: newId(),
      title: 'New conversation',
      named: false,
      created: now,
      updated: now,
      model: defaults.model ?? null,
      system: defaults.system ?? '',
      settings: { ...defaults.settings },
      chosen: {},
    };
  }

  // The tree of a record and its messages.
  function grow(record, messages) {
    const made = { record, messages: new Map(), children: new Map() };
    for (const message of [...messages].sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1))) {
      made.messages.set(message.id, message);
    }
    for (const message of made.messages.values()) place(made, message);
    return made;
  }

  function place(of, message) {
    const parent = message.parent ?? ROOT;
    if (!of.children.has(parent)) of.children.set(parent, []);
    of.children.get(parent).push(message.id);
  }

  // Adds a message and shows it.
  function add(of, fields) {
    let created = Date.now();
    for (const id of siblings(of, fields)) created = Math.max(created, of.messages.get(id).created + 1);
    const message = { id: newId(), conversation: of.record.id, content: '', files: [], ...fields, created };
    of.messages.set(message.id, message);
    place(of, message);
    choose(of, message);
    return message;
  }

  const siblings = (of, message) => of.children.get(message.parent ?? ROOT) ?? [];

  function choose(of, message) {
    of.record.chosen[message.parent ?? ROOT] = message.id;
  }

  // The messages that are shown, from the first on; up to `end` (with it) where one is given.
  function path(of, end = null) {
    const shown = [];
    if (end) {
      for (let at = end; at; at = of.messages.get(at.parent)) shown.unshift(at);
      return shown;
    }
    for (let parent = ROOT; ;) {
      const choices = of.children.get(parent) ?? [];
      if (choices.length === 0) return shown;
      const chosen = of.record.chosen[parent];
      parent = choices.includes(chosen) ? chosen : choices[choices.length - 1];
      shown.push(of.messages.get(parent));
    }
  }

  // All messages, each behind its parent.
  function inOrder(of) {
    const all = [],
      left = [ROOT];
    while (left.length) {
      const children = of.children.get(left.pop()) ?? [];
      for (const id of children) all.push(of.messages.get(id));
      left.push(...children);
    }
    return all;
  }

  // The first line of a text, as a title.
  function titleOf(text) {
    const line = text.trim().split('\n')[0].replace(/\s+/g, ' ').trim();
    return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || 'New conversation';
  }

  // The text that a model gets of a message: files are fenced parts with their names.
  function textOf(message) {
    const parts = message.content ? [message.content] : [];
    for (const file of message.files ?? []) {
      const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map((run) => run[0].length));
      const fence = '`'.repeat(longest + 1);
      parts.push(`${file.name}:\n${fence}\n${file.text.replace(/\n$/, '')}\n${fence}`);
    }
    return parts.join('\n\n');
  }

  // The messages of a request that is answered behind `end`. What a model thought is its own, but for the answer that
  // it goes on with.
  function request(of, end) {
    const list = of.record.system.trim() ? [{ role: 'system', content: of.record.system }] : [];
    for (const message of path(of, end)) {
      const one = { role: message.role, content: textOf(message) };
      if (message === end && message.role === 'assistant' && message.reasoning)
        one.reasoning_content = message.reasoning;
      list.push(one);
    }
    return list;
  }

  return { ROOT, newId, create, grow, add, siblings, choose, path, inOrder, titleOf, textOf, request };
})();
