import react from '@vitejs/plugin-react';
import { defineConfig } from 'vitest/config';

// The server that `npm run dev` talks to; the mock (`npm run mock`) listens there too. It is told the host that the browser
// asked for: another one than in `Origin` would be a stranger's page.
const server = process.env['REPRISE_URL'] ?? 'http://127.0.0.1:8080';
const proxied = ['/v1', '/healthz', '/readyz', '/metrics', '/openapi.json'];

export default defineConfig({
  // The console is served at /console/, or below whatever path a proxy has.
  base: './',
  plugins: [react()],
  server: { host: '127.0.0.1', port: 5173, proxy: Object.fromEntries(proxied.map((path) => [path, { target: server, changeOrigin: false }])) },
  build: { target: 'es2023', reportCompressedSize: false },
  // The default leaves a processor free, and so takes one file at a time on two: the tests mostly wait for Chromium.
  test: { include: ['src/**/*.test.ts', 'tests/**/*.test.ts'], testTimeout: 60_000, hookTimeout: 120_000, maxWorkers: '100%' },
});
