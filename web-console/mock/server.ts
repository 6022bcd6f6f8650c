// A stand-in for the server in states that a real one is seldom in, typed by the same API. It answers what pages read.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { GroupsPage, Readiness, RowsPage, Status, TableInfo } from '../src/generated/types.gen';
import { backupList } from './backups';
import { callList, endCall } from './calls';
import { checkpointFigures, checkpointsNow } from './checkpoints';
import { MEMORY, metricsNow } from './figures';
import { logPage, lsnOf, newestPosition, outputLines, positionOf, recordAt } from './log';
import { hexOf, moduleOf, rowOf, tables } from './modules';
import { description, notFound, ok, problem, type Reply, recovering, send, sendFile } from './replies';
import { freshnessNow, replicationNow, standbyNow } from './replication';

/**
 * The states that the mock pretends. `locked` asks for the token `secret`. `silent` has no event stream. `stalled` has one that sends
 * one event and then nothing, and its clock is an hour slow. `standby` follows another server.
 */
export const states = ['ready', 'recovering', 'log-error', 'locked', 'silent', 'stalled', 'standby'] satisfies State[];

export type State = 'ready' | 'recovering' | 'log-error' | 'locked' | 'silent' | 'stalled' | 'standby';

const slowClockMs = -3_600_000;
/** Rows that the server visits for one page, whether or not they match. */
const visitedMax = 20_000;
/** A table of more rows takes longer than a page of groups may take. */
const groupedMax = 1_000_000;

export function stateNamed(name: string): State {
  const found = states.find((state) => state === name);
  if (found === undefined) throw new Error(`unknown state ${name}: one of ${states.join(', ')}`);
  return found;
}

export type Mock = { url: string; close: () => Promise<void> };

/** `dist`: the folder of a built console, served at /console/. Port 0 takes any. */
export async function startMock(options: { port: number; state: State; dist?: string }): Promise<Mock> {
  const mock = new MockServer(options.state, options.dist ?? 'dist');
  const server = createServer((request, response) => mock.answer(request, response));
  await new Promise<void>((resolve) => server.listen(options.port, '127.0.0.1', resolve));
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : options.port;
  const close = () =>
    new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  return { url: `http://127.0.0.1:${port}`, close };
}

class MockServer {
  readonly #state: State;
  readonly #dist: string;
  readonly #started = Date.now() - 93_784_000;

  constructor(state: State, dist: string) {
    this.#state = state;
    this.#dist = dist;
  }

