/** What is to be said of nodes and GPUs, in sentences and few words. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { GiB, formatDuration, formatSize } from '../format';
import type { Gpu, Node } from '../wire';
import type { Mine } from './bars';
import { countModels, factsOf, modelOf } from './rows';

/** `GPU 3`, or `GPU 0, MIG instance 2`. */
export function gpuName(gpu: Gpu, parent: Gpu | null, trans: TranslationBundle): string {
  if (gpu.parent === null) {
    return trans.__('GPU %1', gpu.index);
  }
  return parent === null
    ? trans.__('MIG instance %1', gpu.index)
    : trans.__('GPU %1, MIG instance %2', parent.index, gpu.index);
}

/** All of a GPU in one sentence: for who cannot see its bar, and for who wants to know more than it shows. */
export function gpuSentence(
  gpu: Gpu,
  parent: Gpu | null,
  mine: Mine | undefined,
  trans: TranslationBundle
): string {
  const parts = [modelOf(gpu), memoryOf(gpu, trans), usersOf(gpu, mine, trans), busyOf(gpu, trans)];
  const reason = gpu.reason === null ? '' : `; ${gpu.reason}`;
  return `${gpuName(gpu, parent, trans)}: ${parts.filter(Boolean).join(', ')}${reason}`;
}

/** `20 GiB of 80 GiB free`. */
export function memoryOf(gpu: Gpu, trans: TranslationBundle): string {
  if (gpu.memory_total === null) {
    return trans.__('memory unknown');
  }
  return gpu.memory_free === null
    ? trans.__('%1 in all, free memory unknown', formatSize(gpu.memory_total))
    : trans.__('%1 of %2 free', formatSize(gpu.memory_free), formatSize(gpu.memory_total));
}

/** Who uses it; empty for one that cannot be had, and of which nothing is known. */
export function usersOf(gpu: Gpu, mine: Mine | undefined, trans: TranslationBundle): string {
  const uses = [];
  const names = mine?.names.map(name => `'${name}'`).join(', ') ?? '';
  const others = Math.max(0, gpu.allocations.length - (mine?.names.length ?? 0));
  if (names) {
    uses.push(
      trans._n(
        'held by your allocation %2',
        'held by your allocations %2',
        mine?.names.length ?? 1,
        names
      )
    );
  }
  if (others > 0) {
    uses.push(
      trans._n('held by %1 allocation of others', 'held by %1 allocations of others', others)
    );
  }
  if (gpu.memory_foreign !== null && gpu.memory_foreign > 0) {
    uses.push(trans.__('%1 used by other processes', formatSize(gpu.memory_foreign)));
  } else if (gpu.memory_foreign === null && gpu.allocatable && !gpu.idle) {
    uses.push(trans.__('used by processes of which little is known'));
  }
  if (gpu.idle) {
    uses.push(trans.__('idle'));
  }
  return uses.join(', ');
}

/** `37 % busy`. */
export function busyOf(gpu: Gpu, trans: TranslationBundle): string {
  return gpu.utilization === null
    ? trans.__('utilisation unknown')
    : trans.__('%1 % busy', gpu.utilization);
}

/** `8 × A100-80GB`, or of several models `2 × A100-80GB, 2 × L4`. */
export function modelsLine(node: Node, trans: TranslationBundle): string {
  const { models } = factsOf(node);
  return modelWords(models, ', ') || trans.__('no GPU known');
}

/** `2 × A100-40GB + 1 × L4`: these GPUs of a node; or how many, where not all of them are known (any more). */
export function gpusLine(
  uuids: readonly string[],
  node: Node | undefined,
  trans: TranslationBundle
): string {
  const gpus = node?.gpus.filter(gpu => uuids.includes(gpu.uuid) && gpu.model !== '') ?? [];
  return gpus.length < uuids.length
    ? trans._n('%1 GPU', '%1 GPUs', uuids.length)
    : modelWords(countModels(gpus), ' + ');
}

