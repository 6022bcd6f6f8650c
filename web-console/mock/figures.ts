// What the mock makes up: live figures.
import type { MemoryStatus, MetricsEvent } from '../src/generated/types.gen';

/** `clockMs`: milliseconds by which the server's clock is ahead. */
export function metricsNow(quiet: boolean, clockMs: number): MetricsEvent {
  const now = Date.now();
  const wave = quiet ? 0 : 1 + 0.12 * Math.sin(now / 3000) + 0.05 * Math.sin(now / 700);
  const micros = (value: number) => Math.round(value * (quiet ? 0 : 1 + 0.1 * Math.sin(now / 5000)));
  const committed = Math.round(9_000_000_000 + (now % 1e9) * 4420);
  const open = quiet ? 0 : Math.round(6200 * wave);
  return {
    time: new Date(now + clockMs).toISOString(),
    interval_ms: 250,
    committed_per_s: 61_400 * wave,
    aborted_per_s: 2_900 * wave,
    failed_per_s: 0,
    refused_per_s: 0,
    log_bytes_per_s: 4_420_800 * wave,
    latency_us: { p50: micros(184), p95: micros(420), p99: micros(910), max: micros(6100) },
    commit_wait_us: { p50: micros(121), p95: micros(300), p99: micros(640), max: micros(5200) },
    waiting: quiet ? 0 : 12,
    committed_lsn: committed.toString(),
    // The end behind the last durable record.
    durable_lsn: (committed + 1 - open).toString(),
  };
}

/** Of a server with a limit. */
export const MEMORY: MemoryStatus = {
  max_bytes: 4 * 2 ** 30,
  kept_back_bytes: 409 * 2 ** 20,
  used_bytes: 1_360 * 2 ** 20,
  peak_bytes: 1_412 * 2 ** 20,
  kinds: [
    { kind: 'rows', bytes: 870 * 2 ** 20 },
    { kind: 'indexes', bytes: 455 * 2 ** 20 },
    { kind: 'undo', bytes: 3 * 2 ** 20 },
    { kind: 'snapshots', bytes: 0 },
    { kind: 'views', bytes: 0 },
    { kind: 'idempotency', bytes: 21 * 2 ** 20 },
    { kind: 'connections', bytes: 2 ** 20 },
    { kind: 'answers', bytes: 2 ** 20 },
    { kind: 'guests', bytes: 5 * 2 ** 20 },
    { kind: 'modules', bytes: 4 * 2 ** 20 },
    { kind: 'ready', bytes: 0 },
  ],
};
