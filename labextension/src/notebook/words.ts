/** What a notebook runs on, in few words and in sentences: for its chip, the status bar, notifications. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import {
  doing,
  gpusBriefly,
  gpusOf,
  gpuWords,
  sentence,
  standing,
  timeLeft
} from '../allocations/holding';
import { totals } from '../cluster/rows';
import type { Connection } from '../model';
import type { Allocation, Attachment, Node } from '../wire';

type Nodes = ReadonlyMap<string, Node>;

// --- the chip

export interface Chip {
  /** `none`: no GPU. `busy`: on its way. `warn`: something has to be known. */
  tone: 'none' | 'busy' | 'good' | 'warn';
  /** What it says: the first of these for which there is room, beside the icon. Each is shorter than the one before. */
  texts: string[];
  /** All of it in sentences. */
  title: string;
}

/** What a notebook runs on, or is about to. `time`: the moment, by the server's clock. */
export function chipOf(
  allocation: Allocation | null,
  attachment: Attachment | null,
  nodes: Nodes,
  time: number,
  trans: TranslationBundle
): Chip {
  if (allocation === null || allocation.state === 'ended') {
    const title = trans.__('This notebook runs on its local kernel, without GPUs of the cluster.');
    return { tone: 'none', texts: [trans.__('No GPU')], title };
  }
  if (allocation.state === 'stopping') {
    const title = trans.__('"%1" gives its GPUs back.', allocation.name);
    return { tone: 'busy', texts: [trans.__('giving back…')], title };
  }
  if (allocation.state !== 'running') {
    return onItsWay(allocation, trans);
  }
  if (attachment?.state === 'waiting') {
    const title = trans.__(
      'This notebook goes to "%1" as soon as its local kernel has nothing left to do.',
      allocation.name
    );
    return { tone: 'busy', texts: [trans.__('attaching…')], title };
  }
  return there(allocation, attachment, nodes, time, trans);
}

function onItsWay(allocation: Allocation, trans: TranslationBundle): Chip {
  const { queue } = allocation;
  const attaching = trans.__('attaching…');
  const title = trans.__('This notebook goes to "%1" as soon as that runs.', allocation.name);
  if (queue !== null) {
    const place = trans.__('%1 of %2 in the queue', ordinal(queue.position, trans), queue.of);
    const why = [queue.missing, queue.frees].filter(Boolean).map(sentences);
    return {
      tone: 'busy',
      texts: shorterAndShorter([attaching, place], [attaching]),
      title: [title, ...why].join(' ')
    };
  }
  const now = doing(allocation, trans);
  return {
    tone: 'busy',
    texts: shorterAndShorter([attaching, now?.words ?? ''], [attaching]),
    title
  };
}

function there(
  allocation: Allocation,
  attachment: Attachment | null,
  nodes: Nodes,
  time: number,
  trans: TranslationBundle
): Chip {
  const { name, node, warning } = allocation;
  const { word, tone } = standing(allocation, trans);
  const warned = tone === 'warn' || warning !== '';
  const left = allocation.expires === null ? '' : timeLeft(allocation.expires - time, trans);
  const gpus = gpusOf(allocation, nodes, trans);
  const wrong = tone === 'warn' ? word : '';
  const title = [
    trans.__(
      'This notebook runs on "%1": %2 on %3.',
      name,
      gpuWords(allocation, nodes, trans),
      node ?? '?'
    ),
    warning === '' ? '' : sentences(warning),
    attachment === null ? '' : trans.__('Its local kernel is kept, with its variables.')
  ];
  return {
    tone: warned ? 'warn' : 'good',
    texts: shorterAndShorter(
      [gpus, wrong, node ?? '', left],
      [gpus, wrong, left],
      [gpus, wrong],
      [wrong || gpusBriefly(allocation, nodes, trans)]
    ),
    title: title.filter(Boolean).join(' ')
  };
}

