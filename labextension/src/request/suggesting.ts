/** A size to ask for, as the last allocation for the same notebook tells. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { GiB, formatSize, parseSize } from '../format';
import type { Allocation } from '../wire';
import { sizeText, type Form } from './asking';

export interface Suggestion {
  /** What it used. */
  text: string;
  /** On the button that takes it over. */
  label: string;
  /** As it is written into the form. */
  memory: string;
}

/** What to ask for instead of what is written; `null`: nothing that is known, or it is asked for already. */
export function suggestionOf(
  last: Allocation | null,
  form: Form,
  trans: TranslationBundle
): Suggestion | null {
  const usage = last?.usage ?? null;
  if (usage?.suggested == null || usage.suggested < GiB) {
    return null;
  }
  const { suggested } = usage;
  if (!form.each && sizeOf(form.memory) === suggested) {
    return null;
  }
  const peaks = usage.gpus.map(({ peak }) => peak ?? 0);
  return {
    text: trans.__(
      'Last time this notebook used at most %1 of a GPU.',
      formatSize(Math.max(...peaks, 0))
    ),
    label: trans.__('Use %1', formatSize(suggested)),
    memory: sizeText(suggested)
  };
}

function sizeOf(text: string): number | null {
  try {
    return parseSize(text);
  } catch {
    return null;
  }
}
