/** Looking at what is right and wrong with a node, check by check as they come. No DOM. */

import { Signal, type ISignal } from '@lumino/signaling';
import { sentenceOf, type Api } from '../api';
import type { Check, Diagnosis } from '../wire';

/** The doctor of one node, for as long as the page is there: a row that is scrolled away loses nothing. */
export class Examination {
  constructor(
    private readonly api: Pick<Api, 'examine' | 'diagnosis'>,
    readonly node: string
  ) {}

  /** What is known by now; `null`: nobody has looked. */
  get diagnosis(): Diagnosis | null {
    return this.latest;
  }

  /** Why it could not be looked at, or not to the end. */
  get problem(): string {
    return this.refused;
  }

  get isRunning(): boolean {
    return this.going !== null;
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  /** Look at the node now; `deep`: and start a kernel on one idle GPU of it. Does nothing while it is being looked at. */
  async start(deep: boolean): Promise<void> {
    if (this.going !== null) {
      return;
    }
    const round = (this.going = {});
    this.refused = '';
    this.latest = { node: this.node, deep, done: false, checks: [] };
    this.signal.emit();
    try {
      let found = await this.api.examine(this.node, deep);
      while (this.going === round) {
        this.latest = found;
        if (found.done) {
          break;
        }
        this.signal.emit();
        found = await this.api.diagnosis(this.node, found.checks.length);
      }
    } catch (error) {
      this.refused = sentenceOf(error);
    }
    if (this.going === round) {
      this.going = null;
      this.signal.emit();
    }
  }

  dispose(): void {
    this.going = null;
    Signal.clearData(this);
  }

  private latest: Diagnosis | null = null;
  private refused = '';
  private going: object | null = null;
  private readonly signal = new Signal<this, void>(this);
}

/** Checks with the same outcome, one after the other, of which the same is to be said. */
export interface Finding extends Omit<Check, 'check'> {
  checks: string[];
}

/** Says once what is to be said of several checks in a row. */
export function findings(checks: readonly Check[]): Finding[] {
  const found: Finding[] = [];
  for (const { check, ...outcome } of checks) {
    const last = found.at(-1);
    if (
      last?.verdict === outcome.verdict &&
      last.message === outcome.message &&
      last.fix === outcome.fix
    ) {
      last.checks.push(check);
    } else {
      found.push({ checks: [check], ...outcome });
    }
  }
  return found;
}

/** How many checks came out how. */
export function tally(checks: readonly Check[]): Record<Check['verdict'], number> {
  const counts = { right: 0, wrong: 0, 'not-checked': 0 };
  checks.forEach(({ verdict }) => (counts[verdict] += 1));
  return counts;
}
