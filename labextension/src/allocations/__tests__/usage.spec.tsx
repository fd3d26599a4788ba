import { nullTranslator } from '@jupyterlab/translation';
import { act, cleanup, render, screen } from '@testing-library/react';
import React from 'react';
import { Server, allocation, gpu, node, refused } from '../../__tests__/server';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GiB } from '../../format';
import { GpuFitModel } from '../../model';
import type { IGpuFit } from '../../tokens';
import type { UsageSeries } from '../../wire';
import { linesOf, usesOf } from '../use';
import { UsageOf } from '../usage';

const trans = nullTranslator.load('');
const train = allocation('train');
const SENTENCE = 'asked 24 GiB on 1 GPU, peak 9.1 GiB; `--memory 10GiB` would have been enough';
const series = (more: Partial<UsageSeries> = {}): UsageSeries => ({
  times: [100, 105, 110],
  gpus: [
    {
      uuid: 'GPU-1',
      asked: 24 * GiB,
      memory: [GiB, 9.25 * GiB, 8 * GiB],
      utilization: [0, 100, null]
    }
  ],
  usage: {
    gpus: [{ uuid: 'GPU-1', asked: 24 * GiB, peak: 9.25 * GiB, busy: 43.4 }],
    seconds: 10,
    samples: 3,
    suggested: 10 * GiB
  },
  sentence: SENTENCE,
  ...more
});

describe('lines and words', () => {
  const there = node('n1', { gpus: [gpu('GPU-0'), gpu('GPU-1', { index: 1 })] });

  test('a line ends where nothing is known', () => {
    expect(linesOf([0, 5, 10, 20], [0, null, 5, 20], 10)).toEqual([
      [[0, 0]],
      [
        [0.5, 0.5],
        [1, 1]
      ]
    ]);
    expect(linesOf([7], [5], 10)).toEqual([[[1, 0.5]]]);
    expect(linesOf([], [], 10)).toEqual([]);
  });

  test('all of it is said in words', () => {
    const [use] = usesOf(series(), there, trans);
    expect(use.words).toBe('GPU 1: 8 GiB now, at most 9.2 GiB, 24 GiB asked, 43 % busy');
    expect(use.memoryLines).toHaveLength(1);
    expect(use.loadLines[0]).toEqual([
      [0, 0],
      [0.5, 1]
    ]);
  });

  test('unknown stays unknown', () => {
    const unknown = { uuid: 'GPU-9', asked: 0, memory: [null], utilization: [null] };
    const [use] = usesOf(series({ times: [1], gpus: [unknown], usage: null }), undefined, trans);
    expect(use.words).toBe('GPU 1 of 1: memory unknown, none asked, load unknown');
    expect([use.memoryLines, use.loadLines]).toEqual([[], []]);
  });
});

describe('in the card', () => {
  let server: Server;
  let gpufit: IGpuFit;

  beforeEach(async () => {
    jest.useFakeTimers();
    jest.spyOn(Element.prototype, 'getClientRects').mockReturnValue([{}] as unknown as DOMRectList);
    server = new Server();
    server.allocations = [train];
    const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
    gpufit = { model, trans } as IGpuFit;
    server.open();
    await jest.advanceTimersByTimeAsync(0);
  });

  afterEach(() => {
    cleanup();
    gpufit.model.dispose();
    jest.restoreAllMocks();
    jest.useRealTimers();
  });

  const pass = (ms: number): Promise<void> => act(() => jest.advanceTimersByTimeAsync(ms));
  const looks = (): number => server.asked.filter(path => path.endsWith('/usage')).length;
  async function show(one = train): Promise<void> {
    render(<UsageOf gpufit={gpufit} allocation={one} />);
    await pass(0);
  }

  test('it is drawn and said, and looked for again every ten seconds while it is seen', async () => {
    server.instead.set('allocations/train/usage', { json: series() });
    await show();
    expect(screen.getByRole('img', { name: /at most 9.2 GiB/ })).toBeTruthy();
    expect(screen.queryByText(/would have been enough/)).not.toBeNull();
    await pass(9000);
    expect(looks()).toBe(1);
    await pass(2000);
    expect(looks()).toBe(2);
    jest.spyOn(document, 'visibilityState', 'get').mockReturnValue('hidden');
    await pass(60_000);
    expect(looks()).toBe(2);
  });

  test('of one that has ended it is asked once', async () => {
    server.instead.set('allocations/train/usage', { json: series() });
    await show({ ...train, state: 'ended' });
    await pass(60_000);
    expect(looks()).toBe(1);
  });

  test('nothing is measured yet, or the server does not answer', async () => {
    server.instead.set('allocations/train/usage', {
      json: series({ times: [], gpus: [], usage: null, sentence: '' })
    });
    await show();
    expect(screen.queryByText('Nothing is measured yet.')).not.toBeNull();
    server.instead.set('allocations/train/usage', refused(503, 'unavailable', 'it is stopping'));
    await pass(11_000);
    expect(screen.getByRole('alert').textContent).toContain('it is stopping');
  });
});
