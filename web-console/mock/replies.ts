// Answers of the mock, and how they are sent.
import { existsSync, readFileSync, statSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { extname, join, normalize } from 'node:path';

/** A body of text goes out as it is, with the type that its headers name. */
export type Reply = { status: number; body: unknown; headers?: Record<string, string> };

const problemType = 'application/problem+json';

const mediaTypes: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.woff2': 'font/woff2',
};

/** The server's own: what it forbids must show in the tests. */
const policy =
  "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'self'; frame-ancestors 'none'";

/** The API's description, from the golden file beside the console. */
export function description(): Reply {
  const body: unknown = JSON.parse(readFileSync(join('..', 'sdk', 'api', 'openapi.json'), 'utf8'));
  return ok(body);
}

/** A file of the built console: /console/… and /docs/… lie side by side in one folder. */
export function sendFile(dist: string, path: string, response: ServerResponse): void {
  if (/^\/(console|docs)$/.test(path)) {
    response.writeHead(307, { Location: `${path.slice(1)}/` });
    response.end();
    return;
  }
  const inside = path.startsWith('/console') ? path.slice('/console'.length) : path;
  let file = join(dist, normalize(inside));
  if (existsSync(file) && statSync(file).isDirectory()) file = join(file, 'index.html');
  if (!existsSync(file)) {
    send(response, notFound(path));
    return;
  }
  const type = mediaTypes[extname(file)] ?? 'application/octet-stream';
  response.writeHead(200, { 'Content-Type': type, 'Content-Security-Policy': policy });
  response.end(readFileSync(file));
}

export function ok(body: unknown): Reply {
  return { status: 200, body };
}

export function problem(status: number, slug: string, title: string, detail: string, more: object = {}): Reply {
  const body = { type: `/problems/${slug}`, title, status, detail, ...more };
  return { status, body, headers: { 'Content-Type': problemType } };
}

/** A page of rows as lines of JSON or CSV. */
export function rowsText(mediaType: string, rows: object[], next: string | null): Reply {
  const lines = rows.map((row) => JSON.stringify(row));
  const fields = rows.map((row) => Object.values(row).join(','));
  const names = Object.keys(rows[0] ?? {}).join(',');
  const body = mediaType === 'text/csv' ? [names, ...fields, ''].join('\r\n') : [...lines, ''].join('\n');
  const headers = { 'Content-Type': mediaType, ...(next === null ? {} : { 'Reprise-Next-Cursor': next }) };
  return { status: 200, body, headers };
}

export function notFound(what: string): Reply {
  return problem(404, 'not-found', 'Nothing of this name is here', `There is no ${what}.`);
}

export function logUnavailable(): Reply {
  const detail = 'write 0000000000000001.log: no space left on device';
  return problem(503, 'log-unavailable', 'The log can’t be written', detail);
}

export function recovering(): Reply {
  return problem(503, 'recovering', 'The database is not open yet', 'The log is being replayed; see /readyz.');
}

export function send(response: ServerResponse, { status, body, headers }: Reply): void {
  response.writeHead(status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store', ...headers });
  const isText = typeof body === 'string' && headers?.['Content-Type'] !== undefined;
  response.end(body === null ? undefined : isText ? body : JSON.stringify(body));
}

export async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(Buffer.from(chunk));
  return Buffer.concat(chunks);
}
