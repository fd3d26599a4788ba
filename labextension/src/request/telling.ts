/**
 * A request and the server's answer to it, put to people. Pure.
 *
 *     Request ───────────→ "2 GPUs with 16 GiB each"
 *     Decision, nodes ───→ Told: "gpu03: 2 × A100-40GB, the tightest of 5 that fit"; else why nowhere, and what would
 *     Allocation ────────→ Outcome: what has become of what was asked
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { gpusLine } from '../cluster/describe';
import { formatDuration, formatSize, parseDuration, parseSize } from '../format';
import type { Allocation, Decision, Nearest, Node, Request } from '../wire';

/** The request in a few words, without its wishes. */
export function requestWords(
  request: Pick<Partial<Request>, 'gpus' | 'memory'>,
  trans: TranslationBundle
): string {
  const { memory = 0 } = request;
  const sizes = (Array.isArray(memory) ? memory : [memory]).map(parseSize);
  const count = request.gpus ?? sizes.length;
  const gpus = trans._n('%1 GPU', '%1 GPUs', count);
  if (sizes.every(size => size === 0)) {
    return gpus;
  }
  if (new Set(sizes).size > 1) {
    return trans.__('%1 with %2', gpus, sizes.map(formatSize).join(', '));
  }
  const size = formatSize(sizes[0] ?? 0);
  return count === 1 ? trans.__('%1 with %2', gpus, size) : trans.__('%1 with %2 each', gpus, size);
}

/** What a dry run says. `fits`: where it would go. `full`: nowhere now. `never`: nowhere, however long one waits. */
export interface Told {
  verdict: 'fits' | 'full' | 'never';
  /** The node; empty: none. */
  node: string;
  text: string;
  /** On the button that asks for the nearest request instead; empty: there is none. */
  nearest: string;
}

export function tell(
  decision: Decision,
  request: Request | null,
  nodes: ReadonlyMap<string, Node>,
  trans: TranslationBundle
): Told {
  const { node, nearest } = decision;
  if (node !== null) {
    const models = gpusLine(decision.gpus, nodes.get(node), trans);
    return {
      verdict: 'fits',
      node,
      text: trans.__('%1, %2', models, place(decision, trans)),
      nearest: ''
    };
  }
  const waits =
    !decision.never && request?.wait !== undefined
      ? ' ' + trans.__('It would wait for up to %1.', formatDuration(parseDuration(request.wait)))
      : '';
  return {
    verdict: decision.never ? 'never' : 'full',
    node: '',
    text: decision.summary + waits,
    nearest: nearest ? takeWords(nearest, trans) : ''
  };
}

/** On the button that asks for the nearest request instead: `'Take 1 GPU with 20 GiB on brook'`. */
export function takeWords(nearest: Nearest, trans: TranslationBundle): string {
  return trans.__('Take %1 on %2', requestWords(nearest, trans), nearest.node);
}

/** Why this node of all that fit. */
function place({ fitting, policy }: Decision, trans: TranslationBundle): string {
  if (fitting.length <= 1) {
    return trans.__('the only one that fits');
  }
  return policy === 'best-fit'
    ? trans.__('the tightest of %1 that fit', fitting.length)
    : trans.__('first of %1 that fit, by policy %2', fitting.length, policy);
}

/** Why each node was not chosen: those that came furthest first. */
export function reasons(decision: Decision): [node: string, why: string][] {
  return decision.stages
    .slice()
    .reverse()
    .flatMap(stage => Object.entries(stage.rejected));
}

/** What has become of what was asked, in one sentence; and whether that is what was wanted. */
export interface Outcome {
  kind: 'going' | 'there' | 'failed';
  text: string;
}

/** `null`: there is nothing to tell any more (it was released, or its time is over). */
export function outcome(allocation: Allocation, trans: TranslationBundle): Outcome | null {
  const { name, state, reason, queue, message, progress } = allocation;
  const node = allocation.node ?? '';
  if (state === 'ended' || state === 'stopping') {
    if (reason === 'finished') {
      return { kind: 'there', text: trans.__('%1 has finished.', name) };
    }
    return hasFailed(allocation)
      ? { kind: 'failed', text: trans.__('%1 failed: %2', name, message) }
      : null;
  }
  if (queue !== null) {
    const { position, of } = queue;
    return {
      kind: 'going',
      text: trans.__('%1 waits: it is number %2 of %3 in the queue.', name, position, of)
    };
  }
  if (state === 'running') {
    return { kind: 'there', text: trans.__('%1 runs on %2.', name, node) };
  }
  const pulls = progress?.phase === 'pulling';
  return {
    kind: 'going',
    text: pulls
      ? trans.__('%1 is starting on %2, which pulls the image.', name, node)
      : node !== ''
        ? trans.__('%1 is starting on %2.', name, node)
        : trans.__('%1 is asked for.', name)
  };
}

function hasFailed({ reason }: Allocation): boolean {
  return ['failed', 'rejected', 'node-lost', 'over-memory'].includes(reason ?? '');
}

/** Of several, as a sweep makes them: how many are how far. `asked`: how many there were. */
export function outcomeOfAll(
  allocations: readonly Allocation[],
  asked: number,
  trans: TranslationBundle
): Outcome {
  const count = (is: (one: Allocation) => boolean): number => allocations.filter(is).length;
  const failed = count(hasFailed);
  const running = count(one => one.state === 'running');
  // (Those that are not shown any more are over, too.)
  const over = asked - count(one => one.state !== 'ended' && !hasFailed(one)) - failed;
  const parts = [
    trans._n('%1 job is asked for', '%1 jobs are asked for', asked),
    running > 0 ? trans._n('%1 runs', '%1 run', running) : '',
    over > 0 ? trans._n('%1 is over', '%1 are over', over) : '',
    failed > 0 ? trans._n('%1 failed', '%1 failed', failed) : ''
  ];
  const all = over === asked;
  return {
    kind: failed > 0 ? 'failed' : all ? 'there' : 'going',
    text: `${parts.filter(Boolean).join(', ')}.`
  };
}
