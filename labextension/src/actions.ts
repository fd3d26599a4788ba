/**
 * What a person can do, on notebooks and allocations. Each raises an `Error` whose message is the sentence to show, where
 * it was done: views show it in place, commands in a notification.
 *
 * Attaching is done by the server: it points the notebook's session at the allocation's kernel, and `follow.ts` makes the
 * page go along. `sessionContext.changeKernel` would PATCH the session, and on that a Jupyter server shuts the session's
 * former kernel down: the local one, with the person's variables.
 */

import { Clipboard, type ISessionContextDialogs } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { KernelSpec, ServiceManager } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { ISignal } from '@lumino/signaling';
import { sentenceOf } from './api';
import { lineOf } from './line';
import type { GpuFitModel } from './model';
import { fileOf } from './request/run';
import { localOf } from './rooted';
import type { Allocation, Attachment, Request, Sweep } from './wire';

/** What to do with an allocation once it runs: with the notebook at hand, with a new one, or nothing. */
export type Then = 'attach' | 'new' | 'nothing';

export class Actions {
  constructor(private readonly options: IActionsOptions) {}

  /** The folder that the person looks at, where there is a file browser. */
  browsed: (() => string) | null = null;
  /** The path of the file that is selected there. */
  selected: (() => string | null) | null = null;
  /** Saves the file that is open at that path, if it has been changed. */
  save: ((path: string) => Promise<void>) | null = null;

  /** The notebook that the person works in; `null`: none is open. */
  get notebook(): NotebookPanel | null {
    return this.options.tracker.currentWidget;
  }

  /** `notebook` has become another one. */
  get notebookChanged(): ISignal<unknown, unknown> {
    return this.options.tracker.currentChanged;
  }

  /** The allocation that a notebook runs on, or is about to. */
  allocationOf(panel: NotebookPanel): Allocation | null {
    const { allocations } = this.options.model;
    const attachment = this.attachmentOf(panel);
    if (attachment !== null) {
      return allocations.get(attachment.allocation) ?? null;
    }
    // One whose own kernel runs on GPUs, as the launcher makes it.
    const kernel = panel.sessionContext.session?.kernel?.id;
    const running = [...allocations.values()].filter(one => one.state !== 'ended');
    return running.find(one => one.kernel_id !== null && one.kernel_id === kernel) ?? null;
  }

  /** What makes a notebook run on an allocation although it has a kernel of its own. */
  /** Its path as the server has it: without the name of a drive. */
  pathOf(panel: NotebookPanel): string {
    return this.options.services.contents.localPath(panel.context.path);
  }

  attachmentOf(panel: NotebookPanel): Attachment | null {
    const session = panel.sessionContext.session?.id;
    return session === undefined ? null : (this.options.model.attachments.get(session) ?? null);
  }

  /** The open notebooks that are attached to an allocation, or are about to be. */
  notebooksOf(allocationId: string): NotebookPanel[] {
    return this.options.tracker.filter(
      panel => this.attachmentOf(panel)?.allocation === allocationId
    );
  }

  /** Ask for GPUs. The notebook is attached as soon as they are there: the server waits, not this page. */
  async request(request: Request, then: Then): Promise<Allocation> {
    const { model, trans } = this.options;
    // Before anything is held: whether there is a notebook that can be attached.
    const panel = then === 'attach' ? this.some(this.notebook) : null;
    const session = panel && (await this.sessionOf(panel));
    const asked = { ...this.surroundings(panel, then), ...request };
    const allocation = await model.request(asked);
    try {
      if (session !== null) {
        await model.attach(allocation.id, session);
      } else if (then === 'new') {
        await this.newNotebook(allocation.id);
      }
    } catch (error) {
      const why = sentenceOf(error);
      throw new Error(
        trans.__('"%1" is asked for, but no notebook is attached: %2', allocation.name, why),
        { cause: error }
      );
    }
    return allocation;
  }

  /**
   * Ask for a job; with a sweep, for one each. The server has the folder, and runs what is in its files: so what is
   * changed on this page is saved first.
   */
  async submit(request: Request, sweep: Sweep): Promise<Allocation[]> {
    const { folder = '.', job } = request;
    const file = fileOf(job?.run ?? '');
    let notebook: Partial<Request> = {};
    const local = folder.startsWith('/') ? localOf(folder) : folder;
    if (local !== null && file !== null) {
      const path = PathExt.normalize(PathExt.join(local, file));
      await this.save?.(path);
      notebook = path.endsWith('.ipynb') ? { notebook: path } : {};
    }
    return this.options.model.submit({ ...notebook, ...request }, sweep);
  }

  /** Let a notebook run on an allocation. Its local kernel is kept, with all variables. */
  async attach(allocationId: string, panel = this.notebook): Promise<void> {
    await this.options.model.attach(allocationId, await this.sessionOf(this.some(panel)));
  }

  /** Give all notebooks attached to an allocation their local kernels back. It goes on. */
  async detach(allocationId: string): Promise<void> {
    await this.options.model.detach(allocationId);
    // The event says so, too; but a page that hears no events now has to follow as well.
    await this.options.services.sessions.refreshRunning();
  }

