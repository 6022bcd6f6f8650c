import type { ReactNode } from 'react';

export type Fact = { label: string; value: ReactNode };

export function Facts({ facts, inline = false }: { facts: Fact[]; inline?: boolean }) {
  return (
    <dl className={inline ? 'facts inline' : 'facts'}>
      {facts.map(({ label, value }) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
