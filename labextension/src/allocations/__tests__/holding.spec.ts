import { nullTranslator } from '@jupyterlab/translation';
import { allocation, attachment, gpu, job, node } from '../../__tests__/server';
import { GiB } from '../../format';
import type { Allocation, Progress, Queued } from '../../wire';
import {
  changes,
  doing,
  forNotebooks,
  gpuWords,
  heldWords,
  messageOf,
  notebooksOf,
  span,
  standing,
  times,
  waiting
} from '../holding';
import { envWords, jobFacts, jobWords } from '../jobs';
import { actionsOf, losses } from '../options';

const trans = nullTranslator.load('');
const NOW = 1_000_000;
const queue: Queued = {
  position: 2,
  of: 5,
  until: NOW + 540,
  missing: 'atlas has 3 idle GPUs, 5 asked',
  frees: "it can start when 'train' on brook ends",
  start: null
};

function progress(phase: string, more: Partial<Progress> = {}): Partial<Allocation> {
  return {
    state: 'starting',
    progress: { phase, current: null, total: null, message: '', ...more }
  };
}

describe('standing', () => {
  it.each<[Partial<Allocation>, string, string]>([
    [{ state: 'pending' }, 'pending', 'busy'],
    [{ state: 'starting' }, 'starting', 'busy'],
    [{}, 'running', 'good'],
    [{ ...progress('creating'), state: 'running' }, 'restarting', 'busy'],
    [{ unreachable_since: NOW }, 'node does not answer', 'warn'],
    [{ state: 'stopping' }, 'stopping', 'busy'],
    [{ state: 'ended', reason: 'released' }, 'released', 'quiet'],
    [{ state: 'ended', reason: 'expired' }, 'time is over', 'quiet'],
    [{ state: 'ended', reason: 'failed' }, 'failed', 'bad'],
    [{ state: 'ended', reason: 'of a later server' }, 'of a later server', 'quiet']
  ])('%o', (more, word, tone) => {
    expect(standing(allocation('a', more), trans)).toMatchObject({ word, tone });
  });
});

describe('doing', () => {
  const image = 'quay.io/lab/torch';

  it.each<[string, Partial<Progress>, string, string, number | null]>([
    ['placing', {}, 'Looking for GPUs', '', null],
    ['pulling', { message: `pulling ${image}` }, 'Pulling the image', image, null],
    [
      'pulling',
      { current: 1.25 * GiB, total: 4 * GiB, message: `pulling ${image}` },
      'Pulling 1.2 of 4 GiB',
      image,
      0.3125
    ],
    [
      'pulling',
      { current: 2 ** 20, total: 4 * GiB, message: `unpacking ${image}` },
      'Unpacking 1 MiB of 4 GiB',
      image,
      1 / 4096
    ],
    ['pulling', { current: GiB, message: `pulling ${image}` }, 'Pulling 1 GiB', image, null],
    ['pulling', { current: 9, total: 4, message: '' }, 'Pulling 9 of 4 B', '', 1],
    ['connecting', {}, 'Waiting for the kernel', '', null],
    ['of a later server', {}, 'of a later server', '', null]
  ])('%s %o', (phase, more, words, detail, fraction) => {
    expect(doing(allocation('a', progress(phase, more)), trans)).toEqual({
      words,
      detail,
      fraction
    });
  });

  it('is nothing once it runs, has ended, or while it waits in the queue', () => {
    expect(doing(allocation('a'), trans)).toBeNull();
    expect(doing(allocation('a', { ...progress('creating'), state: 'ended' }), trans)).toBeNull();
    const queued = allocation('a', { ...progress('placing'), state: 'pending', queue });
    expect(doing(queued, trans)).toBeNull();
  });

  it('goes on while a kernel restarts', () => {
    const again = { ...progress('creating', { message: 'restarting' }), state: 'running' as const };
    expect(doing(allocation('a', again), trans)?.detail).toBe('restarting');
  });
});

