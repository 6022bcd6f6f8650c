// What operators do on the console, on a real primary and its standby; each test goes on from the state that the one before left.
import { readFileSync } from 'node:fs';
import type { Browser, Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { chromiumPath, launch } from './browser';
import { moduleFile, type Server, Servers } from './reprise';
import { overflow, picture, type Visit, violations, visit } from './visit';

const path = chromiumPath();

const shapes = [
  { name: 'wide and light', width: 1280, height: 800, colorScheme: 'light' },
  { name: 'narrow and dark', width: 390, height: 844, colorScheme: 'dark' },
] satisfies { name: string; width: number; height: number; colorScheme: 'light' | 'dark' }[];

/** Chromium writes a line for each answer of this status. */
const refused = (status: number) => expect.stringContaining(`the server responded with a status of ${status}`);

describe.skipIf(path === null)('the console on a real server', () => {
  let browser: Browser;
  let servers: Servers;
  let primary: Server;
  let standby: Server;

  beforeAll(async () => {
    servers = new Servers();
    primary = await servers.start('a', '--partitions', '2', '--ship-listen', '127.0.0.1:0');
    browser = await launch(path ?? '');
  });

  afterAll(async () => {
    await browser?.close();
    await servers?.close();
  });

  /** Opens a page, acts, and checks that nothing failed but what the test expects. */
  async function at(
    server: Server,
    hash: string,
    act: (page: Page) => Promise<void>,
    expected: unknown[] = [],
    options: Parameters<typeof visit>[1] = {},
  ): Promise<void> {
    const { page, complaints, close }: Visit = await visit(browser, options);
    try {
      await page.goto(`${server.url}/console/#${hash}`);
      await act(page);
      expect(await violations(page)).toEqual([]);
      expect(complaints).toEqual(expected);
    } catch (error) {
      await picture(page, `failed-${Date.now()}`);
      throw error;
    } finally {
      await close();
    }
  }

  test('every list of an empty server says that it is empty', () =>
    at(primary, '/', async (page) => {
      await overviewHasData(page);
      const open = (name: string) => page.getByRole('link', { name, exact: true }).click();
      await open('Modules');
      await page.getByText('No module is in service yet').waitFor();
      await page.getByText('curl -X PUT').waitFor();
      await open('Tables');
      await page.getByText('There are no tables yet').waitFor();
      await open('Calls');
      await page.getByText('Nothing runs or waits').waitFor();
      await open('Checkpoints');
      await page.getByText('There are no checkpoints yet').waitFor();
      await open('Backups');
      await page.getByText('There are no backups on the server').waitFor();
      await open('Replication');
      await page.getByText('No standby follows this server').waitFor();
    }));

  test('serves the guide, whose search finds a section', async () => {
    const { page, complaints, close } = await visit(browser);
    await page.goto(`${primary.url}/docs/guide`);
    await page.getByRole('searchbox').fill('disk ends');
    await page.getByRole('link', { name: 'When the disk ends' }).click();
    await page.getByRole('heading', { name: 'When the disk ends' }).waitFor();
    expect(new URL(page.url()).pathname).toBe('/docs/guide/operating.html');
    expect(complaints).toEqual([]);
    await close();
  });

  test('uploads a module, and says why the server refuses another file', () =>
    at(
      primary,
      '/modules',
      async (page) => {
        await choose(page, 'notes.txt', Buffer.from('hello'));
        await page.getByRole('button', { name: 'Upload' }).click();
        await page.getByRole('alert').getByText('The upload is not a module that can be run').waitFor();
        await choose(page, 'My-Bank.wasm', readFileSync(moduleFile('bank')));
        expect(await page.getByLabel('Name').inputValue()).toBe('my_bank');
        await page.getByLabel('Name').fill('bank');
        await page.getByRole('button', { name: 'Upload' }).click();
        await page.getByText('The module is in service on all partitions').waitFor();
        await page.getByRole('region', { name: 'Modules' }).getByRole('link', { name: 'bank' }).waitFor();
        await picture(page, 'upload');
      },
      [refused(422)],
    ));

  test('calls procedures and shows result, transaction and LSN', () =>
    at(primary, '/modules/bank?procedure=open', async (page) => {
      const open = form(page, 'open');
      for (const account of ['1', '2', '3']) {
        await fill(open, { account, balance: `${account}00` });
        await open.getByRole('button').click();
        await page.getByText('No result.').waitFor();
      }
      await page.locator('summary', { hasText: 'transfer' }).click();
      const transfer = form(page, 'transfer');
      await transfer.getByRole('button').click();
      await transfer.getByText('Expected: a whole number').first().waitFor();
      await fill(transfer, { from: '1', to: '2', amount: '9223372036854775808' });
      await transfer.getByText(/Expected: from -9223372036854775808/).waitFor();
      await fill(transfer, { amount: '30' });
      await transfer.getByLabel(/Idempotency key/).fill('again');
      await transfer.getByRole('button').click();
      const result = page.getByLabel('Result');
      await result.getByText('"130"').or(result.getByText('230')).first().waitFor();
      await transfer.getByRole('button').click();
      await page.getByText('stored outcome of the key').waitFor();
      expect(await result.textContent()).toMatch(/from_balance.*70.*to_balance.*230/s);
      await picture(page, 'call');
      await transfer.getByText('JSON', { exact: true }).click();
      expect(await transfer.getByRole('textbox', { name: 'Arguments' }).inputValue()).toContain('"amount": "30"');
      await page.locator('.call', { has: transfer }).locator('.call-answer a').click();
      await page.getByRole('heading', { name: 'Where it lies' }).waitFor();
      await page.getByRole('link', { name: 'bank.transfer' }).waitFor();
      await picture(page, 'record');
    }));

  test('shows the problem of a call that the procedure aborts', () =>
    at(
      primary,
      '/modules/bank?procedure=transfer',
      async (page) => {
        const transfer = form(page, 'transfer');
        await fill(transfer, { from: '1', to: '2', amount: '5000' });
        await transfer.getByRole('button').click();
        const problem = page.getByRole('alert');
        await problem.getByText('insufficient_funds').waitFor();
        await problem.getByText('the balance is smaller than the amount').first().waitFor();
        await picture(page, 'aborted-call');
      },
      [refused(422)],
    ));

  test('shows the calls in the log, and filters it by kind and by several arguments', () =>
    at(primary, '/log', async (page) => {
      const records = page.getByRole('region', { name: 'Records' });
      await records.getByRole('row').filter({ hasText: 'bank.transfer' }).filter({ hasText: 'amount=30' }).waitFor();
      expect(await records.getByText('bank.open').count()).toBe(3);
      await picture(page, 'log');
      await page.getByLabel('Kind').selectOption('deploy');
      await records.getByText('bank.open').first().waitFor({ state: 'detached' });
      await records.getByText('bank version 1').waitFor();
      expect(page.url()).toContain('kind=deploy');
      await page.getByLabel('Kind').selectOption({ label: 'all' });
      await records.getByText('bank.open').first().waitFor();
      await page.getByLabel('Argument', { exact: true }).fill('amount:30');
      await page.getByRole('button', { name: 'Apply' }).click();
      await records.getByText('bank.open').first().waitFor({ state: 'detached' });
      await page.getByLabel('and', { exact: true }).fill('from:1');
      await page.getByRole('button', { name: 'Apply' }).click();
      await records.getByRole('row').filter({ hasText: 'from=1' }).filter({ hasText: 'amount=30' }).first().waitFor();
      expect(page.url()).toContain('argument=amount%3A30&argument=from%3A1');
    }));

  test('shows rows, narrows them by several conditions and writes them to a file', () =>
    at(primary, '/tables', async (page) => {
      await page.getByRole('region', { name: 'Tables' }).getByRole('link', { name: 'bank.accounts' }).click();
      await page.getByText('3 rows on this page').waitFor();
      const rows = page.getByRole('region', { name: 'Rows of bank.accounts' }).getByRole('row');
      expect((await rows.allInnerTexts()).slice(1)).toEqual(['1\t70', '2\t230', '3\t300']);
      await picture(page, 'rows');
      await page.getByLabel('Where').fill('account:gt:1');
      await page.getByRole('button', { name: 'Apply' }).click();
      await page.getByLabel('and', { exact: true }).fill('account:lt:3');
      await page.getByRole('button', { name: 'Apply' }).click();
      await page.waitForURL(/where=account%3Agt%3A1&where=account%3Alt%3A3/);
      await page.getByText('1 row on this page').waitFor();
      const [file] = await Promise.all([
        page.waitForEvent('download'),
        page.getByRole('button', { name: 'CSV', exact: true }).click(),
      ]);
      expect(file.suggestedFilename()).toBe('bank.accounts.csv');
      expect(readFileSync(await file.path(), 'utf8').trim().split(/\r?\n/)).toEqual(['account,balance', '2,230']);
    }));

  test('shows what a second version would do to the tables, and installs it once it is confirmed', () =>
    at(primary, '/modules', async (page) => {
      await choose(page, 'contacts.wasm', readFileSync(moduleFile('contacts1')));
      await page.getByRole('button', { name: 'Upload' }).click();
      await page.getByText('The module is in service on all partitions').waitFor();
      await page.getByRole('region', { name: 'Modules' }).getByRole('link', { name: 'contacts' }).click();
      await page.locator('summary', { hasText: 'add' }).click();
      const add = form(page, 'add');
      await fill(add, { id: '1', name: 'Ada Lovelace', emails: 'ada@example.org' });
      await add.getByRole('button').click();
      await page.getByText('No result.').waitFor();

      await choose(page, 'contacts.wasm', readFileSync(moduleFile('contacts2')));
      await page.getByRole('button', { name: 'Upload' }).click();
      const plan = page.getByRole('region', { name: 'Plan' });
      await plan.getByText('drop column emails').waitFor();
      await plan.getByText('create table').waitFor();
      await plan.getByText('reads contacts.contacts as before the deployment').waitFor();
      await plan.getByText('column contacts.contacts.emails with').waitFor();
      await picture(page, 'plan');
      await plan.getByRole('button', { name: 'Cancel' }).click();
      await plan.waitFor({ state: 'detached' });
      await page.getByRole('button', { name: 'Upload' }).click();
      await plan.getByRole('button', { name: /^Install and delete / }).click();
      await page.getByText('The new version replaced version 1').waitFor();
    }));

  test('says why a module cannot be rolled back to a version whose columns are gone', () =>
    at(primary, '/modules/contacts', async (page) => {
      await page.getByRole('button', { name: 'Roll back to version 1…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('heading', { name: 'Roll contacts back to version 1?' }).waitFor();
      await dialog.getByRole('alert').getByText('The server would refuse contacts; nothing was changed').waitFor();
      expect(await dialog.getByRole('button', { name: 'Roll back', exact: true }).isDisabled()).toBe(true);
      await picture(page, 'rollback-refused');
    }));

  test('rolls a module back once its plan is confirmed', () =>
    at(primary, '/modules/bank', async (page) => {
      // An empty custom section makes other bytes that do the same.
      const second = Buffer.concat([readFileSync(moduleFile('bank')), Buffer.from([0, 2, 1, 0x78])]);
      await choose(page, 'bank.wasm', second);
      await page.getByRole('button', { name: 'Upload' }).click();
      await page.getByText('The new version replaced version 1').waitFor();
      await page.getByRole('button', { name: 'Roll back to version 1…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByText('No table changes.').waitFor();
      await dialog.getByRole('button', { name: 'Cancel' }).click();
      await page.getByRole('button', { name: 'Roll back to version 1…' }).click();
      await dialog.getByRole('button', { name: 'Roll back', exact: true }).click();
      await page.getByRole('button', { name: 'Roll back to version 2…' }).waitFor();
    }));

  test('makes a backup, and removes it once that is confirmed', () =>
    at(primary, '/backups', async (page) => {
      const backups = page.getByRole('region', { name: 'Backups', exact: true });
      await page.getByLabel('with earlier log').check();
      await page.getByRole('button', { name: 'Make a backup' }).click();
      await backups.getByText('published').waitFor();
      await picture(page, 'backups');
      const remove = backups.getByRole('button', { name: /^Remove backup / });
      await remove.click();
      await backups.getByRole('button', { name: 'Keep' }).click();
      await remove.click();
      await backups.getByRole('button', { name: 'Remove for good' }).click();
      await page.getByText('There are no backups on the server').waitFor();
    }));

  test('shows a standby that streams, and what it has of each record', async () => {
    standby = await servers.start('b', '--standby-of', primary.url, '--ship-listen', '127.0.0.1:0');
    await at(primary, '/replication', async (page) => {
      const drawn = page.locator('.topology');
      await drawn.getByText('primary, epoch 1').waitFor();
      await drawn.locator('.line', { hasText: 'streaming' }).waitFor();
      await drawn.getByText('in sync').waitFor();
      await drawn.getByText(/^freshness \d+\.\d %, .* behind$/).waitFor();
      const row = page.getByRole('region', { name: 'Standbys' }).getByRole('row', { name: /^b/ });
      await row.getByText('streaming, in sync').waitFor();
      await row.getByText('0 records, 0 B').waitFor();
      await page.getByRole('heading', { name: 'Lag, 99 of 100 samples' }).waitFor();
      await picture(page, 'replication');
    });
    await at(primary, '/log', async (page) => {
      const records = page.getByRole('region', { name: 'Records' });
      await records.getByRole('row', { name: /bank.transfer/ }).getByText('replayed: b').waitFor();
      await records.getByRole('row', { name: /bank.transfer/ }).getByRole('link').click();
      await page.getByText('replayed: b', { exact: true }).waitFor();
    });
    await at(standby, '/replication', async (page) => {
      const drawn = page.locator('.topology');
      await drawn.getByText('this server, b').waitFor();
      await drawn.getByText(primary.url).waitFor();
      await picture(page, 'replication-standby');
    });
  });

  test('a standby answers reads and refuses writes by naming its primary', () =>
    at(
      standby,
      '/modules/bank?procedure=balance',
      async (page) => {
        const balance = form(page, 'balance');
        await fill(balance, { account: '2' });
        await balance.getByRole('button').click();
        await page.getByLabel('Result').getByText('230').waitFor();
        await page.locator('summary', { hasText: 'open' }).click();
        const open = form(page, 'open');
        await fill(open, { account: '4', balance: '1' });
        await open.getByRole('button').click();
        await page.getByRole('alert').getByText(primary.url).first().waitFor();
      },
      [refused(421)],
    ));

  test.each(shapes)('every page renders its data, $name', ({ width, height, colorScheme }) => {
    const walk = async (page: Page) => {
      const check = async () => {
        expect(await violations(page)).toEqual([]);
        expect(await overflow(page)).toBeLessThanOrEqual(0);
      };
      const list = async (name: string) => {
        await page.getByRole('link', { name, exact: true }).click();
        await check();
      };
      await overviewHasData(page);
      await check();
      await picture(page, `overview-${width}`);

      await list('Modules');
      await page.getByRole('region', { name: 'Modules' }).getByRole('link', { name: 'bank' }).click();
      await page.getByRole('heading', { name: 'Procedures' }).waitFor();
      await page.getByRole('columnheader', { name: 'Committed' }).waitFor();
      await page.locator('details.procedure summary').first().click();
      await page.getByRole('button', { name: /^Call / }).first().waitFor();
      await check();
      await picture(page, `module-${width}`);

      await list('Tables');
      await page.getByRole('region', { name: 'Tables' }).getByRole('link', { name: 'bank.accounts' }).click();
      await page.getByText('3 rows on this page').waitFor();
      await check();
      await page.getByText('Counts', { exact: true }).click();
      await page.getByRole('region', { name: 'Groups' }).waitFor();
      await check();
      await page.getByText('Columns and indexes').click();
      await page.getByRole('heading', { name: 'Columns' }).waitFor();
      await check();
      await picture(page, `schema-${width}`);

      await list('Calls');
      await list('Log');
      await page.getByRole('button', { name: 'Pause' }).click();
      await page.getByRole('region', { name: 'Records' }).getByRole('link').first().click();
      await page.getByRole('heading', { name: 'Where it lies' }).waitFor();
      await check();
      await page.getByRole('link', { name: 'Log', exact: true }).first().click();
      await page.getByText('Procedure output').click();
      await page.getByRole('region', { name: 'Lines' }).getByText('names and addresses are taken apart').first().waitFor();
      await check();
      await picture(page, `output-${width}`);

      await list('Checkpoints');
      await page.getByRole('button', { name: 'Take a checkpoint' }).click();
      await page.getByRole('region', { name: 'Checkpoints' }).getByText('published').first().waitFor();
      await page.getByText('Restart time').waitFor();
      await check();
      await picture(page, `checkpoints-${width}`);
      await list('Backups');
      await list('Replication');
      await page.getByRole('region', { name: 'Standbys' }).getByText('streaming').waitFor();
      await check();
      await picture(page, `replication-${width}`);
    };
    return at(primary, '/', walk, [], { viewport: { width, height }, colorScheme });
  });

  test('the reader of the API description is there', async () => {
    const { page, complaints, close } = await visit(browser);
    await page.goto(`${primary.url}/docs`);
    await page.locator('.swagger-ui .opblock').first().waitFor();
    await page.getByText('/v1/call/{module}/{procedure}').first().waitFor();
    expect(complaints).toEqual([]);
    await close();
  });

  test('shows that a killed standby is lost, and that new records are not there', async () => {
    await at(primary, '/replication', async (page) => {
      const drawn = page.locator('.topology');
      await drawn.locator('.line', { hasText: 'streaming' }).waitFor();
      await standby.kill();
      await drawn.locator('.line.broken', { hasText: 'lost' }).waitFor();
      const row = page.getByRole('region', { name: 'Standbys' }).getByRole('row', { name: /^b/ });
      await row.getByText(/^lost, /).waitFor();
      await picture(page, 'replication-lost');
      await page.goto(`${primary.url}/console/#/modules/bank?procedure=open`);
      await fill(form(page, 'open'), { account: '4', balance: '400' });
      await form(page, 'open').getByRole('button').click();
      await page.getByText('No result.').waitFor();
      await page.getByRole('link', { name: 'Log', exact: true }).click();
      const record = page.getByRole('region', { name: 'Records' }).getByRole('row', { name: /account=4/ });
      await record.getByText('not there yet: b').waitFor();
      await page.goto(`${primary.url}/console/#/replication`);
      await row.getByText('lost, out of sync').waitFor();
    });
  });

  test('makes a standby the primary once that is confirmed', async () => {
    standby = await servers.start('b', '--standby-of', primary.url, '--ship-listen', '127.0.0.1:0');
    await at(standby, '/replication', async (page) => {
      await page.getByRole('region', { name: 'Standbys' }).getByText('streaming, in sync').waitFor();
      await page.getByRole('button', { name: 'Make this the primary…' }).click();
      expect(await violations(page)).toEqual([]);
      await picture(page, 'promote');
      await page.getByRole('button', { name: 'Keep it a standby' }).click();
      await page.getByRole('button', { name: 'Make this the primary…' }).click();
      await page.getByRole('button', { name: 'Make it the primary' }).click();
      await page.getByText('This server is the primary, in epoch 2').waitFor();
      await picture(page, 'promoted');
    });
    await at(primary, '/replication', async (page) => {
      await page.getByText(standby.url).first().waitFor();
    });
  });

  test('takes a module out of service, and drops the table that it leaves', () =>
    at(
      standby,
      '/modules/bank',
      async (page) => {
      await page.getByRole('button', { name: /^Remove from service…/ }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('button', { name: 'Remove from service' }).click();
      await dialog.getByText('the owner of table bank.accounts with 4 rows').waitFor();
      await dialog.getByRole('button', { name: /^Remove from service and drop .* leave 4 rows$/ }).click();
      await page.getByRole('heading', { name: 'Modules' }).waitFor();
      await page.getByText('1 module', { exact: true }).waitFor();
      await page.goto(`${standby.url}/console/#/tables/bank.accounts`);
      await page.getByText('4 rows on this page').waitFor();
      await page.getByRole('button', { name: 'Drop it…' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Drop the table' }).click();
      await page.getByRole('region', { name: 'Tables' }).getByText('bank.accounts').waitFor({ state: 'detached' });
      },
      [refused(409)],
    ));
});

async function overviewHasData(page: Page): Promise<void> {
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.getByText('Settings hash').waitFor();
  await page.getByText('live', { exact: true }).waitFor();
  await page.locator('header .badge', { hasText: 'ready' }).waitFor();
  expect(await page.locator('.tile', { hasText: 'Committed LSN' }).locator('.value').textContent()).toMatch(/^[\d,]+$/);
  expect(await page.locator('.chart canvas').count()).toBe(3);
}

async function choose(page: Page, name: string, buffer: Buffer): Promise<void> {
  await page.getByLabel('Module file').setInputFiles({ name, mimeType: 'application/octet-stream', buffer });
}

function form(page: Page, procedure: string): Locator {
  return page.getByRole('form', { name: `Call ${procedure}` });
}

/** Each argument's field is named by the argument and its type. */
async function fill(call: Locator, values: Record<string, string>): Promise<void> {
  for (const [name, value] of Object.entries(values)) await call.getByLabel(new RegExp(`^${name}`)).fill(value);
}
