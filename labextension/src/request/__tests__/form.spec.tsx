import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { act, cleanup, fireEvent, render, screen, within } from '@testing-library/react';
import React from 'react';
import { Server, allocation, gpu, node, settled } from '../../__tests__/server';
import type { Actions } from '../../actions';
import { Api, ApiError } from '../../api';
import { Feed } from '../../feed';
import { GiB } from '../../format';
import { GpuFitModel } from '../../model';
import { Past } from '../../past';
import { Settings } from '../../settings';
import type { IGpuFit } from '../../tokens';
import type { Allocation, Decision, Request, Sweep } from '../../wire';
import { Draft } from '../draft';
import { RequestForm } from '../form';

let server: Server;
let gpufit: IGpuFit;
let notebook: string | null;
let notebookChanged: Signal<object, null>;
/** The allocation that the notebook is on, or waits for. */
let runsOn: string;
let waits: boolean;
/** What was asked by the buttons, and how it is answered. */
let asked: [Request, string][];
/** What was asked as jobs, and how it is answered. */
let submitted: [Request, Sweep][];
let granted: { resolve: (allocations: Allocation[]) => void; reject: (error: Error) => void };
let answer: { resolve: (allocation: Allocation) => void; reject: (error: Error) => void };

beforeEach(async () => {
  jest.useFakeTimers();
  server = new Server();
  server.nodes = [node('brook', { gpus: [gpu('G1'), gpu('G2')] })];
  decide({ node: 'brook', gpus: ['G1'], fitting: ['brook'] });
  const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  const settings = new Settings();
  const trans = nullTranslator.load('');
  const draft = new Draft(model, settings, trans);
  notebook = 'work/train.ipynb';
  asked = [];
  submitted = [];
  runsOn = '';
  waits = false;
  const owner = {};
  notebookChanged = new Signal<object, null>(owner);
  const actions = {
    get notebook() {
      const context = { path: notebook, pathChanged: new Signal<object, string>(owner) };
      const sessionContext = { kernelChanged: new Signal<object, null>(owner) };
      return notebook === null ? null : { context, sessionContext };
    },
    pathOf: (panel: { context: { path: string } }) => panel.context.path,
    allocationOf: () => [...model.allocations.values()].find(one => one.id === runsOn) ?? null,
    attachmentOf: () => (waits ? { state: 'waiting' } : null),
    notebookChanged,
    request: (request: Request, then: string) => {
      asked.push([request, then]);
      return new Promise((resolve, reject) => (answer = { resolve, reject }));
    },
    submit: (request: Request, sweep: Sweep) => {
      submitted.push([request, sweep]);
      return new Promise((resolve, reject) => (granted = { resolve, reject }));
    }
  } as unknown as Actions;
  gpufit = { model, actions, past: new Past(model), settings, draft, trans };
  server.open();
  await settled();
  draft.watch(); // as the section does once it is seen
  render(<RequestForm gpufit={gpufit} />);
  await pass(0);
});

afterEach(() => {
  cleanup();
  gpufit.draft.dispose();
  gpufit.model.dispose();
  jest.useRealTimers();
});

function decide(more: Partial<Decision>): void {
  const json = {
    node: null,
    gpus: [],
    memory: [],
    policy: 'best-fit',
    request: '',
    summary: 'No node has that now.',
    never: false,
    nearest: null,
    fitting: [],
    stages: [],
    ...more
  };
  server.instead.set('explain', { json });
}

const pass = (ms: number): Promise<void> => act(() => jest.advanceTimersByTimeAsync(ms));
const field = (label: string): HTMLInputElement => screen.getByLabelText(label);
const button = (name: string | RegExp): HTMLButtonElement => screen.getByRole('button', { name });
const isOff = (one: HTMLElement): boolean => one.getAttribute('aria-disabled') === 'true';
const page = (): string => document.body.textContent;

async function write(label: string, text: string): Promise<void> {
  fireEvent.change(field(label), { target: { value: text } });
  await pass(0);
}

