/** What a notebook's chip offers, for what the notebook runs on now. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Allocation, Attachment } from '../wire';

export type Act =
  'detach' | 'extend' | 'logs' | 'insert' | 'show' | 'release' | 'attach' | 'request' | 'train';

/** An entry, or `null`: a line between two groups. */
export type Entry = { act: Act; label: string; allocation: string } | null;

export interface Situation {
  /** What the notebook runs on, or is about to. */
  own: Allocation | null;
  /** Of this notebook; `null`: its own kernel is the allocation's. */
  attachment: Attachment | null;
  /** All that are attached to the same. */
  attached: number;
  /** What else the person holds. */
  others: { allocation: Allocation; gpus: string }[];
}

/** What is offered, in that order. */
export function entriesOf(
  { own, attachment, attached, others }: Situation,
  trans: TranslationBundle
): Entry[] {
  const entries: Entry[] = [];
  const add = (act: Act, label: string, allocation = own?.id ?? ''): unknown =>
    entries.push({ act, label, allocation });
  if (own !== null) {
    const runs = own.state === 'running';
    if (attachment?.state === 'attached') {
      add(
        'detach',
        attached > 1
          ? trans.__('Detach All %1 Notebooks from "%2"', attached, own.name)
          : trans.__('Detach: Back to the Local Kernel')
      );
    } else if (attachment !== null) {
      add('detach', trans.__('Do Not Attach'));
    }
    if (runs && own.expires !== null) {
      add('extend', trans.__('1 h More Time'));
    }
    if (own.state !== 'pending') {
      add('logs', trans.__('Show Logs'));
    }
    add('insert', trans.__('Insert as %gpufit Cell'));
    add('show', trans.__('Show "%1" in the Sidebar', own.name));
    add('release', runs ? trans.__('Release "%1"…', own.name) : trans.__('Cancel the Request'));
    entries.push(null);
  }
  for (const { allocation, gpus } of others) {
    const where = [allocation.name, gpus, allocation.node].filter(Boolean).join(' · ');
    add('attach', trans.__('Attach to %1', where), allocation.id);
  }
  add('request', trans.__('Request GPUs…'));
  add('train', trans.__('Run This Notebook as a Job…'));
  return entries;
}
