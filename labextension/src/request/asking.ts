/**
 * What is written in the request form, and the request that it means. Pure.
 *
 *     Form ─ read ─→ Request, or a sentence for each field that is wrong
 *     Request ─ formOf ─→ Form
 *
 * What a request and the server's answer to it are in words: `telling.ts`. As a line of code: `line.ts`.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { formatSize, GiB, parseDuration, parseSize } from '../format';
import { exactDuration, exactSize } from '../line';
import type { Nearest, Node, Request } from '../wire';

/** What is written in the form, as it is written. Empty: nothing is asked in that respect. */
export interface Form {
  gpus: string;
  memory: string;
  /** One size for each GPU (`sizes`), instead of `memory` for all. */
  each: boolean;
  sizes: readonly string[];
  /** Of the machine. */
  cpus: string;
  ram: string;
  image: string;
  time: string;
  shared: boolean;
  waits: boolean;
  /** For how long, if it `waits`. */
  wait: string;
  name: string;
  node: string;
  gpu_model: string;
  /** Of the nodes' model stores. */
  model: string;
  requireModel: boolean;
  writeModels: boolean;
  /** `room=b12, rack=3` */
  labels: string;
  priority: string;
  shareCard: boolean;
}

export const EMPTY: Form = {
  gpus: '1',
  memory: '',
  each: false,
  sizes: [],
  cpus: '',
  ram: '',
  image: '',
  time: '',
  shared: false,
  waits: false,
  wait: '10m',
  name: '',
  node: '',
  gpu_model: '',
  model: '',
  requireModel: false,
  writeModels: false,
  labels: '',
  priority: '',
  shareCard: false
};

/** A field that can be wrong; `size-0` is the size of the first GPU. */
export type Field =
  | 'gpus'
  | 'memory'
  | `size-${number}`
  | 'cpus'
  | 'ram'
  | 'image'
  | 'time'
  | 'wait'
  | 'name'
  | 'node'
  | 'gpu_model'
  | 'model'
  | 'labels'
  | 'priority';

/** One sentence for each field that is wrong. */
export type Mistakes = Readonly<Partial<Record<Field, string>>>;

export interface Reading {
  /** `null`: there are mistakes. */
  request: Request | null;
  mistakes: Mistakes;
}

// As jupyter_gpufit/models.py has them.
export const MOST_GPUS = 1024;
const MOST_CPUS = 4096;
const LEAST_RAM = 2 ** 26;
const MOST_PRIORITY = 100;
const LONGEST_TEXT = 512;
const MOST_SIZES = 64; // more fields than that nobody fills in
const NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$/;

