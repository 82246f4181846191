// Elements, menus, downloads: what every part of the page makes its things with. Texts become text nodes, never markup.
const dom = (() => {
  const byId = (id) => document.getElementById(id);

  // make('button', {class, text, onclick, 'aria-label', ...}, children): what is null, undefined or false is left out.
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === undefined || value === null || value === false) continue;
      if (name === 'text') element.textContent = value;
      else if (name === 'class') element.className = value;
      else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  // A button that is an icon; its label is read aloud and shown by the pointer.
  const button = (icon, label, onclick, more = {}) =>
    make(
      'button',
      { type: 'button', class: 'icon', 'aria-label': label, title: label, onclick, ...more },
      icons.draw(icon),
    );

  // A button with words, and an icon before them where one is named.
  const worded = (icon, text, onclick, more = {}) =>
    make(
      'button',
      { type: 'button', class: 'plain', onclick, ...more },
      icon && icons.draw(icon),
      make('span', { text }),
    );

  // ---- menus ----

  let openMenu = null;

  // Opens a menu below `anchor`: items of {label, run, danger}. Its keys are those of menus: arrows, Home, End, Escape.
  function menu(anchor, label, items) {
    const again = openMenu && openMenu.anchor === anchor;
    closeMenu();
    if (again) return;
    const entries = items.map((item) =>
      make('button', {
        type: 'button',
        role: 'menuitem',
        tabindex: '-1',
        class: item.danger ? 'danger' : null,
        text: item.label,
        onclick: () => {
          closeMenu(true);
          item.run();
        },
      }),
    );
    const list = make('div', { class: 'menu', role: 'menu', 'aria-label': label }, ...entries);
    list.addEventListener('keydown', (event) => {
      const at = entries.indexOf(document.activeElement),
        last = entries.length - 1;
      const next = { ArrowDown: at < last ? at + 1 : 0, ArrowUp: at > 0 ? at - 1 : last, Home: 0, End: last }[
        event.key
      ];
      if (next !== undefined) entries[next].focus();
      else if (event.key === 'Escape') closeMenu(true);
      else if (event.key === 'Tab') return closeMenu(true);
      else return undefined;
      event.preventDefault();
      event.stopPropagation();
      return undefined;
    });
    document.body.append(list);
    const place = anchor.getBoundingClientRect(),
      size = list.getBoundingClientRect();
    const left = Math.max(8, Math.min(place.right - size.width, innerWidth - size.width - 8));
    const below = place.bottom + 4 + size.height < innerHeight;
    list.style.left = `${left}px`;
    list.style.top = `${below ? place.bottom + 4 : Math.max(8, place.top - 4 - size.height)}px`;
    anchor.setAttribute('aria-expanded', 'true');
    openMenu = { anchor, list };
    entries[0].focus();
  }

  function closeMenu(giveBack = false) {
    if (!openMenu) return;
    const { anchor, list } = openMenu;
    openMenu = null;
    list.remove();
    anchor.setAttribute('aria-expanded', 'false');
    if (giveBack) anchor.focus();
  }
  document.addEventListener(
    'pointerdown',
    (event) => {
      if (openMenu && !openMenu.list.contains(event.target) && !openMenu.anchor.contains(event.target)) closeMenu();
    },
    true,
  );
  addEventListener('resize', () => closeMenu());

  // ---- in and out ----

  // Clipboards are for pages of https and of this machine; elsewhere the older way is left.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const before = document.activeElement;
      const area = make('textarea', { class: 'unseen', readonly: true });
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand('copy');
      area.remove();
      before?.focus();
      return done;
    }
  }

  // A button that copies what `read` gives, and says so for a moment.
  function copyButton(label, read, more = {}) {
    const made = button(
      'copy',
      label,
      async () => {
        const done = await copy(read());
        made.replaceChildren(icons.draw(done ? 'check' : 'close'));
        announce(done ? 'Copied' : 'The browser does not let this page copy');
        setTimeout(() => made.replaceChildren(icons.draw('copy')), 1500);
      },
      more,
    );
    return made;
  }

  function download(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], { type }));
    make('a', { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // Spoken by screen readers, seen by nobody.
  function announce(text) {
    byId('announcer').textContent = '';
    setTimeout(() => {
      byId('announcer').textContent = text;
    }, 50);
  }

  // A note above everything: `id` is shown once; text null takes it away.
  function notice(id, text, action = null) {
    const place = byId('notices');
    place.querySelector(`[data-notice="${id}"]`)?.remove();
    if (text === null) return;
    const note = make(
      'div',
      { class: 'notice', role: 'alert', 'data-notice': id },
      make('span', { text }),
      make('span', { class: 'gap' }),
      action && worded(null, action.label, action.run),
      button('close', 'Dismiss', () => note.remove()),
    );
    place.append(note);
  }

  return {
    byId,
    make,
    button,
    worded,
    menu,
    closeMenu,
    hasMenu: () => openMenu !== null,
    copy,
    copyButton,
    download,
    announce,
    notice,
  };
})();
