// Reading and finding one's way: scrolling, keys, narrow windows, screen readers, and texts that mean harm.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import {
  begin,
  button,
  closeBrowser,
  delta,
  finish,
  messages,
  press,
  say,
  scripted,
  settled,
  start,
  until,
  visit,
} from './browser.mjs';

let real;
before(async () => {
  real = await start({});
});
after(async () => {
  await closeBrowser();
  await real?.stop();
});

/** A tab on a scripted server; both are closed behind `run(page, server, tab)`. */
async function script(answer, run, how = {}) {
  const server = await scripted(real, answer, how.models);
  try {
    const tab = await visit(server, how);
    await run(tab.page, server, tab);
    await tab.close();
  } finally {
    await server.stop();
  }
}
const reply = (text) => (body, response) => begin(response).end(delta({ content: text }) + finish());
const paragraphs = (count) => Array.from({ length: count }, (_, i) => `Paragraph ${i} of some words.`).join('\n\n');
const place = (page) =>
  page.$eval('#scroll', (one) => [Math.round(one.scrollTop), one.scrollHeight - one.clientHeight]);

describe('scrolling', () => {
  test('the end stays in sight until the reader scrolls up, and again when told to', async () => {
    let open;
    await script(
      (body, response) => {
        open = begin(response);
        open.write(delta({ content: `${paragraphs(40)}\n\n` }));
      },
      async (page) => {
        const write = async (text) => {
          open.write(delta({ content: `${text}\n\n` }));
          await page.waitForFunction(
            (wanted) => document.querySelector('#messages').textContent.includes(wanted),
            {},
            text.split('\n').at(-1),
          );
          await page.evaluate(
            () =>
              new Promise((done) => {
                requestAnimationFrame(() => requestAnimationFrame(done));
              }),
          );
        };
        await say(page, 'long');
        await until('the question', () => open);
        await write('first mark');
        let [top, most] = await place(page);
        assert.ok(most > 300 && most - top <= 8, `${top} of ${most}: at the end`);
        await page.mouse.move(700, 300);
        await page.mouse.wheel({ deltaY: -200 });
        await page.waitForFunction((before) => document.querySelector('#scroll').scrollTop < before - 50, {}, top);
        [top] = await place(page);
        await write(`${paragraphs(20)}\n\nmiddle mark`);
        await write('second mark');
        assert.equal((await place(page))[0], top, 'the reader stays where he is');
        await page.click(button('To the end'));
        await write('third mark');
        [top, most] = await place(page);
        assert.ok(most - top <= 8, `${top} of ${most}: at the end again`);
        open.end(finish());
        await settled(page, 2);
      },
    );
  });

  test('two hundred messages open, and the last is in sight', async () => {
    await script(reply('x'), async (page) => {
      const list = Array.from({ length: 200 }, (_, i) => ({
        id: `m${i}`,
        parent: i ? `m${i - 1}` : null,
        role: i % 2 ? 'assistant' : 'user',
        content: `message ${i}\n\n${paragraphs(8)}`,
        created: i,
      }));
      await page.evaluate(
        (text) => main.importText(text),
        JSON.stringify({
          format: 'sluice conversations',
          version: 1,
          conversations: [{ title: 'long', messages: list }],
        }),
      );
      await page.waitForSelector('#list a');
      await page.click('#list a');
      await settled(page, 200);
      await page.waitForFunction(() => {
        const last = document.querySelector('#messages > li:last-child .text'),
          frame = document.querySelector('#scroll').getBoundingClientRect();
        return last.getBoundingClientRect().bottom <= frame.bottom && last.getBoundingClientRect().bottom > frame.top;
      });
      assert.equal(
        await page.$eval('#messages > li:last-child .text', (one) => one.textContent.slice(0, 11)),
        'message 199',
      );
    });
  });
});

