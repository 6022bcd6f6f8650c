// The console in states that a real server is seldom in, on the mock. `real.test.ts` has all else.
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import type { State } from '../mock/server';
import type { DeployPlan, ModuleInstalled, ModulePlanned } from '../src/generated/types.gen';
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
      await page.getByText(/unless the call ended by itself before/).waitFor();
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

  test('says that a filter has read a part of the rows, and reads on', () =>
    at('ready', '/tables/votes?where=phone_number:eq:2016660100', async (page) => {
      await page.getByText('No row matches in the part that was read').waitFor();
      await page.getByRole('button', { name: 'Next 50' }).click();
      await page.getByRole('region', { name: 'Rows of votes' }).getByText('2016660100').waitFor();
    }));

  test('says that no more rows match on a page behind others', () =>
    at('ready', '/tables/area_codes?where=area_code:eq:201&cursor=300', async (page) => {
      await page.getByText('No more rows match').waitFor();
    }));

  test('shows that a group may have more rows than its page', () =>
    at('ready', '/tables/votes?view=counts', async (page) => {
      const groups = page.getByRole('region', { name: 'Groups' }).getByRole('row');
      await groups.first().waitFor();
      expect((await groups.allInnerTexts()).slice(1)).toEqual(['1\t40', '2\t33', '3\tat least 26']);
      await page.getByText('The last group may have more rows').waitFor();
      await page.getByLabel('Sum of').fill('contestant_number');
      await page.getByRole('button', { name: 'Apply' }).click();
      await page.getByRole('columnheader', { name: 'Sum of contestant_number' }).waitFor();
      expect((await groups.allInnerTexts()).slice(1)).toEqual(['1\t40\t900', '2\t33\t899', '3\tat least 26\t898 (of rows read)']);
    }));

  test('says that a part of the rows has no group', () =>
    at('ready', '/tables/votes?view=counts&where=state:eq:XX', async (page) => {
      await page.getByText('No row matches in the part that was read').waitFor();
    }));

  test('says that groups of other figures load', () =>
    at('ready', '/tables/votes?view=counts', async (page) => {
      const release = await hold(page, /\/groups\?.*sum=/);
      await page.getByText('3 groups on this page', { exact: true }).waitFor();
      await page.getByLabel('Sum of').fill('contestant_number');
      await page.getByRole('button', { name: 'Apply' }).click();
      await page.getByText('3 groups on this page, loading…').waitFor();
      release();
      await page.getByText('3 groups on this page', { exact: true }).waitFor();
    }));

  test('says that records of another kind load, and leads to no older ones meanwhile', () =>
    at('ready', '/log', async (page) => {
      const release = await hold(page, /\/v1\/log\?.*kind=deploy/);
      const older = page.getByRole('link', { name: 'Older records' });
      await older.waitFor();
      await page.getByLabel('Kind').selectOption('deploy');
      await page.getByText('100 records on this page, loading…').waitFor();
      expect(await older.count()).toBe(0);
      release();
      await page.getByText('100 records on this page', { exact: true }).waitFor();
      await older.waitFor();
    }));

  test('installs the file whose upload has begun, and takes no other one meanwhile', () =>
    at('ready', '/modules', async (page) => {
      const { opened, open } = gate();
      const installed = await answerUploads(page, { tables: [], conflicts: [], estimated_ms: 0 }, opened);
      await choose(page, 'a.wasm');
      await page.getByRole('button', { name: 'Upload' }).click();
      await page.getByRole('button', { name: 'Uploading…' }).waitFor();
      expect(await page.getByRole('button', { name: 'Another file…' }).isDisabled()).toBe(true);
      expect(await page.getByLabel('Name').isDisabled()).toBe(true);
      await choose(page, 'b.wasm');
      expect(await page.getByRole('heading', { name: 'b.wasm' }).count()).toBe(0);
      open();
      await page.getByRole('link', { name: 'a version 1' }).waitFor();
      expect(installed).toEqual(['a']);
      await choose(page, 'b.wasm');
      await page.getByRole('heading', { name: 'b.wasm' }).waitFor();
    }));

  test('drops the plan of a name that is edited', () =>
    at('ready', '/modules', async (page) => {
      const steps = [{ action: 'add', what: 'column', item: 'price', detail: 'i64' }];
      const tables = [{ table: 'shop.items', steps, rows: 3, reads_rows: true }];
      const installed = await answerUploads(page, { tables, conflicts: [], estimated_ms: 1 }, Promise.resolve());
      const plan = page.getByRole('region', { name: 'Plan' });
      await choose(page, 'a.wasm');
      await page.getByRole('button', { name: 'Upload' }).click();
      await plan.getByText('add column price i64').waitFor();
      await page.getByLabel('Name').fill('b');
      await plan.waitFor({ state: 'detached' });
      await page.getByRole('button', { name: 'Upload' }).click();
      await plan.getByRole('button', { name: 'Install' }).click();
      await page.getByRole('link', { name: 'b version 1' }).waitFor();
      expect(installed).toEqual(['b']);
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
      await page.getByText('all commits are durable').waitFor();
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

  test('asks the status once an event stream falls silent, and keeps its figures whatever the server’s clock', () =>
    at('stalled', '/', async (page) => {
      await page.getByText('live', { exact: true }).waitFor();
      await page.getByLabel('Table', { exact: true }).first().check();
      await page.getByText('polling: no throughput and latency').waitFor();
      const figures = page.getByRole('region', { name: 'Throughput, txn/s, the newest figures' });
      expect(await figures.getByText(/^\d\d,\d{3}$/).count()).toBeGreaterThan(0);
    }));

  test('is not live before the event stream that it opens again', () =>
    at('ready', '/', async (page) => {
      await page.getByText('live', { exact: true }).waitFor();
      await page.getByRole('link', { name: 'Tables', exact: true }).click();
      await page.getByRole('region', { name: 'Tables' }).waitFor();
      const release = await hold(page, /\/v1\/events$/);
      await page.getByRole('link', { name: 'Overview', exact: true }).click();
      await page.getByText('connecting…', { exact: true }).waitFor();
      release();
      await page.getByText('live', { exact: true }).waitFor();
    }));

  test('names the kinds of memory', () =>
    at('ready', '/', async (page) => {
      await page.getByRole('rowheader', { name: 'Open connections' }).waitFor();
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

/** A promise, and the function that fulfils it. */
function gate(): { opened: Promise<void>; open: () => void } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open: () => open() };
}

/** Holds back the answers from these addresses until the returned function is called. */
async function hold(page: Page, address: RegExp): Promise<() => void> {
  const { opened, open } = gate();
  await page.route(address, async (route) => {
    await opened;
    await route.continue();
  });
  return open;
}

async function choose(page: Page, name: string): Promise<void> {
  const file = { name, mimeType: 'application/wasm', buffer: Buffer.from(name) };
  await page.getByLabel('Module file').setInputFiles(file);
}

/**
 * Answers uploads, which the mock refuses. A plan comes once `planned` is fulfilled. Returns the names of the modules that the page
 * installs.
 */
async function answerUploads(page: Page, plan: DeployPlan, planned: Promise<void>): Promise<string[]> {
  const installed: string[] = [];
  await page.route(/\/v1\/modules\/\w+(\?|$)/, async (route, request) => {
    if (request.method() !== 'PUT') return route.fallback();
    const { pathname, searchParams } = new URL(request.url());
    const module = pathname.split('/').at(-1) ?? '';
    if (searchParams.has('dry_run')) {
      await planned;
      const answer: ModulePlanned = { plan, procedures: [], tables: [] };
      return route.fulfill({ json: answer });
    }
    installed.push(module);
    const form = { procedures: [], tables: [], unchanged: false };
    const answer: ModuleInstalled = { module, version: 1, hash: '00', lsn: '7', ...form };
    return route.fulfill({ json: answer });
  });
  return installed;
}
