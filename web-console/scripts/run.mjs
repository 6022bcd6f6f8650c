// Runs `main(arguments)` of a TypeScript file: `node scripts/run.mjs mock/main.ts --port 8080`. Node 20 can't by itself.
import { runnerImport } from 'vite';

const [file, ...rest] = process.argv.slice(2);
const { module } = await runnerImport(`./${file}`);
await module.main(rest);
