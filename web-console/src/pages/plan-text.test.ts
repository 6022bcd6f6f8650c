import { describe, expect, it } from 'vitest';
import type { DeployPlan, PlanStep } from '../generated/types.gen';
import { asksFirst, retiringText, rowsText, stepText, timeText } from './plan-text';

const step = (action: string): PlanStep => ({ action, what: 'column', item: 'price', detail: 'i64' });

function plan(...actions: string[]): DeployPlan {
  const steps = actions.map(step);
  return { tables: [{ table: 'shop.items', steps, rows: 12_345, reads_rows: true }], conflicts: [], estimated_ms: 1_250 };
}

describe('a plan', () => {
  it('is shown first where tables that are there change', () => {
    expect(asksFirst(plan('drop'))).toBe(true);
    expect(asksFirst(plan('create', 'rename'))).toBe(true);
    expect(asksFirst(plan('create'))).toBe(false);
    expect(asksFirst({ tables: [], conflicts: [], estimated_ms: 0 })).toBe(false);
    expect(asksFirst({ tables: [], conflicts: [], migrates: true, estimated_ms: 0 })).toBe(true);
  });

  it('is shown where it can’t be carried out', () => {
    const conflict = { table: 't', item: 'c', stored: 'i64', declared: 'text', message: 'differs', way_on: 'add one' };
    expect(asksFirst({ tables: [], conflicts: [conflict], estimated_ms: 0 })).toBe(true);
  });

  it('says what is done, to how many rows, and for how long', () => {
    expect(stepText(step('drop'))).toBe('drop column price i64');
    expect(stepText({ action: 'create', what: 'table', item: '', detail: '' })).toBe('create table');
    expect(rowsText({ table: 't', steps: [], rows: 0, reads_rows: true })).toBe('no rows');
    expect(rowsText({ table: 't', steps: [], rows: 1, reads_rows: false })).toBe('1 row, none of them read');
    expect(timeText(plan())).toContain('1,250 ms.');
    expect(timeText({ ...plan(), migrates: true })).toContain('1,250 ms, and for what the module runs.');
    expect(retiringText({ table: 'shop.items', columns: ['id', 'price'] })).toBe(
      'reads shop.items as it is now (id, price), for the last time',
    );
  });
});
