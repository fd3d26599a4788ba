import { GiB } from '../../format';
import type { Gpu } from '../../wire';
import { heldOn, holdings, segments, type Mine } from '../bars';
import { allocation, gpu } from './cluster_nodes';

/** The bar in GiB: `mine 16, free 64`. */
function bar(change: Partial<Gpu>, mine?: Mine): string | null {
  const parts = segments(gpu(0, change), mine);
  return parts && parts.map(({ part, bytes }) => `${part} ${bytes / GiB}`).join(', ');
}

const train = (gib: number): Mine => ({ bytes: gib * GiB, names: ['train'] });

test.each<[string, Partial<Gpu>, Mine | undefined, string | null]>([
  ['an idle one', {}, undefined, 'free 80'],
  ['the driver has a part', { memory_free: 79 * GiB }, undefined, 'rest 1, free 79'],
  [
    'claimed by me and not used yet',
    { allocations: ['a'], memory_claimed: 16 * GiB, memory_free: 64 * GiB },
    train(16),
    'mine 16, free 64'
  ],
  [
    'I use more than I asked for: all of it is mine',
    { allocations: ['a'], memory_claimed: 16 * GiB, memory_used: 20 * GiB, memory_free: 60 * GiB },
    train(16),
    'mine 20, free 60'
  ],
  [
    'I asked for no memory, and use some',
    { allocations: ['a'], memory_used: 5 * GiB, memory_free: 75 * GiB },
    train(0),
    'mine 5, free 75'
  ],
  [
    'others have it',
    { allocations: ['b'], memory_claimed: 30 * GiB, memory_used: 10 * GiB, memory_free: 50 * GiB },
    undefined,
    'others 30, free 50'
  ],
  [
    'shared, and one of us uses more than was asked for: whose that is is not known',
    {
      allocations: ['a', 'b'],
      memory_claimed: 30 * GiB,
      memory_used: 35 * GiB,
      memory_free: 45 * GiB
    },
    train(10),
    'mine 10, others 25, free 45'
  ],
  [
    'mine beside a process of no allocation',
    {
      allocations: ['a'],
      memory_claimed: 16 * GiB,
      memory_foreign: 4 * GiB,
      memory_used: 20 * GiB,
      memory_free: 60 * GiB
    },
    train(16),
    'mine 16, foreign 4, free 60'
  ],
  [
    'in use, and not known by whom',
    { memory_foreign: null, memory_used: 30 * GiB, memory_free: 50 * GiB, idle: false },
    undefined,
    'unknown 30, free 50'
  ],
  [
    'my allocation is known before the node tells of it: together no more than there is',
    { memory_free: 80 * GiB },
    train(60),
    'mine 60, free 20'
  ],
  [
    'a report that adds up to too much',
    { memory_total: 40 * GiB, memory_foreign: 30 * GiB, memory_free: 20 * GiB },
    train(16),
    'mine 16, foreign 24'
  ],
  ['memory not known', { memory_free: null, memory_used: null }, undefined, null],
  ['size not known', { memory_total: null }, undefined, null]
])('%s', (_, change, mine, expected) => {
  expect(bar(change, mine)).toBe(expected);
});

test('shares are those of the whole memory, and add up to it', () => {
  const parts = segments(
    gpu(0, { memory_foreign: 20 * GiB, memory_used: 20 * GiB, memory_free: 58 * GiB }),
    undefined
  );
  expect(parts?.map(({ share }) => share)).toEqual([0.25, 0.025, 0.725]);
});

test('what is mine: all my allocations that have not ended, by node and GPU', () => {
  const found = holdings([
    allocation('one', { gpus: ['GPU-0', 'GPU-1'], memory: [GiB, 2 * GiB] }),
    allocation('two', { gpus: ['GPU-1'], memory: [4 * GiB], state: 'starting' }),
    allocation('gone', { gpus: ['GPU-2'], memory: [GiB], state: 'ended' }),
    allocation('waits', { node: null, state: 'pending' }),
    allocation('else', { node: 'brook', gpus: ['GPU-9'], memory: [GiB] })
  ]);
  expect([...found.keys()]).toEqual(['atlas', 'brook']);
  expect([...heldOn('atlas', found)]).toEqual([
    ['GPU-0', { bytes: GiB, names: ['one'] }],
    ['GPU-1', { bytes: 6 * GiB, names: ['one', 'two'] }]
  ]);
  expect(heldOn('cedar', found)).toBe(heldOn('dune', found));
});

test('a node of which nothing has changed keeps its object', () => {
  const here = allocation('here', { gpus: ['GPU-0'], memory: [GiB] });
  const there = allocation('there', { node: 'brook', gpus: ['GPU-9'], memory: [GiB] });
  const before = holdings([here, there]);
  const after = holdings(
    [
      { ...here, version: 2 },
      { ...there, state: 'ended' }
    ],
    before
  );
  expect(after.get('atlas')).toBe(before.get('atlas'));
  expect(after.has('brook')).toBe(false);
  const more = holdings([{ ...here, memory: [2 * GiB] }], after);
  expect(more.get('atlas')).not.toBe(after.get('atlas'));
});
