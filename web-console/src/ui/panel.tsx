import type { ReactNode } from 'react';

type Props = { title: ReactNode; side?: ReactNode; children: ReactNode };

export function Panel({ title, side, children }: Props) {
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>{title}</h2>
        {side !== undefined && <div className="side">{side}</div>}
      </div>
      {children}
    </section>
  );
}
