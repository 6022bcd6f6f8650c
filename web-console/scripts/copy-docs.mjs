// Puts the OpenAPI reader into dist/docs, or docs of the folder named, which the server serves at /docs.
import { copyFileSync, mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const swagger = dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'));
const target = join(process.argv[2] ?? join(root, 'dist'), 'docs');

mkdirSync(target, { recursive: true });
for (const name of ['swagger-ui.css', 'swagger-ui-bundle.js', 'LICENSE', 'NOTICE']) {
  copyFileSync(join(swagger, name), join(target, name));
}
for (const name of ['index.html', 'docs.css', 'docs.js']) {
  copyFileSync(join(root, 'docs-page', name), join(target, name));
}
copyFileSync(join(root, 'public', 'favicon.svg'), join(target, 'favicon.svg'));
