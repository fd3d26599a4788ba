/** What a card shows, part by part. Each is one thing that is to be known of an allocation. */

import { notebookIcon } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useEffect, useRef, useState } from 'react';
import { parseDuration } from '../format';
import type { GpuFitModel } from '../model';
import { Button } from '../ui/button';
import { useClock } from '../ui/hooks';
import { Sign, type Mark } from '../ui/marks';
import { useWork } from '../ui/work';
import type { Allocation, Attachment } from '../wire';
import { outage, span, times, type Doing, type Waiting } from './holding';

const SECOND = 1000;
const LATER = 120; // s after its end, from which on its times change each minute (`span`)

/** Age and time left. Only this renders again as time passes. */
export function Times(props: {
  allocation: Allocation;
  model: GpuFitModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { allocation, model, trans } = props;
  const { ended } = allocation;
  useClock(ended !== null && model.now() - ended > LATER ? 60 * SECOND : SECOND);
  return <div className="jp-GpuFit-fact">{times(allocation, model.now(), trans).join(' · ')}</div>;
}

export function Progress({ doing }: { doing: Doing }): React.JSX.Element {
  const { words, detail, fraction } = doing;
  const known =
    fraction === null ? {} : { 'aria-valuenow': Math.round(fraction * 100), 'aria-valuemin': 0 };
  return (
    <div className="jp-GpuFit-doing">
      <div>{words}</div>
      <div
        className="jp-GpuFit-progress"
        role="progressbar"
        aria-label={words}
        {...known}
        aria-valuemax={fraction === null ? undefined : 100}
      >
        <div
          className={fraction === null ? 'jp-mod-unknown' : ''}
          style={fraction === null ? undefined : { width: `${fraction * 100}%` }}
        />
      </div>
      {detail !== '' && (
        <div className="jp-GpuFit-fact jp-mod-line" title={detail}>
          {detail}
        </div>
      )}
    </div>
  );
}

export function Queue({ place, missing, frees, until }: Waiting): React.JSX.Element {
  return (
    <div className="jp-GpuFit-queue">
      <div className="jp-mod-place">{place}</div>
      {missing !== '' && <div>{missing}</div>}
      {frees !== '' && <div>{frees}</div>}
      <div className="jp-GpuFit-fact">{until}</div>
    </div>
  );
}

/** A sentence that wants attention, and what can be done about it. */
export function Note(props: {
  tone: 'warn' | 'bad' | 'quiet';
  mark?: Mark;
  alert?: boolean;
  text: string;
  children?: React.ReactNode;
}): React.JSX.Element {
  const { tone, mark, alert = false, text, children } = props;
  return (
    <div className="jp-GpuFit-remark" data-tone={tone} role={alert ? 'alert' : undefined}>
      {mark !== undefined && <Sign mark={mark} />}
      <span className="jp-mod-text">{text}</span>
      {children}
    </div>
  );
}

/** That its node does not answer, for how long, and what the server says of it. */
export function Unreachable(props: {
  allocation: Allocation;
  model: GpuFitModel;
  trans: TranslationBundle;
}): React.JSX.Element | null {
  useClock(SECOND);
  const { allocation, model, trans } = props;
  const said = outage(allocation);
  if (said === null) {
    return null;
  }
  const silent = span(model.now() - (allocation.unreachable_since ?? 0));
  return (
    <>
      <div>{trans.__('No answer from %1 for %2', allocation.node ?? '', silent)}</div>
      {said !== '' && <Note tone="warn" mark="alert" text={said} />}
    </>
  );
}

/** The notebooks that run there, or will; each can be gone to. `own`: one that was started there. */
export function Notebooks(props: {
  attachments: readonly Attachment[];
  own: string | null;
  running: boolean;
  open: ((path: string) => void) | undefined;
  trans: TranslationBundle;
  /** What can be done with them. */
  children: React.ReactNode;
}): React.JSX.Element | null {
  const { attachments, own, running, open, trans, children } = props;
  const rows = attachments.map(({ path, state }) => ({
    path,
    state:
      state !== 'waiting'
        ? ''
        : running
          ? trans.__('as soon as its kernel is idle')
          : trans.__('as soon as it runs')
  }));
  if (own !== null) {
    rows.push({ path: own, state: trans.__('started here') });
  }
  if (rows.length === 0) {
    return null;
  }
  return (
    <div className="jp-GpuFit-notebooks">
      <ul aria-label={trans.__('Notebooks')}>
        {rows.map(({ path, state }) => (
          <li key={path}>
            <notebookIcon.react tag="span" width="14px" height="14px" aria-hidden="true" />
            <div>
              {open === undefined ? (
                <span className="jp-mod-path">
                  <Path path={path} />
                </span>
              ) : (
                <button
                  type="button"
                  className="jp-GpuFit-button jp-mod-link jp-mod-path"
                  data-action={`open ${path}`}
                  aria-label={path}
                  title={trans.__('Go to %1', path)}
                  onClick={() => open(path)}
                >
                  <Path path={path} />
                </button>
              )}
              {state !== '' && <span className="jp-GpuFit-fact">{state}</span>}
            </div>
          </li>
        ))}
      </ul>
      {children}
    </div>
  );
}

/** A path, which may break after each folder. */
function Path({ path }: { path: string }): React.JSX.Element {
  return (
    <>
      {path.split('/').map((part, at) => (
        <React.Fragment key={at}>
          {at > 0 && (
            <>
              /<wbr />
            </>
          )}
          {part}
        </React.Fragment>
      ))}
    </>
  );
}

/** How much more time: asked in place. */
export function Extend(props: {
  extend: (time: string) => Promise<unknown>;
  close: () => void;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { extend, close, trans } = props;
  const [time, setTime] = useState('1h');
  const work = useWork<'extend'>();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    input.current?.focus();
    input.current?.select();
  }, []);
  const submit = async (): Promise<void> => {
    const done = await work.run('extend', () => {
      parseDuration(time); // before the server is asked: a typing error is told at once
      return extend(time.trim());
    });
    if (done) {
      close();
    }
  };
  return (
    <form
      className="jp-GpuFit-extend"
      onSubmit={event => {
        event.preventDefault();
        void submit();
      }}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          close();
        }
      }}
    >
      <label>
        {trans.__('More time')}
        <input
          ref={input}
          className="jp-mod-styled"
          data-action="extend"
          value={time}
          size={6}
          spellCheck={false}
          aria-invalid={work.error !== ''}
          title={trans.__("A duration such as '30m', '2h' or '1d12h'")}
          onChange={event => setTime(event.target.value)}
        />
      </label>
      <Button
        submit
        kind="main"
        action="extend"
        label={trans.__('Extend')}
        busy={work.busy !== null}
      />
      <Button kind="link" action="extend" label={trans.__('Cancel')} onPress={close} />
      {work.error !== '' && <Note tone="bad" mark="alert" alert text={work.error} />}
    </form>
  );
}