describe('keys', () => {
  test('everything has a key, and none of them does something while somebody writes', async () => {
    await script(reply('answer'), async (page, server) => {
      await say(page, 'n?/jk[]');
      await settled(page, 2);
      assert.equal(server.bodies[0].messages[0].content, 'n?/jk[]');
      await page.$eval('#prompt', (one) => one.blur());
      await page.keyboard.press('j');
      await page.keyboard.press('j');
      assert.equal(
        await page.evaluate(() => document.activeElement.closest('li').classList.contains('assistant')),
        true,
      );
      await page.keyboard.press('r');
      let all = await settled(page, 2);
      assert.equal(all[1].versions, '2/2');
      // The focus is on the new version, and arrows lead from one to the other.
      await page.keyboard.press('ArrowLeft');
      await page.waitForFunction(() => document.querySelector('.number')?.textContent === '1/2');
      await page.keyboard.press('ArrowRight');
      await page.waitForFunction(() => document.querySelector('.number')?.textContent === '2/2');
      await page.keyboard.press('k');
      await page.keyboard.press('e');
      await page.waitForSelector('.edit');
      await page.keyboard.press('Escape');
      await page.waitForFunction(() => !document.querySelector('.edit'));
      await page.keyboard.press('?');
      await page.waitForSelector('dialog[open] kbd');
      await page.keyboard.press('Escape');
      await page.waitForFunction(() => !document.querySelector('dialog'));
      await page.keyboard.press('/');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
      await page.$eval('#search', (one) => one.blur());
      await page.keyboard.press('n');
      await page.waitForFunction(() => document.querySelectorAll('#messages > li').length === 0);
      await page.$eval('#prompt', (one) => one.blur());
      await page.keyboard.press(']');
      all = await settled(page, 2);
      assert.equal(all[0].text, 'n?/jk[]');
      await page.evaluate(() => preferences.set({ keys: false }));
      await page.$eval('#prompt', (one) => one.blur());
      await page.keyboard.press('n');
      assert.equal((await messages(page)).length, 2);
    });
  });

  test("Enter or Ctrl+Enter sends, as set; an input method's Enter never does", async () => {
    await script(reply('answer'), async (page, server) => {
      await page.type('#prompt', 'one');
      await page.keyboard.down('Shift');
      await page.keyboard.press('Enter');
      await page.keyboard.up('Shift');
      await page.keyboard.type('two');
      await page.$eval('#prompt', (one) =>
        one.dispatchEvent(
          new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }),
        ),
      );
      assert.equal((await messages(page)).length, 0);
      await page.keyboard.press('Enter');
      await settled(page, 2);
      assert.equal(server.bodies[0].messages[0].content, 'one\ntwo');
      await page.click('#preferences');
      await page.waitForSelector('dialog[open]');
      await page.evaluate(() => {
        const field = [...document.querySelectorAll('dialog label')]
          .find((one) => one.innerText.startsWith('Send with'))
          .querySelector('select');
        field.value = 'ctrl';
        field.dispatchEvent(new Event('change'));
      });
      await page.keyboard.press('Escape');
      await page.waitForFunction(() => !document.querySelector('dialog'));
      await page.type('#prompt', 'three');
      await page.keyboard.press('Enter');
      await page.keyboard.type('four');
      assert.equal((await messages(page)).length, 2);
      await page.keyboard.down('Control');
      await page.keyboard.press('Enter');
      await page.keyboard.up('Control');
      await settled(page, 4);
      assert.equal(server.bodies[1].messages[2].content, 'three\nfour');
    });
  });

  test('Tab reaches every button, and each has a name and a ring', async () => {
    await script(reply('answer'), async (page) => {
      await say(page, 'question');
      await settled(page, 2);
      const count = await page.evaluate(() => {
        document.activeElement.blur();
        return [...document.querySelectorAll('button, a[href], select, textarea, input')].filter(
          (one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled && one.tabIndex >= 0,
        ).length;
      });
      const seen = new Set();
      for (let i = 0; i < count + 1; i++) {
        await page.keyboard.press('Tab');
        const found = await page.evaluate(() => {
          const one = document.activeElement;
          if (one === document.body) return null;
          one.dataset.at ??= String(document.querySelectorAll('[data-at]').length);
          const style = getComputedStyle(one),
            box = getComputedStyle(one.closest('#composer') ?? one);
          const name = one.getAttribute('aria-label') ?? one.labels?.[0]?.textContent ?? one.textContent;
          return {
            at: one.dataset.at,
            name: name.trim(),
            ring:
              style.outlineStyle !== 'none' ||
              (one.id === 'prompt' && box.borderColor === getComputedStyle(document.querySelector('.mark')).color),
          };
        });
        if (found === null) continue;
        assert.ok(found.name, `a name: ${JSON.stringify(found)}`);
        assert.ok(found.ring, `a ring: ${JSON.stringify(found)}`);
        seen.add(found.at);
      }
      assert.ok(seen.size >= count, `${seen.size} of ${count} reached`);
    });
  });
});

