import { nullTranslator } from '@jupyterlab/translation';
import { allocation, job } from '../../__tests__/server';
import { GiB } from '../../format';
import type { Usage } from '../../wire';
import { EMPTY } from '../asking';
import { NOTHING, kindOf, readRun, words, type Run } from '../run';
import { RunDraft, runOf } from '../rundraft';
import { suggestionOf } from '../suggesting';
import { outcomeOfAll } from '../telling';

const trans = nullTranslator.load('');
const read = (more: Partial<Run>) => readRun({ ...NOTHING, ...more }, trans);

describe('what is written becomes a job', () => {
  test('of what is written, and nothing else', () => {
    expect(read({ what: ' train.py ' })).toEqual({
      job: { run: 'train.py' },
      folder: '.',
      sweep: {},
      jobs: 1,
      mistakes: {}
    });
  });

  test('with all that there is', () => {
    const written = read({
      what: 'train.py',
      folder: 'deep/er',
      args: `--name "ada's run" --path a\\ b`,
      retries: '3',
      torchrun: true,
      sweep: 'lr=1e-3,1e-4 batch=32,64,128',
      env: [
        { name: ' KEY ', value: ' secret ' },
        { name: '', value: '' }
      ]
    });
    expect(written.job).toEqual({
      run: 'train.py',
      args: ['--name', "ada's run", '--path', 'a b'],
      retries: 3,
      launcher: 'torchrun',
      env: { KEY: ' secret ' }
    });
    expect(written.sweep).toEqual({ lr: ['1e-3', '1e-4'], batch: ['32', '64', '128'] });
    expect([written.folder, written.jobs]).toEqual(['deep/er', 6]);
  });

  test('what only a script can have is not sent for what is none', () => {
    const more = { args: '--epochs 3', torchrun: true };
    expect(read({ what: 'a.ipynb', ...more }).job).toEqual({ run: 'a.ipynb' });
    expect(read({ what: 'make all', ...more }).job).toEqual({ run: 'make all' });
  });

  test.each<[Partial<Run>, string, RegExp]>([
    [{ what: ' ' }, 'what', /What runs is missing/],
    [{ args: '"a' }, 'args', /nothing that ends it/],
    [{ env: [{ name: 'A', value: '' }] }, 'value-0', /'A' has no value; write it, or remove it/],
    [{ retries: '-1' }, 'retries', /'-1' is no number of retries/],
    [{ retries: '101' }, 'retries', /up to 100/],
    [{ sweep: 'lr' }, 'sweep', /'lr' is no list of values; write it like lr=1e-3,1e-4/],
    [{ sweep: 'lr=1,,2' }, 'sweep', /no list of values/],
    [{ sweep: 'l-r=1' }, 'sweep', /no list of values/],
    [{ sweep: 'lr=1 lr=2' }, 'sweep', /'lr' is there twice/],
    [
      { sweep: `a=${Array(17).join(',1').slice(1)} b=${Array(18).join(',1').slice(1)}` },
      'sweep',
      /272 jobs; no more than 256/
    ],
    [{ env: [{ name: '1A', value: '' }] }, 'env-0', /'1A' is not the name of a variable/],
    [{ env: [{ name: '', value: 'secret' }] }, 'env-0', /not the name/],
    [
      {
        env: [
          { name: 'A', value: '1' },
          { name: 'A', value: '2' }
        ]
      },
      'env-1',
      /there twice/
    ]
  ])('a mistake is told at its field, and never a value: %o', (more, field, said) => {
    const { job: none, mistakes } = read({ what: 'train.py', ...more });
    expect(none).toBeNull();
    expect(Object.keys(mistakes)).toEqual([field]);
    expect(JSON.stringify(mistakes)).toMatch(said);
    expect(JSON.stringify(mistakes)).not.toContain('secret');
  });

  test.each([
    ['a.py', 'script'],
    ["'my notebook.ipynb'", 'notebook'],
    ['my\\ train.py', 'script'],
    ['python train.py', 'command'],
    ['"a.py', 'command'],
    ['make', 'command'],
    ['', 'command']
  ])('what %s is', (what, kind) => {
    expect(kindOf(what)).toBe(kind);
  });

  test.each([
    ['', []],
    [`a  'b c' d"e f"g`, ['a', 'b c', 'de fg']],
    [`"a\\"b\\n" '\\' \\'`, ['a"b\\n', '\\', "'"]]
  ])('words as a shell has them: %s', (line, found) => {
    expect(words(line, trans)).toEqual(found);
  });
});

