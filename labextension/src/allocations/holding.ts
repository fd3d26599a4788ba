/** An allocation in words: what it is, what it does now, what can be done with it. For the cards, and for all that names one. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { gpusLine } from '../cluster/describe';
import { formatClock, formatDuration, formatSize, parseSize } from '../format';
import type { GpuFitModel } from '../model';
import type { Mark } from '../ui/marks';
import type { Allocation, Attachment, Node, Queued, Request } from '../wire';

/** How a state looks, beside its word. */
export type Tone = 'busy' | 'good' | 'warn' | 'bad' | 'quiet';

export interface Standing {
  word: string;
  tone: Tone;
  /** The sign beside the word. */
  mark: Mark;
}

/** The state in a word or two. */
export function standing(allocation: Allocation, trans: TranslationBundle): Standing {
  switch (allocation.state) {
    case 'pending':
      return { word: trans.__('pending'), tone: 'busy', mark: 'clock' };
    case 'starting':
      return { word: trans.__('starting'), tone: 'busy', mark: 'ring' };
    case 'running':
      if (allocation.unreachable_since !== null) {
        return { word: trans.__('node does not answer'), tone: 'warn', mark: 'alert' };
      }
      if (allocation.progress === null) {
        return { word: trans.__('running'), tone: 'good', mark: 'dot' };
      }
      return allocation.job === null
        ? { word: trans.__('restarting'), tone: 'busy', mark: 'ring' }
        : { word: trans.__('trying again'), tone: 'busy', mark: 'ring' };
    case 'stopping':
      return { word: trans.__('stopping'), tone: 'busy', mark: 'ring' };
    case 'ended':
      return ending(allocation, trans);
  }
}

function ending({ reason, job }: Allocation, trans: TranslationBundle): Standing {
  if (reason === 'released' && job !== null) {
    return { word: trans.__('stopped'), tone: 'quiet', mark: 'check' };
  }
  const words: Record<string, Standing> = {
    released: { word: trans.__('released'), tone: 'quiet', mark: 'check' },
    finished: { word: trans.__('finished'), tone: 'good', mark: 'check' },
    cancelled: { word: trans.__('cancelled'), tone: 'quiet', mark: 'cross' },
    expired: { word: trans.__('time is over'), tone: 'quiet', mark: 'clock' },
    idle: { word: trans.__('released: it did nothing'), tone: 'quiet', mark: 'clock' },
    failed: { word: trans.__('failed'), tone: 'bad', mark: 'alert' },
    'node-lost': { word: trans.__('node lost'), tone: 'bad', mark: 'alert' },
    'over-memory': { word: trans.__('stopped: too much memory'), tone: 'bad', mark: 'alert' },
    rejected: { word: trans.__('refused'), tone: 'bad', mark: 'alert' }
  };
  return words[reason ?? ''] ?? { word: reason ?? trans.__('ended'), tone: 'quiet', mark: 'check' };
}

export interface Doing {
  words: string;
  /** More of it, from the server. */
  detail: string;
  /** 0 to 1; `null`: nobody knows. */
  fraction: number | null;
}

/** What it does on its way to run, or to its end; `null`: nothing, or it waits in the queue. */
export function doing(allocation: Allocation, trans: TranslationBundle): Doing | null {
  const { state, progress, queue } = allocation;
  if (state === 'stopping' && progress?.phase !== 'collecting') {
    return { words: trans.__('Giving everything back'), detail: '', fraction: null };
  }
  if (state === 'ended' || queue !== null || (state === 'running' && progress === null)) {
    return null;
  }
  const { phase = '', current = null, total = null, message = '' } = progress ?? {};
  if (phase === 'pulling' && current !== null) {
    const unpacks = message.startsWith('unpacking');
    const bytes = total === null ? formatSize(current) : parts(current, total, trans);
    return {
      words: unpacks ? trans.__('Unpacking %1', bytes) : trans.__('Pulling %1', bytes),
      detail: message.slice(message.indexOf(' ') + 1),
      fraction: total === null || total <= 0 ? null : Math.min(current / total, 1)
    };
  }
  const fraction =
    current === null || total === null || total <= 0 ? null : Math.min(current / total, 1);
  const words: Record<string, string> = {
    placing: trans.__('Looking for GPUs'),
    pulling: trans.__('Pulling the image'),
    creating: trans.__('Setting it up'),
    uploading: trans.__('Copying the folder there'),
    collecting: trans.__('Fetching its outputs'),
    starting: trans.__('Starting'),
    connecting: trans.__('Waiting for the kernel')
  };
  return {
    words: words[phase] ?? (phase === '' ? trans.__('Asked') : phase),
    detail: phase === 'pulling' ? message.slice(message.indexOf(' ') + 1) : message,
    fraction
  };
}

