/** What has become of a press of the form's buttons: it is asked, it runs, or why not, and the ways on from there. */

import React, { useCallback, useRef, useState } from 'react';
import type { Then } from '../actions';
import { ApiError, sentenceOf } from '../api';
import type { IGpuFit } from '../tokens';
import { useReconnected, useSignals } from '../ui/hooks';
import type { Nearest, Request } from '../wire';
import type { Form } from './asking';
import { outcome, takeWords, type Outcome } from './telling';
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
  busy: Then | null;
  failure: Failure | null;
  /** What was granted, as long as there is something to tell of it. */
  outcome: Outcome | null;
  ask: (request: Request, then: Then) => void;
}

/** What came of a press of a button; it is of no interest any more once the form has changed. */
interface Result {
  form: Form;
  failure: Failure | null;
  granted: string;
}

/** One request at a time, however often the button is pressed. */
export function useRequest({ actions, draft, model, trans }: IGpuFit): IRequesting {
  useSignals(model.allocationsChanged, draft.changed);
  const [busy, setBusy] = useState<Then | null>(null);
  const [result, setResult] = useState<Result | null>(null);
  const asking = useRef(false);
  useReconnected(
    model,
    useCallback(() => setResult(before => (before?.failure ? null : before)), [])
  );

  const ask = useCallback(
    (request: Request, then: Then): void => {
      if (asking.current) {
        return;
      }
      asking.current = true;
      setBusy(then);
      setResult(null);
      actions
        .request(request, then)
        .then(
          allocation => {
            draft.change({ name: '' }); // it is taken now
            setResult({ form: draft.form, failure: null, granted: allocation.id });
          },
          (error: unknown) =>
            setResult({ form: draft.form, failure: failureOf(error, request), granted: '' })
        )
        .finally(() => {
          asking.current = false;
          setBusy(null);
        });
    },
    [actions, draft]
  );
  const current = result?.form === draft.form ? result : null;
  const allocation = model.allocations.get(current?.granted ?? '');
  return {
    busy,
    failure: current?.failure ?? null,
    outcome: allocation === undefined ? null : outcome(allocation, trans),
    ask
  };
}

function failureOf(error: unknown, request: Request): Failure {
  const known = error instanceof ApiError ? error : null;
  return {
    text: sentenceOf(error),
    nearest: known?.details.nearest ?? null,
    canWait: known?.code === 'no-fit' && request.wait === undefined
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
