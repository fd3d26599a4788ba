/** The section of the Running panel: what the person holds. To shut one down is to release it. */

import type { IRunningSessions } from '@jupyterlab/running';
import { gpuWords, gpusBriefly, held, sentence, span, standing } from '../allocations/holding';
import { jobWords } from '../allocations/jobs';
import { confirmRelease } from '../allocations/releasing';
import type { IGpuFit } from '../tokens';
import { gpuIcon } from '../ui/icons';
import { toastError } from '../ui/toasts';
import type { Allocation } from '../wire';

/** `show`: the allocation, where all of it is to be seen; `activate`: a tab, by its widget's id. */
export function runningAllocations(
  gpufit: IGpuFit,
  show: (allocation: string) => void,
  activate: (widget: string) => void
): IRunningSessions.IManager {
  const { model, actions, trans } = gpufit;
  const release = async (allocations: Allocation[]): Promise<void> => {
    const results = await Promise.allSettled(allocations.map(one => actions.release(one.id)));
    results.forEach(result => {
      if (result.status === 'rejected') {
        toastError(trans.__('Release GPUs'), result.reason, trans);
      }
    });
  };
  return {
    name: trans.__('GPUs'),
    running: () =>
      held(model).map(one => ({
        className: 'jp-GpuFit-runningItem',
        icon: () => gpuIcon,
        label: () => labelOf(one, gpufit),
        labelTitle: () => titleOf(one, gpufit),
        detail: () => detailOf(one, gpufit),
        open: () => {
          const panel = actions.notebooksOf(one.id).at(0);
          if (panel) {
            activate(panel.id);
          } else {
            show(one.id);
          }
        },
        shutdown: () => {
          void confirmRelease(gpufit, [one]).then(sure => (sure ? release([one]) : undefined));
        }
      })),
    shutdownAll: () => void release(held(model)),
    refreshRunning: () => void model.refresh(),
    runningChanged: model.allocationsChanged,
    shutdownLabel: trans.__('Release'),
    shutdownAllLabel: trans.__('Release All'),
    shutdownAllConfirmationText: trans.__(
      'Release all your GPUs? What runs there stops, jobs too, and its variables are lost.'
    )
  };
}

/** In few words: the panel is narrow, and all of it is in the title. */
function labelOf(one: Allocation, { model, trans }: IGpuFit): string {
  return `${one.name}: ${gpusBriefly(one, model.nodes, trans)}`;
}

function detailOf(one: Allocation, { model, trans }: IGpuFit): string {
  if (one.state !== 'running') {
    return standing(one, trans).word;
  }
  return one.expires === null ? (one.node ?? '') : span(Math.max(0, one.expires - model.now()));
}

function titleOf(one: Allocation, { model, actions, trans }: IGpuFit): string {
  const paths = actions.notebooksOf(one.id).map(panel => panel.context.path);
  return [
    trans.__('%1: %2', one.name, standing(one, trans).word),
    one.job === null ? '' : trans.__('Runs: %1', jobWords(one.job)),
    trans.__('GPUs: %1', gpuWords(one, model.nodes, trans)),
    one.node === null ? '' : trans.__('Node: %1', one.node),
    one.expires === null
      ? ''
      : trans.__('Time left: %1', span(Math.max(0, one.expires - model.now()))),
    paths.length === 0 ? '' : trans.__('Notebook: %1', paths.join(', ')),
    sentence(one.warning || one.message)
  ]
    .filter(Boolean)
    .join('\n');
}
