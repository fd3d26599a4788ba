/** Nodes and GPUs for the tests of the cluster's views: what is not said is as on an idle 80 GiB GPU. */

import * as usual from '../../__tests__/server';
import { GiB } from '../../format';
import type { Allocation, Gpu, Node } from '../../wire';

export function gpu(index: number, change: Partial<Gpu> = {}): Gpu {
  return usual.gpu(change.uuid ?? `GPU-${index}`, {
    index,
    model: 'NVIDIA A100-SXM4-80GB',
    memory_total: 80 * GiB,
    memory_free: 80 * GiB,
    temperature: 31,
    power: 60,
    numa: 0,
    shareable: false,
    ...change
  });
}

export function node(name: string, gpus: Gpu[], change: Partial<Node> = {}): Node {
  return usual.node(name, { gpus, driver: '550.54', cuda: '12.4', ...change });
}

export function allocation(name: string, change: Partial<Allocation>): Allocation {
  return usual.allocation(`id-${name}`, { name, node: 'atlas', gpus: [], memory: [], ...change });
}

/** A card in MIG mode, with its instances, each of 10 GiB. */
export function divided(index: number, ...instances: Partial<Gpu>[]): Gpu[] {
  const reason = 'MIG mode is on: its instances are allocated in its place';
  const parent = gpu(index, { allocatable: false, idle: false, reason });
  const parts = instances.map((change, part) =>
    gpu(part, {
      uuid: `MIG-${index}-${part}`,
      parent: parent.uuid,
      card: parent.uuid,
      model: 'NVIDIA A100-SXM4-80GB MIG 1g.10gb',
      mig_profile: '1g.10gb',
      memory_total: 10 * GiB,
      memory_free: 10 * GiB,
      utilization: null,
      temperature: null,
      power: null,
      ...change
    })
  );
  return [parent, ...parts];
}
