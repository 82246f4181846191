// Conversations as files. What comes in is checked field by field before anything of it is kept.
const transfer = (() => {
  const FORMAT = 'sluice conversations',
    VERSION = 1;
  const MOST_BYTES = 256 << 20,
    MOST_CONVERSATIONS = 10000,
    MOST_MESSAGES = 100000;
  const STATES = ['done', 'stopped', 'broken', 'failed'];

  class Refused extends Error {}

  // ---- out ----

  // `items`: [{record, messages}].
  function toJson(items) {
    const conversations = items.map(({ record, messages }) => ({
      ...record,
      messages: tree.inOrder(tree.grow(record, messages)).map(({ conversation, ...message }) => ({
        ...message,
        ...(message.state === 'running' ? { state: 'broken' } : {}),
      })),
    }));
    const file = { format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations };
    return `${JSON.stringify(file, null, 1)}\n`;
  }

  // What is shown of one conversation.
  function toMarkdown(grown) {
    const { record } = grown;
    const parts = [`# ${record.title}`];
    if (record.system.trim()) parts.push('## System', record.system.trim());
    for (const message of tree.path(grown)) {
      parts.push(message.role === 'user' ? '## You' : `## ${message.model ?? 'Answer'}`);
      const text = tree.textOf(message).trim();
      if (text) parts.push(text);
      for (const call of message.calls ?? [])
        parts.push(`Calls \`${call.name}\`:`, `\`\`\`json\n${call.arguments}\n\`\`\``);
    }
    return `${parts.join('\n\n')}\n`;
  }

  function fileName(title, ending) {
    const plain = title
      .normalize('NFKD')
      .replace(/[^A-Za-z0-9]+/g, '-')
      .replace(/^-+|-+$/g, '')
      .slice(0, 50)
      .toLowerCase();
    return `sluice-${plain || 'conversation'}.${ending}`;
  }

  // ---- in ----

  function typeOf(value) {
    if (value === null) return 'null';
    if (Array.isArray(value)) return 'an array';
    return { object: 'an object', string: 'a text', number: 'a number', boolean: 'a boolean', undefined: 'absent' }[
      typeof value
    ];
  }
  function refuse(path, rule, value) {
    throw new Refused(`${path} must be ${rule}, not ${typeOf(value)}`);
  }

  const need = {
    text(from, name, path, otherwise) {
      const value = from[name] ?? otherwise;
      if (typeof value !== 'string') refuse(`${path}.${name}`, 'a text', from[name]);
      return value;
    },
    // A text, or null where there is none.
    maybe: (from, name, path) => (from[name] === undefined || from[name] === null ? null : need.text(from, name, path)),
    number(from, name, path, otherwise) {
      const value = from[name] ?? otherwise;
      if (typeof value !== 'number' || !Number.isFinite(value) || value < 0)
        refuse(`${path}.${name}`, 'a number from 0 on', from[name]);
      return value;
    },
    array(from, name, path, otherwise) {
      const value = from[name] ?? otherwise;
      if (!Array.isArray(value)) refuse(`${path}.${name}`, 'an array', from[name]);
      return value;
    },
    object(value, path) {
      if (typeof value !== 'object' || value === null || Array.isArray(value)) refuse(path, 'an object', value);
      return value;
    },
  };

  function readSettings(from, path) {
    const given = need.object(from ?? {}, path),
      settings = {};
    for (const field of preferences.FIELDS) {
      if (given[field.name] === undefined || given[field.name] === null) continue;
      const wrong = preferences.wrong(field, given[field.name]);
      if (wrong) throw new Refused(`${path}.${field.name} ${wrong}`);
      settings[field.name] = given[field.name];
    }
    if (given.thinking !== undefined && given.thinking !== null) {
      if (typeof given.thinking !== 'string' || !Object.hasOwn(preferences.THINKING, given.thinking)) {
        throw new Refused(`${path}.thinking must be one of ${Object.keys(preferences.THINKING).join(', ')}`);
      }
      settings.thinking = given.thinking;
    }
    return settings;
  }

  function readAnswer(from, path, message) {
    message.model = need.maybe(from, 'model', path);
    message.reasoning = need.text(from, 'reasoning', path, '');
    message.reasoningTime = need.number(from, 'reasoningTime', path, 0);
    message.calls = need.array(from, 'calls', path, []).map((call, i) => {
      const at = `${path}.calls[${i}]`;
      need.object(call, at);
      return {
        id: need.text(call, 'id', at, ''),
        name: need.text(call, 'name', at),
        arguments: need.text(call, 'arguments', at),
      };
    });
    message.state = need.text(from, 'state', path, 'done');
    if (!STATES.includes(message.state)) throw new Refused(`${path}.state must be one of ${STATES.join(', ')}`);
    message.error = need.maybe(from, 'error', path);
    message.finish = need.maybe(from, 'finish', path);
    message.stats = {};
    const stats = need.object(from.stats ?? {}, `${path}.stats`);
    for (const name of ['prompt', 'cached', 'generated', 'rate', 'first']) {
      if (stats[name] !== undefined && stats[name] !== null)
        message.stats[name] = need.number(stats, name, `${path}.stats`);
    }
  }

  function readMessage(from, path, ids, conversation) {
    need.object(from, path);
    const id = need.text(from, 'id', path);
    if (ids.has(id)) throw new Refused(`${path}.id is that of another message`);
    const parent = need.maybe(from, 'parent', path);
    if (parent !== null && !ids.has(parent)) throw new Refused(`${path}.parent must be the id of a message before it`);
    const role = need.text(from, 'role', path);
    if (role !== 'user' && role !== 'assistant') throw new Refused(`${path}.role must be "user" or "assistant"`);
    ids.set(id, tree.newId());
    const message = {
      id: ids.get(id),
      conversation,
      parent: parent === null ? null : ids.get(parent),
      role,
      content: need.text(from, 'content', path),
      created: need.number(from, 'created', path, 0),
      files: need.array(from, 'files', path, []).map((file, i) => {
        const at = `${path}.files[${i}]`;
        need.object(file, at);
        return { name: need.text(file, 'name', at), text: need.text(file, 'text', at) };
      }),
    };
    if (role === 'assistant') readAnswer(from, path, message);
    return message;
  }

  function readConversation(from, path) {
    need.object(from, path);
    const ids = new Map();
    const record = {
      id: tree.newId(),
      title: need.text(from, 'title', path),
      named: from.named === true,
      created: need.number(from, 'created', path, Date.now()),
      updated: need.number(from, 'updated', path, Date.now()),
      model: need.maybe(from, 'model', path),
      system: need.text(from, 'system', path, ''),
      settings: readSettings(from.settings, `${path}.settings`),
      chosen: {},
    };
    const list = need.array(from, 'messages', path);
    if (list.length > MOST_MESSAGES) throw new Refused(`${path}.messages has more than ${MOST_MESSAGES} messages`);
    const messages = list.map((message, i) => readMessage(message, `${path}.messages[${i}]`, ids, record.id));
    const chosen = need.object(from.chosen ?? {}, `${path}.chosen`);
    for (const [parent, child] of Object.entries(chosen)) {
      const where = parent === tree.ROOT ? tree.ROOT : ids.get(parent);
      if (where && ids.has(child)) record.chosen[where] = ids.get(child);
    }
    return { record, messages };
  }

  // [{record, messages}] of a file's text, with ids of their own; throws Refused with a line that names what is wrong.
  function read(text) {
    let file;
    try {
      file = JSON.parse(text);
    } catch (error) {
      throw new Refused(`The file is not JSON: ${error.message}`);
    }
    need.object(file, 'The file');
    if (file.format !== FORMAT) throw new Refused(`format must be "${FORMAT}"; the file is from elsewhere`);
    if (file.version !== VERSION) throw new Refused(`version must be ${VERSION}`);
    const list = need.array(file, 'conversations', 'file');
    if (list.length > MOST_CONVERSATIONS) throw new Refused(`conversations are more than ${MOST_CONVERSATIONS}`);
    return list.map((conversation, i) => readConversation(conversation, `conversations[${i}]`));
  }

  return { toJson, toMarkdown, fileName, read, Refused, MOST_BYTES };
})();
