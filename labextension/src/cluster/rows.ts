/** Which nodes are shown, in which order, and what each of them is about. Pure. */

import type { Gpu, Node } from '../wire';

/** A physical card, as far as it is shown: a GPU, or one that is divided into MIG instances. */
export interface Card {
  /** Of the GPU. */
  uuid: string;
  /** The GPU itself; of a divided one the MIG parent, if it is reported. */
  gpu: Gpu | null;
  /** Its MIG instances. */
  parts: Gpu[];
}

/** What a row tells of a node at a glance. MIG parents count for nothing. */
export interface Facts {
  cards: Card[];
  /** GPUs and MIG instances. */
  gpus: number;
  /** Those of them that can be had whole; none of a node that is not usable. */
  idle: number;
  /** Bytes of those whose memory is known and that may be allocated; `null`: of none. */
  free: number | null;
  /** Likewise: bytes that these have in all. */
  total: number | null;
  /** The most that one GPU has free. */
  most: number | null;
  /** How many GPUs there are of each model, most first. */
  models: [string, number][];
  /** GPUs that cannot be had because something is wrong with them. */
  faulty: Gpu[];
  /** What the filter looks at. */
  text: string;
}

export type SortKey = 'name' | 'free' | 'idle' | 'model';

export interface Filter {
  /** Words, each of which has to be in name, model or labels. */
  text: string;
  /** A model as `modelOf` tells it; empty: any. */
  model: string;
  /** Bytes that at least one GPU has free. */
  memory: number;
  /** Only nodes on which something can be placed now. */
  usable: boolean;
  /** Only nodes on which the request that is being written fits. */
  fits: boolean;
}

export const NO_FILTER: Filter = { text: '', model: '', memory: 0, usable: false, fits: false };

const known = new WeakMap<Node, Facts>();

/** The facts of a node; nodes are never changed, so they are found out once. */
export function factsOf(node: Node): Facts {
  let facts = known.get(node);
  if (facts === undefined) {
    facts = found(node);
    known.set(node, facts);
  }
  return facts;
}

function found(node: Node): Facts {
  const cards = cardsOf(node.gpus);
  const gpus = cards.flatMap(({ gpu, parts }) => (gpu && parts.length === 0 ? [gpu] : parts));
  const models = countModels(gpus);
  const usable = node.reason === null;
  const had = gpus.filter(
    gpu => gpu.allocatable && gpu.memory_free !== null && gpu.memory_total !== null
  );
  const labels = Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
  return {
    cards,
    gpus: gpus.length,
    idle: usable ? gpus.filter(gpu => gpu.idle && gpu.allocatable).length : 0,
    free: sum(had, gpu => gpu.memory_free),
    total: sum(had, gpu => gpu.memory_total),
    most: had.length > 0 ? Math.max(...had.map(gpu => gpu.memory_free ?? 0)) : null,
    models,
    faulty: gpus.filter(gpu => !gpu.allocatable || gpu.health !== 'ok'),
    text: [node.name, ...models.map(([model]) => model), ...gpus.map(gpu => gpu.model), ...labels]
      .join('\n')
      .toLowerCase()
  };
}

function sum(gpus: Gpu[], bytes: (gpu: Gpu) => number | null): number | null {
  return gpus.length > 0 ? gpus.reduce((all, gpu) => all + (bytes(gpu) ?? 0), 0) : null;
}

/** GPUs by card, by index; each MIG instance under the GPU that it is a part of. */
function cardsOf(gpus: readonly Gpu[]): Card[] {
  const cards = new Map<string, Card>();
  for (const gpu of gpus) {
    if (gpu.parent === null) {
      cards.set(gpu.uuid, { uuid: gpu.uuid, gpu, parts: [] });
    }
  }
  for (const gpu of gpus) {
    if (gpu.parent !== null) {
      const card = cards.get(gpu.parent) ?? { uuid: gpu.parent, gpu: null, parts: [] };
      card.parts.push(gpu);
      cards.set(gpu.parent, card);
    }
  }
  return [...cards.values()];
}

/** How many of these GPUs there are of each model, most first. */
export function countModels(gpus: readonly Gpu[]): [model: string, count: number][] {
  const counts = new Map<string, number>();
  for (const gpu of gpus) {
    const model = modelOf(gpu);
    counts.set(model, (counts.get(model) ?? 0) + 1);
  }
  return [...counts].sort((one, other) => other[1] - one[1] || compare(one[0], other[0]));
}

