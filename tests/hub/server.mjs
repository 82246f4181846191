// A server of one file that behaves, or misbehaves, as one of ROUTES says. On 127.0.0.1, a port of the system's choice.
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

const CHUNK = 64 * 1024;
const servers = new Set();
after(() => [...servers].map((server) => server.close())); // those of tests that failed

/** One request. `number` counts from 1; `state` lives as long as the server. */
class Exchange {
  constructor(server, request, response, number) {
    Object.assign(this, { server, request, response, number });
    this.options = server.options;
    this.state = server.state;
    this.body = server.options.body;
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '');
    this.range = range && { begin: Number(range[1]), end: Number(range[2]) + 1 };
  }
  get tags() {
    const { etag = '"one"', modified } = this.options;
    return { ...(etag && { ETag: etag }), ...(modified && { 'Last-Modified': modified }) };
  }
  /** Whether If-Range, when there is one, names this file. */
  get unchanged() {
    const wanted = this.request.headers['if-range'];
    return !wanted || wanted === this.tags.ETag || wanted === this.tags['Last-Modified'];
  }
  /**
   * Sends bytes: at most options.rate a second, when that is given, and no more than options.most of all answers together until that
   * is taken back. Late is late: what was not sent in time does not come in a heap, behind which a test would find all done.
   */
  async send(bytes, end = true) {
    const { response, options } = this;
    const paced = options.rate || options.most;
    if (!paced && bytes.length) response.write(bytes);
    if (!paced) this.server.sent += bytes.length;
    for (let at = 0; paced && at < bytes.length && !response.destroyed; at += CHUNK) {
      while (this.server.sent >= options.most && !response.destroyed) await sleep(2);
      response.write(bytes.subarray(at, at + CHUNK));
      this.server.sent += Math.min(CHUNK, bytes.length - at);
      if (options.rate) await this.pause(CHUNK / options.rate);
    }
    if (end) response.end();
  }
  /** As if `seconds` had gone by since the last one, and at least since it should have ended. */
  async pause(seconds) {
    const now = performance.now();
    this.due = Math.max((this.due ?? now) + 1000 * seconds, now);
    if (this.due > now) await sleep(this.due - now);
  }
  answer(status, headers = {}, text = '') {
    this.response.writeHead(status, headers);
    this.response.end(text);
  }
  whole(headers = {}) {
    this.response.writeHead(200, { 'Content-Length': this.body.length, ...this.tags, ...headers });
    return this.send(this.body);
  }
  /** A 206 with the bytes from begin to before end. */
  part(begin, end, headers = {}, total = this.body.length) {
    const all = { 'Content-Range': `bytes ${begin}-${end - 1}/${total}`, 'Content-Length': end - begin, ...this.tags, ...headers };
    this.response.writeHead(206, Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null)));
    return this.send(this.body.subarray(begin, end));
  }
  /** As RFC 9110 has it. */
  good(headers = {}) {
    if (!this.range || !this.unchanged) return this.whole(headers);
    if (this.range.begin >= this.body.length) return this.answer(416, { 'Content-Range': `bytes */${this.body.length}` });
    return this.part(this.range.begin, Math.min(this.range.end, this.body.length), headers);
  }
  /** Bytes as they are, head and all, and then the end of the connection. */
  async raw(text, bytes = Buffer.alloc(0)) {
    const { socket } = this.request;
    socket.write(text.replaceAll('\n', '\r\n'));
    for (let at = 0; at < bytes.length && !socket.destroyed; at += 1 << 20) {
      if (!socket.write(bytes.subarray(at, at + (1 << 20)))) await new Promise((done) => socket.once('drain', done).once('close', done));
    }
    socket.end();
  }
  /** What a range gets, cut off after `most` bytes. */
  async broken(most) {
    const begin = this.range?.begin ?? 0;
    const end = Math.min(this.range?.end ?? this.body.length, this.body.length);
    const head = this.range ? `HTTP/1.1 206 Partial Content\nContent-Range: bytes ${begin}-${end - 1}/${this.body.length}\n` : 'HTTP/1.1 200 OK\n';
    await this.raw(`${head}ETag: "one"\nContent-Length: ${end - begin}\n\n`, this.body.subarray(begin, Math.min(begin + most, end)));
  }
}

const busy = (times, status, headers) => (x) => (x.number <= times ? x.answer(status, headers, 'busy') : x.good());

