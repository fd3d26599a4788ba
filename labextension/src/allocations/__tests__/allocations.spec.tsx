import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { act, cleanup, fireEvent, render, screen, within } from '@testing-library/react';
import React from 'react';
import { Server, allocation, attachment, gpu, node, refused } from '../../__tests__/server';
import type { Actions } from '../../actions';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GiB } from '../../format';
import { GpuFitModel } from '../../model';
import { Draft } from '../../request/draft';
import { Settings } from '../../settings';
import type { IGpuFit } from '../../tokens';
import type { Allocation } from '../../wire';
import { Allocations } from '../allocations';
import type { Ways } from '../card';

let server: Server;
let gpufit: IGpuFit;
let ways: Ways;
let notebook: string | null;
let done: string[];

beforeEach(() => {
  jest.useFakeTimers();
  server = new Server();
  server.nodes = [node('n1', { gpus: [gpu('GPU-1', { model: 'NVIDIA A100-SXM4-40GB' })] })];
  const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  const settings = new Settings();
  const trans = nullTranslator.load('');
  notebook = 'work/a.ipynb';
  done = [];
  const actions = {
    get notebook() {
      return notebook === null ? null : { context: { path: notebook } };
    },
    notebookChanged: new Signal<object, null>({}),
    allocationOf: () => null,
    attach: (id: string) => Promise.resolve(done.push(`attach ${id}`)),
    release: (id: string) => model.release(id),
    extend: (id: string, time: string) => model.extend(id, time),
    request: (request: Allocation['request']) => model.request({ gpus: 1, memory: 0, ...request })
  } as unknown as Actions;
  gpufit = { model, actions, settings, draft: new Draft(model, settings, trans), trans };
  ways = {
    openNotebook: path => done.push(`open ${path}`),
    openRequest: () => done.push('request'),
    openLogs: id => done.push(`logs ${id}`)
  };
});

afterEach(() => {
  cleanup();
  gpufit.draft.dispose();
  gpufit.model.dispose();
  jest.useRealTimers();
});

const pass = (ms: number): Promise<void> => act(() => jest.advanceTimersByTimeAsync(ms));

async function show(...allocations: Allocation[]): Promise<void> {
  server.allocations = allocations;
  server.open();
  await pass(0);
  render(<Allocations gpufit={gpufit} ways={ways} />);
  await pass(0);
}

/** Something happens to it. */
function happens(one: Allocation, more: Partial<Allocation> = {}): Promise<void> {
  return act(async () => {
    server.tell('allocation', { ...one, version: one.version + 1, ...more });
    await jest.advanceTimersByTimeAsync(0);
  });
}

const card = (name: RegExp): HTMLElement => screen.getByRole('listitem', { name });
const button = (name: string): HTMLElement => screen.getByRole('button', { name });
async function press(name: string): Promise<void> {
  button(name).focus();
  fireEvent.click(button(name));
  await pass(0);
}

test('who holds nothing is led to the form, once that is known', async () => {
  render(<Allocations gpufit={gpufit} ways={ways} />);
  expect(screen.queryByText('You hold no GPUs.')).toBeNull();
  server.open();
  await pass(0);
  expect(screen.queryByText('You hold no GPUs.')).not.toBeNull();
  await press('Request GPUs');
  expect(done).toEqual(['request']);
});

test('who listens hears of each change from the first on, and not of what was there before', async () => {
  const starting = allocation('train', { state: 'starting' });
  server.allocations = [starting];
  render(<Allocations gpufit={gpufit} ways={ways} />);
  server.open();
  await pass(1000);
  const told = (): string[] => screen.getAllByRole('status').map(one => one.textContent);
  expect(told()).toEqual(['']);
  await happens(starting, { state: 'running' });
  await pass(1000);
  expect(told()).toEqual(['train: running on n1']);
});

test('a card says what it is, and leads to its notebooks', async () => {
  server.attachments = [
    attachment('s1', { allocation: 'train', path: 'work/b.ipynb' }),
    attachment('s2', { allocation: 'train', path: 'c.ipynb', state: 'waiting' })
  ];
  await show(allocation('train', { memory: [16 * GiB], image: 'lab:1' }));
  const text = card(/train/).textContent;
  for (const words of [
    'running',
    '1 × A100-40GB, 16 GiB on n1',
    'no time limit',
    'lab:1',
    'c.ipynbas soon as its kernel is idle'
  ]) {
    expect(text).toContain(words);
  }
  await press('work/b.ipynb');
  await press('Attach a.ipynb');
  await press('Logs');
  expect(done).toEqual(['open work/b.ipynb', 'attach train', 'logs train']);
});

