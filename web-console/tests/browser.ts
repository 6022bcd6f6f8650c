// Starts Chromium: the one named by CHROMIUM, or one of the usual places.
import { existsSync } from 'node:fs';
import { type Browser, chromium } from 'playwright-core';

const usual = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/usr/bin/google-chrome-stable',
];

export function chromiumPath(): string | null {
  const named = process.env['CHROMIUM'];
  return [...(named === undefined ? [] : [named]), ...usual].find((path) => existsSync(path)) ?? null;
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
