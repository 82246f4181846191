// Where messages are written: text, files, send and stop.
const composer = (() => {
  const { byId, make, button } = dom;
  const field = byId('prompt');
  const drafts = new Map(); // id of a conversation: {text, files}
  let attached = [],
    of = null;

  const choose = make('input', { type: 'file', multiple: true, hidden: true, 'aria-label': 'Files', tabindex: '-1' });
  const attach = button('clip', 'Attach text files', () => choose.click());
  const go = button('send', 'Send', () => (conversation.isRunning() ? conversation.stop() : send()), {
    class: 'icon accent',
    id: 'send',
  });
  byId('composer-bar').append(attach, choose, make('span', { class: 'gap' }), go);
  choose.addEventListener('change', async () => {
    await take([...choose.files]);
    choose.value = '';
  });

  async function take(list) {
    const { texts, problems } = await files.readAll(list, attached.length);
    attached.push(...texts);
    dom.notice('files', problems.length ? `Not attached: ${problems.join('; ')}.` : null);
    draw();
    field.focus();
  }

  function draw() {
    byId('files').hidden = attached.length === 0;
    byId('files').replaceChildren(
      ...attached.map((file, i) =>
        make(
          'li',
          {},
          icons.draw('file'),
          make('span', { text: file.name }),
          make('span', { class: 'quiet', text: files.sizeOf(file.text) }),
          button('close', `Remove ${file.name}`, () => {
            attached.splice(i, 1);
            draw();
            field.focus();
          }),
        ),
      ),
    );
    update();
  }

  // The button sends or stops.
  let was = null;
  function update() {
    const running = conversation.isRunning();
    go.disabled = !running && field.value.trim() === '' && attached.length === 0;
    byId('hint').textContent =
      preferences.get('send') === 'enter' ? 'Enter sends, Shift+Enter starts a new line' : 'Ctrl+Enter sends';
    if (was === running) return;
    was = running;
    const label = running ? 'Stop' : 'Send';
    go.setAttribute('aria-label', label);
    go.title = label;
    go.replaceChildren(icons.draw(running ? 'stop' : 'send'));
  }

  function send() {
    const text = field.value.replace(/\s+$/, '');
    if (conversation.isRunning() || (text.trim() === '' && attached.length === 0)) return;
    const list = attached;
    attached = [];
    field.value = '';
    message.grow(field);
    dom.notice('files', null);
    draw();
    conversation.send(text, list);
    update();
  }

  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing || event.keyCode === 229) return;
    const control = event.ctrlKey || event.metaKey;
    if (preferences.get('send') === 'enter' ? event.shiftKey || event.altKey : !control) return;
    event.preventDefault();
    send();
  });
  field.addEventListener('input', () => {
    message.grow(field);
    update();
  });
  field.addEventListener('paste', (event) => {
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    take([...event.clipboardData.files]);
  });

  // Files may be dropped anywhere on the conversation; elsewhere they would replace the page.
  const place = byId('chat');
  addEventListener('dragover', (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = place.hidden ? 'none' : 'copy';
    place.classList.add('drop');
  });
  addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) place.classList.remove('drop');
  });
  addEventListener('drop', (event) => {
    place.classList.remove('drop');
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    if (!place.hidden) take([...event.dataTransfer.files]);
  });

  // Each conversation has its own draft.
  function turnTo(id) {
    if (of === id) return update();
    // What was written before the first conversation was there belongs to it.
    drafts.set(of ?? id, { text: field.value, attached });
    of = id;
    field.value = drafts.get(id)?.text ?? '';
    attached = drafts.get(id)?.attached ?? [];
    message.grow(field);
    return draw();
  }

  return {
    turnTo,
    update,
    take,
    focus: () => field.focus(),
    put: (text) => {
      field.value = text;
      message.grow(field);
      update();
    },
  };
})();