test('while one types it is told where that would go', async () => {
  expect(page()).toContain('brook: 1 × A100-40GB, the only one that fits');
  decide({ node: 'brook', gpus: ['G1', 'G2'], fitting: ['brook', 'atlas'] });
  await write('GPUs', '2');
  await pass(200);
  expect(page()).toContain('brook: 2 × A100-40GB, the tightest of 2 that fit');
});

test('slider and text say the same', async () => {
  await write('Memory per GPU', '16GiB');
  const slider = field('Memory per GPU, slider');
  expect(slider.getAttribute('aria-valuetext')).toBe('16 GiB');
  fireEvent.change(slider, { target: { value: slider.max } });
  expect(field('Memory per GPU').value).toBe('40GiB');
  fireEvent.change(slider, { target: { value: '0' } });
  expect(field('Memory per GPU').value).toBe('');
});

test('the number goes up and down by its buttons and by arrow keys, within what there is', async () => {
  fireEvent.click(button('One GPU more'));
  expect(field('GPUs').value).toBe('2');
  expect(isOff(button('One GPU more'))).toBe(true);
  fireEvent.keyDown(field('GPUs'), { key: 'ArrowDown' });
  fireEvent.keyDown(field('GPUs'), { key: 'ArrowDown' });
  expect(field('GPUs').value).toBe('1');
  await write('GPUs', 'x');
  fireEvent.click(button('One GPU more'));
  expect(field('GPUs').value).toBe('2');
});

test('one size each', async () => {
  await write('GPUs', '2');
  fireEvent.click(field('One size for each GPU'));
  await write('Memory of GPU 2', '4GiB');
  expect(gpufit.draft.request?.memory).toEqual([8 * GiB, 4 * GiB]);
  await write('Memory of GPU 1', '4Q');
  await pass(800);
  expect(field('Memory of GPU 1').getAttribute('aria-invalid')).toBe('true');
});

test('a mistake is told at its field once one has stopped typing, and goes as soon as it is mended', async () => {
  await write('Memory per GPU', '16');
  expect(page()).not.toContain('no unit');
  await pass(800);
  const input = field('Memory per GPU');
  expect(input.getAttribute('aria-invalid')).toBe('true');
  const told = document.getElementById(input.getAttribute('aria-describedby') ?? '');
  expect(told?.textContent).toBe("'16' has no unit; write '16GiB'");
  expect(isOff(button('Attach train.ipynb'))).toBe(true);
  await write('Memory per GPU', '16G');
  expect(input.getAttribute('aria-invalid')).toBe('false');
  expect(isOff(button('Attach train.ipynb'))).toBe(false);
});

test('what would fit instead is one press away', async () => {
  decide({ nearest: { node: 'brook', gpus: 1, memory: 20 * GiB } });
  await write('GPUs', '4');
  await pass(200);
  expect(page()).toContain('No node has that now.');
  decide({ node: 'brook', gpus: ['G1'], fitting: ['brook'] });
  fireEvent.click(button('Take 1 GPU with 20 GiB on brook'));
  await pass(200);
  expect([field('GPUs').value, field('Memory per GPU').value]).toEqual(['1', '20GiB']);
  expect(page()).toContain('the only one that fits');
  expect(asked).toEqual([]);
});

test('what does not fit now can be waited for; what never fits cannot', async () => {
  decide({});
  await write('GPUs', '4');
  await pass(200);
  fireEvent.click(button('Wait for it'));
  await pass(200);
  expect(gpufit.draft.request?.wait).toBe(600);
  expect(page()).toContain('It would wait for up to 10 m.');
  decide({ never: true, summary: 'No node could ever give that.' });
  await write('GPUs', '40');
  await pass(200);
  expect(page()).toContain('No node could ever give that.');
  expect(page()).not.toContain('It would wait');
  expect(screen.queryByRole('button', { name: 'Wait for it' })).toBeNull();
});

