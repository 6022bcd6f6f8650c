// What people do on the console, and what it says when something is wrong: on the mock.
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { State } from '../mock/server';
import { chromiumPath, launch } from './browser';
import { type Mocks, prepareMocks, realUrl } from './server';
import { violations, visit } from './visit';

const path = chromiumPath();

describe.skipIf(path === null || realUrl() !== null)('the console', () => {
  let browser: Browser;
  let mocks: Mocks;

  beforeAll(async () => {
    mocks = await prepareMocks();
    browser = await launch(path ?? '');
  });

  afterAll(async () => {
    await browser?.close();
    mocks?.remove();
  });

  async function at(
    state: State,
    hash: string,
    act: (page: Page, complaints: string[]) => Promise<void>,
  ): Promise<void> {
    const mock = await mocks?.start(state);
    const { page, complaints, close } = await visit(browser);
    await page.goto(`${mock?.url}/console/#${hash}`);
    await act(page, complaints);
    expect(await violations(page)).toEqual([]);
    await close();
    await mock?.close();
  }

  test('calls a procedure and shows result, transaction and LSN', () =>
    at('ready', '/modules/voter?procedure=vote', async (page) => {
      await page.getByRole('button', { name: 'Call vote' }).click();
      await page.getByText('Expected: a whole number').first().waitFor();
      await page.getByLabel('phone_number').fill('2015550100');
      await page.getByLabel('contestant_number').fill('1');
      await page.getByLabel('max_votes_per_phone').fill('9223372036854775808');
      await page.getByText(/Expected: from -9223372036854775808/).waitFor();
      await page.getByLabel('max_votes_per_phone').fill('2');
      await page.getByLabel(/Idempotency key/).fill('again');
      await page.getByRole('button', { name: 'Call vote' }).click();
      await page.getByText('answered again for its key').waitFor();
      expect(await page.getByLabel('Result').textContent()).toContain('"accepted"');
      await page.getByText('JSON', { exact: true }).click();
      expect(await page.getByLabel('Arguments').locator('visible=true').last().inputValue()).toContain(
        '"phone_number": "2015550100"',
      );
      await page.locator('.call-answer a').click();
      await page.getByRole('heading', { name: 'Where it lies' }).waitFor();
    }));

  test('makes a standby the primary once somebody has said so twice', () =>
    at('standby', '/replication', async (page) => {
      await page.getByText('http://db-1.example:8080').first().waitFor();
      await page.getByRole('button', { name: 'Make this the primary…' }).click();
      await page.getByText('It is behind by 14 records').waitFor();
      expect(await violations(page)).toEqual([]);
      await page.getByRole('button', { name: 'Leave it a standby' }).click();
      await page.getByRole('button', { name: 'Make this the primary…' }).click();
      await page.getByRole('button', { name: 'Make it the primary' }).click();
      await page.getByText('This server is the primary, in epoch 4').waitFor();
    }));

  test('tells where a record is, here and on the standbys', () =>
    at('ready', '/log', async (page) => {
      const rows = page.getByRole('region', { name: 'Records' }).getByRole('row');
      await rows.getByText('replayed: east').first().waitFor();
      await rows.getByText('not there yet: west').first().waitFor();
      await rows.getByRole('link').first().click();
      await page.getByText('replayed: east; not there yet: west').waitFor();
    }));

  test('draws who sends its log to whom', async () => {
    await at('ready', '/replication', async (page) => {
      const drawn = page.locator('.topology');
      await drawn.getByText('primary, epoch 3').waitFor();
      expect(await drawn.locator('.line').allInnerTexts()).toEqual(['tcp\nstreaming', 'tcp\nlost']);
      expect(await drawn.locator('.line.broken').count()).toBe(1);
      await drawn.getByText('out of sync').waitFor();
      expect(await violations(page)).toEqual([]);
    });
    await at('standby', '/replication', async (page) => {
      const drawn = page.locator('.topology');
      await drawn.getByText('this server, east').waitFor();
      await drawn.getByText('http://db-1.example:8080').waitFor();
    });
  });

  test('shows what was cut off the log', () =>
    at('ready', '/replication', async (page) => {
      const cuts = page.getByRole('region', { name: 'Cut off', exact: true });
      await cuts.getByText('2026-08-02T09-14-07Z-1163').waitFor();
      await cuts.getByText('some of it, perhaps').waitFor();
    }));

  test('tells what the log holds of a procedure’s calls, and why', () =>
    at('ready', '/modules/voter?procedure=vote', async (page) => {
      await page.getByText('Logged now as command: of the last 256 measured calls').waitFor();
      expect(await page.getByText('log: auto').count()).toBe(1);
      expect(await page.getByText('log: command').count()).toBe(1);
      // `results` only reads: it leaves nothing in the log.
      expect(await page.getByText(/^log: /).count()).toBe(2);
    }));

  test('shows a rolled-back transaction with its own code', () =>
    at('ready', '/modules/bank?procedure=transfer', async (page) => {
      for (const [name, value] of Object.entries({ from: '1', to: '2', amount: '5000' })) {
        await page.getByLabel(new RegExp(`^${name}`)).fill(value);
      }
      await page.getByRole('button', { name: 'Call transfer' }).click();
      await page.getByRole('alert').getByText('insufficient_funds').waitFor();
    }));

  test('uploads a module, and says why it refuses what is none', () =>
    at('empty', '/modules', async (page) => {
      await page.getByText('curl -X PUT').waitFor();
      const chooser = page.getByLabel('Module file');
      await chooser.setInputFiles({ name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('hello') });
      await page.getByRole('button', { name: 'Upload' }).click();
      await page.getByRole('alert').getByText('bad magic number').waitFor();
      const wasm = Buffer.from([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);
      await chooser.setInputFiles({ name: 'My-Votes.wasm', mimeType: 'application/wasm', buffer: wasm });
      expect(await page.getByLabel('Name').inputValue()).toBe('my_votes');
      await page.getByLabel('Name').fill('voter');
      await page.getByRole('button', { name: 'Upload' }).click();
      await page.getByText('The module is in service on all partitions').waitFor();
      await page.getByRole('region', { name: 'Modules' }).getByRole('link', { name: 'voter' }).waitFor();
    }));

  test('shows what an upload would do to the tables, and asks', () =>
    at('ready', '/modules', async (page) => {
      const wasm = Buffer.from([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);
      await page.getByLabel('Module file').setInputFiles({ name: 'voter.wasm', mimeType: 'application/wasm', buffer: wasm });
      await page.getByRole('button', { name: 'Upload' }).click();
      const plan = page.getByRole('region', { name: 'Plan' });
      await plan.getByText('drop column note text').waitFor();
      await plan.getByText(/^reads \w+ as it is now \(phone_number, note\), for the last time$/).waitFor();
      await plan.getByRole('button', { name: 'Install' }).click();
      await page.getByText('The new version took over from version 2').waitFor();
    }));

  test('rolls a module back once its plan was shown', () =>
    at('ready', '/modules/voter', async (page) => {
      const versions = page.getByRole('region', { name: 'Versions' }).first();
      await versions.getByText('kept').first().waitFor();
      await page.getByRole('button', { name: 'Roll back to version 1…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('heading', { name: 'Roll voter back to version 1?' }).waitFor();
      await dialog.getByText('drop column note text').waitFor();
      await dialog.getByRole('button', { name: 'Leave it' }).click();
      await page.getByRole('button', { name: 'Roll back to version 1…' }).click();
      await dialog.getByRole('button', { name: 'Roll back', exact: true }).click();
      await page.getByRole('button', { name: 'Roll back to version 2…' }).waitFor();
    }));

  test('takes a module out of service', () =>
    at('ready', '/modules/bank', async (page) => {
      await page.getByRole('button', { name: /^Take out of service…/ }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Take out of service' }).click();
      await page.getByRole('heading', { name: 'Modules' }).waitFor();
      await page.getByText('1 module', { exact: true }).waitFor();
    }));

  test('ends a call once it is confirmed', () =>
    at('ready', '/calls', async (page) => {
      const calls = page.getByRole('region', { name: 'Calls', exact: true });
      await calls.getByText('voter.results').waitFor();
      expect(await calls.getByRole('button', { name: 'End call 63…' }).count()).toBe(0);
      await page.getByRole('button', { name: 'End call 41…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('heading', { name: 'End voter.results?' }).waitFor();
      await dialog.getByRole('button', { name: 'Let it go on' }).click();
      await calls.getByText('voter.results').waitFor();
      await page.getByRole('button', { name: 'End call 41…' }).click();
      await dialog.getByRole('button', { name: 'End the call' }).click();
      await page.getByText('voter.results is being ended').waitFor();
      await calls.getByText('voter.results').waitFor({ state: 'detached' });
    }));

  test('makes a backup, and removes one once it is confirmed', () =>
    at('ready', '/backups', async (page) => {
      const backups = page.getByRole('region', { name: 'Backups', exact: true });
      await backups.getByText('published').first().waitFor();
      const before = await backups.getByRole('row').count();
      await page.getByLabel('with earlier log').check();
      await page.getByRole('button', { name: 'Make a backup' }).click();
      await backups.getByRole('row').nth(before).waitFor();
      const remove = backups.getByRole('button', { name: /^Remove backup / }).first();
      await remove.click();
      await backups.getByRole('button', { name: 'Keep' }).click();
      await remove.click();
      await backups.getByRole('button', { name: 'Remove for good' }).click();
      await backups.getByRole('row').nth(before).waitFor({ state: 'detached' });
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

  test('filters the log by its address', () =>
    at('ready', '/log', async (page) => {
      await page.getByLabel('Kind').selectOption('deploy');
      await page
        .getByText(/^voter version \d+$/)
        .first()
        .waitFor();
      expect(page.url()).toContain('kind=deploy');
      // The list from before stays until the filtered one is there.
      const votes = page.getByRole('region', { name: 'Records' }).getByText('voter.vote');
      await expect.poll(() => votes.count(), { timeout: 10_000 }).toBe(0);
      await page.getByLabel('Kind').selectOption('command');
      await page.getByRole('link', { name: 'Older records' }).click();
      await page.getByRole('heading', { name: /^Records before/ }).waitFor();
      await page.getByText('Procedure output').click();
      await page.getByRole('region', { name: 'Lines' }).getByText('has voted').first().waitFor();
    }));

  test('asks for a token, tells a wrong one, and goes on with the right one', () =>
    at('locked', '/', async (page) => {
      await page.getByText('This server asks for a token').waitFor();
      await page.getByLabel('Bearer token').fill('wrong');
      await page.getByRole('button', { name: 'Use the token' }).click();
      await page.getByText('The server did not take the token').waitFor();
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
      await page.getByText('polling, without throughput and latency').waitFor();
    }));

  test('narrows rows by several conditions and writes them to a file', () =>
    at('ready', '/tables/contestants', async (page) => {
      await page.getByLabel('Where').fill('contestant_number:gt:3');
      await page.getByRole('button', { name: 'Apply' }).click();
      await page.getByLabel('and', { exact: true }).fill('contestant_number:lt:9');
      await page.getByRole('button', { name: 'Apply' }).click();
      await page.waitForURL(/where=contestant_number%3Agt%3A3&where=contestant_number%3Alt%3A9/);
      const [file] = await Promise.all([
        page.waitForEvent('download'),
        page.getByRole('button', { name: 'CSV', exact: true }).click(),
      ]);
      expect(file.suggestedFilename()).toBe('contestants.csv');
    }));
});
