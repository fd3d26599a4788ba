/**
 * The request that is being written, and what the server says of it while it is: where it would go, or why nowhere.
 *
 *     form ─ asking.read ─→ request ─ (200 ms later) POST explain ─→ decision
 *
 * One for the page: the form shows and changes it, the cluster shows the nodes that fit it.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { sentenceOf } from '../api';
import type { GpuFitModel } from '../model';
import type { Settings } from '../settings';
import type { Decision, Nearest, Request } from '../wire';
import { EMPTY, read, withNearest, type Form, type Mistakes, type Reading } from './asking';
import { RunDraft } from './rundraft';

const PAUSE = 200; // ms in which nothing is typed, before the server is asked
const AGAIN = 2000; // ms between two questions that only the nodes' changes raise

export class Draft implements IDisposable {
  /** The job that is to have the GPUs, while one is written. */
  readonly run: RunDraft;

  constructor(
    private readonly model: GpuFitModel,
    private readonly settings: Settings,
    private readonly trans: TranslationBundle
  ) {
    this.run = new RunDraft(trans);
    this.run.changed.connect(() => this.signal.emit());
    this.written = this.initial;
    this.reading = read(this.written, trans);
    settings.changed.connect(this.onSettings, this);
    model.nodesChanged.connect(this.onNodes, this);
    model.connectionChanged.connect(this.onConnection, this);
  }

  /** What is written. */
  get form(): Form {
    return this.written;
  }

  /** Whether it is what the person's settings begin with. */
  get isInitial(): boolean {
    return same(this.written, this.initial);
  }

  /** What it means; `null`: it has `mistakes`. */
  get request(): Request | null {
    return this.reading.request;
  }

  get mistakes(): Mistakes {
    return this.reading.mistakes;
  }

  /**
   * The server's answer: to `request`, or, while it `isAsking`, to the one before. `null`: there is none (yet).
   * It is kept up to date as the nodes change while somebody watches.
   */
  get decision(): Decision | null {
    return this.decided;
  }

  /** Why the server gave no decision, in its words. */
  get problem(): string {
    return this.refused;
  }

  /** Whether `request` has changed, and the answer to it is not there yet. */
  get isAsking(): boolean {
    return this.answered !== this.reading.request;
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  /** Write something into the form. */
  change(change: Partial<Form>): void {
    this.touched = true;
    this.write({ ...this.written, ...change });
  }

  /** Begin anew. */
  reset(): void {
    this.touched = false;
    this.write(this.initial);
  }

  /** Ask for that instead. */
  take(nearest: Nearest): void {
    this.change(withNearest(this.written, nearest));
  }

  /** Keep the decision up to date from now on, until what is returned is disposed of. */
  watch(): IDisposable {
    this.watchers += 1;
    if (this.watchers === 1) {
      this.plan(0);
    }
    return new DisposableDelegate(() => {
      this.watchers -= 1;
      if (this.watchers === 0) {
        this.cancel();
      }
    });
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    this.disposed = true;
    this.cancel();
    Signal.clearData(this.run);
    Signal.clearData(this);
  }

  private get initial(): Form {
    const { requestGpus, requestMemory, requestTime } = this.settings.values;
    return { ...EMPTY, gpus: String(requestGpus), memory: requestMemory, time: requestTime };
  }

  private write(form: Form): void {
    const before = this.reading.request;
    this.written = form;
    this.reading = read(form, this.trans);
    if (before !== null && same(this.reading.request, before)) {
      this.reading = { ...this.reading, request: before }; // (what is known of it stays known)
    } else {
      this.plan(PAUSE);
    }
    this.signal.emit();
  }

  private onSettings(): void {
    if (!this.touched) {
      this.write(this.initial);
    }
  }

  private onNodes(): void {
    if (this.timer === undefined && this.waitedFor === null) {
      this.plan(AGAIN);
    }
  }

  private onConnection(): void {
    this.plan(0);
  }

  private cancel(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.waitedFor = null; // its answer comes too late
  }

  private plan(pause: number): void {
    this.cancel();
    if (this.watchers > 0) {
      this.timer = setTimeout(() => void this.ask(), pause);
    }
  }

  private async ask(): Promise<void> {
    this.timer = undefined;
    const { request } = this.reading;
    if (request === null) {
      this.answer(null, null, '');
      return;
    }
    if (this.model.connection !== 'connected') {
      return; // it is asked once that changes
    }
    const question = (this.waitedFor = {});
    let decision: Decision | null = null;
    let problem = '';
    try {
      decision = await this.model.api.explain(request);
    } catch (error) {
      problem = sentenceOf(error);
    }
    if (this.waitedFor === question) {
      this.waitedFor = null;
      this.answer(request, decision, problem);
    }
  }

  private answer(request: Request | null, decision: Decision | null, problem: string): void {
    this.answered = request;
    this.decided = decision;
    this.refused = problem;
    this.signal.emit();
  }

  private written: Form;
  private touched = false;
  private reading: Reading;
  private decided: Decision | null = null;
  private refused = '';
  private answered: Request | null = null;
  private watchers = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** The question whose answer is waited for; those to earlier ones are not looked at. */
  private waitedFor: object | null = null;
  private disposed = false;
  private readonly signal = new Signal<this, void>(this);
}

function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}
