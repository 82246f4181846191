// Conversations on the page, as a person has them: asking, stopping, editing, versions, keeping, files, keys, models.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { get, SUM } from '../server/support.mjs';
import {
  begin,
  button,
  closeBrowser,
  delta,
  downloaded,
  entry,
  event,
  finish,
  messages,
  press,
  say,
  scripted,
  settled,
  start,
  temporaryFolder,
  until,
  visit,
  wait,
} from './browser.mjs';

let real;
before(async () => {
  real = await start({});
});
after(async () => {
  await closeBrowser();
  await real?.stop();
});

/** A tab on a real server of its own, with a key. */
async function locked(run) {
  const server = await start({ key: 'open-sesame' });
  try {
    const tab = await visit(server);
    await run(tab.page);
    await tab.close();
  } finally {
    await server.stop();
  }
}

/** A tab on a scripted server; both are closed behind `run(page, server, tab)`. */
async function script(answer, run, { models, ...how } = {}) {
  const server = await scripted(real, answer, models);
  const tab = await visit(server, how);
  try {
    await run(tab.page, server, tab);
  } finally {
    await tab.close();
    await server.stop();
  }
}

/** Answers each request with the next of `texts`, a piece for each word. */
const inTurn =
  (...texts) =>
  (body, response, request, n) => {
    begin(response);
    for (const word of texts[Math.min(n, texts.length) - 1].split(/(?<= )/)) response.write(delta({ content: word }));
    response.end(finish());
  };
const texts = (all) => all.map((one) => (one.note ? `${one.text} [${one.note}]` : one.text));
const sent = (body) => body.messages.map(({ role, content }) => `${role}: ${content}`);

/** The field of a dialog whose label begins so. */
const labelled = (page, label) =>
  page.evaluateHandle(
    (name) =>
      [...document.querySelectorAll('dialog label')]
        .find((one) => one.innerText.startsWith(name))
        .querySelector('input, select, textarea'),
    label,
  );

/** Opens the settings of the conversation, fills fields by their labels, and saves. */
async function settings(page, values) {
  await page.click('#settings');
  await page.waitForSelector('dialog[open]');
  for (const [label, value] of Object.entries(values)) {
    const field = await labelled(page, label);
    if (await field.evaluate((one) => one.tagName === 'SELECT')) {
      await field.evaluate((one, wanted) => {
        one.value = wanted;
      }, value);
    } else {
      await field.click({ count: 3 });
      await field.type(value);
    }
  }
  await page.click('dialog .accent');
  await page.waitForFunction(() => !document.querySelector('dialog'));
}

