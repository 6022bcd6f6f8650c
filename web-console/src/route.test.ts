import { expect, test } from 'vitest';
import { hrefOf, parseRoute, type Route } from './route';

const routes: Route[] = [
  { page: 'overview' },
  { page: 'modules' },
  { page: 'module', module: 'bank', procedure: 'transfer' },
  { page: 'tables' },
  {
    page: 'table',
    table: 'votes',
    view: 'schema',
    index: 'by_state',
    prefix: '["NY"]',
    from: '1',
    to: '9,x',
    where: ['votes:gt:7', 'state:eq:NY'],
    reverse: 'true',
    cursor: 'a/b+c=',
  },
  {
    page: 'log',
    kind: 'command',
    partition: '1',
    procedure: 'vote',
    argument: ['phone_number:1', 'name:a&b'],
    key: 'a,b',
    since: '2026-11-27T12:00:00+01:00',
    until: '2026-11-27T12:05:00Z',
    from: '4096',
  },
  { page: 'output', procedure: 'vote', level: 'warn', transaction: '7' },
  { page: 'calls' },
  { page: 'checkpoints' },
  { page: 'replication' },
  { page: 'record', lsn: '18446744073709551615' },
];

test.each(routes)('a route survives the way through its URL: %j', (route) => {
  expect(parseRoute(hrefOf(route))).toEqual(route);
});

test('addresses that nothing answers are kept to be shown', () => {
  expect(parseRoute('#/nowhere')).toEqual({ page: 'unknown', path: 'nowhere' });
  expect(parseRoute('#/log/1/2')).toEqual({ page: 'unknown', path: 'log/1/2' });
  expect(parseRoute('#/modules/%')).toEqual({ page: 'module', module: '%', procedure: null });
  expect(parseRoute('')).toEqual({ page: 'overview' });
});
