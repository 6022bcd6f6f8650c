// A page under watch: what it complains of, and what axe-core finds in it.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import type axeCore from 'axe-core';
import type { Browser, BrowserContextOptions, Page } from 'playwright-core';

declare global {
  var axe: typeof axeCore;
}

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export type Visit = { page: Page; complaints: string[]; close: () => Promise<void> };

export async function visit(browser: Browser, options: BrowserContextOptions = {}): Promise<Visit> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000); // a wait that ends only by a mistake, also where other pages are busy
  const complaints: string[] = [];
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('requestfailed', (request) => {
    // A page that the operator leaves aborts its own requests.
    const why = request.failure()?.errorText ?? '';
    if (why !== 'net::ERR_ABORTED') complaints.push(`${request.url()}: ${why}`);
  });
  page.on('request', (request) => {
    const { hostname } = new URL(request.url());
    if (!['127.0.0.1', 'localhost', new URL(page.url()).hostname].includes(hostname))
      complaints.push(`asked ${hostname}`);
  });
  return { page, complaints, close: () => context.close() };
}

/** Serious and critical violations, each as one line that names the element. */
export async function violations(page: Page): Promise<string[]> {
  // Evaluated, not added as a script: the page's content security policy would rightly refuse that.
  await page.evaluate(axeSource);
  const { violations: found } = await page.evaluate(() => axe.run());
  return found
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)}`));
}

/** Pixels by which the page is wider than the window. */
export function overflow(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
}

/** Saves a picture of the page, if SCREENSHOTS names a folder. */
export async function picture(page: Page, name: string): Promise<void> {
  const folder = process.env['SCREENSHOTS'] ?? '';
  if (folder === '') return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
}
