// Answers of the mock, and how they are sent.
import { existsSync, readFileSync, statSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { extname, join, normalize } from 'node:path';

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

export function notFound(what: string): Reply {
  return problem(404, 'not-found', 'Nothing of this name is here', `There is no ${what}.`);
}

export function recovering(): Reply {
  return problem(503, 'recovering', 'The database is not open yet', 'The log is being replayed; see /readyz.');
}

export function send(response: ServerResponse, { status, body, headers }: Reply): void {
  response.writeHead(status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store', ...headers });
  response.end(JSON.stringify(body));
}
