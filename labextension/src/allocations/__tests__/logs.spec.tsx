import { nullTranslator } from '@jupyterlab/translation';
import { act, cleanup, fireEvent, render, screen } from '@testing-library/react';
import React from 'react';
import { Server, allocation, refused } from '../../__tests__/server';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GpuFitModel } from '../../model';
import type { IGpuFit } from '../../tokens';
import type { Log } from '../../wire';
import { lastLines } from '../logreader';
import { Logs } from '../logs';

const train = allocation('train');
const AFTER = 'allocations/train/logs?after=';
let server: Server;
let gpufit: IGpuFit;

beforeEach(async () => {
  jest.useFakeTimers();
  // (jsdom lays nothing out: whatever is there counts as seen.)
  jest.spyOn(Element.prototype, 'getClientRects').mockReturnValue([{}] as unknown as DOMRectList);
  server = new Server();
  server.allocations = [train];
  const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  gpufit = { model, trans: nullTranslator.load('') } as IGpuFit;
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
const text = (): string => screen.getByRole('region').textContent;
const looks = (): string[] => server.asked.filter(path => path.includes('/logs'));

/** What there is when it is first looked at. */
const has = (logs: string, mark = '1', over = false): unknown =>
  server.instead.set('allocations/train/logs?tail', { json: { logs, mark, over } });

/** A question for what comes: it is kept until there is something. */
function comes(): (logs: string, mark: string, over?: boolean) => Promise<void> {
  let answer: (answer: { json: Log }) => void = () => undefined;
  server.instead.set(AFTER, new Promise(resolve => (answer = resolve)));
  return async (logs, mark, over = false) => {
    answer({ json: { logs, mark, over } });
    await pass(0);
  };
}

async function show(): Promise<void> {
  render(<Logs gpufit={gpufit} id="train" />);
  await pass(0);
}

test('it follows what is printed, in colour, one question at a time, until it is over', async () => {
  has('');
  const first = comes();
  await show();
  expect(text()).toContain('It has printed nothing so far.');
  await pass(9000);
  expect(looks()).toEqual([
    'GET allocations/train/logs?tail=200',
    'GET allocations/train/logs?after=1&wait=10'
  ]);
  await first('epoch 1\n\x1b[31mlo', '2');
  const second = comes();
  await pass(1000);
  await second('ss: nan\x1b[0m\n', '3 &');
  expect(text()).toBe('epoch 1\nloss: nan\n');
  expect(screen.getByText('loss: nan').className).toBe('ansi-red-fg');

  const third = comes();
  await pass(1000);
  expect(looks().at(-1)).toBe('GET allocations/train/logs?after=3%20%26&wait=10');
  await third('done\n', '4', true);
  const count = looks().length;
  await pass(30_000);
  expect(looks()).toHaveLength(count);
  expect(text()).toBe('epoch 1\nloss: nan\ndone\n');
  expect(screen.getByLabelText<HTMLInputElement>('Follow').disabled).toBe(true);
});

test('who does not follow it looks when they want, and goes on from there', async () => {
  has('epoch 1\n');
  comes();
  await show();
  await pass(1000);
  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(0);
  const count = looks().length;
  await pass(30_000);
  expect(looks()).toHaveLength(count);
  server.instead.set(AFTER, { json: { logs: 'epoch 2\n', mark: '2', over: false } });
  fireEvent.click(screen.getByRole('button', { name: 'Refresh' }));
  await pass(0);
  expect(looks().at(-1)).toBe('GET allocations/train/logs?after=1&wait=0');
  expect(text()).toBe('epoch 1\nepoch 2\n');
  expect(screen.queryByRole('alert')).toBeNull();
  const more = comes();
  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(1000);
  await more('epoch 3\n', '3');
  expect(text()).toBe('epoch 1\nepoch 2\nepoch 3\n');
});

test('nothing comes any more once it is not followed, also between two questions', async () => {
  has('epoch 1\n');
  await show(); // the next question is planned
  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(30_000);
  expect(looks()).toHaveLength(1);
  comes();
  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(0);
  expect(looks()).toHaveLength(2);
});

test('what could not be read at first is read once it is followed again', async () => {
  server.instead.set('allocations/train/logs?tail', refused(503, 'node-unreachable', 'no'));
  await show();
  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(30_000);
  expect(looks()).toHaveLength(1);
  has('epoch 1\n', '1', true);
  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(0);
  expect(text()).toBe('epoch 1\n');
});

test('nobody is asked for what nobody sees, nor once it is closed', async () => {
  has('');
  const first = comes();
  await show();
  await pass(1000);
  jest.spyOn(document, 'visibilityState', 'get').mockReturnValue('hidden');
  await first('', '1');
  await pass(30_000);
  expect(looks()).toHaveLength(2);
  cleanup();
  jest.restoreAllMocks();
  await pass(30_000);
  expect(looks()).toHaveLength(2);
});

test('what is known stays when the node does not answer, and is looked for again', async () => {
  has('epoch 1\n');
  const answer = refused(503, 'node-unreachable', "node 'n1' did not give the log of 'train'");
  server.instead.set(AFTER, answer);
  await show();
  await pass(1000);
  expect(screen.getByRole('alert').textContent).toContain("node 'n1' did not give the log");
  expect(text()).toBe('epoch 1\n');
  const more = comes();
  await pass(4000);
  await more('epoch 2\n', '2');
  expect(screen.queryByRole('alert')).toBeNull();
  expect(text()).toBe('epoch 1\nepoch 2\n');
});

test('after the end it has what is kept, and more of it', async () => {
  gpufit.model.dismiss('train');
  await act(async () => {
    server.tell('allocation', { ...train, version: 2, state: 'ended', reason: 'failed' });
    await jest.advanceTimersByTimeAsync(0);
  });
  has('killed\n', '9', true);
  await show();
  expect(text()).toBe('killed\n');
  expect(screen.queryByText(/what is kept of what it printed/)).not.toBeNull();
  has('epoch 1\nkilled\n', '9', true);
  fireEvent.change(screen.getByLabelText('Last'), { target: { value: '1000' } });
  expect(text()).toBe('killed\n');
  await pass(0);
  expect(looks().at(-1)).toBe('GET allocations/train/logs?tail=1000');
  expect(text()).toBe('epoch 1\nkilled\n');
  await pass(20_000);
  expect(looks()).toHaveLength(2);
});

test('so many lines are kept, and no more', () => {
  expect(lastLines('a\nb\nc\n', 2)).toBe('b\nc\n');
  expect(lastLines('a\nb\nc', 2)).toBe('b\nc');
  expect(lastLines('a\n', 2)).toBe('a\n');
  expect(lastLines('\n\n\n', 2)).toBe('\n\n');
  expect(lastLines('\na', 2)).toBe('\na');
  expect(lastLines('', 2)).toBe('');
});
