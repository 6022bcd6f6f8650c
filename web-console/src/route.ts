// The console's pages by URL. The fragment carries the page, so any file server and any prefix can serve the console.
import { useSyncExternalStore } from 'react';
import type { LogWanted } from './api/queries';
import { queryOf } from './query';

export type Route =
  | { page: 'overview' }
  | { page: 'modules' }
  | { page: 'module'; module: string; procedure: string | null }
  | { page: 'tables' }
  | {
      page: 'table';
      table: string;
      view: 'rows' | 'counts' | 'schema';
      index: string | null;
      prefix: string | null;
      from: string | null;
      to: string | null;
      where: string[];
      /** `true`, or null. */
      reverse: string | null;
      cursor: string | null;
    }
  | ({ page: 'log' } & LogWanted)
  | { page: 'output'; procedure: string | null; level: string | null; transaction: string | null }
  | { page: 'calls' }
  | { page: 'checkpoints' }
  | { page: 'backups' }
  | { page: 'replication' }
  | { page: 'record'; lsn: string }
  | { page: 'unknown'; path: string };

export function parseRoute(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  const params = new URLSearchParams(query);
  const parts = path.split('/').filter((part) => part !== '');
  const [head, encoded, ...more] = parts;
  const unknown: Route = { page: 'unknown', path };
  const name = encoded === undefined ? null : decode(encoded);
  if (more.length > 0) return unknown;
  switch (head) {
    case undefined:
      return { page: 'overview' };
    case 'modules':
      return name === null ? { page: 'modules' } : { page: 'module', module: name, procedure: params.get('procedure') };
    case 'tables':
      return name === null
        ? { page: 'tables' }
        : {
            page: 'table',
            table: name,
            view: viewOf(params.get('view')),
            index: params.get('index'),
            prefix: params.get('prefix'),
            from: params.get('from'),
            to: params.get('to'),
            where: params.getAll('where'),
            reverse: params.get('reverse'),
            cursor: params.get('cursor'),
          };
    case 'log':
      return name === null
        ? {
            page: 'log',
            kind: params.get('kind'),
            partition: params.get('partition'),
            procedure: params.get('procedure'),
            argument: params.getAll('argument'),
            key: params.get('key'),
            since: params.get('since'),
            until: params.get('until'),
            from: params.get('from'),
          }
        : { page: 'record', lsn: name };
    case 'calls':
      return name === null ? { page: 'calls' } : unknown;
    case 'checkpoints':
      return name === null ? { page: 'checkpoints' } : unknown;
    case 'backups':
      return name === null ? { page: 'backups' } : unknown;
    case 'replication':
      return name === null ? { page: 'replication' } : unknown;
    case 'output':
      return name === null
        ? {
            page: 'output',
            procedure: params.get('procedure'),
            level: params.get('level'),
            transaction: params.get('transaction'),
          }
        : unknown;
    default:
      return unknown;
  }
}

export function hrefOf(route: Route): string {
  switch (route.page) {
    case 'overview':
      return '#/';
    case 'modules':
      return '#/modules';
    case 'module':
      return `#/modules/${encodeURIComponent(route.module)}${queryOf({ procedure: route.procedure })}`;
    case 'tables':
      return '#/tables';
    case 'table': {
      const { index, prefix, from, to, where, reverse, cursor } = route;
      const view = route.view === 'rows' ? null : route.view;
      const more = queryOf({ view, index, prefix, from, to, where, reverse, cursor });
      return `#/tables/${encodeURIComponent(route.table)}${more}`;
    }
    case 'log':
      return `#/log${queryOf({
        kind: route.kind,
        partition: route.partition,
        procedure: route.procedure,
        argument: route.argument,
        key: route.key,
        since: route.since,
        until: route.until,
        from: route.from,
      })}`;
    case 'record':
      return `#/log/${encodeURIComponent(route.lsn)}`;
    case 'calls':
      return '#/calls';
    case 'checkpoints':
      return '#/checkpoints';
    case 'backups':
      return '#/backups';
    case 'replication':
      return '#/replication';
    case 'output':
      return `#/output${queryOf({ procedure: route.procedure, level: route.level, transaction: route.transaction })}`;
    case 'unknown':
      return `#/${route.path}`;
  }
}

/** The newest records of all. */
export const logRoute: Route = {
  page: 'log',
  kind: null,
  partition: null,
  procedure: null,
  argument: [],
  key: null,
  since: null,
  until: null,
  from: null,
};

/** The newest lines of all procedures. */
export const outputRoute: Route = { page: 'output', procedure: null, level: null, transaction: null };

/** A table's page at its beginning. */
export function tableRoute(table: string): Route {
  return {
    page: 'table',
    table,
    view: 'rows',
    index: null,
    prefix: null,
    from: null,
    to: null,
    where: [],
    reverse: null,
    cursor: null,
  };
}

export function navigate(route: Route): void {
  window.location.hash = hrefOf(route);
}

export function useRoute(): Route {
  return parseRoute(useSyncExternalStore(subscribe, () => window.location.hash));
}

function subscribe(onChange: () => void): () => void {
  window.addEventListener('hashchange', onChange);
  return () => window.removeEventListener('hashchange', onChange);
}

function viewOf(text: string | null): 'rows' | 'counts' | 'schema' {
  return text === 'schema' || text === 'counts' ? text : 'rows';
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone % typed by hand: shown as it is, and answered with "not found"
  }
}

