import { nullTranslator } from '@jupyterlab/translation';
import { GiB } from '../../format';
import type { Gpu, Node } from '../../wire';
import { type Mine } from '../bars';
import {
  coresLine,
  gpuSentence,
  healthOf,
  idleLine,
  memoryLine,
  modelsLine,
  ramLine
} from '../describe';
import { divided, gpu, node } from './cluster_nodes';

const trans = nullTranslator.load('');
const train: Mine = { bytes: 60 * GiB, names: ['train'] };
const held = { idle: false, memory_free: 20 * GiB, utilization: 37, memory_claimed: 60 * GiB };

test.each<[Partial<Gpu>, Mine | undefined, string]>([
  [{}, undefined, 'GPU 3: A100-80GB, 80 GiB of 80 GiB free, idle, 0 % busy'],
  [
    { ...held, allocations: ['a'] },
    train,
    "GPU 3: A100-80GB, 20 GiB of 80 GiB free, held by your allocation 'train', 37 % busy"
  ],
  [
    { ...held, allocations: ['a', 'b', 'c'] },
    { bytes: 0, names: ['train', 'test'] },
    "GPU 3: A100-80GB, 20 GiB of 80 GiB free, held by your allocations 'train', 'test', held by 1 allocation of others, 37 % busy"
  ],
  [
    { idle: false, memory_foreign: 10 * GiB, memory_free: 70 * GiB, utilization: null },
    undefined,
    'GPU 3: A100-80GB, 70 GiB of 80 GiB free, 10 GiB used by other processes, utilisation unknown'
  ],
  [
    { idle: false, memory_foreign: null },
    undefined,
    'GPU 3: A100-80GB, 80 GiB of 80 GiB free, used by processes of which little is known, 0 % busy'
  ],
  [
    { allocatable: false, idle: false, memory_free: null, reason: 'lost: NVML cannot reach it' },
    undefined,
    'GPU 3: A100-80GB, 80 GiB in all, free memory unknown, 0 % busy; lost: NVML cannot reach it'
  ]
])('%#: a GPU in a sentence', (change, mine, sentence) => {
  expect(gpuSentence(gpu(3, change), null, mine, trans)).toBe(sentence);
});

test('a MIG instance names its card', () => {
  const [parent, one] = divided(2, {});
  expect(gpuSentence(one, parent, undefined, trans)).toBe(
    'GPU 2, MIG instance 0: A100-80GB 1g.10gb, 10 GiB of 10 GiB free, idle, utilisation unknown'
  );
});

const lines = (one: Node): string[] => [
  modelsLine(one, trans),
  idleLine(one, trans),
  memoryLine(one, trans)
];

test('a node in a few words', () => {
  const l4 = { model: 'NVIDIA L4', memory_total: 24 * GiB, memory_free: 23.5 * GiB };
  expect(lines(node('n', [gpu(0), gpu(1, held), gpu(2, l4)]))).toEqual([
    '2 × A100-80GB, 1 × L4',
    '2 of 3 free',
    '123 of 184 GiB'
  ]);
  const gone = node('n', [], { reason: 'it has not reported yet', age: null });
  expect(lines(gone)).toEqual(['no GPU known', 'not usable', 'memory unknown']);
});

test.each<[Partial<Node>, string, string]>([
  [{}, '', ''],
  [{ cpus: 8, ram: 64 * GiB }, '', ''],
  [
    { cpus: 8, cpus_free: 6.5, ram: 64 * GiB, ram_free: 48 * GiB },
    '6.5 of 8 free',
    '48 GiB of 64 GiB free'
  ],
  [{ cpus: 2, cpus_free: 0.29, ram: GiB, ram_free: 0 }, '0.29 of 2 free', '0 B of 1 GiB free'],
  [
    { cpus: 8, cpus_free: 0, cpus_limit: 4, ram: 64 * GiB, ram_free: 0, ram_limit: 32 * GiB },
    '0 of 8 free, at most 4 for one',
    '0 B of 64 GiB free, at most 32 GiB for one'
  ],
  [
    { cpus: 8, cpus_free: 8, cpus_limit: 16, ram: GiB, ram_free: GiB, ram_limit: GiB },
    '8 of 8 free',
    '1 GiB of 1 GiB free'
  ]
])('what a machine has left beside GPUs: %j', (known, cores, ram) => {
  const one = node('n', [], known);
  expect([coresLine(one, trans), ramLine(one, trans)]).toEqual([cores, ram]);
});

test.each<[Partial<Node>, Gpu[], number | null, string, string, string]>([
  [{}, [gpu(0)], 2, 'ok', '', 'It is usable, and its reports are fresh.'],
  [
    { reason: 'unreachable since 09:30 UTC: refused', reporting: false },
    [gpu(0)],
    90,
    'error',
    'unreachable since 09:30 UTC: refused',
    'Nothing can be placed here now: unreachable since 09:30 UTC: refused. Its last report is 1 m 30 s old.'
  ],
  [
    { reporting: false },
    [gpu(0)],
    12,
    'warning',
    'its reporter does not answer',
    'Its reporter does not answer. Its last report is 12 s old.'
  ],
  [
    {},
    [gpu(0), gpu(1, { allocatable: false, health: 'lost', reason: 'it is lost' })],
    1,
    'warning',
    'GPU 1: it is lost',
    'GPU 1: it is lost'
  ],
  [{}, divided(0, {}), 1, 'ok', '', 'It is usable, and its reports are fresh.']
])('%#: how a node is', (change, gpus, silence, level, brief, sentence) => {
  expect(healthOf(node('n', gpus, change), silence, trans)).toEqual({ level, brief, sentence });
});
