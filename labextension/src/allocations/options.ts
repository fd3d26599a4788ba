/** What can be done with an allocation, and what is lost by it. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Allocation, Attachment } from '../wire';

export type Action =
  | 'attach'
  | 'detach'
  | 'new'
  | 'again'
  | 'logs'
  | 'usage'
  | 'extend'
  | 'copy'
  | 'cancel'
  | 'release'
  | 'dismiss';

export interface Circumstances {
  /** The notebook that the person works in; `null`: none is open. */
  notebook: string | null;
  /** Whether that one runs there, or will. */
  here: boolean;
  /** Whether any notebook does. */
  attached: boolean;
}

/** What can be done with it now, in the order in which it is offered. */
export function actionsOf(allocation: Allocation, now: Circumstances): Action[] {
  const { state, node, time, job, started } = allocation;
  // (A job that waits once more, since its node was lost, has run before.)
  const there = state === 'ended' ? node !== null : state !== 'pending' || started !== null;
  const seen: Action[] = [
    ...(there ? (['logs'] as const) : []),
    ...(node === null || started === null ? [] : (['usage'] as const))
  ];
  if (state === 'ended') {
    return ['again', ...seen, 'copy', 'dismiss'];
  }
  if (state === 'stopping') {
    return [...seen, 'copy'];
  }
  const actions: Action[] = [];
  if (now.notebook !== null && !now.here && job === null) {
    actions.push('attach');
  }
  if (now.attached) {
    actions.push('detach');
  }
  if (job === null) {
    actions.push('new');
  }
  actions.push(...seen);
  if (time !== null && state === 'running') {
    actions.push('extend');
  }
  actions.push('copy', state === 'running' ? 'release' : 'cancel');
  return actions;
}

/** What somebody who releases it loses, in sentences; none: nothing. */
export function losses(
  allocation: Allocation,
  notebooks: readonly Attachment[],
  trans: TranslationBundle
): string[] {
  if (allocation.state !== 'running') {
    return [];
  }
  if (allocation.job !== null) {
    return [
      trans.__('What it runs ends: what it has not written to its outputs or to a file is lost.')
    ];
  }
  const kernel = trans.__(
    'Its kernel ends: what it computes and its variables are lost, and so are files that are only in its container.'
  );
  const own = notebooks
    .filter(one => one.state === 'attached')
    .map(one => trans.__('%1 goes back to its own kernel, with the variables it had.', one.path));
  return [kernel, ...own];
}
