/**
 * All that can be done with GPUs, as commands: for the palette, menus, shortcuts, and other extensions.
 *
 * A command that fails says why in a notification, and rejects with the same sentence; one that a person chose from the
 * palette or a menu (`isPalette`, `isMenu`) has nobody to reject to. It resolves to `null` if the person is asked, and
 * changes their mind.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { InputDialog } from '@jupyterlab/apputils';
import { NotebookPanel, type INotebookTracker } from '@jupyterlab/notebook';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import { forNotebooks, held, notebooksOf } from '../allocations/holding';
import { confirmRelease } from '../allocations/releasing';
import { sentenceOf } from '../api';
import { formatMoment } from '../format';
import type { Surfaces } from '../shell/surfaces';
import type { IGpuFit } from '../tokens';
import { gpuIcon } from '../ui/icons';
import { toastProblem } from '../ui/toasts';
import type { Allocation } from '../wire';
import { Choice, isChosen, named, oneOf, Problem, say, text, type Arguments } from './choosing';
import { ARGUMENTS, CommandIDs, type CommandID } from './commandargs';
import { request } from './requesting';
import { train } from './training';

interface Command {
  label: string;
  caption: string;
  /** What has to be there; left out: nothing. */
  needs?: 'server' | 'allocation' | 'attachment';
  /** Whether it can be done with an allocation that has ended, too. */
  lasting?: boolean;
  /** Whether it needs a kernel, which a job has not. */
  kernel?: boolean;
  execute: (args: Arguments) => unknown;
}

