import { Api, ApiError } from '../api';
import { Server, allocation, refused } from './server';

let server: Server;
let api: Api;

beforeEach(() => {
  server = new Server();
  api = new Api(server.settings);
});

async function refusal(asked: Promise<unknown>): Promise<ApiError> {
  const error: unknown = await asked.then(
    () => null,
    (reason: unknown) => reason
  );
  expect(error).toBeInstanceOf(ApiError);
  return error as ApiError;
}

test('it asks under the base URL, and tells who asks', async () => {
  server.allocations = [allocation('a1')];
  expect(await api.allocations()).toEqual([allocation('a1')]);
  const [request] = server.requests;
  expect(request.url).toMatch(
    /^http:\/\/hub\.example\/user\/ada\/gpufit\/api\/v1\/allocations\?\d+$/
  );
  expect(request.headers.get('Authorization')).toBe('token secret&1');
});

test('a name in a path is escaped', async () => {
  server.instead.set('', { json: {} });
  await api.examine('a/b ?', true);
  await api.diagnosis('a/b ?', 3);
  await api.log('ä#', 10);
  expect(server.asked).toEqual([
    'POST nodes/a%2Fb%20%3F/doctor',
    'GET nodes/a%2Fb%20%3F/doctor?after=3&wait=4',
    'GET allocations/%C3%A4%23/logs?tail=10'
  ]);
});

test('a job is asked for with its sweep, and a log for what is after its mark', async () => {
  const granted = { allocations: [allocation('a1'), allocation('a2')], submission: null };
  server.instead.set('jobs', { status: 202, json: granted });
  const request = { gpus: 1, memory: 0, job: { run: 'train.py' } };
  expect(await api.submit(request, { lr: ['1', '2'] })).toEqual(granted.allocations);
  expect(server.sent).toEqual({ request, sweep: { lr: ['1', '2'] } });
  server.instead.set('', { json: {} });
  await api.logAfter('a1', '000001/2026-01-01T00:00:00Z', 10);
  await api.usage('a1');
  expect(server.asked.slice(-2)).toEqual([
    'GET allocations/a1/logs?after=000001%2F2026-01-01T00%3A00%3A00Z&wait=10',
    'GET allocations/a1/usage'
  ]);
});

test('a job whose folder takes long to copy is asked for until it is there', async () => {
  server.instead.set('jobs', { status: 202, json: { allocations: [], submission: 's/1' } });
  const granted = { allocations: [allocation('a1')], submission: null };
  server.instead.set('submissions', { status: 202, json: granted });
  const request = { gpus: 1, memory: 0, job: { run: 'train.py' } };
  expect(await api.submit(request, {})).toEqual(granted.allocations);
  expect(server.asked).toEqual(['POST jobs', 'GET submissions/s%2F1?wait=4']);
});

test('an answer that nobody wants any more is not waited for', async () => {
  server.instead.set('allocations', new Promise(() => undefined));
  const asking = new AbortController();
  const asked = refusal(api.logAfter('a1', '', 10, asking.signal));
  asking.abort();
  expect((await asked).isUnreachable).toBe(true);
});

test('the clock of the server', async () => {
  const { clock } = await api.about();
  expect(Math.round(clock / 10)).toBe(6); // a minute ahead
});

test('an error of ours is its sentence, with what belongs to it', async () => {
  server.instead.set('allocations', refused(409, 'no-fit', 'no node fits', { stages: [] }));
  const error = await refusal(api.request({ gpus: 9, memory: '1GiB' }));
  expect(error).toMatchObject({ status: 409, code: 'no-fit', message: 'no node fits' });
  expect(error.details).toEqual({ stages: [] });
  expect([error.isMissing, error.isUnreachable]).toEqual([false, false]);
});

test('no such allocation is not: no such extension', async () => {
  const error = await refusal(api.allocation('gone'));
  expect(error).toMatchObject({ status: 404, code: 'not-found', isMissing: false });
});

test.each(['<html>404 : Not Found</html>', '{"message": "Not Found", "reason": null}'])(
  'a server without our extension: %s',
  async text => {
    server.instead.set('', { status: 404, text });
    const error = await refusal(api.about());
    expect(error.isMissing).toBe(true);
    expect(error.message).toContain('does not have the jupyter_gpufit extension');
  }
);

test.each([424, 502, 503, 504])('a proxy without a server behind it: %d', async status => {
  server.instead.set('', { status, text: '<html>starting…</html>' });
  const error = await refusal(api.nodes());
  expect(error).toMatchObject({ status, isUnreachable: true, isMissing: false });
  expect(error.message).toContain(String(status));
});

test('our own 503 is its sentence', async () => {
  server.instead.set('', refused(503, 'unavailable', 'the service has not started yet'));
  const error = await refusal(api.nodes());
  expect(error).toMatchObject({ isUnreachable: false, message: 'the service has not started yet' });
});

test.each([
  refused(403, 'forbidden', 'Forbidden'),
  { status: 403, text: '<html>403</html>' },
  { status: 401, json: { message: 'Unauthorized' } }
])('who is not logged in any more is told to log in', async answer => {
  server.instead.set('', answer);
  const error = await refusal(api.nodes());
  expect(error).toMatchObject({ code: 'forbidden', isUnreachable: false });
  expect(error.message).toContain('Log in and reload the page');
});

test('a 403 with a sentence keeps it', async () => {
  server.instead.set('', refused(403, 'forbidden', "'_xsrf' argument missing from POST"));
  expect((await refusal(api.nodes())).message).toBe("'_xsrf' argument missing from POST");
});

test('a page to log in is no answer', async () => {
  server.instead.set('', { status: 200, text: '<html>Sign in</html>' });
  const error = await refusal(api.nodes());
  expect(error.code).toBe('unexpected');
  expect(error.message).toContain('Something other than the Jupyter server answered');
});

test('any other answer that is none of ours', async () => {
  server.instead.set('', { status: 500, json: null });
  expect(await refusal(api.nodes())).toMatchObject({ status: 500, code: 'unexpected' });
});

test('no network', async () => {
  server.instead.set('', new TypeError('Failed to fetch'));
  const error = await refusal(api.nodes());
  expect(error).toMatchObject({ status: 0, isUnreachable: true });
  expect(error.message).toBe('The Jupyter server does not answer (Failed to fetch).');
});

test('a connection that says nothing is given up', async () => {
  jest.useFakeTimers();
  try {
    server.instead.set('', new Promise<never>(() => undefined));
    const asked = refusal(api.nodes());
    await jest.advanceTimersByTimeAsync(60_000);
    expect((await asked).message).toBe('The Jupyter server does not answer (nothing in 60 s).');
    expect(jest.getTimerCount()).toBe(0);
  } finally {
    jest.useRealTimers();
  }
});
