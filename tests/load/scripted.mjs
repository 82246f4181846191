// A server of known delays, in this process. What it does is said by the model's name of each request:
//
//   first=50,gap=10,count=20     milliseconds to the first event and between events, events with text
//   slow=150,every=2             each second request has this first delay instead
//   burst=5                      so many events in one write
//   tokens=3                     usage says so many tokens for each event; usage=0: no usage at all
//   status=429,wait=1            an HTTP error, with Retry-After
//   break=3                      the connection is destroyed after so many events
//   stall=3                      nothing comes after so many events
//   fault=3                      an error event after so many; quiet=1: the stream ends without [DONE]
//   plain=1, garbage=1, wrong=1  the answer as one JSON value; no JSON; 200 and an error as JSON
//   mute=1                       usage tells of tokens, and no event has text
//   nul=1                      each text has a character NUL
//   moved=URL                    302 to there
//
// Each request is a row of `requests`: when it came, its body, when its events were written, how it ended.
// Times are those of the same clock that clients on this machine have, in milliseconds.
import http from 'node:http';
import https from 'node:https';

const now = () => performance.now();
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Waits until a time of the clock above, the last millisecond by looking at it: timers are a millisecond off. */
async function until(time) {
  const left = time - now();
  if (left > 1.5) await sleep(left - 1.5);
  while (now() < time) await new Promise((done) => setImmediate(done));
}

function parse(model) {
  const script = {};
  for (const part of String(model).split(',')) {
    const at = part.indexOf('=');
    if (at > 0) script[part.slice(0, at)] = /^[\d.]+$/.test(part.slice(at + 1)) ? Number(part.slice(at + 1)) : part.slice(at + 1);
  }
  return { first: 5, gap: 1, count: 4, every: 1, burst: 1, tokens: 1, usage: 1, ...script };
}

export class Scripted {
  requests = [];
  others = []; // what came for other paths: method, path, headers
  running = 0;
  most = 0;
  connections = 0;

  static async start(tls) {
    const self = new Scripted();
    const answer = (request, response) => self.#take(request, response).catch(() => response.destroy());
    self.server = tls ? https.createServer(tls, answer) : http.createServer(answer);
    self.server.keepAliveTimeout = 60000;
    self.server.on(tls ? 'secureConnection' : 'connection', () => self.connections++);
    await new Promise((done) => self.server.listen(0, '127.0.0.1', done));
    self.port = self.server.address().port;
    self.url = `${tls ? 'https' : 'http'}://127.0.0.1:${self.port}`;
    return self;
  }
  stop() {
    this.server.closeAllConnections();
    return new Promise((done) => this.server.close(done));
  }
  clear() {
    Object.assign(this, { requests: [], others: [], running: 0, most: 0, connections: 0 });
  }

  async #take(request, response) {
    const came = now();
    const parts = [];
    for await (const part of request) parts.push(part);
    if (request.method !== 'POST') {
      this.others.push({ method: request.method, path: request.url, headers: request.headers });
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ data: [{ id: 'first=5,count=2' }, { id: 'second' }] }));
      return;
    }
    const body = JSON.parse(Buffer.concat(parts).toString('utf8'));
    const row = { came, path: request.url, headers: request.headers, body, index: this.requests.length, written: [], left: false, ended: 0 };
    this.requests.push(row);
    this.running++;
    this.most = Math.max(this.most, this.running);
    response.on('close', () => {
      row.left = !response.writableFinished;
      row.ended = now();
    });
    await this.#answer(row, parse(body.model), response);
    this.running--; // before the client can know that it has the whole
    if (!response.destroyed && !row.open) response.end();
  }

  async #answer(row, script, response) {
    const json = { 'content-type': 'application/json' };
    const chat = row.path.endsWith('/chat/completions');
    const usage = { prompt_tokens: 11, completion_tokens: script.count * script.tokens };
    const delay = script.slow && row.index % script.every === script.every - 1 ? script.slow : script.first;
    if (script.moved) return void response.writeHead(302, { location: script.moved });
    if (script.status) {
      response.writeHead(script.status, { ...json, ...(script.wait ? { 'retry-after': String(script.wait) } : {}) });
      return void response.write(JSON.stringify({ error: { message: `status ${script.status}` } }));
    }
    if (script.wrong) return void response.writeHead(200, json).write(JSON.stringify({ error: { message: 'not today' } }));
    if (script.plain) {
      await until(row.came + delay);
      return void response.writeHead(200, json).write(JSON.stringify({ choices: [{ message: { content: 'all' }, text: 'all', finish_reason: 'stop' }], usage }));
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    const event = (value) => `data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`;
    const word = (i) => `w${i}${script.nul ? '\0' : ' '}`;
    const text = (i) => (chat ? { choices: [{ delta: { content: word(i) } }] } : { choices: [{ text: word(i) }] });
    if (chat) response.write(event({ choices: [{ delta: { role: 'assistant', content: '' } }] }));
    let due = row.came + delay;
    for (let i = 0; i < script.count && !response.destroyed; i += script.burst) {
      await until(due);
      if (script.break === i) return void response.destroy();
      if (script.stall === i) return void (row.open = true);
      if (script.fault === i) return void response.write(event({ error: { message: 'out of order' } }));
      if (script.garbage) return void response.write(event('{"choices": ['));
      row.written.push(now());
      response.socket.cork(); // several chunks, one write to the socket
      for (let k = 0; k < script.burst && !script.mute; k++) response.write(event(text(i + k)));
      response.socket.uncork();
      due = Math.max(due + script.gap, now()); // a late server does not hurry
    }
    if (script.quiet) return;
    const last = { choices: [chat ? { delta: {}, finish_reason: 'stop' } : { text: '', finish_reason: 'stop' }] };
    response.write(event(last) + (script.usage ? event({ choices: [], usage }) : '') + event('[DONE]'));
  }
}
