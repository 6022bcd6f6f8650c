// The mock with a console built for it.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { build } from 'vite';
import { afterAll, beforeAll } from 'vitest';
import { type Mock, type State, startMock } from '../mock/server';
import { launch } from './browser';

export type Mocks = { start: (state: State) => Promise<Mock>; remove: () => void };

export async function prepareMocks(): Promise<Mocks> {
  const outDir = mkdtempSync(join(tmpdir(), 'reprise-console-'));
  await build({ logLevel: 'error', build: { outDir, emptyOutDir: true } });
  execFileSync(process.execPath, ['scripts/copy-docs.mjs', outDir]);
  execFileSync(process.execPath, ['scripts/run.mjs', 'guide/build.ts', outDir]);
  return {
    start: (state) => startMock({ port: 0, state, dist: outDir }),
    remove: () => rmSync(outDir, { recursive: true, force: true }),
  };
}

/** A browser and the mocks for the tests of a group, from its begin to its end. */
export function openBrowser(path: string | null): { browser: () => Browser; mocks: () => Mocks } {
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

  return { browser: () => browser, mocks: () => mocks };
}
