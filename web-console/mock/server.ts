// A stand-in for the server, typed by the same API: to work on the console without a database, and to test it.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type {
  CallAnswer,
  ModuleDetail,
  ModuleInstalled,
  Readiness,
  RowsPage,
  Status,
} from '../src/generated/types.gen';
import { callList, endCall } from './calls';
import { backupList, makeBackup, removeBackup } from './backups';
import { checkpointFigures, checkpointsNow } from './checkpoints';
import { MEMORY, metricsNow, resultOf } from './figures';
import { logPage, lsnOf, newestPosition, outputLines, positionOf, recordAt } from './log';
import { hexOf, moduleOf, plannedOf, rowOf, tables } from './modules';
import {
  bodyOf,
  description,
  logUnavailable,
  notFound,
  ok,
  problem,
  type Reply,
  recovering,
  rowsText,
  send,
  sendFile,
} from './replies';
import { freshnessNow, promoted, replicationNow, standbyNow } from './replication';

/** What the mock pretends: `locked` asks for the token `secret`; `silent` has no event stream; `standby` follows another server. */
export const states = ['ready', 'empty', 'recovering', 'log-error', 'locked', 'silent', 'standby'] satisfies State[];

export type State = 'ready' | 'empty' | 'recovering' | 'log-error' | 'locked' | 'silent' | 'standby';

export function stateNamed(name: string): State {
  const found = states.find((state) => state === name);
  if (found === undefined) throw new Error(`unknown state ${name}: one of ${states.join(', ')}`);
  return found;
}

export type Mock = { url: string; close: () => Promise<void> };

