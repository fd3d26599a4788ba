/** The command that asks for GPUs: at once with what it is given, else by a small dialog. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { Then } from '../actions';
import { ApiError } from '../api';
import { exactSize } from '../line';
import { formOf } from '../request/asking';
import { requestWords } from '../request/telling';
import type { Surfaces } from '../shell/surfaces';
import type { IGpuFit } from '../tokens';
import type { Way } from '../ui/toasts';
import type { Allocation, Request } from '../wire';
import { given, Problem, say, text, type Arguments } from './choosing';
import { CommandIDs } from './commandargs';
import { askRequest } from './requestdialog';

/** What is asked for; `null`: nothing, after all. */
export async function request(
  app: JupyterFrontEnd,
  gpufit: IGpuFit,
  surfaces: Surfaces,
  args: Arguments
): Promise<Allocation | null> {
  const { actions, settings, trans } = gpufit;
  const { then, ...wishes } = given(args);
  const go = (asked: Request, next: Then): Promise<Allocation> =>
    requestThen(app, gpufit, surfaces, asked, next, args);
  if (wishes['gpus'] !== undefined) {
    return go(wishes as unknown as Request, (then ?? 'nothing') as Then);
  }
  const { requestGpus, requestMemory, requestTime } = settings.values;
  const asked = await askRequest(
    {
      gpus: String(requestGpus),
      memory: sizeText(wishes['memory']) ?? requestMemory,
      time: text(wishes, 'time') ?? requestTime
    },
    actions.notebook !== null,
    trans
  );
  return asked && go({ ...wishes, ...asked.request }, (then ?? asked.then) as Then);
}

async function requestThen(
  app: JupyterFrontEnd,
  { actions, draft, trans }: IGpuFit,
  surfaces: Surfaces,
  request: Request,
  then: Then,
  args: Arguments
): Promise<Allocation> {
  try {
    const asked = await actions.request(request, then);
    if (then === 'nothing') {
      say(args, trans.__('"%1" is asked for', asked.name)); // else the notebook says so
    }
    return asked;
  } catch (error) {
    if (!(error instanceof ApiError) || !/^(no-fit|never-fits)$/.test(error.code)) {
      throw error;
    }
    const why = (): void => {
      draft.change(formOf(request));
      surfaces.open('request');
    };
    const ways: Way[] = [{ label: trans.__('Show Why'), go: why }];
    const { nearest } = error.details;
    if (nearest) {
      const { gpus, memory } = nearest;
      const instead = { ...request, gpus, memory, then, isPalette: true };
      ways.unshift({
        label: trans.__('Take %1', requestWords(nearest, trans)),
        go: () => app.commands.execute(CommandIDs.request, instead)
      });
    }
    throw new Problem(error, ways);
  }
}

/** A size as the form has it. */
export function sizeText(size: unknown): string | undefined {
  const one: unknown = Array.isArray(size) ? size[0] : size;
  return typeof one === 'number' ? exactSize(one) : typeof one === 'string' ? one : undefined;
}