describe('with the built-in model', () => {
  test('a question is answered, counted, titled and kept', async () => {
    const tab = await visit(real),
      { page } = tab;
    await page.waitForFunction(() => document.querySelector('#model').value === 'mini');
    await settings(page, { Temperature: '0' });
    await say(page, SUM.question);
    let all = await settled(page, 2);
    assert.deepEqual(texts(all), [SUM.question, SUM.answer]);
    assert.match(all[1].stats, /^[\d,.]+ tokens\/s · first after [\d.]+ s · \d+ tokens · prompt \d+$/);
    await say(page, 'What does the option --chunk do?');
    all = await settled(page, 4);
    // The tokens of the first turn were read once, by what the server says elsewhere too.
    const reused = Number(/([\d,]+) reused/.exec(all[3].stats)[1]);
    const again = await get(real, '/v1/chat/completions', {
      messages: [
        { role: 'user', content: SUM.question },
        { role: 'assistant', content: SUM.answer },
        { role: 'user', content: 'x' },
      ],
      max_tokens: 1,
    });
    assert.ok(reused > 10 && reused < again.usage.prompt_tokens + 30, `${reused} reused`);
    assert.equal(await page.title(), `${SUM.question} – sluice`);
    assert.equal(await page.$eval('#list a', (one) => one.textContent), SUM.question);
    const address = page.url();
    await page.reload();
    assert.deepEqual(texts(await settled(page, 4)), texts(all));
    assert.equal(page.url(), address);
    // The settings are the conversation's: the same question gives the same answer.
    await press(page, 1, 'Another answer');
    assert.deepEqual(texts(await settled(page, 2)), [SUM.question, SUM.answer]);
    await tab.close();
  });

  test('an answer that the limit cut goes on to the words that it would have had', async () => {
    const tab = await visit(real),
      { page } = tab;
    await settings(page, { Temperature: '0', 'Most tokens': '4' });
    await say(page, SUM.question);
    let all = await settled(page, 2);
    assert.equal(all[1].note, 'Cut off by the limit of tokens.');
    assert.ok(SUM.answer.startsWith(all[1].text) && all[1].text !== SUM.answer, all[1].text);
    for (let n = 0; n < 8 && all[1].note; n++) {
      await press(page, 1, 'Go on');
      all = await settled(page, 2);
    }
    assert.equal(all[1].text, SUM.answer);
    await tab.close();
  });

  test('stopping reaches the server', async () => {
    const tab = await visit(real),
      { page } = tab;
    await page.evaluate(() => conversation.change({ settings: { temperature: 0, max_tokens: 8000 } }));
    await say(page, `Sort: ${Array.from({ length: 1500 }, (_, i) => (i * 7919) % 1000).join(', ')}`);
    await page.waitForSelector('.message.running');
    await page.keyboard.press('Escape');
    const all = await settled(page, 2);
    assert.equal(all[1].note, 'Stopped.');
    await until('the request to be gone', async () => (await get(real, '/load')).server_load === 0);
    await tab.close();
  });

  test('a server with a key asks for it once, says when it is wrong, and the browser keeps it', () =>
    locked(async (page) => {
      const give = async (key) => {
        await page.waitForSelector('dialog input[type="password"]');
        await page.type('dialog input', key);
        await page.keyboard.press('Enter');
      };
      await give('wrong');
      await page.waitForFunction(() => /does not take the key/.test(document.querySelector('dialog')?.innerText ?? ''));
      await give('open-sesame');
      await page.waitForFunction(() => document.querySelector('#model').value === 'mini');
      await page.reload();
      await page.waitForFunction(() => document.querySelector('#model').value === 'mini');
      assert.equal(await page.$('dialog'), null);
      await say(page, SUM.question);
      assert.equal((await settled(page, 2)).length, 2);
    }));

  test('without the key the page says so, and asks again when it is told to', () =>
    locked(async (page) => {
      await page.waitForSelector('dialog input[type="password"]');
      await page.keyboard.press('Escape');
      await page.waitForFunction(() => /asks for a key/.test(document.querySelector('#notices').innerText));
      await say(page, 'hello');
      assert.match((await settled(page, 2))[1].note, /key/);
      assert.equal(await page.$('dialog'), null);
      await page.click(button('Enter key'));
      await page.waitForSelector('dialog input[type="password"]');
      await page.type('dialog input', 'open-sesame');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelector('#model').value === 'mini');
    }));
});