/** The request that the form means, what is usual left out. */
export function read(form: Form, trans: TranslationBundle): Reading {
  const mistakes: Partial<Record<Field, string>> = {};

  /** What `parse` makes of the field's text; `undefined`: nothing is written, or it is wrong. */
  function field<T>(name: Field, text: string, parse: (text: string) => T): T | undefined {
    const written = text.trim();
    try {
      return written === '' ? undefined : parse(written);
    } catch (error) {
      mistakes[name] = (error as Error).message;
      return undefined;
    }
  }
  const text = (written: string): string => {
    const length = Array.from(written).length;
    if (length > LONGEST_TEXT) {
      throw new Error(
        trans.__('These are %1 characters; write no more than %2.', length, LONGEST_TEXT)
      );
    }
    return written;
  };

  const gpus = count(form.gpus);
  if (gpus === null) {
    mistakes.gpus = form.gpus.trim()
      ? trans.__(
          "'%1' is no number of GPUs; write a whole number from 1 to %2",
          brief(form.gpus),
          MOST_GPUS
        )
      : trans.__('How many GPUs is missing; write a whole number, such as 2');
  }
  const memory =
    form.each && canDiffer(gpus)
      ? sizesOf(form, gpus).map((size, at) => field(`size-${at}`, size, parseSize) ?? 0)
      : (field('memory', form.memory, parseSize) ?? 0);
  const wishes: Omit<Request, 'gpus' | 'memory'> = {
    cpus: field('cpus', form.cpus, written => coresOf(written, trans)),
    ram: field('ram', form.ram, written => ramOf(written, trans)),
    name: field('name', form.name, written => {
      if (!NAME.test(written)) {
        throw new Error(
          trans.__(
            "'%1' cannot be a name; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first",
            brief(written)
          )
        );
      }
      return written;
    }),
    image: field('image', form.image, text),
    time: field('time', form.time, parseDuration),
    shared: form.shared || undefined,
    wait: form.waits ? field('wait', form.wait, parseDuration) : undefined,
    priority:
      field('priority', form.priority, written => {
        const number = /^[+-]?\d+$/.test(written) ? Number(written) : NaN;
        if (!(Math.abs(number) <= MOST_PRIORITY)) {
          throw new Error(
            trans.__(
              "'%1' is no priority; write a whole number from -%2 to %2",
              brief(written),
              MOST_PRIORITY
            )
          );
        }
        return number;
      }) || undefined,
    node: field('node', form.node, text),
    gpu_model: field('gpu_model', form.gpu_model, text),
    model: field('model', form.model, text),
    require_model: (form.requireModel && form.model.trim() !== '') || undefined,
    write_models: form.writeModels || undefined,
    labels: field('labels', form.labels, written => labelsOf(written, trans)),
    share_card: form.shareCard || undefined
  };
  if (form.waits && form.wait.trim() === '') {
    mistakes.wait = trans.__('For how long is missing; write it like 10m, or do not wait');
  }
  if (gpus === null || Object.keys(mistakes).length > 0) {
    return { request: null, mistakes };
  }
  const asked = Object.entries<unknown>(wishes).filter(([, value]) => value !== undefined);
  return { request: { gpus, memory, ...Object.fromEntries(asked) }, mistakes };
}

/** What is to be written to ask for that; of what it does not say stays what is written in `base`. */
export function formOf(request: Partial<Request>, base: Form = EMPTY): Form {
  const { gpus, time, wait, priority, labels } = request;
  return {
    ...base,
    ...(gpus === undefined ? {} : { gpus: String(gpus) }),
    ...memoryOf(request.memory),
    cpus: request.cpus === undefined ? base.cpus : String(request.cpus),
    ram: request.ram === undefined ? base.ram : sizeAsWritten(request.ram),
    image: request.image ?? base.image,
    time: time === undefined ? base.time : durationText(time),
    shared: request.shared ?? base.shared,
    ...(wait === undefined ? {} : { waits: true, wait: durationText(wait) }),
    name: request.name ?? base.name,
    node: request.node ?? base.node,
    gpu_model: request.gpu_model ?? base.gpu_model,
    model: request.model ?? base.model,
    requireModel: request.require_model ?? base.requireModel,
    writeModels: request.write_models ?? base.writeModels,
    labels: labels === undefined ? base.labels : labelsText(labels),
    priority: priority === undefined ? base.priority : String(priority),
    shareCard: request.share_card ?? base.shareCard
  };
}

function memoryOf(memory: Request['memory'] | undefined): Partial<Form> {
  if (memory === undefined) {
    return {};
  }
  const sizes = (Array.isArray(memory) ? memory : [memory]).map(size =>
    size === 0 ? '' : sizeAsWritten(size)
  );
  const each = new Set(sizes).size > 1;
  return { memory: each ? '' : (sizes[0] ?? ''), each, sizes: each ? sizes : [] };
}

function sizeAsWritten(size: number | string): string {
  return typeof size === 'string' ? size : exactSize(size);
}

/** (Not at all is as short as can be written.) */
function durationText(time: number | string): string {
  return typeof time === 'string' ? time : exactDuration(time);
}

function labelsText(labels: Record<string, string>): string {
  return Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(', ');
}

