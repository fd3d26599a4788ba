/**
 * What an allocation prints, as it comes: one question after the other, each for what is after the mark that the former
 * answer ended with.
 *
 *     the last lines ─→ text, mark ─→ what is after the mark (waited for) ─→ more text, mark ─→ … ─→ over
 *
 * Nothing is asked while nobody sees it, and nothing after it is `over`.
 */

import { Signal, type ISignal } from '@lumino/signaling';
import { sentenceOf, type Api } from '../api';
import type { Log } from '../wire';

const WAIT = 10; // s that the server may keep a question; what is hidden meanwhile is not asked for again
const PAUSE = 300; // ms between two questions: what prints all the time is read in larger pieces
const AGAIN = 3000; // ms until it is tried again after it went wrong
const LOOK = 500; // ms between looks whether somebody sees it

export class LogReader {
  constructor(
    private readonly api: Pick<Api, 'log' | 'logAfter'>,
    private readonly id: string,
    /** So many lines are kept. */
    private readonly lines: number,
    private readonly isSeen: () => boolean
  ) {}

  /** `null`: nobody knows yet. */
  get text(): string | null {
    return this.known;
  }

  /** Why the latest question was not answered; empty: it was. */
  get error(): string {
    return this.problem;
  }

  /** Whether nothing can come any more. */
  get over(): boolean {
    return this.ended;
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  get follow(): boolean {
    return this.following;
  }

  /** Whether what comes is asked for. */
  set follow(follow: boolean) {
    const before = this.following;
    this.following = follow;
    if (follow && !before && this.asking === null) {
      this.plan(0);
    } else if (!follow && (this.asking === null || this.waits)) {
      this.cancel(); // also what is planned
    }
  }

  /** Ask for it, from now on until it is stopped. */
  begin(): void {
    void this.ask();
  }

  /** Look now, and not when it is looked next. */
  look(): void {
    if (this.asking === null || this.waits) {
      this.cancel();
      void this.ask(0);
    }
  }

  stop(): void {
    this.cancel();
  }

  private cancel(): void {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.asking = null;
    this.waits = false;
  }

  private plan(pause: number): void {
    clearTimeout(this.timer);
    if (this.following && !this.ended) {
      const next = (): void => (this.isSeen() ? void this.ask() : this.plan(LOOK));
      this.timer = setTimeout(next, pause);
    }
  }

  private async ask(wait = WAIT): Promise<void> {
    const asking = (this.asking = new AbortController());
    this.waits = this.mark !== null && wait > 0;
    let pause = PAUSE;
    try {
      const log = await (this.mark === null
        ? this.api.log(this.id, this.lines, asking.signal)
        : this.api.logAfter(this.id, this.mark, wait, asking.signal));
      if (asking.signal.aborted) {
        return;
      }
      this.take(log);
    } catch (error) {
      if (asking.signal.aborted) {
        return; // nobody wants to know
      }
      this.problem = sentenceOf(error);
      pause = AGAIN;
    }
    this.asking = null;
    this.waits = false;
    this.plan(pause);
    this.signal.emit();
  }

  private take({ logs, mark, over }: Log): void {
    this.known = lastLines((this.known ?? '') + logs, this.lines);
    this.mark = mark;
    this.ended = over;
    this.problem = '';
  }

  private known: string | null = null;
  private problem = '';
  private ended = false;
  private following = true;
  /** Where what is known ends; `null`: nothing is known. */
  private mark: string | null = null;
  /** The question that is on its way; `null`: none is. */
  private asking: AbortController | null = null;
  /** Whether that one is kept by the server until there is something. */
  private waits = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly signal = new Signal<this, void>(this);
}

/** The last so many lines of a text; one that is not ended yet is one, too. */
export function lastLines(text: string, lines: number): string {
  let at = text.endsWith('\n') ? text.length - 1 : text.length;
  for (let left = lines; left > 0; left -= 1) {
    at = at <= 0 ? -1 : text.lastIndexOf('\n', at - 1);
    if (at < 0) {
      return text;
    }
  }
  return text.slice(at + 1);
}