test('pressed twice, it is asked once; then the form tells how it goes on', async () => {
  await write('Name', 'train');
  const attach = button('Attach train.ipynb');
  fireEvent.click(attach);
  fireEvent.click(attach);
  await pass(0);
  expect(asked).toEqual([[{ gpus: 1, memory: 8 * GiB, name: 'train' }, 'attach']]);
  expect(isOff(button('Asking…'))).toBe(true);
  const train = allocation('train', { state: 'starting', node: 'brook' });
  act(() => server.tell('allocation', train));
  answer.resolve(train);
  await pass(0);
  expect(page()).toContain('train is starting on brook.');
  expect(field('Name').value).toBe('');
  expect(page()).not.toContain('that fits');
  const failed = { ...train, version: 2, state: 'ended', reason: 'failed', message: 'no kernel' };
  act(() => server.tell('allocation', failed));
  expect(page()).toContain('train failed: no kernel');
  await write('GPUs', '2');
  expect(page()).not.toContain('train failed');
});

test('a refusal is told in the words of the server, with the ways on', async () => {
  fireEvent.click(button('New notebook'));
  expect(asked[0][1]).toBe('new');
  const nearest = { node: 'brook', gpus: 1, memory: 4 * GiB };
  answer.reject(new ApiError(409, 'no-fit', 'No node has 1 GPU now.', { nearest }));
  await pass(0);
  const alert = within(screen.getByRole('alert'));
  expect(alert.getByText('No node has 1 GPU now.')).toBeTruthy();
  expect(alert.getByRole('button', { name: 'Take 1 GPU with 4 GiB on brook' })).toBeTruthy();
  fireEvent.click(alert.getByRole('button', { name: 'Wait for it' }));
  await pass(200);
  expect(screen.getByRole('alert').textContent).toBe('');
  expect(gpufit.draft.request?.wait).toBe(600);

  fireEvent.click(button('Attach train.ipynb'));
  answer.reject(new ApiError(403, 'forbidden', 'ada may have 2 GPUs.'));
  await pass(0);
  expect(screen.getByRole('alert').textContent).toBe('ada may have 2 GPUs.');
});

test('without a notebook only a new one can be had, and it says so', () => {
  notebook = null;
  act(() => notebookChanged.emit(null));
  const attach = button('Attach this notebook');
  expect(isOff(attach)).toBe(true);
  const why = document.getElementById(attach.getAttribute('aria-describedby') ?? '');
  expect(why?.textContent).toMatch(/^No notebook is open/);
  expect(isOff(button('New notebook'))).toBe(false);
});

test('where the notebook is on GPUs already, it says what a press does', () => {
  const told = (): string | undefined =>
    document.getElementById(button('Attach train.ipynb').getAttribute('aria-describedby') ?? '')
      ?.textContent;
  expect(told()).toBe('');
  const one = allocation('noble-crane');
  runsOn = one.id;
  act(() => server.tell('allocation', one));
  expect(told()).toBe(
    'train.ipynb runs on noble-crane; it would move to the new GPUs, and noble-crane stays held.'
  );
  waits = true;
  act(() => server.tell('allocation', { ...one, version: 2, state: 'starting' }));
  expect(told()).toBe(
    'train.ipynb is to run on noble-crane; ' +
      'it would go to the new GPUs instead, and noble-crane is not taken back.'
  );
});

test('without a server it says so, asks nothing, and keeps what is written', async () => {
  await write('GPUs', '2');
  await act(async () => {
    server.die();
    await settled();
  });
  expect(page()).toContain('The Jupyter server does not answer');
  expect(field('GPUs').value).toBe('2');
  await write('GPUs', '3'); // one can go on writing
  expect(isOff(button('New notebook'))).toBe(true);
});

test('that the server did not answer is not told any more once it does', async () => {
  fireEvent.click(screen.getByText('New notebook'));
  answer.reject(new ApiError(0, 'unreachable', 'The Jupyter server does not answer.'));
  await pass(0);
  expect(screen.getByRole('alert').textContent).toContain('does not answer');
  act(() => server.close());
  await pass(1500);
  await act(async () => {
    server.open();
    await settled();
  });
  expect(gpufit.model.connection).toBe('connected');
  expect(screen.getByRole('alert').textContent).toBe('');
});

test('no key but a press of a button asks for GPUs', () => {
  fireEvent.keyDown(field('GPUs'), { key: 'Enter' });
  fireEvent.submit(screen.getByRole('form'));
  expect(asked).toEqual([]);
  expect(
    screen.getAllByRole('button').every(one => (one as HTMLButtonElement).type === 'button')
  ).toBe(true);
});