export class Commands {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly gpufit: IGpuFit,
    private readonly tracker: INotebookTracker,
    private readonly surfaces: Surfaces
  ) {
    this.choice = new Choice(app, gpufit);
    for (const [id, command] of Object.entries(this.table())) {
      this.add(id as CommandID, command);
    }
    const { model, actions } = gpufit;
    for (const signal of [
      model.connectionChanged,
      model.allocationsChanged,
      model.attachmentsChanged,
      actions.notebookChanged
    ]) {
      signal.connect(this.onChange, this);
    }
  }

  private table(): Record<CommandID, Command> {
    const { model, actions, trans } = this.gpufit;
    return {
      [CommandIDs.open]: {
        label: trans.__('Show GPUs'),
        caption: trans.__('Show what you hold, a request, and the cluster, in the sidebar'),
        execute: args => this.surfaces.open(text(args, 'section'))
      },
      [CommandIDs.request]: {
        label: trans.__('Request GPUs…'),
        caption: trans.__('Ask for GPUs, for the current notebook, a new one, or for later'),
        needs: 'server',
        execute: args => request(this.app, this.gpufit, this.surfaces, args)
      },
      [CommandIDs.train]: {
        label: trans.__('Train on GPUs…'),
        caption: trans.__(
          'Run a script, a notebook or a command on GPUs, also while nobody looks: a job'
        ),
        needs: 'server',
        execute: args => train(this.app, this.gpufit, this.surfaces, args)
      },
      [CommandIDs.attach]: {
        label: trans.__('Attach to GPUs…'),
        caption: trans.__('Let a notebook run on GPUs that you hold; its local kernel is kept'),
        needs: 'allocation',
        kernel: true,
        execute: args => this.attach(args)
      },
      [CommandIDs.detach]: {
        label: trans.__('Detach from GPUs'),
        caption: trans.__('Give notebooks their local kernels back; you still hold the GPUs'),
        needs: 'attachment',
        execute: args =>
          this.onOne(args, trans.__('Detach from GPUs'), trans.__('Detach'), async one => {
            await actions.detach(one.id);
            return one;
          })
      },
      [CommandIDs.release]: {
        label: trans.__('Release GPUs…'),
        caption: trans.__('End an allocation: what runs there stops, and others can have its GPUs'),
        needs: 'allocation',
        execute: args =>
          this.onOne(args, trans.__('Release GPUs'), trans.__('Release'), one =>
            this.release(one, args)
          )
      },
      [CommandIDs.releaseAll]: {
        label: trans.__('Release All GPUs…'),
        caption: trans.__('End all your allocations'),
        needs: 'allocation',
        execute: args => this.releaseAll(args)
      },
      [CommandIDs.extend]: {
        label: trans.__('Extend Time of GPUs…'),
        caption: trans.__('More time for an allocation'),
        needs: 'allocation',
        execute: args =>
          this.onOne(args, trans.__('Extend time'), trans.__('Choose'), one =>
            this.extend(one, args)
          )
      },
      [CommandIDs.logs]: {
        label: trans.__('Show Logs of GPUs…'),
        caption: trans.__('What the kernel of an allocation, or its container, printed'),
        needs: 'allocation',
        lasting: true,
        execute: args =>
          this.onOne(args, trans.__('Show logs'), trans.__('Show'), one => {
            this.surfaces.logs(one.id);
            return one;
          })
      },
      [CommandIDs.copyLine]: {
        label: trans.__('Copy %gpufit Line'),
        caption: trans.__('Copy the line of code that asks for the same GPUs again'),
        needs: 'allocation',
        lasting: true,
        execute: args =>
          this.onOne(args, trans.__('Copy %gpufit line'), trans.__('Copy'), one => {
            actions.copyLine(one.id);
            const line = actions.lineFor(one.id);
            say(args, trans.__('Copied: %1', line));
            return line;
          })
      },
      [CommandIDs.newNotebook]: {
        label: trans.__('New Notebook on GPUs…'),
        caption: trans.__('Open a new notebook that runs on GPUs that you hold'),
        needs: 'allocation',
        kernel: true,
        execute: async args => {
          const [title, ok] = [trans.__('New notebook on GPUs'), trans.__('Open')];
          const one = await this.choice.allocation(args, title, ok, forNotebooks(model));
          if (one !== null) {
            this.choice.checkKernel(one);
            await actions.newNotebook(one.id);
          }
          return one;
        }
      },
      [CommandIDs.examine]: {
        label: trans.__('Examine Node…'),
        caption: trans.__('Look for what is wrong with a machine of the cluster'),
        needs: 'server',
        execute: async args => {
          const nodes = [...model.nodes.values()];
          const what = { thing: trans.__('node'), none: trans.__('the cluster has none') };
          const wanted = text(args, 'node');
          const title = trans.__('Examine node');
          const ask = { title, label: trans.__('Node:'), ok: trans.__('Examine') };
          const node =
            wanted !== undefined
              ? named(wanted, nodes, what, trans)
              : await oneOf(nodes, { ...ask, describe: one => one.name }, trans);
          if (node !== null) {
            this.surfaces.examine(node.name);
          }
          return node;
        }
      }
    };
  }

  private add(id: CommandID, command: Command): void {
    const { label, caption, needs, lasting, kernel, execute } = command;
    this.app.commands.addCommand(id, {
      label,
      caption,
      icon: args => (isChosen(args) ? undefined : gpuIcon),
      describedBy: { args: { type: 'object', properties: ARGUMENTS[id] } as ReadonlyJSONObject },
      isEnabled: args =>
        this.has(needs) &&
        (lasting || !this.choice.isOver(args)) &&
        !(kernel && this.choice.isJob(args)),
      execute: async args => {
        try {
          await this.known(needs);
          return await execute(this.choice.meant(args));
        } catch (error) {
          const [why, ways] = error instanceof Problem ? [error.cause, error.ways] : [error, []];
          toastProblem(label, sentenceOf(why), ways, this.gpufit.trans);
          if (isChosen(args)) {
            return null;
          }
          throw why;
        }
      }
    });
  }

  // --- what the longer ones do

  private async attach(args: Arguments): Promise<Allocation | null> {
    const { model, actions, trans } = this.gpufit;
    const panel = this.notebookAt(text(args, 'path')) ?? actions.notebook;
    const own = panel && actions.allocationOf(panel);
    const others = forNotebooks(model).filter(one => one.id !== own?.id);
    if (own && others.length === 0 && text(args, 'allocation') === undefined) {
      throw new Error(
        trans.__('This notebook runs on "%1" already, and you hold no other GPUs.', own.name)
      );
    }
    const [title, ok] = [trans.__('Attach to GPUs'), trans.__('Attach')];
    const one = await this.choice.among(others, args, title, ok);
    if (one !== null) {
      this.choice.checkKernel(one);
      await actions.attach(one.id, panel);
    }
    return one;
  }

  private notebookAt(path: string | undefined): NotebookPanel | null {
    const { trans } = this.gpufit;
    const open: { name: string; panel: NotebookPanel }[] = [];
    this.tracker.forEach(panel => open.push({ name: panel.context.path, panel }));
    const what = { thing: trans.__('open notebook'), none: trans.__('none is open') };
    return path === undefined ? null : named(path, open, what, trans).panel;
  }

  private async release(one: Allocation, args: Arguments): Promise<Allocation | null> {
    const { model, actions, trans } = this.gpufit;
    if (args['confirm'] !== false && !(await confirmRelease(this.gpufit, [one]))) {
      return null;
    }
    const attached = notebooksOf(one.id, model.attachments).length > 0;
    const released = await actions.release(one.id);
    if (!attached) {
      say(
        args,
        one.job === null
          ? trans.__('"%1" is released', one.name)
          : trans.__('"%1" is stopped', one.name)
      ); // else its notebooks say so
    }
    return released;
  }

  private async releaseAll(args: Arguments): Promise<Allocation[] | null> {
    const { model, actions, trans } = this.gpufit;
    const all = held(model);
    if (args['confirm'] !== false && !(await confirmRelease(this.gpufit, all))) {
      return null;
    }
    const released = await Promise.all(all.map(one => actions.release(one.id)));
    say(args, trans._n('%1 allocation is released', '%1 allocations are released', all.length));
    return released;
  }

  private async extend(one: Allocation, args: Arguments): Promise<Allocation | null> {
    const { actions, trans } = this.gpufit;
    const given = args['time'];
    let more = typeof given === 'string' || typeof given === 'number' ? given : null;
    if (more === null && one.time === null && one.expires === null) {
      throw new Error(trans.__('"%1" has no time limit: there is nothing to extend.', one.name));
    }
    if (more === null) {
      const { value } = await InputDialog.getText({
        title: trans.__('Extend "%1"', one.name),
        label: trans.__('How much more time, such as 30m, 2h or 1d:'),
        text: '1h',
        required: true,
        okLabel: trans.__('Extend'),
        cancelLabel: trans.__('Cancel')
      });
      more = value;
    }
    if (more === null) {
      return null;
    }
    const extended = await actions.extend(one.id, more);
    const { name, expires } = extended;
    say(
      args,
      expires === null
        ? trans.__('"%1" has more time', name)
        : trans.__('"%1" ends at %2', name, formatMoment(expires))
    );
    return extended;
  }

  /** Do it with the allocation that is meant; `null`: with none, after all. */
  private async onOne<T>(
    args: Arguments,
    title: string,
    ok: string,
    act: (one: Allocation) => T | Promise<T>
  ): Promise<T | null> {
    const one = await this.choice.allocation(args, title, ok);
    return one && act(one);
  }

  // --- what is there

  private has(needs: Command['needs']): boolean {
    const { model } = this.gpufit;
    const missing = model.connection === 'missing' || model.connection === 'refused';
    if (needs === undefined || needs === 'server') {
      return needs === undefined || !missing;
    }
    return needs === 'allocation' ? held(model).length > 0 : model.attachments.size > 0;
  }

  /** Ids and names mean nothing until it is known what there is. */
  private async known(needs: Command['needs']): Promise<void> {
    const { model } = this.gpufit;
    if (needs !== undefined && model.connection === 'connecting') {
      await model.refresh();
    }
  }

  /** Menus and the palette show again what is enabled, but only when that has changed: progress comes often. */
  private onChange(): void {
    const now = (['server', 'allocation', 'attachment'] as const).map(one => this.has(one)).join();
    if (now !== this.enabled) {
      this.enabled = now;
      Object.values(CommandIDs).forEach(id => this.app.commands.notifyCommandChanged(id));
    }
  }

  private readonly choice: Choice;
  private enabled = '';
}