function modelWords(models: readonly [string, number][], between: string): string {
  return models.map(([model, count]) => `${count} × ${model}`).join(between);
}

/** `3 of 8 free`; of a node that is not usable, nobody knows. */
export function idleLine(node: Node, trans: TranslationBundle): string {
  const { gpus, idle } = factsOf(node);
  return node.reason === null ? trans.__('%1 of %2 free', idle, gpus) : trans.__('not usable');
}

/** `228 of 640 GiB`, rounded down: free memory of those GPUs that can be had; or `memory unknown`. */
export function memoryLine(node: Node, trans: TranslationBundle): string {
  const { free, total } = factsOf(node);
  if (free === null || total === null) {
    return trans.__('memory unknown');
  }
  return total < 10 * GiB
    ? trans.__('%1 of %2', formatSize(free), formatSize(total))
    : trans.__('%1 of %2 GiB', Math.floor(free / GiB), Math.floor(total / GiB));
}

/** `6 of 8 free`, or `6 of 8 free, at most 4 for one`: cores of the machine; empty: nothing is known of them. */
export function coresLine(node: Node, trans: TranslationBundle): string {
  const { cpus, cpus_free, cpus_limit } = node;
  return leftLine(cpus, cpus_free, cpus_limit, String, trans);
}

/** `48 GiB of 64 GiB free`: the machine's own memory, likewise. */
export function ramLine(node: Node, trans: TranslationBundle): string {
  return leftLine(node.ram, node.ram_free, node.ram_limit, formatSize, trans);
}

function leftLine(
  all: number | null,
  free: number | null,
  limit: number | null,
  words: (amount: number) => string,
  trans: TranslationBundle
): string {
  if (all === null || free === null) {
    return '';
  }
  const left = trans.__('%1 of %2 free', words(free), words(all));
  return limit === null || limit >= all
    ? left
    : trans.__('%1, at most %2 for one', left, words(limit));
}

/** How well a node is: `ok` needs no words. */
export interface Health {
  level: 'ok' | 'warning' | 'error';
  /** In a few words, for the row. */
  brief: string;
  /** In full, for a hover and the detail. */
  sentence: string;
}

/** What is wrong with a node, the worst first. `silence`: seconds since its last report, if that is known. */
export function healthOf(node: Node, silence: number | null, trans: TranslationBundle): Health {
  const since =
    silence === null
      ? trans.__('It has not reported yet.')
      : trans.__('Its last report is %1 old.', formatDuration(silence));
  if (node.reason !== null) {
    const sentence = trans.__(
      'Nothing can be placed here now: %1.',
      node.reason.replace(/\.$/, '')
    );
    return {
      level: 'error',
      brief: node.reason,
      sentence: node.reporting ? sentence : `${sentence} ${since}`
    };
  }
  if (!node.reporting) {
    const brief = trans.__('its reporter does not answer');
    return {
      level: 'warning',
      brief,
      sentence: `${trans.__('Its reporter does not answer.')} ${since}`
    };
  }
  const { faulty } = factsOf(node);
  if (faulty.length === 0) {
    const sentence = trans.__('It is usable, and its reports are fresh.');
    return { level: 'ok', brief: '', sentence };
  }
  const told = faulty.map(gpu => `${gpuName(gpu, parentOf(gpu, node), trans)}: ${faultOf(gpu)}`);
  return {
    level: 'warning',
    brief: told.length === 1 ? told.join('') : trans.__('%1 GPUs cannot be had', told.length),
    sentence: told.join('; ')
  };
}

/** Of a MIG instance, the GPU it is a part of. */
export function parentOf(gpu: Gpu, node: Node): Gpu | null {
  return node.gpus.find(other => other.uuid === gpu.parent) ?? null;
}

function faultOf(gpu: Gpu): string {
  return gpu.reason ?? gpu.health;
}
