import type { ReactNode } from 'react';

/** The heading of a column, which is empty for a column of buttons. A column of numbers stands to the right. */
export type Heading = string | { number: string };

type Props = { headings: Heading[]; children: ReactNode };

/** A table of these columns. Its children are the rows. */
export function Table({ headings, children }: Props) {
  return (
    <table>
      <thead>
        <tr>
          {headings.map((heading) => {
            if (heading === '') return <td key="" />;
            const text = typeof heading === 'string' ? heading : heading.number;
            return (
              <th key={text} scope="col" className={typeof heading === 'string' ? undefined : 'number'}>
                {text}
              </th>
            );
          })}
        </tr>
      </thead>
      <tbody>{children}</tbody>
    </table>
  );
}