describe('streams', () => {
  const text = 'Grüße – 日本語 🜁 “quotes”\n\nsecond';
  const bytes = Buffer.from(
    `\ufeff: a comment\r\n\r\nevent: message\r\ndata: ${JSON.stringify({ choices: [{ delta: { role: 'assistant', content: '' } }] })}\r\n\r\n` +
      [...text]
        .map((one, i) => delta({ content: one }).replace(/\n/g, ['\n', '\r\n', '\r'][i % 3]))
        .join(': still here\n\n') +
      `data: {"choices": [],\ndata: "usage": {"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 3}}}\n\nid: 7\nretry: 1\ndata\n\n`.replace(
        'data\n\n',
        '\n',
      ) +
      finish(),
    'utf8',
  );

  test('bytes that are cut anywhere give the same text', async () => {
    await script(
      async (body, response, request, n) => {
        begin(response);
        response.socket.setNoDelay(true);
        const size = [1, 3, 7][n - 1] ?? 50;
        for (let at = 0; at < bytes.length; at += size) {
          response.write(bytes.subarray(at, at + size));
          if (at % 40 === 0) await wait(0);
        }
        response.end();
      },
      async (page) => {
        await say(page, 'first');
        for (let n = 0; n < 3; n++) {
          const all = await settled(page, 2);
          assert.equal(await page.evaluate(() => tree.path(conversation.shown())[1].content), text);
          assert.equal(all[1].note, null);
          assert.match(all[1].stats, /8 tokens · prompt 9, 3 reused$/);
          await press(page, 1, 'Another answer');
        }
        await settled(page, 2);
      },
    );
  });

  // The same parser, against every way to cut its bytes in two.
  test('the parser does not see where its bytes were cut', async () => {
    await script(
      () => {},
      async (page) => {
        const wrong = await page.evaluate(
          (numbers) => {
            const all = Uint8Array.from(numbers);
            const read = (parts) => {
              const found = [],
                events = stream.parser((data, name) => found.push([data, name]));
              for (const part of parts) events.feed(part);
              return JSON.stringify(found);
            };
            const whole = read([all]),
              differ = [];
            for (let at = 0; at <= all.length; at++)
              if (read([all.subarray(0, at), all.subarray(at)]) !== whole) differ.push(at);
            return { differ, count: JSON.parse(whole).length };
          },
          [...bytes],
        );
        assert.deepEqual(wrong, { differ: [], count: [...text].length + 4 });
      },
    );
  });

  test('a connection that breaks leaves what came, and it can go on or be asked again', async () => {
    let broken;
    await script(
      async (body, response, request, n) => {
        begin(response);
        if (n === 1) {
          broken = response;
          const part = Buffer.from(delta({ content: 'The answer ' }) + delta({ content: 'is ü' }), 'utf8');
          response.write(part);
          response.write(Buffer.from('data: {"choices": [{"delta": {"content": "half ü', 'utf8').subarray(0, -1));
        } else if (n === 2) {
          response.end(delta({ content: 'berall.' }) + finish('stop'));
        } else {
          response.end(delta({ content: 'Another.' }) + finish('stop'));
        }
      },
      async (page, server) => {
        await say(page, 'question');
        // A browser gives up what it has not handed on when a connection breaks.
        await page.waitForFunction(() => /is ü/.test(document.querySelector('#messages').innerText));
        broken.socket.end(); // without the last chunk
        let all = await settled(page, 2);
        assert.equal(all[1].text, 'The answer is ü');
        assert.match(all[1].note, /^Incomplete/);
        await page.reload();
        all = await settled(page, 2);
        assert.match(all[1].note, /^Incomplete/);
        await press(page, 1, 'Go on');
        all = await settled(page, 2);
        assert.equal(all[1].text, 'The answer is überall.');
        assert.equal(all[1].note, null);
        assert.equal(server.bodies[1].continue_final_message, true);
        assert.deepEqual(sent(server.bodies[1]), ['user: question', 'assistant: The answer is ü']);
        await press(page, 1, 'Another answer');
        all = await settled(page, 2);
        assert.equal(all[1].text, 'Another.');
        assert.equal(all[1].versions, '2/2');
        assert.equal(server.bodies[2].continue_final_message, undefined);
      },
    );
  });

  test('what is written before the page has what the browser kept is kept too', async () => {
    await script(
      inTurn('answer'),
      async (page) => {
        await page.type('#prompt', 'question');
        await page.waitForSelector('html.ready');
        await page.keyboard.press('Enter');
        assert.equal((await settled(page, 2))[0].text, 'question');
      },
      {
        ready: false,
        // A browser that takes long to open what it kept.
        before: () => {
          const { open } = IDBFactory.prototype;
          IDBFactory.prototype.open = function late(...how) {
            const request = open.apply(this, how);
            return {
              get result() {
                return request.result;
              },
              set onupgradeneeded(what) {
                request.onupgradeneeded = what;
              },
              set onsuccess(what) {
                request.onsuccess = (event) => setTimeout(() => what(event), 1000);
              },
              set onerror(what) {
                request.onerror = what;
              },
            };
          };
        },
      },
    );
  });

  test('an end without [DONE] or a finish reason is no end', async () => {
    await script(
      (body, response) => begin(response).end(delta({ content: 'half' })),
      async (page) => {
        await say(page, 'question');
        const all = await settled(page, 2);
        assert.deepEqual([all[1].text, all[1].note], ['half', 'Incomplete: the connection broke. What came is kept.']);
      },
    );
  });

  test('silence ends as a broken connection', async () => {
    await script(
      (body, response) => begin(response).write(delta({ content: 'half' })),
      async (page) => {
        await page.evaluate(() => {
          stream.timing.patience = 400;
        });
        await say(page, 'question');
        const all = await settled(page, 2);
        assert.deepEqual([all[1].text, all[1].note.slice(0, 10)], ['half', 'Incomplete']);
      },
    );
  });

  test('a page that is closed in the middle keeps what came', async () => {
    await script(
      async (body, response, request, n) => {
        begin(response);
        if (n === 1) response.write(delta({ content: 'began ' }));
        else response.end(delta({ content: 'and ended' }) + finish());
      },
      async (page) => {
        await say(page, 'question');
        await page.waitForFunction(() => /began/.test(document.querySelector('#messages')?.innerText));
        await page.reload();
        const all = await settled(page, 2);
        assert.deepEqual([all[1].text, all[1].note.slice(0, 10)], ['began', 'Incomplete']);
        await press(page, 1, 'Go on');
        assert.equal((await settled(page, 2))[1].text, 'began and ended');
      },
    );
  });

  test('an error inside a stream, an error instead of one, and no server are said', async () => {
    await script(
      (body, response, request, n) => {
        if (n === 1) {
          begin(response).end(
            delta({ content: 'so far' }) +
              event({ error: { message: 'position 12: logits are not finite <b>x</b>', type: 'server_error' } }),
          );
        } else if (n === 2) {
          response.writeHead(429, { 'content-type': 'application/json' });
          response.end(JSON.stringify({ error: { message: 'the queue is full', type: 'server_error' } }));
        } else if (n === 3) {
          response.writeHead(502, { 'content-type': 'text/html' });
          response.end('<h1>Bad gateway</h1>');
        } else {
          response.destroy();
        }
      },
      async (page) => {
        await say(page, 'question');
        const notes = [];
        for (let n = 0; n < 4; n++) {
          const all = await settled(page, 2);
          notes.push(all[1].note);
          if (n === 0) assert.equal(all[1].text, 'so far');
          await press(page, 1, 'Again');
        }
        await settled(page, 2);
        assert.deepEqual(notes, [
          'position 12: logits are not finite <b>x</b>',
          'the queue is full',
          'The server answered 502 Bad Gateway',
          'The server cannot be reached',
        ]);
      },
    );
  });

  test('an answer that the limit cut goes on behind what it has', async () => {
    await script(
      (body, response, request, n) =>
        begin(response).end(
          n === 1 ? delta({ content: 'one, two,' }) + finish('length') : delta({ content: ' three' }) + finish('stop'),
        ),
      async (page, server) => {
        await settings(page, { 'Most tokens': '4' });
        await say(page, 'count');
        let all = await settled(page, 2);
        assert.equal(all[1].note, 'Cut off by the limit of tokens.');
        await press(page, 1, 'Go on');
        all = await settled(page, 2);
        assert.deepEqual([all[1].text, all[1].note, all[1].versions], ['one, two, three', null, null]);
        assert.deepEqual(
          server.bodies.map((body) => body.max_tokens),
          [4, 4],
        );
        assert.equal(server.bodies[1].messages.at(-1).content, 'one, two,');
      },
    );
  });

  test('thoughts are folded with their time; calls have a name and arguments', async () => {
    await script(
      async (body, response) => {
        begin(response).write(delta({ reasoning_content: 'First I ' }));
        await wait(300);
        response.write(delta({ reasoning_content: 'think.' }));
        response.write(delta({ content: 'Let me look.' }));
        response.write(
          delta({
            tool_calls: [{ index: 0, id: 'a', type: 'function', function: { name: 'weather', arguments: '{"city":' } }],
          }),
        );
        response.write(
          delta({
            tool_calls: [
              { index: 1, id: 'b', type: 'function', function: { name: 'broken', arguments: '{"x": <img src=x>' } },
            ],
          }),
        );
        response.end(delta({ tool_calls: [{ index: 0, function: { arguments: '"Bern"}' } }] }) + finish('tool_calls'));
      },
      async (page) => {
        await say(page, 'question');
        const [, answer] = await settled(page, 2);
        assert.equal(answer.text, 'Let me look.');
        assert.match(await page.$eval('.thought summary', (one) => one.innerText), /^Thought for (0\.[2-9]\d|[1-9][\d.]*) s$/);
        assert.equal(await page.$eval('.thought', (one) => one.open), false);
        await page.click('.thought summary');
        await page.waitForFunction(() => document.querySelector('.thought-text').innerText.trim() === 'First I think.');
        assert.deepEqual(await page.$$eval('.call code', (all) => all.map((one) => one.textContent)), [
          'weather',
          '{\n  "city": "Bern"\n}',
          'broken',
          '{"x": <img src=x>',
        ]);
      },
    );
  });
});

