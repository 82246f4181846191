// Hosts of models on this machine: Hugging Face's API and its resolve redirects to a second port, Ollama's registry, and
// what they hold. Everything that is asked for is written down.
import crypto from 'node:crypto';
import http from 'node:http';

export const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

/** Repositories: {'OWNER/REPO': {sha, files: {path: Buffer}, gated, token, lie: {path: {size, sha256, missing}}, names: {path: as the API says}}} */
export class Hosts {
  constructor() {
    this.repos = {};
    this.manifests = {}; // 'library/NAME/TAG': object
    this.blobs = {}; // 'sha256:...': Buffer
    this.plain = {}; // path: Buffer, on the second port
    this.asked = []; // {port, url, authorization}
    this.served = 0; // bytes of files
    this.delay = 0; // milliseconds for each 64 KiB of a file
    this.most = Infinity; // bytes of files, then none until it is more
    this.cut = 0; // bytes after which a connection breaks, once for each request; 0: never
  }
  async start() {
    this.api = http.createServer((request, response) => this.#answer(request, response));
    this.files = http.createServer((request, response) => this.#answerFile(request, response));
    for (const server of [this.api, this.files]) await new Promise((done) => server.listen(0, '127.0.0.1', done));
    this.url = `http://127.0.0.1:${this.api.address().port}`;
    this.filesUrl = `http://127.0.0.1:${this.files.address().port}`;
  }
  stop() {
    for (const server of [this.api, this.files]) {
      server.closeAllConnections();
      server.close();
    }
  }
  /** What was asked since the last call. */
  take() {
    const { asked, served } = this;
    this.asked = [];
    this.served = 0;
    return { asked, served, urls: asked.map((one) => one.url) };
  }
  add(name, files, more = {}) {
    this.repos[name] = { sha: sha256(Buffer.from(name + (more.salt ?? ''))).slice(0, 40), files, lie: {}, ...more };
    return this.repos[name];
  }
  addOllama(name, layers) {
    const list = layers.map(([kind, bytes, lie]) => {
      const digest = `sha256:${lie ?? sha256(bytes)}`;
      this.blobs[digest] = bytes;
      return { mediaType: kind.includes('/') ? kind : `application/vnd.ollama.image.${kind}`, digest, size: bytes.length };
    });
    this.manifests[name] = { schemaVersion: 2, mediaType: 'application/vnd.docker.distribution.manifest.v2+json', layers: list };
  }
  #refuse(response, status, text = '{"error": "no"}') {
    response.writeHead(status, { 'content-type': 'application/json' }).end(text);
  }
  #allowed(repo, request) {
    return !repo.token || request.headers.authorization === `Bearer ${repo.token}`;
  }
  #describe(repo, name) {
    const siblings = Object.entries(repo.files).map(([path, bytes]) => {
      const lie = repo.lie[path] ?? {};
      const size = lie.size ?? bytes.length;
      const small = /\.(json|jinja|md|txt)$/.test(path);
      return { rfilename: lie.name ?? path, size, ...(small ? {} : { lfs: { sha256: lie.sha256 ?? sha256(bytes), size, pointerSize: 134 } }) };
    });
    return { id: name, sha: repo.sha, private: false, gated: repo.gated ?? false, siblings };
  }
  #answer(request, response) {
    this.asked.push({ port: 'api', url: request.url, authorization: request.headers.authorization, accept: request.headers.accept });
    const api = /^\/api\/models\/([^/]+\/[^/]+)\/revision\/([^/?]+)\?blobs=true$/.exec(request.url);
    const resolve = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(request.url);
    const manifest = /^\/v2\/(.+)\/manifests\/([^/]+)$/.exec(request.url);
    const blob = /^\/v2\/(.+)\/blobs\/(sha256:[0-9a-f]{64})$/.exec(request.url);
    if (api) {
      const repo = this.repos[api[1]];
      if (!repo || (repo.hidden && !this.#allowed(repo, request))) return this.#refuse(response, 401);
      if (![repo.sha, 'main', ...(repo.branches ?? [])].includes(api[2])) return this.#refuse(response, 404);
      return this.#refuse(response, 200, repo.raw ?? JSON.stringify(this.#describe(repo, api[1])));
    }
    if (resolve) {
      const repo = this.repos[resolve[1]];
      const path = decodeURIComponent(resolve[3]);
      if (!repo || repo.sha !== resolve[2] || !(path in repo.files)) return this.#refuse(response, 404);
      if (!this.#allowed(repo, request)) return this.#refuse(response, 403);
      return response.writeHead(302, { location: `${this.filesUrl}/repo/${resolve[1]}/${resolve[3]}?signed=1` }).end();
    }
    if (manifest) {
      const found = this.manifests[`${manifest[1]}/${manifest[2]}`];
      if (!/vnd\.docker\.distribution\.manifest\.v2\+json/.test(request.headers.accept ?? '')) return this.#refuse(response, 406);
      return this.#refuse(response, found ? 200 : 404, JSON.stringify(found ?? {}));
    }
    if (blob && this.blobs[blob[2]]) return response.writeHead(307, { location: `${this.filesUrl}/blob/${blob[2]}` }).end();
    return this.#refuse(response, 404);
  }
  async #answerFile(request, response) {
    this.asked.push({ port: 'files', url: request.url, authorization: request.headers.authorization, range: request.headers.range });
    const repo = /^\/repo\/([^/]+\/[^/]+)\/([^?]+)\?signed=1$/.exec(request.url);
    const blob = /^\/blob\/(.+)$/.exec(request.url);
    const bytes = repo ? this.repos[repo[1]].files[decodeURIComponent(repo[2])] : blob ? this.blobs[blob[1]] : this.plain[request.url];
    if (!bytes) return this.#refuse(response, 404);
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const from = range ? Number(range[1]) : 0;
    const to = Math.min(range && range[2] ? Number(range[2]) + 1 : bytes.length, bytes.length);
    const headers = { 'content-length': to - from, 'accept-ranges': 'bytes', etag: `"${sha256(bytes.subarray(0, 4096)).slice(0, 16)}"` };
    if (from >= bytes.length) return response.writeHead(416, { 'content-range': `bytes */${bytes.length}` }).end();
    response.writeHead(range ? 206 : 200, range ? { ...headers, 'content-range': `bytes ${from}-${to - 1}/${bytes.length}` } : headers);
    if (request.method === 'HEAD') return response.end();
    for (let at = from; at < to; at += 65536) {
      const piece = bytes.subarray(at, Math.min(at + 65536, to));
      if (response.destroyed) return undefined;
      if (this.cut && at - from >= this.cut) return response.destroy();
      while (this.served >= this.most && !response.destroyed) await new Promise((done) => setTimeout(done, 2));
      this.served += piece.length;
      response.write(piece);
      if (this.delay) await new Promise((done) => setTimeout(done, this.delay));
      if (response.writableNeedDrain && !response.destroyed) {
        await new Promise((done) => {
          const over = () => { response.off('drain', over).off('close', over); done(); };
          response.on('drain', over).on('close', over);
        });
      }
    }
    return response.end();
  }
}

