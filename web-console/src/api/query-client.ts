import { QueryClient } from '@tanstack/react-query';
import { ProblemError } from './problem';

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 500,
      // A refusal is an answer: asking again would only repeat it. A server that is away may come back.
      retry: (failures, error) => !(error instanceof ProblemError) && failures < 2,
      retryDelay: 800,
      // The server is mostly this machine or the local network, whatever the browser thinks of being online.
      networkMode: 'always',
    },
    mutations: { networkMode: 'always' },
  },
});