describe('versions', () => {
  test('editing and asking again lose nothing: arrows lead to every version, and each goes its own way', async () => {
    const answers = ['answer one', 'answer two', 'to the second', 'to the edited', 'later'];
    await script(inTurn(...answers), async (page, server) => {
      await say(page, 'question');
      await settled(page, 2);
      await press(page, 1, 'Another answer');
      assert.deepEqual(texts(await settled(page, 2)), ['question', 'answer two']);
      await say(page, 'follow');
      await settled(page, 4);
      assert.deepEqual(sent(server.bodies[2]), ['user: question', 'assistant: answer two', 'user: follow']);
      // Another question in the place of the first.
      await press(page, 0, 'Edit and send again');
      await page.waitForSelector('.edit');
      await page.keyboard.type(' edited');
      await page.keyboard.down('Control');
      await page.keyboard.press('Enter');
      await page.keyboard.up('Control');
      let all = await settled(page, 2);
      assert.deepEqual(texts(all), ['question edited', 'to the edited']);
      assert.deepEqual(
        all.map((one) => one.versions),
        ['2/2', null],
      );
      assert.deepEqual(sent(server.bodies[3]), ['user: question edited']);
      await press(page, 0, 'Version before');
      all = await settled(page, 4);
      assert.deepEqual(texts(all), ['question', 'answer two', 'follow', 'to the second']);
      assert.deepEqual(
        all.map((one) => one.versions),
        ['1/2', '2/2', null, null],
      );
      await press(page, 1, 'Version before');
      assert.deepEqual(texts(await settled(page, 2)), ['question', 'answer one']);
      await page.reload();
      assert.deepEqual(texts(await settled(page, 2)), ['question', 'answer one']);
      await say(page, 'elsewhere');
      await settled(page, 4);
      assert.deepEqual(sent(server.bodies[4]), ['user: question', 'assistant: answer one', 'user: elsewhere']);
      await press(page, 0, 'Version after');
      assert.deepEqual(texts(await settled(page, 2)), ['question edited', 'to the edited']);
    });
  });

  test('while an answer comes no other is asked for, and what was edited meanwhile stays', async () => {
    let open;
    await script(
      (body, response) => {
        open = begin(response);
        open.write(delta({ content: 'one ' }));
      },
      async (page, server) => {
        await say(page, 'question');
        await page.waitForFunction(() => /one/.test(document.querySelector('#messages').innerText));
        await press(page, 0, 'Edit and send again');
        await page.waitForSelector('.edit');
        await page.keyboard.type(' changed');
        const save = () => page.evaluate(() => document.querySelector('.editor .accent').click());
        await save();
        await page.waitForFunction(() => /still coming/.test(document.querySelector('#notices').innerText));
        assert.equal(await page.$eval('.edit', (one) => one.value), 'question changed');
        await page.type('#prompt', 'next');
        await page.keyboard.press('Enter');
        assert.equal(await page.$eval('#prompt', (one) => one.value), 'next');
        assert.equal(server.bodies.length, 1);
        open.end(finish());
        await settled(page, 2);
        await save();
        await page.waitForFunction(() => document.querySelector('.number')?.textContent === '2/2');
        await until('the second question', () => server.bodies.length === 2);
        assert.deepEqual(sent(server.bodies[1]), ['user: question changed']);
        open.end(finish());
        await settled(page, 2);
      },
    );
  });

  test('an answer that was edited is a version that conversations go on from', async () => {
    await script(inTurn('one', 'two'), async (page, server) => {
      await say(page, 'question');
      await settled(page, 2);
      await press(page, 1, 'Edit answer');
      await page.waitForSelector('.edit');
      await page.keyboard.type(' and more');
      await page.evaluate(() => document.querySelector('.editor .accent').click());
      const all = await settled(page, 2);
      assert.deepEqual([all[1].text, all[1].versions], ['one and more', '2/2']);
      assert.equal(server.bodies.length, 1);
      await say(page, 'next');
      await settled(page, 4);
      assert.deepEqual(sent(server.bodies[1]), ['user: question', 'assistant: one and more', 'user: next']);
    });
  });
});

