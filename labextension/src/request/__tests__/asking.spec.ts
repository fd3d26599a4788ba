import { nullTranslator } from '@jupyterlab/translation';
import { gpu, node } from '../../__tests__/server';
import { GiB } from '../../format';
import { lineOf } from '../../line';
import type { Request } from '../../wire';
import {
  EMPTY,
  formOf,
  largestGpu,
  read,
  sizeText,
  stepOf,
  stepsTo,
  withNearest,
  type Form
} from '../asking';

import lines from '../../../../tests/labextension/lines.json';

const trans = nullTranslator.load('');
const form = (more: Partial<Form>): Form => ({ ...EMPTY, ...more });
const request = (more: Partial<Form>): Request | null => read(form(more), trans).request;
const mistakes = (more: Partial<Form>): object => read(form(more), trans).mistakes;

describe('a form becomes a request', () => {
  test('of what is written, and nothing else', () => {
    expect(request({})).toEqual({ gpus: 1, memory: 0 });
    expect(request({ gpus: ' 2 ', memory: '16 GiB', time: '', name: '  ' })).toEqual({
      gpus: 2,
      memory: 16 * GiB
    });
  });

  test('with all its wishes', () => {
    expect(
      request({
        memory: '500MB',
        cpus: '.5',
        ram: '64 GiB',
        image: 'lab:1',
        time: '1h30m',
        shared: true,
        waits: true,
        wait: '10m',
        name: 'train',
        node: 'gpu0*',
        gpu_model: 'A100',
        labels: 'room=b12, tier = a=b ,',
        priority: '-5',
        shareCard: true
      })
    ).toEqual({
      gpus: 1,
      memory: 500_000_000,
      cpus: 0.5,
      ram: 64 * GiB,
      image: 'lab:1',
      time: 5400,
      shared: true,
      wait: 600,
      name: 'train',
      node: 'gpu0*',
      gpu_model: 'A100',
      labels: { room: 'b12', tier: 'a=b' },
      priority: -5,
      share_card: true
    });
  });

  test('one size each only where there are several GPUs; what is not written is as for all', () => {
    const each = { each: true, sizes: ['8GiB', ''], memory: '4GiB' };
    expect(request({ ...each, gpus: '3' })?.memory).toEqual([8 * GiB, 0, 4 * GiB]);
    expect(request({ ...each, gpus: '1' })?.memory).toBe(4 * GiB);
    expect(request({ ...each, gpus: '65' })?.memory).toBe(4 * GiB);
  });

  test('how long to wait counts only if it waits', () => {
    expect(request({ wait: 'soon' })).toEqual({ gpus: 1, memory: 0 });
    expect(mistakes({ wait: 'soon', waits: true })).toHaveProperty('wait');
    expect(mistakes({ wait: ' ', waits: true })).toHaveProperty('wait');
  });
});

describe('a mistake is told at its field, in a sentence that names the value', () => {
  test.each<[Partial<Form>, string, RegExp]>([
    [{ memory: '16QiB' }, 'memory', /^'16QiB' is not a size of memory; write it like '16GiB'/],
    [{ memory: '16' }, 'memory', /^'16' has no unit; write '16GiB'/],
    [{ gpus: '' }, 'gpus', /^How many GPUs is missing/],
    [{ gpus: '0' }, 'gpus', /^'0' is no number of GPUs; write a whole number from 1 to 1024/],
    [{ gpus: '1.5' }, 'gpus', /^'1.5' is no number of GPUs/],
    [{ gpus: '1025' }, 'gpus', /^'1025' is no number of GPUs/],
    [{ cpus: '0' }, 'cpus', /^'0' is no number of cores; write one such as 8 or 0.5, at most 4096/],
    [{ cpus: '-1' }, 'cpus', /^'-1' is no number of cores/],
    [{ cpus: 'many' }, 'cpus', /^'many' is no number of cores/],
    [{ cpus: '1e3' }, 'cpus', /^'1e3' is no number of cores/],
    [{ cpus: '4097' }, 'cpus', /^'4097' is no number of cores/],
    [{ ram: '64' }, 'ram', /^'64' has no unit; write '64GiB'/],
    [
      { ram: '1MiB' },
      'ram',
      /^'1MiB' is too little; ask for 64 MiB of the machine's memory at least/
    ],
    [{ ram: '0' }, 'ram', /^'0' is too little/],
    [{ time: '2 hours' }, 'time', /^'2 hours' is not a duration/],
    [{ name: '-x' }, 'name', /^'-x' cannot be a name/],
    [{ name: 'a'.repeat(64) }, 'name', /cannot be a name/],
    [
      { priority: '101' },
      'priority',
      /^'101' is no priority; write a whole number from -100 to 100/
    ],
    [{ priority: 'high' }, 'priority', /^'high' is no priority/],
    [{ labels: 'room' }, 'labels', /^'room' is no label; write it like room=b12/],
    [{ labels: '=b12' }, 'labels', /^'=b12' is no label/],
    [{ image: 'x'.repeat(513) }, 'image', /^These are 513 characters; write no more than 512/],
    [{ gpus: '2', each: true, sizes: ['8GiB', 'x'] }, 'size-1', /^'x' is not a size of memory/]
  ])('%j', (more, field, sentence) => {
    const reading = read(form(more), trans);
    expect(reading.request).toBeNull();
    expect(Object.keys(reading.mistakes)).toEqual([field]);
    expect(Object.values(reading.mistakes)[0]).toMatch(sentence);
  });

  test.each(['gpus', 'memory', 'cpus', 'ram', 'time', 'name', 'labels', 'priority'])(
    '%s: also of a whole file that was pasted there',
    field => {
      const told = Object.values(mistakes({ [field]: 'x'.repeat(10_000) }));
      expect(told).toHaveLength(1);
      expect(told[0]?.length).toBeLessThan(150);
    }
  );

  test('all of them at once', () => {
    expect(Object.keys(mistakes({ gpus: 'x', memory: 'y', time: 'z' })).sort()).toEqual([
      'gpus',
      'memory',
      'time'
    ]);
  });
});

