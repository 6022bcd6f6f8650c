// What the browser tests run against: the server named by REPRISE_URL, or the mock with a console built for it.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { build } from 'vite';
import { type Mock, type State, startMock } from '../mock/server';

export type Site = { url: string; close: () => Promise<void> };

/** Null while REPRISE_URL names a real server. */
export type Mocks = { start: (state: State) => Promise<Mock>; remove: () => void } | null;

export async function prepareMocks(): Promise<Mocks> {
  if (realUrl() !== null) return null;
  const outDir = mkdtempSync(join(tmpdir(), 'reprise-console-'));
  await build({ logLevel: 'error', build: { outDir, emptyOutDir: true } });
  execFileSync(process.execPath, ['scripts/copy-docs.mjs', outDir]);
  return {
    start: (state) => startMock({ port: 0, state, dist: outDir }),
    remove: () => rmSync(outDir, { recursive: true, force: true }),
  };
}

export function realUrl(): string | null {
  const url = process.env['REPRISE_URL'] ?? '';
  return url === '' ? null : url.replace(/\/$/, '');
}
