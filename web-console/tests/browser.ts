// Starts Chromium: the one named by CHROMIUM, or one of the usual places.
import { existsSync } from 'node:fs';
import { type Browser, chromium } from 'playwright-core';

const usual = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/usr/bin/google-chrome-stable',
];

/** Null without one: the tests that need it are skipped then. In CI, where a skip would hide a fault, it throws. */
export function chromiumPath(): string | null {
  const named = process.env['CHROMIUM'];
  const found = [...(named === undefined ? [] : [named]), ...usual].find((path) => existsSync(path)) ?? null;
  const missing = 'Chromium is missing: install it (Debian: apt-get install chromium), or set CHROMIUM to its path';
  if (found === null && process.env['CI'] === 'true') throw new Error(missing);
  if (found === null) console.warn(`${missing}. The browser tests are skipped.`);
  return found;
}

/** A browser with an empty profile that talks to nobody but the pages under test. */
export async function launch(executablePath: string): Promise<Browser> {
  const quiet = [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
  ];
  return chromium.launch({ executablePath, headless: true, args: quiet });
}
