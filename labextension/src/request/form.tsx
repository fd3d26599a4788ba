/**
 * The sidebar's section *Request*: what is asked, where it would go, and the buttons that ask for it.
 *
 * It shows `gpufit.draft` and changes it; what was asked is followed until it runs, or until it is clear why it does not.
 */

import { PathExt } from '@jupyterlab/coreutils';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import React, { useEffect, useId, useReducer, useRef, useState } from 'react';
import { formatDuration } from '../format';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import { Asked, useRequest } from './asked';
import { count, largestGpu, MOST_GPUS, type Field, type Form } from './asking';
import { Check, Mistake, Stepper, Text, TextField } from './fields';
import { MemoryField } from './memoryfield';
import { Saying, Verdict } from './verdict';

const TYPING = 800; // ms without a key, after which what is typed is meant

export class RequestSection extends ReactWidget {
  constructor(private readonly gpufit: IGpuFit) {
    super();
    this.addClass('jp-GpuFit-request');
    this.title.label = gpufit.trans.__('Request');
  }

  protected override render(): React.JSX.Element {
    return <RequestForm gpufit={this.gpufit} />;
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.look();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.look();
  }

  protected override onBeforeHide(message: Message): void {
    this.lookAway();
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this.lookAway();
    super.onBeforeDetach(message);
  }

  /** The dry run is kept up to date only while somebody can see it. */
  private look(): void {
    if (this.isVisible) {
      this.watching ??= this.gpufit.draft.watch();
    }
  }

  private lookAway(): void {
    this.watching?.dispose();
    this.watching = null;
  }

  private watching: IDisposable | null = null;
}

export function RequestForm({ gpufit }: { gpufit: IGpuFit }): React.JSX.Element {
  const { draft, model, trans } = gpufit;
  useSignals(
    draft.changed,
    model.connectionChanged,
    model.nodesChanged,
    model.allocationsChanged,
    model.attachmentsChanged
  );
  const notebook = useNotebook(gpufit);
  const { form, request } = draft;
  const mistakes = useSettled(form, draft.mistakes);
  const asked = useRequest(gpufit);
  const verdict = useRef<HTMLDivElement>(null);
  const id = useId();

  const { about } = model;
  const gpus = count(form.gpus);
  const nodes = [...model.nodes.values()];
  // (Of more than the largest node has, the server says that it is never possible: nobody is kept from asking.)
  const most = Math.max(...nodes.map(node => node.gpus.filter(gpu => gpu.allocatable).length), 0);
  const runsImages = nodes.some(node => node.launcher === 'docker') || form.image !== '';
  const hasParts = nodes.some(node => node.gpus.some(gpu => gpu.mig_profile !== null));
  const connected = model.connection === 'connected';
  const change = (what: Partial<Form>): void => draft.change(what);
  const text = (name: keyof Form & Field, label: string, hint: string, placeholder = '') => ({
    label,
    hint,
    placeholder,
    value: form[name],
    mistake: mistakes[name],
    onWrite: (written: string) => change({ [name]: written })
  });
  const usualTime = about?.time ?? null;
  // What was taken over has no button any more: the focus goes to what it has led to.
  const onTaken = (): void => verdict.current?.focus();
  // One that cannot be pressed keeps the focus, and says why: a disabled one would do neither.
  const askButton = (then: 'attach' | 'new', label: string, off = false): React.JSX.Element => {
    const ready = !off && connected && asked.busy === null;
    return (
      <button
        type="button"
        className={`jp-mod-styled ${then === 'attach' ? 'jp-mod-accept' : 'jp-GpuFit-formSecond'}`}
        aria-disabled={!ready || request === null}
        aria-busy={asked.busy === then}
        aria-describedby={`${id}-held`}
        title={then === 'attach' ? (notebook ?? undefined) : undefined}
        onClick={() => ready && request !== null && asked.ask(request, then)}
      >
        {asked.busy === then ? trans.__('Asking…') : label}
      </button>
    );
  };

  return (
    <form
      className="jp-GpuFit-form"
      aria-label={trans.__('Request GPUs')}
      onSubmit={event => event.preventDefault()}
    >
      {!connected && <Connection gpufit={gpufit} />}
      {/* (One goes on writing while the server is away for a moment.) */}
      <fieldset disabled={model.connection === 'missing'} className="jp-GpuFit-formPlain">
        <legend className="jp-GpuFit-unseen">{trans.__('What is asked')}</legend>
        <div className="jp-GpuFit-formGrid">
          <Stepper
            label={trans.__('GPUs')}
            value={form.gpus}
            number={gpus}
            most={most || MOST_GPUS}
            less={trans.__('One GPU less')}
            more={trans.__('One GPU more')}
            mistake={mistakes.gpus}
            onWrite={written => change({ gpus: written })}
          />
          <MemoryField
            form={form}
            gpus={gpus}
            largest={largestGpu(nodes)}
            mistakes={mistakes}
            onChange={change}
            trans={trans}
          />
          {runsImages && (
            <TextField
              {...text('image', trans.__('Image'), trans.__('The container image it runs in'))}
              placeholder={about?.image ?? trans.__("the node's own")}
              suggestions={about?.images}
            />
          )}
          <TextField
            {...text(
              'time',
              trans.__('Time limit'),
              trans.__('After this long the GPUs are given back, for example 2h')
            )}
            placeholder={usualTime === null ? trans.__('none') : formatDuration(usualTime)}
          />
          <TextField
            {...text('name', trans.__('Name'), trans.__('What to call the allocation'))}
            placeholder={trans.__('chosen for you')}
          />
        </div>
        <div className="jp-GpuFit-formChecks">
          <Check
            label={trans.__('Share with other shared requests')}
            checked={form.shared}
            onCheck={shared => change({ shared })}
          />
          <Wait form={form} mistake={mistakes.wait ?? ''} onChange={change} gpufit={gpufit} />
        </div>
        <details className="jp-GpuFit-formMore">
          <summary>{trans.__('More')}</summary>
          <div className="jp-GpuFit-formGrid">
            <TextField
              {...text(
                'node',
                trans.__('Node'),
                trans.__('Only nodes of this name; * is anything')
              )}
              placeholder={trans.__('any, or gpu0*')}
              suggestions={nodes.slice(0, 100).map(node => node.name)}
            />
            <TextField
              {...text('model', trans.__('GPU model'), trans.__('Part of its name; * is anything'))}
              placeholder={trans.__('any, or A100')}
            />
            <TextField
              {...text('labels', trans.__('Labels'), trans.__('Only nodes with these labels'))}
              placeholder={trans.__('none, or room=b12')}
            />
            <TextField
              {...text(
                'priority',
                trans.__('Priority'),
                trans.__('Of those that wait, the higher come first')
              )}
              placeholder="0"
            />
          </div>
          {(hasParts || form.shareCard) && (
            <Check
              label={trans.__('Several GPUs of one card (MIG) will do')}
              checked={form.shareCard}
              onCheck={shareCard => change({ shareCard })}
            />
          )}
          {!draft.isInitial && (
            <Button label={trans.__('Reset the form')} onPress={() => draft.reset()} />
          )}
        </details>
      </fieldset>

      <div
        ref={verdict}
        tabIndex={-1}
        role="status"
        aria-live="polite"
        aria-atomic={false}
        className="jp-GpuFit-formVerdict"
      >
        {connected && asked.failure === null && asked.outcome === null && (
          <Verdict gpufit={gpufit} onTaken={onTaken} />
        )}
      </div>
      <Asked gpufit={gpufit} asked={asked} onTaken={onTaken} />

      <div className="jp-GpuFit-formButtons">
        {askButton(
          'attach',
          notebook === null
            ? trans.__('Attach this notebook')
            : trans.__('Attach %1', PathExt.basename(notebook)),
          notebook === null
        )}
        {askButton('new', trans.__('New notebook'))}
      </div>
      {/* (Of a mistake the dry run tells those who see it.) */}
      <p id={`${id}-held`} className={request === null ? 'jp-GpuFit-unseen' : 'jp-GpuFit-formHeld'}>
        {connected && (whyNot(gpufit, notebook) || moves(gpufit))}
      </p>
    </form>
  );
}

