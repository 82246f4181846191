// The whole: addresses, models, what buttons and keys do.
const main = (() => {
  const { byId, button } = dom;

  // ---- the drawer of narrow windows ----

  const narrow = matchMedia('(max-width: 800px)');
  const openers = [];
  function drawer(open) {
    const wasOpen = byId('side').classList.contains('open');
    byId('side').classList.toggle('open', open);
    byId('shade').hidden = !open;
    byId('rest').inert = open && narrow.matches;
    for (const opener of openers) opener.setAttribute('aria-expanded', String(open));
    if (open) byId('side').querySelector('button, a')?.focus();
    else if (wasOpen && narrow.matches) openers.find((one) => one.offsetParent)?.focus();
  }
  narrow.addEventListener('change', () => drawer(false));
  byId('shade').addEventListener('click', () => drawer(false));
  byId('side-close-place').append(button('close', 'Close the list', () => drawer(false), { class: 'icon narrow' }));
  for (const bar of ['chat-bar', 'server-bar']) {
    const opener = button('menu', 'Conversations', () => drawer(true), {
      class: 'icon narrow',
      'aria-expanded': 'false',
      'aria-controls': 'side',
    });
    openers.push(opener);
    byId(bar).prepend(opener);
  }

  // ---- models ----

  let models = [];
  async function loadModels() {
    try {
      const response = await api.get('/v1/models');
      if (response.status === 401) {
        dom.notice('server', 'This server asks for a key.', { label: 'Enter key', run: enterKey });
        return;
      }
      if (!response.ok) throw new Error(await api.errorOf(response));
      const { data } = await response.json();
      models = (Array.isArray(data) ? data : []).map((one) => one?.id).filter((id) => typeof id === 'string');
      dom.notice('server', null);
    } catch (error) {
      const why = error instanceof TypeError ? 'The server cannot be reached.' : error.message;
      dom.notice('server', why, { label: 'Try again', run: loadModels });
    }
    drawModels();
  }

  function drawModels() {
    const { record } = conversation.shown(),
      select = byId('model');
    const names = record.model && !models.includes(record.model) ? [record.model, ...models] : models;
    select.replaceChildren(
      ...names.map((name) =>
        dom.make('option', { value: name, text: models.includes(name) ? name : `${name} (not here)` }),
      ),
    );
    select.value = record.model ?? models[0] ?? '';
    select.disabled = names.length === 0;
    ideas.hidden = !/^mini(-moe)?$/.test(select.value);
  }
  byId('model').addEventListener('change', () => {
    preferences.set({ model: byId('model').value });
    conversation.change({ model: byId('model').value });
  });

  async function enterKey() {
    api.retryKey();
    const key = await settings.key(false);
    if (key === null) return;
    preferences.setKey(key);
    await loadModels();
  }

  // ---- addresses: #/, #/c/ID, #/server ----

  async function route() {
    const [, kind, id] = location.hash.split('/');
    const server = kind === 'server';
    if (byId('server').hidden === server) {
      byId('server').hidden = !server;
      byId('chat').hidden = server;
      if (server) server_view.mount(byId('server-view'), api);
      else server_view.unmount();
    }
    byId('to-chat').toggleAttribute('aria-current', !server);
    byId('to-server').toggleAttribute('aria-current', server);
    if (!server && kind === 'c' && id) {
      if (!(await conversation.open(id))) return go('#/');
    } else if (!server && !(conversation.isFresh() && tree.path(conversation.shown()).length === 0)) {
      conversation.begin();
    }
    drawer(false);
    if (!server && !narrow.matches) composer.focus();
    return undefined;
  }
  function go(hash) {
    if (location.hash === hash) route();
    else location.hash = hash;
  }
  addEventListener('hashchange', route);

  // Records change: titles, the list, the address.
  const channel = 'BroadcastChannel' in window ? new BroadcastChannel('sluice') : null;
  conversation.onChange((record, fresh) => {
    const shown = conversation.shown().record.id === record.id;
    if (!fresh) {
      list.put(record);
      channel?.postMessage(record.id);
    }
    if (!shown) return;
    const chat = !location.hash.startsWith('#/server');
    if (chat && !fresh && location.hash !== `#/c/${record.id}`) history.replaceState(null, '', `#/c/${record.id}`);
    byId('to-chat').hash = fresh ? '#/' : `#/c/${record.id}`;
    document.title = fresh ? 'sluice' : `${record.title} – sluice`;
    list.select(fresh ? null : record.id);
    drawModels();
    composer.turnTo(record.id);
    composer.update();
  });
  channel?.addEventListener('message', async ({ data }) => {
    await list.load();
    conversation.reload(data);
  });

  // ---- what can be done with conversations ----

  const messagesOf = async (record) => {
    const shown = conversation.shown();
    return shown.record.id === record.id ? [...shown.messages.values()] : store.messages(record.id);
  };

  const does = {
    async rename(record) {
      const title = await settings.rename(record.title);
      if (title) await conversation.change({ title, named: true }, record.id);
    },
    async exportJson(record) {
      const text = transfer.toJson([{ record, messages: await messagesOf(record) }]);
      dom.download(transfer.fileName(record.title, 'json'), 'application/json', text);
    },
    async exportMarkdown(record) {
      const text = transfer.toMarkdown(tree.grow(record, await messagesOf(record)));
      dom.download(transfer.fileName(record.title, 'md'), 'text/markdown', text);
    },
    async remove(record) {
      if (!(await settings.confirm('Delete this conversation?', `“${record.title}” cannot be brought back.`, 'Delete')))
        return;
      await drop(record.id);
    },
    async exportAll() {
      const items = [];
      for (const record of list.all()) items.push({ record, messages: await messagesOf(record) });
      dom.download(
        `sluice-all-${new Date().toISOString().slice(0, 10)}.json`,
        'application/json',
        transfer.toJson(items),
      );
    },
    importFile: () => chooser.click(),
    enterKey,
    async removeAll() {
      const all = list.all();
      const text = `${all.length} conversation${all.length === 1 ? '' : 's'} cannot be brought back.`;
      if (!(await settings.confirm('Delete all conversations?', text, 'Delete all'))) return;
      for (const { id } of all) await drop(id);
    },
  };

  async function drop(id) {
    conversation.forget(id);
    await store.remove(id);
    list.remove(id);
    channel?.postMessage(id);
    if (conversation.shown().record.id === id) {
      conversation.begin();
      go('#/');
    }
  }

  const chooser = dom.make('input', {
    type: 'file',
    accept: '.json,application/json',
    hidden: true,
    'aria-label': 'File to import',
    id: 'import',
  });
  document.body.append(chooser);
  chooser.addEventListener('change', async () => {
    const [file] = chooser.files;
    if (file && file.size > transfer.MOST_BYTES) dom.notice('import', 'Not imported: the file is larger than 256 MB.');
    else if (file) await importText(await file.text());
    chooser.value = '';
  });

  async function importText(text) {
    try {
      const items = transfer.read(text);
      const kept = await store.save(
        items.map(({ record }) => record),
        items.flatMap(({ messages }) => messages),
      );
      if (!kept) return;
      await list.load();
      dom.notice('import', `Imported ${items.length} conversation${items.length === 1 ? '' : 's'}.`);
    } catch (error) {
      if (!(error instanceof transfer.Refused)) throw error;
      dom.notice('import', `Not imported: ${error.message}.`);
    }
  }

  async function openSettings() {
    const shown = conversation.shown().record;
    const result = await settings.ofConversation(shown);
    if (!result) return;
    const { everywhere, ...fields } = result;
    if (everywhere) preferences.set(fields);
    await conversation.change(fields, shown.id);
  }

  async function openPreferences() {
    const result = await settings.ofPage(does);
    if (result && conversation.isFresh()) await conversation.change(result);
    composer.update();
    drawTheme();
  }

  // ---- buttons ----

  const sliders = button('sliders', 'Settings of this conversation', openSettings, { id: 'settings' });
  const more = button(
    'more',
    'More for this conversation',
    () => {
      const { record } = conversation.shown();
      if (conversation.isFresh()) dom.menu(more, 'Conversation', [{ label: 'Import', run: does.importFile }]);
      else list.menuOf(record, more);
    },
    { 'aria-haspopup': 'menu', 'aria-expanded': 'false', id: 'more' },
  );
  byId('chat-bar').append(sliders, more);
  byId('new').append(icons.draw('plus'), dom.make('span', { text: 'New conversation' }));
  byId('new').addEventListener('click', () => go('#/'));
  byId('mark').append(icons.draw('waves'));
  const theme = button(
    'system',
    'Colours',
    () => {
      const order = ['system', 'light', 'dark'];
      preferences.set({ theme: order[(order.indexOf(preferences.get('theme')) + 1) % 3] });
      drawTheme();
      dom.announce(theme.title);
    },
    { id: 'theme' },
  );
  function drawTheme() {
    const [icon, label] = {
      system: ['system', 'Colours: as the system'],
      light: ['sun', 'Colours: light'],
      dark: ['moon', 'Colours: dark'],
    }[preferences.get('theme')];
    theme.replaceChildren(icons.draw(icon));
    theme.title = label;
    theme.setAttribute('aria-label', label);
  }
  byId('side-foot').append(
    dom.worded('gear', 'Settings', openPreferences, { id: 'preferences' }),
    dom.make('span', { class: 'gap' }),
    theme,
    button('help', 'Shortcuts', () => settings.shortcuts(SHORTCUTS), { id: 'shortcuts' }),
  );
  byId('skip').addEventListener('click', () => composer.focus());

  // ---- the first page of a conversation ----

  // What the built-in models know about; others have their own.
  const IDEAS = ['What is sluice?', 'What does the option --chunk do?', 'What is 123+456?'];
  const ideas = dom.make(
    'div',
    { class: 'ideas', hidden: true },
    ...IDEAS.map((text) =>
      dom.worded(null, text, () => {
        composer.put(text);
        composer.focus();
      }),
    ),
  );
  byId('empty').append(
    dom.make('span', { class: 'mark' }, icons.draw('waves')),
    dom.make('p', { class: 'lead', text: 'What would you like to know?' }),
    ideas,
  );

  // ---- keys ----

  const SHORTCUTS = [
    {
      title: 'Writing',
      keys: [
        [['Enter'], 'send, or as set: Ctrl+Enter'],
        [['Shift+Enter'], 'a new line'],
        [['Esc'], 'stop the answer'],
        [['Tab'], 'to the next button'],
      ],
    },
    {
      title: 'On a message',
      keys: [
        [['←', '→'], 'version before, version after'],
        [['e'], 'edit'],
        [['r'], 'another answer'],
        [['g'], 'go on'],
        [['c'], 'copy'],
      ],
    },
    {
      title: 'Anywhere else',
      keys: [
        [['i'], 'to the message field'],
        [['n'], 'new conversation'],
        [['/'], 'search'],
        [['['], 'conversation above'],
        [[']'], 'conversation below'],
        [['j', 'k'], 'next message, message before'],
        [[','], 'settings of this conversation'],
        [['s'], 'chat or server'],
        [['?'], 'this list'],
      ],
    },
  ];

  function step(by) {
    const views = conversation.views(),
      at = views.findIndex(({ box }) => box.contains(document.activeElement));
    const next = views[at < 0 ? (by > 0 ? 0 : views.length - 1) : Math.max(0, Math.min(views.length - 1, at + by))];
    next?.box.focus();
    next?.element.scrollIntoView({ block: 'nearest' });
  }

  function onMessage(key) {
    const view = conversation.views().find(({ box }) => box === document.activeElement);
    if (!view) return false;
    const { of } = view,
      grown = conversation.shown(),
      versions = tree.siblings(grown, of);
    const beside = versions[versions.indexOf(of.id) + { ArrowLeft: -1, ArrowRight: 1 }[key]];
    if (beside && !conversation.isRunning()) {
      conversation.choose(of, beside);
      conversation
        .views()
        .find((one) => one.of.id === beside)
        ?.box.focus({ preventScroll: true });
    } else if (key === 'e') view.edit();
    else if (key === 'r' && of.role === 'assistant') conversation.again(of);
    else if (key === 'g') conversation.goOn(of);
    else if (key === 'c')
      dom
        .copy(tree.textOf(of))
        .then((done) => dom.announce(done ? 'Copied' : 'The browser does not let this page copy'));
    else return false;
    return true;
  }

  const KEYS = {
    i: () => composer.focus(),
    n: () => go('#/'),
    '/': () => {
      if (narrow.matches) drawer(true);
      byId('search').focus();
    },
    '[': () => turn(-1),
    ']': () => turn(1),
    j: () => step(1),
    k: () => step(-1),
    ',': openSettings,
    s: () => go(location.hash === '#/server' ? byId('to-chat').hash : '#/server'),
    '?': () => settings.shortcuts(SHORTCUTS),
  };
  function turn(by) {
    const id = list.beside(by);
    if (id) go(`#/c/${id}`);
  }

  addEventListener('keydown', (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector('dialog[open]')) return;
    if (event.key === 'Escape') {
      if (byId('side').classList.contains('open')) drawer(false);
      else if (!conversation.stop()) return;
      event.preventDefault();
      return;
    }
    const typing = event.target.closest?.('input, textarea, select, [contenteditable]');
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !preferences.get('keys')) return;
    if (!onMessage(event.key)) {
      if (!Object.hasOwn(KEYS, event.key)) return;
      KEYS[event.key]();
    }
    event.preventDefault();
  });

  // ---- begin ----

  async function start() {
    api.onKey(settings.key);
    list.start(does);
    drawTheme();
    const kept = await store.open((why) =>
      dom.notice('store', `Not kept: ${why}. What is on this page is lost when it is closed.`),
    );
    if (!kept)
      dom.notice(
        'store',
        'This browser keeps nothing for this page: conversations are gone when it is closed. Export what you need.',
      );
    await conversation.rescue();
    conversation.begin();
    await list.load();
    await route();
    document.documentElement.classList.add('ready');
    loadModels();
  }

  return { start, importText, models: () => models };
})();
main.start();
