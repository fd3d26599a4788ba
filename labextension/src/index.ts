/**
 * The plugins of this extension, one for each surface.
 *
 *     wire, format ─→ api, feed ─→ model ─→ actions    what is known, and what can be done
 *                            past ─┘                   what was before this page came
 *     ui/                                              what views have in common
 *     cluster/ · request/ · allocations/               the sections of the sidebar, each with its logic and its views
 *                                                      (jobs are asked for in request/, shown in allocations/)
 *     notebook/                                        a notebook: its chip, its kernel and file while it is attached
 *     commands/                                        all of it, as commands
 *     shell/                                           the sidebar, the status bar, the Running panel, warnings
 *
 * Data flows from the top to the bottom: views subscribe to the model, and change nothing but through actions.
 */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ICommandPalette,
  ISessionContextDialogs,
  IToolbarWidgetRegistry,
  SessionContextDialogs
} from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Actions } from './actions';
import { Api } from './api';
import { CommandIDs } from './commands/commandargs';
import { Commands } from './commands/commands';
import { Feed } from './feed';
import { GpuFitModel } from './model';
import { Chip, type ChipWays } from './notebook/chip';
import { allocationLine, dragFrom, nodeLine } from './notebook/drag';
import { Follower } from './notebook/follow';
import { keepLocalKernel } from './notebook/metadata';
import { Notices } from './notebook/notices';
import { Past } from './past';
import { Draft } from './request/draft';
import { keep } from './request/keeping';
import { Settings } from './settings';
import { runningAllocations } from './shell/running';
import { savingOf } from './shell/saving';
import { Sidebar } from './shell/sidebar';
import { Status } from './shell/status';
import { openOf, surfacesOf } from './shell/surfaces';
import { Warnings } from './shell/warnings';
import { waysOf } from './shell/ways';
import { IGpuFit, IGpuFitSidebar } from './tokens';

const DOMAIN = 'jupyter_gpufit';
const PLUGIN = 'jupyter-gpufit:plugin'; // its settings are in schema/plugin.json

const gpufit: JupyterFrontEndPlugin<IGpuFit> = {
  id: PLUGIN,
  description: 'What is known of the cluster, and what can be done with it.',
  autoStart: true,
  provides: IGpuFit,
  requires: [INotebookTracker],
  optional: [ITranslator, ISessionContextDialogs, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    translator: ITranslator | null,
    dialogs: ISessionContextDialogs | null,
    registry: ISettingRegistry | null
  ): IGpuFit => {
    const services = app.serviceManager;
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const model = new GpuFitModel(
      new Api(services.serverSettings, trans),
      new Feed(services.serverSettings),
      trans
    );
    const actions = new Actions({
      model,
      tracker,
      services,
      commands: app.commands,
      dialogs: dialogs ?? new SessionContextDialogs({ translator: translator ?? nullTranslator }),
      trans
    });
    actions.save = savingOf(app);
    const settings = new Settings();
    if (registry) {
      settings.follow(registry, PLUGIN).catch((error: unknown) => {
        console.warn('The settings of GPUs could not be read; the defaults hold.', error);
      });
    }
    const past = new Past(model);
    return { model, actions, past, settings, draft: new Draft(model, settings, trans), trans };
  }
};

const sidebar: JupyterFrontEndPlugin<Sidebar> = {
  id: 'jupyter-gpufit:sidebar',
  description: 'The sidebar: what the person holds, a request, and the cluster.',
  autoStart: true,
  provides: IGpuFitSidebar,
  requires: [IGpuFit],
  optional: [ILayoutRestorer, IStateDB, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    gpufit: IGpuFit,
    restorer: ILayoutRestorer | null,
    state: IStateDB | null,
    lab: ILabShell | null
  ): Sidebar => {
    const panel = new Sidebar(gpufit, state);
    panel.allocations.ways = waysOf(app, gpufit, panel, lab !== null);
    if (state) {
      void keep(gpufit.draft, state);
    }
    void gpufit.past.begin(state);
    app.shell.add(panel, 'right', { rank: 700, type: 'GPUs' });
    restorer?.add(panel, panel.id);
    return panel;
  }
};

const following: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpufit:following',
  description: 'Notebooks follow at once when they are attached and detached, and it is told.',
  autoStart: true,
  requires: [IGpuFit, INotebookTracker],
  optional: [IGpuFitSidebar],
  activate: (
    app: JupyterFrontEnd,
    gpufit: IGpuFit,
    tracker: INotebookTracker,
    panel: Sidebar | null
  ): void => {
    const services = app.serviceManager;
    const follower = new Follower(gpufit.model, services.sessions);
    keepLocalKernel(tracker, gpufit.actions, gpufit.model, services);
    const open = openOf(app, panel, gpufit.trans);
    new Notices(gpufit, tracker, follower, id => open('allocations', id));
  }
};

