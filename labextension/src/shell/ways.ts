/** Where the buttons of cards lead: to notebooks and logs in the main area, to the form of a request. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { Ways } from '../allocations/pressing';
import { logsPanel, logsPanelId } from '../allocations/logs';
import type { IGpuFit } from '../tokens';
import type { Sidebar } from './sidebar';

/** `tabs`: whether there is a file browser, and a main area for more than the one document (not in Notebook 7). */
export function waysOf(
  app: JupyterFrontEnd,
  gpufit: IGpuFit,
  sidebar: Sidebar,
  tabs: boolean
): Ways {
  const ways: Ways = {
    openNotebook: path => void app.commands.execute('docmanager:open', { path }),
    openRequest: () => sidebar.enter('request')
  };
  if (tabs) {
    ways.openFolder = path => void app.commands.execute('filebrowser:open-path', { path });
    ways.openLogs = id => {
      const open = [...app.shell.widgets('main')].find(one => one.id === logsPanelId(id));
      const panel = open ?? logsPanel(gpufit, id);
      if (open === undefined) {
        app.shell.add(panel, 'main', { mode: 'tab-after', type: 'GPU logs' });
      }
      app.shell.activateById(panel.id);
    };
  }
  return ways;
}
