import { Notification } from '@jupyterlab/apputils';
import { nullTranslator } from '@jupyterlab/translation';
import { allocation, refused, Server, settled } from '../../__tests__/server';
import { Actions } from '../../actions';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GpuFitModel } from '../../model';
import { Settings } from '../../settings';
import { Warnings } from '../warnings';

const trans = nullTranslator.load('');
const SOON = '"train" ends in 5 min';
const SOONER = '"train" ends in 1 min';

async function page() {
  const server = new Server();
  const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  const actions = new Actions({ model, trans } as never);
  const settings = new Settings();
  const shown: string[] = [];
  const warnings = new Warnings({ model, actions, settings, trans }, id => void shown.push(id));
  let version = 0;
  const warn = async (warning: string, more = {}): Promise<void> => {
    server.allocations = [allocation('a1', { warning, version: ++version, expires: 4e9, ...more })];
    await model.refresh();
  };
  await model.refresh();
  return { server, warn, settings, shown, warnings };
}

const told = (): string[] => Notification.manager.notifications.map(({ message }) => message);

function press(label: string): void {
  const [{ options }] = Notification.manager.notifications;
  const action = options.actions?.find(one => one.label === label);
  action?.callback(new MouseEvent('click'));
}

afterEach(() => Notification.dismiss());

test('each warning is told once, in place of the one before', async () => {
  const { warn } = await page();
  await warn(SOON);
  await warn(SOON, { state: 'running' });
  expect(told()).toEqual([SOON]);
  await warn(SOONER);
  expect(told()).toEqual([SOONER]);
});

test('what will happen is told, and what to do about it is on buttons', async () => {
  const { warn } = await page();
  const labels = (): string[] | undefined =>
    Notification.manager.notifications.at(0)?.options.actions?.map(({ label }) => label);
  await warn(
    "allocation 'a' ends in 8 m, at 14:05 UTC: ask for more time with %gpufit extend a 1h"
  );
  expect(told()).toEqual(["Allocation 'a' ends in 8 m, at 14:05 UTC"]);
  expect(labels()).toEqual(['Extend 1 h', 'Show']);
  await warn("allocation 'a' does nothing: it is released in 5 m", { expires: null });
  expect(labels()).toEqual(['Show']);
});

test('one that was closed is not told again', async () => {
  const { warn } = await page();
  await warn(SOON);
  Notification.dismiss();
  await warn(SOON);
  expect(told()).toEqual([]);
});

test('it goes when it is taken back, and when the allocation ends', async () => {
  const { warn } = await page();
  await warn(SOON);
  await warn('');
  expect(told()).toEqual([]);
  await warn(SOON);
  await warn(SOON, { state: 'ended' });
  expect(told()).toEqual([]);
});

test('its buttons extend and show the allocation; what goes wrong is told', async () => {
  const { server, warn, shown } = await page();
  await warn(SOON);
  press('Show');
  expect(shown).toEqual(['a1']);
  server.instead.set('allocations/a1/extend', refused(409, 'quota', 'no more than 2 h are yours'));
  press('Extend 1 h');
  await settled();
  expect(told()).toContain('no more than 2 h are yours');
  const sent = server.requests[server.requests.length - 1] as unknown as { init: RequestInit };
  expect(JSON.parse(sent.init.body as string)).toEqual({ time: '1h' });
});

test('who does not want notifications gets none', async () => {
  const { warn, settings } = await page();
  await warn(SOON);
  const composite = { notifyWarnings: false };
  const registry = { load: () => Promise.resolve({ composite, changed: { connect: () => true } }) };
  await settings.follow(registry as never, 'plugin');
  expect(told()).toEqual([]);
  await warn(SOONER);
  expect(told()).toEqual([]);
});