describe('what is sent', () => {
  test("settings are the conversation's, and what is empty is not sent", async () => {
    await script(inTurn('a', 'b', 'c'), async (page, server) => {
      await say(page, 'plain');
      await settled(page, 2);
      assert.deepEqual(Object.keys(server.bodies[0]).sort(), ['messages', 'stream', 'stream_options']);
      assert.deepEqual(server.bodies[0].stream_options, { include_usage: true });
      await settings(page, {
        'System prompt': 'Be brief.',
        Temperature: '0,5',
        'Top p': '0.9',
        'Top k': '40',
        'Min p': '0.05',
        'Most tokens': '50',
        Seed: '7',
        Thinking: 'off',
      });
      await say(page, 'set');
      await settled(page, 4);
      const { messages: list, stream, stream_options, ...fields } = server.bodies[1];
      assert.deepEqual(fields, {
        temperature: 0.5,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        max_tokens: 50,
        seed: 7,
        chat_template_kwargs: { enable_thinking: false },
      });
      assert.deepEqual(list[0], { role: 'system', content: 'Be brief.' });
      await page.click('#new');
      await page.waitForFunction(() => document.querySelectorAll('#messages > li').length === 0);
      await settings(page, { Thinking: 'high' });
      await say(page, 'new');
      await settled(page, 2);
      assert.deepEqual(server.bodies[2].messages, [{ role: 'user', content: 'new' }]);
      assert.equal(server.bodies[2].reasoning_effort, 'high');
      assert.equal(server.bodies[2].temperature, undefined);
    });
  });

  test('a setting out of its range stays where it can be mended', async () => {
    await script(inTurn('a'), async (page) => {
      await page.click('#settings');
      await page.waitForSelector('dialog[open]');
      const field = await labelled(page, 'Top p');
      await field.type('1.5');
      await page.click('dialog .accent');
      assert.match(await page.$eval('dialog [role="alert"]', (one) => one.innerText), /^Top p must be 0 to 1/);
      assert.equal(await field.evaluate((one) => one.getAttribute('aria-invalid')), 'true');
      await page.keyboard.press('Escape');
      await page.waitForFunction(() => !document.querySelector('dialog'));
      assert.equal(await page.evaluate(() => document.activeElement.id), 'settings');
    });
  });

  test('the model that is chosen answers', async () => {
    await script(
      inTurn('a', 'b'),
      async (page, server) => {
        await page.waitForFunction(() => document.querySelectorAll('#model option').length === 2);
        await page.select('#model', 'large');
        await say(page, 'question');
        await settled(page, 2);
        assert.equal(server.bodies[0].model, 'large');
        await page.reload();
        await page.waitForFunction(() => document.querySelector('#model').value === 'large');
      },
      { models: ['small', 'large'] },
    );
  });

  test('text files are named parts of a message; others are refused by a line', async () => {
    const folder = temporaryFolder();
    const write = (name, data) => {
      fs.writeFileSync(path.join(folder, name), data);
      return path.join(folder, name);
    };
    const good = write('notes.md', 'a ``` fence\nend\n');
    await script(inTurn('read'), async (page, server) => {
      const input = await page.$('#composer input[type="file"]');
      await input.uploadFile(
        good,
        write('picture.png', Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 0xff])),
        write('nul.txt', 'a\0b'),
        write('large.txt', 'x'.repeat((1 << 20) + 1)),
      );
      await page.waitForSelector('#files li');
      assert.equal(await page.$$eval('#files li', (all) => all.length), 1);
      const notice = await page.$eval('#notices', (one) => one.innerText);
      for (const part of ['picture.png is no text', 'nul.txt is binary', 'large.txt is larger than 1 MB'])
        assert.ok(notice.includes(part), notice);
      // Dropped on the conversation.
      await page.evaluate(() => {
        const data = new DataTransfer();
        data.items.add(
          new File(['<script>alert(1)</script>'], '<img src=x onerror=alert(1)>.html', { type: 'text/html' }),
        );
        document
          .querySelector('#scroll')
          .dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
      });
      await page.waitForFunction(() => document.querySelectorAll('#files li').length === 2);
      // Pasted into the field.
      await page.evaluate(() => {
        const data = new DataTransfer();
        data.items.add(new File(['pasted text'], 'pasted.txt'));
        document
          .querySelector('#prompt')
          .dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
      });
      await page.waitForFunction(() => document.querySelectorAll('#files li').length === 3);
      await page.click(button('Remove pasted.txt'));
      await say(page, 'read these');
      await settled(page, 2);
      assert.equal(
        server.bodies[0].messages[0].content,
        'read these\n\nnotes.md:\n````\na ``` fence\nend\n````\n\n' +
          '<img src=x onerror=alert(1)>.html:\n```\n<script>alert(1)</script>\n```',
      );
      assert.equal(await page.$$eval('#messages img, #messages script', (all) => all.length), 0);
      assert.equal(await page.$$eval('.file', (all) => all.length), 2);
    });
  });
});

