// What a plan says, in words.
import { formatCount, plural } from '../format';
import type { DeployPlan, PlanStep, RetiringTable, TablePlan } from '../generated/types.gen';

/** Tables that are there change: whoever uploads should see how before it is done. */
export function asksFirst(plan: DeployPlan): boolean {
  return plan.migrates === true || plan.conflicts.length > 0 || plan.tables.some(({ steps }) => steps.some(({ action }) => action !== 'create'));
}

export function stepText({ action, what, item, detail }: PlanStep): string {
  return [action, what, item, detail].filter((part) => part !== '').join(' ');
}

export function rowsText({ rows, reads_rows }: TablePlan): string {
  if (rows === 0) return 'no rows';
  return `${plural(rows, 'row')}, ${reads_rows ? 'all of them read' : 'none of them read'}`;
}

/** A table of which only the deployment's own run still sees these columns. */
export function retiringText({ table, columns }: RetiringTable): string {
  return `reads ${table} as it is now (${columns.join(', ')}), for the last time`;
}

export function timeText({ estimated_ms, migrates }: DeployPlan): string {
  const more = migrates === true ? ', and for what the module runs' : '';
  return `All partitions stand still for about ${formatCount(estimated_ms)} ms${more}.`;
}