test('what others do appears at once, and is told to who listens', async () => {
  await show();
  await happens(allocation('new', { state: 'pending', gpus: [], node: null }));
  await pass(2000);
  expect(screen.getByRole('status').textContent).toBe('new: pending');
  await happens(allocation('new', { version: 2 }), {
    state: 'starting',
    progress: { phase: 'pulling', current: GiB, total: 4 * GiB, message: 'pulling lab:1' }
  });
  expect(within(card(/new/)).getByRole('progressbar').getAttribute('aria-valuenow')).toBe('25');
  expect(card(/new/).textContent).toContain('Pulling 1 of 4 GiB');
});

test('a button at work is not pressed twice, and its error stays until the next success', async () => {
  const pending = allocation('train', { state: 'pending', node: null, gpus: [] });
  await show(pending);
  let answer: (value: { json: unknown } | { status: number; json: unknown }) => void = () =>
    undefined;
  server.instead.set('allocations/train', new Promise(resolve => (answer = resolve)));
  await press('Cancel');
  fireEvent.click(button('Cancel'));
  await pass(0);
  expect(button('Cancel').getAttribute('aria-busy')).toBe('true');
  expect(button('Copy line').getAttribute('aria-disabled')).toBe('true');
  expect(document.activeElement).toBe(button('Cancel'));
  expect(server.asked.filter(each => each.startsWith('DELETE'))).toHaveLength(1);

  answer(refused(503, 'unavailable', 'the scheduler is stopping; try again') as never);
  await pass(0);
  expect(screen.getByRole('alert').textContent).toContain('the scheduler is stopping; try again');
  await press('Dismiss this error');
  expect(screen.queryByRole('alert')).toBeNull();
});

test('more time: what cannot be read is said in place, and no server is asked', async () => {
  const running = allocation('train', { time: 3600, expires: Date.now() / 1000 + 3600 });
  await show(running);
  await press('Extend');
  const input = screen.getByLabelText('More time');
  expect(document.activeElement).toBe(input);
  fireEvent.change(input, { target: { value: 'an hour' } });
  fireEvent.submit(input);
  await pass(0);
  expect(screen.getByRole('alert').textContent).toContain("'an hour' is not a duration");
  expect(server.asked).not.toContain('POST allocations/train/extend');

  server.instead.set('allocations/train/extend', { json: { ...running, time: 5400, version: 2 } });
  fireEvent.change(input, { target: { value: '30m' } });
  fireEvent.submit(input);
  await pass(0);
  expect(server.asked).toContain('POST allocations/train/extend');
  expect(screen.queryByLabelText('More time')).toBeNull();
  expect(document.activeElement).toBe(button('Extend'));
});

test('one that ends stays with its reason, keeps the focus, and can be asked for again', async () => {
  const request = { gpus: 2, memory: GiB, name: 'train' };
  const running = allocation('train', { request });
  await show(running, allocation('other'));
  within(card(/train/)).getByRole('button', { name: 'Release' }).focus();
  await happens(running, { state: 'ended', reason: 'failed', message: 'no space left on n1' });
  const ended = card(/train/);
  expect(ended.textContent).toContain('no space left on n1');
  expect(document.activeElement).toBe(ended);

  server.instead.set('allocations', refused(409, 'no-fit', 'no node has 2 GPUs now') as never);
  await press('Ask again');
  expect(within(ended).getByRole('alert').textContent).toContain('no node has 2 GPUs now');
  const again = allocation('a2', { name: 'train', state: 'pending', request });
  server.instead.set('allocations', { json: again });
  await press('Ask again');
  expect(screen.getAllByRole('listitem', { name: /train/ })).toHaveLength(1);
  expect(card(/train/).dataset.allocation).toBe('a2');
});

test('the focus goes to the next card when one is dismissed, and to what is left at last', async () => {
  await show();
  for (const id of ['one', 'two']) {
    await happens(allocation(id, { state: 'ended', reason: 'released', ended: 1 }));
  }
  const dismiss = (name: RegExp): void => {
    const found = within(card(name)).getByRole('button', { name: 'Dismiss' });
    found.focus();
    fireEvent.click(found);
  };
  dismiss(/two/);
  await pass(0);
  expect(card(/one/).contains(document.activeElement)).toBe(true);
  dismiss(/one/);
  await pass(0);
  expect(document.activeElement).toBe(button('Request GPUs'));
});
