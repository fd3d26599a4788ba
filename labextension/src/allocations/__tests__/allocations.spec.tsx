import { PageConfig } from '@jupyterlab/coreutils';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { act, cleanup, fireEvent, render, screen, within } from '@testing-library/react';
import React from 'react';
import { Server, allocation, attachment, gpu, job, node, refused } from '../../__tests__/server';
import type { Actions } from '../../actions';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GiB } from '../../format';
import { GpuFitModel } from '../../model';
import { Past } from '../../past';
import { Draft } from '../../request/draft';
import { Settings } from '../../settings';
import type { IGpuFit } from '../../tokens';
import type { Allocation, Request, Sweep } from '../../wire';
import { Allocations } from '../allocations';
import type { Ways } from '../pressing';

let server: Server;
let gpufit: IGpuFit;
let ways: Ways;
let notebook: string | null;
let done: string[];

beforeEach(() => {
  jest.useFakeTimers();
  PageConfig.setOption('serverRoot', '/home/ada');
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
    request: (request: Allocation['request']) => model.request({ gpus: 1, memory: 0, ...request }),
    submit: (request: Request, sweep: Sweep) => model.submit(request, sweep)
  } as unknown as Actions;
  gpufit = {
    model,
    actions,
    past: new Past(model),
    settings,
    draft: new Draft(model, settings, trans),
    trans
  };
  ways = {
    openNotebook: path => done.push(`open ${path}`),
    openRequest: () => done.push('request'),
    openFolder: path => done.push(`folder ${path}`),
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

describe('a job', () => {
  const run = { run: 'train.py', args: ['--epochs', '3'] };
  const request = { gpus: 1, memory: GiB, folder: '/home/ada/x', job: { ...run, turn: 1 } };
  const train = (more: Partial<Allocation> = {}): Allocation =>
    allocation('train', {
      job: job({ args: run.args, retries: 1 }),
      attempt: 1,
      request,
      ...more
    });

  test('says what runs, has no kernel to go to, and is stopped', async () => {
    await show(train());
    const text = card(/train/).textContent;
    for (const words of ['train.py --epochs 3', 'attempt 1 of 2', 'runs for', 'on n1']) {
      expect(text).toContain(words);
    }
    const names = within(card(/train/))
      .getAllByRole('button')
      .map(one => one.textContent);
    expect(names).toEqual(['Logs', 'Usage', 'Copy line', 'Stop']);
  });

  test('says how it ended and where its outputs are, and is run again', async () => {
    await show(train());
    const outputs = '/home/ada/x/outputs/train';
    await happens(train(), { state: 'ended', reason: 'finished', exit_code: 0, outputs, ended: 9 });
    const text = card(/train/).textContent;
    for (const words of ['finished', 'exit code 0', `Outputs: ${outputs}`, 'ran for']) {
      expect(text).toContain(words);
    }
    await press('Open');
    expect(done).toEqual(['folder x/outputs/train']);
    server.instead.set('jobs', { json: { allocations: [allocation('a2', { name: 'train' })] } });
    await press('Run again');
    expect(server.sent).toEqual({ request: { ...request, job: run }, sweep: {} });
    expect(screen.getAllByRole('listitem', { name: /train/ })).toHaveLength(1);
  });

  test('whose variables are secret asks for them before it is run again', async () => {
    const secret = job({ args: run.args, env: ['KEY'], sweep: { lr: '1e-3' } });
    await show();
    gpufit.draft.change({ node: 'other', shared: true, priority: '7' });
    const wishes = { time: 3600, gpu_model: 'A100', model: 'llama', wait: 7200 };
    const asked = { ...request, ...wishes };
    await happens(train({ job: secret, request: asked }), {
      state: 'ended',
      reason: 'failed',
      ended: 9
    });
    expect(card(/train/).textContent).toContain('with KEY set');
    await press('Run again');
    expect(done).toEqual(['request']);
    expect(gpufit.draft.run.form).toMatchObject({
      what: 'train.py',
      args: '--epochs 3',
      folder: 'x',
      sweep: 'lr=1e-3',
      env: [{ name: 'KEY', value: '' }]
    });
    expect(gpufit.draft.request).toEqual({ gpus: 1, memory: GiB, ...wishes }); // and nothing else
  });

  test('its usage is shown in the card when it is asked for', async () => {
    server.instead.set('allocations/train/usage', {
      json: { times: [], gpus: [], usage: null, sentence: '' }
    });
    await show(train());
    expect(server.asked).not.toContain('GET allocations/train/usage');
    await press('Usage');
    expect(button('Usage').getAttribute('aria-expanded')).toBe('true');
    expect(card(/train/).textContent).toContain('Nothing is measured yet.');
    await press('Usage');
    expect(card(/train/).textContent).not.toContain('Nothing is measured yet.');
  });
});
