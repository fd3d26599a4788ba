import { nullTranslator } from '@jupyterlab/translation';
import { act, cleanup, fireEvent, render, screen } from '@testing-library/react';
import React from 'react';
import { Server, allocation, refused } from '../../__tests__/server';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GpuFitModel } from '../../model';
import type { IGpuFit } from '../../tokens';
import { Logs } from '../logs';

const train = allocation('train');
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
const prints = (logs: string): unknown =>
  server.instead.set('allocations/train/logs', { json: { logs } });
const text = (): string => screen.getByRole('region').textContent;
const looks = (): string[] => server.asked.filter(path => path.includes('/logs'));

async function show(): Promise<void> {
  render(<Logs gpufit={gpufit} id="train" />);
  await pass(0);
}

test('it follows what is printed, in colour, until it is told not to', async () => {
  prints('');
  await show();
  expect(text()).toContain('It has printed nothing so far.');
  prints('epoch 1\n\x1b[31mloss: nan\x1b[0m\n');
  await pass(4000);
  expect(text()).toBe('epoch 1\nloss: nan\n');
  expect(screen.getByText('loss: nan').className).toBe('ansi-red-fg');

  fireEvent.click(screen.getByLabelText('Follow'));
  await pass(0);
  const count = looks().length;
  await pass(20_000);
  expect(looks()).toHaveLength(count);
  prints('epoch 2');
  fireEvent.click(screen.getByRole('button', { name: 'Refresh' }));
  await pass(0);
  expect(text()).toBe('epoch 2');
});

test('nobody is asked for what nobody sees', async () => {
  prints('');
  await show();
  jest.spyOn(document, 'visibilityState', 'get').mockReturnValue('hidden');
  await pass(20_000);
  expect(looks()).toHaveLength(1);
});

test('what is known stays when the node does not answer, and is looked for again', async () => {
  prints('epoch 1');
  await show();
  const answer = refused(503, 'node-unreachable', "node 'n1' did not give the log of 'train'");
  server.instead.set('allocations/train/logs', answer);
  await pass(4000);
  expect(screen.getByRole('alert').textContent).toContain("node 'n1' did not give the log");
  expect(text()).toBe('epoch 1');
  prints('epoch 2');
  await pass(4000);
  expect(screen.queryByRole('alert')).toBeNull();
  expect(text()).toBe('epoch 2');
});

test('after the end it has what is kept, and more of it', async () => {
  prints('epoch 1');
  await show();
  prints('epoch 1\nkilled');
  await act(async () => {
    server.tell('allocation', { ...train, version: 2, state: 'ended', reason: 'failed' });
    await jest.advanceTimersByTimeAsync(0);
  });
  expect(text()).toBe('epoch 1\nkilled');
  expect(screen.queryByText(/what is kept of what it printed/)).not.toBeNull();
  fireEvent.change(screen.getByLabelText('Last'), { target: { value: '1000' } });
  await pass(0);
  expect(looks().at(-1)).toBe('GET allocations/train/logs?tail=1000');
  const count = looks().length;
  await pass(20_000);
  expect(looks()).toHaveLength(count);
});
