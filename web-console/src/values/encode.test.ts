import { describe, expect, test } from 'vitest';
import type { TypeInfo } from '../generated/types.gen';
import { encode, encodeBody, sampleJson } from './encode';

const ok: [TypeInfo, string, string][] = [
  [{ kind: 'i64' }, '-9223372036854775808', '"-9223372036854775808"'],
  [{ kind: 'u64' }, '18446744073709551615', '"18446744073709551615"'],
  [{ kind: 'i32' }, ' 42 ', '42'],
  [{ kind: 'i32' }, '-007', '-7'],
  [{ kind: 'f64' }, '1e3', '1000'],
  [{ kind: 'f64' }, 'NaN', '"NaN"'],
  [{ kind: 'decimal', scale: 2 }, '12.50', '"12.50"'],
  [{ kind: 'text' }, 'a "quoted" word', '"a \\"quoted\\" word"'],
  [{ kind: 'text' }, '', '""'],
  [{ kind: 'bytes' }, 'AAEC', '"AAEC"'],
  [{ kind: 'timestamp' }, '2026-01-31T12:00:00.5Z', '"2026-01-31T12:00:00.5Z"'],
  [{ kind: 'list', item: { kind: 'i64' } }, '[9223372036854775807]', '[9223372036854775807]'],
  [{ kind: 'option', item: { kind: 'u8' } }, '255', '255'],
  [{ kind: 'enum', variants: ['red', 'blue'] }, 'blue', '"blue"'],
];

const wrong: [TypeInfo, string][] = [
  [{ kind: 'i64' }, '9223372036854775808'],
  [{ kind: 'u8' }, '-1'],
  [{ kind: 'u8' }, '256'],
  [{ kind: 'i32' }, ''],
  [{ kind: 'i32' }, '1.5'],
  [{ kind: 'f64' }, ''],
  [{ kind: 'decimal', scale: 2 }, '1.234'],
  [{ kind: 'bytes' }, 'AAE'],
  [{ kind: 'timestamp' }, 'tomorrow'],
  [{ kind: 'timestamp' }, '2026-13-31T12:00:00Z'],
  [{ kind: 'uuid' }, '123'],
  [{ kind: 'struct', fields: [] }, '{'],
  [{ kind: 'enum', variants: ['red'] }, 'green'],
];

describe('one value', () => {
  test.each(ok)('%j takes %s', (type, text, json) => expect(encode(type, text)).toEqual({ kind: 'json', json }));
  test.each(wrong)('%j refuses %s', (type, text) => expect(encode(type, text).kind).toBe('wrong'));
});

test('a body has every member that was given, and a complaint for each that is wrong', () => {
  const parameters = [
    { name: 'from', type: { kind: 'i64' }, required: true },
    { name: 'amount', type: { kind: 'i64' }, required: true },
    { name: 'note', type: { kind: 'option', item: { kind: 'text' } }, required: false },
    { name: 'urgent', type: { kind: 'bool' }, required: true },
  ] satisfies Parameters<typeof encodeBody>[0];
  expect(encodeBody(parameters, { from: '1', amount: '9007199254740993' })).toEqual({
    json: '{"from": "1", "amount": "9007199254740993", "urgent": false}',
    complaints: {},
  });
  expect(encodeBody(parameters, { from: 'x', amount: '' }).complaints).toEqual({
    from: 'a whole number',
    amount: 'a whole number',
  });
});

test('a sample is JSON of its type', () => {
  const type: TypeInfo = {
    kind: 'struct',
    fields: [
      { name: 'lines', type: { kind: 'list', item: { kind: 'decimal', scale: 2 } } },
      { name: 'by', type: { kind: 'option', item: { kind: 'uuid' } } },
    ],
  };
  expect(JSON.parse(sampleJson(type))).toEqual({ lines: ['0.00'], by: null });
});
