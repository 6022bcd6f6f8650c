// Pictures of every page, wide and narrow, light and dark: `npm run screenshots -- FOLDER [STATE]`, from a built console.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { BrowserContextOptions, Page } from 'playwright-core';
import { startMock, stateNamed } from '../mock/server';
import { chromiumPath, launch } from './browser';

const pages = ['/', '/modules', '/modules/voter?procedure=vote', '/tables', '/tables/votes', '/log', '/log/4312'];
const shapes: { name: string; options: BrowserContextOptions }[] = [
  { name: 'wide', options: { viewport: { width: 1280, height: 800 } } },
  { name: 'narrow', options: { viewport: { width: 390, height: 844 } } },
];

export async function main([folder = 'screenshots', state = 'ready']: string[]): Promise<void> {
  const path = chromiumPath();
  if (path === null) throw new Error('no Chromium found: set CHROMIUM to its path');
  mkdirSync(folder, { recursive: true });
  const mock = await startMock({ port: 0, state: stateNamed(state) });
  const browser = await launch(path);
  try {
    for (const { name, options } of shapes) {
      for (const colorScheme of ['light', 'dark'] satisfies BrowserContextOptions['colorScheme'][]) {
        const context = await browser.newContext({ ...options, colorScheme });
        const page = await context.newPage();
        for (const at of pages)
          await picture(page, `${mock.url}/console/#${at}`, join(folder, fileOf(at, name, colorScheme)));
        await context.close();
      }
    }
  } finally {
    await browser.close();
    await mock.close();
  }
}

async function picture(page: Page, url: string, path: string): Promise<void> {
  await page.goto(url);
  await page.waitForTimeout(url.endsWith('#/') ? 5000 : 700);
  await page.screenshot({ path, fullPage: true });
}

function fileOf(at: string, shape: string, colours: string): string {
  const name = at === '/' ? 'overview' : at.slice(1).replaceAll(/[^a-z0-9]+/g, '-');
  return `${name}-${shape}-${colours}.png`;
}
