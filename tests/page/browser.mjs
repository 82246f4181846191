// What the tests of the page share: Debian's Chromium on the page of a real `sluice serve`, and a scripted server that
// answers what a test wants.
//
//   node FILE.test.mjs --modules FOLDER [--server PATH] [--chromium PATH] [--show]
//
// --modules: a folder with puppeteer-core in node_modules (run.sh makes it). --show: with a window.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { option, start, temporaryFolder, until } from '../server/support.mjs';

export { option, start, temporaryFolder, until };

function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(77);
}

function findChromium() {
  const named = option('chromium');
  if (named) return named;
  for (const name of ['chromium', 'chromium-browser', 'google-chrome']) {
    try {
      return execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim();
    } catch {
      // The next name.
    }
  }
  return skip('no chromium on this machine');
}

const modules = option('modules');
if (!modules || !fs.existsSync(path.join(modules, 'node_modules/puppeteer-core')))
  skip('--modules FOLDER has no puppeteer-core');
const at = path.join(path.resolve(modules), 'node_modules/puppeteer-core');
const { main } = JSON.parse(fs.readFileSync(path.join(at, 'package.json'), 'utf8'));
const { default: puppeteer } = await import(pathToFileURL(path.join(at, main)));

// ---- the browser ---------------------------------------------------------------------------------------------

let launched = null;
export async function browser() {
  launched ??= puppeteer.launch({
    executablePath: findChromium(),
    headless: !process.argv.includes('--show'),
    userDataDir: temporaryFolder(),
    args: [
      '--no-sandbox',
      '--disable-dev-shm-usage',
      '--disable-gpu',
      '--disable-background-networking',
      '--no-first-run',
      '--force-color-profile=srgb',
      '--hide-scrollbars',
      // A window that another one covers goes on as one in sight.
      '--disable-background-timer-throttling',
      '--disable-backgrounding-occluded-windows',
      '--disable-renderer-backgrounding',
    ],
  });
  return launched;
}
export async function closeBrowser() {
  await (await launched)?.close();
  launched = null;
}

/**
 * A tab on the page of `server` ({port}), in a profile of its own unless `context` is another tab's. Errors of the page
 * and of its policy fail the test at `close`, but for those that `expect` (a regular expression) knows.
 * before: a function that runs in the tab ahead of the page's script. ready: only when it has what the browser kept.
 */
export async function visit(
  server,
  { viewport = { width: 1100, height: 760 }, context, before, address = '/', expect = null, features = [], ready = true } = {},
) {
  const own = context ?? (await (await browser()).createBrowserContext());
  const page = await own.newPage();
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message ?? String(error)));
  page.on('console', (entry) => {
    if (entry.type() === 'error') errors.push(entry.text());
  });
  page.setDefaultTimeout(60000);
  await page.setViewport(viewport);
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }, ...features]);
  if (before) await page.evaluateOnNewDocument(before);
  await page.goto(`http://127.0.0.1:${server.port}${address}`);
  await page.bringToFront();
  await page.waitForSelector(ready ? 'html.ready #send' : '#send');
  return {
    page,
    context: own,
    errors,
    async close() {
      await page.close();
      if (!context) await own.close();
      // A request that is answered 4xx or is broken off is an entry of the console as well.
      const wrong = errors.filter((text) => !/^Failed to load resource/.test(text) && !(expect && expect.test(text)));
      assert.deepEqual(wrong, [], 'errors of the page');
    },
  };
}

// ---- what a person does --------------------------------------------------------------------------------------

export const button = (label) => `::-p-aria([name="${label}"][role="button"])`;

/** Puts a text into the message field and sends it with the key that does so. */
export async function say(page, text) {
  if (text.length < 100) {
    await page.type('#prompt', text);
  } else {
    // a key press each takes long
    await page.evaluate((long) => composer.put(long), text);
    await page.focus('#prompt');
  }
  await page.keyboard.press('Enter');
}