/** `dist`: the folder of a built console, served at /console/. Port 0 takes any. */
export async function startMock(options: { port: number; state: State; dist?: string }): Promise<Mock> {
  const mock = new MockServer(options.state, options.dist ?? 'dist');
  const server = createServer((request, response) => void mock.answer(request, response));
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
  readonly #modules = new Map<string, ModuleDetail>();

  constructor(state: State, dist: string) {
    this.#state = state;
    this.#dist = dist;
    if (state === 'empty') return;
    this.#modules.set('bank', moduleOf('bank', 1, 9_402));
    this.#modules.set('voter', moduleOf('voter', 2, 10_240));
  }

  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // As behind a proxy that serves all of it below a path of its own.
    const url = new URL((request.url ?? '/').replace(/^\/below(?=\/)/, ''), 'http://mock');
    if (/^\/(console|docs)(\/|$)/.test(url.pathname)) return sendFile(this.#dist, url.pathname, response);
    if (url.pathname === '/openapi.json') return send(response, description());
    if (url.pathname === '/readyz') return send(response, this.#readiness());
    if (this.#state === 'locked' && request.headers.authorization !== 'Bearer secret') {
      return send(response, problem(401, 'unauthorized', 'A valid token is needed', 'Send a bearer token.'));
    }
    if (url.pathname === '/v1/events' && this.#state !== 'silent') return this.#events(response);
    const body = await bodyOf(request);
    send(response, this.#route(request.method ?? 'GET', url, body, request));
  }

  #route(method: string, url: URL, body: Buffer, request: IncomingMessage): Reply {
    const [version, kind, name, more] = url.pathname.split('/').slice(1).map(decodeURIComponent);
    if (version !== 'v1') return notFound(url.pathname);
    if (kind === 'status') return ok(this.#status());
    if (this.#state === 'recovering') return recovering();
    if (kind === 'modules' && name !== undefined && more === 'rollback') return this.#rollback(name, url.searchParams);
    if (kind === 'modules') return this.#module(method, name, body, url.searchParams);
    if (kind === 'call' && name !== undefined && more !== undefined) return this.#call(name, more, body, request);
    if (kind === 'tables') return this.#table(name, more, url.searchParams, request.headers.accept);
    if (kind === 'calls') return this.#calls(method, name);
    if (kind === 'replication') return this.#replication(method, name);
    if (kind === 'checkpoints') return this.#checkpoints(method);
    if (kind === 'backups') return this.#backups(method, name);
    if (kind === 'log') return this.#log(name, url.searchParams);
    if (kind === 'procedure-log') return ok({ lines: this.#state === 'empty' ? [] : outputLines() });
    return notFound(url.pathname);
  }

  #replication(method: string, name: string | undefined): Reply {
    const isStandby = this.#state === 'standby';
    if (name === 'promote' && method === 'POST') return ok(promoted());
    if (name === 'freshness') return ok(freshnessNow(this.#state === 'empty'));
    return ok(isStandby ? standbyNow() : replicationNow(this.#state === 'empty'));
  }

  #status(): Status {
    const newest = newestPosition();
    const behind = this.#state === 'log-error' ? 1 : 0;
    return {
      role: this.#state === 'standby' ? 'standby' : 'primary',
      epoch: 3,
      phase: this.#readiness().body.phase,
      log: 'command',
      device: 'file',
      commit: 'sync',
      partitions: 4,
      sites: 2,
      committed_lsn: lsnOf(newest + 1),
      durable_lsn: lsnOf(newest + 1 - behind),
      checkpointed_lsn: this.#state === 'empty' ? null : lsnOf(1200),
      ...checkpointFigures(this.#state === 'empty'),
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
      archive:
        this.#state === 'empty'
          ? null
          : {
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

  #module(method: string, name: string | undefined, body: Buffer, query: URLSearchParams): Reply {
    if (name === undefined) {
      const modules = [...this.#modules.values()].map(({ versions: _, procedures, ...summary }) => ({
        ...summary,
        procedures: procedures.map((procedure) => procedure.name),
      }));
      return ok({ modules });
    }
    if (method === 'PUT') return this.#deploy(name, body, query.get('dry_run') === 'true');
    const module = this.#modules.get(name);
    if (module === undefined) return notFound(`module ${name}`);
    if (method !== 'DELETE') return ok(module);
    this.#modules.delete(name);
    return { status: 204, body: null };
  }

  #deploy(name: string, wasm: Buffer, isDryRun: boolean): Reply {
    if (this.#state === 'log-error') return logUnavailable();
    if (!wasm.subarray(0, 4).equals(Buffer.from([0, 0x61, 0x73, 0x6d]))) {
      const more = { reason: 'bad magic number: not a wasm binary', offset: 0 };
      const detail = 'Build the crate for wasm32-unknown-unknown and upload the .wasm file.';
      return problem(422, 'invalid-module', 'The upload is not a module that can be run', detail, more);
    }
    const before = this.#modules.get(name);
    const module = moduleOf(name, (before?.version ?? 0) + 1, wasm.length);
    if (isDryRun) return ok(plannedOf(module, before !== undefined));
    return this.#install(name, module, before, null);
  }

  #rollback(name: string, query: URLSearchParams): Reply {
    const before = this.#modules.get(name);
    const former = before?.versions.find(({ version }) => version === Number(query.get('version')));
    if (before === undefined || former === undefined) return notFound(`that version of module ${name}`);
    const module = { ...moduleOf(name, before.version + 1, former.wasm_bytes ?? 0), hash: former.hash };
    if (query.get('dry_run') === 'true') return ok({ ...plannedOf(module, true), rolled_back_to: former.version });
    return this.#install(name, module, before, former.version);
  }

  #install(name: string, module: ModuleDetail, before: ModuleDetail | undefined, rolledBackTo: number | null): Reply {
    this.#modules.set(name, module);
    const installed: ModuleInstalled = {
      module: name,
      version: module.version,
      hash: module.hash,
      procedures: module.procedures.map((procedure) => procedure.name),
      tables: module.tables,
      replaced: before?.version ?? null,
      unchanged: false,
      rolled_back_to: rolledBackTo,
      lsn: lsnOf(newestPosition()),
    };
    return { status: before === undefined ? 201 : 200, body: installed };
  }

  #call(module: string, procedure: string, body: Buffer, request: IncomingMessage): Reply {
    if (!this.#modules.get(module)?.procedures.some(({ name }) => name === procedure)) {
      return notFound(`${module}.${procedure}`);
    }
    if (this.#state === 'log-error') return logUnavailable();
    const args: Record<string, unknown> = JSON.parse(body.toString());
    if (procedure === 'transfer' && Number(args['amount']) > 1000) {
      const more = { code: 'insufficient_funds', message: `account ${String(args['from'])} holds 1000` };
      return problem(422, 'procedure-aborted', 'The procedure rolled its transaction back', more.message, more);
    }
    const position = newestPosition();
    const answer: CallAnswer = {
      result: resultOf(procedure),
      txn_id: recordAt(position).txn_id ?? '1',
      lsn: lsnOf(position),
      partition: procedure === 'vote' || procedure === 'open' ? 1 : null,
    };
    const replayed = request.headers['idempotency-key'] === 'again';
    return { status: 200, body: answer, headers: replayed ? { 'Idempotent-Replayed': 'true' } : {} };
  }

  #table(name: string | undefined, more: string | undefined, query: URLSearchParams, accept = ''): Reply {
    const shown = this.#state === 'empty' ? [] : tables;
    if (name === undefined) return ok({ tables: shown });
    const table = shown.find((candidate) => candidate.name === name);
    if (table === undefined) return notFound(`table ${name}`);
    if (more === undefined) return ok(table);
    if (more === 'groups') {
      const [column = ''] = table.indexes[0]?.columns ?? [];
      const groups = ['1', '2', '3'].map((value, at) => ({ key: { [column]: value }, count: (40 - at * 7).toString(), sums: {} }));
      return ok({ groups, continues: false, next_cursor: null, lsn: lsnOf(newestPosition()) });
    }
    const from = Number(query.get('cursor') ?? '0');
    const count = Math.min(Number(query.get('limit') ?? '100'), Math.max(table.rows - from, 0));
    const rows = Array.from({ length: count }, (_, position) => rowOf(name, from + position));
    const next = from + count < table.rows ? (from + count).toString() : null;
    if (/csv|ndjson/.test(accept)) return rowsText(accept, rows, next);
    const page: RowsPage = { rows, next_cursor: next, lsn: lsnOf(newestPosition()) };
    return ok(page);
  }

  #log(lsn: string | undefined, query: URLSearchParams): Reply {
    if (lsn !== undefined) {
      const position = positionOf(lsn);
      return position === null ? notFound(`a record at LSN ${lsn}`) : ok(recordAt(position));
    }
    if (this.#state === 'empty') return ok({ records: [recordAt(0)], next: null, oldest: '0', end: '512' });
    return ok(logPage(query));
  }

  #calls(method: string, id: string | undefined): Reply {
    if (id === undefined) return ok(callList(this.#state === 'empty'));
    const call = method === 'DELETE' ? endCall(id) : null;
    return call === null ? notFound(`call ${id}`) : ok(call);
  }

  #checkpoints(method: string): Reply {
    if (method === 'POST') return { status: 202, body: checkpointsNow(false).checkpoints[0] };
    return ok(checkpointsNow(this.#state === 'empty'));
  }

  #backups(method: string, id: string | undefined): Reply {
    if (method === 'POST') return { status: 202, body: makeBackup() };
    if (method === 'DELETE' && id !== undefined)
      return removeBackup(id) ? { status: 204, body: null } : notFound(`backup ${id}`);
    return ok(backupList(this.#state === 'empty'));
  }

  #events(response: ServerResponse): void {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    const quiet = this.#state === 'empty' || this.#state === 'recovering';
    const tick = () => response.write(`event: metrics\ndata: ${JSON.stringify(metricsNow(quiet))}\n\n`);
    tick();
    const timer = setInterval(tick, 250);
    response.on('close', () => clearInterval(timer));
  }
}
