/** React hooks for what views have in common. */

import type { ISignal } from '@lumino/signaling';
import { useCallback, useEffect, useReducer, useSyncExternalStore } from 'react';
import type { GpuFitModel } from '../model';

/**
 * How often each signal was emitted since somebody first looked: so that one that is emitted between a render and its
 * subscription is not missed.
 */
const counts = new WeakMap<ISignal<unknown, unknown>, { emitted: number }>();

function countOf(signal: ISignal<unknown, unknown>): number {
  let count = counts.get(signal);
  if (count === undefined) {
    const fresh = { emitted: 0 };
    counts.set(signal, fresh);
    signal.connect(() => {
      fresh.emitted += 1;
    });
    count = fresh;
  }
  return count.emitted;
}

/** Render again whenever one of these is emitted. (As many of them each time.) */
export function useSignals(...signals: ISignal<unknown, unknown>[]): void {
  const subscribe = useCallback((again: () => void) => {
    signals.forEach(signal => {
      countOf(signal); // it counts before it is heard
      signal.connect(again);
    });
    return () => signals.forEach(signal => signal.disconnect(again));
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, signals);
  useSyncExternalStore(subscribe, () => signals.map(countOf).join());
}

/** Render again every `period` ms: for what is left of a time. */
export function useClock(period: number): void {
  const [, again] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const timer = setInterval(again, period);
    return () => clearInterval(timer);
  }, [period]);
}

/** Do something when the server answers again: that it did not is no longer to be read then. */
export function useReconnected(
  model: Pick<GpuFitModel, 'connection' | 'connectionChanged'>,
  act: () => void
): void {
  useSignals(model.connectionChanged);
  const connected = model.connection === 'connected';
  useEffect(() => {
    if (connected) {
      act();
    }
  }, [connected, act]);
}
