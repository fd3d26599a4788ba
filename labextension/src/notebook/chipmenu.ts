/** The menu of a notebook's chip: what can be done with what it runs on, and what else it could run on. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { CommandRegistry } from '@lumino/commands';
import { Menu } from '@lumino/widgets';
import { forNotebooks, gpusOf } from '../allocations/holding';
import { CommandIDs } from '../commands/commandargs';
import type { IGpuFit } from '../tokens';
import { toastError } from '../ui/toasts';
import type { ChipWays } from './chip';
import { allocationLine, cellOf } from './drag';
import { entriesOf, type Act, type Situation } from './offers';

/** The menu as it is now. */
export function chipMenu(gpufit: IGpuFit, panel: NotebookPanel, ways: ChipWays): Menu {
  const { model, actions, trans } = gpufit;
  const own = actions.allocationOf(panel);
  const situation: Situation = {
    own: own?.state === 'ended' ? null : own,
    attachment: actions.attachmentOf(panel),
    attached: [...model.attachments.values()].filter(one => one.allocation === own?.id).length,
    others: forNotebooks(model)
      .filter(one => one.id !== own?.id)
      .map(allocation => ({ allocation, gpus: gpusOf(allocation, model.nodes, trans) }))
  };
  const commands = new CommandRegistry();
  const menu = new Menu({ commands });
  menu.addClass('jp-GpuFit-menu');
  entriesOf(situation, trans).forEach((entry, index) => {
    if (entry === null) {
      menu.addItem({ type: 'separator' });
    } else {
      const command = `${entry.act}-${index}`;
      commands.addCommand(command, {
        label: entry.label,
        execute: () => {
          try {
            act(entry.act, entry.allocation, gpufit, panel, ways);
          } catch (error) {
            toastError(entry.label, error, trans);
          }
        }
      });
      menu.addItem({ command });
    }
  });
  return menu;
}

function act(
  what: Act,
  allocation: string,
  { actions, model }: IGpuFit,
  panel: NotebookPanel,
  ways: ChipWays
): void {
  const isMenu = true; // the command says itself what came of it
  switch (what) {
    case 'attach':
      return ways.execute(CommandIDs.attach, { allocation, path: panel.context.path, isMenu });
    case 'detach':
      return ways.execute(CommandIDs.detach, { allocation, isMenu });
    case 'extend':
      return ways.execute(CommandIDs.extend, { allocation, time: '1h', isMenu });
    case 'logs':
      return ways.execute(CommandIDs.logs, { allocation, isMenu });
    case 'release':
      return ways.execute(CommandIDs.release, { allocation, isMenu });
    case 'train':
      return ways.execute(CommandIDs.train, { path: panel.context.path, isMenu });
    case 'request':
      return ways.open('request');
    case 'show':
      return ways.open('allocations', allocation);
    case 'insert': {
      const known = model.allocations.get(allocation);
      return known && actions.insertLine(panel, cellOf(allocationLine(known)));
    }
  }
}
