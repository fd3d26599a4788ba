import { nullTranslator } from '@jupyterlab/translation';
import { allocation, attachment, gpu, node } from '../../__tests__/server';
import type { Allocation, Attachment, Queued } from '../../wire';
import { entriesOf } from '../offers';
import {
  attachedNotice,
  changesOf,
  chipOf,
  detachedNotice,
  notAttachedNotice,
  ordinal,
  statusOf
} from '../words';

const trans = nullTranslator.load('');
const MODEL = 'NVIDIA A100-SXM4-40GB';
const GPUS = ['G1', 'G2'];
const nodes = new Map([
  ['gpu03', node('gpu03', { gpus: GPUS.map(uuid => gpu(uuid, { model: MODEL, idle: false })) })],
  ['gpu04', node('gpu04', { gpus: ['G3', 'G4', 'G5'].map(uuid => gpu(uuid)) })]
]);
const train = (more: Partial<Allocation> = {}): Allocation =>
  allocation('train', { node: 'gpu03', gpus: GPUS, memory: [0, 0], ...more });
const queue = (more: Partial<Queued> = {}): Queued => ({
  position: 2,
  of: 5,
  until: 9000,
  missing: 'gpu03 has no idle GPU',
  frees: '',
  start: null,
  ...more
});

describe('the chip', () => {
  const text = (own: Allocation | null, how: Attachment['state'] | null = 'attached') => {
    const attached = how === null ? null : attachment('s1', { allocation: 'train', state: how });
    return chipOf(own, attached, nodes, 1000, trans).texts.at(0);
  };

  test.each<[string, Allocation | null, Attachment['state'] | null]>([
    ['No GPU', null, null],
    ['No GPU', train({ state: 'ended', reason: 'expired' }), null],
    ['2 × A100-40GB · gpu03 · 1 h 12 m left', train({ expires: 1000 + 72 * 60 }), 'attached'],
    ['2 × A100-40GB · gpu03', train(), null],
    ['2 × A100-40GB · node does not answer · gpu03', train({ unreachable_since: 900 }), 'attached'],
    ['attaching…', train(), 'waiting'],
    [
      'attaching… · 2nd of 5 in the queue',
      train({ state: 'pending', node: null, queue: queue() }),
      'waiting'
    ],
    [
      'attaching… · Looking for GPUs',
      train({ state: 'pending', progress: progress('placing') }),
      'waiting'
    ],
    [
      'attaching… · Pulling 1 of 4 GiB',
      train({ state: 'starting', progress: progress('pulling', 2 ** 30, 2 ** 32) }),
      'waiting'
    ],
    ['giving back…', train({ state: 'stopping' }), 'attached']
  ])('says %s', (words, own, how) => {
    expect(text(own, how)).toBe(words);
  });

  test('a warning is seen, and said', () => {
    const warned = train({ warning: "'train' ends in 5 m" });
    const chip = chipOf(warned, null, nodes, 1000, trans);
    expect(chip.tone).toBe('warn');
    expect(chip.title).toContain("'train' ends in 5 m.");
    expect(chipOf(train(), null, nodes, 1000, trans).tone).toBe('good');
  });

  test('where there is little room it says less, the place in the queue and the time last', () => {
    const texts = (own: Allocation) => chipOf(own, null, nodes, 1000, trans).texts;
    expect(texts(train({ expires: 4600 }))).toEqual([
      '2 × A100-40GB · gpu03 · 1 h left',
      '2 × A100-40GB · 1 h left',
      '2 × A100-40GB',
      '2 × A100'
    ]);
    expect(texts(train())).toEqual(['2 × A100-40GB · gpu03', '2 × A100-40GB', '2 × A100']);
    expect(texts(train({ unreachable_since: 1, expires: 4600 })).slice(-2)).toEqual([
      '2 × A100-40GB · node does not answer',
      'node does not answer'
    ]);
    const waits = train({ state: 'pending', node: null, queue: queue() });
    expect(texts(waits)).toEqual(['attaching… · 2nd of 5 in the queue', 'attaching…']);
  });
});

function progress(phase: string, current: number | null = null, total: number | null = null) {
  return { phase, current, total, message: '' };
}

test.each([
  [1, '1st'],
  [2, '2nd'],
  [3, '3rd'],
  [4, '4th'],
  [11, '11th'],
  [12, '12th'],
  [13, '13th'],
  [21, '21st'],
  [112, '112th']
])('the %dth', (position, word) => {
  expect(ordinal(position, trans)).toBe(word);
});

describe('the status bar', () => {
  const status = (connection: Parameters<typeof statusOf>[0], held: Allocation[] = []) =>
    statusOf(connection, 'no answer', held, nodes, trans);

  test('what is held, what waits, what is free', () => {
    expect(status('connected')?.text).toBe('GPUs: 3 of 5 free');
    const waits = train({ id: 'w', state: 'pending', gpus: [], node: null, queue: queue() });
    const ended = train({ id: 'e', state: 'ended' });
    expect(status('connected', [train(), waits, ended])?.text).toBe(
      'GPUs: 2 held · 1 waits · 3 of 5 free'
    );
  });

  test('what is wrong', () => {
    expect(status('connected', [train()])?.wrong).toBe(false);
    expect(status('connected', [train({ warning: 'it ends soon' })])).toMatchObject({
      wrong: true,
      title: expect.stringContaining('It ends soon.') as string
    });
    expect(status('reconnecting')).toEqual({
      text: 'GPUs: no connection',
      title: 'No answer.',
      wrong: true
    });
    expect(status('missing')).toBeNull();
  });
});

