// The figures that matter most, each with what it means.

import { formatCount, formatMicros, formatRate, lsnDistance, plural } from '../format';
import type { Status } from '../generated/types.gen';
import type { Sample } from '../live/live';

type Tile = { label: string; value: string; note: string };

export function Tiles({ status, latest }: { status: Status | undefined; latest: Sample | undefined }) {
  return (
    <dl className="tiles">
      {[...metricTiles(latest), ...lsnTiles(status, latest)].map(({ label, value, note }) => (
        <div className="tile" key={label}>
          <dt>{label}</dt>
          <dd className={value.length > 10 ? 'value long' : 'value'}>{value}</dd>
          <dd className="note">{note}</dd>
        </div>
      ))}
    </dl>
  );
}

function metricTiles(latest: Sample | undefined): Tile[] {
  const metrics = latest?.metrics ?? null;
  // Before the first transaction there is no latency: zero would be a lie.
  const seen = metrics === null || metrics.latency_us.max === 0 ? null : metrics;
  const shown = (value: number | undefined, format: (value: number) => string) =>
    value === undefined ? '–' : format(value);
  const lost = (metrics?.failed_per_s ?? 0) + (metrics?.refused_per_s ?? 0);
  return [
    {
      label: 'Throughput',
      value: shown(metrics?.committed_per_s, formatRate),
      note: `committed txn/s${waitingText(metrics?.waiting ?? 0)}`,
    },
    {
      label: 'Aborted',
      value: shown(metrics?.aborted_per_s, formatRate),
      note: lost > 0 ? `${formatRate(lost)}/s failed or refused` : 'txn/s, by the procedure',
    },
    {
      label: 'Latency p50',
      value: shown(seen?.latency_us.p50, formatMicros),
      note: `log write ${shown(seen?.commit_wait_us.p50, formatMicros)}`,
    },
    {
      label: 'Latency p99',
      value: shown(seen?.latency_us.p99, formatMicros),
      note: `max ${shown(seen?.latency_us.max, formatMicros)}`,
    },
  ];
}

function waitingText(waiting: number): string {
  return waiting === 0 ? '' : `, ${formatCount(waiting)} waiting`;
}

export function lsnTiles(status: Status | undefined, latest: Sample | undefined): Tile[] {
  const committed = latest?.committedLsn ?? status?.committed_lsn;
  const durable = latest?.durableLsn ?? status?.durable_lsn;
  if (committed === undefined || durable === undefined) {
    return ['Committed LSN', 'Durable LSN'].map((label) => ({ label, value: '–', note: '' }));
  }
  // `committed` is the LSN of the last record. `durable` is the first LSN that is not durable yet.
  const behind = committed === '0' ? 0 : lsnDistance((BigInt(committed) + 1n).toString(), durable);
  return [
    { label: 'Committed LSN', value: formatCount(committed), note: 'the last transaction' },
    {
      label: 'Durable LSN',
      value: formatCount(durable),
      note: behind === 0 ? 'all commits are durable' : `${plural(behind, 'record')} not durable yet`,
    },
  ];
}
