/** What has become of a press of the form's buttons: it is asked, it runs, or why not, and the ways on from there. */

import React, { useCallback, useRef, useState } from 'react';
import type { Then } from '../actions';
import { ApiError, sentenceOf } from '../api';
import type { IGpuFit } from '../tokens';
import { useReconnected, useSignals } from '../ui/hooks';
import type { Allocation, Nearest, Request } from '../wire';
import type { Form } from './asking';
import type { Run } from './run';
import { outcome, outcomeOfAll, takeWords, type Outcome } from './telling';
import { Saying, Ways } from './verdict';

export interface Failure {
  /** The server's sentence. */
  text: string;
  nearest: Nearest | null;
  /** Whether the same request can be granted later. */
  canWait: boolean;
}

export interface IRequesting {
  /** What is being asked; `null`: nothing. */
  busy: Then | 'job' | null;
  failure: Failure | null;
  /** What was granted, as long as there is something to tell of it. */
  outcome: Outcome | null;
  ask: (request: Request, then: Then) => void;
  /** Ask for the job that is written, on the GPUs of the request. */
  submit: (request: Request) => void;
}

/** What came of a press of a button; it is of no interest any more once the form has changed. */
interface Result {
  form: Form;
  run: Run | null;
  failure: Failure | null;
  granted: string[];
}

/** One request at a time, however often the button is pressed. */
export function useRequest({ actions, draft, model, trans }: IGpuFit): IRequesting {
  useSignals(model.allocationsChanged, draft.changed);
  const [busy, setBusy] = useState<Then | 'job' | null>(null);
  const [result, setResult] = useState<Result | null>(null);
  const asking = useRef(false);
  useReconnected(
    model,
    useCallback(() => setResult(before => (before?.failure ? null : before)), [])
  );

  const start = useCallback(
    (what: Then | 'job', request: Request, does: () => Promise<Allocation[]>): void => {
      if (asking.current) {
        return;
      }
      asking.current = true;
      setBusy(what);
      setResult(null);
      const run = draft.run.form; // (one may write the next while this is asked for)
      const become = (failure: Failure | null, granted: string[]): void =>
        setResult({ form: draft.form, run: draft.run.form, failure, granted });
      does()
        .then(
          allocations => {
            draft.change({ name: '' }); // it is taken now
            if (run !== null && draft.run.form === run) {
              draft.run.close(); // and what may be secret is not needed any more
            }
            become(
              null,
              allocations.map(one => one.id)
            );
          },
          (error: unknown) => become(failureOf(error, request, what), [])
        )
        .finally(() => {
          asking.current = false;
          setBusy(null);
        });
    },
    [draft]
  );
  const current = result?.form === draft.form && result.run === draft.run.form ? result : null;
  const granted = current?.granted ?? [];
  return {
    busy,
    failure: current?.failure ?? null,
    outcome: outcomes(granted, model.allocations, trans),
    ask: (request, then) =>
      start(then, request, async () => [await actions.request(request, then)]),
    submit: request => {
      const { job, folder = '', sweep = {} } = draft.run.reading ?? {};
      if (job) {
        const asked = { ...request, folder, job };
        start('job', asked, () => actions.submit(asked, sweep));
      }
    }
  };
}

function outcomes(
  ids: string[],
  allocations: ReadonlyMap<string, Allocation>,
  trans: IGpuFit['trans']
): Outcome | null {
  const granted = ids.map(id => allocations.get(id)).filter(one => one !== undefined);
  const first = granted.at(0);
  if (ids.length > 1) {
    return outcomeOfAll(granted, ids.length, trans);
  }
  return first === undefined ? null : outcome(first, trans);
}

function failureOf(error: unknown, request: Request, what: Then | 'job'): Failure {
  const known = error instanceof ApiError ? error : null;
  return {
    text: sentenceOf(error),
    nearest: known?.details.nearest ?? null,
    // (A job waits by itself.)
    canWait: known?.code === 'no-fit' && request.wait === undefined && what !== 'job'
  };
}

export interface AskedProps {
  gpufit: IGpuFit;
  asked: IRequesting;
  onTaken: () => void;
}

/** Shown under the form, instead of the dry run. */
export function Asked({ gpufit, asked, onTaken }: AskedProps): React.JSX.Element {
  const { trans } = gpufit;
  const { failure, outcome: become } = asked;
  const tones = { going: 'quiet', there: 'good', failed: 'bad' } as const;
  return (
    <>
      <div role="alert">
        {failure !== null && (
          <Saying tone="bad" text={failure.text}>
            <Ways
              gpufit={gpufit}
              nearest={failure.nearest}
              nearestLabel={failure.nearest ? takeWords(failure.nearest, trans) : ''}
              canWait={failure.canWait}
              onTaken={onTaken}
            />
          </Saying>
        )}
      </div>
      <div role="status" aria-live="polite" className="jp-GpuFit-formOutcome">
        {become !== null && <Saying tone={tones[become.kind]} text={become.text} />}
      </div>
    </>
  );
}
