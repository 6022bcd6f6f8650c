// Pictures of pages, wide and narrow, light and dark, from a built console:
// `npm run screenshots -- [FOLDER [STATE [PAGE...]]]`, where a page is its address behind the #.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { BrowserContextOptions, Page } from 'playwright-core';
import { startMock, stateNamed } from '../mock/server';
import { chromiumPath, launch } from './browser';

const everyPage = [
  '/',
  '/modules',
  '/modules/voter?procedure=vote',
  '/tables',
  '/tables/votes',
  '/tables/votes?view=schema',
  '/calls',
  '/log',
  '/log/4312',
  '/output',
  '/checkpoints',
  '/backups',
  '/replication',
];
const shapes: { name: string; options: BrowserContextOptions }[] = [
  { name: 'wide', options: { viewport: { width: 1280, height: 800 } } },
  { name: 'narrow', options: { viewport: { width: 390, height: 844 } } },
];

export async function main([folder = 'screenshots', state = 'ready', ...pages]: string[]): Promise<void> {
  const path = chromiumPath();
  if (path === null) throw new Error('no Chromium found: set CHROMIUM to its path');
  mkdirSync(folder, { recursive: true });
  const mock = await startMock({ port: 0, state: stateNamed(state) });
  const browser = await launch(path);
  const wanted = pages.length === 0 ? everyPage : pages;
  try {
    for (const { name, options } of shapes) {
      for (const colorScheme of ['light', 'dark'] satisfies BrowserContextOptions['colorScheme'][]) {
        const context = await browser.newContext({ ...options, colorScheme });
        const page = await context.newPage();
        for (const at of wanted) {
          await picture(page, `${mock.url}/console/#${at}`, join(folder, fileOf(at, name, colorScheme)));
        }
        await context.close();
      }
    }
  } finally {
    await browser.close();
    await mock.close();
  }
}

/** The overview is left running for a while, so that its charts have something to show. */
async function picture(page: Page, url: string, path: string): Promise<void> {
  await page.goto(url);
  await page.waitForTimeout(url.endsWith('#/') ? 5000 : 700);
  await page.screenshot({ path, fullPage: true });
}

function fileOf(at: string, shape: string, colours: string): string {
  const name = at === '/' ? 'overview' : at.slice(1).replaceAll(/[^a-z0-9]+/g, '-');
  return `${name}-${shape}-${colours}.png`;
}
