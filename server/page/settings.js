// Dialogs: settings of a conversation and of the page, the key, shortcuts, names, questions.
const settings = (() => {
  const { make, worded } = dom;

  // A modal dialog: the browser keeps the focus in it and gives it back. `end(result)` closes it; Escape gives null.
  function ask(title, fill) {
    return new Promise((resolve) => {
      const before = document.activeElement;
      const heading = make('h2', { text: title, id: `dialog-${tree.newId()}` });
      const dialog = make('dialog', { 'aria-labelledby': heading.id });
      const end = (result) => {
        dialog.close();
        dialog.remove();
        // Anew: Chromium gives a field its focus back here, but no caret.
        before?.blur?.();
        if (before?.isConnected) before.focus();
        resolve(result);
      };
      dialog.append(
        make(
          'div',
          { class: 'dialog-head' },
          heading,
          make('span', { class: 'gap' }),
          dom.button('close', 'Close', () => end(null)),
        ),
      );
      dialog.append(...fill(end));
      dialog.addEventListener('cancel', (event) => {
        event.preventDefault();
        end(null);
      });
      dialog.addEventListener('pointerdown', (event) => {
        if (event.target === dialog) end(null);
      });
      // Enter in a field is its main button.
      dialog.addEventListener('keydown', (event) => {
        if (event.key !== 'Enter' || event.isComposing || event.target.tagName !== 'INPUT') return;
        event.preventDefault();
        dialog.querySelector('.row .accent')?.click();
      });
      document.body.append(dialog);
      dialog.showModal();
      (dialog.querySelector('[autofocus]') ?? dialog.querySelector('input, select, textarea, .row button'))?.focus();
    });
  }

  const row = (...children) => make('div', { class: 'row' }, make('span', { class: 'gap' }), ...children);
  const labelled = (label, field, hint) =>
    make(
      'label',
      { class: 'field' },
      make('span', { text: label }),
      field,
      hint && make('span', { class: 'quiet', text: hint }),
    );
  const choice = (values, chosen) => {
    const made = make('select', {}, ...values.map(([value, label]) => make('option', { value, text: label })));
    made.value = chosen;
    return made;
  };

  // ---- small questions ----

  const confirm = (title, text, action) =>
    ask(title, (end) => [
      make('p', { text }),
      row(
        worded(null, 'Cancel', () => end(null), { autofocus: true }),
        worded(null, action, () => end(true), { class: 'plain danger' }),
      ),
    ]);

  const rename = (title) =>
    ask('Rename conversation', (end) => {
      const field = make('input', { type: 'text', maxlength: '200', 'aria-label': 'Title' });
      field.value = title;
      return [
        field,
        row(
          worded(null, 'Cancel', () => end(null)),
          worded(null, 'Rename', () => end(field.value.trim() || null), { class: 'plain accent' }),
        ),
      ];
    });

  // What cannot be in a header is no key.
  const key = (wrong) =>
    ask('This server asks for a key', (end) => {
      const field = make('input', { type: 'password', autocomplete: 'off', 'aria-label': 'Key', spellcheck: 'false' });
      const problem = make('p', {
        class: 'bad',
        role: 'alert',
        text: wrong ? 'The server does not take the key it was given.' : '',
      });
      const use = () => {
        const text = field.value.trim();
        if (/^[\x21-\x7e]+$/.test(text)) end(text);
        else problem.textContent = 'A key is one word of letters, digits and signs.';
      };
      return [
        make('p', { text: 'It is kept in this browser and sent to this server only.' }),
        field,
        problem,
        row(
          worded(null, 'Not now', () => end(null)),
          worded(null, 'Use key', use, { class: 'plain accent' }),
        ),
      ];
    });

  // ---- sampling ----

  // Fields for settings: {parts, read} where read gives {system, settings}, or null and shows what is wrong.
  function sampling(system, values) {
    const text = make('textarea', { rows: '4', placeholder: 'None' });
    text.value = system;
    const fields = preferences.FIELDS.map((field) => {
      const input = make('input', {
        type: 'text',
        inputmode: field.whole ? 'numeric' : 'decimal',
        placeholder: 'model’s default',
        autocomplete: 'off',
      });
      input.value = values[field.name] ?? '';
      return { field, input };
    });
    const thinking = choice([['', 'Default'], ...Object.entries(preferences.THINKING)], values.thinking ?? '');
    const problem = make('p', { class: 'bad', role: 'alert' });
    const read = () => {
      const result = {};
      for (const { field, input } of fields) {
        const word = input.value.trim().replace(',', '.');
        input.removeAttribute('aria-invalid');
        if (word === '') continue;
        const wrong = preferences.wrong(field, Number(word));
        if (wrong) {
          problem.textContent = `${field.label} ${wrong}.`;
          input.setAttribute('aria-invalid', 'true');
          input.focus();
          return null;
        }
        result[field.name] = Number(word);
      }
      if (thinking.value) result.thinking = thinking.value;
      return { system: text.value, settings: result };
    };
    const parts = [
      labelled('System prompt', text),
      make(
        'div',
        { class: 'grid' },
        ...fields.map(({ field, input }) => labelled(field.label, input, field.hint)),
        labelled('Thinking', thinking, 'where the model can'),
      ),
      problem,
    ];
    return { parts, read };
  }

  const ofConversation = (record) =>
    ask('Settings of this conversation', (end) => {
      const { parts, read } = sampling(record.system, record.settings);
      const take = (more) => {
        const result = read();
        if (result) end({ ...result, ...more });
      };
      return [
        make('p', { class: 'quiet', text: 'What is empty is the model’s default.' }),
        ...parts,
        row(
          worded(null, 'Save, also for new ones', () => take({ everywhere: true })),
          worded(null, 'Save', () => take({}), { class: 'plain accent' }),
        ),
      ];
    });

  // does: {exportAll, importFile, enterKey, removeAll}
  const ofPage = (does) =>
    ask('Settings', (end) => {
      const theme = choice(
        [
          ['system', 'As the system'],
          ['light', 'Light'],
          ['dark', 'Dark'],
        ],
        preferences.get('theme'),
      );
      theme.addEventListener('change', () => preferences.set({ theme: theme.value }));
      const send = choice(
        [
          ['enter', 'Enter'],
          ['ctrl', 'Ctrl+Enter'],
        ],
        preferences.get('send'),
      );
      send.addEventListener('change', () => preferences.set({ send: send.value }));
      const keys = make('input', { type: 'checkbox' });
      keys.checked = preferences.get('keys');
      keys.addEventListener('change', () => preferences.set({ keys: keys.checked }));
      const { parts, read } = sampling(preferences.get('system'), preferences.get('settings'));
      const then = (run) => () => {
        end(null);
        run();
      };
      return [
        make('div', { class: 'grid' }, labelled('Colours', theme), labelled('Send with', send)),
        make('label', { class: 'check' }, keys, make('span', { text: 'Shortcuts of single keys' })),
        make(
          'div',
          { class: 'buttons' },
          worded(null, 'Export all', then(does.exportAll)),
          worded(null, 'Import', then(does.importFile)),
          worded(null, 'Enter a key', then(does.enterKey)),
          worded(null, 'Delete all', then(does.removeAll), { class: 'plain danger' }),
        ),
        make('h3', { text: 'New conversations' }),
        ...parts,
        row(
          worded(
            null,
            'Save',
            () => {
              const result = read();
              if (!result) return;
              preferences.set(result);
              end(result);
            },
            { class: 'plain accent' },
          ),
        ),
      ];
    });

  // ---- shortcuts ----

  // lists: [{title, keys: [[names, what]]}]
  const rowsOf = (keys) =>
    keys.flatMap(([names, what]) => [
      make('dt', {}, ...names.map((name) => make('kbd', { text: name }))),
      make('dd', { text: what }),
    ]);
  const shortcuts = (lists) =>
    ask('Shortcuts', () => [
      make(
        'div',
        { class: 'shortcuts' },
        ...lists.map(({ title, keys }) =>
          make('section', {}, make('h3', { text: title }), make('dl', { class: 'keys' }, ...rowsOf(keys))),
        ),
      ),
    ]);

  return { confirm, rename, key, ofConversation, ofPage, shortcuts };
})();
