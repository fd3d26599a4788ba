/** What an allocation used of its GPUs as time passed: as lines to draw, and in words. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { gpuName, parentOf } from '../cluster/describe';
import { formatSize } from '../format';
import type { Node, UsageSeries } from '../wire';

/** Of one GPU. */
export interface Use {
  uuid: string;
  /** `GPU 3`. */
  name: string;
  /** All of it in a sentence, for who cannot see the lines. */
  words: string;
  /** What is to be read beside the lines. */
  memory: string;
  load: string;
  /** Points of each line from 0 to 1, as time passes and from the bottom; a line ends where nothing is known. */
  memoryLines: Point[][];
  loadLines: Point[][];
}

export type Point = readonly [x: number, y: number];

export function usesOf(
  { times, gpus, usage }: UsageSeries,
  node: Node | undefined,
  trans: TranslationBundle
): Use[] {
  return gpus.map(({ uuid, asked, memory, utilization }, at): Use => {
    const gpu = node?.gpus.find(one => one.uuid === uuid);
    const name =
      gpu === undefined || node === undefined
        ? trans.__('GPU %1 of %2', at + 1, gpus.length)
        : gpuName(gpu, parentOf(gpu, node), trans);
    const found = usage?.gpus.find(one => one.uuid === uuid);
    const peak = found?.peak ?? most(memory);
    const busy = found?.busy ?? null;
    const now = memory.at(-1) ?? null;
    const size = asked > 0 ? asked : (gpu?.memory_total ?? 0);
    const asking = asked > 0 ? trans.__('%1 asked', formatSize(asked)) : trans.__('none asked');
    const told = {
      memory:
        peak === null
          ? trans.__('memory unknown, %1', asking)
          : trans.__('at most %1, %2', formatSize(peak), asking),
      load:
        busy === null
          ? trans.__('load unknown')
          : trans.__('%1 % busy', Math.round(busy).toString())
    };
    const latest = now === null ? '' : trans.__('%1 now', formatSize(now));
    return {
      uuid,
      name,
      words: `${name}: ${[latest, told.memory, told.load].filter(Boolean).join(', ')}`,
      ...told,
      memoryLines: linesOf(times, memory, Math.max(size, peak ?? 0, 1)),
      loadLines: linesOf(times, utilization, 100)
    };
  });
}

function most(values: readonly (number | null)[]): number | null {
  const known = values.filter(value => value !== null);
  return known.length > 0 ? Math.max(...known) : null;
}

/** A gap in what is known is a gap in the line. */
export function linesOf(
  times: readonly number[],
  values: readonly (number | null)[],
  top: number
): Point[][] {
  const first = times[0] ?? 0;
  const length = (times.at(-1) ?? 0) - first;
  const lines: Point[][] = [[]];
  times.forEach((time, at) => {
    const value = values[at] ?? null;
    const x = length > 0 ? (time - first) / length : 1;
    if (value === null) {
      lines.push([]);
    } else {
      lines.at(-1)?.push([x, Math.min(Math.max(value / top, 0), 1)]);
    }
  });
  return lines.filter(line => line.length > 0);
}
