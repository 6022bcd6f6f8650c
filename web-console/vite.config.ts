import react from '@vitejs/plugin-react';
import { defineConfig } from 'vitest/config';

// The server that `npm run dev` talks to; the mock (`npm run mock`) listens there too.
const server = process.env['REPRISE_URL'] ?? 'http://127.0.0.1:8080';
const proxied = ['/v1', '/healthz', '/readyz', '/metrics', '/openapi.json'];

export default defineConfig({
  base: '/console/',
  plugins: [react()],
  server: { host: '127.0.0.1', port: 5173, proxy: Object.fromEntries(proxied.map((path) => [path, server])) },
  build: { target: 'es2023', reportCompressedSize: false },
  test: { include: ['src/**/*.test.ts', 'tests/**/*.test.ts'], testTimeout: 60_000, hookTimeout: 120_000 },
});