describe('keeping', () => {
  test('what is exported comes back whole, beside what is there', async () => {
    await script(inTurn('one', 'two', 'three'), async (page) => {
      await settings(page, { 'System prompt': 'Be kind.', Seed: '3' });
      await say(page, 'question');
      await settled(page, 2);
      await press(page, 1, 'Another answer');
      await settled(page, 2);
      await say(page, 'more');
      await settled(page, 4);
      await press(page, 1, 'Version before');
      await settled(page, 2);
      const file = await downloaded(page, async () => {
        await page.click('#more');
        await entry(page, 'Export as JSON');
      });
      assert.equal(file.name, 'sluice-question.json');
      const [saved] = JSON.parse(file.text).conversations;
      assert.deepEqual([saved.messages.length, saved.system, saved.settings.seed], [5, 'Be kind.', 3]);
      const markdown = await downloaded(page, async () => {
        await page.click('#more');
        await entry(page, 'Export as Markdown');
      });
      assert.equal(markdown.text, '# question\n\n## System\n\nBe kind.\n\n## You\n\nquestion\n\n## scripted\n\none\n');
      const folder = temporaryFolder();
      fs.writeFileSync(path.join(folder, 'in.json'), file.text);
      await (await page.$('#import')).uploadFile(path.join(folder, 'in.json'));
      await page.waitForFunction(() => document.querySelectorAll('#list a').length === 2);
      await page.evaluate(() => {
        location.hash = [...document.querySelectorAll('#list a')].find((one) => !one.hasAttribute('aria-current')).hash;
      });
      await page.waitForFunction(() => location.hash.endsWith(conversation.shown().record.id));
      const all = await settled(page, 2);
      assert.deepEqual(
        all.map((one) => [one.text, one.versions]),
        [
          ['question', null],
          ['one', '1/2'],
        ],
      );
      await press(page, 1, 'Version after');
      assert.deepEqual(texts(await settled(page, 4)), ['question', 'two', 'more', 'three']);
    });
  });

  test('a file that is wrong is refused by the name of what is wrong, and changes nothing', async () => {
    const message = { id: 'a', parent: null, role: 'user', content: 'x', created: 1 };
    const one = { title: 't', messages: [message] };
    const whole = (conversation) => ({
      format: 'sluice conversations',
      version: 1,
      conversations: [one, conversation],
    });
    const cases = [
      ['{"format":', /^The file is not JSON/],
      ['[]', /^The file must be an object, not an array/],
      [{ format: 'other' }, /^format must be/],
      [{ ...whole(one), version: 2 }, /^version must be 1/],
      [{ ...whole(one), conversations: {} }, /^file\.conversations must be an array, not an object/],
      [whole(null), /^conversations\[1\] must be an object, not null/],
      [whole({ ...one, title: 5 }), /^conversations\[1\]\.title must be a text, not a number/],
      [
        whole({ ...one, settings: { temperature: 'hot' } }),
        /^conversations\[1\]\.settings\.temperature must be a number/,
      ],
      [whole({ ...one, settings: { thinking: '__proto__' } }), /settings\.thinking must be one of/],
      [
        whole({ ...one, messages: [{ ...message, role: 'robot' }] }),
        /messages\[0\]\.role must be "user" or "assistant"/,
      ],
      [
        whole({ ...one, messages: [{ ...message, parent: 'a' }] }),
        /messages\[0\]\.parent must be the id of a message before it/,
      ],
      [whole({ ...one, messages: [message, message] }), /messages\[1\]\.id is that of another message/],
      [
        whole({ ...one, messages: [{ ...message, files: [{ name: 'x' }] }] }),
        /messages\[0\]\.files\[0\]\.text must be a text, not absent/,
      ],
      [
        whole({ ...one, messages: [{ ...message, role: 'assistant', calls: [{ name: [], arguments: '' }] }] }),
        /calls\[0\]\.name must be a text, not an array/,
      ],
      [whole({ ...one, messages: [{ ...message, role: 'assistant', state: 'running' }] }), /\.state must be one of/],
      [
        whole({ ...one, messages: [{ ...message, role: 'assistant', stats: { rate: -1 } }] }),
        /stats\.rate must be a number from 0 on/,
      ],
    ];
    await script(inTurn('one'), async (page) => {
      for (const [file, rule] of cases) {
        await page.evaluate((text) => main.importText(text), typeof file === 'string' ? file : JSON.stringify(file));
        const said = await page.$eval('[data-notice="import"] span', (note) => note.innerText);
        assert.match(said.replace(/^Not imported: /, ''), rule);
      }
      assert.equal(await page.evaluate(async () => (await store.conversations()).length), 0);
      assert.equal(await page.$$eval('#list a', (all) => all.length), 0);
    });
  });

  test('names, search, deleting', async () => {
    await script(inTurn('about herons', 'about otters'), async (page) => {
      await say(page, 'first question');
      await settled(page, 2);
      await page.click('#new');
      await page.waitForFunction(() => document.querySelectorAll('#messages > li').length === 0);
      await say(page, 'second question');
      await settled(page, 2);
      const titles = () => page.$$eval('#list a', (all) => all.map((one) => one.textContent));
      assert.deepEqual(await titles(), ['second question', 'first question']);
      const search = async (text, count) => {
        await page.$eval('#search', (one) => {
          one.value = '';
        });
        await page.type('#search', text);
        await page.waitForFunction((wanted) => document.querySelectorAll('#list a').length === wanted, {}, count);
      };
      await search('HERONS first', 1);
      assert.deepEqual(await titles(), ['first question']);
      await search('herons otters', 0);
      await search('question', 2);
      await page.click('#more');
      await entry(page, 'Rename');
      await page.waitForSelector('dialog input');
      await page.$eval('dialog input', (one) => {
        one.value = '';
      });
      await page.type('dialog input', 'Rivers <i>');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelector('#title').textContent === 'Rivers <i>');
      await page.reload();
      await settled(page, 2);
      assert.deepEqual(await titles(), ['Rivers <i>', 'first question']);
      await page.click('#more');
      await entry(page, 'Delete');
      await page.waitForSelector('dialog .danger');
      await page.click('dialog .danger');
      await page.waitForFunction(() => document.querySelectorAll('#list a').length === 1);
      assert.deepEqual(await titles(), ['first question']);
      assert.equal(await page.evaluate(async () => (await store.conversations()).length), 1);
      await page.reload();
      await page.waitForSelector('#list a');
      assert.deepEqual(await titles(), ['first question']);
    });
  });

  test('all are exported, and all are deleted when that is meant', async () => {
    await script(inTurn('one', 'two'), async (page) => {
      for (const question of ['first', 'second']) {
        await page.click('#new');
        await page.waitForFunction(() => document.querySelectorAll('#messages > li').length === 0);
        await say(page, question);
        await settled(page, 2);
      }
      const choose = async (label) => {
        await page.click('#preferences');
        await page.waitForSelector('dialog[open]');
        await page.click(`dialog ${button(label)}`);
      };
      const file = await downloaded(page, () => choose('Export all'));
      assert.match(file.name, /^sluice-all-\d{4}-\d\d-\d\d\.json$/);
      const saved = JSON.parse(file.text).conversations;
      assert.deepEqual(
        saved.map((one) => [one.title, one.messages.map((message) => message.content)]),
        [
          ['second', ['second', 'two']],
          ['first', ['first', 'one']],
        ],
      );
      await choose('Delete all');
      await page.waitForFunction(() => /2 conversations cannot/.test(document.querySelector('dialog')?.innerText ?? ''));
      await page.keyboard.press('Escape');
      await page.waitForFunction(() => !document.querySelector('dialog'));
      assert.equal(await page.evaluate(async () => (await store.conversations()).length), 2);
      await choose('Delete all');
      await page.waitForFunction(() => /2 conversations cannot/.test(document.querySelector('dialog')?.innerText ?? ''));
      await page.click('dialog .row .danger');
      await page.waitForFunction(() => document.querySelectorAll('#list a').length === 0);
      assert.equal(await page.evaluate(async () => (await store.conversations()).length), 0);
      assert.equal((await messages(page)).length, 0);
    });
  });

  test('another window of the page sees what changes here', async () => {
    await script(inTurn('one', 'two'), async (page, server, tab) => {
      const second = await visit(server, { context: tab.context });
      await page.bringToFront(); // only the window in front draws
      await say(page, 'question');
      await settled(page, 2);
      await second.page.bringToFront();
      await second.page.waitForSelector('#list a');
      await second.page.click('#list a');
      assert.deepEqual(texts(await settled(second.page, 2)), ['question', 'one']);
      await say(second.page, 'more');
      await settled(second.page, 4);
      await page.bringToFront();
      assert.deepEqual(texts(await settled(page, 4)), ['question', 'one', 'more', 'two']);
      await second.close();
    });
  });

  test('a browser that keeps nothing is told of, and the page works', async () => {
    await script(
      inTurn('one', 'two'),
      async (page) => {
        await page.waitForFunction(() => /keeps nothing/.test(document.querySelector('#notices').innerText));
        await say(page, 'question');
        await settled(page, 2);
        await press(page, 1, 'Another answer');
        assert.deepEqual(texts(await settled(page, 2)), ['question', 'two']);
        assert.equal(await page.$$eval('#list a', (all) => all.length), 1);
      },
      {
        before: () => {
          Object.defineProperty(window, 'indexedDB', {
            get() {
              throw new DOMException('refused', 'SecurityError');
            },
          });
          Object.defineProperty(window, 'localStorage', {
            get() {
              throw new DOMException('refused', 'SecurityError');
            },
          });
        },
      },
    );
  });
});
