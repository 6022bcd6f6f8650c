import { QueryClient } from '@tanstack/react-query';
import { afterEach, expect, test, vi } from 'vitest';
import { allPages, freshnessQuery, statusQuery } from './queries';

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

test('a list is followed to its last page', async () => {
  const asked: (string | null)[] = [];
  const items = await allPages(async (cursor) => {
    asked.push(cursor);
    if (cursor === null) return { items: [1, 2], next: '2' };
    return cursor === '2' ? { items: [3], next: '3' } : { items: [], next: null };
  });
  expect(items).toEqual([1, 2, 3]);
  expect(asked).toEqual([null, '2', '3']);
});

test('the freshness of the last five minutes is asked for by the server’s clock', async () => {
  const asked: string[] = [];
  const status = { started_at: '2020-01-01T00:00:00Z', uptime_s: 1000 };
  vi.stubGlobal('fetch', async (address: string) => {
    asked.push(address);
    return Response.json(address === '/v1/status' ? status : { step_s: 1, standbys: [] });
  });
  const clock = vi.spyOn(Date, 'now').mockReturnValue(5_000_000);
  const client = new QueryClient();
  await client.fetchQuery(statusQuery);
  clock.mockReturnValue(5_007_000);
  await client.fetchQuery(freshnessQuery);
  const from = Date.parse(status.started_at) / 1000 + 1000 + 7 - 300;
  expect(asked).toEqual(['/v1/status', `/v1/replication/freshness?from=${from}`]);
});
