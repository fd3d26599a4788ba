/** How the memory of a GPU is shared out: the segments of its bar. Pure. */

import type { Allocation, Gpu } from '../wire';

/** What my allocations hold of one GPU. */
export interface Mine {
  /** As they asked, which may be nothing. */
  bytes: number;
  /** Of those allocations. */
  names: string[];
}

/** By uuid of the GPU. */
export type Holdings = ReadonlyMap<string, Mine>;

/**
 * `unknown`: in use, and not known by whom. `rest`: what nobody uses and nobody can have (the driver's), or what is
 * about to be told by the next report.
 */
export type Part = 'mine' | 'others' | 'foreign' | 'unknown' | 'rest' | 'free';

export interface Segment {
  part: Part;
  bytes: number;
  /** Of the GPU's memory, 0 to 1. */
  share: number;
}

const NOTHING: Holdings = new Map();

/**
 * By node, what these allocations (all mine) hold of its GPUs. A node of which nothing has changed since `before` keeps
 * the object it had, so that its row need not be rendered again.
 */
export function holdings(
  allocations: Iterable<Allocation>,
  before: ReadonlyMap<string, Holdings> = new Map()
): Map<string, Holdings> {
  const nodes = new Map<string, Map<string, Mine>>();
  for (const { node, gpus, memory, name, state } of allocations) {
    if (node === null || state === 'ended') {
      continue;
    }
    const held = nodes.get(node) ?? new Map<string, Mine>();
    nodes.set(node, held);
    gpus.forEach((uuid, index) => {
      const { bytes, names } = held.get(uuid) ?? { bytes: 0, names: [] };
      held.set(uuid, { bytes: bytes + (memory[index] ?? 0), names: [...names, name] });
    });
  }
  return new Map(
    [...nodes].map(([node, held]): [string, Holdings] => {
      const known = before.get(node);
      return [node, known && same(known, held) ? known : held];
    })
  );
}

/** What is mine of a node; the same object for all of which nothing is. */
export function heldOn(node: string, nodes: ReadonlyMap<string, Holdings>): Holdings {
  return nodes.get(node) ?? NOTHING;
}

function same(one: Holdings, other: Holdings): boolean {
  return JSON.stringify([...one]) === JSON.stringify([...other]);
}

/**
 * The segments, in the order in which they are drawn, none of them empty, together the whole memory. `null`: it is not
 * known. What allocations use beyond what they asked (one may ask for no memory) is mine only where nobody else's is.
 */
export function segments(gpu: Gpu, mine: Mine | undefined): Segment[] | null {
  const {
    memory_total: total,
    memory_free: free,
    memory_used: used,
    memory_foreign: foreign
  } = gpu;
  if (total === null || free === null || total <= 0) {
    return null;
  }
  const sharers = gpu.allocations.length - (mine?.names.length ?? 0);
  const claimed = Math.max(gpu.memory_claimed, mine?.bytes ?? 0);
  const inUse =
    gpu.allocations.length > 0 && used !== null && foreign !== null ? used - foreign : 0;
  const beyond = Math.max(0, inUse - claimed);
  const alone = mine !== undefined && sharers <= 0;
  const wanted: [Part, number][] = [
    ['mine', (mine?.bytes ?? 0) + (alone ? beyond : 0)],
    ['others', claimed - (mine?.bytes ?? 0) + (alone ? 0 : beyond)],
    ['foreign', foreign ?? 0],
    ['free', free]
  ];
  // Reports and allocations tell of different moments: never more than there is.
  let left = total;
  const parts = wanted.map(([part, bytes]): [Part, number] => {
    const taken = Math.min(Math.max(0, bytes), left);
    left -= taken;
    return [part, taken];
  });
  parts.splice(3, 0, [foreign === null ? 'unknown' : 'rest', left]);
  return parts
    .filter(([, bytes]) => bytes > 0)
    .map(([part, bytes]) => ({ part, bytes, share: bytes / total }));
}
