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

/** Time limit of a read in milliseconds. A host may vanish without closing its connections, so a read could wait for minutes. */
const readTimeoutMs = 30_000;

export async function request<O extends Operation, R extends { 200: unknown }>(
  place: Place<O>,
  init: RequestInit,
): Promise<Answer<R[200]>> {
  const response = await send(place, init);
  if (!response.ok) throw await refusal(response);
  const data: R[200] = JSON.parse(await readText(response, init.signal));
  return { data, headers: response.headers };
}

export async function get<O extends Operation, R extends { 200: unknown }>(
  place: Place<O>,
  signal: AbortSignal,
): Promise<R[200]> {
  return (await request<O, R>(place, { signal })).data;
}

/**
 * Sends a request with the token and returns the response, whatever its status. Throws only if there is none. A read has a time
 * limit, which covers the body too. Null is no limit.
 */
export async function send<O extends Operation>(
  place: Place<O>,
  init: RequestInit,
  timeoutMs: number | null = init.method === undefined ? readTimeoutMs : null,
): Promise<Response> {
  const headers = new Headers(init.headers);
  const token = bearerToken();
  if (token !== null) headers.set('Authorization', `Bearer ${token}`);
  // The server refuses a browser's POST without a type, even one without a body: another site's page could send it.
  if (init.method === 'POST' && !headers.has('Content-Type')) headers.set('Content-Type', 'application/json');
  const signal = withTimeout(init.signal, timeoutMs);
  return reached(fetch(prefix() + addressOf(place), { ...init, headers, signal }), init.signal);
}

/** Reads the body of a response. `signal` is the one that the page gave for the request. */
export function readText(response: Response, signal: AbortSignal | null | undefined): Promise<string> {
  return reached(response.text(), signal);
}

/** Waits for a response or its body. If that fails and the page did not abort it, the server is out of reach. */
async function reached<T>(part: Promise<T>, signal: AbortSignal | null | undefined): Promise<T> {
  try {
    return await part;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new UnreachableError(error);
  }
}

function withTimeout(signal: AbortSignal | null | undefined, timeoutMs: number | null): AbortSignal | null {
  if (timeoutMs === null) return signal ?? null;
  const timeout = AbortSignal.timeout(timeoutMs);
  return signal == null ? timeout : AbortSignal.any([signal, timeout]);
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
  // The status is known. If the rest does not come, it is the whole problem.
  const text = await response.text().catch(() => '');
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
