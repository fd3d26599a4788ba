import { nullTranslator } from '@jupyterlab/translation';
import { allocation, gpu, node } from '../../__tests__/server';
import { GiB } from '../../format';
import type { Decision, Request } from '../../wire';
import { outcome, reasons, requestWords, tell } from '../telling';

const trans = nullTranslator.load('');

function decision(more: Partial<Decision> = {}): Decision {
  return {
    node: 'gpu03',
    gpus: ['G1', 'G2'],
    memory: [],
    policy: 'best-fit',
    request: '2 GPUs',
    summary: 'No node has 2 GPUs now.',
    never: false,
    nearest: null,
    fitting: ['gpu03', 'a', 'b', 'c', 'd'],
    stages: [],
    ...more
  };
}

const nodes = new Map([
  ['gpu03', node('gpu03', { gpus: [gpu('G1'), gpu('G2'), gpu('G3', { model: 'NVIDIA L4' })] })]
]);
const said = (more: Partial<Decision>, request: Request | null = null): string => {
  const told = tell(decision(more), request, nodes, trans);
  return `${told.verdict}: ${told.node} ${told.text}`;
};

test.each<[Partial<Request>, string]>([
  [{}, '1 GPU'],
  [{ gpus: 2 }, '2 GPUs'],
  [{ gpus: 1, memory: '16GiB' }, '1 GPU with 16 GiB'],
  [{ gpus: 2, memory: 16 * GiB }, '2 GPUs with 16 GiB each'],
  [{ gpus: 2, memory: [16 * GiB, '8GiB'] }, '2 GPUs with 16 GiB, 8 GiB'],
  [{ gpus: 2, memory: [0, 0] }, '2 GPUs']
])('a request in words: %j', (request, words) => {
  expect(requestWords(request, trans)).toBe(words);
});

describe('where it would go', () => {
  test('which node, which GPUs, and why that one', () => {
    expect(said({})).toBe('fits: gpu03 2 × A100-40GB, the tightest of 5 that fit');
    expect(said({ fitting: ['gpu03'] })).toBe('fits: gpu03 2 × A100-40GB, the only one that fits');
    expect(said({ policy: 'claim', gpus: ['G1', 'G3'] })).toBe(
      'fits: gpu03 1 × A100-40GB + 1 × L4, first of 5 that fit, by policy claim'
    );
  });

  test('on a node that is not known yet', () => {
    expect(said({ node: 'new' })).toBe('fits: new 2 GPUs, the tightest of 5 that fit');
  });

  test('nowhere now: the server says why, and what waiting would do', () => {
    const full = { node: null, gpus: [], fitting: [] };
    expect(said(full)).toBe('full:  No node has 2 GPUs now.');
    expect(said(full, { gpus: 2, memory: 0, wait: 600 })).toBe(
      'full:  No node has 2 GPUs now. It would wait for up to 10 m.'
    );
  });

  test('nowhere ever: then waiting is no way, but the nearest may be', () => {
    const never = {
      node: null,
      never: true,
      nearest: { node: 'brook', gpus: 1, memory: 20 * GiB }
    };
    expect(said(never, { gpus: 2, memory: 0, wait: 600 })).toBe('never:  No node has 2 GPUs now.');
    expect(tell(decision(never), null, nodes, trans).nearest).toBe(
      'Take 1 GPU with 20 GiB on brook'
    );
  });
});

test('the reasons: of those nodes first that came furthest', () => {
  const stage = (number: number, rejected: Record<string, string>) => ({
    stage: number,
    name: '',
    title: '',
    passed: [],
    rejected
  });
  const stages = [stage(1, { a: 'too few' }), stage(4, { b: 'too small' })];
  expect(reasons(decision({ stages }))).toEqual([
    ['b', 'too small'],
    ['a', 'too few']
  ]);
});

describe('what became of it', () => {
  const told = (more: object) => outcome(allocation('train', more), trans);
  test.each<[string, object, object | null]>([
    ['asked', { state: 'pending', node: null }, { kind: 'going', text: 'train is asked for.' }],
    [
      'queued',
      { state: 'pending', node: null, queue: { position: 2, of: 3 } },
      { kind: 'going', text: 'train waits: it is number 2 of 3 in the queue.' }
    ],
    ['starting', { state: 'starting' }, { kind: 'going', text: 'train is starting on n1.' }],
    ['running', {}, { kind: 'there', text: 'train runs on n1.' }],
    [
      'failed',
      { state: 'ended', reason: 'failed', message: 'there is no image lab:2' },
      { kind: 'failed', text: 'train failed: there is no image lab:2' }
    ],
    ['released', { state: 'ended', reason: 'released' }, null]
  ])('%s', (_, more, expected) => {
    expect(told(more)).toEqual(expected);
  });
});
