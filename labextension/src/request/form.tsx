/**
 * The sidebar's section *Request*: what is asked, where it would go, and the buttons that ask for it.
 *
 * It shows `gpufit.draft` and changes it; what was asked is followed until it runs, or until it is clear why it does not.
 */

import { PathExt } from '@jupyterlab/coreutils';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import React, { useRef } from 'react';
import { formatDuration } from '../format';
import type { IGpuFit } from '../tokens';
import { useSignals } from '../ui/hooks';
import { Asked, useRequest } from './asked';
import { count, largestGpu, MOST_GPUS, type Form } from './asking';
import { Buttons } from './buttons';
import { Check, Stepper, TextField } from './fields';
import { useNotebook, useSettled } from './hooks';
import { MemoryField } from './memoryfield';
import { fileOf, type Run } from './run';
import { RunFields } from './runfields';
import { Suggested } from './suggestion';
import { Saying, Verdict } from './verdict';
import { ModelWish, More, Wait, type Wish } from './wishes';

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

const NONE = {};

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
  const { form } = draft;
  const mistakes = useSettled(form, draft.mistakes);
  const asked = useRequest(gpufit);
  const verdict = useRef<HTMLDivElement>(null);
  const { form: run, reading } = draft.run;
  const runMistakes = useSettled(run, reading?.mistakes ?? NONE);

  const { about } = model;
  const gpus = count(form.gpus);
  const nodes = [...model.nodes.values()];
  // (Of more than the largest node has, the server says that it is never possible: nobody is kept from asking.)
  const most = Math.max(...nodes.map(node => node.gpus.filter(gpu => gpu.allocatable).length), 0);
  const runsImages = nodes.some(node => node.launcher === 'docker') || form.image !== '';
  const connected = model.connection === 'connected';
  const change = (what: Partial<Form>): void => draft.change(what);
  const wish: Wish = (name, label, hint, placeholder = '') => ({
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
        {run !== null && <RunFields gpufit={gpufit} run={run} mistakes={runMistakes} />}
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
          <Suggested gpufit={gpufit} notebook={forNotebook(run, notebook)} onTaken={onTaken} />
          <ModelWish gpufit={gpufit} nodes={nodes} wish={wish} />
          {runsImages && (
            <TextField
              {...wish('image', trans.__('Image'), trans.__('The container image it runs in'))}
              placeholder={about?.image ?? trans.__("the node's own")}
              suggestions={about?.images}
            />
          )}
          <TextField
            {...wish(
              'time',
              trans.__('Time limit'),
              trans.__('After this long the GPUs are given back, for example 2h')
            )}
            placeholder={usualTime === null ? trans.__('none') : formatDuration(usualTime)}
          />
          <TextField
            {...wish('name', trans.__('Name'), trans.__('What to call the allocation'))}
            placeholder={trans.__('chosen for you')}
          />
        </div>
        <div className="jp-GpuFit-formChecks">
          <Check
            label={trans.__('Share with other shared requests')}
            checked={form.shared}
            onCheck={shared => change({ shared })}
          />
          <Wait gpufit={gpufit} job={run !== null} mistake={mistakes.wait ?? ''} />
        </div>
        <More gpufit={gpufit} wish={wish} nodes={nodes} />
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

      <Buttons gpufit={gpufit} asked={asked} notebook={notebook} />
    </form>
  );
}

/** The path of the notebook that is to have the GPUs: as a job, or as it is open. */
function forNotebook(run: Run | null, notebook: string | null): string | null {
  if (run === null) {
    return notebook;
  }
  const file = fileOf(run.what);
  return file?.endsWith('.ipynb') && !run.folder.startsWith('/')
    ? PathExt.normalize(PathExt.join(run.folder, file))
    : null;
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
