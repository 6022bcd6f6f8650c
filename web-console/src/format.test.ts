import { expect, test } from 'vitest';
import { formatBytes, formatCount, formatMicros, formatRate, formatUptime, lsnDistance } from './format';

test('positions keep every digit', () => {
  expect(formatCount('18446744073709551615')).toBe('18,446,744,073,709,551,615');
  expect(formatCount('not a number')).toBe('not a number');
  expect(lsnDistance('18446744073709551615', '18446744073709551000')).toBe(615);
  expect(lsnDistance('5', '9')).toBe(0);
});

test('sizes, times and rates keep three digits at most', () => {
  expect([0, 1023, 1024, 1536, 200 * 1024 * 1024].map(formatBytes)).toEqual([
    '0 B',
    '1023 B',
    '1.0 KiB',
    '1.5 KiB',
    '200 MiB',
  ]);
  expect([84.4, 1200, 12_000, 3_400_000].map(formatMicros)).toEqual(['84 µs', '1.2 ms', '12 ms', '3.4 s']);
  expect([59, 61, 3700, 90_000].map(formatUptime)).toEqual(['59 s', '1 min 1 s', '1 h 1 min', '1 d 1 h']);
  expect([0.26, 950, 61_234, 1_234_567].map(formatRate)).toEqual(['0.3', '950', '61,234', '1.23M']);
});
