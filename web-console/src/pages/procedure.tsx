import { useState } from 'react';
import type { PartitioningInfo, ProcedureInfo } from '../generated/types.gen';
import { Badge } from '../ui/badge';
import { typeText } from '../values/type-text';
import { CallForm } from './call-form';

type Props = { module: string; procedure: ProcedureInfo; open: boolean };

/** One procedure: its signature on a line, the form to call it when opened. */
export function Procedure({ module, procedure, open: openAtFirst }: Props) {
  const [open, setOpen] = useState(openAtFirst);
  const { name, parameters, result, read_only, partitioning } = procedure;
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
        </span>
      </summary>
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
