/**
 * What was, when this page came: jobs that have ended while nobody looked, and what each notebook used the last time. The
 * server knows; it is asked once.
 */

import type { IStateDB } from '@jupyterlab/statedb';
import { Signal, type ISignal } from '@lumino/signaling';
import type { GpuFitModel } from './model';
import type { Allocation } from './wire';

const SHOWN = 86_400; // s after its end for which a job is shown
const KEY = 'jupyter-gpufit:dismissed';
const MOST = 200; // ids of dismissed ones that are kept

export class Past {
  constructor(private readonly model: GpuFitModel) {
    model.allocationsChanged.connect(this.onAllocations, this);
  }

  /** Ask for it, and show what is to be shown; what was `dismissed` before is not. Called by the plugin. */
  async begin(state: IStateDB | null): Promise<void> {
    const { model } = this;
    const kept: unknown = await state?.fetch(KEY).catch(() => undefined);
    const dismissed = Array.isArray(kept) ? kept.filter(id => typeof id === 'string') : [];
    model.dismissed.connect((_, id) => {
      dismissed.push(id);
      state?.save(KEY, dismissed.slice(-MOST)).catch((error: unknown) => {
        console.warn('What was dismissed was not kept.', error);
      });
    });
    await this.connected();
    let ended: Allocation[] = [];
    try {
      ended = (await model.api.allocations(true)).filter(one => one.state === 'ended');
    } catch {
      return; // what comes from now on is enough
    }
    ended.forEach(one => this.learn(one));
    const since = model.now() - SHOWN;
    const shown = ended.filter(
      ({ id, job, ended: end }) => job !== null && (end ?? 0) > since && !dismissed.includes(id)
    );
    model.recall(shown);
    this.signal.emit();
  }

  /** The allocation that was for that notebook, and ended last. */
  lastOf(notebook: string): Allocation | null {
    return this.latest.get(notebook) ?? null;
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  private onAllocations(): void {
    for (const one of this.model.allocations.values()) {
      if (one.state === 'ended') {
        this.learn(one);
      }
    }
  }

  private learn(one: Allocation): void {
    const { notebook } = one.request;
    if (notebook !== undefined) {
      const known = this.latest.get(notebook);
      if (known === undefined || (known.ended ?? 0) <= (one.ended ?? 0)) {
        this.latest.set(notebook, one);
      }
    }
  }

  private async connected(): Promise<void> {
    const { model } = this;
    if (model.connection !== 'connected') {
      await new Promise<void>(resolve => {
        const look = (): void => {
          if (model.connection === 'connected') {
            model.connectionChanged.disconnect(look);
            resolve();
          }
        };
        model.connectionChanged.connect(look);
      });
    }
  }

  private readonly latest = new Map<string, Allocation>();
  private readonly signal = new Signal<this, void>(this);
}
