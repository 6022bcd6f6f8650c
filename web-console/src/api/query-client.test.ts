import { expect, test } from 'vitest';
import { toProblem, UnreachableError } from './problem';
import { shouldRetry } from './query-client';

test('a read is repeated only where a second one may do better and comes soon', () => {
  const away = new UnreachableError(new TypeError('fetch'));
  expect([0, 1, 2].map((failures) => shouldRetry(failures, away))).toEqual([true, true, false]);
  expect(shouldRetry(0, new UnreachableError(new DOMException('30 s are over', 'TimeoutError')))).toBe(false);
  expect(shouldRetry(0, toProblem(404, null))).toBe(false);
});
