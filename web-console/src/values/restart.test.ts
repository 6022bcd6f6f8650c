import { expect, test } from 'vitest';
import type { Checkpoint, RestartEstimate } from '../generated/types.gen';
import { isBeyondTarget, partText, restartSeconds, secondsText, standingFailure, writtenPercent } from './restart';

const estimate: RestartEstimate = {
  load_bytes: 1 << 30,
  load_seconds: 2,
  replay_bytes: 64 << 20,
  replay_seconds: 8,
  check_bytes: 96 << 20,
  check_seconds: 0.5,
  other_seconds: 0.25,
  target_seconds: null,
};

const published: Checkpoint = {
  id: '4096',
  lsn: '4096',
  state: 'published',
  began_at: '2026-01-02T03:04:05Z',
  seconds: 1.5,
  rows: 10,
  rows_total: 10,
  row_bytes: 220,
  file_bytes: 900,
  file: 'checkpoint-0000000000001000.ckpt',
  error: null,
};

test('a restart takes what its parts take, once they are known', () => {
  expect(restartSeconds(estimate)).toBe(10.75);
  expect(restartSeconds({ ...estimate, other_seconds: null })).toBe(null);
  expect(restartSeconds({ ...estimate, replay_seconds: null })).toBe(null);
  expect(restartSeconds({ ...estimate, check_seconds: null })).toBe(10.25);
  expect([0, 0.04, 9.96, 11.2, 119, 200].map(secondsText)).toEqual([
    '0 s',
    '0.1 s',
    '10 s',
    '12 s',
    '119 s',
    '3 min 20 s',
  ]);
});

test('each part says how long it takes', () => {
  expect(partText(estimate.load_bytes, estimate.load_seconds)).toBe('1.0 GiB in 2 s');
  expect(partText(2048, null)).toBe('2.0 KiB, at an unknown speed');
  expect(partText(0, null)).toBe('nothing');
});

test('the target is passed only by what is known', () => {
  expect(isBeyondTarget(estimate)).toBe(false);
  expect(isBeyondTarget({ ...estimate, target_seconds: 10 })).toBe(true);
  expect(isBeyondTarget({ ...estimate, target_seconds: 11 })).toBe(false);
  expect(isBeyondTarget({ ...estimate, target_seconds: 1, load_seconds: null })).toBe(false);
});

test('a failure stands until a later checkpoint is published', () => {
  const failure = { at: '2026-01-02T03:04:06Z', error: 'no space left on device' };
  expect(standingFailure(null, [published])).toBe(null);
  expect(standingFailure(failure, [published])).toEqual(failure);
  expect(standingFailure(failure, [{ ...published, state: 'running', began_at: '2026-01-02T03:05:00Z' }])).toEqual(failure);
  expect(standingFailure(failure, [{ ...published, began_at: '2026-01-02T03:05:00Z' }])).toBe(null);
});

test('a checkpoint of nothing is not divided by', () => {
  expect(writtenPercent({ ...published, rows: 0, rows_total: 0 })).toBe(0);
  expect(writtenPercent({ ...published, rows: 2, rows_total: 3 })).toBe(66);
});
