/** A button at work, in React: what is being done, and what went wrong, at the place where it was asked for. */

import { useCallback, useEffect, useRef, useState } from 'react';
import { sentenceOf } from '../api';

export interface Work<Name extends string> {
  /** What is being done; `null`: nothing. */
  busy: Name | null;
  /** Why the latest did not work; empty: it did. */
  error: string;
  /** Do it, unless something is being done already. Whether it has worked. */
  run: (name: Name, does: () => Promise<unknown>) => Promise<boolean>;
  /** The error has been read. */
  dismiss: () => void;
}

/** One thing at a time. */
export function useWork<Name extends string>(): Work<Name> {
  const [busy, setBusy] = useState<Name | null>(null);
  const [error, setError] = useState('');
  const working = useRef(false);
  const there = useRef(true);
  useEffect(() => {
    there.current = true;
    return () => {
      there.current = false;
    };
  }, []);

  const run = useCallback(async (name: Name, does: () => Promise<unknown>): Promise<boolean> => {
    if (working.current) {
      return false;
    }
    working.current = true;
    setBusy(name);
    let problem = '';
    try {
      await does();
    } catch (thrown) {
      problem = sentenceOf(thrown);
    }
    working.current = false;
    if (there.current) {
      setBusy(null);
      setError(problem);
    }
    return problem === '';
  }, []);
  const dismiss = useCallback(() => setError(''), []);
  return { busy, error, run, dismiss };
}
