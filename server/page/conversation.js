// The conversation on the page, and the answers that come, also of conversations that are not shown.
const conversation = (() => {
  const { byId } = dom;
  const runs = new Map(); // id of an answer that comes: {controller, grown}
  const alive = new Map(); // id of a conversation with such: its tree
  const views = new Map(); // id of a message on the page: what message.create gave
  let shown = tree.grow(tree.create({}), []),
    fresh = true,
    opening = 0;
  let changed = () => {}; // of main.js: a record has changed

  // ---- scrolling: the end stays in sight until somebody scrolls up ----

  const scroll = byId('scroll');
  const latest = dom.button(
    'down',
    'To the end',
    () => {
      stick = true;
      toEnd();
    },
    { class: 'icon latest', hidden: true },
  );
  byId('latest-place').append(latest);
  let stick = true,
    lastTop = 0;
  scroll.addEventListener(
    'scroll',
    () => {
      const rest = scroll.scrollHeight - scroll.clientHeight - scroll.scrollTop;
      if (rest <= 8) stick = true;
      else if (scroll.scrollTop < lastTop) stick = false;
      lastTop = scroll.scrollTop;
      latest.hidden = stick || rest < 80;
    },
    { passive: true },
  );
  function toEnd() {
    if (!stick) return;
    scroll.scrollTop = scroll.scrollHeight;
    lastTop = scroll.scrollTop;
    latest.hidden = true;
  }
  new ResizeObserver(toEnd).observe(byId('messages'));
  new ResizeObserver(toEnd).observe(scroll);

  // ---- drawing ----

  const does = {
    edit: (of, text) => edit(of, text),
    again: (of) => again(of),
    goOn: (of) => goOn(of),
    choose: (of, id) => choose(of, id),
    busy: () => busy(),
  };

  function draw() {
    const path = tree.path(shown),
      list = byId('messages'),
      focused = list.contains(document.activeElement);
    const wanted = new Set(path.map((one) => one.id));
    for (const [id, view] of views) {
      if (wanted.has(id)) continue;
      view.element.remove();
      views.delete(id);
    }
    path.forEach((one, i) => {
      if (!views.has(one.id)) views.set(one.id, message.create(one, does));
      const view = views.get(one.id);
      view.place({ siblings: tree.siblings(shown, one), last: i === path.length - 1 });
      if (list.children[i] !== view.element) list.insertBefore(view.element, list.children[i] ?? null);
    });
    if (focused && !list.contains(document.activeElement))
      views.get(path.at(-1)?.id)?.box.focus({ preventScroll: true });
    byId('empty').hidden = path.length > 0;
    byId('title').textContent = shown.record.title;
    changed(shown.record, fresh);
  }

  const waiting = new Set();
  let frame = 0;
  function drawWaiting() {
    frame = 0;
    for (const one of waiting) views.get(one)?.update();
    waiting.clear();
    toEnd();
  }
  // Once a frame is as often as anybody can see.
  function drawSoon(id) {
    waiting.add(id);
    frame ||= requestAnimationFrame(drawWaiting);
  }
  function drawNow(id) {
    waiting.add(id);
    cancelAnimationFrame(frame);
    drawWaiting();
  }

  function show(grown, isFresh) {
    shown = grown;
    fresh = isFresh;
    for (const view of views.values()) view.element.remove();
    views.clear();
    stick = true;
    draw();
    toEnd();
  }

  // ---- which one ----

  function begin() {
    opening++;
    const values = {
      system: preferences.get('system'),
      settings: preferences.get('settings'),
      model: preferences.get('model'),
    };
    show(tree.grow(tree.create(values), []), true);
  }

  // False: there is no such conversation.
  async function open(id) {
    const mine = ++opening;
    if (!fresh && shown.record.id === id) return true;
    const record = await store.conversation(id);
    const messages = record ? await store.messages(id) : [];
    if (mine !== opening) return true;
    if (!record) return false;
    const grown = alive.get(id) ?? tree.grow(record, messages);
    // The page that got those was closed before their end.
    for (const one of grown.messages.values()) if (one.state === 'running' && !runs.has(one.id)) one.state = 'broken';
    show(grown, false);
    return true;
  }

  // What another window has written.
  async function reload(id) {
    if (fresh || shown.record.id !== id || alive.has(id)) return;
    const record = await store.conversation(id);
    const messages = record ? await store.messages(id) : [];
    if (fresh || shown.record.id !== id || alive.has(id)) return;
    if (record) show(tree.grow(record, messages), false);
    else begin();
  }

  async function keep(grown, messages) {
    grown.record.updated = Date.now();
    if (grown === shown && fresh) fresh = false;
    await store.save([grown.record], messages);
    changed(grown.record, false);
  }

  // ---- asking ----

  function bodyOf(grown, end, goesOn) {
    const { thinking, ...sampling } = grown.record.settings;
    const body = {
      messages: tree.request(grown, end),
      stream: true,
      stream_options: { include_usage: true },
      ...sampling,
    };
    if (grown.record.model) body.model = grown.record.model;
    if (goesOn) body.continue_final_message = true;
    if (thinking === 'on' || thinking === 'off') body.chat_template_kwargs = { enable_thinking: thinking === 'on' };
    else if (thinking) body.reasoning_effort = thinking;
    return body;
  }

  // What a stream does to the answer. `began`: when its request was sent.
  function handlers(answer, began) {
    const first = () => {
      answer.stats.first ??= Math.round(performance.now() - began);
    };
    const thoughtBefore = answer.reasoningTime;
    let thinking = null;
    const thought = () => {
      answer.reasoningTime = Math.round(thoughtBefore + performance.now() - thinking);
    };
    return {
      model: (name) => {
        answer.model = name;
      },
      reasoning: (text) => {
        first();
        thinking ??= performance.now();
        answer.reasoning += text;
        thought();
      },
      content: (text) => {
        first();
        if (thinking !== null && answer.content === '') thought(); // the last of it may have come long before
        answer.content += text;
      },
      call: (index, id, name, part) => {
        first();
        while (answer.calls.length <= index) answer.calls.push({ id: '', name: '', arguments: '' });
        const call = answer.calls[index];
        call.id ||= id;
        call.name += name;
        call.arguments += part;
      },
      finish: (reason) => {
        answer.finish = reason;
      },
      numbers: (usage, timings) => {
        const set = (name, value) => {
          if (Number.isFinite(value) && value >= 0) answer.stats[name] = value;
        };
        set('prompt', usage.prompt_tokens);
        set('cached', usage.prompt_tokens_details?.cached_tokens);
        set('generated', usage.completion_tokens);
        set('rate', timings.predicted_per_second);
      },
    };
  }

  // Streams into `answer`, from its beginning or behind what it has.
  async function run(grown, answer, goesOn = false) {
    const controller = new AbortController();
    const body = bodyOf(grown, goesOn ? answer : grown.messages.get(answer.parent), goesOn);
    Object.assign(answer, { state: 'running', error: null, finish: null, stats: {} });
    runs.set(answer.id, { controller, grown });
    alive.set(grown.record.id, grown);
    if (grown === shown) {
      draw();
      stick = true;
      views.get(answer.id)?.update();
      toEnd();
    }
    const kept = keep(
      grown,
      [...grown.messages.values()].filter((one) => one.id === answer.id || one.id === answer.parent),
    );
    const began = performance.now(),
      on = handlers(answer, began);
    let saved = began;
    for (const name of Object.keys(on)) {
      const plain = on[name];
      on[name] = (...values) => {
        plain(...values);
        drawSoon(answer.id);
        if (performance.now() - saved < 1000) return;
        saved = performance.now();
        store.save([], [answer]);
      };
    }
    const outcome = await stream.chat(body, controller.signal, on);
    await kept;
    end(grown, answer, outcome);
  }

  async function end(grown, answer, outcome) {
    Object.assign(answer, { state: outcome.state, error: outcome.error ?? null });
    runs.delete(answer.id);
    if (![...runs.values()].some((one) => one.grown === grown)) alive.delete(grown.record.id);
    if (gone.has(grown.record.id)) return;
    if (grown === shown) {
      dom.notice('busy', null);
      drawNow(answer.id); // a window that nobody sees has no frames, and the answer is over in it too
      speak(answer);
    }
    await keep(grown, [answer]);
  }

  // For screen readers: the whole answer, once.
  function speak(answer) {
    const text = answer.content.length > 4000 ? `${answer.content.slice(0, 4000)} and so on` : answer.content;
    const why =
      { stopped: 'Stopped. ', broken: 'The connection broke. ', failed: `Failed: ${answer.error}. ` }[answer.state] ??
      '';
    dom.announce(`${why}${text}` || 'The answer is empty');
  }

  function answerTo(question) {
    const answer = tree.add(shown, {
      parent: question.id,
      role: 'assistant',
      model: null,
      reasoning: '',
      reasoningTime: 0,
      calls: [],
      state: 'running',
      error: null,
      finish: null,
      stats: {},
    });
    return run(shown, answer);
  }

  function send(text, attached) {
    if (isRunning()) return;
    const path = tree.path(shown),
      { record } = shown;
    const question = tree.add(shown, {
      parent: path.length ? path[path.length - 1].id : null,
      role: 'user',
      content: text,
      files: attached,
    });
    if (!record.named && path.length === 0) record.title = tree.titleOf(text || attached[0]?.name || '');
    answerTo(question);
  }

  // One answer at a time in a conversation.
  function busy() {
    if (isRunning()) dom.notice('busy', 'An answer is still coming. Stop it first.');
    return isRunning();
  }

  function again(of) {
    if (!busy()) answerTo(shown.messages.get(of.parent));
  }

  function goOn(of) {
    if (!busy() && message.canGoOn(of)) run(shown, of, true);
  }

  // Another version of a message: a question is asked again, an answer is kept.
  function edit(of, text) {
    const { parent, role } = of;
    if (role === 'user') {
      if (text.trim() === '' && !of.files?.length) return;
      answerTo(tree.add(shown, { parent, role, content: text, files: of.files }));
      return;
    }
    const version = tree.add(shown, {
      parent,
      role,
      content: text,
      model: of.model,
      reasoning: '',
      reasoningTime: 0,
      calls: [],
      state: 'stopped',
      error: null,
      finish: null,
      stats: {},
    });
    draw();
    keep(shown, [version]);
  }

  function choose(of, id) {
    const next = shown.messages.get(id);
    if (!next) return;
    const top = views.get(of.id)?.element.getBoundingClientRect().top;
    tree.choose(shown, next);
    stick = false;
    draw();
    const view = views.get(id);
    if (top !== undefined) scroll.scrollTop += view.element.getBoundingClientRect().top - top;
    const arrow = [...view.element.querySelectorAll('.branches button:enabled')];
    (arrow.find((one) => one.getAttribute('aria-label') === pressed) ?? arrow[0])?.focus({ preventScroll: true });
    dom.announce(`Version ${tree.siblings(shown, next).indexOf(id) + 1} of ${tree.siblings(shown, next).length}`);
    keep(shown, []);
  }
  let pressed = ''; // the arrow that was used last: its twin in the other version gets the focus
  byId('messages').addEventListener(
    'click',
    (event) => {
      pressed = event.target.closest('button')?.getAttribute('aria-label') ?? '';
    },
    true,
  );

  // Buttons of code blocks, which markdown.js makes.
  byId('messages').addEventListener('click', async ({ target }) => {
    const button = target.closest('.md-copy');
    if (!button) return;
    const done = await dom.copy(markdown.code_of(button) ?? '');
    button.textContent = done ? 'Copied' : 'Not copied';
    dom.announce(done ? 'Copied' : 'The browser does not let this page copy');
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 1500);
  });

  // ---- ends ----

  const runOf = () => [...runs.entries()].find(([, one]) => one.grown === shown) ?? null;
  const isRunning = () => runOf() !== null;

  function stop() {
    const found = runOf();
    found?.[1].controller.abort();
    return found !== null;
  }

  const gone = new Set(); // deleted while an answer came
  function forget(id) {
    gone.add(id);
    for (const one of runs.values()) if (one.grown.record.id === id) one.controller.abort();
  }

  // Changes of a conversation's record: title, model, system, settings. A new one has a record when it has a message.
  async function change(fields, id = shown.record.id) {
    const grown = shown.record.id === id ? shown : alive.get(id);
    const record = grown?.record ?? (await store.conversation(id));
    if (!record) return;
    Object.assign(record, fields);
    if (grown !== shown || !fresh) await store.save([record]);
    if (grown === shown) byId('title').textContent = record.title;
    changed(record, grown === shown && fresh);
  }

  // A page that is left keeps what came. The database is too slow for that moment: `rescue` moves it there at the
  // next start.
  addEventListener('pagehide', () =>
    preferences.leave([...runs].map(([id, one]) => ({ ...one.grown.messages.get(id), state: 'broken' }))),
  );
  addEventListener('pageshow', (event) => {
    if (event.persisted) preferences.left();
  });
  async function rescue() {
    for (const one of preferences.left()) {
      const there = (await store.messages(one.conversation)).find(({ id }) => id === one.id);
      if (there?.state === 'running') await store.save([], [one]);
    }
  }

  return {
    begin,
    open,
    reload,
    rescue,
    send,
    again,
    goOn,
    edit,
    choose,
    stop,
    forget,
    change,
    isRunning,
    shown: () => shown,
    isFresh: () => fresh,
    views: () => [...byId('messages').children].map((one) => views.get(one.dataset.id)),
    runningIn: (id) => alive.has(id),
    onChange: (call) => {
      changed = call;
    },
  };
})();
