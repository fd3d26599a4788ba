/**
 * The file of an attached notebook goes on to name its local kernel.
 *
 * JupyterLab writes the kernel that a notebook has into its metadata. That of an allocation would be there for as long as
 * the notebook is attached: saved like that, it opens without a kernel at a colleague's who does not have us, and asks
 * for GPUs of its own at one's who does. So the local kernel is put back whenever it is replaced; and what nobody but
 * JupyterLab has changed is no unsaved change.
 */

import type { INotebookModel, INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { ServiceManager } from '@jupyterlab/services';
import type { PartialJSONValue } from '@lumino/coreutils';
import type { Actions } from '../actions';
import type { GpuFitModel } from '../model';

type Key = 'kernelspec' | 'language_info';
type Metadata = Record<string, PartialJSONValue | undefined>;

/** Do so for all notebooks. Called by the plugin. */
export function keepLocalKernel(
  tracker: INotebookTracker,
  actions: Actions,
  model: GpuFitModel,
  services: ServiceManager.IManager
): void {
  const keep = (panel: NotebookPanel): void => {
    const keeper = new Keeper(panel, actions, services);
    const look = (): void => keeper.look();
    // (The page may know of the swap before it knows of the attachment.)
    model.attachmentsChanged.connect(look);
    panel.disposed.connect(() => model.attachmentsChanged.disconnect(look));
    void panel.context.ready.then(() => keeper.begin());
  };
  tracker.forEach(keep);
  tracker.widgetAdded.connect((_, panel) => keep(panel));
}

class Keeper {
  constructor(
    private readonly panel: NotebookPanel,
    private readonly actions: Actions,
    private readonly services: ServiceManager.IManager
  ) {}

  begin(): void {
    const { model } = this.panel;
    model?.contentChanged.connect(() => (this.others += 1));
    model?.metadataChanged.connect((_, { key, oldValue, newValue }) => {
      if (key === 'kernelspec' || key === 'language_info') {
        this.onChange(model, key, oldValue as Metadata | undefined, newValue as Metadata);
      }
    });
    this.look();
  }

  /** See whether the metadata name an allocation's kernel now. */
  look(): void {
    const { model } = this.panel;
    const spec = model?.getMetadata('kernelspec') as Metadata | undefined;
    if (model && !this.panel.isDisposed && this.isForeign(spec)) {
      this.putBack(model, 'kernelspec', undefined);
    }
  }

  private onChange(
    model: INotebookModel,
    key: Key,
    before: Metadata | undefined,
    after: Metadata | undefined
  ): void {
    const foreign =
      key === 'kernelspec'
        ? this.isForeign(after)
        : this.isAttached && before?.name !== undefined && before.name === after?.name;
    if (this.isAtWork || !foreign) {
      this.others -= this.isAtWork ? 1 : 0; // the change of content that comes of it is ours
      return;
    }
    if (this.replaced.size === 0) {
      const [wasClean, others] = [!model.dirty && !model.collaborative, this.others];
      // Whoever makes a change marks the model as changed only after it.
      queueMicrotask(() => this.undo(model, wasClean, others));
    }
    this.replaced.set(key, before);
    this.others -= 1; // and so is this one
  }

  private undo(model: INotebookModel, wasClean: boolean, others: number): void {
    const replaced = new Map(this.replaced);
    this.replaced.clear();
    if (!model.isDisposed) {
      replaced.forEach((before, key) => this.putBack(model, key, before));
      if (wasClean && this.others === others) {
        model.dirty = false;
      }
    }
  }

  private putBack(model: INotebookModel, key: Key, before: Metadata | undefined): void {
    const value = key === 'kernelspec' ? (this.localSpec ?? before) : before;
    if (value !== undefined) {
      this.isAtWork = true;
      model.setMetadata(key, value);
      this.isAtWork = false;
    }
  }

  /** Whether the notebook has the kernel of an allocation now, and a local one to go back to. */
  private get isAttached(): boolean {
    const attachment = this.actions.attachmentOf(this.panel);
    const kernel = this.panel.sessionContext.session?.kernel?.id;
    return attachment?.state === 'attached' && kernel === attachment.kernel_id;
  }

  private isForeign(spec: Metadata | undefined): boolean {
    const kernel = this.panel.sessionContext.session?.kernel?.name;
    return this.isAttached && spec?.name === kernel && this.localSpec?.name !== kernel;
  }

  /** What the metadata of a notebook on its local kernel say. */
  private get localSpec(): Metadata | null {
    const id = this.actions.attachmentOf(this.panel)?.local_kernel_id;
    const kernel = [...this.services.kernels.running()].find(one => one.id === id);
    const spec = this.services.kernelspecs.specs?.kernelspecs[kernel?.name ?? ''];
    return spec === undefined
      ? null
      : { display_name: spec.display_name, language: spec.language, name: spec.name };
  }

  /** Whether it is this that changes the metadata. */
  private isAtWork = false;
  /** What the metadata said, of what is to be put back. */
  private readonly replaced = new Map<Key, Metadata | undefined>();
  /** Counts the changes of the content, but for those that are undone here. */
  private others = 0;
}