/** `1.2 of 4 GiB`, or, in two units, `900 MiB of 4 GiB`. */
function parts(current: number, total: number, trans: TranslationBundle): string {
  const part = formatSize(current);
  const whole = formatSize(total);
  const unit = whole.slice(whole.indexOf(' '));
  return trans.__('%1 of %2', part.endsWith(unit) ? part.slice(0, -unit.length) : part, whole);
}

export interface Waiting {
  /** Where it stands, and when it starts, if that is known. */
  place: string;
  missing: string;
  frees: string;
  until: string;
}

/** Where one that waits stands, what is missing, what would help, and for how long it waits. */
export function waiting(queue: Queued, now: number, trans: TranslationBundle): Waiting {
  const place = trans.__('Number %1 of %2 in the queue', queue.position, queue.of);
  return {
    place:
      queue.start === null
        ? place
        : trans.__('%1; starts at %2 at the latest', place, formatClock(queue.start)),
    missing: queue.missing,
    frees: sentence(queue.frees),
    until: trans.__(
      'Waits until %1 (%2 more)',
      formatClock(queue.until),
      span(Math.max(0, queue.until - now))
    )
  };
}

/** How old it is, and how much time is left: each changes as time passes. */
export function times(allocation: Allocation, now: number, trans: TranslationBundle): string[] {
  const { state, created, ended, expires, time, job, started } = allocation;
  const ran =
    job === null || started === null
      ? []
      : [trans.__('ran for %1', span((ended ?? now) - started))];
  if (state === 'ended') {
    return [...ran, trans.__('ended %1 ago', span(now - (ended ?? now)))];
  }
  const age =
    state === 'pending' || state === 'starting'
      ? trans.__('asked %1 ago', span(now - created))
      : job !== null && started !== null
        ? trans.__('runs for %1', span(now - started))
        : trans.__('%1 old', span(now - created));
  if (state === 'stopping') {
    return [age];
  }
  if (expires !== null) {
    return [age, timeLeft(expires - now, trans)];
  }
  return [
    age,
    time === null ? trans.__('no time limit') : trans.__('%1 once it runs', formatDuration(time))
  ];
}

/** `1 h 12 m left`. */
export function timeLeft(seconds: number, trans: TranslationBundle): string {
  return seconds <= 0 ? trans.__('time is over') : trans.__('%1 left', span(seconds));
}

/** A span of time without a digit that changes each second, unless it is short. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  return formatDuration(whole < 120 ? whole : whole - (whole % 60));
}

/** `2 × A100-40GB, 16 GiB each`: what it has, or what it asks while it has nothing. */
export function gpuWords(
  allocation: Allocation,
  nodes: ReadonlyMap<string, Node>,
  trans: TranslationBundle
): string {
  const { gpus, memory, request } = allocation;
  const count = gpus.length > 0 ? gpus.length : (request.gpus ?? 1);
  const sizes = gpus.length > 0 ? memory : asked(request.memory);
  const what = gpusOf(allocation, nodes, trans);
  const each = sizeWords(sizes, count, trans);
  const shared = allocation.shared ? trans.__('shared') : '';
  return [what, each, ...machineWords(request, trans), shared].filter(Boolean).join(', ');
}

/** What was asked of the machine beside GPUs: `8 CPUs`, `64 GiB RAM`. */
function machineWords({ cpus, ram }: Partial<Request>, trans: TranslationBundle): string[] {
  return [
    ...(cpus === undefined ? [] : [cpus === 1 ? trans.__('1 CPU') : trans.__('%1 CPUs', cpus)]),
    ...asked(ram).map(size => trans.__('%1 RAM', formatSize(size)))
  ];
}

/** `2 × A100-40GB + 1 × L4`, without the memory of each. */
export function gpusOf(
  { gpus, node, request }: Allocation,
  nodes: ReadonlyMap<string, Node>,
  trans: TranslationBundle
): string {
  return gpus.length === 0
    ? trans._n('%1 GPU', '%1 GPUs', request.gpus ?? 1)
    : gpusLine(gpus, nodes.get(node ?? ''), trans);
}