describe('waiting', () => {
  it('says where it stands, what is missing, what helps, and for how long it waits', () => {
    expect(waiting(queue, NOW, trans)).toEqual({
      place: 'Number 2 of 5 in the queue',
      missing: queue.missing,
      frees: "It can start when 'train' on brook ends",
      until: 'Waits until 13:55 UTC (9 m more)'
    });
    const known = waiting({ ...queue, start: NOW + 60 }, NOW, trans);
    expect(known.place).toBe('Number 2 of 5 in the queue; starts at 13:47 UTC at the latest');
  });
});

describe('times', () => {
  const created = NOW - 760;

  it.each<[Partial<Allocation>, string]>([
    [{}, '12 m old · no time limit'],
    [{ expires: NOW + 4000, time: 9000 }, '12 m old · 1 h 6 m left'],
    [{ expires: NOW + 45.9, time: 900 }, '12 m old · 45 s left'],
    [{ expires: NOW - 1, time: 900 }, '12 m old · time is over'],
    [{ state: 'pending', time: 7200 }, 'asked 12 m ago · 2 h once it runs'],
    [{ state: 'stopping', expires: NOW + 40 }, '12 m old'],
    [{ state: 'ended', ended: NOW - 7200 }, 'ended 2 h ago']
  ])('%o', (more, words) => {
    expect(times(allocation('a', { created, ...more }), NOW, trans).join(' · ')).toBe(words);
  });
});

test('a span changes each second only while it is short', () => {
  expect([-3, 0, 59.9, 119, 120, 179, 3661].map(span)).toEqual([
    '0 s',
    '0 s',
    '59 s',
    '1 m 59 s',
    '2 m',
    '2 m',
    '1 h 1 m'
  ]);
});

describe('gpuWords', () => {
  const nodes = new Map([
    [
      'n1',
      node('n1', {
        gpus: [
          gpu('A', { model: 'NVIDIA A100-SXM4-40GB' }),
          gpu('B', { model: 'NVIDIA A100-SXM4-40GB' }),
          gpu('C', { model: 'NVIDIA L4' })
        ]
      })
    ]
  ]);

  it.each<[Partial<Allocation>, string]>([
    [{ gpus: ['A', 'B'], memory: [16 * GiB, 16 * GiB] }, '2 × A100-40GB, 16 GiB each'],
    [{ gpus: ['A'], memory: [16 * GiB], shared: true }, '1 × A100-40GB, 16 GiB, shared'],
    [{ gpus: ['A', 'C'], memory: [GiB, 2 * GiB] }, '1 × A100-40GB + 1 × L4, 1 GiB + 2 GiB'],
    [{ gpus: ['A', 'B'], memory: [0, 0] }, '2 × A100-40GB'],
    [{ gpus: ['A', 'gone'], memory: [GiB, GiB] }, '2 GPUs, 1 GiB each'],
    [{ node: 'gone', gpus: ['A'], memory: [GiB] }, '1 GPU, 1 GiB']
  ])('of what it has: %o', (more, words) => {
    expect(gpuWords(allocation('a', more), nodes, trans)).toBe(words);
  });

  it.each<[Allocation['request'], string]>([
    [{ gpus: 5, memory: 40 * GiB }, '5 GPUs, 40 GiB each'],
    [{ gpus: 2, memory: ['1GiB', 2 * GiB] }, '2 GPUs, 1 GiB + 2 GiB'],
    [{ gpus: 1, memory: GiB, cpus: 8, ram: 64 * GiB }, '1 GPU, 1 GiB, 8 CPUs, 64 GiB RAM'],
    [{ cpus: 1, ram: 'of a later server' }, '1 GPU, 1 CPU'],
    [{}, '1 GPU'],
    [{ memory: 'of a later server' }, '1 GPU']
  ])('of what it asks: %o', (request, words) => {
    const asks = { state: 'pending' as const, node: null, gpus: [], memory: [], request };
    expect(gpuWords(allocation('a', asks), nodes, trans)).toBe(words);
  });
});

