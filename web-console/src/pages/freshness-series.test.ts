import { describe, expect, it } from 'vitest';
import { freshnessNow } from '../../mock/replication';
import { timesOf, valuesAt } from './freshness-series';

const [like] = freshnessNow().standbys.flatMap(({ steps }) => steps);
if (like === undefined) throw new Error('the mock has a history');

const steps = (...ends: string[]) => ends.map((at, number) => ({ ...like, at: `2026-01-01T00:00:${at}Z`, lag_ms_p99: number }));

describe('histories on one axis', () => {
  const standbys = [
    { name: 'a', steps: steps('01.100', '02.110', '03.120') },
    { name: 'b', steps: steps('01.600', '02.610', '09.000', '10.010') },
  ];
  const times = timesOf(standbys);
  const lags = (number: number) => valuesAt(times, standbys[number]?.steps ?? [], (step) => step.lag_ms_p99);

  it('have all times, in order', () => {
    expect(times).toHaveLength(7);
    expect(times).toEqual([...times].sort((a, b) => a - b));
  });

  it('go on between steps that end at different moments, so that each is a line', () => {
    expect(lags(0).slice(0, 5)).toEqual([0, 0, 1, 1, 2]);
    expect(lags(1).slice(0, 5)).toEqual([null, 0, 0, 1, 1]);
  });

  it('have a gap where nothing came', () => {
    expect(lags(0).slice(5)).toEqual([null, null]);
    expect(lags(1).slice(5)).toEqual([2, 3]);
  });
});
