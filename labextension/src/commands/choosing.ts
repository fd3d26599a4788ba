/**
 * Which allocation or node is meant: by id or name, as the current notebook's, as the only one there is, or as the
 * person says when asked. Used by commands.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { InputDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { gpuWords, held, standing } from '../allocations/holding';
import type { IGpuFit } from '../tokens';
import { toastDone, type Way } from '../ui/toasts';
import type { Allocation, Node } from '../wire';
import { CommandIDs } from './commandargs';

export type Arguments = ReadonlyPartialJSONObject;

/** Why a command failed, and what can be done about it. */
export class Problem extends Error {
  constructor(
    override readonly cause: Error,
    readonly ways: readonly Way[]
  ) {
    super(cause.message);
  }
}

/** Which allocation a command's arguments mean. */
export class Choice {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly gpufit: IGpuFit
  ) {}

  /** From a context menu (`pointed`): with what the pointer is at. */
  meant(args: Arguments): Arguments {
    if (args['pointed'] !== true) {
      return args;
    }
    const at = (what: string): string | undefined =>
      this.app.contextMenuHitTest(node => what in node.dataset)?.dataset[what];
    return { ...args, allocation: at('allocation'), node: at('node') };
  }

  /** Whether they mean one that has ended. */
  isOver(args: Arguments): boolean {
    const id = text(this.meant(args), 'allocation');
    return id !== undefined && this.gpufit.model.allocations.get(id)?.state === 'ended';
  }

  /** Whether they mean a job. */
  isJob(args: Arguments): boolean {
    const id = text(this.meant(args), 'allocation');
    return id !== undefined && this.gpufit.model.allocations.get(id)?.job != null;
  }

  /** Raises an error for a job: it has no kernel. */
  checkKernel({ name, job }: Allocation): void {
    if (job !== null) {
      throw new Error(
        this.gpufit.trans.__('"%1" is a job: it has no kernel for a notebook to run on.', name)
      );
    }
  }

  /** The one that is named, the current notebook's, the only one, or the one that the person chooses. */
  async allocation(
    args: Arguments,
    title: string,
    ok: string,
    these = held(this.gpufit.model)
  ): Promise<Allocation | null> {
    const { actions } = this.gpufit;
    const panel = actions.notebook;
    const own = panel && actions.allocationOf(panel);
    return text(args, 'allocation') === undefined && own !== null
      ? own
      : this.among(these, args, title, ok);
  }

  /** The one that is named, the only one of these, or the one that the person chooses. */
  async among(
    these: readonly Allocation[],
    args: Arguments,
    title: string,
    ok: string
  ): Promise<Allocation | null> {
    const { model, trans } = this.gpufit;
    const wanted = text(args, 'allocation');
    if (wanted !== undefined) {
      const what = { thing: trans.__('allocation'), none: trans.__('you hold no GPUs') };
      return model.allocations.get(wanted) ?? named(wanted, held(model), what, trans);
    }
    if (these.length === 0) {
      const none = new Error(trans.__('You hold no GPUs that could be meant; request some first.'));
      const go = (): unknown => this.app.commands.execute(CommandIDs.request, { isPalette: true });
      throw new Problem(none, [{ label: trans.__('Request GPUs…'), go }]);
    }
    const ask = { title, label: trans.__('Allocation:'), ok };
    return oneOf(
      these,
      { ...ask, describe: one => allocationWords(one, model.nodes, trans) },
      trans
    );
  }
}

/** Whether a person chose it, who has nobody to reject to. */
export function isChosen(args: Arguments): boolean {
  return args['isPalette'] === true || args['isMenu'] === true;
}

/** Tell what was done, to a person who chose it. */
export function say(args: Arguments, message: string): void {
  if (isChosen(args)) {
    toastDone(message);
  }
}

/** What somebody gave, without what only says where it comes from. */
export function given(args: Arguments, ...but: string[]): Arguments {
  const ways = ['isPalette', 'isMenu', 'pointed', 'selected', '__luminoEvent', ...but];
  return Object.fromEntries(Object.entries(args).filter(([name]) => !ways.includes(name)));
}

export function text(args: Arguments, name: string): string | undefined {
  const value = args[name];
  return typeof value === 'string' && value !== '' ? value : undefined;
}

/** The one of `among` with that id or name. Raises an error that says what there is instead. */
export function named<T extends { name: string; id?: string }>(
  wanted: string,
  among: readonly T[],
  what: { thing: string; none: string },
  trans: TranslationBundle
): T {
  const found =
    among.find(one => one.id === wanted) ?? among.find(one => one.name === wanted) ?? null;
  if (found !== null) {
    return found;
  }
  const names = among.map(one => one.name);
  throw new Error(
    names.length === 0
      ? trans.__('There is no %1 "%2": %3.', what.thing, wanted, what.none)
      : trans.__('There is no %1 "%2"; there is %3.', what.thing, wanted, shortList(names, trans))
  );
}

/** One of `among`: the only one, or as the person chooses. `null`: none after all. */
export async function oneOf<T extends { name: string }>(
  among: readonly T[],
  ask: { title: string; label: string; ok: string; describe: (one: T) => string },
  trans: TranslationBundle
): Promise<T | null> {
  if (among.length <= 1) {
    return among[0] ?? null;
  }
  const items = among.map(one => ask.describe(one));
  const { value } = await InputDialog.getItem({
    title: ask.title,
    label: ask.label,
    okLabel: ask.ok,
    cancelLabel: trans.__('Cancel'),
    items
  });
  return value === null ? null : (among[items.indexOf(value)] ?? null);
}

/** `'train: 2 × A100-40GB, 16 GiB each, running on brook'` */
function allocationWords(
  allocation: Allocation,
  nodes: ReadonlyMap<string, Node>,
  trans: TranslationBundle
): string {
  const { name, node } = allocation;
  const { word } = standing(allocation, trans);
  const words = gpuWords(allocation, nodes, trans);
  return node === null
    ? trans.__('%1: %2, %3', name, words, word)
    : trans.__('%1: %2, %3 on %4', name, words, word, node);
}

const SHOWN = 8; // names in a sentence

function shortList(names: readonly string[], trans: TranslationBundle): string {
  const more = names.length - SHOWN;
  const shown = names.slice(0, SHOWN).map(name => `"${name}"`);
  const list = shown.join(', ');
  return more > 0 ? trans._n('%2 and %1 more', '%2 and %1 more', more, list) : list;
}