/** Of each list what there is of it, joined, and nothing twice. */
function shorterAndShorter(...lists: string[][]): string[] {
  return [...new Set(lists.map(parts => parts.filter(Boolean).join(' · ')))];
}

/** `2nd`. A language that has no such words says `2.` or whatever it has. */
export function ordinal(position: number, trans: TranslationBundle): string {
  const tens = position % 100;
  const ones = tens >= 11 && tens <= 13 ? 0 : position % 10;
  return ones === 1
    ? trans.__('%1st', position)
    : ones === 2
      ? trans.__('%1nd', position)
      : ones === 3
        ? trans.__('%1rd', position)
        : trans.__('%1th', position);
}

// --- the status bar

/** `GPUs: 2 held · 14 of 40 free`, or what is wrong with the connection. `null`: nothing is to be shown. */
export function statusOf(
  connection: Connection,
  problem: string,
  allocations: Iterable<Allocation>,
  nodes: Nodes,
  trans: TranslationBundle
): { text: string; title: string; wrong: boolean } | null {
  if (connection === 'missing') {
    return null; // nobody who works with such a server needs to be told so all the time
  }
  if (connection !== 'connected') {
    const text = {
      connecting: trans.__('GPUs: …'),
      reconnecting: trans.__('GPUs: no connection'),
      refused: trans.__('GPUs: refused')
    }[connection];
    return { text, title: sentences(problem), wrong: connection !== 'connecting' };
  }
  const held = [...allocations].filter(one => one.state !== 'ended');
  const mine = held.reduce((sum, one) => sum + one.gpus.length, 0);
  const waits = held.filter(one => one.queue !== null).length;
  const { idle, gpus, nodes: all, usable } = totals(nodes.values());
  const parts = [
    mine > 0 ? trans.__('%1 held', mine) : '',
    waits > 0 ? trans._n('%1 waits', '%1 wait', waits) : '',
    trans.__('%1 of %2 free', idle, gpus)
  ];
  const warnings = held.filter(one => one.warning !== '' || one.unreachable_since !== null);
  const title = [
    trans.__('%1 of %2 GPUs on %3 of %4 nodes are idle.', idle, gpus, usable, all),
    ...warnings.map(one => sentences(one.warning || `${one.name}: ${standing(one, trans).word}`))
  ];
  return {
    text: trans.__('GPUs: %1', parts.filter(Boolean).join(' · ')),
    title: title.join('\n'),
    wrong: warnings.length > 0
  };
}

// --- what is told of a notebook

export type Attachments = ReadonlyMap<string, Attachment>;

/** What is to be told of one notebook. */
export interface Change {
  kind: 'attached' | 'detached' | 'not-attached';
  was: Attachment;
}

/** What has changed, by session. A page that is loaded tells nothing of what has been so before. */
export function changesOf(before: Attachments, after: Attachments): Change[] {
  return [...before.values()].flatMap((was): Change[] => {
    const now = after.get(was.session);
    if (now === undefined) {
      return [{ kind: was.state === 'attached' ? 'detached' : 'not-attached', was }];
    }
    // (One that was attached may be on its way to another allocation: that is told once it is there. If it does not get
    // there, it stays where it was.)
    const same = was.allocation === now.allocation;
    return same && was.state === 'waiting' && now.state === 'attached'
      ? [{ kind: 'attached', was: now }]
      : [];
  });
}

// --- notifications (JupyterLab cuts them at 140 characters)

const LONGEST = 140;
const LONGEST_NAME = 28;

export interface Notice {
  text: string;
  tone: 'success' | 'info' | 'warning' | 'error';
  offers: ('detach' | 'attach' | 'release' | 'show')[];
}

