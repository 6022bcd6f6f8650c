// The bearer token of this tab, and whether the server asks for one. Kept in sessionStorage: it ends with the tab.
import { useSyncExternalStore } from 'react';

type TokenState = { token: string | null; wanted: boolean };

const storageKey = 'reprise-token';
let state: TokenState = { token: readStored(), wanted: false };
const listeners = new Set<() => void>();

export function bearerToken(): string | null {
  return state.token;
}

/** Keeps the token; null forgets it. Asking again for the data is the caller's part. */
export function setToken(token: string | null): void {
  if (token === null) window.sessionStorage.removeItem(storageKey);
  else window.sessionStorage.setItem(storageKey, token);
  publish({ token, wanted: false });
}

/** An answer 401 came: the token is missing, unknown or withdrawn. */
export function askForToken(): void {
  if (!state.wanted) publish({ ...state, wanted: true });
}

export function useToken(): TokenState {
  return useSyncExternalStore(subscribe, () => state);
}

function publish(next: TokenState): void {
  state = next;
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function readStored(): string | null {
  return typeof window === 'undefined' ? null : window.sessionStorage.getItem(storageKey);
}
