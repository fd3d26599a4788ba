import { StateDB } from '@jupyterlab/statedb';
import { Api } from '../api';
import { Feed } from '../feed';
import { GpuFitModel } from '../model';
import { Past } from '../past';
import type { Allocation, Usage } from '../wire';
import { Server, allocation, job, settled } from './server';

const NOW = Date.now() / 1000 + 60; // the server's clock is a minute ahead
const usage = (suggested: number): Usage => ({ gpus: [], seconds: 9, samples: 9, suggested });
const ended = (id: string, ago: number, more: Partial<Allocation> = {}): Allocation =>
  allocation(id, { state: 'ended', reason: 'finished', ended: NOW - ago, ...more });

let server: Server;
let models: GpuFitModel[];

beforeEach(() => {
  server = new Server();
  models = [];
});

afterEach(() => models.forEach(model => model.dispose()));

/** A page, opened (again). */
async function page(state: StateDB | null): Promise<{ model: GpuFitModel; past: Past }> {
  const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  const past = new Past(model);
  models.push(model);
  void past.begin(state);
  await settled();
  server.open();
  await settled();
  return { model, past };
}

test('jobs that ended while nobody looked are shown for a day, until they are dismissed', async () => {
  server.allocations = [allocation('runs', { created: 5 })];
  server.ended = [
    ended('yesterday', 90_000, { job: job() }),
    ended('tonight', 3600, { job: job() }),
    ended('kernel', 60)
  ];
  const state = new StateDB();
  const { model } = await page(state);
  expect([...model.allocations.keys()].sort()).toEqual(['runs', 'tonight']);
  expect(server.asked.filter(one => one.includes('ended'))).toHaveLength(1);
  model.dismiss('tonight');
  await settled();
  const later = await page(state);
  expect([...later.model.allocations.keys()]).toEqual(['runs']);
});

test('it knows what a notebook used the last time, also once that has just ended', async () => {
  const request = { gpus: 1, notebook: 'a.ipynb' };
  server.ended = [
    ended('late', 60, { request, usage: usage(2) }),
    ended('early', 600, { request, usage: usage(1) })
  ];
  const { past } = await page(null);
  expect(past.lastOf('a.ipynb')?.id).toBe('late');
  expect(past.lastOf('b.ipynb')).toBeNull();
  server.tell('allocation', ended('now', 0, { request, usage: usage(3) }));
  expect(past.lastOf('a.ipynb')?.id).toBe('now');
});

test('a server that does not tell of it is not asked again', async () => {
  server.instead.set('allocations?ended', new TypeError('Failed to fetch'));
  const { model, past } = await page(null);
  expect(model.connection).toBe('connected');
  expect(past.lastOf('a.ipynb')).toBeNull();
});
