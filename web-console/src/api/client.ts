// Requests to the server that served this page. Everything that is not a success leaves here as a thrown error.
import { type ProblemError, toProblem, UnreachableError } from './problem';
import { askForToken, bearerToken } from './token';

export type Answer<T> = { status: number; data: T; headers: Headers };

export async function request<T>(path: string, init: RequestInit = {}): Promise<Answer<T>> {
  const response = await send(path, init);
  if (!response.ok) throw await refusal(response);
  const data: T = response.status === 204 ? null : await response.json();
  return { status: response.status, data, headers: response.headers };
}

export async function get<T>(path: string, signal: AbortSignal): Promise<T> {
  return (await request<T>(path, { signal })).data;
}

/** A response with the token sent along, whatever its status. Throws only if there is none. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const token = bearerToken();
  if (token !== null) headers.set('Authorization', `Bearer ${token}`);
  try {
    return await fetch(path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new UnreachableError(error);
  }
}

export async function refusal(response: Response): Promise<ProblemError> {
  if (response.status === 401) askForToken();
  const text = await response.text();
  return toProblem(response.status, parsed(text));
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
