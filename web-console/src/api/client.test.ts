import { expect, test } from 'vitest';
import type { ListLogData, ListRowsData, StatusData } from '../generated/types.gen';
import { addressOf, prefixOf } from './client';

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
