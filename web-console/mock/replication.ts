// What the mock says of standbys: one that keeps up, one that is lost.
import type { FreshnessHistory, Replication } from '../src/generated/types.gen';
import { lsnOf, newestPosition } from './log';

export function replicationNow(): Replication {
  const newest = newestPosition();
  const durable_lsn = lsnOf(newest + 1);
  const standbys: Replication['standbys'] = [
    {
      name: 'east',
      state: 'streaming',
      transport: 'tcp',
      shipped_lsn: durable_lsn,
      persisted_lsn: durable_lsn,
      replayed_lsn: durable_lsn,
      view_lsn: durable_lsn,
      in_sync: true,
      freshness: 0.9987,
      lag_ms: 1.4,
      lag_known: true,
      lag_bytes: 812,
      lag_txns: 14,
      compared: { lsn: durable_lsn, at: '2026-08-02T09:15:00Z', equal: true, difference: null },
      error: null,
    },
    {
      name: 'west',
      state: 'lost',
      transport: 'tcp',
      shipped_lsn: lsnOf(1200),
      persisted_lsn: lsnOf(1200),
      replayed_lsn: lsnOf(1200),
      view_lsn: lsnOf(1200),
      in_sync: false,
      freshness: 0,
      lag_ms: 84_000,
      lag_known: true,
      lag_bytes: 4_800_000,
      lag_txns: 91_204,
      error: 'nothing was heard of it for 3 s',
    },
  ];
  const cuts: Replication['cuts'] = [
    {
      name: '2026-08-02T09-14-07Z-1163',
      from_lsn: lsnOf(1163),
      to_lsn: lsnOf(1188),
      acknowledged: true,
      epoch: 2,
      at: '2026-08-02T09:14:07Z',
    },
  ];
  return {
    role: 'primary',
    epoch: 3,
    safety: '2-safe',
    reached: '2-safe',
    primary: null,
    ship_address: '127.0.0.1:7000',
    ship: 'as-logged',
    durable_lsn,
    acked_lsn: durable_lsn,
    committed_lsn: durable_lsn,
    standbys,
    cuts,
    out_of_sync: [],
    lease: {
      store: 'etcd',
      state: 'held',
      holder: 'north',
      holder_url: 'http://db-1.example:8080',
      in_sync: ['east'],
      ttl_ms: 5000,
      left_ms: 3120,
      error: null,
    },
  };
}

/** The same server as a standby of another one. */
export function standbyNow(): Replication {
  const primary = replicationNow();
  return {
    ...primary,
    role: 'standby',
    primary: 'http://db-1.example:8080',
    ship_address: null,
    standbys: primary.standbys.slice(0, 1),
    out_of_sync: [{ name: 'west', from_lsn: lsnOf(1200) }],
  };
}

/** A standby that keeps up, and one that was lost a minute ago. */
export function freshnessNow(): FreshnessHistory {
  const second = Math.floor(Date.now() / 1000);
  const steps = (isLost: boolean) =>
    Array.from({ length: 120 }, (_, number) => {
      const age = 119 - number;
      const lag = isLost && age < 60 ? (60 - age) * 1000 : 1.2 + (number % 7) / 5;
      const freshness = isLost && age < 60 ? Math.max(0, 1 - (60 - age) / 10) : 0.998;
      return {
        // Of two standbys no steps end at the same moment.
        at: new Date((second - age) * 1000 - (isLost ? 400 : 0)).toISOString(),
        samples: 50,
        freshness_min: freshness / 1.01,
        freshness_median: freshness,
        freshness_p95: freshness,
        freshness_p99: freshness,
        lag_ms_median: lag,
        lag_ms_p95: lag,
        lag_ms_p99: lag,
        lag_ms_max: lag * 1.5,
        lag_bytes_max: Math.round(lag * 1000),
      };
    });
  const standbys = [
    { name: 'east', steps: steps(false) },
    { name: 'west', steps: steps(true) },
  ];
  return { step_s: 1, standbys };
}