test('the nearest request is taken over as it fits: never more than there is', () => {
  const free = Math.floor(20.37 * GiB);
  const taken = withNearest(form({ gpus: '4', each: true, sizes: ['1GiB'], name: 'train' }), {
    node: 'brook',
    gpus: 2,
    memory: free
  });
  const asked = read(taken, trans).request;
  expect(asked).toMatchObject({ gpus: 2, name: 'train' });
  expect(taken.memory).toBe('20.3GiB');
  expect(asked?.memory).toBeLessThanOrEqual(free);
  expect(withNearest(taken, { node: 'brook', gpus: 1, memory: 0 }).memory).toBe('');
});

describe('the slider', () => {
  test('goes from nothing to the largest GPU that can be had', () => {
    const nodes = [
      node('a', { gpus: [gpu('1', { memory_total: 40 * GiB }), gpu('2', { memory_total: null })] }),
      node('b', { gpus: [gpu('3', { memory_total: 80 * GiB, allocatable: false })] })
    ];
    expect(largestGpu(nodes)).toBe(40 * GiB);
    const steps = stepsTo(largestGpu(nodes));
    expect(steps[0]).toBe(0);
    expect(steps.at(-1)).toBe(40 * GiB);
    expect(steps).toEqual([...new Set(steps)].sort((one, other) => one - other));
  });

  test('has its end at a size that is no round one, and at something where nothing is known', () => {
    expect(stepsTo(44.5 * GiB).slice(-2)).toEqual([40 * GiB, 44 * GiB]);
    expect(stepsTo(GiB / 2)).toEqual([0, GiB]);
    expect(stepsTo(null).at(-1)).toBe(80 * GiB);
  });

  test('stands at the last step that is not above what is written', () => {
    const steps = stepsTo(40 * GiB);
    for (const [at, step] of steps.entries()) {
      expect(stepOf(step, steps)).toBe(at);
    }
    expect(steps[stepOf(17 * GiB, steps)]).toBe(16 * GiB);
    expect(stepOf(999 * GiB, steps)).toBe(steps.length - 1);
    expect(sizeText(steps[3])).toBe('3GiB');
  });
});

test.each(lines as { request: object; env?: string[]; line: string }[])(
  'as a line of code: $line',
  ({ request, env, line }) => {
    expect(lineOf(request, env)).toBe(line);
  }
);

describe('a request is written as the form that means it', () => {
  test.each<[string, Request]>([
    ['the least', { gpus: 1, memory: 0 }],
    ['one size for all', { gpus: 2, memory: 17 * GiB }],
    ['a size for each', { gpus: 2, memory: [4 * GiB, 1025] }],
    [
      'all wishes',
      {
        gpus: 3,
        memory: 500_000_000,
        cpus: 1.5,
        ram: 64 * GiB + 1024,
        name: 'fit',
        image: 'lab:1',
        time: 5400,
        shared: true,
        wait: 600,
        priority: -5,
        node: 'gpu0*',
        gpu_model: 'A100',
        model: 'llama-7b',
        require_model: true,
        write_models: true,
        labels: { room: 'b12', tier: 'a=b' },
        share_card: true
      }
    ]
  ])('%s', (_, asked) => {
    expect(read(formOf(asked), trans)).toEqual({ request: asked, mistakes: {} });
  });

  test('of what it does not say stays what is written', () => {
    const written = form({ gpus: '4', memory: '8GiB', node: 'brook', waits: true, wait: '1h' });
    expect(formOf({}, written)).toEqual(written);
    expect(formOf({ memory: '16GiB', model: 'llama' }, written)).toEqual({
      ...written,
      memory: '16GiB',
      model: 'llama'
    });
  });
});
