// The console in states that a real server is seldom in, on the mock. `real.test.ts` has all else.
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import type { State } from '../mock/server';
import { chromiumPath } from './browser';
import { openBrowser } from './mocks';
import { overflow, violations, visit } from './visit';

const path = chromiumPath();

describe.skipIf(path === null)('the console', () => {
  const { browser, mocks } = openBrowser(path);

  async function at(
    state: State,
    hash: string,
    act: (page: Page, complaints: string[]) => Promise<void>,
  ): Promise<void> {
    const mock = await mocks().start(state);
    const { page, complaints, close } = await visit(browser());
    await page.goto(`${mock.url}/console/#${hash}`);
    await act(page, complaints);
    expect(await violations(page)).toEqual([]);
    await close();
    await mock.close();
  }

  test('says how far a standby is behind before it becomes the primary', () =>
    at('standby', '/replication', async (page) => {
      await page.getByText('http://db-1.example:8080').first().waitFor();
      await page.getByRole('button', { name: 'Make this the primary…' }).click();
      await page.getByText(/at least 14 records behind/).waitFor();
    }));

  test('shows what was cut off the log, and a standby that is lost beside one that streams', () =>
    at('ready', '/replication', async (page) => {
      const cuts = page.getByRole('region', { name: 'Removed from the log', exact: true });
      await cuts.getByText('2026-08-02T09-14-07Z-1163').waitFor();
      await cuts.getByText('perhaps some').waitFor();
      const drawn = page.locator('.topology');
      expect(await drawn.locator('.line').allInnerTexts()).toEqual(['tcp\nstreaming', 'tcp\nlost']);
      expect(await drawn.locator('.line.broken').count()).toBe(1);
    }));

  test('says why the server logs a procedure’s calls as it does', () =>
    at('ready', '/modules/voter?procedure=vote', async (page) => {
      await page.getByText('Logged now as command: of the last 256 measured calls').waitFor();
      expect(await page.getByText('log: auto').count()).toBe(1);
      expect(await page.getByText('log: command').count()).toBe(1);
      // `results` only reads: it leaves nothing in the log.
      expect(await page.getByText(/^log: /).count()).toBe(2);
    }));

  test('ends a call once it is confirmed', () =>
    at('ready', '/calls', async (page) => {
      const calls = page.getByRole('region', { name: 'Calls', exact: true });
      await calls.getByText('voter.results').waitFor();
      expect(await calls.getByRole('button', { name: 'End call 63…' }).count()).toBe(0);
      await page.getByRole('button', { name: 'End call 41…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('heading', { name: 'End voter.results?' }).waitFor();
      await dialog.getByRole('button', { name: 'Keep it running' }).click();
      await calls.getByText('voter.results').waitFor();
      await page.getByRole('button', { name: 'End call 41…' }).click();
      await dialog.getByRole('button', { name: 'End the call' }).click();
      await page.getByText('voter.results is being ended').waitFor();
      await calls.getByText('voter.results').waitFor({ state: 'detached' });
    }));

  test('goes through rows page by page, and back by the address', () =>
    at('ready', '/tables/votes', async (page, complaints) => {
      await page.getByText('2015550100').waitFor();
      await page.getByRole('button', { name: 'Next 50' }).click();
      await page.getByText('2015551950').waitFor();
      expect(page.url()).toContain('cursor=50');
      await page.getByRole('button', { name: 'Previous' }).click();
      await page.getByText('2015550100').waitFor();
      await page.goBack();
      await page.getByText('2015551950').waitFor();
      await page.getByRole('button', { name: /Previous|First page/ }).click();
      await page.getByText('2015550100').waitFor();
      expect(complaints).toEqual([]);
    }));

  test('goes back in a log of many records', () =>
    at('ready', '/log', async (page) => {
      await page.getByRole('link', { name: 'Older records' }).click();
      await page.getByRole('heading', { name: /^Records before/ }).waitFor();
    }));

  test('searches the log by several arguments and by time', () =>
    at('ready', '/log', async (page) => {
      const records = page.getByRole('region', { name: 'Records', exact: true }).getByRole('row');
      const apply = () => page.getByRole('button', { name: 'Apply' }).click();
      await page.getByLabel('Argument', { exact: true }).fill('contestant_number:3');
      await apply();
      await page.getByLabel('and', { exact: true }).first().fill('max_votes_per_phone:3');
      await apply();
      await page.getByText('No record matches').waitFor();
      await page.getByLabel('and', { exact: true }).first().fill('max_votes_per_phone:2');
      await apply();
      await records.filter({ hasText: 'contestant_number=3' }).first().waitFor();
      const found = (await records.allInnerTexts()).slice(1);
      expect(found.filter((text) => !text.includes('contestant_number=3'))).toEqual([]);
      expect(page.url()).toContain('argument=contestant_number%3A3&argument=max_votes_per_phone%3A2');
      await page.getByLabel('Until').fill('2020-01-01T00:00:00Z');
      await apply();
      await page.getByText('No record matches').waitFor();
      await page.getByLabel('Until').fill('');
      await page.getByLabel('Since').fill('2020-01-01T00:00:00Z');
      await apply();
      await records.filter({ hasText: 'contestant_number=3' }).first().waitFor();
      expect(page.url()).toContain('since=2020-01-01T00%3A00%3A00Z');
      expect(page.url()).not.toContain('until=');
    }));

  test('asks for a token, tells a wrong one, and goes on with the right one', () =>
    at('locked', '/', async (page) => {
      await page.getByText('This server needs a token').waitFor();
      await page.getByLabel('Bearer token').fill('wrong');
      await page.getByRole('button', { name: 'Use the token' }).click();
      await page.getByText('The server refused the token').waitFor();
      await page.getByLabel('Bearer token').fill('secret');
      await page.getByRole('button', { name: 'Use the token' }).click();
      await page.getByText('live', { exact: true }).waitFor();
      await page.getByText('Settings hash').waitFor();
      expect(await page.getByRole('dialog').count()).toBe(0);
    }));

  test('shows how far a recovery is', () =>
    at('recovering', '/', async (page) => {
      await page.getByText(/% of the log replayed/).waitFor();
    }));

  test('says on every page that the log can’t be written', () =>
    at('log-error', '/tables', async (page) => {
      await page.getByRole('alert').getByText('no space left on device').waitFor();
      await page.getByRole('region', { name: 'Tables' }).getByRole('link', { name: 'votes' }).waitFor();
    }));

  test('asks the status where there is no event stream', () =>
    at('silent', '/', async (page) => {
      await page.getByText('polling: no throughput and latency').waitFor();
    }));

  test('wide tables and long texts fit a narrow window', () =>
    at('ready', '/', async (page, complaints) => {
      await page.setViewportSize({ width: 390, height: 844 });
      const wide = ['Tables', 'Calls', 'Checkpoints', 'Backups', 'Replication', 'Log'];
      for (const name of wide) {
        await page.getByRole('link', { name, exact: true }).click();
        await page.getByRole('table').first().waitFor();
        expect(await violations(page)).toEqual([]);
        expect(await overflow(page)).toBeLessThanOrEqual(0);
      }
      expect(complaints).toEqual([]);
    }));

  test('console and reader work below a path of a proxy', async () => {
    const mock = await mocks().start('ready');
    const { page, complaints, close } = await visit(browser());
    page.on('request', (request) => {
      const { pathname } = new URL(request.url());
      if (!pathname.startsWith('/below/')) complaints.push(`asked ${pathname}`);
    });
    await page.goto(`${mock.url}/below/console/`);
    await page.getByText('live', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'API', exact: true }).click();
    await page.locator('.swagger-ui .opblock').first().waitFor();
    expect(complaints).toEqual([]);
    await close();
    await mock.close();
  });
});
