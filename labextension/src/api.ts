/** REST of the server extension: one method for each path. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import type {
  About,
  Allocation,
  Attachment,
  Decision,
  Diagnosis,
  Log,
  Node,
  Request,
  Stage,
  Sweep,
  UsageSeries
} from './wire';

const PATH = 'gpufit/api/v1';
const PATIENCE = 60_000; // ms; after a sleep a connection can be dead, and say nothing

/** What the server says is wrong: a code that is stable, a sentence for people, and what belongs to it. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: { stages?: Stage[]; nearest?: Decision['nearest'] } & Record<
      string,
      unknown
    > = {}
  ) {
    super(message);
    this.name = 'ApiError';
  }

  /** Whether the server has no such extension (as opposed to: no such allocation). */
  get isMissing(): boolean {
    return this.code === 'missing';
  }

  /** Whether the server could not be reached at all. */
  get isUnreachable(): boolean {
    return this.code === 'unreachable';
  }
}

/** The sentence to show for whatever was thrown. */
export function sentenceOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export class Api {
  constructor(
    private readonly settings: ServerConnection.ISettings,
    private readonly trans: TranslationBundle = nullTranslator.load('')
  ) {}

  /** What a form has to know; and the offset of the server's clock from this one (seconds), where it tells. */
  async about(): Promise<{ about: About; clock: number }> {
    const [about, response] = await this.call<About>('GET', 'about');
    const date = Date.parse(response.headers.get('Date') ?? '');
    return { about, clock: Number.isNaN(date) ? 0 : (date - Date.now()) / 1000 };
  }

  async nodes(): Promise<{ nodes: Node[]; inventory_error: string | null }> {
    return this.ask('GET', 'nodes');
  }

  async explain(request: Request, stages = false): Promise<Decision> {
    return this.ask('POST', `explain?stages=${String(stages)}`, request);
  }

  /** The caller's; `ended`: with those that have ended. */
  async allocations(ended = false): Promise<Allocation[]> {
    const path = ended ? 'allocations?ended=1' : 'allocations';
    return (await this.ask<{ allocations: Allocation[] }>('GET', path)).allocations;
  }

  /** One of the caller's, also when it has ended. */
  async allocation(id: string): Promise<Allocation> {
    return this.ask('GET', `allocations/${encodeURIComponent(id)}`);
  }

  async attachments(): Promise<Attachment[]> {
    return (await this.ask<{ attachments: Attachment[] }>('GET', 'attachments')).attachments;
  }

  async request(request: Request): Promise<Allocation> {
    return this.ask('POST', 'allocations', request);
  }

  /** Ask for a job; with a sweep, for one each. All of them, or none. */
  async submit(request: Request, sweep: Sweep): Promise<Allocation[]> {
    type Submitted = { allocations: Allocation[]; submission?: string | null };
    let answer = await this.ask<Submitted>('POST', 'jobs', { request, sweep });
    while (typeof answer.submission === 'string') {
      // A large folder is still being copied.
      const id = encodeURIComponent(answer.submission);
      answer = await this.ask<Submitted>('GET', `submissions/${id}?wait=4`);
    }
    return answer.allocations;
  }

  async release(id: string): Promise<Allocation> {
    return this.ask('DELETE', `allocations/${encodeURIComponent(id)}`);
  }

  async extend(id: string, time: string | number): Promise<Allocation> {
    return this.ask('POST', `allocations/${encodeURIComponent(id)}/extend`, { time });
  }

  async attach(id: string, session: string): Promise<Attachment> {
    return this.ask('POST', `allocations/${encodeURIComponent(id)}/attach`, { session });
  }

  async detach(id: string): Promise<Allocation> {
    return this.ask('POST', `allocations/${encodeURIComponent(id)}/detach`, {});
  }

  /** The last lines of what was printed. */
  async log(id: string, tail: number, signal?: AbortSignal): Promise<Log> {
    const path = `allocations/${encodeURIComponent(id)}/logs?tail=${String(tail)}`;
    return this.ask('GET', path, undefined, signal);
  }

  /** What was printed after that mark: as soon as there is something, or nothing after `wait` seconds. */
  async logAfter(id: string, mark: string, wait: number, signal?: AbortSignal): Promise<Log> {
    const after = encodeURIComponent(mark);
    const path = `allocations/${encodeURIComponent(id)}/logs?after=${after}&wait=${String(wait)}`;
    return this.ask('GET', path, undefined, signal);
  }

  async usage(id: string): Promise<UsageSeries> {
    return this.ask('GET', `allocations/${encodeURIComponent(id)}/usage`);
  }

  async examine(node: string, deep: boolean): Promise<Diagnosis> {
    return this.ask('POST', `nodes/${encodeURIComponent(node)}/doctor`, { deep });
  }

  /** The diagnosis once it has more than `after` checks, or is done, or after some seconds. */
  async diagnosis(node: string, after: number): Promise<Diagnosis> {
    return this.ask(
      'GET',
      `nodes/${encodeURIComponent(node)}/doctor?after=${String(after)}&wait=4`
    );
  }

  private async ask<T>(
    method: string,
    path: string,
    body?: unknown,
    signal?: AbortSignal
  ): Promise<T> {
    return (await this.call<T>(method, path, body, signal))[0];
  }

  private async call<T>(
    method: string,
    path: string,
    body?: unknown,
    signal?: AbortSignal
  ): Promise<[T, Response]> {
    const [response, text] = await this.fetch(method, path, body, signal);
    const answer = parsed(text);
    if (response.ok && answer !== undefined) {
      return [answer as T, response];
    }
    throw refusal(response, answer, this.trans);
  }

  /** `signal`: nobody wants the answer any more. */
  private async fetch(
    method: string,
    path: string,
    body?: unknown,
    signal?: AbortSignal
  ): Promise<[Response, string]> {
    const url = URLExt.join(this.settings.baseUrl, PATH, path);
    const patience = new AbortController();
    const timer = setTimeout(() => patience.abort(), PATIENCE);
    const stop = (): void => patience.abort();
    signal?.addEventListener('abort', stop);
    const init: RequestInit = { method, signal: patience.signal };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    try {
      const response = await ServerConnection.makeRequest(url, init, this.settings);
      return [response, await response.text()];
    } catch (error) {
      const why = patience.signal.aborted
        ? this.trans.__('nothing in %1 s', PATIENCE / 1000)
        : sentenceOf(error);
      const message = this.trans.__('The Jupyter server does not answer (%1).', why);
      throw new ApiError(0, 'unreachable', message);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', stop);
    }
  }
}

