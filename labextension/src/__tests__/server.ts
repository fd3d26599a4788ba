/**
 * A Jupyter server as the page sees it: the network is what these tests stand in for. It answers REST from what it is
 * told to have, and its socket opens, closes and tells when a test says so.
 */

import type { ServerConnection } from '@jupyterlab/services';
import type { About, Allocation, Attachment, Gpu, Job, Node } from '../wire';

export const BASE = 'http://hub.example/user/ada/';
const API = `${BASE}gpufit/api/v1/`;
const SCHEMA = 'https://schema.jupyter.org/jupyter_gpufit/';

/** A websocket of which the test is the other end. */
export class Socket {
  onopen: (() => void) | null = null;
  onclose: (() => void) | null = null;
  onmessage: ((message: { data: unknown }) => void) | null = null;
  isClosed = false;

  constructor(readonly url: string) {}

  close(): void {
    this.isClosed = true;
  }
}

type Answer = { status?: number; text?: string; json?: unknown } | Error;

export class Server {
  about: About = {
    version: '0.1.0',
    owner: 'ada',
    policy: 'best-fit',
    image: null,
    images: [],
    quota: null,
    time: null
  };
  nodes: Node[] = [];
  allocations: Allocation[] = [];
  /** Those that had ended before the page came. */
  ended: Allocation[] = [];
  attachments: Attachment[] = [];

  /** What is answered instead, by path (the longest beginning that fits wins; `''` is all of them). */
  readonly instead = new Map<string, Answer | Promise<Answer>>();
  readonly sockets: Socket[] = [];
  /** `GET nodes`, … in the order they came. */
  readonly asked: string[] = [];
  readonly requests: Request[] = [];

  /** What was sent with the latest question. */
  get sent(): unknown {
    const { init } = this.requests[this.requests.length - 1] as unknown as { init: RequestInit };
    return JSON.parse(init.body as string);
  }

  get socket(): Socket {
    return this.sockets[this.sockets.length - 1];
  }

  get settings(): ServerConnection.ISettings {
    const { sockets } = this;
    const WebSocket = class extends Socket {
      constructor(url: string) {
        super(url);
        sockets.push(this);
      }
    };
    // jsdom has none of these.
    const Request = class {
      readonly headers = new Map<string, string>() as unknown as Headers;
      constructor(
        readonly url: string,
        readonly init: RequestInit
      ) {
        Object.assign(this.headers, {
          append: (key: string, value: string) => this.headers.set(key, value)
        });
      }
    };
    return {
      init: { cache: 'no-store', credentials: 'same-origin' },
      baseUrl: BASE,
      wsUrl: BASE.replace('http', 'ws'),
      appendToken: true,
      token: 'secret&1',
      fetch: (request: Request) => this.answer(request),
      Request,
      WebSocket
    } as unknown as ServerConnection.ISettings;
  }

  open(): void {
    this.socket.onopen?.();
  }

  close(): void {
    this.socket.onclose?.();
  }

  tell(kind: string, data: object): void {
    const message = { schema_id: `${SCHEMA}${kind}/v1`, ...data };
    this.socket.onmessage?.({ data: JSON.stringify(message) });
  }

  /** It is gone, and what is before it answers nothing. */
  die(): void {
    this.instead.set('', new TypeError('Failed to fetch'));
    this.close();
  }

