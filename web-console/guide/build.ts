// Writes the guide into dist/docs/guide, or docs/guide of the folder named, which the server serves at /docs/guide/.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { build } from 'vite';
import { guideOf } from './pages';

export async function main([folder = 'dist']: string[]): Promise<void> {
  const docs = resolve('../docs');
  const target = resolve(folder, 'docs/guide');
  const { pages, sections, files } = guideOf((path) => readFileSync(join(docs, path), 'utf8'));
  const place = (path: string) => {
    const file = join(target, path);
    mkdirSync(dirname(file), { recursive: true });
    return file;
  };
  for (const { path, html } of pages) writeFileSync(place(path), html);
  for (const path of files) copyFileSync(join(docs, path), place(path));
  writeFileSync(place('sections.json'), JSON.stringify(sections));
  copyFileSync('guide/guide.css', place('guide.css'));
  await build({
    configFile: false,
    logLevel: 'warn',
    publicDir: false,
    build: {
      target: 'es2023',
      outDir: target,
      emptyOutDir: false,
      modulePreload: false,
      rollupOptions: { input: resolve('guide/search.ts'), output: { entryFileNames: 'search.js' } },
    },
  });
}
