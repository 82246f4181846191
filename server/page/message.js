// One message on the page.
const message = (() => {
  const { make, button, worded, copyButton } = dom;

  // ---- words ----

  function seconds(ms) {
    if (ms < 995) return `${(ms / 1000).toFixed(2)} s`;
    if (ms < 59500) return `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
    return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
  }
  const count = (n, what) => `${n.toLocaleString('en')} ${what}${n === 1 ? '' : 's'}`;

  function statsText({ prompt, cached, generated, rate, first } = {}) {
    const parts = [];
    if (rate) parts.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString('en')} tokens/s`);
    if (first !== undefined) parts.push(`first after ${seconds(first)}`);
    if (generated !== undefined) parts.push(count(generated, 'token'));
    if (prompt !== undefined)
      parts.push(`prompt ${prompt.toLocaleString('en')}${cached ? `, ${cached.toLocaleString('en')} reused` : ''}`);
    return parts.join(' · ');
  }

  // Why an answer is not whole: {text, bad}; null when it is.
  function noteOf(of) {
    if (of.state === 'stopped') return { text: 'Stopped.' };
    if (of.state === 'broken') return { text: 'Incomplete: the connection broke. What came is kept.', bad: true };
    if (of.state === 'failed') return { text: of.error || 'The server failed to answer.', bad: true };
    if (of.state !== 'done') return null;
    if (of.finish === 'length') return { text: 'Cut off by the limit of tokens.' };
    if (of.finish && of.finish !== 'stop' && of.finish !== 'tool_calls') return { text: `Ended: ${of.finish}` };
    return null;
  }

  const canGoOn = (of) =>
    of.content !== '' &&
    !(of.calls ?? []).length &&
    (['stopped', 'broken', 'failed'].includes(of.state) || (of.state === 'done' && of.finish === 'length'));

  // ---- parts ----

  function pretty(text) {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text;
    }
  }

  const callBox = (call) =>
    make(
      'section',
      { class: 'call', 'aria-label': 'Tool call' },
      make(
        'p',
        { class: 'call-name' },
        make('span', { class: 'quiet', text: 'Calls ' }),
        make('code', { text: call.name }),
      ),
      make('pre', { tabindex: '0' }, make('code', { text: pretty(call.arguments) })),
    );

  const fileBox = (file) =>
    make(
      'details',
      { class: 'file' },
      make(
        'summary',
        {},
        icons.draw('file'),
        make('span', { text: file.name }),
        make('span', { class: 'quiet', text: files.sizeOf(file.text) }),
      ),
      make('pre', { tabindex: '0' }, make('code', { text: file.text })),
    );

  // ---- a message ----

  // of: the message; does: {edit, again, goOn, choose, busy}. Gives {element, update(), place({siblings, last})}.
  function create(of, does) {
    const answer = of.role === 'assistant';
    const text = make('div', { class: 'text' });
    const thoughtText = make('div', { class: 'thought-text' });
    const thoughtTitle = make('span');
    const thought = make('details', { class: 'thought', hidden: true }, make('summary', {}, thoughtTitle), thoughtText);
    const calls = make('div', { class: 'calls' });
    const note = make('div', { class: 'note', hidden: true });
    const waiting = make(
      'p',
      { class: 'waiting', hidden: true, 'aria-hidden': 'true' },
      make('span'),
      make('span'),
      make('span'),
    );
    const tools = make('div', { class: 'tools' });
    const stats = make('span', { class: 'stats' });
    const who = make('h2', { class: answer ? 'who' : 'unseen', text: answer ? (of.model ?? 'Answer') : 'You' });
    const box = make(
      'article',
      { tabindex: '-1', 'aria-label': answer ? 'Answer' : 'You' },
      who,
      answer && thought,
      text,
      answer && calls,
      waiting,
      note,
      tools,
    );
    const element = make('li', { class: `message ${of.role}`, 'data-id': of.id }, box);
    if (!answer) for (const file of of.files ?? []) text.after(fileBox(file));
    let whole = false,
      context = { siblings: [of.id], last: true },
      editing = false,
      drawnTools = '';
    thought.addEventListener('toggle', () => update());

    function drawThought() {
      thought.hidden = !of.reasoning;
      if (!of.reasoning) return;
      const open = of.state === 'running' && !of.content;
      thoughtTitle.textContent = open
        ? 'Thinking'
        : of.reasoningTime
          ? `Thought for ${seconds(of.reasoningTime)}`
          : 'Thought';
      thought.classList.toggle('open-ended', open);
      if (thought.open) markdown.update(thoughtText, of.reasoning, { done: !open });
    }

    function drawNote() {
      const why = answer ? noteOf(of) : null;
      note.hidden = !why;
      if (!why) return;
      note.classList.toggle('bad', Boolean(why.bad));
      note.replaceChildren(
        make('span', { text: why.text }),
        ...(canGoOn(of) ? [worded('on', 'Go on', () => does.goOn(of))] : []),
        ...(why.bad ? [worded('again', 'Again', () => does.again(of))] : []),
      );
    }

    function drawTools() {
      const running = of.state === 'running';
      const at = context.siblings.indexOf(of.id),
        of_ = context.siblings.length;
      const state = `${running} ${at} ${of_} ${of.content === ''}`;
      if (state !== drawnTools) {
        drawnTools = state;
        const focused = tools.contains(document.activeElement)
          ? document.activeElement.getAttribute('aria-label')
          : null;
        tools.replaceChildren(
          ...(running
            ? []
            : [
                tree.textOf(of) !== '' && copyButton('Copy message', () => tree.textOf(of)),
                button('edit', answer ? 'Edit answer' : 'Edit and send again', () => edit()),
                answer && button('again', 'Another answer', () => does.again(of)),
              ].filter(Boolean)),
          ...(of_ > 1 ? [branches(at, of_)] : []),
          stats,
        );
        if (focused) tools.querySelector(`[aria-label="${focused}"]`)?.focus();
      }
      stats.textContent = answer && !running ? statsText(of.stats) : '';
    }

    function branches(at, length) {
      return make(
        'span',
        { class: 'branches', role: 'group', 'aria-label': 'Versions' },
        button('left', 'Version before', () => does.choose(of, context.siblings[at - 1]), { disabled: at === 0 }),
        make('span', { class: 'number', text: `${at + 1}/${length}` }),
        button('right', 'Version after', () => does.choose(of, context.siblings[at + 1]), {
          disabled: at === length - 1,
        }),
      );
    }

    function update() {
      const running = of.state === 'running',
        focused = box.contains(document.activeElement);
      element.classList.toggle('running', running);
      box.setAttribute('aria-busy', String(running));
      who.textContent = answer ? (of.model ?? 'Answer') : 'You';
      if (!editing) drawText(running);
      if (answer) {
        drawThought();
        calls.replaceChildren(...(of.calls ?? []).map(callBox));
        waiting.hidden = !running || of.content !== '' || (of.calls ?? []).length > 0;
        drawNote();
      }
      drawTools();
      if (focused && !box.contains(document.activeElement)) box.focus({ preventScroll: true }); // its button is gone
    }

    function drawText(running) {
      if (!answer) {
        text.textContent = of.content; // as it was typed
        text.hidden = of.content === '';
        return;
      }
      if (whole && !running) return;
      markdown.update(text, of.content, { done: !running });
      whole = !running;
    }

    // The text in a field, with what to do with it.
    function edit() {
      if (editing || of.state === 'running') return;
      editing = true;
      const field = make('textarea', { class: 'edit', 'aria-label': answer ? 'Answer' : 'Message' });
      field.value = of.content;
      const end = (save) => {
        if (save && does.busy()) return; // the text stays where it is
        editing = false;
        const changed = field.value;
        form.remove();
        text.hidden = false;
        tools.hidden = false;
        update();
        box.focus({ preventScroll: true });
        if (save) does.edit(of, changed);
      };
      const form = make(
        'div',
        { class: 'editor' },
        field,
        make(
          'div',
          { class: 'row' },
          worded(null, 'Cancel', () => end(false)),
          worded(null, answer ? 'Save as another version' : 'Send', () => end(true), { class: 'plain accent' }),
        ),
      );
      field.addEventListener('keydown', (event) => {
        if (event.key === 'Escape') end(false);
        else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) end(true);
        else return;
        event.preventDefault();
        event.stopPropagation();
      });
      field.addEventListener('input', () => grow(field));
      text.hidden = true;
      tools.hidden = true;
      text.after(form);
      grow(field);
      field.focus();
    }

    function place(next) {
      context = next;
      element.classList.toggle('last', next.last);
      drawTools();
    }

    update();
    return { element, box, of, update, place, edit };
  }

  // A field as high as its text.
  function grow(field) {
    field.style.height = 'auto';
    field.style.height = `${field.scrollHeight + 2}px`;
  }

  return { create, grow, canGoOn, seconds };
})();
