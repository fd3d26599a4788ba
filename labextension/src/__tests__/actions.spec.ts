import type { KernelSpec } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { Actions, localSpec, type IActionsOptions } from '../actions';
import { Api } from '../api';
import { Feed } from '../feed';
import { GpuFitModel } from '../model';
import { allocationLine, cellOf } from '../notebook/drag';
import { Server, allocation, attachment, refused } from './server';

function specs(first: string, ...names: string[]): KernelSpec.ISpecModels {
  const spec = (name: string) => ({
    name,
    metadata: name.startsWith('gpu')
      ? { kernel_provisioner: { provisioner_name: 'gpufit-provisioner' } }
      : {}
  });
  const kernelspecs = Object.fromEntries([first, ...names].map(name => [name, spec(name)]));
  return { default: first, kernelspecs } as unknown as KernelSpec.ISpecModels;
}

test.each([
  [specs('ir', 'python3'), 'ir'],
  [specs('gpufit', 'python3'), 'python3'],
  [specs('gpufit', 'gpu-too', 'julia'), 'julia'],
  [specs('gpufit'), null],
  [null, null]
])('a new notebook begins with a kernel that holds no GPUs', (known, name) => {
  expect(localSpec(known)).toBe(name);
});

test('the cell of an allocation comes back to it by name', () => {
  const held = allocation('a1', { name: 'train', request: { gpus: 2, memory: 2 ** 34 } });
  expect(cellOf(allocationLine(held))).toBe(
    '%load_ext jupyter_gpufit\n%gpufit request 2 --memory 16GiB --name train'
  );
});

describe('a request for the notebook at hand', () => {
  let server: Server;
  let model: GpuFitModel;

  beforeEach(() => {
    server = new Server();
    model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
    server.instead.set('allocations', { json: allocation('a1') });
  });

  afterEach(() => model.dispose());

  /** In a notebook whose session is `first`, or gets to be `then` once somebody chooses a kernel. */
  function actions(first: string | null, then: string | null, path = 'deep/a.ipynb'): Actions {
    const session = (id: string | null) => (id === null ? null : { id, kernel: { id: 'k0' } });
    const sessionContext = {
      session: session(first),
      initialize: () => Promise.resolve(false),
      startKernel: () => Promise.resolve(true)
    };
    const selectKernel = () => {
      sessionContext.session = session(then);
      return Promise.resolve();
    };
    const panel = { sessionContext, context: { path } };
    return new Actions({
      model,
      tracker: { currentWidget: panel },
      services: { contents: { localPath: (path: string) => path.replace(/^RTC:/, '') } },
      dialogs: { selectKernel },
      trans: nullTranslator.load('')
    } as unknown as IActionsOptions);
  }

  test('is for its session, whether that runs by now or not', async () => {
    const waits = attachment('s1', { state: 'waiting' });
    server.instead.set('allocations/a1/attach', { json: waits });
    await actions('s1', null).request({ gpus: 1, memory: 0 }, 'attach');
    expect(server.asked).toEqual(['POST allocations', 'POST allocations/a1/attach']);
    expect(model.attachments.get('s1')).toEqual(waits);
  });

  test.each([
    ['RTC:deep/er/a.ipynb', 'deep/er', 'deep/er/a.ipynb'],
    ['a.ipynb', '.', 'a.ipynb']
  ])('says which one it is for, and its folder', async (path, folder, notebook) => {
    await actions('s1', null, path)
      .request({ gpus: 1, memory: 0 }, 'attach')
      .catch(() => undefined);
    const [{ init }] = server.requests as unknown as { init: RequestInit }[];
    const asked = { gpus: 1, memory: 0, folder, notebook };
    expect(JSON.parse(init.body as string)).toEqual(asked);
  });

  test.each([
    ['.', 'train.py', 'train.py', {}],
    ['deep', 'a.ipynb', 'deep/a.ipynb', { notebook: 'deep/a.ipynb' }],
    ['/elsewhere', 'a.ipynb', null, {}],
    ['deep', "'my b.ipynb'", 'deep/my b.ipynb', { notebook: 'deep/my b.ipynb' }],
    ['.', 'python train.py', null, {}]
  ])('a job: what is open in %s is saved before %s runs', async (folder, run, saved, more) => {
    const asker = actions('s1', null);
    const done: string[] = [];
    asker.save = path => Promise.resolve(void done.push(path));
    server.instead.set('jobs', { json: { allocations: [allocation('a1')] } });
    const request = { gpus: 1, memory: 0, folder, job: { run } };
    const [granted] = await asker.submit(request, {});
    expect(done).toEqual(saved === null ? [] : [saved]);
    expect(server.sent).toEqual({ request: { ...more, ...request }, sweep: {} });
    expect(model.allocations.get('a1')).toEqual(granted);
  });

  test('asks which kernel, if there is none to come back to', async () => {
    server.instead.set('allocations/a1/attach', { json: attachment('s2') });
    await actions(null, 's2').request({ gpus: 1, memory: 0 }, 'attach');
    expect(server.asked).toContain('POST allocations/a1/attach');
  });

  test('holds nothing if there still is none', async () => {
    const asked = actions(null, null).request({ gpus: 1, memory: 0 }, 'attach');
    await expect(asked).rejects.toThrow('notebook "a.ipynb" has no kernel to come back to');
    expect(server.asked).toEqual([]);
  });

  test('says what is held if only attaching goes wrong', async () => {
    server.instead.set('allocations/a1/attach', refused(404, 'not-found', 'no running notebook'));
    const asked = actions('s1', null).request({ gpus: 1, memory: 0 }, 'attach');
    await expect(asked).rejects.toThrow(
      '"a1" is asked for, but no notebook is attached: no running notebook'
    );
  });

  test('is refused as the server says it', async () => {
    server.instead.set('allocations', refused(409, 'no-fit', 'No node has it.', { nearest: null }));
    const asked = actions('s1', null).request({ gpus: 1, memory: 0 }, 'attach');
    await expect(asked).rejects.toMatchObject({ code: 'no-fit', message: 'No node has it.' });
  });
});
