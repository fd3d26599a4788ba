/** Keeps what is written in the request form, so that it is still there when the page is loaded again. */

import type { IStateDB } from '@jupyterlab/statedb';
import { EMPTY, type Form } from './asking';
import type { Draft } from './draft';

const KEY = 'jupyter-gpufit:form';
const PAUSE = 500; // ms in which nothing changes, before it is written down

/** Read back what was kept, and keep what changes from then on. Called by the plugin. */
export async function keep(draft: Draft, state: IStateDB): Promise<void> {
  const kept = formOf(await state.fetch(KEY).catch(() => undefined));
  if (kept !== null && draft.isInitial) {
    draft.change(kept);
  }
  let { form } = draft;
  let timer: ReturnType<typeof setTimeout> | undefined;
  draft.changed.connect(() => {
    if (draft.form !== form) {
      form = draft.form;
      clearTimeout(timer);
      timer = setTimeout(() => {
        // A name is for one allocation only.
        const kept = { ...form, name: '', sizes: [...form.sizes] };
        const done = draft.isInitial ? state.remove(KEY) : state.save(KEY, kept);
        done.catch((error: unknown) => console.warn('The request form was not kept.', error));
      }, PAUSE);
    }
  });
}

/** What was kept, as far as it is a form of this version: all of it, or nothing. */
function formOf(kept: unknown): Form | null {
  if (typeof kept !== 'object' || kept === null) {
    return null;
  }
  const values = kept as Record<string, unknown>;
  const known = Object.entries(EMPTY).every(
    ([name, value]) => typeof values[name] === typeof value
  );
  const sizes: unknown = values.sizes;
  return known && Array.isArray(sizes) && sizes.every(size => typeof size === 'string')
    ? (values as unknown as Form)
    : null;
}
