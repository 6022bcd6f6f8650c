// The log's newest records, newest first, followed live until paused.
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { logQuery, statusQuery } from '../api/queries';
import type { LogRecord } from '../api/types';
import { formatBytes, formatCount, formatTime } from '../format';
import { hrefOf, navigate, type Route } from '../route';
import { Badge } from '../ui/badge';
import { Command, serverUrl } from '../ui/command';
import { Empty } from '../ui/empty';
import { PauseIcon, PlayIcon } from '../ui/icons';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { KindBadge, kinds, partitionsText, subjectOf } from './record-text';

type LogRoute = Extract<Route, { page: 'log' }>;

export function LogPage({ route }: { route: LogRoute }) {
  const [live, setLive] = useState(true);
  const { kind, partition } = route;
  const log = useQuery(logQuery({ kind, partition }, live));
  return (
    <>
      <div className="page-head">
        <h1>Log</h1>
        <div className="filters">
          <Filters route={route} />
          <button className="button" type="button" aria-pressed={!live} onClick={() => setLive(!live)}>
            {live ? <PauseIcon /> : <PlayIcon />}
            {live ? 'Pause' : 'Follow'}
          </button>
        </div>
      </div>
      <Panel
        title="Newest records"
        side={live ? <Badge tone="good">follows every second</Badge> : <Badge tone="warn">paused</Badge>}
      >
        <Loaded query={log}>
          {(records) =>
            records.length === 0 ? (
              <NoRecords filtered={kind !== null || partition !== null} />
            ) : (
              <RecordTable records={records} />
            )
          }
        </Loaded>
      </Panel>
    </>
  );
}

function Filters({ route }: { route: LogRoute }) {
  const status = useQuery(statusQuery);
  const count = status.data?.partitions ?? 0;
  return (
    <>
      <label className="inline-field">
        Kind
        <select value={route.kind ?? ''} onChange={(event) => navigate({ ...route, kind: event.target.value })}>
          <option value="">all</option>
          {kinds.map((kind) => (
            <option key={kind}>{kind}</option>
          ))}
        </select>
      </label>
      <label className="inline-field">
        Partition
        <select
          value={route.partition ?? ''}
          onChange={(event) => navigate({ ...route, partition: event.target.value })}
        >
          <option value="">all</option>
          {Array.from({ length: count }, (_, partition) => (
            <option key={partition.toString()}>{partition}</option>
          ))}
        </select>
      </label>
    </>
  );
}

function RecordTable({ records }: { records: LogRecord[] }) {
  return (
    <Scroll label="Records">
      <table>
        <thead>
          <tr>
            <th scope="col" className="number">
              LSN
            </th>
            <th scope="col">Kind</th>
            <th scope="col">What</th>
            <th scope="col">Arguments</th>
            <th scope="col" className="number">
              Partition
            </th>
            <th scope="col" className="number">
              Size
            </th>
            <th scope="col">Time</th>
            <th scope="col">State</th>
          </tr>
        </thead>
        <tbody>
          {records.map((record) => (
            <tr key={record.lsn}>
              <td className="number">
                <a href={hrefOf({ page: 'record', lsn: record.lsn })}>{formatCount(record.lsn)}</a>
              </td>
              <td>
                <KindBadge kind={record.kind} />
              </td>
              <td className="nowrap">{subjectOf(record)}</td>
              <td className="mono clip" title={argsText(record)}>
                {argsText(record)}
              </td>
              <td className="number">{partitionsText(record)}</td>
              <td className="number">{formatBytes(record.bytes)}</td>
              <td className="nowrap">{formatTime(record.time ?? '')}</td>
              <td>{record.durable ? <span className="muted">durable</span> : <Badge tone="warn">not yet</Badge>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function NoRecords({ filtered }: { filtered: boolean }) {
  if (filtered) {
    return (
      <Empty title="No record matches">
        <a href={hrefOf({ page: 'log', kind: null, partition: null })}>Show all records</a>
      </Empty>
    );
  }
  return (
    <Empty title="The log holds no records">
      <p>
        Every committed transaction that writes leaves one. Call a procedure, from the Modules page or from a shell:
      </p>
      <Command text={`curl ${serverUrl()}/v1/call/voter/initialize --json '{"contestants": ["Ada", "Grace"]}'`} />
    </Empty>
  );
}

function argsText(record: LogRecord): string {
  const args = record.args ?? null;
  if (args === null) return '';
  return Object.entries(args)
    .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join(' ');
}