describe('a job', () => {
  const start = (): HTMLElement => button(/^Start/);

  test('the notebook at hand is run unattended, with what is written', async () => {
    button('Run as a job…').focus();
    fireEvent.click(button('Run as a job…'));
    await pass(0);
    expect(document.activeElement).toBe(field('What runs'));
    expect([field('What runs').value, field('Folder').value]).toEqual(['train.ipynb', 'work']);
    expect(screen.queryByRole('button', { name: /Attach/ })).toBeNull();
    expect(screen.queryByLabelText('Arguments')).toBeNull();
    await write('What runs', 'train.py');
    await write('Arguments', '--epochs 3');
    await write('Sweep', 'lr=1e-3,1e-4');
    fireEvent.click(button('Set a variable'));
    await pass(0);
    expect(document.activeElement).toBe(field('Name of variable 1'));
    await write('Name of variable 1', 'KEY');
    await write('Value of variable 1', 'secret');
    expect(field('Value of variable 1').type).toBe('password');
    expect(page()).toContain('2 jobs, each with its own GPUs.');
    await pass(500);
    const asking = server.requests.filter(({ url }) => url.includes('explain'));
    expect(JSON.stringify(asking)).not.toMatch(/secret|job/); // where it would go depends on neither

    const pressed = start();
    pressed.focus();
    fireEvent.click(pressed);
    fireEvent.click(pressed);
    await pass(0);
    const job = { run: 'train.py', args: ['--epochs', '3'], env: { KEY: 'secret' } };
    expect(submitted).toEqual([
      [{ gpus: 1, memory: 8 * GiB, folder: 'work', job }, { lr: ['1e-3', '1e-4'] }]
    ]);
    const jobs = ['a', 'b'].map(id => allocation(id, { state: 'running' }));
    act(() => jobs.forEach(one => server.tell('allocation', one)));
    granted.resolve(jobs);
    await pass(0);
    expect(page()).toContain('2 jobs are asked for, 2 run.');
    expect(screen.queryByLabelText('What runs')).toBeNull();
    expect(gpufit.draft.run.form).toBeNull(); // with its secrets
    expect(document.activeElement).toBe(button('Attach train.ipynb'));
  });

  test('a mistake is told at its field, and keeps it from being asked for', async () => {
    act(() => gpufit.draft.run.open({ what: 'train.py' }));
    await write('Retries', 'many');
    expect(start().getAttribute('aria-disabled')).toBe('true');
    expect(page()).not.toContain('no number of retries');
    await pass(800);
    expect(page()).toContain("'many' is no number of retries; write a whole number up to 100");
    fireEvent.click(start());
    expect(submitted).toEqual([]);
    fireEvent.click(button('Not as a job'));
    await pass(0);
    expect(isOff(button('Attach train.ipynb'))).toBe(false);
  });

  test('why not is said in the words of the server, and what is written stays', async () => {
    act(() => gpufit.draft.run.open({ what: 'tran.py', env: [{ name: 'A', value: 'b' }] }));
    fireEvent.click(start());
    granted.reject(new ApiError(400, 'invalid', 'there is no tran.py; did you mean train.py?'));
    await pass(0);
    expect(screen.getByRole('alert').textContent).toContain('did you mean train.py?');
    expect(field('Value of variable 1').value).toBe('b');
    fireEvent.click(button('Remove variable 1'));
    await pass(0);
    expect(screen.queryByLabelText('Value of variable 1')).toBeNull();
    expect(document.activeElement).toBe(button('Set a variable'));
    expect(screen.getByRole('alert').textContent).toBe('');
  });

  test('what one writes meanwhile is the next, and stays', async () => {
    act(() => gpufit.draft.run.open({ what: 'a.py' }));
    fireEvent.click(start());
    await write('What runs', 'b.py');
    granted.resolve([allocation('a')]);
    await pass(0);
    expect(field('What runs').value).toBe('b.py');
  });

  test('a variable without a value keeps it from being asked for', async () => {
    act(() => gpufit.draft.run.open({ what: 'a.py', env: [{ name: 'KEY', value: '' }] }));
    await pass(800);
    expect(isOff(start())).toBe(true);
    const value = field('Value of variable 1');
    const mistake = document.getElementById(value.getAttribute('aria-describedby') ?? '');
    expect(mistake?.textContent).toBe("'KEY' has no value; write it, or remove it");
    await write('Value of variable 1', 'secret');
    expect(isOff(start())).toBe(false);
  });

  test('that waits by itself is told so', async () => {
    decide({});
    act(() => gpufit.draft.run.open({ what: 'train.py' }));
    await write('GPUs', '2');
    await pass(200);
    expect(page()).toContain('It would wait for up to 1 d.');
    expect(screen.queryByRole('button', { name: 'Wait for it' })).toBeNull();
    expect(screen.queryByLabelText('If nothing fits, wait up to')).toBeNull();
    fireEvent.click(field('If nothing fits, wait no longer than'));
    await write('How long to wait', '1h');
    await pass(200);
    expect(page()).toContain('It would wait for up to 1 h.');
  });
});