// ---- files ---------------------------------------------------------------------------------------------------

/** The header of a GGUF file (ggml's docs/gguf.md): entries and tensors with their bytes as they stand. */
function readGguf(bytes) {
  const scalar = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
  let at = 8;
  const u32 = () => { at += 4; return bytes.readUInt32LE(at - 4); };
  const u64 = () => { at += 8; return Number(bytes.readBigUInt64LE(at - 8)); };
  const text = () => { const length = u64(); at += length; return bytes.toString('utf8', at - length, at); };
  const value = (type) => {
    if (type === 8) return text();
    if (type !== 9) { at += scalar[type]; return undefined; }
    const inner = u32();
    for (let count = u64(); count > 0; count--) value(inner);
    return undefined;
  };
  const tensorCount = u64(), entryCount = u64();
  const from = at;
  for (let i = 0; i < entryCount; i++) { text(); value(u32()); }
  const entries = bytes.subarray(from, at);
  const tensors = [];
  for (let i = 0; i < tensorCount; i++) {
    const begin = at;
    text();
    const dimensions = u32();
    at += dimensions * 8 + 4;
    const info = bytes.subarray(begin, at);
    tensors.push({ info, offset: u64() });
  }
  const data = Math.ceil(at / 32) * 32;
  tensors.forEach((tensor, i) => {
    const end = i + 1 < tensors.length ? tensors[i + 1].offset : bytes.length - data;
    tensor.bytes = bytes.subarray(data + tensor.offset, data + end);
  });
  return { entryCount, entries, tensors, header: at };
}
export const ggufHeader = (bytes) => readGguf(bytes).header;

