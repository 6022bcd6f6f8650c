// Every page shows data, complains of nothing and is accessible: on the mock, or on the server at REPRISE_URL.
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { chromiumPath, launch } from './browser';
import { type Mocks, prepareMocks, realUrl, type Site } from './server';
import { overflow, violations, visit } from './visit';

const path = chromiumPath();
if (path === null) console.warn('No Chromium found (set CHROMIUM to its path): the browser tests are skipped.');

const shapes = [
  { name: 'wide and light', width: 1280, height: 800, colorScheme: 'light' },
  { name: 'narrow and dark', width: 390, height: 844, colorScheme: 'dark' },
] satisfies { name: string; width: number; height: number; colorScheme: 'light' | 'dark' }[];

describe.skipIf(path === null)('every page', () => {
  let browser: Browser;
  let mocks: Mocks;
  let site: Site;

  beforeAll(async () => {
    mocks = await prepareMocks();
    const url = realUrl();
    site = mocks === null ? { url: url ?? '', close: async () => {} } : await mocks.start('ready');
    browser = await launch(path ?? '');
  });

  afterAll(async () => {
    await browser?.close();
    await site?.close();
    mocks?.remove();
  });

  test.each(shapes)('renders its data, $name', async ({ width, height, colorScheme }) => {
    const { page, complaints, close } = await visit(browser, { viewport: { width, height }, colorScheme });
    const check = async () => {
      expect(await violations(page)).toEqual([]);
      expect(await overflow(page)).toBeLessThanOrEqual(0);
    };
    await page.goto(`${site.url}/console/`);
    await overviewHasData(page);
    await check();

    await page.getByRole('link', { name: 'Modules', exact: true }).click();
    await firstOrEmpty(page, 'Modules', 'No module is in service yet', check, async () => {
      await page.getByRole('heading', { name: 'Procedures' }).waitFor();
      await page.getByRole('columnheader', { name: 'Committed' }).waitFor();
      await page.locator('details.procedure summary').first().click();
      await page
        .getByRole('button', { name: /^Call / })
        .first()
        .waitFor();
    });

    await page.getByRole('link', { name: 'Tables', exact: true }).click();
    await firstOrEmpty(page, 'Tables', 'There are no tables yet', check, async () => {
      await page.getByText(/on this page/).waitFor();
      await check();
      await page.getByText('Columns and indexes').click();
      await page.getByRole('heading', { name: 'Columns' }).waitFor();
    });

    await page.getByRole('link', { name: 'Calls', exact: true }).click();
    const calls = page.getByRole('region', { name: 'Calls', exact: true });
    await calls.or(page.getByText('Nothing runs or waits')).first().waitFor();
    await check();

    await page.getByRole('link', { name: 'Log', exact: true }).click();
    await page.getByRole('button', { name: 'Pause' }).click();
    await firstOrEmpty(page, 'Records', 'The log holds no records', check, async () => {
      await page.getByRole('heading', { name: 'Where it lies' }).waitFor();
    });

    await page.getByRole('link', { name: 'Checkpoints', exact: true }).click();
    await page.getByRole('heading', { name: 'Restart' }).waitFor();
    await page.getByText('Would take').waitFor();
    const published = page.getByRole('region', { name: 'Checkpoints', exact: true });
    await published.or(page.getByText('There are no checkpoints yet')).first().waitFor();
    await check();
    await page.getByRole('link', { name: 'Backups', exact: true }).click();
    const backups = page.getByRole('region', { name: 'Backups', exact: true });
    await backups.or(page.getByText('There are no backups on the server')).first().waitFor();
    await check();
    await page.getByRole('link', { name: 'Replication', exact: true }).click();
    await page.getByRole('heading', { name: 'This server', exact: true }).waitFor();
    const standbys = page.getByRole('region', { name: 'Standbys', exact: true });
    await standbys.or(page.getByText('No standby follows this server')).first().waitFor();
    await check();
    expect(complaints).toEqual([]);
    await close();
  });

  test.skipIf(realUrl() !== null)('console and reader work below a path of a proxy', async () => {
    const { page, complaints, close } = await visit(browser);
    page.on('request', (request) => {
      const { pathname } = new URL(request.url());
      if (!pathname.startsWith('/below/')) complaints.push(`asked ${pathname}`);
    });
    await page.goto(`${site.url}/below/console/`);
    await overviewHasData(page);
    await page.getByRole('link', { name: 'API', exact: true }).click();
    await page.locator('.swagger-ui .opblock').first().waitFor();
    expect(complaints).toEqual([]);
    await close();
  });

  test('the reader of the API description is there', async () => {
    const { page, complaints, close } = await visit(browser);
    await page.goto(`${site.url}/docs`);
    await page.locator('.swagger-ui .opblock').first().waitFor();
    await page.getByText('/v1/call/{module}/{procedure}').first().waitFor();
    expect(complaints).toEqual([]);
    await close();
  });
});

async function overviewHasData(page: Page): Promise<void> {
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.getByText('Settings hash').waitFor();
  await page.getByText('live', { exact: true }).waitFor();
  await page.locator('header .badge', { hasText: 'ready' }).waitFor();
  expect(await page.locator('.tile', { hasText: 'Committed LSN' }).locator('.value').textContent()).toMatch(/^[\d,]+$/);
  expect(await page.locator('.chart canvas').count()).toBe(3);
}

/** Opens the first link of the list named `list` and checks both pages; or checks that the list says it is empty. */
async function firstOrEmpty(
  page: Page,
  list: string,
  emptyTitle: string,
  check: () => Promise<void>,
  opened: () => Promise<void>,
): Promise<void> {
  const link = page.getByRole('region', { name: list, exact: true }).locator('tbody a').first();
  await link.or(page.getByText(emptyTitle)).first().waitFor();
  await check();
  if ((await link.count()) === 0) return;
  await link.click();
  await opened();
  await check();
}