test('a model is chosen from what nodes have, as a wish or as a must', async () => {
  expect(screen.queryByLabelText('Model')).toBeNull();
  const llama = { name: 'llama-7b', size: GiB, modified: 5 };
  const brook = node('brook', { gpus: [gpu('G1')], models: [llama], model_store: true });
  await act(async () => {
    server.tell('nodes', { changed: [brook], removed: [] });
    await settled();
  });
  const { options = [] } = field('Model').list ?? {};
  expect([...options].map(one => one.getAttribute('value'))).toEqual(['llama-7b']);
  await write('Model', 'llama-7b');
  expect(gpufit.draft.request).toMatchObject({ model: 'llama-7b' });
  fireEvent.click(field('Only where it is'));
  fireEvent.click(field('It may write into the model store'));
  expect(gpufit.draft.request).toEqual({
    gpus: 1,
    memory: 8 * GiB,
    model: 'llama-7b',
    require_model: true,
    write_models: true
  });
  await write('Model', '');
  expect(gpufit.draft.request).not.toHaveProperty('require_model');
});

test('cores and RAM of the machine are asked for under More, and told what is wrong with them', async () => {
  expect(field('CPUs').closest('details')?.textContent).toContain('More');
  await write('CPUs', '8');
  await write('RAM', '64GiB');
  const asked = { gpus: 1, memory: 8 * GiB, cpus: 8, ram: 64 * GiB };
  expect(gpufit.draft.request).toEqual(asked);
  await pass(500);
  expect([server.asked.at(-1), server.sent]).toEqual([expect.stringContaining('explain'), asked]);
  await write('RAM', '1MiB');
  await pass(800);
  const mistake = document.getElementById(field('RAM').getAttribute('aria-describedby') ?? '');
  expect(mistake?.textContent).toMatch(/^'1MiB' is too little; ask for 64 MiB/);
  expect(isOff(button('Attach train.ipynb'))).toBe(true);
  fireEvent.click(button('Reset the form'));
  expect(gpufit.draft.request).toEqual({ gpus: 1, memory: 8 * GiB });
});

test('what the notebook used the last time is offered, and taken only by a press', async () => {
  const usage = {
    gpus: [{ uuid: 'G1', asked: 8 * GiB, peak: 4.5 * GiB, busy: 50 }],
    seconds: 100,
    samples: 20,
    suggested: 5 * GiB
  };
  const last = { request: { gpus: 1, notebook: 'work/train.ipynb' }, usage };
  await act(async () => {
    server.tell('allocation', allocation('old', { state: 'ended', ended: 5, ...last }));
    await settled();
  });
  expect(page()).toContain('Last time this notebook used at most 4.5 GiB of a GPU.');
  expect(field('Memory per GPU').value).toBe('8GiB');
  fireEvent.click(button('Use 5 GiB'));
  expect(field('Memory per GPU').value).toBe('5GiB');
  expect(page()).not.toContain('Last time');
  expect(document.activeElement?.className).toBe('jp-GpuFit-formVerdict');
});
