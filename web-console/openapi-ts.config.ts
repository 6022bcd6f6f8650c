import { defineConfig } from '@hey-api/openapi-ts';

// The golden file that the server's own test keeps equal to `GET /openapi.json`. Types only: the generated fetch client
// would parse and write JSON by itself, and 64-bit integers in a call's arguments must go out as they were typed.
export default defineConfig({
  input: '../sdk/api/openapi.json',
  output: { path: 'src/generated', entryFile: false },
  plugins: ['@hey-api/typescript'],
});
