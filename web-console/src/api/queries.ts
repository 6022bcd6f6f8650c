// What the pages read, each with its key and its pace. Pages name a query and never a path.
import { keepPreviousData, queryOptions } from '@tanstack/react-query';
import { get, refusal, request, send } from './client';
import type {
  CallAnswer,
  LogPage,
  LogRecord,
  ModuleDetail,
  ModuleInstalled,
  ModuleList,
  ProcedureLog,
  Readiness,
  RowsPage,
  Status,
  TableInfo,
  TableList,
} from './types';

export const statusQuery = queryOptions({
  queryKey: ['status'],
  queryFn: ({ signal }) => get<Status>('/v1/status', signal),
  refetchInterval: 2000,
});

/** Asked only while the server is not ready: 503 is an answer here, not an error. */
export const readinessQuery = queryOptions({
  queryKey: ['readyz'],
  queryFn: async ({ signal }): Promise<Readiness> => {
    const response = await send('/readyz', { signal });
    if (response.ok || response.status === 503) return response.json();
    throw await refusal(response);
  },
  refetchInterval: 1000,
});

export const modulesQuery = queryOptions({
  queryKey: ['modules'],
  queryFn: async ({ signal }) => (await get<ModuleList>('/v1/modules', signal)).modules,
  refetchInterval: 10_000,
});

export function moduleQuery(module: string) {
  return queryOptions({
    queryKey: ['modules', module],
    queryFn: ({ signal }) => get<ModuleDetail>(`/v1/modules/${encodeURIComponent(module)}`, signal),
  });
}

export const tablesQuery = queryOptions({
  queryKey: ['tables'],
  queryFn: async ({ signal }) => (await get<TableList>('/v1/tables', signal)).tables,
  refetchInterval: 5000,
});

export function tableQuery(table: string) {
  return queryOptions({
    queryKey: ['tables', table],
    queryFn: ({ signal }) => get<TableInfo>(`/v1/tables/${encodeURIComponent(table)}`, signal),
    refetchInterval: 5000,
  });
}

export type RowsWanted = { table: string; index: string | null; prefix: string | null; cursor: string | null };

export const rowsPerPage = 50;

export function rowsQuery({ table, index, prefix, cursor }: RowsWanted) {
  return queryOptions({
    queryKey: ['tables', table, 'rows', index, prefix, cursor],
    queryFn: ({ signal }) => {
      const path = `/v1/tables/${encodeURIComponent(table)}/rows`;
      return get<RowsPage>(withQuery(path, { limit: String(rowsPerPage), index, prefix, cursor }), signal);
    },
    placeholderData: keepPreviousData,
  });
}

export type LogWanted = { kind: string | null; partition: string | null; from: string | null };

export const recordsPerPage = 100;

/** Records newest first: the newest of all, or those before `from`. */
export function logQuery({ kind, partition, from }: LogWanted, live: boolean) {
  return queryOptions({
    queryKey: ['log', kind, partition, from],
    queryFn: ({ signal }) => {
      const order = { order: 'newest', limit: String(recordsPerPage) };
      return get<LogPage>(withQuery('/v1/log', { ...order, kind, partition, from }), signal);
    },
    placeholderData: keepPreviousData,
    refetchInterval: live ? 1000 : false,
  });
}

/** What procedures wrote with `log`, newest first. */
export function procedureLogQuery(live: boolean) {
  return queryOptions({
    queryKey: ['procedure-log'],
    queryFn: async ({ signal }) => (await get<ProcedureLog>('/v1/procedure-log?limit=200', signal)).lines,
    refetchInterval: live ? 1000 : false,
  });
}

export function recordQuery(lsn: string) {
  return queryOptions({
    queryKey: ['log', 'record', lsn],
    queryFn: ({ signal }) => get<LogRecord>(`/v1/log/${encodeURIComponent(lsn)}`, signal),
    refetchInterval: (query) => (query.state.data?.durable === false ? 1000 : false),
  });
}

export async function deployModule(module: string, wasm: Blob): Promise<ModuleInstalled> {
  const { data } = await request<ModuleInstalled>(`/v1/modules/${encodeURIComponent(module)}`, {
    method: 'PUT',
    headers: { 'Content-Type': 'application/wasm' },
    body: wasm,
  });
  return data;
}

export async function removeModule(module: string): Promise<void> {
  await request<null>(`/v1/modules/${encodeURIComponent(module)}`, { method: 'DELETE' });
}

export type Call = { module: string; procedure: string; body: string; idempotencyKey: string };

export type CallOutcome = CallAnswer & { replayed: boolean; elapsedMs: number };

/** The body goes out as typed: integers wider than a double keep their digits. */
export async function callProcedure({ module, procedure, body, idempotencyKey }: Call): Promise<CallOutcome> {
  const headers = new Headers({ 'Content-Type': 'application/json' });
  if (idempotencyKey !== '') headers.set('Idempotency-Key', idempotencyKey);
  const started = performance.now();
  const path = `/v1/call/${encodeURIComponent(module)}/${encodeURIComponent(procedure)}`;
  const answer = await request<CallAnswer>(path, { method: 'POST', headers, body });
  const replayed = answer.headers.get('Idempotent-Replayed') === 'true';
  return { ...answer.data, replayed, elapsedMs: performance.now() - started };
}

function withQuery(path: string, values: Record<string, string | null>): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) if (value !== null && value !== '') params.set(key, value);
  return `${path}?${params}`;
}
