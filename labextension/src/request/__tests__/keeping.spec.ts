import { StateDB } from '@jupyterlab/statedb';
import { nullTranslator } from '@jupyterlab/translation';
import { Server } from '../../__tests__/server';
import { Api } from '../../api';
import { Feed } from '../../feed';
import { GpuFitModel } from '../../model';
import { Settings } from '../../settings';
import { Draft } from '../draft';
import { keep } from '../keeping';

let state: StateDB;
let model: GpuFitModel;

beforeEach(() => {
  jest.useFakeTimers();
  state = new StateDB();
  const { settings } = new Server();
  model = new GpuFitModel(new Api(settings), new Feed(settings));
});

afterEach(() => {
  model.dispose();
  jest.useRealTimers();
});

async function page(): Promise<Draft> {
  const draft = new Draft(model, new Settings(), nullTranslator.load(''));
  await keep(draft, state);
  return draft;
}

test('what is written is there again, but for the name, which was for one allocation', async () => {
  const first = await page();
  first.change({ gpus: '2', each: true, sizes: ['4GiB', '8GiB'], name: 'train' });
  await jest.advanceTimersByTimeAsync(500);
  const second = await page();
  expect(second.form).toEqual({ ...first.form, name: '' });
});

test('of a job nothing is kept: its variables may be secrets', async () => {
  const first = await page();
  first.run.open({ what: 'train.py', env: [{ name: 'KEY', value: 'secret' }] });
  first.change({ gpus: '2' });
  await jest.advanceTimersByTimeAsync(500);
  expect(JSON.stringify(await state.toJSON())).not.toMatch(/secret|train/);
  const second = await page();
  expect([second.form.gpus, second.run.form]).toEqual(['2', null]);
});

test('once it is reset nothing is kept: the settings count again', async () => {
  const first = await page();
  first.change({ gpus: '2' });
  await jest.advanceTimersByTimeAsync(500);
  first.reset();
  await jest.advanceTimersByTimeAsync(500);
  expect((await page()).isInitial).toBe(true);
  expect((await state.list('jupyter-gpufit')).ids).toEqual([]);
});

test.each([[{ gpus: 2 }], [['x']], ['2'], [{ gpus: '2', sizes: [1] }]])(
  'what another version has kept is left: %j',
  async kept => {
    await state.save('jupyter-gpufit:form', kept);
    expect((await page()).isInitial).toBe(true);
  }
);