/** A GPU's model as people call it: `A100-40GB`, `RTX 2080 Ti`, `A100-40GB 3g.20gb`. */
export function modelOf(gpu: Gpu): string {
  let model = called.get(gpu.model);
  if (model === undefined) {
    model = shortened(gpu.model);
    called.set(gpu.model, model);
  }
  return gpu.mig_profile === null ? model : `${model} ${gpu.mig_profile}`;
}

/** There are a handful of models, and thousands of GPUs in each event. */
const called = new Map<string, string>();

function shortened(model: string): string {
  const [whole = ''] = model.split(' MIG ');
  const name = whole
    .replace(/^(NVIDIA|Tesla)\s+/i, '')
    .replace(/^GeForce\s+/i, '')
    .replace(/[\s-]*(SXM\d*|HBM\d\w*|PCIE|PCIe)\b/g, '')
    .replace(/[\s-]+(\d+)\s?GB\b/, '-$1GB')
    .trim();
  return name || whole || '?';
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: 'base' });
const compare = (one: string, other: string): number => collator.compare(one, other);

/** The model of most of its GPUs; empty: none is known. */
const modelOfMost = (node: Node): string => factsOf(node).models.at(0)?.[0] ?? '';
const compareModels = (one: string, other: string): number =>
  one === '' || other === '' ? Number(one === '') - Number(other === '') : compare(one, other);

const ORDERS: Record<SortKey, (one: Node, other: Node) => number> = {
  name: () => 0,
  free: (one, other) => (factsOf(other).free ?? -1) - (factsOf(one).free ?? -1),
  idle: (one, other) => factsOf(other).idle - factsOf(one).idle,
  model: (one, other) => compareModels(modelOfMost(one), modelOfMost(other))
};

/**
 * The nodes that pass the filter, in order. `fitting`: the nodes that would do for the request that is being written
 * (`null`: none is). What is sorted by something that changes by itself is not moved while somebody points at it:
 * `held` is the order to keep then, and what is new comes last.
 */
export function shown(
  nodes: Iterable<Node>,
  filter: Filter,
  sort: SortKey,
  fitting: ReadonlySet<string> | null,
  held: readonly string[] | null = null
): Node[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const passing = [...nodes].filter(node => {
    const facts = factsOf(node);
    return (
      words.every(word => facts.text.includes(word)) &&
      (filter.model === '' || facts.models.some(([model]) => model === filter.model)) &&
      (filter.memory === 0 || (facts.most ?? 0) >= filter.memory) &&
      (!filter.usable || node.reason === null) &&
      (!filter.fits || fitting === null || fitting.has(node.name))
    );
  });
  const place = held && new Map(held.map((name, index): [string, number] => [name, index]));
  const at = (node: Node): number => place?.get(node.name) ?? Infinity;
  return passing.sort((one, other) => {
    const [first, second] = [at(one), at(other)];
    return first !== second
      ? first - second
      : ORDERS[sort](one, other) || compare(one.name, other.name);
  });
}

/** Whether the filter leaves anything out. */
export function isFiltering(filter: Filter): boolean {
  return filter.text.trim() !== '' || narrowing(filter) > 0;
}

/** How many of its criteria are set, the text aside. */
export function narrowing({ model, memory, usable, fits }: Filter): number {
  return [model !== '', memory > 0, usable, fits].filter(Boolean).length;
}

/** All models of these nodes, in order. */
export function modelsOf(nodes: Iterable<Node>): string[] {
  const models = new Set<string>();
  for (const node of nodes) {
    factsOf(node).models.forEach(([model]) => models.add(model));
  }
  return [...models].sort(compare);
}

/** Over all nodes: idle GPUs of those that can be had, and nodes. */
export function totals(nodes: Iterable<Node>): {
  idle: number;
  gpus: number;
  nodes: number;
  usable: number;
} {
  const all = { idle: 0, gpus: 0, nodes: 0, usable: 0 };
  for (const node of nodes) {
    const { idle, gpus } = factsOf(node);
    all.idle += idle;
    all.gpus += gpus;
    all.nodes += 1;
    all.usable += node.reason === null ? 1 : 0;
  }
  return all;
}