describe('narrow windows and colours', () => {
  const wide = [
    `# ${'Heading'.repeat(20)}`,
    'x'.repeat(400),
    `| ${'column | '.repeat(20)}\n|${'---|'.repeat(20)}\n| ${'cell | '.repeat(20)}`,
    `\`\`\`\n${'code '.repeat(80)}\n\`\`\`\n`,
  ].join('\n\n');
  test('at 360 pixels nothing is cut off sideways, and the list comes and goes', async () => {
    await script(
      reply(wide),
      async (page) => {
        const fits = async (what) =>
          assert.deepEqual(
            await page.evaluate(() => {
              const wrong = [
                ...document.querySelectorAll(
                  '#messages > li, #composer, .bar > *, dialog, dialog *, #side.open, #side.open button',
                ),
              ].filter(
                (one) =>
                  one.checkVisibility() &&
                  (one.getBoundingClientRect().right > innerWidth + 1 || one.getBoundingClientRect().left < -1),
              );
              // What is wider than its box would be clipped by it.
              const cut = [...document.querySelectorAll('#messages .text, #messages .tools, #messages .text > *')]
                .filter(
                  (one) =>
                    one.checkVisibility() &&
                    one.scrollWidth > one.clientWidth + 1 &&
                    getComputedStyle(one).overflowX !== 'auto',
                )
                .map((one) => one.outerHTML.slice(0, 80));
              return [
                document.documentElement.scrollWidth <= innerWidth,
                document.querySelector('#scroll').scrollWidth <= document.querySelector('#scroll').clientWidth,
                wrong.map((one) => one.outerHTML.slice(0, 80)),
                cut,
              ];
            }),
            [true, true, [], []],
            what,
          );
        await say(page, 'y'.repeat(300));
        await settled(page, 2);
        await fits('messages');
        for (const id of ['settings']) {
          await page.click(`#${id}`);
          await page.waitForSelector('dialog[open]');
          await fits(id);
          await page.keyboard.press('Escape');
          await page.waitForFunction(() => !document.querySelector('dialog'));
        }
        assert.equal(await page.$eval('#side', (one) => one.checkVisibility({ visibilityProperty: true })), false);
        await page.click('#chat-bar .narrow');
        await page.waitForFunction(() => document.querySelector('#side').getBoundingClientRect().left === 0);
        await fits('list');
        assert.equal(
          await page.evaluate(
            () =>
              document.querySelector('#side').contains(document.activeElement) && document.querySelector('#rest').inert,
          ),
          true,
        );
        await page.keyboard.press('Escape');
        await page.waitForFunction(
          () => !document.querySelector('#side').checkVisibility({ visibilityProperty: true }),
        );
        assert.equal(await page.evaluate(() => document.activeElement.closest('#chat-bar') !== null), true);
      },
      { viewport: { width: 360, height: 700 } },
    );
  });

  test('colours follow the system until somebody chooses', async () => {
    await script(reply('answer'), async (page) => {
      const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = await background();
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
      const dark = await background();
      assert.notEqual(dark, light);
      await page.click('#theme'); // light
      assert.equal(await background(), light);
      await page.reload();
      await page.waitForSelector('#theme');
      assert.equal(await background(), light);
      await page.click('#theme'); // dark
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
      assert.equal(await background(), dark);
    });
  });
});

describe('what is said and copied', () => {
  test('an answer is spoken once, whole', async () => {
    let open;
    await script(
      (body, response) => {
        open = begin(response);
        open.write(delta({ content: 'one ' }));
      },
      async (page) => {
        await page.evaluate(() => {
          window.spoken = [];
          new MutationObserver(() => {
            const text = document.querySelector('#announcer').textContent;
            if (text) window.spoken.push(text);
          }).observe(document.querySelector('#announcer'), { childList: true, characterData: true, subtree: true });
        });
        await say(page, 'question');
        await page.waitForFunction(() => /one/.test(document.querySelector('#messages').innerText));
        assert.equal(await page.$eval('.message.running article', (one) => one.getAttribute('aria-busy')), 'true');
        open.write(delta({ content: 'two ' }));
        await page.waitForFunction(() => /two/.test(document.querySelector('#messages').innerText));
        assert.deepEqual(await page.evaluate(() => window.spoken), []);
        open.end(delta({ content: 'three' }) + finish());
        await settled(page, 2);
        await page.waitForFunction(() => window.spoken.length > 0);
        assert.deepEqual(await page.evaluate(() => window.spoken), ['one two three']);
        assert.equal(await page.$$eval('#messages [aria-live], #messages[aria-live]', (all) => all.length), 0);
      },
    );
  });

  test('a message is copied as it was written, and so is its code', async () => {
    const written = '**bold** <b>\n\n```c\nint main(void);\n```\n';
    await script(reply(written), async (page, server, tab) => {
      await tab.context.overridePermissions(`http://127.0.0.1:${server.port}`, [
        'clipboard-read',
        'clipboard-write',
        'clipboard-sanitized-write',
      ]);
      await say(page, 'question');
      await settled(page, 2);
      await page.bringToFront();
      await press(page, 1, 'Copy message');
      await page.waitForFunction(() => document.querySelector('#announcer').textContent === 'Copied');
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), written);
      await page.$eval('#announcer', (one) => {
        one.textContent = '';
      });
      await page.click('.md-copy');
      await page.waitForFunction(() => document.querySelector('#announcer').textContent === 'Copied');
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'int main(void);\n');
    });
  });
});

