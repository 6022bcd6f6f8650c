import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';

test('the types are those of the API document: otherwise run `npm run generate`', () => {
  const directory = mkdtempSync(join(tmpdir(), 'reprise-types-'));
  try {
    const root = dirname(createRequire(import.meta.url).resolve('@hey-api/openapi-ts/package.json'));
    const run = spawnSync(process.execPath, [join(root, 'bin', 'run.js'), '--output', directory], { encoding: 'utf8' });
    expect(run.status, run.stderr).toBe(0);
    const made = readFileSync(join(directory, 'types.gen.ts'), 'utf8');
    expect(readFileSync('src/generated/types.gen.ts', 'utf8')).toBe(made);
  } finally {
    rmSync(directory, { recursive: true });
  }
});
