// The log's newest records, newest first, followed live until paused.
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { logQuery, replicationQuery, statusQuery } from '../api/queries';
import { formatBytes, formatCount, formatTime, plural } from '../format';
import type { LogRecord, Replication } from '../generated/types.gen';
import { hrefOf, logRoute, navigate, type Route } from '../route';
import { Badge } from '../ui/badge';
import { Command, serverUrl } from '../ui/command';
import { Empty } from '../ui/empty';
import { type FilterField, FilterForm } from '../ui/filter-form';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { FollowBadge, FollowButton, LogHead } from './log-head';
import { placesOf, placeText } from './record-places';
import { KindBadge, kinds, partitionsText, subjectOf } from './record-text';

type LogRoute = Extract<Route, { page: 'log' }>;

export function LogPage({ route }: { route: LogRoute }) {
  const [following, setFollowing] = useState(true);
  const { page: _, ...wanted } = route;
  const { from, ...conditions } = wanted;
  // Older records don't change: only the newest are followed.
  const live = following && from === null;
  const log = useQuery(logQuery(wanted, live));
  const node = useQuery(replicationQuery).data;
  // While a read waits, the page shows the records of the former one. Its position says nothing about this one.
  const older = log.isPlaceholderData ? null : (log.data?.next ?? null);
  return (
    <>
      <div className="page-head">
        <LogHead view="records" />
        <div className="filters">
          <Filters route={route} />
          {from === null ? (
            <FollowButton following={following} onChange={setFollowing} />
          ) : (
            <a className="button" href={hrefOf({ ...route, from: null })}>
              Newest
            </a>
          )}
        </div>
      </div>
      <Panel
        title={from === null ? 'Newest records' : `Records before ${formatCount(from)}`}
        side={from === null && <FollowBadge following={following} />}
      >
        <SearchForm key={searchOf(route)} route={route} />
        <Loaded query={log}>
          {({ records, unsearched, next }) => (
            <>
              {unsearched && (
                <p className="muted">
                  The search could not include {formatCount(unsearched)} transactions, because the log has their{' '}
                  {route.key === null ? 'changed rows and not their calls' : 'calls and not their changed rows'}. A
                  server with --log both logs both.
                </p>
              )}
              {records.length === 0 ? (
                <NoRecords
                  filtered={Object.values(conditions).some((value) => value !== null && value.length > 0)}
                  more={next != null}
                />
              ) : (
                <RecordTable records={records} node={node} />
              )}
            </>
          )}
        </Loaded>
        <div className="pager">
          <span className="muted" aria-live="polite">
            {log.data === undefined ? '' : `${plural(log.data.records.length, 'record')} on this page`}
            {log.isPlaceholderData && ', loading…'}
          </span>
          {older !== null && (
            <a className="button" href={hrefOf({ ...route, from: older })}>
              Older records
            </a>
          )}
        </div>
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
        <select
          value={route.kind ?? ''}
          onChange={(event) => navigate({ ...route, kind: event.target.value, from: null })}
        >
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
          onChange={(event) => navigate({ ...route, partition: event.target.value, from: null })}
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

/** What the form shows. Kind and partition are beside it: they change without losing what is typed here. */
function searchOf({ procedure, argument, key, since, until }: LogRoute): string {
  return JSON.stringify([procedure, argument, key, since, until]);
}

function SearchForm({ route }: { route: LogRoute }) {
  const { procedure, argument, key, since, until } = route;
  // A field for each argument, and one for another.
  const conditions = [...argument, ''].map((text, position) => ({
    name: `argument ${position}`,
    label: position === 0 ? 'Argument' : 'and',
    placeholder: 'name:value',
    text,
  }));
  const fields: FilterField<string>[] = [
    { name: 'procedure', label: 'Procedure', placeholder: 'name' },
    ...conditions,
    { name: 'key', label: 'Key', placeholder: 'row key or idempotency key' },
    { name: 'since', label: 'Since', placeholder: timePlaceholder, title: timeTitle },
    { name: 'until', label: 'Until', placeholder: timePlaceholder, title: timeTitle },
  ];
  return (
    <FilterForm
      label="Records to show"
      fields={fields}
      values={{ procedure, key, since, until, ...Object.fromEntries(conditions.map(({ name, text }) => [name, text])) }}
      onApply={(values: Record<string, string | null>) =>
        navigate({
          ...route,
          procedure: values.procedure ?? null,
          argument: conditions.map(({ name }) => values[name] ?? '').filter((text) => text !== ''),
          key: values.key ?? null,
          since: values.since ?? null,
          until: values.until ?? null,
          from: null,
        })
      }
    />
  );
}

const timePlaceholder = '2026-11-27T12:00:00Z';
const timeTitle = 'RFC 3339. Records at the time of Since match; those at the time of Until do not';

type RecordTableProps = { records: LogRecord[]; node: Replication | undefined };

function RecordTable({ records, node }: RecordTableProps) {
  return (
    <Scroll label="Records">
      <Table
        headings={[
          { number: 'LSN' },
          'Kind',
          'What',
          'Arguments',
          { number: 'Partition' },
          { number: 'Size' },
          'Time',
          'State',
        ]}
      >
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
            <td className="nowrap">
              {record.durable ? <span className="muted">durable</span> : <Badge tone="warn">not yet</Badge>}
              {placesOf(record.lsn, node).map((place) => (
                <span className="muted" key={place.state}>
                  {`; ${placeText(place, node)}`}
                </span>
              ))}
            </td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function NoRecords({ filtered, more }: { filtered: boolean; more: boolean }) {
  if (filtered) {
    return (
      <Empty title={more ? 'No record matches in the part that was searched' : 'No record matches'}>
        <a href={hrefOf(logRoute)}>Show all records</a>
      </Empty>
    );
  }
  return (
    <Empty title="The log has no records yet">
      <p>
        Each committed write leaves a record. Call a procedure from the Modules page or from a shell:
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
