import type { ReactNode } from 'react';
import { isFields } from '../api/problem';

/** A JSON value, indented and coloured. Text stays selectable as valid JSON. */
export function Json({ value, label }: { value: unknown; label: string }) {
  return (
    // Focusable, because a box that scrolls must be reachable without a pointer.
    <section className="json" aria-label={label} tabIndex={0}>
      <pre>{node(value, '')}</pre>
    </section>
  );
}

function node(value: unknown, indent: string): ReactNode {
  if (typeof value === 'string') return <span className="string">{JSON.stringify(value)}</span>;
  if (Array.isArray(value)) {
    const items: unknown[] = value;
    return block(
      '[',
      ']',
      indent,
      items.map((item, position) => ({ key: String(position), head: null, item })),
    );
  }
  if (isFields(value)) {
    const entries = Object.entries(value);
    return block(
      '{',
      '}',
      indent,
      entries.map(([name, item]) => ({ key: name, head: keyOf(name), item })),
    );
  }
  return <span className="atom">{value === undefined ? 'null' : JSON.stringify(value)}</span>;
}

type Member = { key: string; head: ReactNode; item: unknown };

function block(open: string, close: string, indent: string, members: Member[]): ReactNode {
  if (members.length === 0) return open + close;
  const inner = `${indent}  `;
  return (
    <>
      {open}
      {members.map(({ key, head, item }, position) => (
        <span key={key}>
          {`\n${inner}`}
          {head}
          {node(item, inner)}
          {position < members.length - 1 && ','}
        </span>
      ))}
      {`\n${indent}${close}`}
    </>
  );
}

function keyOf(name: string): ReactNode {
  return (
    <>
      <span className="key">{JSON.stringify(name)}</span>
      {': '}
    </>
  );
}
