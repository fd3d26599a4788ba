/**
 * What this page knows: the nodes, the person's allocations, and which notebooks are attached to them. Views subscribe
 * to it, and never change it; it changes by events, and by the answers to what the person does.
 */

import { nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { ApiError, sentenceOf, type Api } from './api';
import type { FeedEvent, IFeed } from './feed';
import type { About, Allocation, Attachment, Node, NodesChange, Request, Warning } from './wire';

/**
 * `connecting`: nothing is known yet. `connected`: it is as it is shown. `reconnecting`: it was, and the server does not
 * answer now. `missing`: this server does not have our extension. `refused`: it does, and says no (`problem`: why).
 */
export type Connection = 'connecting' | 'connected' | 'reconnecting' | 'missing' | 'refused';

const FIRST = 1000; // ms until everything is asked for again; twice as long each time that fails
const LAST = 30_000;
const ENDED_KEPT = 20; // ended allocations that are still shown

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
    return this.state.about;
  }

  /** Why the latest gpufit.toml was not taken up. */
  get inventoryError(): string | null {
    return this.state.inventoryError;
  }

  /** By name. (These maps are never changed, but replaced.) */
  get nodes(): ReadonlyMap<string, Node> {
    return this.state.nodes;
  }

  /** By id, oldest first; with those that ended while this page was there, until they are dismissed. */
  get allocations(): ReadonlyMap<string, Allocation> {
    return this.state.allocations;
  }

  /** By session, those that are waiting or attached. */
  get attachments(): ReadonlyMap<string, Attachment> {
    return this.state.attachments;
  }

  /** Seconds, by the server's clock. */
  now(): number {
    return Date.now() / 1000 + this.state.clock;
  }

  get connectionChanged(): ISignal<this, void> {
    return this.signals.connection;
  }

  get nodesChanged(): ISignal<this, void> {
    return this.signals.nodes;
  }

  get allocationsChanged(): ISignal<this, void> {
    return this.signals.allocations;
  }

  get attachmentsChanged(): ISignal<this, void> {
    return this.signals.attachments;
  }

  /** Once for each attachment that has changed, with what it is now. */
  get attachmentChanged(): ISignal<this, Attachment> {
    return this.signals.attachment;
  }

  /** Once for each warning about an allocation. */
  get warned(): ISignal<this, Warning> {
    return this.signals.warned;
  }

  // --- what a person does. Each raises `ApiError`; what comes of it is seen at once, and not only by its event.

  async request(request: Request): Promise<Allocation> {
    return this.took(await this.api.request(request));
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
      this.learn({ kind: 'attachment', data: attachment });
    }
    return attachment;
  }

  async detach(id: string): Promise<void> {
    this.took(await this.api.detach(id));
  }

  /** No longer show one that has ended. */
  dismiss(id: string): void {
    if (this.state.allocations.get(id)?.state === 'ended') {
      const left = [...this.state.allocations.values()].filter(one => one.id !== id);
      this.state.allocations = inOrder(left);
      this.signals.allocations.emit();
    }
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
      this.state.about = about;
      this.state.clock = clock;
      this.state.inventoryError = cluster.inventory_error;
      this.state.nodes = new Map(cluster.nodes.map(node => [node.name, node]));
      this.state.allocations = inOrder([...ended, ...allocations]);
      const changed = this.replaceAttachments(attachments);
      const meanwhile = this.meanwhile;
      this.meanwhile = null;
      this.failures = 0;
      this.fresh = true;
      this.signals.nodes.emit();
      this.signals.allocations.emit();
      this.signals.attachments.emit();
      changed.forEach(attachment => this.signals.attachment.emit(attachment));
      meanwhile.forEach(event => this.learn(event));
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
      this.forget();
      this.become('missing', known.message);
      return; // until the server comes again
    }
    const isLost = known !== null && (known.isUnreachable || known.status === 503);
    if (isLost && this.state.about !== null) {
      this.become('reconnecting', known.status === 0 ? this.noAnswer : known.message);
    } else {
      this.become(isLost ? 'connecting' : 'refused', sentenceOf(error));
    }
    if (!this.away) {
      const wait = Math.min(LAST, FIRST * 2 ** this.failures++);
      this.again = setTimeout(() => void this.ask(), wait);
    }
  }

  /** What was known is of a server that is no longer there. */
  private forget(): void {
    this.state.about = null;
    this.state.inventoryError = null;
    this.state.nodes = new Map();
    this.state.allocations = new Map();
    const changed = this.replaceAttachments([]);
    this.signals.nodes.emit();
    this.signals.allocations.emit();
    this.signals.attachments.emit();
    changed.forEach(attachment => this.signals.attachment.emit(attachment));
  }

  /** Those that have ended: also while no events came, which are not among the `live` ones that there are now. */
  private async endedWithout(live: Allocation[]): Promise<Allocation[]> {
    const known = [...this.state.allocations.values()];
    const gone = known.filter(
      one => one.state !== 'ended' && !live.some(({ id }) => id === one.id)
    );
    const ends = gone.map(one => this.api.allocation(one.id).catch(() => null));
    const found = (await Promise.all(ends)).filter(one => one !== null);
    // (As they are now: some may have been dismissed meanwhile.)
    const over = [...this.state.allocations.values()].filter(one => one.state === 'ended');
    return [...over, ...found];
  }

  /** Those that this changes, as they are now. */
  private replaceAttachments(attachments: Attachment[]): Attachment[] {
    const before = this.state.attachments;
    // One that moves to another allocation waits for that, and is attached to the former until then.
    const waiting = attachments.filter(one => one.state === 'waiting');
    const left = attachments.filter(one => one.state !== 'waiting');
    this.state.attachments = new Map([...left, ...waiting].map(one => [one.session, one]));
    this.left = new Map(left.map(one => [one.session, one]));
    const gone = [...before.values()].filter(one => !this.state.attachments.has(one.session));
    return [
      ...gone.map(one => ({ ...one, state: 'detached' as const })),
      ...[...this.state.attachments.values()].filter(one => !isSame(one, before.get(one.session)))
    ];
  }

  private onEvent(_: IFeed, event: FeedEvent): void {
    this.told += event.kind === 'attachment' ? 1 : 0;
    // Of what is not known yet: it will be asked for. What is being asked for may be older than this.
    if (this.meanwhile === null && this.fresh) {
      this.learn(event);
    } else {
      this.meanwhile?.push(event);
    }
  }

  private learn(event: FeedEvent): void {
    if (event.kind === 'allocation') {
      this.takeAllocation(event.data as Allocation);
    } else if (event.kind === 'attachment') {
      this.takeAttachment(event.data as Attachment);
    } else if (event.kind === 'nodes') {
      const { changed, removed, inventory_error } = event.data as NodesChange;
      const nodes = new Map(this.state.nodes);
      changed.forEach(node => nodes.set(node.name, node));
      removed.forEach(name => nodes.delete(name));
      this.state.nodes = nodes;
      if (inventory_error !== undefined) {
        this.state.inventoryError = inventory_error;
      }
      this.signals.nodes.emit();
    } else if (event.kind === 'warning') {
      this.signals.warned.emit(event.data as Warning);
    }
  }

  /** The answer to something that was done. */
  private took(allocation: Allocation): Allocation {
    this.meanwhile?.push({ kind: 'allocation', data: allocation });
    this.takeAllocation(allocation);
    return allocation;
  }

  private takeAllocation(allocation: Allocation): void {
    const { allocations, about } = this.state;
    if (about !== null && allocation.owner !== about.owner) {
      return;
    }
    const known = allocations.get(allocation.id);
    if (known === undefined || known.version <= allocation.version) {
      const others = [...allocations.values()].filter(one => one.id !== allocation.id);
      this.state.allocations = inOrder([...others, allocation]);
      this.signals.allocations.emit();
    }
  }

  private takeAttachment(attachment: Attachment): void {
    const attachments = new Map(this.state.attachments);
    const { session, state, allocation } = attachment;
    if (state === 'attached') {
      this.left.set(session, attachment);
    } else if (state === 'detached' && this.left.get(session)?.allocation === allocation) {
      this.left.delete(session);
    }
    const still = this.left.get(session);
    if (state !== 'detached') {
      attachments.set(session, attachment);
    } else if (attachments.get(session)?.allocation === allocation) {
      if (still === undefined) {
        attachments.delete(session);
      } else {
        attachments.set(session, still); // it was to move, and does not after all
      }
    }
    this.state.attachments = attachments;
    this.signals.attachments.emit();
    this.signals.attachment.emit(attachment);
  }

  private get noAnswer(): string {
    return this.trans.__('The Jupyter server does not answer; what is shown may be old.');
  }

  private become(connection: Connection, problem = ''): void {
    if (this.state.connection !== connection || this.state.problem !== problem) {
      this.state.connection = connection;
      this.state.problem = problem;
      this.signals.connection.emit();
    }
  }

  private readonly state = {
    connection: 'connecting' as Connection,
    problem: '',
    about: null as About | null,
    clock: 0,
    inventoryError: null as string | null,
    nodes: new Map<string, Node>(),
    allocations: new Map<string, Allocation>(),
    attachments: new Map<string, Attachment>()
  };
  private readonly signals = {
    connection: new Signal<this, void>(this),
    nodes: new Signal<this, void>(this),
    allocations: new Signal<this, void>(this),
    attachments: new Signal<this, void>(this),
    attachment: new Signal<this, Attachment>(this),
    warned: new Signal<this, Warning>(this)
  };
  /** By session: what it is attached to, also while it waits for another allocation. */
  private left = new Map<string, Attachment>();
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

/** By id, oldest first; of those that have ended the latest ones only. */
function inOrder(allocations: Allocation[]): Map<string, Allocation> {
  const byAge = [...allocations].sort((one, other) => one.created - other.created);
  const ended = byAge.filter(one => one.state === 'ended');
  const dropped = new Set(ended.slice(0, -ENDED_KEPT));
  return new Map(byAge.filter(one => !dropped.has(one)).map(one => [one.id, one]));
}

function isSame(one: Attachment, other: Attachment | undefined): boolean {
  return (
    one.state === other?.state &&
    one.allocation === other.allocation &&
    one.kernel_id === other.kernel_id &&
    one.path === other.path
  );
}
