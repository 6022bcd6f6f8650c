import { afterEach, expect, test, vi } from 'vitest';
import { type Form, readRows } from './download';

const wanted = { table: 't', index: null, prefix: null, from: null, to: null, where: ['a:gt:1'], reverse: null };

/** Pages of this text, each but the last with a cursor. */
function serve(pages: string[]): string[] {
  const asked: string[] = [];
  vi.stubGlobal('fetch', async (address: string) => {
    const text = pages[asked.length] ?? '';
    asked.push(address);
    const headers = new Headers();
    if (asked.length < pages.length) headers.set('Reprise-Next-Cursor', `c${asked.length}`);
    return new Response(text, { headers });
  });
  return asked;
}

const read = (form: Form, max?: number) => readRows(wanted, form, new AbortController().signal, max);

afterEach(() => vi.unstubAllGlobals());

test('pages become one file, of CSV with one line of names', async () => {
  const asked = serve(['a,b\r\n1,2\r\n', 'a,b\r\n3,4\r\n']);
  expect(await read('csv')).toEqual({ text: 'a,b\r\n1,2\r\n3,4\r\n', complete: true });
  expect(asked).toEqual([
    '/v1/tables/t/rows?where=a%3Agt%3A1&limit=1000',
    '/v1/tables/t/rows?where=a%3Agt%3A1&limit=1000&cursor=c1',
  ]);
  serve(['{"a":1}\n', '{"a":3}\n']);
  expect(await read('ndjson')).toEqual({ text: '{"a":1}\n{"a":3}\n', complete: true });
});

test('a file ends where it would be too large, and says so; a refusal is thrown', async () => {
  serve(['{"a":1}\n', '{"a":3}\n', '{"a":5}\n']);
  expect(await read('ndjson', 9)).toEqual({ text: '{"a":1}\n{"a":3}\n', complete: false });
  vi.stubGlobal('fetch', async () => new Response('{"title": "No", "detail": "such table"}', { status: 404 }));
  await expect(read('csv')).rejects.toThrow();
});
