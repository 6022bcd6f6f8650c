import type { UseQueryResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { ProblemError, UnreachableError } from '../api/problem';
import { ProblemNotice } from './problem-notice';

type Props<T> = { query: UseQueryResult<T>; children: (data: T) => ReactNode };

/**
 * A query's three states. Data that was read once stays on screen while a later reading fails. What ails the server as
 * a whole is said once, at the head of the page, and not again in every panel.
 */
export function Loaded<T>({ query, children }: Props<T>) {
  if (query.data === undefined) {
    if (query.isError && !isSaidAtHead(query.error)) return <ProblemNotice error={query.error} />;
    return (
      <p className="loading" role="status">
        {query.isError ? 'Waiting for the server…' : 'Loading…'}
      </p>
    );
  }
  return (
    <>
      {query.isError && !isSaidAtHead(query.error) && <ProblemNotice error={query.error} />}
      {children(query.data)}
    </>
  );
}

function isSaidAtHead(error: Error): boolean {
  if (error instanceof UnreachableError) return true;
  return (
    error instanceof ProblemError && (error.slug === 'unauthorized' || error.slug === 'recovering')
  );
}
