/**
 * What this page knows: the nodes, the person's allocations, and which notebooks are attached to them. Views subscribe
 * to it, and never change it; it changes by events, and by the answers to what the person does.
 */

import { nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { ApiError, sentenceOf, type Api } from './api';
import type { FeedEvent, IFeed } from './feed';
import { Known } from './known';
import type { About, Allocation, Attachment, Node, Request, Sweep, Warning } from './wire';

/**
 * `connecting`: nothing is known yet. `connected`: it is as it is shown. `reconnecting`: it was, and the server does not
 * answer now. `missing`: this server does not have our extension. `refused`: it does, and says no (`problem`: why).
 */
export type Connection = 'connecting' | 'connected' | 'reconnecting' | 'missing' | 'refused';

const FIRST = 1000; // ms until everything is asked for again; twice as long each time that fails
const LAST = 30_000;

export class GpuFitModel implements IDisposable {
  constructor(
    readonly api: Api,
    private readonly feed: IFeed,
    private readonly trans: TranslationBundle = nullTranslator.load('')
  ) {
    feed.opened.connect(this.onOpened, this);
    feed.closed.connect(this.onClosed, this);
    feed.event.connect(this.onEvent, this);
  }

  // --- what is known

  get connection(): Connection {
    return this.state.connection;
  }

  /** Why it is not `connected`, for people. */
  get problem(): string {
    return this.state.problem;
  }

  get about(): About | null {
    return this.known.about;
  }

  /** Why the latest gpufit.toml was not taken up. */
  get inventoryError(): string | null {
    return this.known.inventoryError;
  }

  /** By name. (These maps are never changed, but replaced.) */
  get nodes(): ReadonlyMap<string, Node> {
    return this.known.nodes;
  }

  /** By id, oldest first; with those that ended while this page was there, until they are dismissed. */
  get allocations(): ReadonlyMap<string, Allocation> {
    return this.known.allocations;
  }

  /** By session, those that are waiting or attached. */
  get attachments(): ReadonlyMap<string, Attachment> {
    return this.known.attachments;
  }

  /** Seconds, by the server's clock. */
  now(): number {
    return Date.now() / 1000 + this.known.clock;
  }

  get connectionChanged(): ISignal<this, void> {
    return this.connectionSignal;
  }

  get nodesChanged(): ISignal<GpuFitModel, void> {
    return this.known.signals.nodes;
  }

  get allocationsChanged(): ISignal<GpuFitModel, void> {
    return this.known.signals.allocations;
  }

  /** The id of one that is no longer to be shown. */
  get dismissed(): ISignal<GpuFitModel, string> {
    return this.known.signals.dismissed;
  }

  get attachmentsChanged(): ISignal<GpuFitModel, void> {
    return this.known.signals.attachments;
  }

  /** Once for each attachment that has changed, with what it is now. */
  get attachmentChanged(): ISignal<GpuFitModel, Attachment> {
    return this.known.signals.attachment;
  }

  /** Once for each warning about an allocation. */
  get warned(): ISignal<GpuFitModel, Warning> {
    return this.known.signals.warned;
  }

  // --- what a person does. Each raises `ApiError`; what comes of it is seen at once, and not only by its event.

  async request(request: Request): Promise<Allocation> {
    return this.took(await this.api.request(request));
  }

  async submit(request: Request, sweep: Sweep): Promise<Allocation[]> {
    return (await this.api.submit(request, sweep)).map(one => this.took(one));
  }

  async release(id: string): Promise<Allocation> {
    return this.took(await this.api.release(id));
  }

  async extend(id: string, time: string | number): Promise<Allocation> {
    return this.took(await this.api.extend(id, time));
  }

  async attach(id: string, session: string): Promise<Attachment> {
    const told = this.told;
    const attachment = await this.api.attach(id, session);
    // Where events have told of attachments meanwhile, theirs is the later word.
    if (told === this.told) {
      this.known.learn({ kind: 'attachment', data: attachment });
    }
    return attachment;
  }

  async detach(id: string): Promise<void> {
    this.took(await this.api.detach(id));
  }

  /** No longer show one that has ended. */
  dismiss(id: string): void {
    this.known.dismiss(id);
  }

  /** Show these, too, which ended before this page was there. */
  recall(ended: readonly Allocation[]): void {
    this.known.recall(ended);
  }

  /** Ask for everything again, now. Raises nothing: `connection` and `problem` tell what came of it. */
  async refresh(): Promise<void> {
    if (this.away) {
      this.feed.reconnect(); // who asks does not wait for the next attempt
    }
    await this.ask();
  }

  get isDisposed(): boolean {
    return this.feed.isDisposed;
  }

  dispose(): void {
    clearTimeout(this.again);
    this.feed.dispose();
    Signal.clearData(this);
  }

  // --- how it changes

  private async ask(): Promise<void> {
    clearTimeout(this.again);
    const asked = ++this.asked;
    const isOld = (): boolean => asked !== this.asked || this.isDisposed;
    this.meanwhile = [];
    try {
      const { about, clock } = await this.api.about(); // alone, so that a server without us is asked but once
      if (isOld()) {
        return; // a later question is on its way
      }
      const [cluster, allocations, attachments] = await Promise.all([
        this.api.nodes(),
        this.api.allocations(),
        this.api.attachments()
      ]);
      const ended = await this.endedWithout(allocations);
      if (isOld()) {
        return;
      }
      const meanwhile = this.meanwhile;
      this.meanwhile = null;
      this.failures = 0;
      this.fresh = true;
      const all = [...ended, ...allocations];
      this.known.replace({ about, clock, cluster, allocations: all, attachments });
      meanwhile.forEach(event => this.known.learn(event));
      this.become(
        this.away ? 'reconnecting' : 'connected',
        this.away
          ? this.trans.__(
              'The Jupyter server answers, but tells of no changes; what is shown may be some seconds old.'
            )
          : ''
      );
    } catch (error) {
      if (!isOld()) {
        this.onRefusal(error);
      }
    }
  }

  private onOpened(): void {
    this.away = false;
    void this.ask();
  }

  /** The feed tries again, less and less often, and says so each time. */
  private onClosed(): void {
    this.away = true;
    if (this.state.connection === 'connected') {
      this.become('reconnecting', this.noAnswer);
    }
    if (this.state.connection !== 'missing') {
      void this.ask(); // REST knows why; and where only events are missing, what is shown is not too old
    }
  }

  private onRefusal(error: unknown): void {
    const known = error instanceof ApiError ? error : null;
    this.meanwhile = null;
    this.fresh = false;
    if (known?.isMissing) {
      this.known.forget();
      this.become('missing', known.message);
      return; // until the server comes again
    }
    const isLost = known !== null && (known.isUnreachable || known.status === 503);
    if (isLost && this.known.about !== null) {
      this.become('reconnecting', known.status === 0 ? this.noAnswer : known.message);
    } else {
      this.become(isLost ? 'connecting' : 'refused', sentenceOf(error));
    }
    if (!this.away) {
      const wait = Math.min(LAST, FIRST * 2 ** this.failures++);
      this.again = setTimeout(() => void this.ask(), wait);
    }
  }

  /** Those that have ended: also while no events came, which are not among the `live` ones that there are now. */
  private async endedWithout(live: Allocation[]): Promise<Allocation[]> {
    const known = [...this.known.allocations.values()];
    const gone = known.filter(
      one => one.state !== 'ended' && !live.some(({ id }) => id === one.id)
    );
    const ends = gone.map(one => this.api.allocation(one.id).catch(() => null));
    const found = (await Promise.all(ends)).filter(one => one !== null);
    // (As they are now: some may have been dismissed meanwhile.)
    const over = [...this.known.allocations.values()].filter(one => one.state === 'ended');
    return [...over, ...found];
  }

  private onEvent(_: IFeed, event: FeedEvent): void {
    this.told += event.kind === 'attachment' ? 1 : 0;
    // Of what is not known yet: it will be asked for. What is being asked for may be older than this.
    if (this.meanwhile === null && this.fresh) {
      this.known.learn(event);
    } else {
      this.meanwhile?.push(event);
    }
  }

  /** The answer to something that was done. */
  private took(allocation: Allocation): Allocation {
    this.meanwhile?.push({ kind: 'allocation', data: allocation });
    this.known.take(allocation);
    return allocation;
  }

  private get noAnswer(): string {
    return this.trans.__('The Jupyter server does not answer; what is shown may be old.');
  }

  private become(connection: Connection, problem = ''): void {
    if (this.state.connection !== connection || this.state.problem !== problem) {
      this.state.connection = connection;
      this.state.problem = problem;
      this.connectionSignal.emit();
    }
  }

  private readonly known = new Known<GpuFitModel>(this);
  private readonly state = { connection: 'connecting' as Connection, problem: '' };
  private readonly connectionSignal = new Signal<this, void>(this);
  /** Events that came while everything is asked for; `null`: nothing is asked for. */
  private meanwhile: FeedEvent[] | null = null;
  /** Whether all was known when the feed was last opened, so that events keep it right. */
  private fresh = false;
  /** Whether the feed is closed. */
  private away = false;
  /** Events about attachments, so far. */
  private told = 0;
  private asked = 0;
  private failures = 0;
  private again: ReturnType<typeof setTimeout> | undefined;
}
