// Conversations in the browser's database. Where it is refused they live in memory, and `kept` is false.
//
// A conversation is {id, title, named, created, updated, model, system, settings, chosen}; a message {id, conversation,
// parent, role, content, ...} as tree.js says. Messages are records of their own: a stream writes one at a time.
const store = (() => {
  const NAME = 'sluice',
    VERSION = 1;
  let database = null,
    trouble = () => {};
  const memory = { conversations: new Map(), messages: new Map() };

  const done = (request) =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });

  async function connect() {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore('conversations', { keyPath: 'id' });
      request.result.createObjectStore('messages', { keyPath: 'id' }).createIndex('conversation', 'conversation');
    };
    const opened = await done(request);
    opened.onversionchange = () => opened.close();
    return opened;
  }

  // `report`: called with a text when something could not be kept.
  async function open(report) {
    trouble = report;
    try {
      database = await connect();
      await read('conversations', (all) => all.count()); // some browsers open what they do not let read
    } catch {
      database = null;
    }
    return database !== null;
  }

  // Reads with `work`, which gets an object store and gives a request.
  const read = (name, work) => done(work(database.transaction(name).objectStore(name)));

  // All of `work` or nothing of it. Never throws: what cannot be kept is said, and stays in the page.
  async function write(work) {
    try {
      const transaction = database.transaction(['conversations', 'messages'], 'readwrite');
      const ended = new Promise((resolve, reject) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = transaction.onerror = () =>
          reject(transaction.error ?? new Error('the transaction was aborted'));
      });
      work(transaction.objectStore('conversations'), transaction.objectStore('messages'));
      await ended;
      return true;
    } catch (error) {
      trouble(error.name === 'QuotaExceededError' ? 'the browser has no more room for this page' : error.message);
      return false;
    }
  }

  async function conversations() {
    return database ? read('conversations', (all) => all.getAll()) : [...memory.conversations.values()];
  }
  async function conversation(id) {
    return (database ? await read('conversations', (all) => all.get(id)) : memory.conversations.get(id)) ?? null;
  }
  async function messages(id) {
    if (database) return read('messages', (all) => all.index('conversation').getAll(id));
    return [...memory.messages.values()].filter((message) => message.conversation === id);
  }

  // Adds or replaces, in one transaction.
  async function save(conversationRecords, messageRecords = []) {
    if (database) {
      return write((all, texts) => {
        for (const record of conversationRecords) all.put(record);
        for (const record of messageRecords) texts.put(record);
      });
    }
    for (const record of conversationRecords) memory.conversations.set(record.id, record);
    for (const record of messageRecords) memory.messages.set(record.id, record);
    return true;
  }

  async function remove(id) {
    if (database) {
      return write((all, texts) => {
        all.delete(id);
        texts.index('conversation').getAllKeys(id).onsuccess = (event) => {
          for (const key of event.target.result) texts.delete(key);
        };
      });
    }
    memory.conversations.delete(id);
    for (const [key, message] of memory.messages) if (message.conversation === id) memory.messages.delete(key);
    return true;
  }

  // Ids of conversations that have all the words in their messages' texts, any of them in any message.
  async function search(words) {
    const missing = new Map(),
      found = new Set();
    const look = (message) => {
      const text = message.content.toLowerCase();
      const left = missing.get(message.conversation) ?? new Set(words);
      missing.set(message.conversation, left);
      for (const word of left) if (text.includes(word)) left.delete(word);
      if (left.size === 0) found.add(message.conversation);
    };
    if (!database) {
      [...memory.messages.values()].forEach(look);
      return found;
    }
    await new Promise((resolve, reject) => {
      const request = database.transaction('messages').objectStore('messages').openCursor();
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        if (!request.result) return resolve();
        look(request.result.value);
        return request.result.continue();
      };
    });
    return found;
  }

  return { open, conversations, conversation, messages, save, remove, search, kept: () => database !== null };
})();
