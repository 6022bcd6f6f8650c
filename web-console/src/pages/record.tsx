// One record of the log, decoded.
import { useQuery } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { recordQuery, replicationQuery } from '../api/queries';
import { formatBytes, formatCount, formatTime } from '../format';
import type { LogRecord } from '../generated/types.gen';
import { hrefOf, logRoute } from '../route';
import { Badge } from '../ui/badge';
import { Crumbs } from '../ui/crumbs';
import { type Fact, Facts } from '../ui/facts';
import { Json } from '../ui/json';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { placesOf, placeText } from './record-places';
import { KindBadge, partitionsText, subjectOf } from './record-text';

export function RecordPage({ lsn }: { lsn: string }) {
  const query = useQuery(recordQuery(lsn));
  return (
    <>
      <div className="page-head">
        <Crumbs to={logRoute} section="Log" name={formatCount(lsn)} />
        {query.data !== undefined && (
          <span className="badges">
            <KindBadge kind={query.data.kind} />
            {query.data.durable ? <Badge tone="good">durable</Badge> : <Badge tone="warn">not durable yet</Badge>}
          </span>
        )}
      </div>
      <Loaded query={query}>{(record) => <Record record={record} />}</Loaded>
    </>
  );
}

function Record({ record }: { record: LogRecord }) {
  const node = useQuery(replicationQuery).data;
  const places = placesOf(record.lsn, node).map((place) => placeText(place, node));
  return (
    <>
      <Panel title={<Subject record={record} />}>
        <div className="panel-body">
          <Facts facts={factsOf(record)} />
        </div>
      </Panel>
      {record.kind === 'command' && (
        <Panel title="Arguments">
          <div className="panel-body">
            <Json value={record.args ?? {}} label="Arguments" />
          </div>
        </Panel>
      )}
      {(record.kind === 'changes' || record.kind === 'part') && (
        <Panel title="Changed rows">
          <div className="panel-body">
            <Json value={record.rows ?? []} label="Changed rows" />
          </div>
        </Panel>
      )}
      <Panel title="Where it lies">
        <div className="panel-body">
          <Facts
            facts={[
              { label: 'Segment', value: <code>{record.segment}</code> },
              { label: 'Offset in the segment', value: formatCount(record.offset) },
              { label: 'Size', value: formatBytes(record.bytes) },
              { label: 'LSN', value: formatCount(record.lsn) },
              ...(places.length > 0 ? [{ label: 'Standbys', value: places.join('; ') }] : []),
            ]}
          />
        </div>
      </Panel>
    </>
  );
}

function Subject({ record }: { record: LogRecord }) {
  const module = record.module ?? null;
  if (module === null || record.kind === 'genesis' || record.kind === 'checkpoint') return subjectOf(record);
  const procedure = record.procedure ?? null;
  return <a href={hrefOf({ page: 'module', module, procedure })}>{subjectOf(record)}</a>;
}

function factsOf(record: LogRecord): Fact[] {
  return [
    fact('Transaction', record.txn_id, (id) => <code>{id}</code>),
    fact('Time', record.time, formatTime),
    fact('Partitions', partitionsText(record), (text) => text),
    fact('Module version', record.version, (version) => version),
    fact('Module hash', record.hash, (hash) => <code>{hash}</code>),
    fact('Module size', record.wasm_bytes, formatBytes),
    fact('Digest of write set and result', record.digest, (digest) => <code>{digest}</code>),
    fact('Number of the part', record.part, (number) => number),
    fact('Parts before it', record.parts, (count) => count),
    fact('Called by', record.principal, (name) => name),
    fact('Idempotency key', record.idempotency_key, (key) => <code>{key}</code>),
    fact('Database', record.database_id, (id) => <code>{id}</code>),
    fact('Partitions of the database', record.partition_count, (count) => count),
  ].flat();
}

/** The fact, if the record has it: each kind has members of its own. */
function fact<T extends string | number>(
  label: string,
  value: T | null | undefined,
  show: (value: T) => ReactNode,
): Fact[] {
  return value === undefined || value === null || value === '' ? [] : [{ label, value: show(value) }];
}
