// The pictures of the docs, from a real primary and its standby: `npm run pictures -- [FOLDER]`. Each is 1280 x 800.
import { mkdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { chromiumPath, launch } from './browser';
import { moduleFile, type Server, Servers } from './reprise';

const bytesMax = 200_000;
const contestants = ['Ada Lovelace', 'Alan Turing', 'Barbara Liskov', 'Edgar Codd', 'Grace Hopper', 'Jim Gray'];
const accounts = 400;

type Picture = { name: string; hash: string; act: (page: Page) => Promise<unknown> };

const pictures: Picture[] = [
  { name: 'procedure', hash: '/modules/bank?procedure=transfer', act: call },
  { name: 'rows', hash: '/tables/bank.accounts?where=balance:lt:950', act: (page) => page.getByText(/rows? on this page/).waitFor() },
  { name: 'log', hash: '/log?procedure=transfer&argument=from:7', act: (page) => page.getByRole('row', { name: /from=7 / }).first().waitFor() },
  // The charts show the last minute, so they need some time.
  { name: 'overview', hash: '/', act: (page) => page.waitForTimeout(25_000) },
  { name: 'replication', hash: '/replication', act: (page) => page.getByRole('heading', { name: /^Lag, / }).waitFor() },
  { name: 'plan', hash: '/modules', act: plan },
];

export async function main([folder = '../docs/images']: string[]): Promise<void> {
  const path = chromiumPath();
  if (path === null) throw new Error('no Chromium found: set CHROMIUM to its path');
  mkdirSync(folder, { recursive: true });
  const servers = new Servers();
  const browser = await launch(path);
  const load = new AbortController();
  try {
    const primary = await servers.start('db-1', '--partitions', '4', '--ship-listen', '127.0.0.1:0');
    await prepare(primary);
    await servers.start('db-2', '--standby-of', primary.url, '--ship-listen', '127.0.0.1:0');
    const loaded = run(primary, load.signal);
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme: 'light' });
    for (const { name, hash, act } of pictures) {
      await page.goto(`${primary.url}/console/#${hash}`);
      await act(page);
      await page.waitForTimeout(1_000);
      const file = join(folder, `${name}.png`);
      await page.screenshot({ path: file });
      if (statSync(file).size > bytesMax) throw new Error(`${file} has more than ${bytesMax} bytes`);
    }
    load.abort();
    await loaded;
  } finally {
    load.abort();
    await browser.close();
    await servers.close();
  }
}

async function prepare(server: Server): Promise<void> {
  for (const [name, file] of [
    ['bank', 'bank'],
    ['voter', 'voter'],
    ['contacts', 'contacts1'],
  ] as const) {
    const headers = { 'Content-Type': 'application/wasm' };
    await asked(server, `/v1/modules/${name}`, { method: 'PUT', headers, body: readFileSync(moduleFile(file)) });
  }
  const json = (body: unknown) => ({ method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  await asked(server, '/v1/call/voter/initialize', json({ contestants }));
  await asked(server, '/v1/call/contacts/add', json({ id: '1', name: 'Ada Lovelace', emails: 'ada@example.org' }));
  await batch(server, numbers(accounts).map((account) => line('bank', 'open', { account, balance: 1000 })));
}

/** Votes and transfers until the signal, some thousand a second. */
async function run(server: Server, end: AbortSignal): Promise<void> {
  let phone = 6_172_530_000;
  for (let turn = 0; !end.aborted; turn += 1) {
    const votes = numbers(400).map((n) =>
      line('voter', 'vote', { phone_number: phone + n, contestant_number: 1 + (n % contestants.length), max_votes_per_phone: 2 }),
    );
    phone += votes.length;
    const transfers = numbers(60).map((n) => {
      const from = 1 + ((turn * 37 + n * 71) % accounts);
      const to = 1 + ((turn * 59 + n * 113) % accounts);
      return line('bank', 'transfer', { from, to, amount: 1 + (n % 9) });
    });
    await batch(server, [...votes, ...transfers]);
    await new Promise((done) => setTimeout(done, 40 + 60 * Math.abs(Math.sin(Date.now() / 4_000))));
  }
}

function numbers(count: number): number[] {
  return Array.from({ length: count }, (_, n) => n + 1);
}

function line(module: string, procedure: string, args: Record<string, number>): string {
  return JSON.stringify({ module, procedure, args });
}

async function batch(server: Server, lines: string[]): Promise<void> {
  await asked(server, '/v1/batch', { method: 'POST', headers: { 'Content-Type': 'application/x-ndjson' }, body: lines.join('\n') });
}

async function asked(server: Server, path: string, init: RequestInit): Promise<void> {
  const answer = await fetch(server.url + path, init);
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`);
}

async function call(page: Page): Promise<void> {
  const form = page.getByRole('form', { name: 'Call transfer' });
  for (const [name, value] of [['from', '1'], ['to', '2'], ['amount', '30']] as const) {
    await form.getByLabel(new RegExp(`^${name}`)).fill(value);
  }
  await form.getByRole('button').click();
  await page.getByLabel('Result').first().waitFor();
  await page.getByLabel('Result').first().scrollIntoViewIfNeeded();
}

async function plan(page: Page): Promise<void> {
  const buffer = readFileSync(moduleFile('contacts2'));
  await page.getByLabel('Module file').setInputFiles({ name: 'contacts.wasm', mimeType: 'application/octet-stream', buffer });
  await page.getByRole('button', { name: 'Upload' }).click();
  await page.getByRole('region', { name: 'Plan' }).getByText('drop column emails').waitFor();
  await page.getByRole('region', { name: 'Plan' }).scrollIntoViewIfNeeded();
}
