import { Api } from '../api';
import { Feed } from '../feed';
import { GpuFitModel } from '../model';
import type { Attachment, Node, Warning } from '../wire';
import { Server, allocation, attachment, node, refused, settled } from './server';

let server: Server;
let model: GpuFitModel;
let spies: jest.SpyInstance<void, unknown[]>[];

beforeEach(() => {
  jest.useFakeTimers();
  server = new Server();
  server.nodes = [node('n1'), node('n2')];
  server.allocations = [allocation('a1', { version: 5 })];
  server.attachments = [attachment('s1')];
  model = new GpuFitModel(new Api(server.settings), new Feed(server.settings));
  spies = [jest.spyOn(console, 'error'), jest.spyOn(console, 'warn')];
});

afterEach(() => {
  model.dispose();
  expect(jest.getTimerCount()).toBe(0);
  spies.forEach(spy => {
    expect(spy).not.toHaveBeenCalled();
    spy.mockRestore();
  });
  jest.useRealTimers();
});

async function connected(): Promise<void> {
  server.open();
  await settled();
  expect(model.connection).toBe('connected');
}

async function later(ms: number): Promise<void> {
  await jest.advanceTimersByTimeAsync(ms);
}

function states(): Record<string, string> {
  return Object.fromEntries([...model.allocations.values()].map(({ id, state }) => [id, state]));
}

/** A question that is answered when the test says so. */
function held(path: string): (json: unknown) => Promise<void> {
  let answer: (json: unknown) => void = () => undefined;
  server.instead.set(path, new Promise(resolve => (answer = json => resolve({ json }))));
  return async json => {
    server.instead.delete(path);
    answer(json);
    await settled();
  };
}

