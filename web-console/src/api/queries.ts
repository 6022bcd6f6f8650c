// What the pages read, each with its key and its pace. Pages name a query and never a path.
import { keepPreviousData, type QueryClient, queryOptions } from '@tanstack/react-query';
import type {
  FreshnessData,
  FreshnessResponses,
  ListBackupsData,
  ListBackupsResponses,
  ListCallsData,
  ListCallsResponses,
  ListCheckpointsData,
  ListCheckpointsResponses,
  ListGroupsData,
  ListGroupsResponses,
  ListLogData,
  ListLogResponses,
  ListModulesData,
  ListModulesResponses,
  ListRowsData,
  ListRowsResponses,
  ListTablesData,
  ListTablesResponses,
  ProcedureLogData,
  ProcedureLogResponses,
  Readiness,
  ReadyzData,
  ShowModuleData,
  ShowModuleResponses,
  ShowRecordData,
  ShowRecordResponses,
  ShowReplicationData,
  ShowReplicationResponses,
  ShowTableData,
  ShowTableResponses,
  StatusData,
  StatusResponses,
} from '../generated/types.gen';
import { get, readText, refusal, send } from './client';

export const statusQuery = queryOptions({
  queryKey: ['status'],
  queryFn: ({ signal }) => get<StatusData, StatusResponses>({ url: '/v1/status' }, signal),
  refetchInterval: 2000,
});

/** Asked only while the server is not ready: 503 is an answer here, not an error. */
export const readinessQuery = queryOptions({
  queryKey: ['readyz'],
  queryFn: async ({ signal }): Promise<Readiness> => {
    const response = await send<ReadyzData>({ url: '/readyz' }, { signal });
    if (response.ok || response.status === 503) return JSON.parse(await readText(response, signal));
    throw await refusal(response);
  },
  refetchInterval: 1000,
});

type Page<T> = { items: T[]; next: string | null | undefined };

/** The items of all pages of a list. */
export async function allPages<T>(ask: (cursor: string | null) => Promise<Page<T>>): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<T> = await ask(cursor);
    items.push(...page.items);
    cursor = page.next ?? null;
  } while (cursor !== null);
  return items;
}

export const modulesQuery = queryOptions({
  queryKey: ['modules'],
  queryFn: ({ signal }) =>
    allPages(async (cursor) => {
      const page = await get<ListModulesData, ListModulesResponses>({ url: '/v1/modules', query: { cursor } }, signal);
      return { items: page.modules, next: page.next_cursor };
    }),
  refetchInterval: 10_000,
});

export function moduleQuery(module: string) {
  return queryOptions({
    queryKey: ['modules', module],
    queryFn: ({ signal }) =>
      get<ShowModuleData, ShowModuleResponses>({ url: '/v1/modules/{module}', path: { module } }, signal),
    refetchInterval: 5000,
  });
}

export const tablesQuery = queryOptions({
  queryKey: ['tables'],
  queryFn: ({ signal }) =>
    allPages(async (cursor) => {
      const page = await get<ListTablesData, ListTablesResponses>({ url: '/v1/tables', query: { cursor } }, signal);
      return { items: page.tables, next: page.next_cursor };
    }),
  refetchInterval: 5000,
});

export function tableQuery(table: string) {
  return queryOptions({
    queryKey: ['tables', table],
    queryFn: ({ signal }) =>
      get<ShowTableData, ShowTableResponses>({ url: '/v1/tables/{table}', path: { table } }, signal),
    refetchInterval: 5000,
  });
}

export type RangeWanted = {
  table: string;
  index: string | null;
  prefix: string | null;
  from: string | null;
  to: string | null;
  /** Conditions that all must hold. */
  where: string[];
};

export type RowsWanted = RangeWanted & { reverse: string | null; cursor: string | null };

export const rowsPerPage = 50;

export function rowsQuery({ table, ...wanted }: RowsWanted) {
  return queryOptions({
    queryKey: ['tables', table, 'rows', wanted],
    queryFn: ({ signal }) => {
      const query = { limit: rowsPerPage.toString(), ...wanted };
      return get<ListRowsData, ListRowsResponses>({ url: '/v1/tables/{table}/rows', path: { table }, query }, signal);
    },
    placeholderData: keepPreviousData,
  });
}

