import { useState } from 'react';
import type { LogChoice, PartitioningInfo, ProcedureInfo } from '../generated/types.gen';
import { Badge } from '../ui/badge';
import { typeText } from '../values/type-text';
import { CallForm } from './call-form';

type Props = { module: string; procedure: ProcedureInfo; open: boolean };

/** One procedure: its signature on a line, the form to call it when opened. */
export function Procedure({ module, procedure, open: openAtFirst }: Props) {
  const [open, setOpen] = useState(openAtFirst);
  const { name, docs, parameters, result, read_only, partitioning, log } = procedure;
  return (
    <details className="procedure" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className="signature mono">
          <b>{name}</b>
          <span>{`(${parameters.map(({ name: n, type }) => `${n}: ${typeText(type)}`).join(', ')}) → `}</span>
          {typeText(result)}
        </span>
        <span className="badges">
          {read_only ? <Badge tone="good">read only</Badge> : <Badge tone="accent">writes</Badge>}
          <Badge title={meaningOf(partitioning)}>{partitioningText(partitioning)}</Badge>
          {!read_only && <Badge title={logMeaning(log)}>log: {log.kind}</Badge>}
        </span>
      </summary>
      {open && docs != null && docs !== '' && <p className="procedure-note">{docs}</p>}
      {open && log.reason != null && <p className="muted procedure-note">Logged now as {log.reason}</p>}
      {open && <CallForm module={module} procedure={procedure} />}
    </details>
  );
}

function partitioningText(partitioning: PartitioningInfo): string {
  switch (partitioning.kind) {
    case 'by':
      return `by ${partitioning.parameters.join(', ')}`;
    case 'all':
      return 'all partitions';
    case 'any':
      return 'any partition';
  }
}

function meaningOf(partitioning: PartitioningInfo): string {
  switch (partitioning.kind) {
    case 'by':
      return 'Runs on the partitions that these arguments name';
    case 'all':
      return 'Runs on all partitions';
    case 'any':
      return 'Runs on any one partition, over replicated tables';
  }
}

function logMeaning({ kind, declared }: LogChoice): string {
  const by = declared == null ? 'by the server’s setting' : 'as the module declares';
  switch (kind) {
    case 'command':
      return `The log records the arguments of a call, ${by}`;
    case 'physiological':
      return `The log records the changed rows of a call, ${by}`;
    case 'both':
      return `The log records the arguments and the changed rows of a call, ${by}`;
    case 'auto':
      return `The log records the cheaper form of a call by measurement, ${by}`;
    default:
      return `The log records nothing of a call, ${by}`;
  }
}
