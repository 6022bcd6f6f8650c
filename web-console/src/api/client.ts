// Requests to the server that served this page, by the operations of its description: `O` is an operation's generated
// data (address, path and query), `R` its generated responses. Everything that is not a success leaves as a thrown error.
import { queryOf, type QueryValues } from '../query';
import { type ProblemError, toProblem, UnreachableError } from './problem';
import { askForToken, bearerToken } from './token';

export type Operation = { url: string; path?: Record<string, string>; query?: object };

/** Where an operation is. Query values go out as text, each item of a list as one; null and empty ones are left out. */
export type Place<O extends Operation> = {
  url: O['url'];
  query?: QueryValues<keyof NonNullable<O['query']>>;
} & (O extends { path: Record<string, string> } ? { path: O['path'] } : { path?: never });

export type Answer<T> = { data: T; headers: Headers };

export async function request<O extends Operation, R extends { 200: unknown }>(
  place: Place<O>,
  init: RequestInit,
): Promise<Answer<R[200]>> {
  const response = await send(place, init);
  if (!response.ok) throw await refusal(response);
  const data: R[200] = await response.json();
  return { data, headers: response.headers };
}

export async function get<O extends Operation, R extends { 200: unknown }>(
  place: Place<O>,
  signal: AbortSignal,
): Promise<R[200]> {
  return (await request<O, R>(place, { signal })).data;
}

/** A response with the token sent along, whatever its status. Throws only if there is none. */
export async function send<O extends Operation>(place: Place<O>, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const token = bearerToken();
  if (token !== null) headers.set('Authorization', `Bearer ${token}`);
  // The server refuses a browser's POST without a type, even one without a body: another site's page could send it.
  if (init.method === 'POST' && !headers.has('Content-Type')) headers.set('Content-Type', 'application/json');
  try {
    return await fetch(prefix() + addressOf(place), { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new UnreachableError(error);
  }
}

/** What stands before the server's own paths: a proxy may serve it below one of its own. */
export function prefixOf(pathname: string): string {
  const at = pathname.lastIndexOf('/console');
  return at < 0 ? '' : pathname.slice(0, at);
}

function prefix(): string {
  return typeof window === 'undefined' ? '' : prefixOf(window.location.pathname);
}

export async function refusal(response: Response): Promise<ProblemError> {
  if (response.status === 401) askForToken();
  const text = await response.text();
  return toProblem(response.status, parsed(text));
}

export function addressOf<O extends Operation>({ url, path, query }: Place<O>): string {
  const names: Record<string, string> = path ?? {};
  const filled = url.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(names[name] ?? ''));
  return filled + queryOf(query ?? {});
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
