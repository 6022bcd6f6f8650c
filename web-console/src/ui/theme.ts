// Light, dark, or what the system says. Kept in localStorage; the style sheet does the rest.
import { useSyncExternalStore } from 'react';

export type Theme = 'system' | 'light' | 'dark';

const storageKey = 'reprise-theme';
const listeners = new Set<() => void>();
const systemDark = window.matchMedia('(prefers-color-scheme: dark)');
let theme: Theme = readStored();

export function applyStoredTheme(): void {
  apply();
}

export function nextTheme(current: Theme): Theme {
  switch (current) {
    case 'system':
      return 'light';
    case 'light':
      return 'dark';
    case 'dark':
      return 'system';
  }
}

export function setTheme(next: Theme): void {
  theme = next;
  if (next === 'system') window.localStorage.removeItem(storageKey);
  else window.localStorage.setItem(storageKey, next);
  apply();
  for (const listener of listeners) listener();
}

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, () => theme);
}

/** The colours that are on screen now: charts paint with them and must know when they change. */
export function useColours(): 'light' | 'dark' {
  return useSyncExternalStore(subscribe, () => {
    if (theme !== 'system') return theme;
    return systemDark.matches ? 'dark' : 'light';
  });
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  systemDark.addEventListener('change', listener);
  return () => {
    listeners.delete(listener);
    systemDark.removeEventListener('change', listener);
  };
}

function apply(): void {
  if (theme === 'system') delete document.documentElement.dataset['theme'];
  else document.documentElement.dataset['theme'] = theme;
}

function readStored(): Theme {
  const stored = window.localStorage.getItem(storageKey);
  return stored === 'light' || stored === 'dark' ? stored : 'system';
}
