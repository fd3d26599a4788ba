/** A job in words: what runs, how far it is, what came of it. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { word } from '../line';
import type { Allocation, Job } from '../wire';

/** `train.py --epochs 3`, as one would type it. */
export function jobWords({ run, args }: Job): string {
  return [run, ...args.map(word)].join(' ');
}

/** Which of how many starts this is, its point in a sweep, how it is started, how it ended: what there is to tell. */
export function jobFacts(allocation: Allocation, trans: TranslationBundle): string[] {
  const { job, attempt, state, exit_code } = allocation;
  if (job === null) {
    return [];
  }
  const most = job.retries + 1;
  return [
    ...Object.entries(job.sweep).map(([name, value]) => `${name}=${value}`),
    job.launcher ?? '',
    // (A start after its node was lost does not count as one of those that it may have.)
    attempt > 1 || (most > 1 && attempt > 0)
      ? trans.__('attempt %1 of %2', attempt, Math.max(attempt, most))
      : '',
    state === 'ended' && exit_code !== null ? trans.__('exit code %1', exit_code) : ''
  ].filter(Boolean);
}

/** Of its variables only the names, which is all that is known of them. */
export function envWords({ env }: Job, trans: TranslationBundle): string {
  return env.length === 0 ? '' : trans.__('with %1 set', env.join(', '));
}