/** The whole number of GPUs that a text means; `null`: none. */
export function count(text: string): number | null {
  const number = /^\s*\d+\s*$/.test(text) ? Number(text) : NaN;
  return number >= 1 && number <= MOST_GPUS ? number : null;
}

/** Whether there can be one size for each of so many GPUs. */
export function canDiffer(gpus: number | null): gpus is number {
  return gpus !== null && gpus > 1 && gpus <= MOST_SIZES;
}

/** What is written for each of so many GPUs; where nothing is yet, what is written for all. */
export function sizesOf(form: Form, gpus: number): string[] {
  return Array.from({ length: gpus }, (_, at) => form.sizes[at] ?? form.memory);
}

/** All models of these nodes, by name. */
export function storedModels(nodes: Iterable<Node>): string[] {
  const names = new Set<string>();
  for (const node of nodes) {
    node.models?.forEach(({ name }) => names.add(name));
  }
  return [...names].sort();
}

function coresOf(text: string, trans: TranslationBundle): number {
  const cores = /^(\d+(\.\d*)?|\.\d+)$/.test(text) ? Number(text) : NaN;
  if (!(cores > 0 && cores <= MOST_CPUS)) {
    throw new Error(
      trans.__(
        "'%1' is no number of cores; write one such as 8 or 0.5, at most %2",
        brief(text),
        MOST_CPUS
      )
    );
  }
  return cores;
}

function ramOf(text: string, trans: TranslationBundle): number {
  const size = parseSize(text);
  if (size < LEAST_RAM) {
    throw new Error(
      trans.__(
        "'%1' is too little; ask for %2 of the machine's memory at least",
        text,
        formatSize(LEAST_RAM)
      )
    );
  }
  return size;
}

function labelsOf(text: string, trans: TranslationBundle): Record<string, string> {
  const parts = text.split(',').map(part => part.trim());
  return Object.fromEntries(
    parts
      .filter(part => part !== '')
      .map(part => {
        const at = part.indexOf('=');
        if (at < 1) {
          throw new Error(trans.__("'%1' is no label; write it like room=b12", brief(part)));
        }
        return [part.slice(0, at).trim(), part.slice(at + 1).trim()];
      })
  );
}

/** A text as it is repeated in a sentence: somebody may have pasted a whole file. */
function brief(text: string): string {
  const [characters, most] = [Array.from(text), 64];
  return characters.length > most ? `${characters.slice(0, 20).join('')}…` : text;
}

/** The form once it asks for that instead. */
export function withNearest(form: Form, nearest: Nearest): Form {
  return {
    ...form,
    gpus: String(nearest.gpus),
    memory: nearest.memory > 0 ? sizeText(nearest.memory) : '',
    each: false,
    sizes: []
  };
}

/** A size as one writes it into a field, rounded down: `'20.3GiB'`. */
export function sizeText(size: number): string {
  return formatSize(size).replace(' ', '');
}

// --- the slider

const STEPS = [
  0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160,
  192, 224, 256, 320, 384, 448, 512
];
const LARGEST_USUAL = 80 * GiB;

/** Bytes of the cluster's largest GPU that can be asked for; `null`: nothing is known. */
export function largestGpu(nodes: Iterable<Node>): number | null {
  let largest: number | null = null;
  for (const node of nodes) {
    for (const gpu of node.gpus) {
      if (gpu.allocatable && gpu.memory_total !== null && gpu.memory_total > (largest ?? 0)) {
        largest = gpu.memory_total;
      }
    }
  }
  return largest;
}

/** The sizes (bytes) that the slider can be put to: 0 is "any", the last is the largest GPU. */
export function stepsTo(largest: number | null): number[] {
  const most = Math.max(1, Math.floor((largest ?? LARGEST_USUAL) / GiB));
  return [...STEPS.filter(step => step < most), most].map(step => step * GiB);
}

/** Where on these steps a size is: at the last one that is not above it. */
export function stepOf(size: number, steps: readonly number[]): number {
  return Math.max(0, steps.filter(step => step <= size).length - 1);
}
