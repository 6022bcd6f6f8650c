// The live view's one source: the event stream of this tab, or the status asked once a second where it fails.
// A hidden tab lets go of its stream, because a browser keeps only six connections to one HTTP/1.1 server.
import { useSyncExternalStore } from 'react';
import { get, refusal, send } from '../api/client';
import { statusQuery } from '../api/queries';
import { queryClient } from '../api/query-client';
import type { EventsData, MetricsEvent, Status, StatusData, StatusResponses } from '../generated/types.gen';
import { readEvents } from './sse';

export type Sample = {
  /** Seconds since 1970 by the browser's clock, whatever the source. Samples of two clocks would have no order. */
  at: number;
  /** Null where the server was only asked for its status. */
  metrics: MetricsEvent | null;
  committedLsn: string;
  durableLsn: string;
};

export type Live = { source: 'connecting' | 'stream' | 'poll' | 'lost'; samples: Sample[] };

const historySeconds = 300;
/** However often the server speaks. */
const samplesMax = 1500;
const retryMs = 5000;
const pollMs = 1000;
/** The server speaks twice a second. A host that vanished says nothing and does not close its connections. */
const silenceMaxMs = 5000;

let live: Live = { source: 'connecting', samples: [] };
let running: AbortController | null = null;
const listeners = new Set<() => void>();

export function useLive(): Live {
  return useSyncExternalStore(subscribe, () => live);
}

/** Begins anew, after a token was given. */
export function restartLive(): void {
  stop();
  startIfSeen();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  if (listeners.size === 1) {
    document.addEventListener('visibilitychange', onVisibility);
    startIfSeen();
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    document.removeEventListener('visibilitychange', onVisibility);
    stop();
  };
}

function onVisibility(): void {
  if (document.visibilityState === 'hidden') stop();
  else startIfSeen();
}

function startIfSeen(): void {
  if (running !== null || listeners.size === 0 || document.visibilityState === 'hidden') return;
  running = new AbortController();
  void run(running.signal);
}

function stop(): void {
  running?.abort();
  running = null;
  publish('connecting', null);
}

async function run(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await stream(signal).catch(() => null);
    if (!signal.aborted && live.source === 'stream') publish('lost', null);
    await poll(signal);
  }
}

async function stream(signal: AbortSignal): Promise<void> {
  const silence = new AbortController();
  const startTimer = () => setTimeout(() => silence.abort(), silenceMaxMs);
  let timer = startTimer();
  try {
    const either = AbortSignal.any([signal, silence.signal]);
    const init = { signal: either, headers: { Accept: 'text/event-stream' } };
    const response = await send<EventsData>({ url: '/v1/events' }, init, null);
    if (!response.ok || response.body === null) throw await refusal(response);
    await readEvents(response.body, ({ event, data }) => {
      if (either.aborted) return;
      clearTimeout(timer);
      timer = startTimer();
      if (event === 'metrics') publish('stream', sampleOf(JSON.parse(data)));
      // Sent when the role, the phase or the log's health changes: every page shows it at once.
      if (event === 'status') queryClient.setQueryData<Status>(statusQuery.queryKey, JSON.parse(data));
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Until it is time to try the stream again. */
async function poll(signal: AbortSignal): Promise<void> {
  const until = Date.now() + retryMs;
  while (!signal.aborted && Date.now() < until) {
    await askStatus(signal);
    await new Promise((resolve) => setTimeout(resolve, pollMs));
  }
}

async function askStatus(signal: AbortSignal): Promise<void> {
  try {
    const either = AbortSignal.any([signal, AbortSignal.timeout(silenceMaxMs)]);
    const status = await get<StatusData, StatusResponses>({ url: '/v1/status' }, either);
    const { committed_lsn, durable_lsn } = status;
    publish('poll', { at: Date.now() / 1000, metrics: null, committedLsn: committed_lsn, durableLsn: durable_lsn });
  } catch {
    if (!signal.aborted) publish('lost', null);
  }
}

function sampleOf(metrics: MetricsEvent): Sample {
  return {
    at: Date.now() / 1000,
    metrics,
    committedLsn: metrics.committed_lsn,
    durableLsn: metrics.durable_lsn,
  };
}

function publish(source: Live['source'], sample: Sample | null): void {
  live = { source, samples: sample === null ? live.samples : withSample(live.samples, sample) };
  for (const listener of listeners) listener();
}

/** Adds a sample. Times must ascend, so it replaces those of its own moment, and later ones if the clock was set back. */
function withSample(samples: Sample[], sample: Sample): Sample[] {
  const kept = samples.filter(({ at }) => at > sample.at - historySeconds && at < sample.at);
  return [...kept, sample].slice(-samplesMax);
}