/** The messages on the page, from the first on. */
export const messages = (page) =>
  page.$$eval('#messages > li', (all) =>
    // What is out of sight is not laid out (content-visibility), and has no innerText then.
    all.map((one) => (one.style.setProperty('content-visibility', 'visible'), one)).map((one) => ({
      id: one.dataset.id,
      role: one.classList.contains('user') ? 'user' : 'assistant',
      text: one.querySelector('.text').innerText.trim(),
      running: one.classList.contains('running'),
      note: one.querySelector('.note:not([hidden])')?.firstChild.textContent ?? null,
      stats: one.querySelector('.stats')?.textContent ?? '',
      versions: one.querySelector('.branches .number')?.textContent ?? null,
    })),
  );

/** Waits until there are `count` messages and none is coming; gives them. */
export async function settled(page, count, seconds = 120) {
  await page.waitForFunction(
    (wanted) => {
      const all = [...document.querySelectorAll('#messages > li')];
      return all.length === wanted && !all.some((one) => one.classList.contains('running'));
    },
    { timeout: seconds * 1000, polling: 50 },
    count,
  );
  return messages(page);
}

/** A button of the `index`-th message, pressed as with a pointer. */
export async function press(page, index, label) {
  await page.evaluate(
    (at, name) => {
      const one = document.querySelectorAll('#messages > li')[at];
      [...one.querySelectorAll('button')]
        .find((made) => (made.getAttribute('aria-label') ?? made.innerText) === name)
        .click();
    },
    index,
    label,
  );
}

/** Presses the entry `label` of the menu that is open. */
export async function entry(page, label) {
  await page.waitForSelector('[role="menu"]');
  await page.evaluate(
    (name) => [...document.querySelectorAll('[role="menuitem"]')].find((one) => one.textContent === name).click(),
    label,
  );
}

/** The text of the file that pressing `run` downloads: {name, text}. */
export async function downloaded(page, run) {
  await page.evaluate(() => {
    window.saved = new Promise((resolve) => {
      HTMLAnchorElement.prototype.click = function click() {
        fetchBlob(this.href).then((text) => resolve({ name: this.download, text }));
      };
    });
    const blobs = new Map();
    const make = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
      const address = make.call(URL, blob);
      blobs.set(address, blob);
      return address;
    };
    window.fetchBlob = (address) => blobs.get(address).text();
  });
  await run();
  return page.evaluate(() => window.saved);
}

// ---- a scripted server -----------------------------------------------------------------------------------------

export const event = (value) => `data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`;
export const delta = (fields, more = {}) =>
  event({ model: 'scripted', choices: [{ index: 0, delta: fields, finish_reason: null }], ...more });
export const finish = (reason = 'stop', more = {}) =>
  event({ model: 'scripted', choices: [{ index: 0, delta: {}, finish_reason: reason }], ...more }) + event('[DONE]');

/**
 * A server on a free port. It gives the page as `real` does, header by header, and asks
 * `answer(body, response, request)` for each chat; `bodies` keeps what it was asked.
 */
export async function scripted(real, answer, models = ['scripted']) {
  const bodies = [];
  const server = http.createServer(async (request, response) => {
    const route = request.url.split('?')[0];
    if (route === '/') {
      http.get(
        { host: '127.0.0.1', port: real.port, path: '/', headers: { host: `127.0.0.1:${real.port}` } },
        (page) => {
          response.writeHead(page.statusCode, page.headers);
          page.pipe(response);
        },
      );
      return;
    }
    const parts = [];
    for await (const part of request) parts.push(part);
    if (route === '/v1/models') {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ object: 'list', data: models.map((id) => ({ id, object: 'model' })) }));
    } else if (route === '/v1/chat/completions') {
      const body = JSON.parse(Buffer.concat(parts).toString('utf8'));
      bodies.push(body);
      response.on('error', () => {});
      await answer(body, response, request, bodies.length);
    } else {
      response.writeHead(404, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ error: { message: `there is no ${route}` } }));
    }
  });
  server.keepAliveTimeout = 60000; // a slow machine's next question comes on the same connection
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return {
    port: server.address().port,
    bodies,
    async stop() {
      server.closeAllConnections();
      await new Promise((done) => server.close(done));
    },
  };
}

/** Begins a stream of events. */
export function begin(response) {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  return response;
}

export const wait = (ms) => new Promise((done) => setTimeout(done, ms));
