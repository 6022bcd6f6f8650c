import { describe, expect, it } from 'vitest';
import type { DeployPlan, PlanStep } from '../generated/types.gen';
import {
  asksFirst,
  confirmText,
  consentsOf,
  destroyedText,
  procedureText,
  retiringText,
  rowsText,
  stepText,
  timeText,
} from './plan-text';

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

  it('is shown where a procedure goes though no table changes, and its confirmation names the counts', () => {
    const destroyed = [
      { allow: 'drop-procedure:shop.list', count: 0, is_exact: true },
      { allow: 'drop-column:shop.items.price', count: 1_200, is_exact: false },
      { allow: 'abandon-table:shop.orders', count: 3, is_exact: true },
    ];
    const lost = { tables: [], conflicts: [], estimated_ms: 0, destroyed };
    expect(asksFirst(lost)).toBe(true);
    expect(confirmText(lost, 'Install')).toBe(
      'Install and delete at most 1,200 values, drop 1 procedure, leave 3 rows',
    );
    expect(confirmText(plan('drop'), 'Install')).toBe('Install');
    expect(consentsOf(lost)).toEqual(destroyed.map(({ allow }) => allow));
    expect(destroyed.map(destroyedText)).toEqual([
      'procedure shop.list',
      'column shop.items.price with at most 1,200 values',
      'the owner of table shop.orders with 3 rows',
    ]);
    expect(procedureText({ action: 'convert', procedure: 'put', detail: 'another result' })).toBe(
      'convert procedure put another result',
    );
  });

  it('says what is done, to how many rows, and for how long', () => {
    expect(stepText(step('drop'))).toBe('drop column price i64');
    expect(stepText({ action: 'create', what: 'table', item: '', detail: '' })).toBe('create table');
    expect(rowsText({ table: 't', steps: [], rows: 0, reads_rows: true })).toBe('no rows');
    expect(rowsText({ table: 't', steps: [], rows: 1, reads_rows: false })).toBe('1 row; the server reads none of them');
    expect(timeText(plan())).toContain('1,250 ms.');
    expect(timeText({ ...plan(), migrates: true })).toContain('1,250 ms, plus the time of the migration.');
    expect(retiringText({ table: 'shop.items', columns: ['id', 'price'] })).toBe(
      'reads shop.items as before the deployment (id, price)',
    );
  });
});
