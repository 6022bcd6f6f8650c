// What a plan says, in words.
import { formatCount, plural } from '../format';
import type { DeployPlan, PlanStep, TablePlan } from '../generated/types.gen';

/** Tables that are there change: whoever uploads should see how before it is done. */
export function asksFirst(plan: DeployPlan): boolean {
  return plan.conflicts.length > 0 || plan.tables.some(({ steps }) => steps.some(({ action }) => action !== 'create'));
}

export function stepText({ action, what, item, detail }: PlanStep): string {
  return [action, what, item, detail].filter((part) => part !== '').join(' ');
}

export function rowsText({ rows, reads_rows }: TablePlan): string {
  if (rows === 0) return 'no rows';
  return `${plural(rows, 'row')}, ${reads_rows ? 'all of them read' : 'none of them read'}`;
}

export function timeText({ estimated_ms }: DeployPlan): string {
  return `All partitions stand still for about ${formatCount(estimated_ms)} ms.`;
}
