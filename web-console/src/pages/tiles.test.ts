import { expect, test } from 'vitest';
import { lsnTiles } from './tiles';

const noteAt = (committedLsn: string, durableLsn: string) =>
  lsnTiles(undefined, { at: 0, metrics: null, committedLsn, durableLsn }).at(-1)?.note;

test('records that are not durable are counted up to the last committed one', () => {
  expect(noteAt('41', '42')).toBe('all commits are durable');
  expect(noteAt('41', '41')).toBe('1 record not durable yet');
  expect(noteAt('41', '40')).toBe('2 records not durable yet');
  expect(noteAt('18446744073709551614', '18446744073709551614')).toBe('1 record not durable yet');
  // The two are read at different moments.
  expect(noteAt('41', '50')).toBe('all commits are durable');
  expect(noteAt('0', '0')).toBe('all commits are durable');
});