  answer(request: IncomingMessage, response: ServerResponse): void {
    // As behind a proxy that serves all of it below a path of its own.
    const url = new URL((request.url ?? '/').replace(/^\/below(?=\/)/, ''), 'http://mock');
    if (/^\/(console|docs)(\/|$)/.test(url.pathname)) return sendFile(this.#dist, url.pathname, response);
    if (url.pathname === '/openapi.json') return send(response, description());
    if (url.pathname === '/readyz') return send(response, this.#readiness());
    if (this.#state === 'locked' && request.headers.authorization !== 'Bearer secret') {
      return send(response, problem(401, 'unauthorized', 'A valid token is needed', 'Send a bearer token.'));
    }
    if (url.pathname === '/v1/events' && this.#state !== 'silent') return this.#events(response);
    send(response, this.#route(request.method ?? 'GET', url));
  }

  #route(method: string, url: URL): Reply {
    const [version, kind, name, more] = url.pathname.split('/').slice(1).map(decodeURIComponent);
    if (version !== 'v1') return notFound(url.pathname);
    if (kind === 'status') return ok(this.#status());
    if (this.#state === 'recovering') return recovering();
    if (kind === 'calls' && method === 'DELETE' && name !== undefined) return endedCall(name);
    if (method !== 'GET') return problem(403, 'read-only', 'The mock changes nothing', 'Try it on a real server.');
    switch (kind) {
      case 'modules':
        return moduleReply(name);
      case 'tables':
        return tableReply(name, more, url.searchParams);
      case 'calls':
        return ok(callList());
      case 'replication':
        return this.#replication(name);
      case 'checkpoints':
        return ok(checkpointsNow());
      case 'backups':
        return ok(backupList());
      case 'log':
        return logReply(name, url.searchParams);
      case 'procedure-log':
        return ok({ lines: outputLines() });
      default:
        return notFound(url.pathname);
    }
  }

  #replication(name: string | undefined): Reply {
    if (name === 'freshness') return ok(freshnessNow());
    return ok(this.#state === 'standby' ? standbyNow() : replicationNow());
  }

  #status(): Status {
    const committed = Number(lsnOf(newestPosition()));
    const open = this.#state === 'log-error' ? 1 : 0;
    return {
      role: this.#state === 'standby' ? 'standby' : 'primary',
      epoch: 3,
      phase: this.#readiness().body.phase,
      log: 'command',
      device: 'file',
      commit: 'sync',
      partitions: 4,
      sites: 2,
      committed_lsn: committed.toString(),
      // The end behind the last durable record.
      durable_lsn: (committed + 1 - open).toString(),
      checkpointed_lsn: lsnOf(1200),
      ...checkpointFigures(),
      log_error: this.#state === 'log-error' ? 'write 0000000000000001.log: no space left on device' : null,
      started_at: new Date(this.#started).toISOString(),
      uptime_s: Math.floor((Date.now() - this.#started) / 1000),
      version: '0.1.0',
      database_id: hexOf('database', 32),
      settings_hash: hexOf('settings', 16),
      idempotency_keys: 1_204,
      idempotency_bytes: 412_672,
      idempotency_bytes_max: 536_870_912,
      idempotency_keep_s: 86_400,
      idempotency_oldest_at: new Date(this.#started).toISOString(),
      waiting: 0,
      deployment: null,
      memory: MEMORY,
      archive: {
        directory: '/mnt/archive',
        files: 41,
        bytes: 2_700_000_000,
        oldest_checkpoint_lsn: '4096',
        held_bytes: this.#state === 'log-error' ? 31_000_000 : 0,
        held_bytes_max: 17_179_869_184,
        failures: 1,
        error: this.#state === 'log-error' ? 'write archive.tmp: read-only file system' : null,
        failed_at: this.#state === 'log-error' ? new Date(Date.now() - 3_000_000).toISOString() : null,
      },
    };
  }

  #readiness(): { status: number; body: Readiness } {
    if (this.#state !== 'recovering') return { status: 200, body: { ready: true, phase: { name: 'ready' } } };
    const total = 734_003_200;
    const done = Math.min(total, 280_000_000 + (Date.now() % 60_000) * 4000);
    const percent = Math.floor((1000 * done) / total) / 10;
    const phase = { percent, replayed: Math.floor(done / 72), bytes_done: done, bytes_total: total };
    return { status: 503, body: { ready: false, phase: { name: 'recovering', step: 'log', ...phase } } };
  }

  #events(response: ServerResponse): void {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    const quiet = this.#state === 'recovering';
    const clockMs = this.#state === 'stalled' ? slowClockMs : 0;
    const tick = () => response.write(`event: metrics\ndata: ${JSON.stringify(metricsNow(quiet, clockMs))}\n\n`);
    tick();
    if (this.#state === 'stalled') return;
    const timer = setInterval(tick, 250);
    response.on('close', () => clearInterval(timer));
  }
}

function moduleReply(name: string | undefined): Reply {
  const detail = moduleOf(2, 10_240);
  if (name !== undefined) return name === detail.module ? ok(detail) : notFound(`module ${name}`);
  const { versions: _, procedures, ...summary } = detail;
  return ok({ modules: [{ ...summary, procedures: procedures.map((procedure) => procedure.name) }], next_cursor: null });
}

function tableReply(name: string | undefined, more: string | undefined, query: URLSearchParams): Reply {
  if (name === undefined) return ok({ tables, next_cursor: null });
  const table = tables.find((candidate) => candidate.name === name);
  if (table === undefined) return notFound(`table ${name}`);
  if (more === undefined) return ok(table);
  return ok(more === 'groups' ? groupsOf(table, query) : rowsOf(table, query));
}

/** The page of a large table ends inside its last group. If there is a condition, the part that was read has no match. */
function groupsOf(table: TableInfo, query: URLSearchParams): GroupsPage {
  const [column = ''] = table.indexes[0]?.columns ?? [];
  const isPart = table.rows > groupedMax;
  const summed = (query.get('sum') ?? '').split(',').filter((name) => name !== '');
  const group = (value: string, at: number) => ({
    key: { [column]: value },
    count: (40 - at * 7).toString(),
    sums: Object.fromEntries(summed.map((name) => [name, (900 - at).toString()])),
  });
  const groups = isPart && query.has('where') ? [] : ['1', '2', '3'].map(group);
  const continues = isPart && groups.length > 0;
  return { groups, continues, next_cursor: isPart ? '4' : null, lsn: lsnOf(newestPosition()) };
}

/** The rows that meet every condition `column:eq:value`. */
function rowsOf({ name, rows: count }: TableInfo, query: URLSearchParams): RowsPage {
  const limit = Number(query.get('limit') ?? '100');
  const conditions = query.getAll('where').map((text) => text.split(':'));
  const rows: RowsPage['rows'] = [];
  let position = Number(query.get('cursor') ?? '0');
  const end = Math.min(position + visitedMax, count);
  for (; position < end && rows.length < limit; position += 1) {
    const row = rowOf(name, position);
    if (conditions.every(([column = '', , value]) => String(row[column]) === value)) rows.push(row);
  }
  return { rows, next_cursor: position < count ? position.toString() : null, lsn: lsnOf(newestPosition()) };
}

function logReply(lsn: string | undefined, query: URLSearchParams): Reply {
  if (lsn === undefined) return ok(logPage(query));
  const position = positionOf(lsn);
  return position === null ? notFound(`a record at LSN ${lsn}`) : ok(recordAt(position));
}

function endedCall(id: string): Reply {
  const call = endCall(id);
  return call === null ? notFound(`call ${id}`) : ok(call);
}
