import { GiB } from '../../format';
import { NO_FILTER, factsOf, modelOf, modelsOf, shown, totals, type Filter } from '../rows';
import models from '../../../../tests/labextension/models.json';
import { divided, gpu, node } from './cluster_nodes';

const busy = { idle: false, memory_free: 10 * GiB };
const l4 = { model: 'NVIDIA L4', memory_total: 24 * GiB, memory_free: 24 * GiB };
const nodes = [
  node('node10', [gpu(0, busy), gpu(1, busy)], { labels: { room: 'B12' } }),
  node('node2', [gpu(0), gpu(1), gpu(2, busy)]),
  node('small', [gpu(0, l4)]),
  node('mig', divided(0, {}, { ...busy, memory_free: GiB })),
  node('gone', [gpu(0)], { reason: 'unreachable since 09:30 UTC: no route' }),
  node('empty', [], { reason: 'it has not reported yet', age: null })
];
const names = (filter: Partial<Filter>, ...more: unknown[]): string[] => {
  const [sort = 'name', fitting = null, held = null] = more as [
    ('name' | 'free')?,
    ReadonlySet<string>?,
    string[]?
  ];
  return shown(nodes, { ...NO_FILTER, ...filter }, sort, fitting, held).map(one => one.name);
};

test('sorted by name, numbers in it as numbers', () => {
  expect(names({})).toEqual(['empty', 'gone', 'mig', 'node2', 'node10', 'small']);
});

test.each([
  ['free', ['node2', 'gone', 'small', 'node10', 'mig', 'empty']],
  ['idle', ['node2', 'mig', 'small', 'empty', 'gone', 'node10']],
  ['model', ['gone', 'node2', 'node10', 'mig', 'small', 'empty']]
] as const)('sorted by %s, then by name', (sort, expected) => {
  expect(names({}, sort)).toEqual(expected);
});

test.each<[Partial<Filter>, string[]]>([
  [{ text: ' NODE ' }, ['node2', 'node10']],
  [{ text: 'a100 b12' }, ['node10']],
  [{ text: 'room=b12' }, ['node10']],
  [{ text: 'NVIDIA L4' }, ['small']],
  [{ text: '1g.10gb' }, ['mig']],
  [{ model: 'A100-80GB' }, ['gone', 'node2', 'node10']],
  [{ memory: 24 * GiB }, ['gone', 'node2', 'small']],
  [{ memory: 24 * GiB, usable: true }, ['node2', 'small']],
  [{ usable: true, text: 'gone' }, []]
])('filtered by %j', (filter, expected) => {
  expect(names(filter)).toEqual(expected);
});

test('only those that fit the request; all, while there is none', () => {
  expect(names({ fits: true }, 'name', new Set(['small', 'node2', 'unheard of']))).toEqual([
    'node2',
    'small'
  ]);
  expect(names({ fits: true }, 'name', new Set())).toEqual([]);
  expect(names({ fits: true }, 'name', null)).toHaveLength(nodes.length);
});

test('an order that is held is kept, and what is new comes last', () => {
  const held = ['small', 'mig', 'gone', 'left meanwhile', 'node10'];
  expect(names({}, 'free', null, held)).toEqual([
    'small',
    'mig',
    'gone',
    'node10',
    'node2',
    'empty'
  ]);
});

test('a MIG parent is no GPU: its instances are, under their card', () => {
  const [parent, one, two] = divided(0, {}, busy);
  const facts = factsOf(node('n', [parent, gpu(1), one, two]));
  expect(facts.cards.map(card => [card.gpu?.uuid, card.parts.length])).toEqual([
    ['GPU-0', 2],
    ['GPU-1', 0]
  ]);
  expect(facts).toMatchObject({ gpus: 3, idle: 2, total: 100 * GiB, free: 100 * GiB, faulty: [] });
  expect(facts.models).toEqual([
    ['A100-80GB 1g.10gb', 2],
    ['A100-80GB', 1]
  ]);
});

test('MIG instances whose parent is not reported are shown all the same', () => {
  const [, one] = divided(3, {});
  expect(factsOf(node('n', [one])).cards).toEqual([{ uuid: 'GPU-3', gpu: null, parts: [one] }]);
});

test('unknown memory is unknown, and not zero', () => {
  const lost = { allocatable: false, idle: false, health: 'lost', memory_free: null };
  expect(factsOf(node('n', [gpu(0, lost)]))).toMatchObject({ free: null, total: null, idle: 0 });
  const facts = factsOf(node('n', [gpu(0, lost), gpu(1)]));
  expect(facts).toMatchObject({ gpus: 2, idle: 1, free: 80 * GiB, total: 80 * GiB });
  expect(facts.faulty.map(({ index }) => index)).toEqual([0]);
});

test('the cluster in numbers: what is idle on a node that cannot be used is not free', () => {
  expect(totals(nodes)).toEqual({ idle: 4, gpus: 9, nodes: 6, usable: 4 });
  expect(modelsOf(nodes)).toEqual(['A100-80GB', 'A100-80GB 1g.10gb', 'L4']);
});

test.each([...models, ['', '?']])('the model %j is called %j', (model = '', expected = '') => {
  expect(modelOf(gpu(0, { model }))).toBe(expected);
});
