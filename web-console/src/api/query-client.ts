import { QueryClient } from '@tanstack/react-query';
import { isTimeout, ProblemError } from './problem';

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 500,
      retry: shouldRetry,
      retryDelay: 800,
      // The server is mostly this machine or the local network, whatever the browser thinks of being online.
      networkMode: 'always',
    },
    mutations: { networkMode: 'always' },
  },
});

/**
 * Whether a failed read is repeated before the page says that it failed. A server that is away may come back. A refusal is an
 * answer, which a second read would only repeat. After a timeout the page must say at once that the server does not answer.
 */
export function shouldRetry(failures: number, error: Error): boolean {
  return !(error instanceof ProblemError) && !isTimeout(error) && failures < 2;
}