const commands: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpufit:commands',
  description: 'Everything that can be done with GPUs, as commands.',
  autoStart: true,
  requires: [IGpuFit, INotebookTracker],
  optional: [IGpuFitSidebar, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    gpufit: IGpuFit,
    tracker: INotebookTracker,
    sidebar: Sidebar | null,
    palette: ICommandPalette | null
  ): void => {
    const { trans } = gpufit;
    new Commands(app, gpufit, tracker, surfacesOf(app, sidebar, trans));
    const category = trans.__('GPUs');
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category, args: { isPalette: true } });
    }
  }
};

const warnings: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpufit:warnings',
  description: 'Warnings about allocations as notifications.',
  autoStart: true,
  requires: [IGpuFit],
  optional: [IGpuFitSidebar],
  activate: (app: JupyterFrontEnd, gpufit: IGpuFit, sidebar: Sidebar | null): void => {
    const open = openOf(app, sidebar, gpufit.trans);
    new Warnings(gpufit, id => open('allocations', id));
  }
};

// An application without one of these (Notebook 7 has no status bar) is none of which to complain: all are optional.
const surfaces: JupyterFrontEndPlugin<void>[] = [
  {
    id: 'jupyter-gpufit:chip',
    description: "In each notebook's toolbar: what it runs on.",
    autoStart: true,
    requires: [IGpuFit],
    optional: [IToolbarWidgetRegistry, IGpuFitSidebar],
    activate: (
      app: JupyterFrontEnd,
      gpufit: IGpuFit,
      toolbars: IToolbarWidgetRegistry | null,
      sidebar: Sidebar | null
    ): void => {
      const ways: ChipWays = {
        execute: (command, args) => void app.commands.execute(command, args),
        open: openOf(app, sidebar, gpufit.trans)
      };
      // (Its place among the others is in schema/plugin.json, and in the person's settings.)
      toolbars?.addFactory<NotebookPanel>(
        'Notebook',
        'gpufit',
        panel => new Chip(gpufit, panel, ways)
      );
    }
  },
  {
    id: 'jupyter-gpufit:status',
    description: 'In the status bar: what the person holds, and what is free.',
    autoStart: true,
    requires: [IGpuFit],
    optional: [IStatusBar, IGpuFitSidebar],
    activate: (
      app: JupyterFrontEnd,
      gpufit: IGpuFit,
      bar: IStatusBar | null,
      sidebar: Sidebar | null
    ): void => {
      const open = openOf(app, sidebar, gpufit.trans);
      if (bar) {
        const item = new Status(gpufit, () => open());
        bar.registerStatusItem('jupyter-gpufit:status', { item, align: 'left', rank: 10 });
      }
    }
  },
  {
    id: 'jupyter-gpufit:running',
    description: 'In the Running panel: what the person holds.',
    autoStart: true,
    requires: [IGpuFit],
    optional: [IRunningSessionManagers, IGpuFitSidebar],
    activate: (
      app: JupyterFrontEnd,
      gpufit: IGpuFit,
      managers: IRunningSessionManagers | null,
      sidebar: Sidebar | null
    ): void => {
      const open = openOf(app, sidebar, gpufit.trans);
      const activate = (id: string): void => app.shell.activateById(id);
      managers?.add(runningAllocations(gpufit, id => open('allocations', id), activate));
    }
  },
  {
    id: 'jupyter-gpufit:drag',
    description: 'Machines and allocations can be dragged into notebooks.',
    autoStart: true,
    requires: [IGpuFit, IGpuFitSidebar],
    activate: (_: JupyterFrontEnd, gpufit: IGpuFit, { allocations, cluster }: Sidebar): void => {
      dragFrom(cluster.node, '[data-node] .jp-GpuFit-nodeHead', head => {
        const name = head.closest<HTMLElement>('[data-node]')?.dataset.node;
        return name === undefined ? null : nodeLine(gpufit, name);
      });
      dragFrom(allocations.node, '[data-allocation] .jp-GpuFit-head', head => {
        const id = head.closest<HTMLElement>('[data-allocation]')?.dataset.allocation ?? '';
        const allocation = gpufit.model.allocations.get(id);
        return allocation === undefined ? null : allocationLine(allocation);
      });
    }
  },
  {
    id: 'jupyter-gpufit:folder',
    description: 'Where new notebooks go, and what is selected there to be run.',
    autoStart: true,
    requires: [IGpuFit],
    optional: [IDefaultFileBrowser],
    activate: (
      _: JupyterFrontEnd,
      { actions }: IGpuFit,
      browser: IDefaultFileBrowser | null
    ): void => {
      if (browser) {
        actions.browsed = () => browser.model.path;
        actions.selected = () => [...browser.selectedItems()].at(0)?.path ?? null;
      }
    }
  }
];

export default [gpufit, sidebar, commands, warnings, following, ...surfaces];
