/** What the dry run says: where the request would go, or why nowhere, and the ways on from there. */

import {
  checkIcon,
  errorIcon,
  historyIcon,
  infoIcon,
  type LabIcon
} from '@jupyterlab/ui-components';
import React, { useEffect, useState } from 'react';
import { sentenceOf } from '../api';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import type { Decision, Nearest } from '../wire';
import { reasons, tell } from './telling';

const MOST_REASONS = 12;
const JOB_WAITS = 86_400; // s; by itself, where nothing is said of it

const ICONS: Record<Tone, LabIcon> = {
  good: checkIcon,
  warn: historyIcon,
  bad: errorIcon,
  quiet: infoIcon
};

export type Tone = 'good' | 'warn' | 'bad' | 'quiet';

export interface SayingProps {
  tone: Tone;
  /** Before the sentence, in bold. */
  head?: string;
  text: string;
  /** A newer one is on its way. */
  old?: boolean;
  children?: React.ReactNode;
}

/** A sentence with an icon, and what can be done about it. */
export function Saying({ tone, head = '', text, old, children }: SayingProps): React.JSX.Element {
  const Icon = ICONS[tone];
  return (
    <div className={`jp-GpuFit-formSaying jp-mod-${tone}${old ? ' jp-mod-old' : ''}`}>
      <Icon.react tag="span" className="jp-GpuFit-formSayingIcon" />
      <div className="jp-GpuFit-formSayingText">
        <span>
          {head !== '' && <strong>{head}: </strong>}
          {text}
        </span>
        {children}
      </div>
    </div>
  );
}

export interface WaysProps {
  gpufit: IGpuFit;
  /** What would fit; `null`: nothing. */
  nearest: Nearest | null;
  nearestLabel: string;
  /** Whether to wait would help. */
  canWait: boolean;
  /** One of them was taken. */
  onTaken: () => void;
}

/** Buttons that change the request into one that can be granted. */
export function Ways(props: WaysProps): React.JSX.Element | null {
  const { gpufit, nearest, nearestLabel, canWait, onTaken } = props;
  const { draft, trans } = gpufit;
  if (nearest === null && !canWait) {
    return null;
  }
  return (
    <div className="jp-GpuFit-formWays">
      {nearest !== null && (
        <Button
          label={nearestLabel}
          onPress={() => {
            draft.take(nearest);
            onTaken();
          }}
        />
      )}
      {canWait && (
        <Button
          label={trans.__('Wait for it')}
          title={trans.__('The request is kept in a queue until GPUs are free.')}
          onPress={() => {
            draft.change({ waits: true, wait: draft.form.wait.trim() || '10m' });
            onTaken();
          }}
        />
      )}
    </div>
  );
}

/** The dry run of the request that is being written. */
export function Verdict({
  gpufit,
  onTaken
}: {
  gpufit: IGpuFit;
  onTaken: () => void;
}): React.JSX.Element {
  const { draft, model, trans } = gpufit;
  useSignals(draft.changed);
  const { decision, request, problem } = draft;
  if (request === null) {
    return (
      <Saying
        tone="quiet"
        text={trans.__('Where it would go is told as soon as all fields are right.')}
      />
    );
  }
  if (problem !== '') {
    return <Saying tone="bad" text={problem} old={draft.isAsking} />;
  }
  if (decision === null) {
    return <Saying tone="quiet" text={trans.__('Looking for GPUs…')} old />;
  }
  const isJob = draft.run.form !== null;
  const waits = isJob && request.wait === undefined ? { ...request, wait: JOB_WAITS } : request;
  const told = tell(decision, waits, model.nodes, trans);
  const tones = { fits: 'good', full: 'warn', never: 'bad' } as const;
  return (
    <Saying tone={tones[told.verdict]} head={told.node} text={told.text} old={draft.isAsking}>
      <Ways
        gpufit={gpufit}
        nearest={decision.nearest}
        nearestLabel={told.nearest}
        canWait={told.verdict === 'full' && waits.wait === undefined}
        onTaken={onTaken}
      />
      {told.verdict !== 'fits' && model.nodes.size > 0 && (
        <Reasons gpufit={gpufit} decision={decision} />
      )}
    </Saying>
  );
}

/** Why not, node by node: asked for when it is opened. */
function Reasons({ gpufit, decision }: { gpufit: IGpuFit; decision: Decision }): React.JSX.Element {
  const { draft, model, trans } = gpufit;
  const [open, setOpen] = useState(false);
  const [found, setFound] = useState<[string, string][] | null>(null);
  const [problem, setProblem] = useState('');

  useEffect(() => {
    const { request } = draft;
    let wanted = open && request !== null;
    if (wanted && request !== null) {
      model.api.explain(request, true).then(
        answer => {
          if (wanted) {
            setFound(reasons(answer));
            setProblem('');
          }
        },
        (error: unknown) => {
          if (wanted) {
            setProblem(sentenceOf(error));
          }
        }
      );
    }
    return () => {
      wanted = false;
    };
  }, [open, decision, draft, model]);

  const more = (found?.length ?? 0) - MOST_REASONS;
  return (
    <details
      className="jp-GpuFit-formReasons"
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>{trans.__('Why, node by node')}</summary>
      {problem !== '' && <p>{problem}</p>}
      <ul>
        {(found ?? []).slice(0, MOST_REASONS).map(([node, why]) => (
          <li key={node}>
            <strong>{node}</strong>: {why}
          </li>
        ))}
        {more > 0 && <li>{trans._n('… and %1 more node', '… and %1 more nodes', more)}</li>}
      </ul>
    </details>
  );
}
