/** What the request form follows beside its draft. */

import { useEffect, useReducer, useState } from 'react';
import type { IGpuFit } from '../tokens';
import { useSignals } from '../ui/hooks';

const TYPING = 800; // ms without a key, after which what is typed is meant

/** Path of the notebook that the person works in, as the server has it; `null`: none. */
export function useNotebook({ actions }: IGpuFit): string | null {
  useSignals(actions.notebookChanged);
  const [, again] = useReducer((number: number) => number + 1, 0);
  const { notebook } = actions;
  useEffect(() => {
    notebook?.context.pathChanged.connect(again);
    notebook?.sessionContext.kernelChanged.connect(again);
    return () => {
      notebook?.context.pathChanged.disconnect(again);
      notebook?.sessionContext.kernelChanged.disconnect(again);
    };
  }, [notebook]);
  return notebook && actions.pathOf(notebook);
}

/** The mistakes that are shown: not those of what is just being typed, unless they were there before. */
export function useSettled<T extends object>(form: unknown, mistakes: T): T {
  const [settled, setSettled] = useState({ form, mistakes });
  useEffect(() => {
    const timer = setTimeout(() => setSettled({ form, mistakes }), TYPING);
    return () => clearTimeout(timer);
  }, [form, mistakes]);
  if (settled.form === form) {
    return mistakes;
  }
  const shown = Object.entries(mistakes).filter(([field]) => field in settled.mistakes);
  return Object.fromEntries(shown) as T;
}
