import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { ServiceManager } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import {
  allocation,
  attachment,
  job,
  node,
  refused,
  Server,
  settled
} from '../../__tests__/server';
import { Actions } from '../../actions';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GiB } from '../../format';
import { GpuFitModel } from '../../model';
import { Past } from '../../past';
import { Draft } from '../../request/draft';
import { Settings } from '../../settings';
import type { Surfaces } from '../../shell/surfaces';
import type { IGpuFit } from '../../tokens';
import type { Request } from '../../wire';
import { CommandIDs } from '../commandargs';
import { Commands } from '../commands';

const trans = nullTranslator.load('');

/** A page with a server that has these allocations. */
async function page(...names: string[]) {
  const server = new Server();
  server.allocations = names.map(name => allocation(`id-${name}`, { name }));
  server.nodes = [node('n1'), node('n2')];
  const model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  const commands = new CommandRegistry();
  const source = {};
  const tracker = {
    currentWidget: null,
    currentChanged: new Signal(source),
    filter: () => [],
    forEach: () => undefined
  } as unknown as INotebookTracker;
  const services = {
    sessions: { refreshRunning: () => Promise.resolve() }
  } as unknown as ServiceManager.IManager;
  const actions = new Actions({
    model,
    tracker,
    services,
    commands,
    dialogs: {} as never,
    trans
  });
  const settings = new Settings();
  const draft = new Draft(model, settings, trans);
  const past = new Past(model);
  const gpufit: IGpuFit = { model, actions, past, settings, draft, trans };
  const shown: string[] = [];
  const surfaces: Surfaces = {
    open: section => void shown.push(`open ${section ?? ''}`),
    logs: id => void shown.push(`logs ${id}`),
    examine: name => void shown.push(`examine ${name}`)
  };
  const contents = { localPath: (path: string) => path };
  const shell = { currentWidget: { context: { path: 'deep/open.py' } } };
  const app = {
    commands,
    contextMenuHitTest: () => undefined,
    shell,
    serviceManager: { contents }
  } as unknown as JupyterFrontEnd;
  new Commands(app, gpufit, tracker, surfaces);
  await model.refresh();
  return { server, model, actions, commands, settings, draft, shown };
}

const told = (): string[] => Notification.manager.notifications.map(({ message }) => message);

afterEach(() => Notification.dismiss());

test('every command says what it is and what it takes', async () => {
  const { commands } = await page('train');
  for (const id of Object.values(CommandIDs)) {
    expect(commands.label(id)).not.toBe('');
    expect(commands.caption(id)).not.toBe('');
    const { args } = await commands.describedBy(id);
    expect(args).toMatchObject({ type: 'object' });
  }
});

test('an allocation is meant by its name, by its id, or as the only one', async () => {
  const { server, commands } = await page('train');
  server.instead.set('allocations/id-train/extend', {
    json: allocation('id-train', { version: 2 })
  });
  for (const args of [{ allocation: 'train' }, { allocation: 'id-train' }, {}]) {
    await commands.execute(CommandIDs.extend, { ...args, time: '1h' });
  }
  const extended = server.asked.filter(one => one === 'POST allocations/id-train/extend');
  expect(extended).toHaveLength(3);
});

test('more time for one without a limit is refused at once, and not asked for first', async () => {
  const { server, commands } = await page('train');
  const before = server.asked.length;
  await expect(commands.execute(CommandIDs.extend, {})).rejects.toThrow(
    '"train" has no time limit: there is nothing to extend.'
  );
  expect(server.asked).toHaveLength(before);
});

test('a name that nothing has is said, with what there is', async () => {
  const { commands, server } = await page('train', 'eval');
  const before = server.asked.length;
  const sentence = 'There is no allocation "trian"; there is "eval", "train".';
  await expect(commands.execute(CommandIDs.release, { allocation: 'trian' })).rejects.toThrow(
    sentence
  );
  expect(told()).toEqual([sentence]);
  await expect(commands.execute(CommandIDs.examine, { node: 'n3' })).rejects.toThrow(
    'There is no node "n3"; there is "n1", "n2".'
  );
  expect(server.asked).toHaveLength(before);
});

test('who chose a command from the palette is told, and nothing is rejected', async () => {
  const { commands } = await page('train');
  const result: unknown = await commands.execute(CommandIDs.examine, {
    node: 'n3',
    isPalette: true
  });
  expect(result).toBeNull();
  expect(told()).toEqual(['There is no node "n3"; there is "n1", "n2".']);
});

test('a request resolves to the allocation, and sends nothing but the request', async () => {
  const { server, commands } = await page();
  const granted = allocation('a9', { name: 'new', state: 'pending' });
  server.instead.set('allocations', { status: 202, json: granted });
  const asked = { gpus: 2, memory: '16GiB', shared: true };
  const result: unknown = await commands.execute(CommandIDs.request, { ...asked, isMenu: true });
  expect(result).toMatchObject({ id: 'a9' });
  const request = server.requests[server.requests.length - 1] as unknown as { init: RequestInit };
  expect(JSON.parse(request.init.body as string)).toEqual(asked);
  expect(told()).toEqual(['"new" is asked for']);
});