/** Counts and sums by the first column of the index. */
export function groupsQuery({ table, ...wanted }: RangeWanted & { sum: string | null }) {
  return queryOptions({
    queryKey: ['tables', table, 'groups', wanted],
    queryFn: ({ signal }) =>
      get<ListGroupsData, ListGroupsResponses>(
        { url: '/v1/tables/{table}/groups', path: { table }, query: wanted },
        signal,
      ),
    placeholderData: keepPreviousData,
  });
}

export type LogWanted = {
  kind: string | null;
  partition: string | null;
  procedure: string | null;
  /** Conditions `name:value` that all must hold. */
  argument: string[];
  key: string | null;
  since: string | null;
  until: string | null;
  from: string | null;
};

const recordsPerPage = 100;

/** Records newest first: the newest of all, or those before `from`. */
export function logQuery(wanted: LogWanted, live: boolean) {
  return queryOptions({
    queryKey: ['log', wanted],
    queryFn: ({ signal }) => {
      const query = { order: 'newest', limit: recordsPerPage.toString(), ...wanted };
      return get<ListLogData, ListLogResponses>({ url: '/v1/log', query }, signal);
    },
    placeholderData: keepPreviousData,
    refetchInterval: live ? 1000 : false,
  });
}

export function recordQuery(lsn: string) {
  return queryOptions({
    queryKey: ['log', 'record', lsn],
    queryFn: ({ signal }) => get<ShowRecordData, ShowRecordResponses>({ url: '/v1/log/{lsn}', path: { lsn } }, signal),
    refetchInterval: (query) => (query.state.data?.durable === false ? 1000 : false),
  });
}

/** What runs and waits changes by the moment. */
export const callsQuery = queryOptions({
  queryKey: ['calls'],
  queryFn: ({ signal }) => get<ListCallsData, ListCallsResponses>({ url: '/v1/calls' }, signal),
  refetchInterval: 1000,
});

/** Followed closely while one is under way. */
export const backupsQuery = queryOptions({
  queryKey: ['backups'],
  queryFn: async ({ signal }) =>
    (await get<ListBackupsData, ListBackupsResponses>({ url: '/v1/backups' }, signal)).backups,
  refetchInterval: 2000,
});

export const checkpointsQuery = queryOptions({
  queryKey: ['checkpoints'],
  queryFn: ({ signal }) =>
    get<ListCheckpointsData, ListCheckpointsResponses>({ url: '/v1/checkpoints' }, signal),
  refetchInterval: (query) =>
    query.state.data?.checkpoints.some(({ state }) => state === 'running') === true ? 500 : 2000,
});

/** Standbys move all the time. */
export const replicationQuery = queryOptions({
  queryKey: ['replication'],
  queryFn: ({ signal }) =>
    get<ShowReplicationData, ShowReplicationResponses>({ url: '/v1/replication' }, signal),
  refetchInterval: 1000,
});

/** Returns the seconds since 1970 by the server's clock, or by the browser's clock if no status has come. */
function serverSeconds(client: QueryClient): number {
  const status = client.getQueryState(statusQuery.queryKey);
  if (status?.data === undefined) return Date.now() / 1000;
  const { started_at, uptime_s } = status.data;
  return Date.parse(started_at) / 1000 + uptime_s + (Date.now() - status.dataUpdatedAt) / 1000;
}

/** The last five minutes, by the second. */
export const freshnessQuery = queryOptions({
  queryKey: ['replication', 'freshness'],
  queryFn: ({ client, signal }) => {
    const from = Math.max(Math.floor(serverSeconds(client)) - 300, 0);
    return get<FreshnessData, FreshnessResponses>(
      { url: '/v1/replication/freshness', query: { from: from.toString() } },
      signal,
    );
  },
  refetchInterval: 1000,
});

const linesMax = 200;

/** What procedures wrote with `log`, newest first. */
export type LinesWanted = { procedure: string | null; level: string | null; transaction: string | null };

export function procedureLogQuery(wanted: LinesWanted, live: boolean) {
  return queryOptions({
    queryKey: ['procedure-log', wanted],
    queryFn: async ({ signal }) => {
      const query = { limit: linesMax.toString(), ...wanted };
      return (await get<ProcedureLogData, ProcedureLogResponses>({ url: '/v1/procedure-log', query }, signal)).lines;
    },
    refetchInterval: live ? 1000 : false,
  });
}