describe('what is known', () => {
  test('all of it, once the events come', async () => {
    expect(model.connection).toBe('connecting');
    await connected();
    expect([...model.nodes.keys()]).toEqual(['n1', 'n2']);
    expect(states()).toEqual({ a1: 'running' });
    expect(model.attachments.get('s1')?.state).toBe('attached');
    expect(model.about?.owner).toBe('ada');
    expect(Math.round((model.now() - Date.now() / 1000) / 10)).toBe(6); // the server's clock
    expect(server.asked).toEqual(['GET about', 'GET nodes', 'GET allocations', 'GET attachments']);
    await later(3_600_000);
    expect(server.asked).toHaveLength(4); // and never asked for again
  });

  test('events change it', async () => {
    await connected();
    const { nodes } = model;
    server.tell('nodes', { changed: [node('n3')], removed: ['n1'] });
    expect([...model.nodes.keys()]).toEqual(['n2', 'n3']);
    expect(nodes.size).toBe(2); // what a view has is not changed under it
    const stored = [{ name: 'llama-7b', size: 1, modified: null }];
    const brief: Partial<Node> = node('n2', { driver: '560' });
    delete brief.models;
    server.tell('nodes', { changed: [node('n2', { models: stored })], removed: [] });
    server.tell('nodes', { changed: [brief], removed: [] }); // its models are as before
    expect(model.nodes.get('n2')).toEqual({ ...brief, models: stored });
    server.tell('nodes', { changed: [], removed: [], inventory_error: 'line 1 is no TOML' });
    expect(model.inventoryError).toBe('line 1 is no TOML');
    server.tell('nodes', { changed: [], removed: [], inventory_error: null });
    expect(model.inventoryError).toBeNull();
    server.tell('allocation', allocation('a0', { created: 1 }));
    server.tell('allocation', allocation('a1', { version: 6, state: 'stopping' }));
    expect(Object.entries(states())).toEqual([
      ['a0', 'running'],
      ['a1', 'stopping']
    ]);
    const warnings: Warning[] = [];
    model.warned.connect((_, warning) => void warnings.push(warning));
    server.tell('warning', { allocation: 'a1', name: 'a1', kind: 'time', message: 'soon', at: 1 });
    expect(warnings.map(({ message }) => message)).toEqual(['soon']);
  });

  test('an older event changes nothing', async () => {
    await connected();
    server.tell('allocation', allocation('a1', { version: 8, state: 'ended' }));
    server.tell('allocation', allocation('a1', { version: 7, state: 'stopping' }));
    expect(states()).toEqual({ a1: 'ended' });
  });

  test("somebody else's allocation is nobody's business", async () => {
    await connected();
    server.tell('allocation', allocation('b1', { owner: 'bob' }));
    expect(states()).toEqual({ a1: 'running' });
  });

  test('what happens while it is asked for is not lost', async () => {
    const answer = held('allocations');
    server.open();
    await settled();
    server.tell('allocation', allocation('a1', { version: 9, state: 'ended' }));
    server.tell('allocation', allocation('a2', { created: 2000 }));
    await answer({ allocations: [allocation('a1', { version: 5 })] });
    expect(states()).toEqual({ a1: 'ended', a2: 'running' });
  });

  test('what a person does while it is asked for is not lost', async () => {
    await connected();
    const answer = held('allocations');
    const again = model.refresh();
    await settled();
    const post = held('allocations');
    const asked = model.request({ gpus: 1, memory: '1GiB' });
    await settled();
    await post(allocation('a2', { state: 'pending', created: 2000 }));
    expect((await asked).id).toBe('a2');
    expect(states()).toEqual({ a1: 'running', a2: 'pending' });
    await answer({ allocations: [allocation('a1', { version: 5 })] });
    await again;
    expect(states()).toEqual({ a1: 'running', a2: 'pending' });
  });

  test('the later of two answers counts', async () => {
    const first = held('nodes');
    server.open();
    await settled();
    const second = held('nodes');
    void model.refresh();
    await settled();
    await second({ nodes: [node('new')], inventory_error: null });
    await first({ nodes: [node('old')], inventory_error: null });
    expect([...model.nodes.keys()]).toEqual(['new']);
    expect(model.connection).toBe('connected');
  });

  test('of those that have ended, as many as a sweep may have are kept, until they are dismissed', async () => {
    await connected();
    for (let each = 0; each < 270; each++) {
      server.tell('allocation', allocation(`e${each}`, { created: each, state: 'ended' }));
    }
    expect(Object.keys(states())).toHaveLength(257);
    expect(states()).not.toHaveProperty('e13');
    expect(states()).toHaveProperty('e14');
    await model.refresh();
    expect(Object.keys(states())).toHaveLength(257);
    model.dismiss('e269');
    model.dismiss('a1'); // lives: it stays
    expect(Object.keys(states())).toHaveLength(256);
    expect(states()).toHaveProperty('a1');
  });

  test('one that is dismissed while everything is asked for does not come back', async () => {
    await connected();
    server.tell('allocation', allocation('e1', { state: 'ended' }));
    server.allocations = [];
    const answer = held('allocations/a1');
    const refreshed = model.refresh();
    await settled();
    model.dismiss('e1');
    await answer(allocation('a1', { state: 'ended', version: 9 }));
    await refreshed;
    expect(Object.keys(states())).toEqual(['a1']);
  });
});

