// Markdown and the view of the server in a browser, under the page's own policy.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { chatBody, get } from '../server/support.mjs';
import { closeBrowser, start, visit } from './browser.mjs';
import { SHAPES } from './hostile.mjs';

let real;
before(async () => { real = await start({ args: ['--sequences', '4'] }); });
after(async () => {
  await closeBrowser();
  await real?.stop();
});

const LONG = `# ${'word '.repeat(40)}\n\n${'x'.repeat(400)} \`${'y'.repeat(300)}\` https://example.com/${'z'.repeat(300)}\n\n\`\`\`c\n${'int a; '.repeat(80)}\n\`\`\`\n\n` +
  `|${'a|'.repeat(30)}\n|${'-|'.repeat(30)}\n|${'some words|'.repeat(30)}\n\n${'> '.repeat(12)}${'- '.repeat(8)}deep ${'w'.repeat(200)}\n\n<div>${'v'.repeat(300)}</div>\n`;

describe('Markdown in a browser', () => {
  test('hostile texts run nothing, load nothing and leave nothing but plain elements', async () => {
    const tab = await visit(real);
    const asked = [];
    tab.page.on('request', (request) => asked.push(request.url()));
    const wrong = await tab.page.evaluate((texts) => {
      window.alert = () => { window.ran = true; };
      const found = [];
      const place = document.createElement('div');
      document.body.append(place);
      for (const text of texts) {
        place.replaceChildren(markdown.render(text));
        for (const one of place.querySelectorAll('*')) {
          if (/^(script|style|img|iframe|svg|object|embed|form|link|meta|base|video|math|template)$/i.test(one.localName)) found.push([text, one.localName]);
          for (const { name } of one.attributes) if (/^on|^style$|^src/.test(name)) found.push([text, name]);
          if (one.localName === 'a' && !['http:', 'https:', 'mailto:'].includes(one.protocol)) found.push([text, one.href]);
        }
      }
      place.remove();
      return { found, ran: window.ran === true };
    }, SHAPES);
    assert.deepEqual(wrong, { found: [], ran: false });
    assert.deepEqual(asked.filter((url) => !url.startsWith(`http://127.0.0.1:${real.port}/`)), []);
    await tab.close();
  });

  test('a text that grows ends as the text at once, and each time costs less than all of it', async () => {
    const tab = await visit(real);
    const [grown, whole, each, all] = await tab.page.evaluate((text) => {
      const all = text.repeat(8);
      const a = document.createElement('div'), b = document.createElement('div');
      document.body.append(a);
      let updates = 0, renders = 0;
      for (let end = 0; end < all.length; end += 7) {
        const begin = performance.now();
        markdown.update(a, all.slice(0, end));
        updates += performance.now() - begin;
      }
      markdown.update(a, all, { done: true });
      b.append(markdown.render(all));
      for (let i = 0; i < 20; i++) {
        const begin = performance.now();
        markdown.update(document.createElement('div'), all);
        renders += performance.now() - begin;
      }
      a.remove();
      return [a.innerHTML, b.innerHTML, updates / (all.length / 7), renders / 20];
    }, LONG);
    assert.equal(grown, whole);
    assert.ok(each < all / 2, `${each} ms, and ${all} ms for all of it`);
    await tab.close();
  });

  test('nothing is wider than a narrow window', async () => {
    const tab = await visit(real, { viewport: { width: 360, height: 700 } });
    const [wide, code] = await tab.page.evaluate((text) => {
      const list = document.getElementById('messages');
      const item = document.createElement('li'), article = document.createElement('article'), place = document.createElement('div');
      item.className = 'message assistant';
      place.className = 'text';
      item.append(article);
      article.append(place);
      list.append(item);
      document.getElementById('empty').hidden = true;
      place.append(markdown.render(text));
      const edge = document.documentElement.clientWidth;
      const inside = (one) => one.closest('pre, .md-scroll') !== null;
      const over = [...place.querySelectorAll('*')].filter((one) => !inside(one) && one.getBoundingClientRect().right > edge + 1).map((one) => one.outerHTML.slice(0, 80));
      const result = [over, [...place.querySelectorAll('pre')].map((one) => one.scrollWidth > one.clientWidth)];
      item.remove();
      return result;
    }, LONG);
    assert.deepEqual(wide, []);
    assert.deepEqual(code, [true], 'long code scrolls inside its block');
    await tab.close();
  });
});

describe('the view of the server', () => {
  const state = (page) => page.$eval('.sv-state', (one) => one.textContent);
  const waitFor = (page, words, seconds = 120) => page.waitForFunction((text) => document.querySelector('.sv-state')?.textContent.includes(text), { timeout: seconds * 1000, polling: 100 }, words);

  test('it shows the plan with its bytes, a request in the figures, and fits a narrow window', async () => {
    await get(real, '/v1/chat/completions', chatBody('What is 2+3?'));
    const tab = await visit(real, { address: '/#/server', viewport: { width: 360, height: 700 } });
    await waitFor(tab.page, 'running');
    const plan = await get(real, '/plan');
    const shown = await tab.page.$$eval('.sv-section table', (all) => all.map((one) => [...one.querySelectorAll('tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))));
    const bytes = shown.find((rows) => rows.some(([name]) => name === 'total'));
    for (const { name, bytes: size } of plan.memory) assert.ok(bytes.some((row) => row[0] === name && row[1] === size.toLocaleString('en-US')), name);
    assert.ok(bytes.some((row) => row[0] === 'total' && row[1] === plan.total_bytes.toLocaleString('en-US')));
    assert.ok(shown.flat().some((row) => row[0] === '/v1/chat/completions' && Number(row[3]) >= 1));
    assert.equal(await tab.page.$$eval('.sv-bar rect', (all) => all.filter((one) => one.getBoundingClientRect().width > 0).length >= 5), true);
    const wide = await tab.page.evaluate(() => {
      const view = document.getElementById('server-view');
      return view.scrollWidth - view.clientWidth;
    });
    assert.ok(wide <= 0, `${wide} pixels too wide`);
    await tab.close();
  });

  test('a server that goes away is told, and found again on its port', async () => {
    const first = await start({});
    const tab = await visit(first, { address: '/#/server', expect: /ERR_CONNECTION|Failed to fetch/ });
    await waitFor(tab.page, 'running');
    await first.stop();
    await waitFor(tab.page, 'does not answer');
    const second = await start({ port: first.port });
    await waitFor(tab.page, 'running');
    assert.equal(await state(tab.page), 'The server is running.');
    await tab.page.evaluate(() => { location.hash = '#/'; });
    await tab.page.waitForFunction(() => document.querySelector('.sv') === null);
    await tab.close();
    await second.stop();
  });
});