test('a request that fits nowhere offers what would, and why', async () => {
  const { server, commands, draft, shown } = await page();
  const nearest = { node: 'n1', gpus: 2, memory: 8 * 2 ** 30 };
  const sentence = 'no node has 4 idle GPUs with 16 GiB each';
  server.instead.set('allocations', refused(409, 'no-fit', sentence, { nearest }));
  const request: Request = { gpus: 4, memory: '16GiB' };
  await expect(commands.execute(CommandIDs.request, { ...request })).rejects.toThrow(sentence);
  const [{ message, options }] = Notification.manager.notifications;
  expect(message).toBe(sentence);
  const [take, why] = options.actions ?? [];
  expect([take.label, why.label]).toEqual(['Take 2 GPUs with 8 GiB each', 'Show Why']);

  why.callback(new MouseEvent('click'));
  expect(shown).toEqual(['open request']);
  expect(draft.form).toMatchObject({ gpus: '4', memory: '16GiB' });

  server.instead.set('allocations', { status: 202, json: allocation('a9') });
  take.callback(new MouseEvent('click'));
  await settled();
  const sent = server.requests[server.requests.length - 1] as unknown as { init: RequestInit };
  expect(JSON.parse(sent.init.body as string)).toEqual({ gpus: 2, memory: nearest.memory });
});

test('release-all releases all that are held, and says how many', async () => {
  const { server, model, commands } = await page('train', 'eval');
  for (const id of ['id-train', 'id-eval']) {
    server.instead.set(`allocations/${id}`, {
      json: allocation(id, { name: id, state: 'ended', reason: 'released', version: 2 })
    });
  }
  await commands.execute(CommandIDs.releaseAll, { confirm: false, isPalette: true });
  expect([...model.allocations.values()].map(({ state }) => state)).toEqual(['ended', 'ended']);
  expect(told()).toEqual(['2 allocations are released']);
});

test('commands are enabled where there is something to do', async () => {
  const { server, model, commands } = await page();
  const { open, request, release, detach } = CommandIDs;
  const enabled = (): string[] =>
    [open, request, release, detach].filter(id => commands.isEnabled(id));
  expect(enabled()).toEqual([open, request]);

  const changed: string[] = [];
  commands.commandChanged.connect((_, { id }) => void changed.push(id ?? ''));
  server.allocations = [allocation('a1')];
  server.attachments = [attachment('s1')];
  await model.refresh();
  expect(enabled()).toEqual([open, request, release, detach]);
  expect(changed).toContain(release);

  server.instead.set('', { status: 404, text: 'Not Found' });
  await model.refresh();
  expect(enabled()).toEqual([open]);
});

test('logs of one that has ended can be seen', async () => {
  const { server, model, commands, shown } = await page('train');
  server.instead.set('allocations/id-train', {
    json: allocation('id-train', { name: 'train', state: 'ended', version: 2 })
  });
  await model.release('id-train');
  await commands.execute(CommandIDs.logs, { allocation: 'id-train' });
  expect(shown).toEqual(['logs id-train']);
});

describe('train', () => {
  test('opens the form with what is selected, given, or open', async () => {
    const { actions, commands, draft, shown } = await page();
    actions.selected = () => 'some/My train.py';
    const what = async (args: object): Promise<unknown> => {
      expect(await commands.execute(CommandIDs.train, { ...args, isMenu: true })).toBeNull();
      return [draft.run.form?.what, draft.run.form?.folder];
    };
    expect(await what({ selected: true })).toEqual(["'My train.py'", 'some']);
    expect(await what({})).toEqual(['open.py', 'deep']);
    expect(await what({ path: 'a.ipynb' })).toEqual(['a.ipynb', '']);
    expect(await what({ run: 'make all', folder: 'x' })).toEqual(['make all', 'x']);
    actions.selected = () => 'some/data.csv';
    expect(await what({ selected: true })).toEqual(['open.py', 'deep']);
    expect(new Set(shown)).toEqual(new Set(['open request']));
  });

  test('writes what else it is given into the form', async () => {
    const { commands, draft } = await page();
    const job = { args: ['--name', 'a b'], retries: 2, launcher: 'torchrun', env: { A: 'b' } };
    const more = { model: 'llama', require_model: true, wait: '2h' };
    const wishes = { memory: '4GiB', cpus: 2, ram: '8GiB', node: 'n1', ...more };
    const args = { path: 'train.py', ...wishes, sweep: { lr: ['1', '2'] }, ...job };
    await commands.execute(CommandIDs.train, args);
    const bytes = { memory: 4 * GiB, ram: 8 * GiB };
    expect(draft.request).toEqual({ gpus: 1, ...wishes, ...bytes, wait: 7200 });
    expect(draft.run.form).toEqual({
      what: 'train.py',
      folder: '',
      args: "--name 'a b'",
      retries: '2',
      torchrun: true,
      sweep: 'lr=1,2',
      env: [{ name: 'A', value: 'b' }]
    });
  });

  test('with a number of GPUs it is asked for at once, and resolves to the jobs', async () => {
    const { server, commands } = await page();
    const granted = [allocation('a1'), allocation('a2')];
    server.instead.set('jobs', { status: 202, json: { allocations: granted } });
    const sweep = { lr: ['1', '2'] };
    const args = { path: 'deep/train.py', gpus: 2, memory: '4GiB', retries: 1, sweep };
    expect(await commands.execute(CommandIDs.train, { ...args, isPalette: true })).toEqual(granted);
    const job = { run: 'train.py', retries: 1 };
    expect(server.sent).toEqual({
      request: { gpus: 2, memory: '4GiB', folder: 'deep', job },
      sweep
    });
    expect(told()).toEqual(['2 jobs are asked for']);
  });
});

test('no notebook goes to a job', async () => {
  const { server, model, commands } = await page();
  server.allocations = [allocation('a1', { name: 'train', job: job() })];
  await model.refresh();
  for (const command of [CommandIDs.attach, CommandIDs.newNotebook]) {
    expect(commands.isEnabled(command, { allocation: 'a1' })).toBe(false);
    await expect(commands.execute(command, { allocation: 'train' })).rejects.toThrow(
      '"train" is a job: it has no kernel for a notebook to run on.'
    );
    await expect(commands.execute(command, {})).rejects.toThrow('You hold no GPUs');
  }
});
