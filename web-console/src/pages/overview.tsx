// The server at a glance: what it does now, and what it was started as.
import { useQuery } from '@tanstack/react-query';
import { modulesQuery, statusQuery } from '../api/queries';
import { formatBytes, formatCount, formatMicros, formatRate, formatTime, formatUptime, lsnDistance } from '../format';
import type { DeploymentStatus, NvramStatus, Status } from '../generated/types.gen';
import { type Live, type Sample, useLive } from '../live/live';
import { hrefOf } from '../route';
import { Badge } from '../ui/badge';
import { Chart } from '../ui/chart';
import { Facts } from '../ui/facts';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Table } from '../ui/table';
import { FirstModule } from './first-module';
import { Memory } from './memory';
import { Tiles } from './tiles';

export function OverviewPage() {
  const status = useQuery(statusQuery);
  const live = useLive();
  return (
    <>
      <div className="page-head">
        <h1>Overview</h1>
        <LiveBadge source={live.source} />
      </div>
      <Tiles status={status.data} latest={live.samples.at(-1)} />
      <Charts samples={live.samples} />
      <div className="halves">
        <Panel title="Server">
          <div className="panel-body">
            <Loaded query={status}>{(data) => <Facts facts={serverFacts(data)} />}</Loaded>
          </div>
        </Panel>
        <div className="stack">
          <InService />
          <Panel title="Memory">
            <Loaded query={status}>{(data) => <Memory memory={data.memory} />}</Loaded>
          </Panel>
        </div>
      </div>
    </>
  );
}

function LiveBadge({ source }: { source: Live['source'] }) {
  switch (source) {
    case 'connecting':
      return <Badge>connecting…</Badge>;
    case 'stream':
      return <Badge tone="good">live</Badge>;
    case 'poll':
      return (
        <Badge tone="warn" title="The event stream is not available. The console reads the status once a second instead.">
          polling: no throughput and latency
        </Badge>
      );
    case 'lost':
      return <Badge tone="bad">no figures, trying again</Badge>;
  }
}

function Charts({ samples }: { samples: Sample[] }) {
  const times = samples.map(({ at }) => at);
  return (
    <div className="charts">
      <Chart
        title="Throughput, txn/s"
        times={times}
        format={formatRate}
        series={[
          { label: 'committed', colour: '--series-1', values: samples.map((s) => s.metrics?.committed_per_s ?? null) },
          { label: 'aborted', colour: '--series-2', values: samples.map((s) => s.metrics?.aborted_per_s ?? null) },
        ]}
      />
      <Chart
        title="Latency"
        times={times}
        format={formatMicros}
        series={[
          { label: 'p50', colour: '--series-1', values: samples.map((s) => s.metrics?.latency_us.p50 ?? null) },
          { label: 'p99', colour: '--series-2', values: samples.map((s) => s.metrics?.latency_us.p99 ?? null) },
        ]}
      />
      <Chart
        title="Log, records/s"
        times={times}
        format={formatCount}
        series={[
          { label: 'committed', colour: '--series-1', values: rates(samples, (s) => s.committedLsn) },
          { label: 'durable', colour: '--series-3', values: rates(samples, (s) => s.durableLsn) },
        ]}
      />
    </div>
  );
}

/** Records a second, from one sample to the next. */
function rates(samples: Sample[], lsnOf: (sample: Sample) => string): (number | null)[] {
  return samples.map((sample, position) => {
    const before = samples[position - 1];
    if (before === undefined || sample.at <= before.at) return null;
    return lsnDistance(lsnOf(sample), lsnOf(before)) / (sample.at - before.at);
  });
}

function InService() {
  const modules = useQuery(modulesQuery);
  return (
    <Panel title="Modules in service" side={<a href={hrefOf({ page: 'modules' })}>All modules</a>}>
      <Loaded query={modules}>
        {(list) =>
          list.length === 0 ? (
            <FirstModule />
          ) : (
            <Table headings={['Module', { number: 'Version' }, { number: 'Procedures' }, { number: 'Tables' }]}>
              {list.map(({ module, version, procedures, tables }) => (
                <tr key={module}>
                  <th scope="row">
                    <a href={hrefOf({ page: 'module', module, procedure: null })}>{module}</a>
                  </th>
                  <td className="number">{version}</td>
                  <td className="number">{procedures.length}</td>
                  <td className="number">{tables.length}</td>
                </tr>
              ))}
            </Table>
          )
        }
      </Loaded>
    </Panel>
  );
}

function deploymentText({ module, rows, partitions, seconds, seconds_max }: DeploymentStatus): string {
  const limit = seconds_max === 0 ? '' : ` of ${seconds_max}`;
  return `${module}: ${formatCount(rows)} rows copied, on_deploy run on ${partitions} partitions, ${seconds.toFixed(1)}${limit} s`;
}

function serverFacts(status: Status) {
  return [
    { label: 'Role', value: status.epoch == null ? status.role : `${status.role}, epoch ${status.epoch}` },
    { label: 'Partitions', value: status.partitions },
    { label: 'Sites (engine threads)', value: status.sites },
    { label: 'Log', value: status.log === 'none' ? 'none' : `${status.log}, on ${status.device}` },
    ...nvramFacts(status),
    { label: 'Commit', value: status.commit === 'sync' ? 'sync: durable before the answer' : 'async: durable soon after the answer' },
    { label: 'Started', value: formatTime(status.started_at) },
    { label: 'Uptime', value: formatUptime(status.uptime_s) },
    { label: 'Idempotency keys', value: formatCount(status.idempotency_keys) },
    { label: 'Memory of keys', value: `${formatBytes(status.idempotency_bytes)} of ${formatBytes(status.idempotency_bytes_max)}` },
    { label: 'Oldest key', value: status.idempotency_oldest_at == null ? 'none' : formatTime(status.idempotency_oldest_at) },
    ...(status.deployment == null ? [] : [{ label: 'Deployment', value: deploymentText(status.deployment), wide: true }]),
    { label: 'Version', value: status.version },
    { label: 'Settings hash', value: <code>{status.settings_hash}</code> },
    { label: 'Database', value: <code>{status.database_id}</code>, wide: true },
  ];
}

/** How much of the fullest ring waits to be copied. */
function fullestPercent({ rings }: NvramStatus): number {
  const shares = rings.map((ring) => Math.max(ring.entries / ring.entries_max, ring.bytes / ring.bytes_max));
  return Math.round(Math.max(0, ...shares) * 100);
}

function nvramFacts({ nvram }: Status) {
  if (nvram == null) return [];
  const waiting = `${formatCount(nvram.records_waiting)}, flushed at ${nvram.flush}`;
  const warning = nvram.warning == null ? [] : [{ label: 'NVRAM warning', value: nvram.warning, wide: true }];
  return [
    { label: 'NVRAM', value: <code>{nvram.path}</code> },
    { label: 'Persistence', value: `${nvram.persistence}, ${formatBytes(nvram.bytes)}` },
    { label: 'Records not copied', value: waiting },
    { label: 'Fullest ring', value: `${fullestPercent(nvram)} % of ${nvram.rings.length}` },
    ...warning,
  ];
}
