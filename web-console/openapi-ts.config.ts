import { defineConfig } from '@hey-api/openapi-ts';

// The golden file that the server's own test keeps equal to `GET /openapi.json`.
export default defineConfig({
  input: '../sdk/api/openapi.json',
  output: { path: 'src/generated' },
  plugins: ['@hey-api/typescript', '@hey-api/sdk', '@hey-api/client-fetch'],
});
