import type { UseQueryResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { ProblemNotice } from './problem-notice';

type Props<T> = { query: UseQueryResult<T>; children: (data: T) => ReactNode };

/** A query's three states. Data that was read once stays on screen while a later reading fails. */
export function Loaded<T>({ query, children }: Props<T>) {
  if (query.data === undefined) {
    if (query.isError) return <ProblemNotice error={query.error} />;
    return (
      <p className="loading" role="status">
        Loading…
      </p>
    );
  }
  return (
    <>
      {query.isError && <ProblemNotice error={query.error} />}
      {children(query.data)}
    </>
  );
}
