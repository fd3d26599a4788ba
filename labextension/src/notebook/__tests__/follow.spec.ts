import type { Session } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { attachment, settled } from '../../__tests__/server';
import type { GpuFitModel } from '../../model';
import type { Attachment } from '../../wire';
import { Follower, behind } from '../follow';

/** The page's sessions, and the server's, which it sees when it looks. */
class Sessions {
  readonly runningChanged = new Signal<this, void>(this);
  server: Record<string, string> = { s1: 'local' };
  page: Record<string, string> = { s1: 'local' };
  looks = 0;
  /** What a look finds that was on its way already. */
  old: Record<string, string> | null = null;
  broken = false;

  *running(): IterableIterator<Session.IModel> {
    for (const [id, kernel] of Object.entries(this.page)) {
      yield { id, name: '', path: '', type: 'notebook', kernel: { id: kernel, name: '' } };
    }
  }

  async refreshRunning(): Promise<void> {
    this.looks += 1;
    await Promise.resolve();
    if (this.broken) {
      throw new Error('Failed to fetch');
    }
    this.become(this.old ?? this.server);
    this.old = null;
  }

  become(sessions: Record<string, string>): void {
    if (JSON.stringify(sessions) !== JSON.stringify(this.page)) {
      this.page = { ...sessions };
      this.runningChanged.emit();
    }
  }
}

let sessions: Sessions;
let follower: Follower;
let events: { readonly attachmentChanged: Signal<object, Attachment> };

beforeEach(() => {
  sessions = new Sessions();
  events = { attachmentChanged: new Signal<object, Attachment>({}) };
  follower = new Follower(
    events as unknown as GpuFitModel,
    sessions as unknown as Session.IManager
  );
});

function event(kernel: string, state: Attachment['state'] = 'attached'): void {
  events.attachmentChanged.emit(
    attachment('s1', { state, kernel_id: kernel, local_kernel_id: 'local' })
  );
}

test('it looks at once when a notebook is attached, and when it is detached', async () => {
  sessions.server = { s1: 'remote' };
  event('remote');
  await follower.follow();
  expect(sessions.page).toEqual({ s1: 'remote' });
  sessions.server = { s1: 'local' };
  event('local', 'detached');
  await follower.follow();
  expect(sessions.page).toEqual({ s1: 'local' });
  expect(sessions.looks).toBe(2);
});

test('it does not look when nothing is to be followed', async () => {
  event('local', 'waiting');
  await settled();
  expect(sessions.looks).toBe(0);
});

test('an answer from before the change is not taken for the last word', async () => {
  sessions.server = { s1: 'remote' };
  sessions.old = { s1: 'local' };
  event('remote');
  await follower.follow();
  expect(sessions.page).toEqual({ s1: 'remote' });
  sessions.become({ s1: 'local' }); // one that was on its way for long
  await settled();
  expect(sessions.page).toEqual({ s1: 'remote' });
});

test('a kernel that somebody chose meanwhile is not fought', async () => {
  sessions.server = { s1: 'third' };
  event('remote');
  await follower.follow();
  expect(sessions.page).toEqual({ s1: 'third' });
  expect(sessions.looks).toBeLessThan(5);
  const { looks } = sessions;
  sessions.become({ s1: 'fourth' });
  await settled();
  expect(sessions.looks).toBe(looks);
});

test('a server that does not answer is left to the page', async () => {
  sessions.broken = true;
  sessions.server = { s1: 'remote' };
  event('remote');
  await follower.follow();
  expect(sessions.looks).toBe(1);
  sessions.broken = false;
  await follower.follow();
  expect(sessions.page).toEqual({ s1: 'remote' });
});

test('sessions that are gone are not behind', () => {
  const expected = new Map([
    ['s1', 'remote'],
    ['s2', 'remote']
  ]);
  expect(behind(expected, sessions.running())).toEqual(['s1']);
  expect(behind(new Map(), sessions.running())).toEqual([]);
});
