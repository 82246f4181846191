// Streams of events (https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.6), and a chat over one.
const stream = (() => {
  // Milliseconds without a byte, after which a connection counts as broken: the server is never so silent.
  const timing = { patience: 90000 };

  // feed(bytes) as they come, cut anywhere; `onEvent(data, name)` for each event.
  function parser(onEvent) {
    const decoder = new TextDecoder();
    let rest = '',
      data = [],
      name = '',
      first = true;

    function line(text) {
      if (text === '') {
        if (data.length) onEvent(data.join('\n'), name);
        data = [];
        name = '';
        return;
      }
      const colon = text.indexOf(':');
      if (colon === 0) return; // a comment
      const field = colon < 0 ? text : text.slice(0, colon);
      const value = colon < 0 ? '' : text.slice(text[colon + 1] === ' ' ? colon + 2 : colon + 1);
      if (field === 'data') data.push(value);
      else if (field === 'event') name = value;
    }

    function lines(text) {
      if (first && text) {
        first = false;
        text = text.replace(/^\ufeff/, '');
      }
      rest += text;
      let from = 0;
      for (let at = 0; at < rest.length; at++) {
        if (rest[at] !== '\n' && rest[at] !== '\r') continue;
        if (rest[at] === '\r' && at + 1 === rest.length) break; // a line feed may follow
        line(rest.slice(from, at));
        if (rest[at] === '\r' && rest[at + 1] === '\n') at++;
        from = at + 1;
      }
      rest = rest.slice(from);
    }

    return { feed: (bytes) => lines(decoder.decode(bytes, { stream: true })) };
  }

  // Reads a body to its end. Gives whether it ended by itself.
  async function pour(body, feed) {
    const reader = body.getReader();
    for (;;) {
      let timer;
      const silence = new Promise((resolve) => {
        timer = setTimeout(resolve, timing.patience, 'silence');
      });
      const part = await Promise.race([reader.read(), silence]).finally(() => clearTimeout(timer));
      if (part === 'silence') {
        reader.cancel().catch(() => {});
        return false;
      }
      if (part.done) return true;
      feed(part.value);
    }
  }

  const textOr = (value) => (typeof value === 'string' ? value : '');

  // One event of a chat, taken apart; what is of another type than it should be counts as absent.
  function read(chunk, on) {
    const choice = Array.isArray(chunk.choices) ? chunk.choices[0] : null;
    const delta = choice?.delta ?? {};
    if (typeof chunk.model === 'string') on.model(chunk.model);
    const reasoning = textOr(delta.reasoning_content) || textOr(delta.reasoning);
    if (reasoning) on.reasoning(reasoning);
    if (textOr(delta.content)) on.content(delta.content);
    for (const call of Array.isArray(delta.tool_calls) ? delta.tool_calls : []) {
      on.call(
        Number.isSafeInteger(call?.index) && call.index >= 0 && call.index < 1000 ? call.index : 0,
        textOr(call?.id),
        textOr(call?.function?.name),
        textOr(call?.function?.arguments),
      );
    }
    if (typeof choice?.finish_reason === 'string') on.finish(choice.finish_reason);
    if (chunk.usage || chunk.timings) on.numbers(chunk.usage ?? {}, chunk.timings ?? {});
  }

  // Streams an answer. on: {model, reasoning, content, call, finish, numbers}. Never throws; gives {state, error}:
  // 'done', 'stopped', 'broken' (the end is missing) or 'failed' (with what the server said).
  async function chat(body, signal, on) {
    let finished = false,
      error = null,
      begun = false;
    const take = (data) => {
      begun = true;
      if (data === '[DONE]') {
        finished = true;
        return;
      }
      let chunk;
      try {
        chunk = JSON.parse(data);
      } catch {
        error ??= 'The server sent something that is not JSON';
        return;
      }
      if (chunk?.error)
        error ??= textOr(chunk.error.message) || textOr(chunk.error) || 'The server ended the answer with an error';
      else if (chunk !== null && typeof chunk === 'object')
        read(chunk, {
          ...on,
          finish: (reason) => {
            finished = true;
            on.finish(reason);
          },
        });
    };
    try {
      const response = await api.post('/v1/chat/completions', body, { signal });
      if (!response.ok) return { state: 'failed', error: await api.errorOf(response) };
      const events = parser(take);
      const whole = await pour(response.body, (bytes) => events.feed(bytes));
      if (error) return { state: 'failed', error };
      return whole && finished ? { state: 'done' } : { state: 'broken' };
    } catch {
      if (signal.aborted) return { state: 'stopped' };
      if (error) return { state: 'failed', error };
      if (finished) return { state: 'done' };
      return begun ? { state: 'broken' } : { state: 'failed', error: 'The server cannot be reached' };
    }
  }

  return { parser, chat, timing };
})();
