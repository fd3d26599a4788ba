import { Feed, type FeedEvent } from '../feed';
import { Server } from './server';

let server: Server;
let feed: Feed;
let heard: (string | FeedEvent)[];

beforeEach(() => {
  jest.useFakeTimers();
  see(true);
  server = new Server();
  feed = new Feed(server.settings);
  heard = [];
  feed.opened.connect(() => void heard.push('opened'));
  feed.closed.connect(() => void heard.push('closed'));
  feed.event.connect((_, event) => void heard.push(event));
});

afterEach(() => {
  feed.dispose();
  expect(jest.getTimerCount()).toBe(0);
  jest.useRealTimers();
});

/** Whether the page is in sight. */
function see(visible: boolean): void {
  Object.defineProperty(document, 'hidden', { value: !visible, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}

/** How many attempts there are in that many ms, when each fails at once. */
function attempts(ms: number): number {
  const before = server.sockets.length;
  for (let at = 0; at < ms; at += 100) {
    jest.advanceTimersByTime(100);
    if (!server.socket.isClosed) {
      server.close();
    }
  }
  return server.sockets.length - before;
}

test('it subscribes under the base URL, with the token where it is wanted', () => {
  expect(server.socket.url).toBe('ws://hub.example/user/ada/api/events/subscribe?token=secret%261');
  feed.dispose();
  feed = new Feed({ ...server.settings, appendToken: false });
  expect(server.socket.url).toBe('ws://hub.example/user/ada/api/events/subscribe');
});

test('it tells events of ours, and no others', () => {
  server.open();
  server.tell('allocation', { id: 'a1', version: 3 });
  const others = ['{"schema_id": "https://events.jupyter.org/x/v1"}', 'no JSON', 'null', '{}', '7'];
  others.forEach(data => server.socket.onmessage?.({ data }));
  server.tell('nodes', { changed: [], removed: ['n1'] });
  expect(heard).toEqual([
    'opened',
    { kind: 'allocation', data: { id: 'a1', version: 3 } },
    { kind: 'nodes', data: { changed: [], removed: ['n1'] } }
  ]);
});

test('a connection that is lost is made again', () => {
  server.open();
  server.close();
  expect(server.sockets).toHaveLength(1); // not in the same moment
  jest.advanceTimersByTime(1500);
  expect(server.sockets).toHaveLength(2);
  server.open();
  expect(heard).toEqual(['opened', 'closed', 'opened']);
});

test('a server that is gone is asked less and less often', () => {
  server.close();
  const [early, later] = [attempts(30_000), attempts(600_000)];
  expect(early).toBeGreaterThan(3);
  expect(early).toBeLessThan(10);
  expect(later).toBeGreaterThan(600 / 30); // but for ever
  expect(later).toBeLessThan(600 / 10);
});

test('one that closes as soon as it has opened, too', () => {
  let opened = 0;
  for (let at = 0; at < 300_000; at += 100) {
    jest.advanceTimersByTime(100);
    if (!server.socket.isClosed) {
      server.open();
      server.close();
      opened += 1;
    }
  }
  expect(opened).toBeLessThan(40);
});

test('after a long life the first attempt is soon again', () => {
  server.close();
  attempts(120_000);
  while (server.socket.isClosed) {
    jest.advanceTimersByTime(100);
  }
  server.open();
  jest.advanceTimersByTime(60_000);
  server.close();
  const before = server.sockets.length;
  jest.advanceTimersByTime(1500);
  expect(server.sockets).toHaveLength(before + 1);
});

test('an attempt that nobody answers is given up', () => {
  jest.advanceTimersByTime(15_000);
  expect(heard).toEqual(['closed']);
  expect(server.socket.isClosed).toBe(true);
  jest.advanceTimersByTime(1500);
  expect(server.sockets).toHaveLength(2);
});

test('a socket that may not even be made is tried again, too', () => {
  feed.dispose();
  let made = 0;
  const WebSocket = function (): never {
    made += 1;
    throw new Error('refused by policy');
  };
  feed = new Feed({ ...server.settings, WebSocket: WebSocket as never });
  jest.advanceTimersByTime(60_000);
  expect(made).toBeGreaterThan(3);
  expect(made).toBeLessThan(10);
});

test('nobody sees the page: nothing is tried, until somebody does', () => {
  server.open();
  see(false);
  server.close();
  jest.advanceTimersByTime(600_000);
  expect(server.sockets).toHaveLength(1);
  see(true);
  expect(server.sockets).toHaveLength(2);
});

test('out of sight, a connection that is there stays', () => {
  server.open();
  see(false);
  jest.advanceTimersByTime(600_000);
  see(true);
  expect(server.sockets).toHaveLength(1);
  expect(server.socket.isClosed).toBe(false);
});

test('after a sleep the connection is made anew, whatever the socket says', () => {
  server.open();
  jest.setSystemTime(Date.now() + 3_600_000); // no timer has run meanwhile
  jest.advanceTimersByTime(10_000);
  expect(server.sockets).toHaveLength(2);
  expect(server.sockets[0].isClosed).toBe(true);
  server.open();
  expect(heard).toEqual(['opened', 'opened']); // what was missed is asked for; nothing was seen to break
});

test('a network that is back is used at once', () => {
  server.close();
  attempts(60_000);
  const before = server.sockets.length;
  window.dispatchEvent(new Event('online'));
  expect(server.sockets).toHaveLength(before + 1);
});

test('a disposed one is silent, and holds nothing', () => {
  server.open();
  const { socket } = server;
  feed.dispose();
  expect(socket.isClosed).toBe(true);
  expect([socket.onopen, socket.onclose, socket.onmessage]).toEqual([null, null, null]);
  window.dispatchEvent(new Event('online'));
  see(true);
  jest.advanceTimersByTime(600_000);
  expect(server.sockets).toHaveLength(1);
  expect(heard).toEqual(['opened']);
});
