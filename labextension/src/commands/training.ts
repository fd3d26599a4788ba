/** The command that runs something unattended: at once with what it is given, else by the form in the sidebar. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { PathExt } from '@jupyterlab/coreutils';
import { word } from '../line';
import { formOf } from '../request/asking';
import { jobOf } from '../request/buttons';
import type { Run } from '../request/run';
import type { Surfaces } from '../shell/surfaces';
import type { IGpuFit } from '../tokens';
import type { Allocation, JobRequest, Request, Sweep } from '../wire';
import { given, say, text, type Arguments } from './choosing';

const FILE = /\.(py|ipynb)$/;

/** The jobs; `null`: the form is open. */
export async function train(
  app: JupyterFrontEnd,
  gpufit: IGpuFit,
  surfaces: Surfaces,
  args: Arguments
): Promise<Allocation[] | null> {
  const { actions, draft, trans } = gpufit;
  const path = text(args, 'run') === undefined ? pathOf(app, gpufit, args) : null;
  const { what = '', folder = '' } =
    path === null
      ? { what: text(args, 'run'), folder: text(args, 'folder') }
      : jobOf(app.serviceManager.contents.localPath(path));
  const { run, request, sweep } = parted(args, what, folder);
  if (request.gpus !== undefined && what !== '') {
    const asked = await actions.submit({ memory: 0, ...request } as Request, sweep);
    say(args, trans._n('%1 job is asked for', '%1 jobs are asked for', asked.length));
    return asked;
  }
  draft.change(formOf(request, draft.form));
  draft.run.open(run);
  surfaces.open('request');
  return null;
}

/** The file that is meant: as given, as selected in the file browser (from its menu), or as open. */
function pathOf(app: JupyterFrontEnd, { actions }: IGpuFit, args: Arguments): string | null {
  if (text(args, 'path') !== undefined) {
    return text(args, 'path') ?? null;
  }
  const selected = args['selected'] === true ? (actions.selected?.() ?? null) : null;
  const { currentWidget } = app.shell;
  const open = (currentWidget as { context?: { path?: unknown } } | null)?.context?.path;
  const paths = [selected, open, actions.notebook?.context.path];
  return paths.find((one): one is string => typeof one === 'string' && FILE.test(one)) ?? null;
}

/** What is given of the job, of the request, and of the sweep. */
function parted(
  args: Arguments,
  what: string,
  folder: string
): { run: Partial<Run>; request: Partial<Request>; sweep: Sweep } {
  const job = given(args) as unknown as Omit<JobRequest, 'sweep'> & { sweep?: Sweep };
  const { args: words = [], env = {}, retries = 0, launcher, sweep = {} } = job;
  const asked = given(args, 'path', 'run', 'args', 'env', 'retries', 'launcher', 'sweep');
  const base = folder === '' ? '.' : PathExt.joinWithLeadingSlash(folder);
  return {
    run: {
      what,
      folder,
      args: words.map(word).join(' '),
      retries: retries > 0 ? String(retries) : '',
      torchrun: launcher !== undefined,
      sweep: Object.entries(sweep)
        .map(([name, values]) => word(`${name}=${values.join(',')}`))
        .join(' '),
      env: Object.entries(env).map(([name, value]) => ({ name, value }))
    },
    request: {
      ...(asked as Partial<Request>),
      folder: base,
      job: {
        run: what,
        ...(words.length > 0 ? { args: words } : {}),
        ...(Object.keys(env).length > 0 ? { env } : {}),
        ...(retries > 0 ? { retries } : {}),
        ...(launcher === undefined ? {} : { launcher })
      }
    },
    sweep
  };
}
