/**
 * Events of the server, and whether they come.
 *
 * It is a second subscription beside the service manager's own: that one does not tell that it has been away, and after
 * it was, everything has to be asked for once more. Nor does it see that a socket is dead although nobody closed it, as
 * after a sleep.
 */

import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

const PREFIX = 'https://schema.jupyter.org/jupyter_gpufit/';

/** An event of ours: `kind` is `allocation`, `attachment`, `nodes` or `warning`. */
export interface FeedEvent {
  kind: string;
  data: unknown;
}

export interface IFeed extends IDisposable {
  /** The connection is there (again): what was before it may have been missed. */
  readonly opened: ISignal<IFeed, void>;
  /** The connection is gone, or one more attempt has failed; it is tried again. */
  readonly closed: ISignal<IFeed, void>;
  readonly event: ISignal<IFeed, FeedEvent>;
  /** Try now, and not when it would be tried next. */
  reconnect(): void;
}

const FIRST = 1000; // ms until it is tried again; twice as long after each attempt that failed
const LAST = 20_000;
const PATIENCE = 15_000; // ms for one attempt
const BEAT = 10_000; // ms between looks at the clock (a browser makes it a minute for pages out of sight)
const ASLEEP = 150_000; // ms without one: whatever the socket says, it may be dead

export class Feed implements IFeed {
  constructor(private readonly settings: ServerConnection.ISettings) {
    this.beat = setInterval(() => this.onBeat(), BEAT);
    document.addEventListener('visibilitychange', this.onSight);
    window.addEventListener('online', this.onOnline);
    this.connect();
  }

  get opened(): ISignal<IFeed, void> {
    return this.signals.opened;
  }

  get closed(): ISignal<IFeed, void> {
    return this.signals.closed;
  }

  get event(): ISignal<IFeed, FeedEvent> {
    return this.signals.event;
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  reconnect(): void {
    this.slept = false;
    this.failures = 0;
    this.connect();
  }

  dispose(): void {
    this.disposed = true;
    clearInterval(this.beat);
    clearTimeout(this.again);
    document.removeEventListener('visibilitychange', this.onSight);
    window.removeEventListener('online', this.onOnline);
    this.drop();
    Signal.clearData(this);
  }

  /** Now, whatever there is already. */
  private connect(): void {
    this.drop();
    clearTimeout(this.again);
    this.again = setTimeout(() => this.onClose(), PATIENCE);
    const { wsUrl, appendToken, token, WebSocket } = this.settings;
    let url = URLExt.join(wsUrl, 'api/events/subscribe');
    if (appendToken && token !== '') {
      url += `?token=${encodeURIComponent(token)}`;
    }
    let socket: WebSocket;
    try {
      socket = new WebSocket(url);
    } catch {
      this.onClose(); // what the page's policy forbids, say, is raised here already
      return;
    }
    socket.onopen = () => this.onOpen();
    socket.onmessage = message => this.onMessage(message);
    socket.onclose = () => this.onClose();
    this.socket = socket;
  }

  /** What comes from it, or becomes of it, is of no interest any more. */
  private drop(): void {
    const socket = this.socket;
    this.socket = null;
    if (socket !== null) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private onMessage(message: MessageEvent): void {
    const emission = parsed(message.data);
    if (emission?.schema_id.startsWith(PREFIX)) {
      const { schema_id, ...data } = emission;
      const [kind = ''] = schema_id.slice(PREFIX.length).split('/');
      this.signals.event.emit({ kind, data });
    }
  }

  private onOpen(): void {
    clearTimeout(this.again);
    this.since = Date.now();
    this.signals.opened.emit();
  }

  private onClose(): void {
    this.drop();
    // One that is closed as soon as it is open has failed, too.
    if (this.since !== null && Date.now() - this.since > LAST) {
      this.failures = 0;
    }
    this.since = null;
    const wait = Math.min(LAST, FIRST * 2 ** this.failures++);
    clearTimeout(this.again);
    // Not all pages of a server that comes back at the same moment.
    this.again = setTimeout(() => this.onAgain(), wait * (0.75 + Math.random() / 2));
    this.signals.closed.emit();
  }

  private onAgain(): void {
    if (!document.hidden) {
      this.connect(); // else when somebody looks
    }
  }

  private onBeat(): void {
    const now = Date.now();
    this.slept ||= now - this.seen > ASLEEP;
    this.seen = now;
    if (this.slept && !document.hidden) {
      this.reconnect();
    }
  }

  private readonly onSight = (): void => {
    this.onBeat();
    if (!document.hidden && this.socket === null) {
      this.reconnect();
    }
  };

  private readonly onOnline = (): void => this.reconnect();

  private socket: WebSocket | null = null;
  private disposed = false;
  /** When it was opened; `null`: it is not. */
  private since: number | null = null;
  /** Attempts that have failed since one that did not. */
  private failures = 0;
  /** When the clock was looked at. */
  private seen = Date.now();
  private slept = false;
  private again: ReturnType<typeof setTimeout> | undefined;
  private readonly beat: ReturnType<typeof setInterval>;
  private readonly signals = {
    opened: new Signal<this, void>(this),
    closed: new Signal<this, void>(this),
    event: new Signal<this, FeedEvent>(this)
  };
}

function parsed(text: unknown): ({ schema_id: string } & Record<string, unknown>) | null {
  try {
    const value = JSON.parse(String(text)) as { schema_id?: unknown } | null;
    return typeof value?.schema_id === 'string' ? { ...value, schema_id: value.schema_id } : null;
  } catch {
    return null;
  }
}
