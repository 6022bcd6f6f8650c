import { expect, test } from 'vitest';
import { allPages } from './queries';

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
