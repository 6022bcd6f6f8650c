import type { RecordKind, LogRecord } from '../generated/types.gen';
import { Badge } from '../ui/badge';

export const kinds = [
  'command',
  'changes',
  'checkpoint',
  'deploy',
  'remove',
  'drop_table',
  'genesis',
  'void',
  'quarantine',
  'part',
] satisfies RecordKind[];

export function KindBadge({ kind }: { kind: RecordKind }) {
  switch (kind) {
    case 'command':
      return <Badge>command</Badge>;
    case 'changes':
      return <Badge>changes</Badge>;
    case 'checkpoint':
      return <Badge tone="accent">checkpoint</Badge>;
    case 'deploy':
      return <Badge tone="accent">deploy</Badge>;
    case 'remove':
      return <Badge tone="warn">remove</Badge>;
    case 'drop_table':
      return <Badge tone="warn">drop table</Badge>;
    case 'genesis':
      return <Badge tone="accent">genesis</Badge>;
    case 'void':
      return <Badge>void</Badge>;
    case 'quarantine':
      return <Badge tone="warn">quarantine</Badge>;
    case 'part':
      return <Badge>part</Badge>;
  }
}

/** What a record is about, in a few words. */
export function subjectOf(record: LogRecord): string {
  const module = record.module ?? 'unknown module';
  switch (record.kind) {
    case 'command':
    case 'changes':
    case 'quarantine':
    case 'part':
      return `${module}.${record.procedure ?? 'unknown procedure'}`;
    case 'deploy':
      return record.version === undefined || record.version === null ? module : `${module} version ${record.version}`;
    case 'remove':
      return module;
    case 'drop_table':
      return record.table ?? 'unknown table';
    case 'checkpoint':
      return 'a checkpoint holds what lies before';
    case 'genesis':
      return 'the log’s first record';
    case 'void':
      return 'a number lost in a crash, without a record';
  }
}

/** Transactions on all partitions are written with an empty list. */
export function partitionsText({ partitions }: LogRecord): string {
  if (partitions === undefined || partitions === null) return '';
  return partitions.length === 0 ? 'all' : partitions.join(', ');
}