const int = (size, value) => { const b = Buffer.alloc(size); b.writeUIntLE(value, 0, Math.min(size, 6)); return b; };
const entry = (key, type, bytes) => Buffer.concat([int(8, key.length), Buffer.from(key), int(4, type), bytes]);

/** The same model in parts, as llama.cpp's gguf-split writes them: split.no, split.count, split.tensors.count. */
export function splitGguf(bytes, count) {
  const { entryCount, entries, tensors } = readGguf(bytes);
  return Array.from({ length: count }, (_, no) => {
    const own = tensors.slice(Math.floor(tensors.length * no / count), Math.floor(tensors.length * (no + 1) / count));
    const split = Buffer.concat([entry('split.no', 2, int(2, no)), entry('split.count', 2, int(2, count)),
      entry('split.tensors.count', 5, int(4, tensors.length))]);
    const parts = [Buffer.from('GGUF'), int(4, 3), int(8, own.length), int(8, 3 + (no ? 0 : entryCount)), no ? Buffer.alloc(0) : entries, split];
    let offset = 0;
    for (const tensor of own) {
      parts.push(tensor.info, int(8, offset));
      offset += Math.ceil(tensor.bytes.length / 32) * 32;
    }
    const length = parts.reduce((sum, part) => sum + part.length, 0);
    parts.push(Buffer.alloc((32 - length % 32) % 32));
    for (const tensor of own) parts.push(tensor.bytes, Buffer.alloc((32 - tensor.bytes.length % 32) % 32));
    return Buffer.concat(parts);
  });
}

/** The header of the same model with another feed-forward, and how many bytes the whole file would have (q8_0: 34 for 32). */
export function widenFeedForward(bytes, from, to) {
  const { entryCount, entries, tensors } = readGguf(bytes);
  const own = Buffer.from(entries);
  const key = own.indexOf('.feed_forward_length');
  own.writeUInt32LE(to, key + '.feed_forward_length'.length + 4);
  let offset = 0;
  const infos = tensors.map(({ info, bytes: data }) => {
    const copy = Buffer.from(info);
    let size = data.length;
    const dims = 8 + Number(copy.readBigUInt64LE(0)) + 4;
    if (/ffn_(gate|up|down)/.test(copy.toString('latin1'))) {
      for (let d = 0; d < copy.readUInt32LE(dims - 4); d++) {
        if (Number(copy.readBigUInt64LE(dims + 8 * d)) === from) copy.writeBigUInt64LE(BigInt(to), dims + 8 * d);
      }
      size = size / from * to;
    }
    const at = offset;
    offset += Math.ceil(size / 32) * 32;
    return Buffer.concat([copy, int(8, at % 2 ** 48)]);
  });
  const header = Buffer.concat([Buffer.from('GGUF'), int(4, 3), int(8, tensors.length), int(8, entryCount), own, ...infos]);
  return { header: Buffer.concat([header, Buffer.alloc((32 - header.length % 32) % 32)]), size: header.length + (32 - header.length % 32) % 32 + offset };
}

/** A safetensors file in two, and the index that names both. */
export function shardSafetensors(bytes) {
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length));
  const names = Object.keys(header).filter((name) => name !== '__metadata__');
  const weight_map = {};
  const files = {};
  [0, 1].forEach((half) => {
    const file = `model-0000${half + 1}-of-00002.safetensors`;
    const own = {};
    const data = [];
    let at = 0;
    for (const name of names.filter((_, i) => i % 2 === half)) {
      const [from, to] = header[name].data_offsets;
      own[name] = { ...header[name], data_offsets: [at, at + to - from] };
      data.push(bytes.subarray(8 + length + from, 8 + length + to));
      at += to - from;
      weight_map[name] = file;
    }
    const text = Buffer.from(JSON.stringify(own));
    files[file] = Buffer.concat([int(8, text.length), text, ...data]);
  });
  files['model.safetensors.index.json'] = Buffer.from(JSON.stringify({ metadata: {}, weight_map }));
  return files;
}
