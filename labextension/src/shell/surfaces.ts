/** Where commands and buttons show things: the sidebar and its sections. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';
import { toastError } from '../ui/toasts';
import type { Sidebar } from './sidebar';

export interface Surfaces {
  /** Show the sidebar, with the keyboard in that section of it, at that allocation. */
  open: (section?: string, allocation?: string) => void;
  logs: (allocation: string) => void;
  examine: (node: string) => void;
}

/** For what a press opens: whatever goes wrong is said in a notification. */
export function openOf(
  app: JupyterFrontEnd,
  sidebar: Sidebar | null,
  trans: TranslationBundle
): Surfaces['open'] {
  const { open } = surfacesOf(app, sidebar, trans);
  return (section, allocation) => {
    try {
      open(section, allocation);
    } catch (error) {
      toastError(trans.__('Show GPUs'), error, trans);
    }
  };
}

/** Those of this page. Where the sidebar's plugin is disabled, each raises an error that says so. */
export function surfacesOf(
  app: JupyterFrontEnd,
  sidebar: Sidebar | null,
  trans: TranslationBundle
): Surfaces {
  const shown = (): Sidebar => {
    if (sidebar === null) {
      throw new Error(
        trans.__('The sidebar is switched off here; switch plugin jupyter-gpufit:sidebar on.')
      );
    }
    app.shell.activateById(sidebar.id);
    return sidebar;
  };
  return {
    open: (section, allocation) => {
      sidebar?.target(section, allocation);
      shown();
    },
    logs: allocation => {
      // In the main area, where there is one with tabs; else in the card.
      if (sidebar?.allocations.ways.openLogs === undefined) {
        const panel = shown();
        panel.reveal(panel.allocations);
      }
      sidebar?.allocations.showLogs(allocation);
    },
    examine: node => {
      const panel = shown();
      panel.reveal(panel.cluster);
      panel.cluster.examine(node);
    }
  };
}
