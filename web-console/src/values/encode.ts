// From what a person typed to JSON text, by the parameter's type. Text, not values: 64-bit integers keep their digits.
import type { ParameterInfo, TypeInfo } from '../generated/types.gen';
import { isTimestamp } from './timestamp';

export type Encoded = { kind: 'json'; json: string } | { kind: 'left-out' } | { kind: 'wrong'; complaint: string };

/** What stands in a form's fields, by parameter name. */
export type Typed = Record<string, string>;

export type Body = { json: string; complaints: Record<string, string> };

export function encodeBody(parameters: ParameterInfo[], typed: Typed): Body {
  const members: string[] = [];
  const complaints: Record<string, string> = {};
  for (const { name, type } of parameters) {
    const encoded = encode(type, typed[name] ?? initialText(type));
    switch (encoded.kind) {
      case 'json':
        members.push(`${JSON.stringify(name)}: ${encoded.json}`);
        break;
      case 'wrong':
        complaints[name] = encoded.complaint;
        break;
      case 'left-out':
        break;
    }
  }
  return { json: members.length === 0 ? '{}' : `{${members.join(', ')}}`, complaints };
}

export function encode(type: TypeInfo, text: string): Encoded {
  if (isInteger(type)) return encodeInteger(type.kind, text.trim());
  switch (type.kind) {
    case 'unit':
      return json('null');
    case 'bool':
      return text === 'true' || text === 'false' ? json(text) : wrong('true or false');
    case 'f64':
      return encodeFloat(text.trim());
    case 'decimal':
      return encodeDecimal(type.scale, text.trim());
    case 'text':
      return json(JSON.stringify(text));
    case 'bytes':
      return isBase64(text.trim()) ? json(JSON.stringify(text.trim())) : wrong('base64, with its padding');
    case 'timestamp':
      return isTimestamp(text.trim()) ? json(JSON.stringify(text.trim())) : wrong('a time such as 2026-01-31T12:00:00Z');
    case 'uuid':
      return uuid.test(text.trim())
        ? json(JSON.stringify(text.trim().toLowerCase()))
        : wrong('a UUID such as 3f2504e0-4f89-41d3-9a0c-0305e82c3301');
    case 'option':
      return text === '' ? { kind: 'left-out' } : encode(type.item, text);
    case 'list':
    case 'struct':
      return encodeJson(type, text);
    case 'enum':
      return type.variants.includes(text) ? json(JSON.stringify(text)) : wrong('choose one');
  }
}

/** What a field holds before anybody types. */
export function initialText(type: TypeInfo): string {
  if (isTyped(type)) return '';
  switch (type.kind) {
    case 'bool':
      return 'false';
    case 'enum':
      return type.variants[0] ?? '';
    case 'list':
      return '[]';
    case 'struct':
      return sampleJson(type);
    case 'option':
      return '';
  }
}

/** A value of the type to start from. */
export function sampleJson(type: TypeInfo): string {
  if (isInteger(type)) return '0';
  switch (type.kind) {
    case 'unit':
    case 'option':
      return 'null';
    case 'bool':
      return 'false';
    case 'f64':
      return '0';
    case 'decimal':
      return JSON.stringify(type.scale === 0 ? '0' : `0.${'0'.repeat(type.scale)}`);
    case 'text':
    case 'bytes':
      return '""';
    case 'timestamp':
      return '"2026-01-01T00:00:00Z"';
    case 'uuid':
      return '"00000000-0000-0000-0000-000000000000"';
    case 'list':
      return `[${sampleJson(type.item)}]`;
    case 'struct':
      return `{${type.fields.map((field) => `${JSON.stringify(field.name)}: ${sampleJson(field.type)}`).join(', ')}}`;
    case 'enum':
      return JSON.stringify(type.variants[0] ?? '');
  }
}

const integerBits = { i8: 8n, i16: 16n, i32: 32n, i64: 64n, u8: 8n, u16: 16n, u32: 32n, u64: 64n };

type IntegerKind = keyof typeof integerBits;
type TypedKind = IntegerKind | 'unit' | 'f64' | 'decimal' | 'text' | 'bytes' | 'timestamp' | 'uuid';

function isInteger(type: TypeInfo): type is Extract<TypeInfo, { kind: IntegerKind }> {
  return type.kind in integerBits;
}

/** True for a type whose values are typed into a line of text, and neither chosen nor written as JSON. */
export function isTyped(type: TypeInfo): type is Extract<TypeInfo, { kind: TypedKind }> {
  return isInteger(type) || ['unit', 'f64', 'decimal', 'text', 'bytes', 'timestamp', 'uuid'].includes(type.kind);
}

function encodeInteger(kind: IntegerKind, text: string): Encoded {
  const bits = integerBits[kind];
  const signed = kind.startsWith('i');
  const min = signed ? -(1n << (bits - 1n)) : 0n;
  const max = signed ? (1n << (bits - 1n)) - 1n : (1n << bits) - 1n;
  if (!/^-?\d+$/.test(text)) return wrong('a whole number');
  const value = BigInt(text);
  if (value < min || value > max) return wrong(`from ${min} to ${max}`);
  return json(bits === 64n ? JSON.stringify(value.toString()) : value.toString());
}

function encodeFloat(text: string): Encoded {
  if (text === 'NaN' || text === 'Infinity' || text === '-Infinity') return json(JSON.stringify(text));
  const value = Number(text);
  return text !== '' && Number.isFinite(value) ? json(JSON.stringify(value)) : wrong('a number');
}

function encodeDecimal(scale: number, text: string): Encoded {
  const shape = /^-?\d+(?:\.(\d+))?$/.exec(text);
  if (shape === null) return wrong('a decimal number');
  if ((shape[1] ?? '').length > scale) return wrong(`at most ${scale} digits after the point`);
  return json(JSON.stringify(text));
}

function encodeJson(type: TypeInfo, text: string): Encoded {
  try {
    JSON.parse(text);
    return json(text);
  } catch {
    return wrong(`JSON such as ${sampleJson(type)}`);
  }
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

function isBase64(text: string): boolean {
  return text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text);
}

function json(text: string): Encoded {
  return { kind: 'json', json: text };
}

function wrong(complaint: string): Encoded {
  return { kind: 'wrong', complaint };
}