  /** End an allocation; its notebooks get their local kernels back. */
  async release(allocationId: string): Promise<Allocation> {
    return this.options.model.release(allocationId);
  }

  /** More time for an allocation: seconds, or text such as `'1h'`. */
  async extend(allocationId: string, time: string | number): Promise<Allocation> {
    return this.options.model.extend(allocationId, time);
  }

  /** Open a new notebook, and attach it. It begins with a local kernel, to which it returns in the end. */
  async newNotebook(allocationId: string): Promise<void> {
    const { services, commands, trans } = this.options;
    await services.kernelspecs.ready;
    const name = localSpec(services.kernelspecs.specs);
    if (name === null) {
      throw new Error(trans.__('there is no local kernel to start a new notebook with'));
    }
    const file = await services.contents.newUntitled({ path: this.folder, type: 'notebook' });
    // The session first, and not by opening the notebook: in Notebook 7 that happens in another window.
    const session = await services.sessions.startNew(
      {
        path: services.contents.localPath(file.path),
        name: file.name,
        type: 'notebook',
        kernel: { name }
      },
      { kernelConnectionOptions: { handleComms: false } }
    );
    const id = session.id;
    session.dispose(); // this connection to it only
    const widget = (await commands.execute('docmanager:open', {
      path: file.path,
      factory: 'Notebook'
    })) as NotebookPanel | undefined;
    if (widget) {
      widget.isUntitled = true; // it asks for a name when it is saved, as every new notebook does
    }
    await this.options.model.attach(allocationId, id);
  }

  /** Put a cell with that code below the active one, and select it. It is not run. */
  insertLine(panel: NotebookPanel, code: string): void {
    const { content, model } = panel;
    if (model === null || model.readOnly) {
      const name = PathExt.basename(panel.context.path);
      throw new Error(this.options.trans.__('notebook "%1" cannot be changed', name));
    }
    const at = Math.min(content.activeCellIndex + 1, model.cells.length);
    model.sharedModel.insertCell(at, { cell_type: 'code', source: code });
    content.deselectAll();
    content.activeCellIndex = at;
    content.mode = 'command';
    content.activate();
  }

  /** The `%gpufit request …` line that asks for the same again. */
  lineFor(allocationId: string): string {
    const allocation = this.options.model.allocations.get(allocationId);
    if (allocation === undefined) {
      throw new Error(this.options.trans.__('this allocation is not there any more'));
    }
    return lineOf(allocation.request, allocation.job?.env);
  }

  /** Put that line on the clipboard. */
  copyLine(allocationId: string): void {
    Clipboard.copyToSystem(this.lineFor(allocationId));
  }

  /** The folder and the notebook that a request is for, as the server has them. */
  private surroundings(panel: NotebookPanel | null, then: Then): Partial<Request> {
    if (panel !== null) {
      const notebook = this.pathOf(panel);
      return { folder: PathExt.dirname(notebook) || '.', notebook };
    }
    return then === 'new'
      ? { folder: this.options.services.contents.localPath(this.folder) || '.' }
      : {};
  }

  /** Where a new notebook goes. */
  private get folder(): string {
    const { notebook } = this;
    return this.browsed?.() ?? (notebook ? PathExt.dirname(notebook.context.path) : '');
  }

  private some(panel: NotebookPanel | null): NotebookPanel {
    if (panel === null) {
      throw new Error(
        this.options.trans.__('no notebook is open; open the one to attach, or ask for a new one')
      );
    }
    return panel;
  }

  /** The id of a notebook's session, with a kernel that is started if there is none. */
  private async sessionOf(panel: NotebookPanel): Promise<string> {
    const context = panel.sessionContext;
    if (context.session === null && (await context.initialize())) {
      await this.options.dialogs.selectKernel(context);
    }
    if (context.session === null && (await context.startKernel())) {
      await this.options.dialogs.selectKernel(context);
    }
    if (context.session === null) {
      const name = PathExt.basename(panel.context.path);
      throw new Error(
        this.options.trans.__(
          'notebook "%1" has no kernel to come back to; choose one for it first',
          name
        )
      );
    }
    return context.session.id;
  }
}

export interface IActionsOptions {
  model: GpuFitModel;
  tracker: INotebookTracker;
  services: ServiceManager.IManager;
  commands: CommandRegistry;
  dialogs: ISessionContextDialogs;
  trans: TranslationBundle;
}

/** The kernel that a new notebook begins with: the default, unless that one is on GPUs itself. */
export function localSpec(specs: KernelSpec.ISpecModels | null): string | null {
  const named = specs?.kernelspecs ?? {};
  const local = (name: string): boolean => {
    const spec = named[name];
    return spec !== undefined && !isOnGpus(spec);
  };
  const wanted = [specs?.default ?? '', 'python3', ...Object.keys(named)];
  return wanted.find(local) ?? null;
}

/** Whether a kernel of that kind makes an allocation of its own. */
export function isOnGpus(spec: KernelSpec.ISpecModel): boolean {
  const provisioner = spec.metadata?.['kernel_provisioner'] as
    { provisioner_name?: unknown } | undefined;
  return provisioner?.provisioner_name === 'gpufit-provisioner';
}