describe('attachments', () => {
  let told: Attachment[];

  beforeEach(() => {
    told = [];
    model.attachmentChanged.connect((_, one) => void told.push(one));
  });

  test('a detach of another allocation is an old one', async () => {
    await connected();
    server.tell('attachment', attachment('s1', { allocation: 'a0', state: 'detached' }));
    expect(model.attachments.has('s1')).toBe(true);
    server.tell('attachment', attachment('s1', { state: 'detached' }));
    expect(model.attachments.has('s1')).toBe(false);
  });

  test('one that is to move is attached to the former as long as it waits', async () => {
    const [left, waiting] = [
      attachment('s1', { allocation: 'a1' }),
      attachment('s1', { allocation: 'a2', state: 'waiting' })
    ];
    await connected();
    const now = (): string[] =>
      [...model.attachments.values()].map(one => `${one.allocation} ${one.state}`);
    server.tell('attachment', waiting);
    expect(now()).toEqual(['a2 waiting']);
    server.tell('attachment', { ...waiting, state: 'detached' }); // not after all
    expect(now()).toEqual(['a1 attached']);

    server.attachments = [waiting, left]; // likewise for a page that is loaded meanwhile
    await model.refresh();
    expect(now()).toEqual(['a2 waiting']);
    server.tell('attachment', { ...waiting, state: 'attached' });
    server.tell('attachment', { ...left, state: 'detached' });
    expect(now()).toEqual(['a2 attached']);
    server.tell('attachment', { ...waiting, state: 'detached' });
    expect(now()).toEqual([]);
  });

  test('an answer that comes after its events is no news', async () => {
    await connected();
    const answer = held('allocations/a1/attach');
    const asked = model.attach('a1', 's2');
    await settled();
    server.tell('attachment', attachment('s2', { state: 'waiting' }));
    server.tell('attachment', attachment('s2', { state: 'detached' }));
    await answer(attachment('s2', { state: 'waiting' }));
    await asked;
    expect(model.attachments.has('s2')).toBe(false);
  });

  test('an answer that comes before its events is seen at once', async () => {
    await connected();
    server.instead.set('allocations/a1/attach', { json: attachment('s2', { state: 'waiting' }) });
    await model.attach('a1', 's2');
    expect(model.attachments.get('s2')?.state).toBe('waiting');
  });

  test('what has changed while nothing was heard is told, and nothing else', async () => {
    server.attachments = [attachment('s1'), attachment('s2'), attachment('s3')];
    await connected();
    expect(told.map(({ session }) => session)).toEqual(['s1', 's2', 's3']);
    told.length = 0;
    server.attachments = [attachment('s1'), attachment('s2', { kernel_id: 'k9' })];
    server.close();
    await later(1500);
    await connected();
    expect(told.map(({ session, state, kernel_id }) => [session, state, kernel_id])).toEqual([
      ['s3', 'detached', 'k1'],
      ['s2', 'attached', 'k9']
    ]);
  });
});

describe('a server that goes away', () => {
  test('and comes again: what was missed is there, and what has ended says how', async () => {
    server.allocations.push(allocation('a2'), allocation('a3'));
    await connected();
    server.die();
    expect(model.connection).toBe('reconnecting');
    expect(model.problem).toContain('does not answer');
    await later(1500);
    expect(states()).toEqual({ a1: 'running', a2: 'running', a3: 'running' }); // as it was

    const end = { state: 'ended', reason: 'idle', message: 'it did nothing' } as const;
    server.allocations = [
      allocation('a2', { version: 1 }),
      allocation('a1', { version: 6, ...end })
    ];
    server.instead.clear();
    server.open();
    await settled();
    expect(model.connection).toBe('connected');
    expect(model.problem).toBe('');
    expect(states()).toEqual({ a1: 'ended', a2: 'running' }); // nobody knows of a3
    expect(model.allocations.get('a1')?.message).toBe('it did nothing');
  });

  test('while its service starts, its sentence is shown, and it is asked again', async () => {
    await connected();
    server.die();
    server.instead.set('', refused(503, 'unavailable', 'the service has not started yet'));
    await later(1500);
    server.open();
    await settled();
    expect(model.connection).toBe('reconnecting');
    expect(model.problem).toBe('the service has not started yet');
    server.instead.clear();
    await later(5000);
    expect(model.connection).toBe('connected');
  });

  test('a service that never starts is asked less and less often', async () => {
    server.instead.set('', refused(503, 'unavailable', 'gpufit did not start: no such file'));
    server.open();
    await settled();
    expect(model.connection).toBe('connecting');
    expect(model.problem).toBe('gpufit did not start: no such file');
    await later(600_000);
    expect(server.asked.length).toBeGreaterThan(15);
    expect(server.asked.length).toBeLessThan(30);
    expect(new Set(server.asked)).toEqual(new Set(['GET about']));
  });

  test('a hub that stopped it', async () => {
    await connected();
    server.instead.set('', { status: 424, text: '<html>not running</html>' });
    server.close();
    await settled();
    expect(model.connection).toBe('reconnecting');
    expect(model.problem).toContain('424');
    const before = server.asked.length;
    for (let second = 0; second < 600; second++) {
      await later(1000);
      if (!server.socket.isClosed) {
        server.close();
      }
    }
    expect(server.asked.length - before).toBeLessThan(60);
    server.instead.clear();
    while (server.socket.isClosed) {
      await later(1000);
    }
    await connected();
  });

  test('who is logged out is told so', async () => {
    await connected();
    server.instead.set('', refused(403, 'forbidden', 'Forbidden'));
    server.close();
    await settled();
    expect(model.connection).toBe('refused');
    expect(model.problem).toContain('Log in');
  });

  test('where events do not pass, what REST says is shown, and that it may be old', async () => {
    server.close();
    await settled();
    expect(model.connection).toBe('reconnecting');
    expect(model.problem).toContain('tells of no changes');
    expect(model.nodes.size).toBe(2);
    server.nodes = [];
    await later(1500);
    server.close();
    await settled();
    expect(model.nodes.size).toBe(0);
  });

  test('who tries again does not wait', async () => {
    await connected();
    server.die();
    for (let second = 0; second < 60; second++) {
      await later(1000);
      if (!server.socket.isClosed) {
        server.close();
      }
    }
    const before = server.sockets.length;
    server.instead.clear();
    await model.refresh();
    expect(server.sockets).toHaveLength(before + 1);
    expect(model.problem).toContain('tells of no changes');
    await connected();
  });

  test('events of which the rest is not known yet are not kept', async () => {
    server.instead.set('', refused(503, 'unavailable', 'not yet'));
    server.open();
    await settled();
    server.tell('allocation', allocation('a9'));
    expect(states()).toEqual({});
    server.instead.clear();
    await later(5000);
    expect(states()).toEqual({ a1: 'running' }); // what is asked for has it, if it is still there
  });
});