/** Why a button cannot be pressed, although there is a server; empty: both can. */
function whyNot({ draft, trans }: IGpuFit, notebook: string | null): string {
  if (draft.request === null) {
    return trans.__('A field is not right yet.');
  }
  return notebook === null
    ? trans.__('No notebook is open: open one to attach it, or take a new one.')
    : '';
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

/** That nothing can be asked now, and why. What is written stays. */
function Connection({ gpufit: { model, trans } }: { gpufit: IGpuFit }): React.JSX.Element {
  const { connection, problem } = model;
  return (
    <div role="status">
      <Saying
        tone={
          connection === 'connecting' ? 'quiet' : connection === 'reconnecting' ? 'warn' : 'bad'
        }
        text={problem || trans.__('Connecting to the server…')}
      />
    </div>
  );
}

function Wait(props: {
  form: Form;
  mistake: string;
  onChange: (change: Partial<Form>) => void;
  gpufit: IGpuFit;
}): React.JSX.Element {
  const { form, mistake, onChange } = props;
  const { trans } = props.gpufit;
  const id = useId();
  return (
    <div className="jp-GpuFit-formWait">
      <Check
        label={trans.__('If nothing fits, wait up to')}
        checked={form.waits}
        onCheck={waits => onChange({ waits })}
      />
      <Text
        id={id}
        className="jp-GpuFit-formSize"
        disabled={!form.waits}
        value={form.wait}
        aria-label={trans.__('How long to wait')}
        mistake={mistake}
        onWrite={wait => onChange({ wait })}
      />
      <Mistake id={`${id}-mistake`} text={mistake} />
    </div>
  );
}

/** Path of the notebook that the person works in; `null`: none. */
function useNotebook({ actions }: IGpuFit): string | null {
  useSignals(actions.notebookChanged);
  const [, again] = useReducer((number: number) => number + 1, 0);
  const { notebook } = actions;
  useEffect(() => {
    notebook?.context.pathChanged.connect(again);
    notebook?.sessionContext.kernelChanged.connect(again);
    return () => {
      notebook?.context.pathChanged.disconnect(again);
      notebook?.sessionContext.kernelChanged.disconnect(again);
    };
  }, [notebook]);
  return notebook?.context.path ?? null;
}

/** The mistakes that are shown: not those of what is just being typed, unless they were there before. */
function useSettled<T extends object>(form: Form, mistakes: T): T {
  const [settled, setSettled] = useState({ form, mistakes });
  useEffect(() => {
    const timer = setTimeout(() => setSettled({ form, mistakes }), TYPING);
    return () => clearTimeout(timer);
  }, [form, mistakes]);
  if (settled.form === form) {
    return mistakes;
  }
  const shown = Object.entries(mistakes).filter(([field]) => field in settled.mistakes);
  return Object.fromEntries(shown) as T;
}
