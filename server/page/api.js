// Requests to this server, with the key where it wants one.
const api = (() => {
  let askForKey = async () => null; // of main.js: (wrong) => the key that somebody typed, or null
  let asking = null,
    declined = false;

  const headers = (more) => ({
    ...more,
    ...(preferences.key() ? { Authorization: `Bearer ${preferences.key()}` } : {}),
  });

  // One question at a time, however many requests wait for its answer. True: there is another key.
  function newKey(tried) {
    if (preferences.key() !== tried) return true;
    if (declined) return false;
    asking ??= askForKey(tried !== '').then((key) => {
      asking = null;
      declined = key === null;
      if (key !== null) preferences.setKey(key);
      return key !== null;
    });
    return asking;
  }

  async function request(path, options) {
    for (;;) {
      const tried = preferences.key();
      const response = await fetch(path, {
        cache: 'no-store',
        credentials: 'omit',
        ...options,
        headers: headers(options.headers),
      });
      if (response.status !== 401 || !(await newKey(tried)) || options.signal?.aborted) return response;
    }
  }

  const get = (path, options = {}) => request(path, { method: 'GET', ...options });
  const post = (path, body, options = {}) =>
    request(path, {
      method: 'POST',
      body: JSON.stringify(body),
      ...options,
      headers: { 'Content-Type': 'application/json' },
    });

  // What a response that is no success says, in one line.
  async function errorOf(response) {
    try {
      const { error } = await response.json();
      const message = typeof error === 'string' ? error : error?.message;
      if (typeof message === 'string' && message) return message;
    } catch {
      // No JSON: the status is all there is.
    }
    return `The server answered ${response.status} ${response.statusText}`.trim();
  }

  return {
    get,
    post,
    errorOf,
    onKey: (ask) => {
      askForKey = ask;
    },
    // Asks for a key once more, after somebody had closed that question.
    retryKey: () => {
      declined = false;
    },
    declined: () => declined,
  };
})();