describe('a server without our extension', () => {
  beforeEach(() => {
    server.instead.set('', { status: 404, text: '<html>404 : Not Found</html>' });
  });

  test('is asked once, and says so in a sentence', async () => {
    server.open();
    await settled();
    expect(model.connection).toBe('missing');
    expect(model.problem).toContain('does not have the jupyter_gpufit extension');
    await later(3_600_000);
    expect(server.asked).toEqual(['GET about']);
  });

  test('that goes away is not asked', async () => {
    server.open();
    await settled();
    server.close();
    await later(1500);
    server.close();
    await settled();
    expect(model.connection).toBe('missing');
    expect(server.asked).toEqual(['GET about']);
  });

  test('that comes again with it is found', async () => {
    server.open();
    await settled();
    server.close();
    server.instead.clear();
    await later(1500);
    await connected();
    expect(model.nodes.size).toBe(2);
  });

  test('that had it: nothing is known any more', async () => {
    server.instead.clear();
    await connected();
    server.close();
    server.instead.set('', { status: 404, text: 'Not Found' });
    await later(1500);
    server.open();
    await settled();
    expect(model.connection).toBe('missing');
    expect([model.nodes.size, model.allocations.size, model.attachments.size]).toEqual([0, 0, 0]);
    expect(model.about).toBeNull();
  });
});

test('a disposed one asks nothing, and tells nothing', async () => {
  const answer = held('nodes');
  server.open();
  await settled();
  const changed = jest.fn();
  model.connectionChanged.connect(changed);
  model.dispose();
  await answer({ nodes: [], inventory_error: null });
  server.open();
  await later(600_000);
  expect(changed).not.toHaveBeenCalled();
  expect(server.asked).toHaveLength(4);
  expect(model.isDisposed).toBe(true);
});

test('what had ended before is shown in its place, and told when it is dismissed', async () => {
  await connected();
  const early = allocation('early', { state: 'ended', created: 1, ended: 2 });
  model.recall([early, allocation('a1', { state: 'ended' })]);
  expect(states()).toEqual({ early: 'ended', a1: 'running' });
  expect([...model.allocations.keys()]).toEqual(['early', 'a1']);
  const dismissed: string[] = [];
  model.dismissed.connect((_, id) => void dismissed.push(id));
  model.dismiss('a1'); // it runs
  model.dismiss('early');
  expect(dismissed).toEqual(['early']);
  await model.refresh();
  expect(states()).toEqual({ a1: 'running' });
});