/** A proxy's, for a server behind it that is not there. */
const AWAY = [424, 502, 503, 504];

/** What an answer other than the one that was asked for means. */
function refusal(response: Response, answer: unknown, trans: TranslationBundle): ApiError {
  const status = `${response.status} ${response.statusText}`.trim();
  // Ours, but not tornado's word for a person who is not logged in any more.
  if (isError(answer) && !(response.status === 403 && answer.message === 'Forbidden')) {
    return new ApiError(response.status, answer.error, answer.message, answer.details);
  }
  if (response.status === 404) {
    const message = trans.__('This Jupyter server does not have the jupyter_gpufit extension.');
    return new ApiError(404, 'missing', message);
  }
  if (AWAY.includes(response.status)) {
    const message = trans.__(
      'The Jupyter server is not there: what is before it answered %1.',
      status
    );
    return new ApiError(response.status, 'unreachable', message);
  }
  if (response.status === 401 || response.status === 403) {
    const message = trans.__(
      'The Jupyter server answered %1: you are not logged in any more, or may not do this. Log in and reload the page.',
      status
    );
    return new ApiError(response.status, 'forbidden', message);
  }
  if (response.ok) {
    const message = trans.__(
      'Something other than the Jupyter server answered, perhaps a page to log in. Reload the page.'
    );
    return new ApiError(response.status, 'unexpected', message);
  }
  const message = trans.__('The Jupyter server answered %1.', status);
  return new ApiError(response.status, 'unexpected', message);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

interface WireError {
  error: string;
  message: string;
  details: Record<string, unknown>;
}

/** Whether it is an answer of our extension's, and not one of the server's own or of a proxy before it. */
function isError(answer: unknown): answer is WireError {
  return (
    typeof answer === 'object' &&
    answer !== null &&
    'error' in answer &&
    'message' in answer &&
    'details' in answer
  );
}
