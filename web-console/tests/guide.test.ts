// The guide: every page of the docs for users as HTML, its links, and its search in a browser.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { guideOf, slugOf } from '../guide/pages';
import { chromiumPath } from './browser';
import { openBrowser } from './mocks';
import { overflow, picture, violations, visit } from './visit';

const guide = guideOf((path) => readFileSync(join('../docs', path), 'utf8'));
const path = chromiumPath();

test('the guide has a page for each page of the index but those for maintainers', () => {
  const paths = guide.pages.map(({ path }) => path);
  expect(paths).toEqual(expect.arrayContaining(['index.html', 'operating.html', 'guide/index.html', 'guide/types.html']));
  expect(paths).not.toContain('ARCHITECTURE.html');
  expect(guide.files).toContain('reprise.toml');
});

test('every link of the guide leads to a page, a heading or a file of it', () => {
  const pages = new Map(guide.pages.map(({ path, html }) => [path, html]));
  const wrong: string[] = [];
  for (const { path, html } of guide.pages) {
    for (const [, href = ''] of html.matchAll(/(?:href|src)="([^"]*)"/g)) {
      if (/^[a-z]+:/.test(href)) continue;
      const { pathname, hash } = new URL(href.replaceAll('&amp;', '&'), `http://guide/docs/guide/${path}`);
      const to = /^\/docs\/guide\/(.*)$/.exec(pathname)?.[1];
      // Beside the guide lie the console, the API and its reader.
      if (to === undefined || guide.files.includes(to) || /^(guide\.css|search\.js)$/.test(to)) continue;
      const isThere = hash === '' ? pages.has(to) : pages.get(to)?.includes(`id="${decodeURIComponent(hash.slice(1))}"`);
      if (isThere !== true) wrong.push(`${path}: ${href}`);
    }
  }
  expect(wrong).toEqual([]);
});

test('sections of the search are found by their words, without marks', () => {
  const found = guide.sections.find(({ href }) => href.startsWith('guide/first-module.html#'));
  expect(found?.page).toBe('A first module');
  expect(guide.sections.filter(({ text }) => /```|\]\(|<!--/.test(text))).toEqual([]);
  expect(slugOf('What `tidy` checks (ratchets)')).toBe('what-tidy-checks-ratchets');
});

test('examples are shown without the lines that only their test needs', () => {
  const read = (path: string) =>
    path === 'README.md'
      ? '# All\n\n## Write procedures\n\n| [A](a.md) |\n\n## Change it\n\n| [B](b.md) |\n'
      : '# A <b>\n\n```rust\n# use x;\n#[table]\nstruct A;\n```\n\n[B](b.md) [C](../c.rs) <!-- run -->\n';
  const { pages } = guideOf(read);
  expect(pages.map(({ path }) => path)).toEqual(['index.html', 'a.html']);
  const html = pages[1]?.html ?? '';
  expect(html).toContain('<pre tabindex="0"><code>#[table]\nstruct A;</code></pre>');
  expect(html).toContain('<p>B C ');
  expect(html).not.toContain('run --&gt;');
});

describe.skipIf(path === null)('the guide in a browser', () => {
  const { browser, mocks } = openBrowser(path);

  test('its search leads to the section that has the words', async () => {
    const mock = await mocks().start('ready');
    const { page, complaints, close } = await visit(browser());
    await page.goto(`${mock.url}/below/docs/guide/`);
    await page.getByRole('link', { name: 'Operating' }).first().click();
    await page.getByRole('heading', { level: 1, name: 'Operating' }).waitFor();
    await picture(page, 'guide');
    await page.getByRole('searchbox').fill('idempotency key scope');
    const results = page.getByRole('region', { name: 'Search results' });
    await results.getByRole('link').first().waitFor();
    expect(await results.locator('mark').first().textContent()).toMatch(/idempotency|key|scope/i);
    expect(await violations(page)).toEqual([]);
    await picture(page, 'guide-search');
    await page.getByRole('searchbox').fill('savepoint');
    await results.getByRole('link', { name: /savepoint/i }).first().click();
    await page.getByRole('heading', { level: 1, name: /savepoints/i }).waitFor();
    await page.getByRole('searchbox').fill('qqqqqq');
    await results.getByText('No page has “qqqqqq”.').waitFor();
    await page.getByRole('searchbox').press('Escape');
    await page.getByRole('article').waitFor();
    expect(complaints).toEqual([]);
    await close();
    await mock.close();
  });

  test('pages fit a narrow window', async () => {
    const mock = await mocks().start('ready');
    const { page, close } = await visit(browser(), { viewport: { width: 390, height: 844 }, colorScheme: 'dark' });
    for (const at of ['', 'operating.html', 'guide/types.html']) {
      await page.goto(`${mock.url}/docs/guide/${at}`);
      expect(await overflow(page)).toBe(0);
      expect(await violations(page)).toEqual([]);
    }
    await picture(page, 'guide-narrow');
    await close();
    await mock.close();
  });
});
