/**
 * The job that is being written, beside the request for its GPUs: `gpufit.draft.run`. It is nowhere but in this page:
 * its variables may be secrets.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Signal, type ISignal } from '@lumino/signaling';
import type { Allocation } from '../wire';
import { word } from '../line';
import { localOf } from '../rooted';
import { NOTHING, readRun, type Run, type RunReading } from './run';

export class RunDraft {
  constructor(private readonly trans: TranslationBundle) {}

  /** What is written; `null`: the request is for a notebook. */
  get form(): Run | null {
    return this.written;
  }

  /** What it means. */
  get reading(): RunReading | null {
    return this.read;
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  /** Write a job, beginning with this. */
  open(run: Partial<Run>): void {
    this.write({ ...NOTHING, ...run });
  }

  change(change: Partial<Run>): void {
    this.write({ ...(this.written ?? NOTHING), ...change });
  }

  /** No job, after all, or it is asked for. */
  close(): void {
    this.write(null);
  }

  private write(run: Run | null): void {
    this.written = run;
    this.read = run && readRun(run, this.trans);
    this.signal.emit();
  }

  private written: Run | null = null;
  private read: RunReading | null = null;
  private readonly signal = new Signal<this, void>(this);
}

/** What is to be written to run the same again; of its variables only the names are known. */
export function runOf({ job, request }: Allocation): Partial<Run> {
  if (job === null) {
    return {};
  }
  const { folder = '' } = request;
  const args = job.args.map(word).join(' ');
  return {
    // (A command has its arguments in its line: the form has no field for them.)
    what: job.kind === 'command' ? `${job.run} ${args}`.trim() : job.run,
    folder: localOf(folder) ?? folder,
    args: job.kind === 'command' ? '' : args,
    retries: job.retries > 0 ? String(job.retries) : '',
    torchrun: job.launcher !== null,
    sweep: Object.entries(job.sweep)
      .map(([name, value]) => word(`${name}=${value}`))
      .join(' '),
    env: job.env.map(name => ({ name, value: '' }))
  };
}
