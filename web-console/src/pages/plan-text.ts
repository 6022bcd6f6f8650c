// What a plan says, in words.
import { formatCount, plural } from '../format';
import type { DeployPlan, Destroyed, PlanStep, ProcedurePlan, RetiringTable, TablePlan } from '../generated/types.gen';

/** Tables that are there change, or something is destroyed: the operator sees how before it is done. */
export function asksFirst(plan: DeployPlan): boolean {
  const changesTable = plan.tables.some(({ steps }) => steps.some(({ action }) => action !== 'create'));
  return plan.migrates === true || plan.conflicts.length > 0 || destroyedBy(plan).length > 0 || changesTable;
}

/** What needs consent. */
export function destroyedBy(plan: DeployPlan): Destroyed[] {
  return plan.destroyed ?? [];
}

/** The consents that a confirmation of the plan gives. */
export function consentsOf(plan: DeployPlan): string[] {
  return destroyedBy(plan).map(({ allow }) => allow);
}

/** One destroyed thing with its count. */
export function destroyedText({ allow, count, is_exact }: Destroyed): string {
  const [kind = '', name = ''] = allow.split(':');
  const most = is_exact ? '' : 'at most ';
  switch (kind) {
    case 'drop-column':
      return `column ${name} with ${most}${plural(count, 'value')}`;
    case 'drop-procedure':
      return `procedure ${name}`;
    case 'abandon-table':
      return `the owner of table ${name} with ${most}${plural(count, 'row')}`;
    default:
      return `${allow} (${most}${formatCount(count)})`;
  }
}

/** The words on the button that confirms: how much goes. */
export function confirmText(plan: DeployPlan, otherwise: string): string {
  const destroyed = destroyedBy(plan);
  if (destroyed.length === 0) return otherwise;
  const most = destroyed.every(({ is_exact }) => is_exact) ? '' : 'at most ';
  const of = (kind: string) => destroyed.filter(({ allow }) => allow.startsWith(`${kind}:`));
  const sum = (kind: string) => of(kind).reduce((total, { count }) => total + count, 0);
  const parts = [];
  if (of('drop-column').length > 0) parts.push(`delete ${most}${plural(sum('drop-column'), 'value')}`);
  if (of('drop-procedure').length > 0) parts.push(`drop ${plural(of('drop-procedure').length, 'procedure')}`);
  if (of('abandon-table').length > 0) parts.push(`leave ${plural(sum('abandon-table'), 'row')}`);
  return `${otherwise} and ${parts.join(', ')}`;
}

export function procedureText({ action, procedure, detail }: ProcedurePlan): string {
  return [action, 'procedure', procedure, detail].filter((part) => part !== '').join(' ');
}

export function stepText({ action, what, item, detail }: PlanStep): string {
  return [action, what, item, detail].filter((part) => part !== '').join(' ');
}

export function rowsText({ rows, reads_rows }: TablePlan): string {
  if (rows === 0) return 'no rows';
  return `${plural(rows, 'row')}; the server reads ${reads_rows ? 'all of them' : 'none of them'}`;
}

/** A table as the deployment's own run sees it. */
export function retiringText({ table, columns }: RetiringTable): string {
  return `reads ${table} as before the deployment (${columns.join(', ')})`;
}

export function timeText({ estimated_ms, migrates }: DeployPlan): string {
  const more = migrates === true ? ', plus the time of the migration' : '';
  return `All partitions pause for about ${formatCount(estimated_ms)} ms${more}.`;
}
