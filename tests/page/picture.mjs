// Draws docs/figures/page.png: a conversation with the built-in model.
//
//   node tests/page/picture.mjs --modules build/release/tests/page/packages [--out FILE]
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { closeBrowser, option, press, say, settled, start, visit } from './browser.mjs';

const out = option('out', path.join(path.dirname(fileURLToPath(import.meta.url)), '../../docs/figures/page.png'));
const server = await start({});
try {
  const tab = await visit(server, { viewport: { width: 1120, height: 640 } }),
    { page } = tab;
  await page.evaluate(() => preferences.set({ settings: { temperature: 0 } }));
  const ask = async (...questions) => {
    await page.click('#new');
    await page.waitForFunction(() => document.querySelectorAll('#messages > li').length === 0);
    await page.evaluate(() => conversation.change({ settings: { temperature: 0 } }));
    for (const [i, question] of questions.entries()) {
      await say(page, question);
      await settled(page, 2 * i + 2);
    }
  };
  await ask('What is 123+456?');
  await ask('Tell me a story about a fox.');
  await ask('What is sluice?', 'What does the option --chunk do?');
  await press(page, 3, 'Another answer');
  await settled(page, 4);
  await page.focus('#prompt');
  await new Promise((done) => setTimeout(done, 500));
  await page.screenshot({ path: out });
  await tab.close();
} finally {
  await closeBrowser();
  await server.stop();
}
