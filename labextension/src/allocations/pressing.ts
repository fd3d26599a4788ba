/** What the buttons of a card say, and what they do. */

import { PathExt } from '@jupyterlab/coreutils';
import { formOf } from '../request/asking';
import { runOf } from '../request/rundraft';
import type { IGpuFit } from '../tokens';
import type { ButtonProps } from '../ui/button';
import type { Allocation } from '../wire';
import type { Action } from './options';
import { confirmRelease } from './releasing';

/** Ways to what is elsewhere on the page; a shell may not have them. */
export interface Ways {
  openNotebook?: (path: string) => void;
  openRequest?: () => void;
  /** In the file browser. */
  openFolder?: (path: string) => void;
  /** Without it, logs are shown in the card. */
  openLogs?: (allocationId: string) => void;
}

export interface Pressed {
  action: Action;
  gpufit: IGpuFit;
  allocation: Allocation;
  /** Path of the notebook at hand. */
  notebook: string | null;
}

export function wordsOf(props: Pressed): Pick<ButtonProps, 'label' | 'title' | 'kind'> {
  const { action, gpufit, allocation, notebook } = props;
  const { trans } = gpufit;
  const { name, job } = allocation;
  const file = PathExt.basename(notebook ?? '');
  switch (action) {
    case 'attach':
      return { kind: 'main', label: trans.__('Attach %1', file), title: attachTitle(props, file) };
    case 'detach':
      return {
        kind: 'link',
        label: trans.__('Detach'),
        title: trans.__('Give the notebooks their own kernels back. "%1" goes on.', name)
      };
    case 'new':
      return {
        label: trans.__('New notebook'),
        title: trans.__('Open a new notebook that runs on "%1"', name)
      };
    case 'again':
      return job === null
        ? { label: trans.__('Ask again'), title: trans.__('Ask once more for the same') }
        : { label: trans.__('Run again'), title: trans.__('Run once more the same') };
    case 'logs':
      return { kind: 'link', label: trans.__('Logs'), title: trans.__('What "%1" prints', name) };
    case 'usage':
      return {
        kind: 'link',
        label: trans.__('Usage'),
        title: trans.__('What "%1" uses of its GPUs', name)
      };
    case 'extend':
      return {
        kind: 'link',
        label: trans.__('Extend'),
        title: trans.__('Give "%1" more time', name)
      };
    case 'copy':
      return {
        kind: 'link',
        label: trans.__('Copy line'),
        title: trans.__('Copy the %gpufit line that asks for the same, for a notebook')
      };
    case 'cancel':
      return { kind: 'link', label: trans.__('Cancel'), title: trans.__('Take the request back') };
    case 'release':
      return {
        kind: 'link',
        label: job === null ? trans.__('Release') : trans.__('Stop'),
        title: trans.__('End "%1" and give its GPUs back', name)
      };
    case 'dismiss':
      return {
        kind: 'link',
        label: trans.__('Dismiss'),
        title: trans.__('Do not show it any more')
      };
  }
}

function attachTitle({ gpufit, allocation }: Pressed, file: string): string {
  const { actions, trans } = gpufit;
  const now = actions.notebook === null ? null : actions.allocationOf(actions.notebook);
  const first =
    allocation.state === 'running'
      ? trans.__('Run %1 on these GPUs.', file)
      : trans.__('Run %1 on these GPUs as soon as they are there.', file);
  const then =
    now === null
      ? trans.__('Its own kernel is kept, with its variables.')
      : trans.__('It leaves "%1", which goes on.', now.name);
  return `${first} ${then}`;
}

export async function does(
  action: Action,
  gpufit: IGpuFit,
  allocation: Allocation,
  ways: Ways
): Promise<void> {
  const { actions, model } = gpufit;
  const { id } = allocation;
  switch (action) {
    case 'attach':
      await actions.attach(id);
      break;
    case 'detach':
      await actions.detach(id);
      break;
    case 'new':
      await actions.newNotebook(id);
      break;
    case 'again':
      await again(gpufit, allocation, ways);
      break;
    case 'logs':
      ways.openLogs?.(id);
      break;
    case 'copy':
      actions.copyLine(id);
      break;
    case 'cancel':
      await actions.release(id);
      break;
    case 'release':
      if (await confirmRelease(gpufit, [allocation])) {
        await actions.release(id);
      }
      break;
    case 'dismiss':
      model.dismiss(id);
      break;
    case 'usage':
    case 'extend':
      break; // in place
  }
}

/** The same once more. Where a job had variables, their values are asked for first: nobody has kept them. */
async function again(gpufit: IGpuFit, allocation: Allocation, ways: Ways): Promise<void> {
  const { actions, draft, model } = gpufit;
  const { id, job, request } = allocation;
  const asked = { gpus: 1, memory: 0, ...request };
  if (job === null) {
    await actions.request(asked, 'nothing');
  } else if (job.env.length > 0) {
    draft.change(formOf(request));
    draft.run.open(runOf(allocation));
    await new Promise(resolve => setTimeout(resolve)); // until it is shown: the keyboard goes there
    ways.openRequest?.();
    return;
  } else {
    const { sweep = {}, ...same } = request.job ?? { run: job.run };
    delete same.turn; // each is the first of its own
    const points = Object.entries(sweep).map(([name, value]): [string, string[]] => [
      name,
      [value]
    ]);
    await actions.submit({ ...asked, job: same }, Object.fromEntries(points));
  }
  model.dismiss(id);
}