  private async answer(request: Request): Promise<Response> {
    const { method, signal } = (request as unknown as { init: RequestInit }).init;
    const path = request.url.slice(API.length).replace(/[?&]\d+$/, ''); // against caches
    this.asked.push(`${method ?? 'GET'} ${path}`);
    this.requests.push(request);
    const aborted = new Promise<Error>(resolve => {
      signal?.addEventListener('abort', () => resolve(new Error('aborted')));
    });
    const begin = [...this.instead.keys()].filter(key => path.startsWith(key));
    const known = begin.sort((one, other) => other.length - one.length)[0] as string | undefined;
    const answer =
      known === undefined
        ? this.usual(path)
        : await Promise.race([this.instead.get(known) as Answer | Promise<Answer>, aborted]);
    if (answer instanceof Error) {
      throw answer;
    }
    const { status = 200, json, text = JSON.stringify(json) } = answer;
    return {
      status,
      statusText: { 200: 'OK', 503: 'Service Unavailable' }[status] ?? '',
      ok: status < 300,
      headers: new Map([['Date', new Date(Date.now() + 60_000).toUTCString()]]),
      text: () => Promise.resolve(text)
    } as unknown as Response;
  }

  private usual(path: string): Answer {
    const one = this.allocations.find(({ id }) => path === `allocations/${id}`);
    const known: Partial<Record<string, unknown>> = {
      about: this.about,
      nodes: { nodes: this.nodes, inventory_error: null },
      allocations: { allocations: this.allocations.filter(({ state }) => state !== 'ended') },
      'allocations?ended=1': { allocations: [...this.allocations, ...this.ended] },
      attachments: { attachments: this.attachments },
      [`allocations/${one?.id ?? ''}`]: one
    };
    const json = known[path];
    return json === undefined ? refused(404, 'not-found', `there is no ${path}`) : { json };
  }
}

/** An error of our extension. */
export function refused(status: number, error: string, message: string, details = {}): Answer {
  return { status, json: { error, message, details } };
}

/** Until what is asked for is answered. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 50; turn++) {
    await Promise.resolve();
  }
}

export function allocation(id: string, more: Partial<Allocation> = {}): Allocation {
  return {
    id,
    name: id,
    owner: 'ada',
    state: 'running',
    reason: null,
    message: '',
    warning: '',
    node: 'n1',
    gpus: ['GPU-1'],
    memory: [1024],
    kernel_id: null,
    created: 1000,
    expires: null,
    ended: null,
    unreachable_since: null,
    progress: null,
    queue: null,
    version: 1,
    image: null,
    shared: false,
    time: null,
    priority: 0,
    started: 1000,
    job: null,
    exit_code: null,
    attempt: 0,
    outputs: null,
    usage: null,
    request: { gpus: 1, memory: 1024 },
    ...more
  };
}

export function job(more: Partial<Job> = {}): Job {
  return {
    run: 'train.py',
    kind: 'script',
    args: [],
    env: [],
    retries: 0,
    launcher: null,
    sweep: {},
    turn: 0,
    ...more
  };
}

export function attachment(session: string, more: Partial<Attachment> = {}): Attachment {
  return {
    allocation: 'a1',
    session,
    path: `${session}.ipynb`,
    state: 'attached',
    kernel_id: 'k1',
    local_kernel_id: 'k0',
    ...more
  };
}

export function node(name: string, more: Partial<Node> = {}): Node {
  return {
    name,
    gpus: [],
    labels: {},
    reason: null,
    age: 1,
    reporting: true,
    driver: null,
    cuda: null,
    launcher: 'docker',
    models: null,
    model_store: false,
    models_write: true,
    cpus: null,
    cpus_free: null,
    cpus_limit: null,
    ram: null,
    ram_free: null,
    ram_limit: null,
    ...more
  };
}

export function gpu(uuid: string, more: Partial<Gpu> = {}): Gpu {
  return {
    uuid,
    index: 0,
    model: 'NVIDIA A100-40GB',
    memory_total: 40 * 2 ** 30,
    memory_free: 40 * 2 ** 30,
    memory_used: 0,
    memory_claimed: 0,
    memory_foreign: 0,
    card: uuid,
    idle: true,
    utilization: 0,
    temperature: null,
    power: null,
    mig_profile: null,
    parent: null,
    allocatable: true,
    reason: null,
    health: 'ok',
    numa: null,
    links: [],
    processes: [],
    allocations: [],
    shareable: true,
    ...more
  };
}
