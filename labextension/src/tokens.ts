/** What the plugins of this extension share, and what other extensions may use. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';
import type { Actions } from './actions';
import type { GpuFitModel } from './model';
import type { Past } from './past';
import type { Draft } from './request/draft';
import type { Settings } from './settings';
import type { Sidebar } from './shell/sidebar';

export const IGpuFit = new Token<IGpuFit>(
  'jupyter-gpufit:IGpuFit',
  'GPUs for notebooks: what is known of the cluster, and what can be done with it.'
);

export const IGpuFitSidebar = new Token<Sidebar>(
  'jupyter-gpufit:IGpuFitSidebar',
  'The sidebar of GPUs, for commands that show something in it.'
);

export interface IGpuFit {
  readonly model: GpuFitModel;
  readonly actions: Actions;
  /** The request that is being written, and where it would go. */
  readonly draft: Draft;
  /** What was before this page came. */
  readonly past: Past;
  readonly settings: Settings;
  readonly trans: TranslationBundle;
}
