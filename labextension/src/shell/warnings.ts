/**
 * Warnings about allocations (its time will be over, it does nothing) as notifications: one for each allocation that has
 * a warning, with what can be done about it. It goes when the warning is taken back, and when the allocation ends.
 */

import { Notification } from '@jupyterlab/apputils';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';
import { sentence } from '../allocations/holding';
import type { IGpuFit } from '../tokens';
import { actionsOf, toastError } from '../ui/toasts';
import type { Allocation } from '../wire';

const MORE = '1h';

export class Warnings implements IDisposable {
  /** `show`: bring an allocation into view. */
  constructor(
    private readonly gpufit: Pick<IGpuFit, 'model' | 'settings' | 'actions' | 'trans'>,
    private readonly show: (allocationId: string) => void
  ) {
    gpufit.model.allocationsChanged.connect(this.follow, this);
    gpufit.settings.changed.connect(this.follow, this);
    this.follow();
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    this.disposed = true;
    Signal.clearData(this);
    [...this.shown.keys()].forEach(id => this.take(id));
  }

  private follow(): void {
    const { model, settings } = this.gpufit;
    const due = new Map<string, Allocation>();
    for (const one of model.allocations.values()) {
      if (one.warning && one.state !== 'ended' && settings.values.notifyWarnings) {
        due.set(one.id, one);
      }
    }
    [...this.shown.keys()].filter(id => !due.has(id)).forEach(id => this.take(id));
    for (const one of due.values()) {
      // A warning that the person has closed stays closed; a later one is shown anew.
      if (this.shown.get(one.id)?.warning !== one.warning) {
        this.take(one.id);
        this.give(one);
      }
    }
  }

  private give(one: Allocation): void {
    const { actions, trans } = this.gpufit;
    const extend = (): unknown =>
      actions
        .extend(one.id, MORE)
        .catch((error: unknown) => toastError(trans.__('Extend "%1"', one.name), error, trans));
    const longer = one.expires === null ? [] : [{ label: trans.__('Extend 1 h'), go: extend }];
    const toast = Notification.warning(whatWillHappen(one.warning), {
      autoClose: false,
      actions: actionsOf([...longer, { label: trans.__('Show'), go: () => this.show(one.id) }])
    });
    this.shown.set(one.id, { warning: one.warning, toast });
  }

  private take(id: string): void {
    const one = this.shown.get(id);
    if (one) {
      this.shown.delete(id);
      Notification.dismiss(one.toast);
    }
  }

  private readonly shown = new Map<string, { warning: string; toast: string }>();
  private disposed = false;
}

/** JupyterLab shows 140 characters: what can be done about it is what the buttons say, and the sidebar has all of it. */
function whatWillHappen(warning: string): string {
  const [what = ''] = warning.split(': ');
  return sentence(what);
}
