import { expect, test } from 'vitest';
import { explain, slugs, toProblem, UnreachableError } from './problem';

test('argument errors are listed with their pointers', () => {
  const problem = toProblem(400, {
    type: '/problems/invalid-arguments',
    title: 'Invalid arguments',
    detail: 'Two arguments do not fit.',
    errors: [
      { pointer: '/amount', message: 'must be an i64' },
      { pointer: '/to', detail: 'is missing' },
    ],
  });
  expect(explain(problem)).toMatchObject({
    title: 'Invalid arguments',
    detail: 'Two arguments do not fit.',
    lines: ['/amount: must be an i64', '/to: is missing'],
  });
});

test('schema conflicts name table, column and both declarations', () => {
  const conflict = { table: 'votes', item: 'state', stored: 'text', declared: 'i32', message: 'type changed', way_on: 'add a column' };
  const problem = toProblem(409, { type: '/problems/schema-conflict', title: 'Conflict', conflicts: [conflict] });
  expect(explain(problem).lines).toEqual(['votes.state: type changed; stored text, declared i32; add a column']);
});

test('every slug of the contract is recognised, whatever stands before it', () => {
  for (const slug of slugs) {
    expect(toProblem(400, { type: `/problems/${slug}` }).slug).toBe(slug);
    expect(toProblem(400, { type: `https://example.org/problems/${slug}` }).slug).toBe(slug);
    expect(explain(toProblem(400, { type: `/problems/${slug}` })).lines).toEqual([]);
  }
});

test('answers that are no problem documents are shown too', () => {
  expect(explain(toProblem(502, '<h1>Bad gateway</h1>'))).toMatchObject({
    title: 'The server answered 502',
    detail: '<h1>Bad gateway</h1>',
  });
  expect(explain(toProblem(500, null)).title).toBe('The server answered 500');
  expect(explain(new UnreachableError(new TypeError('fetch'))).title).toBe('No connection');
  expect(explain('odd')).toMatchObject({ title: 'The console failed', detail: 'odd' });
});
