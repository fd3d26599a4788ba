/** What an allocation's container or process printed: in the main area, or in place where there is none. */

import { Clipboard, MainAreaWidget } from '@jupyterlab/apputils';
import { ReactWidget, textEditorIcon } from '@jupyterlab/ui-components';
import React, { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from 'react';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import { Sign } from '../ui/marks';
import { isSeen } from '../ui/seen';
import { plain, runs } from './ansi';
import { Note } from './cardparts';
import { standing } from './holding';
import { LogReader } from './logreader';

const TAILS = [200, 1000, 10_000, 100_000]; // lines

/** A tab of the main area with what it printed. `gpufit:logs` adds it, unless it is there already. */
export function logsPanel(gpufit: IGpuFit, id: string): MainAreaWidget<LogsContent> {
  const panel = new MainAreaWidget({ content: new LogsContent(gpufit, id) });
  const name = gpufit.model.allocations.get(id)?.name ?? id;
  panel.id = logsPanelId(id);
  panel.title.label = gpufit.trans.__('%1: logs', name);
  panel.title.caption = gpufit.trans.__('What allocation "%1" printed', name);
  panel.title.icon = textEditorIcon;
  panel.title.closable = true;
  panel.toolbar.hide();
  return panel;
}

export function logsPanelId(id: string): string {
  return `jp-gpufit-logs-${id}`;
}

export class LogsContent extends ReactWidget {
  constructor(
    private readonly gpufit: IGpuFit,
    private readonly allocationId: string
  ) {
    super();
    this.addClass('jp-GpuFit-logsTab');
  }

  protected override render(): React.JSX.Element {
    return <Logs gpufit={this.gpufit} id={this.allocationId} />;
  }
}

export function Logs({ gpufit, id }: { gpufit: IGpuFit; id: string }): React.JSX.Element {
  const { model, trans } = gpufit;
  useSignals(model.allocationsChanged);
  const [tail, setTail] = useState(TAILS[0] ?? 200);
  const [follow, setFollow] = useState(true);
  const [copied, setCopied] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const allocation = model.allocations.get(id);
  const ended = allocation === undefined || allocation.state === 'ended';
  const { text, error, over, look } = useLog(gpufit, id, tail, follow, root);
  const end = useEnd(text, follow);
  const printed = useMemo(() => runs(text ?? ''), [text]);
  useEffect(() => setCopied(false), [text]);
  return (
    <div className="jp-GpuFit-logs" ref={root}>
      <div className="jp-GpuFit-logsBar" role="toolbar" aria-label={trans.__('Logs')}>
        {allocation !== undefined && <State gpufit={gpufit} id={id} />}
        <label>
          <input
            type="checkbox"
            checked={follow && !over}
            disabled={over}
            onChange={event => setFollow(event.target.checked)}
          />
          {trans.__('Follow')}
        </label>
        <label title={trans.__('How much of it is shown')}>
          {trans.__('Last')}
          <select value={tail} onChange={event => setTail(Number(event.target.value))}>
            {TAILS.map(lines => (
              <option key={lines} value={lines}>
                {trans.__('%1 lines', lines.toLocaleString('en'))}
              </option>
            ))}
          </select>
        </label>
        <Button kind="link" label={trans.__('Refresh')} onPress={look} />
        <Button
          kind="link"
          label={copied ? trans.__('Copied') : trans.__('Copy')}
          title={trans.__('Copy the text')}
          off={(text ?? '') === ''}
          onPress={() => {
            Clipboard.copyToSystem(plain(text ?? ''));
            setCopied(true);
          }}
        />
      </div>
      {error !== '' && <Note tone="bad" mark="alert" alert text={error} />}
      {ended && (text ?? '') !== '' && (
        <Note
          tone="quiet"
          text={trans.__('It has ended; this is what is kept of what it printed.')}
        />
      )}
      <div
        className="jp-GpuFit-logsText jp-RenderedText"
        role="region"
        aria-label={trans.__('What it printed')}
        tabIndex={0}
        {...end}
      >
        {text === '' ? (
          <p className="jp-GpuFit-fact">
            {ended
              ? trans.__('It has printed nothing.')
              : trans.__('It has printed nothing so far.')}{' '}
            {allocation?.job == null && trans.__('(What cells print is in their notebook.)')}
          </p>
        ) : (
          <pre>
            {printed.map((run, index) =>
              run.style === '' ? (
                run.text
              ) : (
                <span key={index} className={run.style}>
                  {run.text}
                </span>
              )
            )}
          </pre>
        )}
      </div>
    </div>
  );
}

function State({ gpufit, id }: { gpufit: IGpuFit; id: string }): React.JSX.Element | null {
  const allocation = gpufit.model.allocations.get(id);
  if (allocation === undefined) {
    return null;
  }
  const { word, tone, mark } = standing(allocation, gpufit.trans);
  return (
    <span className="jp-GpuFit-state" data-tone={tone}>
      <Sign mark={mark} />
      {allocation.name}: {word}
    </span>
  );
}

type Log = Pick<LogReader, 'text' | 'error' | 'over' | 'look'>;

/** What is printed; with `follow` also what comes, as long as it can be seen. */
function useLog(
  { model }: IGpuFit,
  id: string,
  tail: number,
  follow: boolean,
  root: React.RefObject<HTMLElement | null>
): Log {
  const reader = useMemo(
    () => new LogReader(model.api, id, tail, () => isSeen(root.current)),
    [model, id, tail, root]
  );
  const [, again] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    reader.changed.connect(again);
    reader.begin();
    return () => {
      reader.changed.disconnect(again);
      reader.stop();
    };
  }, [reader]);
  useEffect(() => {
    reader.follow = follow;
  }, [reader, follow]);
  const before = useRef<string | null>(null);
  before.current = reader.text ?? before.current; // what is known stays until there is something else
  const { error, over } = reader;
  return { text: before.current, error, over, look: () => reader.look() };
}

/** Stays at the end as text comes, unless the person has scrolled away from it. */
function useEnd(
  text: string | null,
  follow: boolean
): { ref: React.RefObject<HTMLDivElement>; onScroll: () => void } {
  const ref = useRef<HTMLDivElement>(null);
  const isThere = useRef(true);
  useLayoutEffect(() => {
    if (follow && isThere.current && ref.current !== null) {
      ref.current.scrollTop = ref.current.scrollHeight;
    }
  }, [text, follow]);
  return {
    ref,
    onScroll: () => {
      const { current } = ref;
      isThere.current =
        current === null || current.scrollHeight - current.scrollTop - current.clientHeight < 8;
    }
  };
}
