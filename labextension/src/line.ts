/**
 * A request as a line of code: `%gpufit request 2 --memory 16GiB --name train`, as `jupyter_gpufit/notebook/options.py`
 * reads it (`tests/labextension/lines.json` holds both to it). Pure.
 */

import { parseDuration, parseSize } from './format';
import type { Request } from './wire';

/**
 * The line that asks for it; what is usual is left out. Of a job's variables there are only the names, `env`: their values
 * are those of whoever runs the line.
 */
export function lineOf(request: Partial<Request>, env: readonly string[] = []): string {
  const { gpus, memory = 0, name, image, time, wait, priority, shared, node, gpu_model } = request;
  const sizes = (Array.isArray(memory) ? memory : [memory]).map(parseSize);
  const { job } = request;
  const count = gpus ?? sizes.length;
  const words =
    job === undefined
      ? ['%gpufit', 'request', String(count)]
      : ['%gpufit', 'train', word(job.run), ...(count > 1 ? ['--gpus', String(count)] : [])];
  const option = (flag: string, value: string | undefined): void => {
    if (value !== undefined) {
      // A word that begins like an option is one, unless it is joined to its own.
      words.push(...(value.startsWith('-') ? [`${flag}=${word(value)}`] : [flag, word(value)]));
    }
  };
  option('--memory', sizes.some(size => size > 0) ? memoryWord(sizes) : undefined);
  option('--cpus', request.cpus === undefined ? undefined : String(request.cpus));
  option('--ram', request.ram === undefined ? undefined : exactSize(parseSize(request.ram)));
  option('--name', name);
  option('--image', image);
  option('--time', time === undefined ? undefined : exactDuration(parseDuration(time)));
  option('--wait', wait === undefined ? undefined : exactDuration(parseDuration(wait)));
  option('--priority', priority ? String(priority) : undefined);
  if (shared) {
    words.push('--shared');
  }
  option('--node', node);
  option('--gpu-model', gpu_model);
  option('--model', request.model);
  if (request.require_model) {
    words.push('--require-model');
  }
  if (request.write_models) {
    words.push('--write-models');
  }
  for (const [key, value] of Object.entries(request.labels ?? {})) {
    option('--label', `${key}=${value}`);
  }
  if (request.share_card) {
    words.push('--share-card');
  }
  if (job !== undefined) {
    env.forEach(name => option('--env', name));
    option('--retries', job.retries ? String(job.retries) : undefined);
    option('--launcher', job.launcher);
    for (const [name, value] of Object.entries(job.sweep ?? {})) {
      option('--sweep', `${name}=${value}`);
    }
    if (job.args !== undefined && job.args.length > 0) {
      words.push('--', ...job.args.map(word));
    }
  }
  return words.join(' ');
}

function memoryWord(sizes: number[]): string {
  const each = new Set(sizes).size === 1 ? sizes.slice(0, 1) : sizes;
  return each.map(exactSize).join(',');
}

const UNITS: [string, number][] = [
  ...['TiB', 'GiB', 'MiB', 'KiB'].map((unit, at): [string, number] => [unit, 1024 ** (4 - at)]),
  ...['TB', 'GB', 'MB'].map((unit, at): [string, number] => [unit, 1000 ** (4 - at)])
];

/** Without a space, and exactly that many bytes: `'16GiB'`, `'20.3GiB'`, `'80GB'`, `'1025B'`. */
export function exactSize(size: number): string {
  const texts = UNITS.filter(([, bytes]) => bytes <= size)
    .map(([unit, bytes]) => `${Math.round((size / bytes) * 10) / 10}${unit}`)
    .filter(text => parseSize(text) === size);
  return [...texts, `${size}B`].reduce((best, text) => (text.length < best.length ? text : best));
}

/** Exactly that many seconds, to the millisecond: `'1h30m'`. */
export function exactDuration(seconds: number): string {
  let left = Math.max(1, Math.round(seconds * 1000));
  let text = '';
  for (const [unit, size] of [
    ['d', 86_400_000],
    ['h', 3_600_000],
    ['m', 60_000],
    ['s', 1000],
    ['ms', 1]
  ] as const) {
    const count = Math.floor(left / size);
    left -= count * size;
    text += count > 0 ? `${count}${unit}` : '';
  }
  return text;
}

/** As `shlex` reads it back. */
export function word(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}
