import type { ReactNode } from 'react';

export type Fact = { label: string; value: ReactNode; wide?: boolean };

export function Facts({ facts, inline = false }: { facts: Fact[]; inline?: boolean }) {
  return (
    <dl className={inline ? 'facts inline' : 'facts'}>
      {facts.map(({ label, value, wide }) => (
        <div key={label} className={wide === true ? 'wide' : undefined}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