test('how much is held counts what is asked for', () => {
  const asks = allocation('b', { gpus: [], request: { gpus: 3 } });
  expect(heldWords([allocation('a'), asks], trans)).toBe('2 allocations, 4 GPUs');
});

describe('messageOf', () => {
  it('says nothing twice', () => {
    const message = 'atlas has 3 idle GPUs, 5 asked';
    expect(messageOf(allocation('a', { message, queue }))).toBe('');
    expect(messageOf(allocation('a', { message, ...progress('placing', { message }) }))).toBe('');
    expect(messageOf(allocation('a', { message, unreachable_since: NOW }))).toBe('');
    expect(messageOf(allocation('a', { message }))).toBe(message);
  });

  it('has the reason of the end, also of one whose node was away', () => {
    const ended = allocation('a', { state: 'ended', message: 'lost', unreachable_since: NOW });
    expect(messageOf(ended)).toBe('lost');
  });
});

test('the notebooks of an allocation come by path', () => {
  const one = attachment('s1', { path: 'b.ipynb' });
  const two = attachment('s2', { path: 'a.ipynb' });
  const other = attachment('s3', { allocation: 'other' });
  const all = new Map([one, two, other].map(each => [each.session, each]));
  expect(notebooksOf('a1', all)).toEqual([two, one]);
});

describe('actionsOf', () => {
  const none = { notebook: null, here: false, attached: false };
  const open = { ...none, notebook: 'a.ipynb' };
  const there = { notebook: 'a.ipynb', here: true, attached: true };

  it.each<[Partial<Allocation>, typeof none | typeof open, string]>([
    [{ state: 'pending', node: null, started: null }, open, 'attach new copy cancel'],
    [{ state: 'starting', time: 60, started: null }, open, 'attach new logs copy cancel'],
    [{}, none, 'new logs usage copy release'],
    [{}, open, 'attach new logs usage copy release'],
    [{ time: 3600 }, there, 'detach new logs usage extend copy release'],
    [{}, { ...open, attached: true }, 'attach detach new logs usage copy release'],
    [{ state: 'stopping', time: 60 }, open, 'logs usage copy'],
    [{ state: 'ended' }, open, 'again logs usage copy dismiss'],
    [{ state: 'ended', node: null, started: null }, open, 'again copy dismiss'],
    [{ job: job() }, open, 'logs usage copy release'],
    [{ job: job(), state: 'pending', node: null, started: null }, open, 'copy cancel'],
    [{ job: job(), state: 'pending', node: null }, open, 'logs copy cancel']
  ])('%o %o', (more, now, words) => {
    expect(actionsOf(allocation('a', more), now).join(' ')).toBe(words);
  });
});

test('only one that runs has something to lose', () => {
  const notebooks = [attachment('s1'), attachment('s2', { state: 'waiting' })];
  expect(losses(allocation('a', { state: 'starting' }), notebooks, trans)).toEqual([]);
  const lost = losses(allocation('a'), notebooks, trans);
  expect(lost).toHaveLength(2);
  expect(lost[0]).toContain('variables are lost');
  expect(lost[1]).toContain('s1.ipynb goes back to its own kernel');
});

