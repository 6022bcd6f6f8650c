import type { TableInfo } from '../generated/types.gen';

export function placementText({ placement, partition_column }: TableInfo): string {
  switch (placement) {
    case 'by_column':
      return `by ${partition_column ?? 'column'}`;
    case 'replicated':
      return 'on every partition';
    case 'local':
      return 'local to each partition';
  }
}
