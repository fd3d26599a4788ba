import type { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { CommandRegistry } from '@lumino/commands';
import { PluginRegistry } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import { CommandIDs } from '../commands/commandargs';
import plugins from '../index';
import { Server } from './server';

test('of all that an application may have, only notebooks are needed', async () => {
  const failed: unknown[][] = [];
  jest.spyOn(console, 'error').mockImplementation((...message) => void failed.push(message));
  const added: [string, string][] = [];
  const sessions = { runningChanged: new Signal({}), refreshRunning: () => Promise.resolve() };
  const app = {
    commands: new CommandRegistry(),
    shell: { add: (widget: Widget, area: string) => void added.push([widget.id, area]) },
    serviceManager: { serverSettings: new Server().settings, sessions }
  } as unknown as JupyterFrontEnd;
  const tracker = {
    currentWidget: null,
    currentChanged: new Signal({}),
    widgetAdded: new Signal({}),
    filter: () => [],
    forEach: () => undefined
  };
  const registry = new PluginRegistry<JupyterFrontEnd>();
  registry.application = app;
  registry.registerPlugin({
    id: 'notebooks',
    autoStart: true,
    provides: INotebookTracker,
    activate: () => tracker
  });
  registry.registerPlugins(plugins);
  await registry.activatePlugins('startUp');

  expect(failed).toEqual([]);
  expect(added).toEqual([['jp-gpufit-sidebar', 'right']]);
  expect(app.commands.listCommands().sort()).toEqual(Object.values(CommandIDs).sort());
});
