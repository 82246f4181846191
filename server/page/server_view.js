// The server as it runs.
//
//   server_view.mount(element, api)   shows it there; api.get(path) resolves to fetch's Response
//   server_view.unmount()             stops asking, and forgets
//
// It asks once a second while the page is visible. When the server does not answer it says so, keeps what it knows,
// and goes on asking. Beside every picture stands a table with the same figures.
const server_view = (() => {
  'use strict';

  const { exact, number, bytes, seconds, percent, widths, ceiling, quantile } = server_figures;
  const EVERY = 1000; // milliseconds
  const PATIENCE = 8000;
  const SPAN = 300; // seconds that the line of speed shows
  const STEP = 10; // of its table
  const SVG = 'http://www.w3.org/2000/svg';
  const PARTS = 8; // colours
  // Requests of those who watch, this page among them.
  const WATCHING = new Set(['/', '/metrics', '/slots', '/props', '/plan', '/health', '/v1/models', '/models', '/version', '/load', '/ping']);

  const LATENCIES = [
    ['To the first token', 'time_to_first_token_seconds'],
    ['Between tokens', 'inter_token_latency_seconds'],
    ['In the queue', 'request_queue_time_seconds'],
    ['Whole request', 'e2e_request_latency_seconds'],
  ];
  const STATES = {
    asking: 'Asking the server.',
    running: 'The server is running.',
    away: 'The server does not answer. What is shown is from before; this page keeps asking.',
  };

  let view = null; // what is mounted

  /* ---- elements ---- */

  function set(element, attributes) {
    for (const name of Object.keys(attributes)) element.setAttribute(name, String(attributes[name]));
    return element;
  }

  function make(name, attributes = {}, ...inside) {
    const element = set(document.createElement(name), attributes);
    for (const one of inside) element.appendChild(typeof one === 'string' ? document.createTextNode(one) : one);
    return element;
  }

  function draw(name, attributes) {
    return set(document.createElementNS(SVG, name), attributes);
  }

  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function section(parent, title, ...inside) {
    const id = `sv-${title.toLowerCase().replace(/\W+/g, '-')}`;
    parent.appendChild(make('section', { class: 'sv-section', 'aria-labelledby': id }, make('h2', { id }, title), ...inside));
  }

  // A table whose rows are texts: {element, fill(rows)}. `kinds`: a class for each column.
  function table(caption, heads, kinds = []) {
    const body = make('tbody');
    const head = make('tr');
    heads.forEach((text, i) => head.appendChild(make('th', { scope: 'col', class: kinds[i] ?? '' }, text)));
    const element = make('div', { class: 'sv-scroll', tabindex: '0', role: 'group', 'aria-label': caption },
      make('table', {}, make('caption', {}, caption), make('thead', {}, head), body));

    function cell_at(row, i) {
      if (!row.childNodes[i]) row.appendChild(i === 0 ? make('th', { scope: 'row', class: kinds[i] ?? '' }) : make('td', { class: kinds[i] ?? '' }));
      return row.childNodes[i];
    }
    function fill(rows) {
      rows.forEach((cells, i) => {
        const row = body.childNodes[i] ?? body.appendChild(make('tr'));
        cells.forEach((text, column) => say(cell_at(row, column), text));
      });
      while (body.childNodes.length > rows.length) body.removeChild(body.childNodes[rows.length]);
    }
    return { element, body, fill };
  }

  // A list of names and values: {element, fill([[name, value]])}.
  function facts(kind) {
    const element = make('dl', { class: kind });
    function fill(rows) {
      rows.forEach(([name, value], i) => {
        const pair = element.childNodes[i] ?? element.appendChild(make('div', {}, make('dt'), make('dd')));
        say(pair.childNodes[0], name);
        say(pair.childNodes[1], value);
      });
      while (element.childNodes.length > rows.length) element.removeChild(element.childNodes[rows.length]);
    }
    return { element, fill };
  }

  // A bar of parts: fill([value]).
  function bar(label) {
    const element = draw('svg', { class: 'sv-bar', viewBox: '0 0 1000 24', preserveAspectRatio: 'none', role: 'img', 'aria-label': label });
    function fill(values, words) {
      element.setAttribute('aria-label', `${label}: ${words}`);
      let at = 0;
      widths(values, 1000, 4).forEach((width, i) => {
        const part = element.childNodes[i] ?? element.appendChild(draw('rect', { y: 0, height: 24 }));
        set(part, { class: `sv-part-${i % PARTS}`, x: at.toFixed(2), width: Math.max(0, width - (width > 6 ? 1.5 : 0)).toFixed(2) });
        at += width;
      });
      while (element.childNodes.length > values.length) element.removeChild(element.childNodes[values.length]);
    }
    return { element, fill };
  }

  function mark_colours(body) {
    body.childNodes.forEach((row, i) => row.setAttribute('class', `sv-row-${i % PARTS}`));
  }

  /* ---- the line of speed ---- */

  function speed() {
    const lines = [draw('path', { class: 'sv-line sv-line-1' }), draw('path', { class: 'sv-line sv-line-0' })];
    const svg = draw('svg', { class: 'sv-chart', viewBox: `0 0 ${SPAN} 100`, preserveAspectRatio: 'none', role: 'img' });
    for (const y of [1, 50, 99]) svg.appendChild(draw('path', { class: 'sv-grid', d: `M0 ${y}H${SPAN}` }));
    for (const line of lines) svg.appendChild(line);
    const top = make('span', { class: 'sv-top' });
    const rows = table('Tokens per second, means of 10 seconds', ['Seconds ago', 'Generated', 'Rows of steps'], ['', 'sv-number', 'sv-number']);
    const more = make('details', { class: 'sv-more' }, make('summary', {}, 'As a table'), rows.element);
    const legend = make('p', { class: 'sv-legend' }, make('span', { class: 'sv-key sv-key-0' }, 'Generated tokens'), make('span', { class: 'sv-key sv-key-1' }, 'Rows of steps, prompts too'));
    const chart = make('div', { class: 'sv-plot' }, top, svg, make('div', { class: 'sv-axis', 'aria-hidden': 'true' }, make('span', {}, '5 minutes ago'), make('span', {}, 'now')));
    const element = make('div', {}, legend, chart, more);

    const path = (samples, now, index, high) => {
      let d = '', before = null;
      for (const sample of samples) {
        const x = (SPAN - (now - sample.at)).toFixed(1);
        const y = (99 - sample.rates[index] / high * 98).toFixed(1);
        d += `${before !== null && sample.at - before < 5 ? 'L' : 'M'}${x} ${y}`;
        before = sample.at;
      }
      return d;
    };
    function fill(samples, now) {
      const high = ceiling(Math.max(0, ...samples.flatMap((sample) => sample.rates)));
      say(top, `${number(high)} tokens/s`);
      lines.forEach((line, i) => line.setAttribute('d', path(samples, now, 1 - i, high)));
      const last = samples[samples.length - 1];
      const most = Math.max(0, ...samples.map((sample) => sample.rates[0]));
      svg.setAttribute('aria-label', `Tokens generated per second over five minutes: now ${number(last ? last.rates[0] : 0)}, at most ${number(most)}`);
      if (more.open) fill_table(samples, now);
    }
    function fill_table(samples, now) {
      const steps = [];
      for (let ago = 0; ago < SPAN; ago += STEP) {
        const some = samples.filter(({ at }) => now - at >= ago && now - at < ago + STEP);
        const mean = (i) => number(some.reduce((sum, { rates }) => sum + rates[i], 0) / some.length);
        if (some.length) steps.push([`${ago} to ${ago + STEP}`, mean(0), mean(1)]);
      }
      rows.fill(steps);
    }
    return { element, fill };
  }

  /* ---- the whole ---- */

  function build(element) {
    element.textContent = '';
    const root = make('div', { class: 'sv' });
    const parts = {
      state: make('p', { class: 'sv-state', role: 'status', 'aria-live': 'polite' }, STATES.asking),
      now: facts('sv-tiles'),
      speed: speed(),
      cache: bar('Cache'),
      cache_table: table('Tokens in the cache', ['', 'Tokens', 'Share'], ['', 'sv-number', 'sv-number']),
      places: table('What runs or waits', ['Place', 'Model', 'Prompt tokens', 'Request'], ['', '', 'sv-number', 'sv-code']),
      place_note: make('p', { class: 'sv-note' }),
      latency: table('Since the server started, estimated from histograms', ['', 'Count', 'Mean', 'Half below', '90% below', '99% below'],
        ['', 'sv-number', 'sv-number', 'sv-number', 'sv-number', 'sv-number']),
      requests: table('Answers since the server started', ['Route', 'Method', 'Status', 'Count'], ['sv-code', '', 'sv-number', 'sv-number']),
      requests_note: make('p', { class: 'sv-note' }),
      plan: bar('Memory'),
      plan_table: table('Pools of memory, in bytes', ['Pool', 'Bytes', '', 'Share', ''], ['', 'sv-number', 'sv-number', 'sv-number', 'sv-wide']),
      plan_note: make('p', { class: 'sv-note' }),
      model: facts('sv-facts'),
    };
    root.appendChild(parts.state);
    section(root, 'Now', parts.now.element);
    section(root, 'Tokens per second', parts.speed.element);
    section(root, 'Cache of prompts', parts.cache.element, parts.cache_table.element);
    section(root, 'Sequences', parts.place_note, parts.places.element);
    section(root, 'Latency', parts.latency.element);
    section(root, 'Requests', parts.requests.element, parts.requests_note);
    section(root, 'Memory plan', parts.plan.element, parts.plan_table.element, parts.plan_note);
    section(root, 'Model', parts.model.element);
    element.appendChild(root);
    return { ...parts, root };
  }

  // The state is announced, so it is set only when it is another.
  function become(state, text) {
    if (view.state === state && view.text === text) return;
    view.state = state;
    view.text = text;
    say(view.parts.state, text ?? STATES[state]);
    view.parts.state.setAttribute('class', `sv-state sv-${state}`);
    view.parts.root.setAttribute('class', state === 'away' ? 'sv sv-stale' : 'sv');
  }

  function show_now(metrics) {
    const { samples } = view;
    const last = samples[samples.length - 1];
    view.parts.now.fill([
      ['Running', exact(metrics.total('num_requests_running'))],
      ['Waiting', exact(metrics.total('num_requests_waiting'))],
      ['Tokens/s', last ? number(last.rates[0]) : '-'],
      ['Cache in use', percent(metrics.total('kv_cache_usage_perc'))],
      ['Connections', exact(metrics.total('http_connections'))],
      ['Resident memory', bytes(metrics.total('process_resident_memory_bytes'))],
    ]);
  }

  // Tokens are counted when they are made by the histograms of their times; the counters of tokens wait for the end of
  // a request.
  function sample(metrics, now) {
    const counts = [
      metrics.total('time_to_first_token_seconds_count') + metrics.total('inter_token_latency_seconds_count'),
      metrics.total('iteration_tokens_total'),
    ];
    const before = view.counts;
    view.counts = { counts, at: now };
    while (view.samples.length && now - view.samples[0].at > SPAN) view.samples.shift();
    const passed = before ? now - before.at : 0;
    if (!before || passed <= 0 || passed > 5 || counts.some((count, i) => count < before.counts[i])) return;
    view.samples.push({ at: now, rates: counts.map((count, i) => (count - before.counts[i]) / passed) });
  }

  function show_cache(metrics) {
    const all = metrics.total('kv_cache_tokens');
    const kept = Math.min(all, metrics.total('kv_cache_kept_tokens'));
    const used = Math.min(all - kept, Math.round(metrics.total('kv_cache_usage_perc') * all));
    const rows = [['Of running sequences', used], ['Kept for reuse', kept], ['Free', all - kept - used]];
    view.parts.cache.fill(rows.map(([, tokens]) => tokens), rows.map(([name, tokens]) => `${name.toLowerCase()} ${exact(tokens)}`).join(', '));
    const hits = metrics.total('prefix_cache_hits_total'), asked = metrics.total('prefix_cache_queries_total');
    view.parts.cache_table.fill([
      ...rows.map(([name, tokens]) => [name, exact(tokens), all ? percent(tokens / all) : '-']),
      ['Tokens of prompts taken from it so far', exact(hits), asked ? percent(hits / asked) : '-'],
    ]);
    view.parts.cache_table.body.childNodes.forEach((row, i) => row.setAttribute('class', i < 3 ? `sv-row-${i}` : ''));
  }

  function show_latency(metrics) {
    const text = (found) => (found ? `${found.above ? '> ' : ''}${seconds(found.value)}` : '-');
    view.parts.latency.fill(LATENCIES.map(([title, name]) => {
      const histogram = metrics.histogram(name);
      return [title, exact(histogram.count), histogram.count ? seconds(histogram.sum / histogram.count) : '-',
        ...[0.5, 0.9, 0.99].map((share) => text(quantile(histogram, share)))];
    }));
  }

  function show_requests(metrics) {
    const rows = [];
    let watching = 0;
    for (const { labels, value } of metrics.rows('http_requests_total')) {
      if (WATCHING.has(labels.get('handler')) && labels.get('status') === '200') watching += value;
      else rows.push([labels.get('handler'), labels.get('method'), labels.get('status'), value]);
    }
    rows.sort((a, b) => b[3] - a[3]);
    const ends = metrics.rows('request_success_total').filter(({ value }) => value > 0);
    view.parts.requests.fill(rows.map(([route, method, status, count]) => [route, method, status, exact(count)]));
    say(view.parts.requests_note, [
      ends.length ? `Choices that ended: ${ends.map(({ labels, value }) => `${labels.get('finished_reason')} ${exact(value)}`).join(', ')}.` : '',
      `Pages and figures like these: ${exact(watching)}.`,
    ].filter(Boolean).join(' '));
    view.parts.requests.element.hidden = rows.length === 0;
  }

  function show_places(places) {
    const taken = places.filter((place) => place.is_processing);
    const what = taken.length === 0 ? 'Nothing runs.' : taken.length === 1 ? 'One choice of an answer runs or waits.' : `${taken.length} choices of answers run or wait.`;
    say(view.parts.place_note, `${what}${view.places ? ` ${view.places} can run at once.` : ''}`);
    view.parts.places.fill(taken.map((place) => [String(place.id), place.model ?? '', exact(place.n_prompt_tokens ?? 0), place.request ?? '']));
    view.parts.places.element.hidden = taken.length === 0;
  }

  function show_plan(plan) {
    const rows = plan.memory.filter((row) => row.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    const sum = plan.total_bytes;
    view.parts.plan.fill(rows.map((row) => row.bytes), rows.map((row) => `${row.name} ${bytes(row.bytes)}`).join(', '));
    view.parts.plan_table.fill([
      ...rows.map((row) => [row.name, exact(row.bytes), bytes(row.bytes), percent(row.bytes / sum), row.detail ?? '']),
      ['total', exact(sum), bytes(sum), '', plan.device],
    ]);
    mark_colours(view.parts.plan_table.body);
    view.parts.plan_table.body.childNodes[rows.length].setAttribute('class', 'sv-sum');
    say(view.parts.plan_note, plan.mapped_bytes ? `${exact(plan.mapped_bytes)} bytes (${bytes(plan.mapped_bytes)}) of weights are read in their file and are not in the total.` : '');
  }

  function show_model(props, models) {
    const meta = models.data?.[0]?.meta ?? {};
    const rows = [
      ['Model', props.model_alias], ['File', props.model_path], ['Device', props.device],
      ['Context', `${exact(props.default_generation_settings.n_ctx)} tokens of each sequence${meta.n_ctx_train ? `; trained on ${exact(meta.n_ctx_train)}` : ''}`],
      ['Sequences at once', exact(props.total_slots)],
      ['Parameters', meta.n_params ? exact(meta.n_params) : '-'], ['Weights', meta.size ? `${exact(meta.size)} bytes (${bytes(meta.size)})` : '-'],
      ['Vocabulary', meta.n_vocab ? `${exact(meta.n_vocab)} tokens` : '-'], ['sluice', props.build_info],
    ];
    const others = (models.data ?? []).slice(1).map((model) => model.id);
    if (others.length) rows.push(['Served too', others.join(', ')]);
    view.parts.model.fill(rows);
  }

  /* ---- asking ---- */

  const clock = () => performance.now() / 1000;

  async function ask(path) {
    const response = await view.api.get(path, typeof AbortSignal !== 'undefined' && AbortSignal.timeout ? { signal: AbortSignal.timeout(PATIENCE) } : {});
    if (response.ok) return response;
    let message = `${response.status} ${response.statusText ?? ''}`.trim();
    try {
      message = (await response.json()).error.message || message;
    } catch {
      // No JSON: the status is all there is.
    }
    throw Object.assign(new Error(message), { answered: true });
  }
  const json = async (path) => (await ask(path)).json();

  // What does not change while a server runs is asked for once, and again when it was away.
  async function ask_facts(mine) {
    const [props, models, plan] = await Promise.all([json('/props'), json('/v1/models'), json('/plan')]);
    if (view !== mine) return;
    mine.places = props.total_slots;
    show_model(props, models);
    show_plan(plan);
    mine.known = true;
  }

  async function ask_figures(mine) {
    const [text, places] = await Promise.all([ask('/metrics').then((response) => response.text()), json('/slots')]);
    if (view !== mine) return;
    const metrics = server_figures.metrics(text);
    const now = clock();
    sample(metrics, now);
    show_now(metrics);
    mine.parts.speed.fill(mine.samples, now);
    show_cache(metrics);
    show_latency(metrics);
    show_requests(metrics);
    show_places(places);
  }

  async function turn(mine) {
    try {
      await ask_figures(mine);
      if (view === mine && !mine.known) await ask_facts(mine);
      if (view === mine) become('running');
    } catch (error) {
      if (view !== mine) return;
      mine.known = false;
      if (error.answered) become('refused', `The server answers: ${error.message}`);
      else become('away');
    }
  }

  // One question at a time; the next a second after the last was answered.
  function go_on() {
    const mine = view;
    if (!mine || mine.busy || document.visibilityState === 'hidden') return;
    clearTimeout(mine.timer);
    mine.busy = true;
    turn(mine).then(() => {
      mine.busy = false;
      if (view === mine && document.visibilityState !== 'hidden') mine.timer = setTimeout(go_on, EVERY);
    });
  }

  function visibility() {
    if (document.visibilityState === 'hidden') clearTimeout(view.timer);
    else go_on();
  }

  function mount(element, api) {
    unmount();
    view = { element, api, parts: build(element), state: 'asking', text: undefined, samples: [], counts: null, known: false, places: 0, busy: false, timer: 0 };
    document.addEventListener('visibilitychange', visibility);
    go_on();
  }

  function unmount() {
    if (!view) return;
    clearTimeout(view.timer);
    document.removeEventListener('visibilitychange', visibility);
    view.element.textContent = '';
    view = null;
  }

  return { mount, unmount };
})();