describe('changes', () => {
  const of = (more: Partial<Allocation>): Map<string, Allocation> =>
    new Map([['train', allocation('train', more)]]);
  const pulls = (current: number): Partial<Allocation> =>
    progress('pulling', { current, total: 4 * GiB });

  it.each<[string, Map<string, Allocation>, Map<string, Allocation>, string[]]>([
    ['one comes', new Map(), of({ state: 'pending' }), ['train: pending']],
    ['it runs', of({ state: 'starting' }), of({}), ['train: running on n1']],
    ['bytes of a pull', of(pulls(1)), of(pulls(2)), []],
    [
      'it fails',
      of({}),
      of({ state: 'ended', reason: 'failed', message: 'no disk' }),
      ['train: failed; no disk']
    ],
    [
      'it moves up',
      of({ state: 'pending', queue }),
      of({ state: 'pending', queue: { ...queue, position: 1, of: 4 } }),
      ['train: number 1 of 4 in the queue']
    ],
    [
      'the queue gets longer behind it',
      of({ state: 'pending', queue }),
      of({ state: 'pending', queue: { ...queue, of: 9 } }),
      []
    ],
    ['it is warned', of({}), of({ warning: 'it ends soon' }), ['it ends soon']],
    [
      'it has more time',
      of({ expires: NOW }),
      of({ expires: NOW + 3600 }),
      ['train: has time until 14:46 UTC']
    ],
    ['it goes away', of({ state: 'ended' }), new Map(), []]
  ])('%s', (_, before, after, told) => {
    expect(changes(before, after, trans)).toEqual(told);
  });
});

describe('a job', () => {
  const train = (more: Partial<Allocation> = {}): Allocation =>
    allocation('train', { job: job(), started: NOW - 300, attempt: 1, ...more });

  it('runs for so long, tries again, has ended with a code', () => {
    expect(times(train(), NOW, trans)).toEqual(['runs for 5 m', 'no time limit']);
    const ended = train({ state: 'ended', reason: 'finished', ended: NOW - 60, exit_code: 0 });
    expect(times(ended, NOW, trans)).toEqual(['ran for 4 m', 'ended 1 m ago']);
    expect(standing(ended, trans)).toMatchObject({ word: 'finished', tone: 'good' });
    expect(standing({ ...ended, reason: 'released' }, trans).word).toBe('stopped');
    const again = { phase: 'creating', current: null, total: null, message: '' };
    expect(standing(train({ progress: again }), trans).word).toBe('trying again');
    const collects = { ...again, phase: 'collecting', current: GiB, total: 4 * GiB };
    expect(doing(train({ state: 'stopping', progress: collects }), trans)).toMatchObject({
      words: 'Fetching its outputs',
      fraction: 0.25
    });
    expect(doing(train({ state: 'stopping', progress: again }), trans)?.words).toBe(
      'Giving everything back'
    );
  });

  it('is told as it would be typed, and how far it is', () => {
    expect(jobWords(job({ args: ['--name', "ada's run"] }))).toBe(
      `train.py --name 'ada'"'"'s run'`
    );
    expect(jobWords(job({ run: 'make all && make "$X"', kind: 'command' }))).toBe(
      'make all && make "$X"'
    );
    const tried = { retries: 2, sweep: { lr: '1e-3' }, launcher: 'torchrun', env: ['KEY'] };
    const second = train({ job: job(tried), attempt: 2 });
    expect(jobFacts(second, trans)).toEqual(['lr=1e-3', 'torchrun', 'attempt 2 of 3']);
    expect(jobFacts({ ...second, state: 'ended', exit_code: 1 }, trans).at(-1)).toBe('exit code 1');
    expect(jobFacts(train(), trans)).toEqual([]);
    // After its node was lost, it is started once more than it may fail.
    expect(jobFacts(train({ attempt: 2 }), trans)).toEqual(['attempt 2 of 2']);
    expect(envWords(job(tried), trans)).toBe('with KEY set');
  });

  it('that had ended before anybody looked is not told', () => {
    const ended = train({ state: 'ended', reason: 'finished' });
    expect(changes(new Map(), new Map([['train', ended]]), trans)).toEqual([]);
    expect(changes(new Map([['train', train()]]), new Map([['train', ended]]), trans)).toEqual([
      'train: finished'
    ]);
  });

  it('loses what it has not written', () => {
    expect(losses(train(), [], trans)).toHaveLength(1);
    expect(losses(train(), [], trans).join()).toContain('outputs');
    expect(forNotebooks({ allocations: new Map([['train', train()]]) })).toEqual([]);
  });
});
