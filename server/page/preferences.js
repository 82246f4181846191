// What this browser remembers besides conversations: how the page looks and sends, settings of new ones, the key.
const preferences = (() => {
  const PLACE = 'sluice.preferences',
    KEY = 'sluice.key',
    LEFT = 'sluice.left';

  // Sampling fields of a request: an empty field is not sent, so that the model's own default holds.
  const FIELDS = [
    { name: 'temperature', label: 'Temperature', minimum: 0, maximum: 100, hint: '0 is the likeliest' },
    { name: 'top_p', label: 'Top p', minimum: 0, maximum: 1, hint: '0 to 1' },
    { name: 'top_k', label: 'Top k', minimum: 0, maximum: 1e6, whole: true, hint: '0 is off' },
    { name: 'min_p', label: 'Min p', minimum: 0, maximum: 1, hint: '0 to 1' },
    { name: 'max_tokens', label: 'Most tokens', minimum: 1, maximum: 1e7, whole: true, hint: 'of one answer' },
    {
      name: 'seed',
      label: 'Seed',
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      whole: true,
      hint: 'the same text again',
    },
  ];
  const THINKING = { on: 'On', off: 'Off', low: 'Low effort', medium: 'Medium effort', high: 'High effort' };

  // What is wrong with a field's value, or null.
  function wrong(field, value) {
    if (typeof value !== 'number' || !Number.isFinite(value)) return 'must be a number';
    if (field.whole && !Number.isSafeInteger(value)) return 'must be a whole number';
    if (value < field.minimum || value > field.maximum) return `must be ${field.minimum} to ${field.maximum}`;
    return null;
  }

  // What is right in an object of settings.
  function clean(settings) {
    const kept = {};
    for (const field of FIELDS) {
      const value = settings?.[field.name];
      if (value !== undefined && wrong(field, value) === null) kept[field.name] = value;
    }
    if (Object.hasOwn(THINKING, settings?.thinking ?? '')) kept.thinking = settings.thinking;
    return kept;
  }

  const CHOICES = { theme: ['system', 'light', 'dark'], send: ['enter', 'ctrl'], keys: [true, false] };
  const memory = new Map();
  let values = { theme: 'system', send: 'enter', keys: true, model: null, system: '', settings: {} };

  function read(place) {
    try {
      return localStorage.getItem(place);
    } catch {
      return memory.get(place) ?? null;
    }
  }
  function write(place, text) {
    memory.set(place, text);
    try {
      if (text === null) localStorage.removeItem(place);
      else localStorage.setItem(place, text);
    } catch {
      // Storage is refused: it lasts as long as the page.
    }
  }

  try {
    const found = JSON.parse(read(PLACE) ?? '{}');
    for (const [name, choices] of Object.entries(CHOICES))
      if (choices.includes(found[name])) values[name] = found[name];
    for (const name of ['model', 'system']) if (typeof found[name] === 'string') values[name] = found[name];
    values.settings = clean(found.settings);
  } catch {
    // Not ours, or cut off: the defaults hold.
  }

  function set(changes) {
    values = { ...values, ...changes };
    write(PLACE, JSON.stringify(values));
    apply();
  }

  function apply() {
    if (values.theme === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = values.theme;
  }
  apply();

  // Messages of a page that is being closed, for the one that comes after it.
  function leave(messages) {
    if (messages.length) write(LEFT, JSON.stringify(messages));
  }
  function left() {
    const text = read(LEFT);
    if (text === null) return [];
    write(LEFT, null);
    try {
      return JSON.parse(text).filter((one) => typeof one?.id === 'string' && typeof one.content === 'string');
    } catch {
      return [];
    }
  }

  return {
    FIELDS,
    THINKING,
    wrong,
    clean,
    set,
    leave,
    left,
    get: (name) => values[name],
    key: () => read(KEY) ?? '',
    setKey: (key) => write(KEY, key || null),
  };
})();
