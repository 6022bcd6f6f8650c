import { afterEach, expect, test, vi } from 'vitest';
import type { ListLogData, ListRowsData, StatusData, StatusResponses } from '../generated/types.gen';
import { addressOf, get, prefixOf, send } from './client';
import { isTimeout, UnreachableError } from './problem';

const status = { url: '/v1/status' } as const;

/** Hosts that vanished: one before its answer, one within it. */
const vanished: [string, (signal: AbortSignal) => Promise<Response>][] = [
  [
    'before its answer',
    (signal) => new Promise((_, fail) => signal.addEventListener('abort', () => fail(signal.reason))),
  ],
  [
    'within its answer',
    async (signal) => {
      const start = (body: ReadableStreamDefaultController) =>
        signal.addEventListener('abort', () => body.error(signal.reason));
      return new Response(new ReadableStream({ start }));
    },
  ],
];

function stubFetch(answer: (signal: AbortSignal) => Promise<Response>): void {
  vi.stubGlobal('fetch', (_address: string, { signal }: { signal: AbortSignal }) => answer(signal));
}

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

test('the server is below whatever the console is below', () => {
  expect(prefixOf('/console/')).toBe('');
  expect(prefixOf('/databases/shop/console/')).toBe('/databases/shop');
  expect(prefixOf('/console/console/')).toBe('/console');
  expect(prefixOf('/')).toBe('');
});

test('addresses are filled in and escaped; what is empty is left out', () => {
  expect(addressOf<StatusData>({ url: '/v1/status' })).toBe('/v1/status');
  const query = { limit: '50', cursor: null, index: '', prefix: '["a&b"]' };
  expect(addressOf<ListRowsData>({ url: '/v1/tables/{table}/rows', path: { table: 'a/b' }, query })).toBe(
    '/v1/tables/a%2Fb/rows?limit=50&prefix=%5B%22a%26b%22%5D',
  );
  const where = ['votes:gt:7', '', 'state:eq:NY'];
  expect(addressOf<ListRowsData>({ url: '/v1/tables/{table}/rows', path: { table: 'a' }, query: { where } })).toBe(
    '/v1/tables/a/rows?where=votes%3Agt%3A7&where=state%3Aeq%3ANY',
  );
  expect(addressOf<ListLogData>({ url: '/v1/log', query: { from: '18446744073709551615' } })).toBe(
    '/v1/log?from=18446744073709551615',
  );
});

test.each(vanished)('a read from a host that vanished %s fails after 30 s', async (_, answer) => {
  stubFetch(answer);
  const limit = new AbortController();
  const timeout = vi.spyOn(AbortSignal, 'timeout').mockReturnValue(limit.signal);
  const read = get<StatusData, StatusResponses>(status, new AbortController().signal);
  limit.abort(new DOMException('30 s are over', 'TimeoutError'));
  const error: unknown = await read.catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(UnreachableError);
  expect(isTimeout(error)).toBe(true);
  expect(timeout).toHaveBeenCalledWith(30_000);
});

test.each(vanished)('a read that the page aborts from a host that vanished %s says nothing of the server', async (_, answer) => {
  stubFetch(answer);
  const page = new AbortController();
  const read = get<StatusData, StatusResponses>(status, page.signal);
  page.abort();
  await expect(read).rejects.toMatchObject({ name: 'AbortError' });
});

test('a write and an event stream have no time limit', async () => {
  stubFetch(async () => new Response());
  const timeout = vi.spyOn(AbortSignal, 'timeout');
  await send<StatusData>(status, { method: 'PUT' });
  await send<StatusData>(status, {}, null);
  expect(timeout).not.toHaveBeenCalled();
});