/** `2 × A100`, or, of several models, only how many they are. */
export function gpusBriefly(
  allocation: Allocation,
  nodes: ReadonlyMap<string, Node>,
  trans: TranslationBundle
): string {
  const gpus = gpusOf(allocation, nodes, trans);
  return gpus.includes(' + ')
    ? trans._n('%1 GPU', '%1 GPUs', allocation.gpus.length)
    : gpus.replace(/-\d+GB\b/, '');
}

function asked(memory: number | string | (number | string)[] | undefined): number[] {
  const sizes = memory === undefined ? [] : Array.isArray(memory) ? memory : [memory];
  try {
    return sizes.map(parseSize);
  } catch {
    return []; // a server that writes them in another way
  }
}

function sizeWords(sizes: readonly number[], count: number, trans: TranslationBundle): string {
  if (!sizes.some(size => size > 0)) {
    return '';
  }
  const [first = 0] = sizes;
  if (sizes.every(size => size === first)) {
    return count === 1 ? formatSize(first) : trans.__('%1 each', formatSize(first));
  }
  return sizes.map(formatSize).join(' + ');
}

/** Those that can still be used, latest first. */
export function held(model: Pick<GpuFitModel, 'allocations'>): Allocation[] {
  const still = (one: Allocation): boolean => one.state !== 'ended' && one.state !== 'stopping';
  return [...model.allocations.values()].filter(still).reverse();
}

/** Those of them that notebooks can run on: a job's are the job's. */
export function forNotebooks(model: Pick<GpuFitModel, 'allocations'>): Allocation[] {
  return held(model).filter(one => one.job === null);
}

/** How many allocations and GPUs are held, or asked for. */
export function heldWords(held: readonly Allocation[], trans: TranslationBundle): string {
  const gpus = held.reduce((sum, one) => sum + (one.gpus.length || (one.request.gpus ?? 1)), 0);
  return trans.__(
    '%1, %2',
    trans._n('%1 allocation', '%1 allocations', held.length),
    trans._n('%1 GPU', '%1 GPUs', gpus)
  );
}

/** The notebooks of an allocation, by path. */
export function notebooksOf(
  id: string,
  attachments: ReadonlyMap<string, Attachment>
): Attachment[] {
  return [...attachments.values()]
    .filter(one => one.allocation === id)
    .sort((one, other) => (one.path < other.path ? -1 : 1));
}

/** What the server said, with a capital: where it stands among whole sentences. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
}

/** The server's message, unless it is said elsewhere: by the queue, by the progress, or with a node that does not answer. */
export function messageOf(allocation: Allocation): string {
  const { message, queue, progress } = allocation;
  const said = [queue?.missing, progress?.message, outage(allocation)];
  return said.includes(message) ? '' : message.trim();
}

/** What the server says of a node that does not answer; `null`: it does. */
export function outage({ state, unreachable_since: since, message }: Allocation): string | null {
  return since === null || state === 'ended' ? null : message;
}

// --- what is told to those who do not see it

/** What has changed, in sentences: each change of state, not each tick of a clock or byte of a pull. */
export function changes(
  before: ReadonlyMap<string, Allocation>,
  after: ReadonlyMap<string, Allocation>,
  trans: TranslationBundle
): string[] {
  return [...after.values()].flatMap(now => change(before.get(now.id), now, trans));
}

function change(
  before: Allocation | undefined,
  now: Allocation,
  trans: TranslationBundle
): string[] {
  if (before === undefined && now.state === 'ended') {
    return []; // it was over before anybody looked
  }
  const told: string[] = [];
  const { word } = standing(now, trans);
  if (before === undefined || standing(before, trans).word !== word) {
    const { name, state, node, message } = now;
    const what =
      state === 'running' && node !== null
        ? trans.__('%1: %2 on %3', name, word, node)
        : trans.__('%1: %2', name, word);
    told.push(state === 'ended' && message !== '' ? `${what}; ${message}` : what);
  }
  if (now.queue !== null && now.queue.position !== before?.queue?.position) {
    const { position, of } = now.queue;
    told.push(trans.__('%1: number %2 of %3 in the queue', now.name, position, of));
  }
  if (now.warning !== '' && now.warning !== before?.warning) {
    told.push(now.warning);
  }
  if (before?.expires != null && now.expires !== null && now.expires > before.expires) {
    told.push(trans.__('%1: has time until %2', now.name, formatClock(now.expires)));
  }
  return told;
}