export const ROUTES = {
  good: (x) => x.good(),
  'no ranges': (x) => x.whole(),
  'no ranges, other tag each time': (x) => x.whole({ ETag: `"${x.number}"` }),
  chunked: (x) => { x.response.writeHead(200, x.tags); return x.send(x.body); },
  'until it closes': (x) => x.raw('HTTP/1.1 200 OK\nConnection: close\n\n', x.body),
  'closes too early': (x) => x.raw('HTTP/1.1 200 OK\nConnection: close\n\n', x.body.subarray(0, x.body.length / 2)),
  'chunked and short': (x) => { x.response.writeHead(200, x.tags); return x.send(x.body.subarray(0, x.body.length / 2)); },
  'chunked and long': (x) => { x.response.writeHead(200, x.tags); return x.send(Buffer.concat([x.body, Buffer.alloc(1000)])); },
  'says less': (x) => x.raw(`HTTP/1.1 200 OK\nContent-Length: ${x.body.length - 1000}\n\n`, x.body),
  'says more': (x) => x.raw(`HTTP/1.1 200 OK\nETag: "one"\nContent-Length: ${x.body.length + 1000}\n\n`, x.body),
  'length that is none': (x) => x.raw('HTTP/1.1 200 OK\nContent-Length: many\n\n', x.body),
  'sends more than its range': (x) => {
    const { begin, end } = x.range;
    x.response.writeHead(206, { 'Content-Range': `bytes ${begin}-${end - 1}/${x.body.length}`, ...x.tags });
    return x.send(x.body.subarray(begin, end + 5000));
  },
  'shorter ranges': (x) => x.part(x.range.begin, Math.min(x.range.end, x.range.begin + 1_000_000, x.body.length)),
  'ends before its range': (x) => {
    const { begin } = x.range, end = Math.min(x.range.end, x.body.length);
    x.response.writeHead(206, { 'Content-Range': `bytes ${begin}-${end - 1}/${x.body.length}`, ...x.tags });
    return x.send(x.body.subarray(begin, begin + Math.ceil((end - begin) / 2)));
  },
  'other range': (x) => x.part(x.range.begin + 1, Math.min(x.range.end, x.body.length) - 1),
  'more range': (x) => x.part(0, x.body.length),
  'range without its place': (x) => x.part(x.range.begin, Math.min(x.range.end, x.body.length), { 'Content-Range': null }),
  'range that is none': (x) => x.part(x.range.begin, Math.min(x.range.end, x.body.length), { 'Content-Range': 'bytes 5-2/1' }),
  'range and length at odds': (x) => x.part(x.range.begin, Math.min(x.range.end, x.body.length), { 'Content-Length': 10 }),
  'range without total': (x) => (x.range ? x.part(x.range.begin, Math.min(x.range.end, x.body.length), {}, '*') : x.whole()),
  'other total': (x) => x.part(x.range.begin, Math.min(x.range.end, x.body.length), {}, x.body.length + 1000),
  'other total each time': (x) => x.part(x.range.begin, Math.min(x.range.end, x.body.length), { ETag: null }, x.body.length + x.number),
  'other tag each time': (x) => (x.range ? x.part(x.range.begin, Math.min(x.range.end, x.body.length), { ETag: `"${x.number}"` }) : x.whole()),
  'part of the whole': (x) => x.part(0, x.body.length),
  'ranges refused': (x) => (x.range ? x.answer(416) : x.whole()),
  'always 416': (x) => x.answer(416),
  // The file becomes another one with the third request.
  'changes once': (x) => {
    if (x.number === 3) Object.assign(x.server.options, { body: x.options.next, etag: '"two"' });
    x.body = x.server.options.body;
    return x.good();
  },
  'busy once': busy(1, 429, { 'Retry-After': '1' }),
  'busy until a date': (x) => {
    x.state.until ??= Math.ceil(Date.now() / 1000) * 1000 + 1000;
    return x.number === 1 ? x.answer(503, { 'Retry-After': new Date(x.state.until).toUTCString() }) : x.good();
  },
  'busy for long': (x) => x.answer(503, { 'Retry-After': '86400' }),
  'busy for ever': (x) => x.answer(503),
  'broken inside, twice': busy(2, 500),
  'two at once': async (x) => {
    x.state.now = (x.state.now ?? 0) + 1;
    x.response.on('close', () => x.state.now--);
    return x.state.now > 2 ? x.answer(429) : x.good();
  },
  status: (x) => x.answer(x.options.status, {}, 'no'),
  'status after two': (x) => (x.number > 2 ? x.answer(x.options.status) : x.good()),
  redirect: (x) => {
    const hops = Number(/^\/hop(\d+)/.exec(x.request.url)?.[1] ?? 0);
    return hops < x.options.hops ? x.answer(x.options.status ?? 302, { Location: `/hop${hops + 1}?key=secret` }) : x.good();
  },
  'redirect to': (x) => x.answer(302, x.options.to === undefined ? {} : { Location: x.options.to }),
  // Every fourth use of a signed URL comes too late.
  signed: (x) => {
    const url = new URL(x.request.url, 'http://h');
    if (url.pathname !== '/signed') {
      x.state.signature = (x.state.signature ?? 0) + 1;
      return x.answer(302, { Location: `/signed?signature=secret${x.state.signature}` });
    }
    const signature = url.searchParams.get('signature');
    const used = (x.state[signature] = (x.state[signature] ?? 0) + 1);
    return used > 3 ? x.answer(403, {}, 'expired') : x.good();
  },
  'signed and denied': (x) => (x.request.url.startsWith('/signed') ? x.answer(403) : x.answer(302, { Location: '/signed?signature=secret' })),
  'breaks after a megabyte': (x) => x.broken(1_000_000),
  'breaks at once': (x) => x.broken(0),
  'breaks without an answer': (x) => x.request.socket.destroy(),
  'breaks in the second half': (x) => ((x.range?.begin ?? 0) >= x.body.length / 2 ? x.request.socket.destroy() : x.good()),
  'no ranges, breaks in the middle': (x) => { x.range = null; return x.broken(x.body.length / 2); },
  'no ranges, breaks once': (x) => { x.range = null; return x.number === 1 ? x.broken(x.body.length / 2) : x.whole(); },
  'chunked, breaks once': (x) => {
    x.response.writeHead(200, x.tags);
    x.response.write(x.body.subarray(0, x.body.length / 2));
    return x.number === 1 ? setTimeout(() => x.request.socket.destroy(), 100) : x.send(x.body.subarray(x.body.length / 2));
  },
  'stalls at once': () => {},
  'stalls at first': (x) => (x.number === 1 ? undefined : x.good()),
  'stalls after half': (x) => {
    const { begin } = x.range, end = Math.min(x.range.end, x.body.length);
    if (end - begin < 1000) return x.good();
    x.response.writeHead(206, { 'Content-Range': `bytes ${begin}-${end - 1}/${x.body.length}`, 'Content-Length': end - begin, ...x.tags });
    return x.send(x.body.subarray(begin, begin + Math.floor((end - begin) / 2)), false);
  },
  compressed: (x) => x.whole({ 'Content-Encoding': 'gzip' }),
  'fields without end': async (x) => {
    x.request.socket.write('HTTP/1.1 200 OK\r\n');
    for (let i = 0; i < 10_000 && !x.request.socket.destroyed; i++) {
      if (!x.request.socket.write(`X-${i}: ${'y'.repeat(1000)}\r\n`)) await sleep(1);
    }
    x.request.socket.destroy();
  },
  'no HTTP': (x) => x.raw('220 ready\n', x.body),
  'hints first': async (x) => {
    x.request.socket.write('HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\nETag: "hint"\r\n\r\n');
    return x.good();
  },
  cookies: (x) => x.good({ 'Set-Cookie': 'a=secret' }),
  paths: (x) => (x.request.url.includes('missing') ? x.answer(404) : x.good()),
};

