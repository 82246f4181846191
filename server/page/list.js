// The conversations on the left: titles, search, what can be done with each.
const list = (() => {
  const { byId, make } = dom;
  const records = new Map(); // all of the store
  let current = null,
    found = null; // found: ids that a search gave; null: no search
  let does = {}; // of main.js: {open, rename, exportJson, exportMarkdown, remove}

  async function load() {
    records.clear();
    for (const record of await store.conversations()) records.set(record.id, record);
    draw();
  }

  function put(record) {
    records.set(record.id, record);
    draw();
  }

  function remove(id) {
    records.delete(id);
    draw();
  }

  const sorted = () => [...records.values()].sort((a, b) => b.updated - a.updated);

  // ---- search: every word, in the title or in a message ----

  let search = 0;
  async function look() {
    const words = byId('search').value.toLowerCase().split(/\s+/).filter(Boolean),
      mine = ++search;
    if (words.length === 0) {
      found = null;
      return draw();
    }
    const titles = sorted()
      .filter(({ title }) => words.every((word) => title.toLowerCase().includes(word)))
      .map(({ id }) => id);
    const texts = await store.search(words);
    if (mine !== search) return undefined;
    found = new Set([...titles, ...texts]);
    return draw();
  }
  let typing = 0;
  byId('search').addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(look, 120);
  });

  // ---- drawing ----

  function dayOf(time) {
    const days = (new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86400000;
    if (days < 0.5) return 'Today';
    if (days < 1.5) return 'Yesterday';
    return days < 7.5 ? 'This week' : 'Earlier';
  }

  function menuOf(record, anchor) {
    dom.menu(anchor, `Conversation ${record.title}`, [
      { label: 'Rename', run: () => does.rename(record) },
      { label: 'Export as JSON', run: () => does.exportJson(record) },
      { label: 'Export as Markdown', run: () => does.exportMarkdown(record) },
      { label: 'Delete', danger: true, run: () => does.remove(record) },
    ]);
  }

  function row(record) {
    const more = dom.button('more', `More for ${record.title}`, () => menuOf(record, more), {
      'aria-haspopup': 'menu',
      'aria-expanded': 'false',
    });
    return make(
      'li',
      { 'data-id': record.id, class: conversation.runningIn(record.id) ? 'running' : null },
      make('a', {
        href: `#/c/${record.id}`,
        'aria-current': record.id === current ? 'page' : null,
        title: record.title,
        text: record.title,
      }),
      more,
    );
  }

  let frame = 0;
  function draw() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      drawNow();
    });
  }

  function drawNow() {
    if (dom.hasMenu()) return draw(); // it hangs on a row
    const shown = sorted().filter(({ id }) => !found || found.has(id)),
      rows = [];
    const focused = byId('list').contains(document.activeElement)
      ? document.activeElement.closest('li')?.dataset.id
      : null;
    const kind = document.activeElement?.tagName;
    let day = '';
    for (const record of shown) {
      if (!found && dayOf(record.updated) !== day) {
        day = dayOf(record.updated);
        rows.push(make('li', { class: 'day', text: day }));
      }
      rows.push(row(record));
    }
    byId('list').replaceChildren(...rows);
    byId('none').hidden = shown.length > 0;
    byId('none').textContent = found ? 'Nothing found.' : 'No conversations yet.';
    if (focused)
      byId('list')
        .querySelector(`li[data-id="${focused}"] ${kind === 'A' ? 'a' : 'button'}`)
        ?.focus();
    return undefined;
  }

  function select(id) {
    current = id;
    draw();
  }

  // The conversation above (-1) or below (1) the one that is open.
  function beside(step) {
    const shown = sorted().filter(({ id }) => !found || found.has(id));
    const at = shown.findIndex(({ id }) => id === current);
    return shown[at < 0 ? 0 : at + step]?.id ?? null;
  }

  return {
    load,
    put,
    remove,
    select,
    beside,
    menuOf,
    all: sorted,
    start: (what) => {
      does = what;
    },
  };
})();
