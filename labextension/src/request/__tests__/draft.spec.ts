import { nullTranslator } from '@jupyterlab/translation';
import { Server, node, refused, settled } from '../../__tests__/server';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GpuFitModel } from '../../model';
import { Settings } from '../../settings';
import type { Decision } from '../../wire';
import { Draft } from '../draft';

let server: Server;
let model: GpuFitModel;
let draft: Draft;

beforeEach(async () => {
  jest.useFakeTimers();
  server = new Server();
  server.nodes = [node('n1')];
  model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  draft = new Draft(model, new Settings(), nullTranslator.load(''));
  server.open();
  await settled();
});

afterEach(() => {
  draft.dispose();
  model.dispose();
  expect(jest.getTimerCount()).toBe(0);
  jest.useRealTimers();
});

/** The next question is answered when the test says so. */
function held(): (answer: Partial<Decision> | Error) => Promise<void> {
  let resolve: (answer: { json: unknown } | Error) => void = () => undefined;
  server.instead.set('explain', new Promise(done => (resolve = done)));
  return async answer => {
    resolve(answer instanceof Error ? answer : { json: answer });
    await settled();
  };
}

function answers(decision: Partial<Decision>): void {
  server.instead.set('explain', { json: decision });
}

const questions = (): number => server.asked.filter(one => one.startsWith('POST explain')).length;
const bodies = (): unknown[] =>
  server.requests
    .filter(({ url }) => url.includes('explain'))
    .map(request => (request as unknown as { init: { body: string } }).init.body)
    .map(body => JSON.parse(body) as unknown);

test('nobody is asked while nobody looks', async () => {
  draft.change({ gpus: '2' });
  server.tell('nodes', { changed: [node('n2')], removed: [] });
  await jest.advanceTimersByTimeAsync(10_000);
  expect(questions()).toBe(0);
});

test('the server is asked once, a moment after the last key, without the stages', async () => {
  answers({ node: 'n1' });
  draft.watch();
  await jest.advanceTimersByTimeAsync(0);
  expect(draft.decision?.node).toBe('n1');
  for (const memory of ['1', '16', '16M', '16GiB']) {
    draft.change({ memory });
    await jest.advanceTimersByTimeAsync(150);
  }
  expect(questions()).toBe(1);
  expect(draft.isAsking).toBe(true);
  answers({ node: 'n2' });
  await jest.advanceTimersByTimeAsync(200);
  expect(server.asked.at(-1)).toBe('POST explain?stages=false');
  expect(bodies().slice(1)).toEqual([{ gpus: 1, memory: 16 * 2 ** 30 }]);
  expect(draft.decision?.node).toBe('n2');
  expect(draft.isAsking).toBe(false);
});

test('an answer that comes too late is not looked at', async () => {
  draft.watch();
  const first = held();
  await jest.advanceTimersByTimeAsync(0);
  const second = held();
  draft.change({ gpus: '2' });
  await jest.advanceTimersByTimeAsync(200);
  await second({ node: 'new' });
  await first({ node: 'old' });
  expect(questions()).toBe(2);
  expect(draft.decision?.node).toBe('new');

  const third = held();
  draft.change({ gpus: '3' });
  await jest.advanceTimersByTimeAsync(200);
  draft.change({ gpus: 'x' }); // and with a mistake there is nothing to know
  await third({ node: 'old' });
  await jest.advanceTimersByTimeAsync(200);
  expect(draft.decision).toBeNull();
  expect(draft.mistakes).toHaveProperty('gpus');
});

test('what means the same as before is not asked again', async () => {
  answers({ node: 'n1' });
  draft.watch();
  await jest.advanceTimersByTimeAsync(0);
  draft.change({ memory: '8192MiB' }); // as the settings have it
  await jest.advanceTimersByTimeAsync(1000);
  expect(questions()).toBe(1);
  expect(draft.isAsking).toBe(false);
});

test('it follows the nodes, but not each of their changes, and not while nobody looks', async () => {
  answers({ node: 'n1' });
  const watching = draft.watch();
  await jest.advanceTimersByTimeAsync(0);
  answers({ node: null });
  for (let change = 0; change < 10; change++) {
    server.tell('nodes', { changed: [node('n1')], removed: [] });
    await jest.advanceTimersByTimeAsync(100);
  }
  expect(questions()).toBe(1);
  await jest.advanceTimersByTimeAsync(2000);
  expect(questions()).toBe(2);
  expect(draft.decision?.node).toBeNull();
  watching.dispose();
  server.tell('nodes', { changed: [node('n1')], removed: [] });
  await jest.advanceTimersByTimeAsync(10_000);
  expect(questions()).toBe(2);
});

test('what the server says against it is told, until it answers again', async () => {
  draft.watch();
  server.instead.set('explain', refused(422, 'image-refused', 'image x is not allowed'));
  await jest.advanceTimersByTimeAsync(0);
  expect([draft.decision, draft.problem]).toEqual([null, 'image x is not allowed']);
  answers({ node: 'n1' });
  draft.change({ image: '', gpus: '2' });
  await jest.advanceTimersByTimeAsync(200);
  expect([draft.decision?.node, draft.problem]).toEqual(['n1', '']);
});

test('without a server it keeps what is written, and asks once there is one', async () => {
  answers({ node: 'n1' });
  draft.watch();
  await jest.advanceTimersByTimeAsync(0);
  server.close();
  draft.change({ gpus: '2' });
  await jest.advanceTimersByTimeAsync(2000);
  expect(questions()).toBe(1);
  answers({ node: 'n2' });
  server.open();
  await settled();
  await jest.advanceTimersByTimeAsync(10);
  expect(draft.form.gpus).toBe('2');
  expect(draft.decision?.node).toBe('n2');
});

test('it begins with the settings, until something is written', () => {
  const settings = new Settings();
  const other = new Draft(model, settings, nullTranslator.load(''));
  expect(other.form).toMatchObject({ gpus: '1', memory: '8GiB' });
  Object.assign(settings, { current: { ...settings.values, requestGpus: 4 } });
  (settings.changed as unknown as { emit: (values: object) => void }).emit(settings.values);
  expect(other.form.gpus).toBe('4');
  expect(other.isInitial).toBe(true);
  other.change({ name: 'train' });
  (settings.changed as unknown as { emit: (values: object) => void }).emit(settings.values);
  expect(other.form.name).toBe('train');
  other.reset();
  expect(other.isInitial).toBe(true);
  other.dispose();
});
