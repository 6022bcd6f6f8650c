// What the mock says of standbys: one that keeps up, one that is lost.
import type { Promotion, Replication } from '../src/generated/types.gen';
import { lsnOf, newestPosition } from './log';

export function replicationNow(isEmpty: boolean): Replication {
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
      freshness: 0.9987,
      lag_ms: 1.4,
      lag_bytes: 812,
      lag_txns: 14,
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
      freshness: 0,
      lag_ms: 84_000,
      lag_bytes: 4_800_000,
      lag_txns: 91_204,
      error: 'nothing was heard of it for 3 s',
    },
  ];
  return {
    role: 'primary',
    epoch: 3,
    safety: 'local-sync',
    primary: null,
    ship_address: isEmpty ? null : '127.0.0.1:7000',
    durable_lsn,
    acked_lsn: durable_lsn,
    committed_lsn: durable_lsn,
    standbys: isEmpty ? [] : standbys,
  };
}

/** The same server as a standby of another one. */
export function standbyNow(): Replication {
  const primary = replicationNow(false);
  return {
    ...primary,
    role: 'standby',
    primary: 'http://db-1.example:8080',
    ship_address: null,
    standbys: primary.standbys.slice(0, 1),
  };
}

export function promoted(): Promotion {
  return { epoch: 4, lsn: lsnOf(newestPosition() + 1) };
}