test('the same once more is as it was, but for the values of variables, which nobody has', () => {
  const { run, ...more } = job({
    args: ['--name', 'a b'],
    env: ['KEY'],
    retries: 2,
    launcher: 'torchrun',
    sweep: { lr: '1e-3' }
  });
  const request = { gpus: 1, folder: '/home/ada/x', job: { run } };
  const written = runOf(allocation('a', { job: { run, ...more }, request }));
  expect(written.env).toEqual([{ name: 'KEY', value: '' }]);
  expect(read(written).mistakes).toEqual({
    'value-0': "'KEY' has no value; write it, or remove it"
  });
  const env = [{ name: 'KEY', value: 'its own' }];
  const { job: again, sweep, folder } = read({ ...written, env });
  expect(again).toEqual({
    run,
    args: ['--name', 'a b'],
    retries: 2,
    launcher: 'torchrun',
    env: { KEY: 'its own' }
  });
  expect([sweep, folder]).toEqual([{ lr: ['1e-3'] }, '/home/ada/x']);
  expect(runOf(allocation('a'))).toEqual({});
  const make = job({ run: 'make "$@"', kind: 'command', args: ['a b'] });
  expect(runOf(allocation('a', { job: make }))).toMatchObject({
    what: `make "$@" 'a b'`,
    args: ''
  });
});

test('a job is written for as long as it is open', () => {
  const draft = new RunDraft(trans);
  let changed = 0;
  draft.changed.connect(() => (changed += 1));
  draft.open({ what: 'a.py' });
  draft.change({ retries: '1' });
  expect(draft.reading?.job).toEqual({ run: 'a.py', retries: 1 });
  draft.close();
  expect([draft.form, draft.reading, changed]).toEqual([null, null, 3]);
});

describe('a size is suggested', () => {
  const used = (suggested: number | null, ...peaks: (number | null)[]): Usage => ({
    gpus: peaks.map((peak, at) => ({ uuid: `G${at}`, asked: 24 * GiB, peak, busy: null })),
    seconds: 100,
    samples: 20,
    suggested
  });
  const last = (usage: Usage | null) => allocation('a', { usage });

  test('where the last one for the same notebook would have had enough with less', () => {
    const found = suggestionOf(last(used(10 * GiB, 8.7 * GiB, 9.25 * GiB)), EMPTY, trans);
    expect(found).toEqual({
      text: 'Last time this notebook used at most 9.2 GiB of a GPU.',
      label: 'Use 10 GiB',
      memory: '10GiB'
    });
  });

  test('and not where nothing is known, or it is asked for already', () => {
    expect(suggestionOf(null, EMPTY, trans)).toBeNull();
    expect(suggestionOf(last(null), EMPTY, trans)).toBeNull();
    expect(suggestionOf(last(used(null, 9 * GiB)), EMPTY, trans)).toBeNull();
    const form = { ...EMPTY, memory: '10 GiB' };
    expect(suggestionOf(last(used(10 * GiB, 9 * GiB)), form, trans)).toBeNull();
  });
});

test('of a sweep it is told how many are how far', () => {
  const one = (more: object) => allocation('a', { job: job(), ...more });
  const runs = one({ state: 'running' });
  const waits = one({ state: 'pending' });
  const done = one({ state: 'ended', reason: 'finished' });
  const failed = one({ state: 'ended', reason: 'failed' });
  const tell = (...all: ReturnType<typeof one>[]) => outcomeOfAll(all, all.length, trans);
  expect(tell(runs, waits)).toEqual({ kind: 'going', text: '2 jobs are asked for, 1 runs.' });
  expect(tell(waits, waits).text).toBe('2 jobs are asked for.');
  expect(tell(done, done).kind).toBe('there');
  expect(tell(runs, one({ state: 'ended', reason: 'over-memory' })).kind).toBe('failed');
  // Of many, the first are not shown any more once they have ended.
  expect(outcomeOfAll([runs, done], 4, trans)).toEqual({
    kind: 'going',
    text: '4 jobs are asked for, 1 runs, 3 are over.'
  });
  expect(tell(runs, done, failed)).toEqual({
    kind: 'failed',
    text: '3 jobs are asked for, 1 runs, 1 is over, 1 failed.'
  });
});
