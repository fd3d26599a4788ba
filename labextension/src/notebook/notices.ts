/**
 * Notifications about the notebooks of this page: where one runs now, and what came of its local kernel. They come once the
 * page has followed, so that what they say is so already.
 */

import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { GpuFitModel } from '../model';
import type { IGpuFit } from '../tokens';
import { actionsOf, toastError, type Way } from '../ui/toasts';
import type { Allocation, Attachment } from '../wire';
import type { Follower } from './follow';
import {
  attachedNotice,
  changesOf,
  detachedNotice,
  notAttachedNotice,
  type Attachments,
  type Back,
  type Change,
  type Notice
} from './words';

const SHOWN = 8000; // ms; what went wrong stays
const REASON_WITHIN = 1500; // ms: a notebook is given back just before its allocation ends

export class Notices {
  constructor(
    private readonly gpufit: IGpuFit,
    private readonly tracker: INotebookTracker,
    private readonly follower: Follower,
    private readonly show: (allocation: string) => void
  ) {
    gpufit.model.attachmentChanged.connect((_, attachment) => {
      this.locals.set(attachment.session, attachment.local_kernel_id);
    });
    gpufit.model.attachmentsChanged.connect(model => {
      const after = new Map(model.attachments);
      // (A server that has lost our extension tells nothing of notebooks.)
      const changes = model.about === null ? [] : changesOf(this.known, after);
      this.known = after;
      changes.forEach(({ was }) => this.takeBack(was.session));
      changes.forEach(change => void this.tell(change));
    });
    gpufit.model.allocationsChanged.connect(model => {
      for (const [session, { allocation }] of this.offered) {
        if ((model.allocations.get(allocation)?.state ?? 'ended') === 'ended') {
          this.takeBack(session);
        }
      }
    });
  }

  private async tell({ kind, was }: Change): Promise<void> {
    const { model, trans } = this.gpufit;
    await Promise.resolve(); // the follower hears of it, too
    await this.follower.follow();
    const panel = this.notebookOf(was.session);
    if (panel === null) {
      return; // it is another window's, or it is closed
    }
    const name = PathExt.basename(panel.context.path);
    let notice: Notice | null;
    if (kind === 'attached') {
      const allocation = model.allocations.get(was.allocation);
      const there = kernelOf(panel) === was.kernel_id;
      notice = there && allocation ? attachedNotice(name, allocation, model.nodes, trans) : null;
    } else {
      const allocation = await reasonOf(model, was.allocation);
      if (this.known.has(was.session)) {
        return; // it is attached again by now
      }
      notice =
        kind === 'detached'
          ? detachedNotice(name, allocation, this.backOf(panel, was), trans)
          : notAttachedNotice(name, allocation, this.backOf(panel, was), trans);
    }
    if (notice !== null && !panel.isDisposed) {
      this.emit(notice, was);
    }
  }

  /** (Looked for each time: a notification stays for long, and must not keep a notebook that is closed.) */
  private notebookOf(session: string): NotebookPanel | null {
    return this.tracker.find(one => one.sessionContext.session?.id === session) ?? null;
  }

  private backOf(panel: NotebookPanel, was: Attachment): Back {
    const kernel = kernelOf(panel);
    if (kernel === was.local_kernel_id) {
      return 'kept';
    }
    return kernel !== undefined && kernel === this.locals.get(was.session) ? 'fresh' : 'other';
  }

  private emit({ text, tone, offers }: Notice, was: Attachment): void {
    const { actions, trans } = this.gpufit;
    const id = was.allocation;
    const way = (label: string, act: () => Promise<unknown>): Way => ({
      label,
      go: () => act().catch((error: unknown) => toastError(label, error, trans))
    });
    const ways = {
      detach: way(trans.__('Detach'), () => actions.detach(id)),
      attach: way(trans.__('Attach again'), () => actions.attach(id, this.notebookOf(was.session))),
      release: way(trans.__('Release'), () => actions.release(id)),
      show: { label: trans.__('Show GPUs'), go: () => this.show(id) }
    };
    this.takeBack(was.session);
    const toast = Notification.emit(text, tone, {
      autoClose: tone === 'success' || tone === 'info' ? SHOWN : false,
      actions: actionsOf(offers.map(offer => ways[offer]))
    });
    if (offers.some(offer => offer !== 'show')) {
      this.offered.set(was.session, { toast, allocation: id });
    }
  }

  /** What was told of a notebook, and offered, holds no longer. */
  private takeBack(session: string): void {
    const { toast } = this.offered.get(session) ?? {};
    if (toast !== undefined) {
      this.offered.delete(session);
      Notification.dismiss(toast);
    }
  }

  private known: Attachments = new Map();
  /** By session: the notification that offers something to be done with that allocation. */
  private readonly offered = new Map<string, { toast: string; allocation: string }>();
  /** By session: the local kernel, as the latest event says. */
  private readonly locals = new Map<string, string>();
}

function kernelOf(panel: NotebookPanel): string | undefined {
  return panel.sessionContext.session?.kernel?.id;
}

/** The allocation once it is known why the notebook left it, or as it is after a moment: then it was only detached. */
async function reasonOf(model: GpuFitModel, id: string): Promise<Allocation | null> {
  const ends = (): boolean => {
    const state = model.allocations.get(id)?.state;
    return state === 'stopping' || state === 'ended';
  };
  if (!ends()) {
    await new Promise<void>(resolve => {
      const look = (): void => {
        if (ends()) {
          done();
        }
      };
      const done = (): void => {
        clearTimeout(timer);
        model.allocationsChanged.disconnect(look);
        resolve();
      };
      const timer = setTimeout(done, REASON_WITHIN);
      model.allocationsChanged.connect(look);
    });
  }
  return model.allocations.get(id) ?? null;
}
