import type { ReactNode } from 'react';

/** A wide table's own scroll area, reachable by keyboard. */
export function Scroll({ label, children }: { label: string; children: ReactNode }) {
  return (
    // Focusable, because a box that scrolls must be reachable without a pointer.
    <section className="scroll" aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}