describe('notices', () => {
  const longest = 'a name that is as long as a name of a notebook may be, and longer.ipynb';

  test('where it runs, that the local kernel is kept, and how to go back', () => {
    const { text, offers } = attachedNotice('a.ipynb', train(), nodes, trans);
    expect(text).toBe(
      'a.ipynb runs on gpu03 (2 × A100-40GB). Its local kernel is kept, with its variables: detach to go back.'
    );
    expect(offers).toContain('detach');
    expect(attachedNotice(longest, train(), nodes, trans).text.length).toBeLessThanOrEqual(140);
  });

  test.each<[Partial<Allocation> | null, 'kept' | 'fresh' | 'other', string, string]>([
    [
      {},
      'kept',
      'info',
      'a.ipynb is back on its local kernel, with its variables. "train" still holds 2 GPUs.'
    ],
    [
      { state: 'stopping', reason: 'released' },
      'kept',
      'info',
      'a.ipynb is back on its local kernel, with its variables. "train" is released.'
    ],
    [
      { state: 'ended', reason: 'expired', message: 'its time of 15 s is over' },
      'kept',
      'warning',
      '"train": its time of 15 s is over. a.ipynb is back on its local kernel, with its variables.'
    ],
    [
      { state: 'ended', reason: 'failed', message: 'the kernel died\nTraceback' },
      'fresh',
      'error',
      '"train": the kernel died. a.ipynb has a new local kernel: the former one was gone.'
    ],
    [null, 'other', 'info', 'a.ipynb has another kernel now.']
  ])('why it is back: %j, %s', (more, back, tone, text) => {
    const own = more === null ? null : train(more);
    expect(detachedNotice('a.ipynb', own, back, trans)).toMatchObject({ tone, text });
  });

  test('a reason that is too long leaves room for what came of it', () => {
    const own = train({ state: 'ended', reason: 'failed', message: 'why '.repeat(100) });
    const { text } = detachedNotice(longest, own, 'kept', trans);
    expect(text.length).toBeLessThanOrEqual(140);
    expect(text).toMatch(
      /… a name that is as long as a… is back on its local kernel, with its variables\.$/
    );
  });

  test('one that was never attached says why, unless that is known', () => {
    const refused = train({
      state: 'ended',
      reason: 'rejected',
      message: 'no node has 2 idle GPUs'
    });
    expect(notAttachedNotice('a.ipynb', refused, 'kept', trans)?.text).toBe(
      '"train": no node has 2 idle GPUs. a.ipynb stays on its local kernel.'
    );
    expect(
      notAttachedNotice('a.ipynb', train({ state: 'ended', reason: 'cancelled' }), 'kept', trans)
    ).toBeNull();
    expect(notAttachedNotice('a.ipynb', train(), 'kept', trans)).toBeNull();
    expect(notAttachedNotice('a.ipynb', train(), 'other', trans)?.text).toBe(
      'a.ipynb has another kernel now, and is not attached to "train" any more.'
    );
  });

  test('only what changes is told', () => {
    const [here, waits] = [attachment('s1'), attachment('s1', { state: 'waiting' })];
    const moves = attachment('s1', { state: 'waiting', allocation: 'a2' });
    const told = (before: Attachment | null, after: Attachment | null): string[] => {
      const map = (one: Attachment | null) => new Map(one === null ? [] : [[one.session, one]]);
      return changesOf(map(before), map(after)).map(({ kind }) => kind);
    };
    expect(told(null, here)).toEqual([]); // as it was when the page was loaded
    expect(told(null, waits)).toEqual([]);
    expect(told(waits, here)).toEqual(['attached']);
    expect(told(here, here)).toEqual([]);
    expect(told(here, moves)).toEqual([]);
    expect(told(moves, here)).toEqual([]); // it stays where it was
    expect(told(here, null)).toEqual(['detached']);
    expect(told(waits, null)).toEqual(['not-attached']);
  });
});

describe('the menu of the chip', () => {
  const other = { allocation: train({ id: 'other', name: 'other' }), gpus: '2 × A100-40GB' };
  const acts = (situation: Partial<Parameters<typeof entriesOf>[0]>): string[] => {
    const all = { own: null, attachment: null, attached: 1, others: [], ...situation };
    return entriesOf(all, trans).map(entry => entry?.act ?? '-');
  };

  test('offers what can be done now', () => {
    const here = attachment('s1', { allocation: 'train' });
    expect(acts({})).toEqual(['request', 'train']);
    expect(acts({ others: [other] })).toEqual(['attach', 'request', 'train']);
    expect(acts({ own: train({ expires: 5 }), attachment: here })).toEqual(
      ['detach', 'extend', 'logs', 'insert', 'show', 'release', '-', 'request', 'train'] // extended: it has a limit
    );
    expect(acts({ own: train(), attachment: null })).not.toContain('detach'); // it has no other kernel
    const waits = { ...here, state: 'waiting' as const };
    expect(acts({ own: train({ state: 'pending' }), attachment: waits })).toEqual([
      'detach',
      'insert',
      'show',
      'release',
      '-',
      'request',
      'train'
    ]);
  });

  test('says what it is about', () => {
    const here = attachment('s1', { allocation: 'train' });
    const labels = (attached: number) =>
      entriesOf({ own: train(), attachment: here, attached, others: [other] }, trans).map(
        entry => entry?.label
      );
    expect(labels(1)).toContain('Attach to other · 2 × A100-40GB · gpu03');
    expect(labels(1)).toContain('Detach: Back to the Local Kernel');
    expect(labels(2)).toContain('Detach All 2 Notebooks from "train"');
  });
});