test('nothing that others wrote runs or becomes an element', async () => {
  const harm =
    '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script><svg onload="window.harmed=1">' +
    '<iframe srcdoc="<script>parent.harmed=1</script>"></iframe>' +
    '<a href="javascript:window.harmed=1">x</a>';
  const markdown = `${harm}\n\n[link](javascript:window.harmed=1) [data](data:text/html,<script>1</script>)
[good](https://example.com/) ![i](https://example.com/i.png)\n\n\`\`\`${harm}\n${harm}\n\`\`\``;
  await script(
    (body, response, request, n) => {
      if (n === 2) {
        response.writeHead(400, { 'content-type': 'application/json' });
        response.end(JSON.stringify({ error: { message: harm } }));
        return;
      }
      begin(response);
      response.write(delta({ reasoning_content: markdown }, { model: harm }));
      response.write(delta({ content: markdown }));
      response.write(delta({ tool_calls: [{ index: 0, id: harm, function: { name: harm, arguments: harm } }] }));
      response.end(finish(harm));
    },
    async (page, server) => {
      await page.evaluate(() => {
        window.violations = [];
        addEventListener('securitypolicyviolation', (event) => window.violations.push(event.violatedDirective));
      });
      await page.evaluate((name) => composer.take([new File([name], `${name}.txt`)]), harm);
      await say(page, harm);
      await settled(page, 2);
      await page.evaluate(() =>
        document.querySelectorAll('details').forEach((one) => {
          one.open = true;
        }),
      );
      await say(page, 'next');
      const all = await settled(page, 4);
      assert.equal(all[3].note, harm);
      await page.evaluate(
        (text) => main.importText(text),
        JSON.stringify({
          format: 'sluice conversations',
          version: 1,
          conversations: [
            {
              title: harm,
              system: harm,
              model: harm,
              messages: [
                { id: harm, parent: null, role: 'user', content: markdown, files: [{ name: harm, text: harm }] },
                {
                  id: '__proto__',
                  parent: harm,
                  role: 'assistant',
                  model: harm,
                  content: markdown,
                  state: 'failed',
                  error: harm,
                  finish: harm,
                },
              ],
              chosen: { __proto__: harm, first: harm },
            },
          ],
        }),
      );
      await page.evaluate((text) => main.importText(text), `{"format": ${JSON.stringify(harm)}}`);
      await page.waitForFunction(() => document.querySelectorAll('#list a').length === 2);
      await page.evaluate(() => {
        [...document.querySelectorAll('#list a')].find((one) => !one.hasAttribute('aria-current')).click();
      });
      await settled(page, 2);
      const found = await page.evaluate(() => ({
        harmed: window.harmed !== undefined,
        violations: window.violations,
        elements: [...document.body.querySelectorAll('img, iframe, object, embed, form, body script ~ script')].length,
        scripts: document.querySelectorAll('script').length,
        links: [...document.querySelectorAll('#messages a')].map((one) => [one.protocol, one.rel]),
        handlers: [...document.querySelectorAll('*')].filter((one) =>
          [...one.attributes].some(({ name }) => name.startsWith('on') || name === 'srcdoc'),
        ).length,
      }));
      assert.deepEqual(
        { ...found, links: [] },
        { harmed: false, violations: [], elements: 0, scripts: 1, links: [], handlers: 0 },
      );
      for (const [protocol, rel] of found.links) {
        assert.match(protocol, /^(https?|mailto):$/);
        assert.equal(rel, 'noopener noreferrer');
      }
    },
    { models: [harm, 'b'] },
  );
});