/** A notebook runs on an allocation now. */
export function attachedNotice(
  notebook: string,
  allocation: Allocation,
  nodes: Nodes,
  trans: TranslationBundle
): Notice {
  const gpus = gpusOf(allocation, nodes, trans);
  const text = trans.__(
    '%1 runs on %2 (%3). Its local kernel is kept, with its variables: detach to go back.',
    short(notebook),
    allocation.node ?? '?',
    gpus
  );
  return { text: cut(text), tone: 'success', offers: ['detach', 'show'] };
}

/** What a notebook has after it was detached: the local kernel it had, a new one, or one that somebody chose. */
export type Back = 'kept' | 'fresh' | 'other';

/** A notebook that was attached is no longer so. `allocation`: as it is then, if it is known. */
export function detachedNotice(
  notebook: string,
  allocation: Allocation | null,
  back: Back,
  trans: TranslationBundle
): Notice {
  const where = {
    kept: trans.__('%1 is back on its local kernel, with its variables.', short(notebook)),
    fresh: trans.__('%1 has a new local kernel: the former one was gone.', short(notebook)),
    other: trans.__('%1 has another kernel now.', short(notebook))
  }[back];
  if (allocation === null) {
    return { text: cut(where), tone: back === 'fresh' ? 'warning' : 'info', offers: [] };
  }
  const { state, reason, name } = allocation;
  if (state !== 'ended' && state !== 'stopping') {
    const holds = trans._n(
      '"%2" still holds %1 GPU.',
      '"%2" still holds %1 GPUs.',
      allocation.gpus.length,
      short(name)
    );
    return { text: cut(`${where} ${holds}`), tone: 'info', offers: ['attach', 'release'] };
  }
  if (reason === 'released' || reason === 'cancelled') {
    const released = trans.__('"%1" is released.', short(name));
    return { text: cut(`${where} ${released}`), tone: 'info', offers: [] };
  }
  // Why comes first, and gives way to what is left: all of it is in the sidebar.
  const why = whyOf(allocation, trans);
  const room = LONGEST - where.length - 1;
  const tone = reason === 'expired' || reason === 'idle' ? 'warning' : 'error';
  return { text: `${cut(why, room)} ${where}`, tone, offers: ['show'] };
}

/**
 * A notebook that was to be attached stays where it is. `null`: whoever ended the wait knows. `back`: which kernel it has;
 * to choose another one ends the wait, too.
 */
export function notAttachedNotice(
  notebook: string,
  allocation: Allocation | null,
  back: Back,
  trans: TranslationBundle
): Notice | null {
  const reason = allocation?.reason ?? null;
  if (allocation !== null && reason === null && back !== 'kept') {
    const text = trans.__(
      '%1 has another kernel now, and is not attached to "%2" any more.',
      short(notebook),
      short(allocation.name)
    );
    return { text: cut(text), tone: 'warning', offers: ['attach'] };
  }
  if (allocation === null || reason === null || reason === 'released' || reason === 'cancelled') {
    return null;
  }
  const stays = trans.__('%1 stays on its local kernel.', short(notebook));
  const why = whyOf(allocation, trans);
  const tone = reason === 'expired' || reason === 'idle' ? 'warning' : 'error';
  return { text: `${cut(why, LONGEST - stays.length - 1)} ${stays}`, tone, offers: ['show'] };
}

/** `"train": its time of 2 h is over.` */
function whyOf(allocation: Allocation, trans: TranslationBundle): string {
  const [said = ''] = allocation.message.trim().split('\n', 1);
  const why = (said || standing(allocation, trans).word).replace(/\.$/, '');
  return trans.__('"%1": %2.', short(allocation.name), why);
}

/** What the server said, as one or more whole sentences. */
function sentences(text: string): string {
  const whole = sentence(text);
  return whole === '' || /[.!?…]$/.test(whole) ? whole : `${whole}.`;
}

function short(name: string): string {
  return cut(name, LONGEST_NAME);
}

function cut(text: string, longest = LONGEST): string {
  return text.length <= longest ? text : `${text.slice(0, Math.max(0, longest - 1)).trimEnd()}…`;
}
