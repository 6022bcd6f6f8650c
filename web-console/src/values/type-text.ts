import type { TypeInfo } from '../generated/types.gen';

/** A type on one line, as signatures write it. */
export function typeText(type: TypeInfo): string {
  switch (type.kind) {
    case 'unit':
      return '()';
    case 'decimal':
      return `decimal(${type.scale})`;
    case 'option':
      return `${typeText(type.item)}?`;
    case 'list':
      return `[${typeText(type.item)}]`;
    case 'struct':
      return `{${type.fields.map((field) => `${field.name}: ${typeText(field.type)}`).join(', ')}}`;
    case 'enum':
      return type.variants.map((variant) => JSON.stringify(variant)).join(' | ');
    case 'bool':
    case 'i8':
    case 'i16':
    case 'i32':
    case 'i64':
    case 'u8':
    case 'u16':
    case 'u32':
    case 'u64':
    case 'f64':
    case 'text':
    case 'bytes':
    case 'timestamp':
    case 'uuid':
      return type.kind;
  }
}
