/** The buttons of the request form: each asks for what is written, for a notebook or as a job. */

import { PathExt } from '@jupyterlab/coreutils';
import React, { useEffect, useId, useRef } from 'react';
import type { Then } from '../actions';
import { word } from '../line';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import type { IRequesting } from './asked';

interface Props {
  gpufit: IGpuFit;
  asked: IRequesting;
  /** Path of the notebook at hand; `null`: none. */
  notebook: string | null;
}

export function Buttons({ gpufit, asked, notebook }: Props): React.JSX.Element {
  const { draft, model, trans } = gpufit;
  const id = useId();
  const { request } = draft;
  const { form: run, reading } = draft.run;
  const root = useFoundFocus(run !== null);
  const connected = model.connection === 'connected';
  const isRight = request !== null && (run === null || reading?.job != null);
  // One that cannot be pressed keeps the focus, and says why: a disabled one would do neither.
  const button = (what: Then | 'job', label: string, main: boolean, off = false) => {
    const ready = !off && connected && asked.busy === null && isRight;
    return (
      <button
        type="button"
        className={`jp-mod-styled ${main ? 'jp-mod-accept' : 'jp-GpuFit-formSecond'}`}
        aria-disabled={!ready}
        aria-busy={asked.busy === what}
        aria-describedby={`${id}-held`}
        title={what === 'attach' ? (notebook ?? undefined) : undefined}
        onClick={() => {
          if (ready && what === 'job') {
            asked.submit(request);
          } else if (ready && what !== 'job') {
            asked.ask(request, what);
          }
        }}
      >
        {asked.busy === what ? trans.__('Asking…') : label}
      </button>
    );
  };
  const jobs = reading?.jobs ?? 1;
  return (
    <>
      <div className="jp-GpuFit-formButtons" ref={root}>
        {run !== null ? (
          <>
            {button('job', trans._n('Start the job', 'Start %1 jobs', jobs), true)}
            <Button
              kind="link"
              label={trans.__('Not as a job')}
              onPress={() => draft.run.close()}
            />
          </>
        ) : (
          <>
            {button(
              'attach',
              notebook === null
                ? trans.__('Attach this notebook')
                : trans.__('Attach %1', PathExt.basename(notebook)),
              true,
              notebook === null
            )}
            {button('new', trans.__('New notebook'), false)}
            <Button
              kind="link"
              label={trans.__('Run as a job…')}
              title={trans.__(
                'A script, a notebook or a command, which runs also when nobody looks'
              )}
              onPress={() => draft.run.open(notebook === null ? {} : jobOf(notebook))}
            />
          </>
        )}
      </div>
      {/* (Of a mistake the dry run tells those who see it.) */}
      <p id={`${id}-held`} className={isRight ? 'jp-GpuFit-formHeld' : 'jp-GpuFit-unseen'}>
        {connected && whyNot(gpufit, notebook, isRight)}
      </p>
    </>
  );
}

/** Other buttons are there once a job is written, or is not any more: who pressed one that is gone goes on from here. */
function useFoundFocus(writes: boolean): React.RefObject<HTMLDivElement> {
  const root = useRef<HTMLDivElement>(null);
  const before = useRef(writes);
  useEffect(() => {
    if (before.current !== writes && document.activeElement === document.body) {
      const form = root.current?.closest('form');
      const found = writes ? form?.querySelector('input') : root.current?.querySelector('button');
      found?.focus();
    }
    before.current = writes;
  }, [writes]);
  return root;
}

/** What is to be written to run that file. */
export function jobOf(path: string): { what: string; folder: string } {
  return { what: word(PathExt.basename(path)), folder: PathExt.dirname(path) };
}

/** Why a button cannot be pressed, although there is a server, or what a press does; empty: it is plain. */
function whyNot(gpufit: IGpuFit, notebook: string | null, isRight: boolean): string {
  const { draft, trans } = gpufit;
  if (!isRight) {
    return trans.__('A field is not right yet.');
  }
  if (draft.run.form !== null) {
    return trans.__('It runs unattended, also when this page and the server are closed.');
  }
  return notebook === null
    ? trans.__('No notebook is open: open one to attach it, or take a new one.')
    : moves(gpufit);
}

/** What the first button does to a notebook that is on GPUs already; empty: it is on none. */
function moves({ actions, trans }: IGpuFit): string {
  const { notebook } = actions;
  const now = notebook === null ? null : actions.allocationOf(notebook);
  if (notebook === null || now === null) {
    return '';
  }
  const file = PathExt.basename(notebook.context.path);
  return actions.attachmentOf(notebook)?.state === 'waiting'
    ? trans.__(
        '%1 is to run on %2; it would go to the new GPUs instead, and %2 is not taken back.',
        file,
        now.name
      )
    : trans.__('%1 runs on %2; it would move to the new GPUs, and %2 stays held.', file, now.name);
}