/** options: body (a Buffer), etag, modified, rate, most; what a route reads besides; tls: {key, cert}. */
export async function serve(route, options = {}) {
  const server = { options: { body: Buffer.alloc(0), ...options }, state: {}, log: [], sent: 0, connections: 0, sockets: new Set() };
  const handle = async (request, response) => {
    server.log.push({ url: request.url, headers: request.headers, range: request.headers.range, });
    response.on('error', () => {});
    await ROUTES[route](new Exchange(server, request, response, server.log.length));
  };
  const listener = options.tls ? https.createServer(options.tls, handle) : http.createServer(handle);
  listener.on('connection', (socket) => {
    server.connections++;
    server.sockets.add(socket.on('error', () => {}));
    socket.on('close', () => server.sockets.delete(socket));
  });
  listener.on('tlsClientError', () => {});
  listener.keepAliveTimeout = 0; // a connection ends when the client says so, however long that was not running
  await new Promise((done) => listener.listen(0, '127.0.0.1', done));
  server.port = listener.address().port;
  server.origin = `${options.tls ? 'https' : 'http'}://127.0.0.1:${server.port}`;
  server.url = `${server.origin}/folder/file.bin?key=secret`;
  server.bytesAsked = () => server.log.reduce((sum, { range }) => {
    const [, begin, end] = /^bytes=(\d+)-(\d+)$/.exec(range ?? '') ?? [0, 0, server.options.body.length - 1];
    return sum + Math.min(Number(end) + 1, server.options.body.length) - Number(begin);
  }, 0);
  /** When what clients that have ended had sent is read: then the log is of those that come. */
  server.settled = async () => {
    const own = net.connect(server.port, '127.0.0.1').on('error', () => {}); // connections are accepted in their order
    await new Promise((done) => listener.on('connection', (socket) => socket.remotePort === own.localPort && done()));
    own.destroy();
    while (server.sockets.size > 0) await sleep(2);
  };
  servers.add(server);
  server.close = () => {
    servers.delete(server);
    for (const socket of server.sockets) socket.destroy();
    return new Promise((done) => listener.close(done));
  };
  return server;
}

/** A port at which nobody answers: it was free a moment ago. */
export async function nobody() {
  const listener = net.createServer();
  await new Promise((done) => listener.listen(0, '127.0.0.1', done));
  const { port } = listener.address();
  await new Promise((done) => listener.close(done));
  return port;
}
