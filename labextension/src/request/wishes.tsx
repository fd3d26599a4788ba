/** Those wishes of the request form that not everybody has. */

import React, { useId } from 'react';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import type { Node } from '../wire';
import { storedModels, type Field, type Form } from './asking';
import { Check, Mistake, Text, TextField, type FieldProps } from './fields';

/** The properties of a field of text: its name in the form, label, hint, and what is there when nothing is written. */
export type Wish = (
  name: keyof Form & Field,
  label: string,
  hint: string,
  placeholder?: string
) => FieldProps;

interface Props {
  gpufit: IGpuFit;
  nodes: Node[];
  wish: Wish;
}

/** Where it runs, and before whom. */
export function More({ gpufit, nodes, wish }: Props): React.JSX.Element {
  const { draft, trans } = gpufit;
  const { form } = draft;
  const hasParts = nodes.some(node => node.gpus.some(gpu => gpu.mig_profile !== null));
  const canWrite = nodes.some(node => node.model_store && node.models_write);
  return (
    <details className="jp-GpuFit-formMore">
      <summary>{trans.__('More')}</summary>
      <div className="jp-GpuFit-formGrid">
        <TextField
          {...wish(
            'cpus',
            trans.__('CPUs'),
            trans.__('Cores of the machine that it alone has, for example 8'),
            trans.__('any, or 8')
          )}
        />
        <TextField
          {...wish(
            'ram',
            trans.__('RAM'),
            trans.__("The machine's own memory that it alone has, for example 64GiB"),
            trans.__('any, or 64GiB')
          )}
        />
        <TextField
          {...wish(
            'node',
            trans.__('Node'),
            trans.__('Only nodes of this name; * is anything'),
            trans.__('any, or gpu0*')
          )}
          suggestions={nodes.slice(0, 100).map(node => node.name)}
        />
        <TextField
          {...wish(
            'gpu_model',
            trans.__('GPU model'),
            trans.__('Part of its name; * is anything'),
            trans.__('any, or A100')
          )}
        />
        <TextField
          {...wish(
            'labels',
            trans.__('Labels'),
            trans.__('Only nodes with these labels'),
            trans.__('none, or room=b12')
          )}
        />
        <TextField
          {...wish(
            'priority',
            trans.__('Priority'),
            trans.__('Of those that wait, the higher come first'),
            '0'
          )}
        />
      </div>
      {(canWrite || form.writeModels) && (
        <Check
          label={trans.__('It may write into the model store')}
          hint={trans.__("The node's models are at /models; else they can only be read")}
          checked={form.writeModels}
          onCheck={writeModels => draft.change({ writeModels })}
        />
      )}
      {(hasParts || form.shareCard) && (
        <Check
          label={trans.__('Several GPUs of one card (MIG) will do')}
          checked={form.shareCard}
          onCheck={shareCard => draft.change({ shareCard })}
        />
      )}
      {!draft.isInitial && (
        <Button label={trans.__('Reset the form')} onPress={() => draft.reset()} />
      )}
    </details>
  );
}

/** The model that it works with: nodes that have it come first, or are the only ones. */
export function ModelWish({ gpufit, nodes, wish }: Props): React.JSX.Element | null {
  const { draft, trans } = gpufit;
  const { form } = draft;
  const models = storedModels(nodes);
  if (models.length === 0 && form.model === '') {
    return null;
  }
  const some = form.model.trim() !== '';
  return (
    <div className="jp-GpuFit-formModel">
      <TextField
        {...wish(
          'model',
          trans.__('Model'),
          trans.__("One of the nodes' model stores: nodes that have it come first"),
          trans.__('none')
        )}
        suggestions={models}
      />
      {some && (
        <Check
          label={trans.__('Only where it is')}
          checked={form.requireModel}
          onCheck={requireModel => draft.change({ requireModel })}
        />
      )}
    </div>
  );
}

interface WaitProps {
  gpufit: IGpuFit;
  /** A job waits by itself: what is written is how long at most. */
  job: boolean;
  mistake: string;
}

export function Wait({ gpufit, job, mistake }: WaitProps): React.JSX.Element {
  const { draft, trans } = gpufit;
  const { form } = draft;
  const id = useId();
  return (
    <div className="jp-GpuFit-formWait">
      <Check
        label={
          job
            ? trans.__('If nothing fits, wait no longer than')
            : trans.__('If nothing fits, wait up to')
        }
        hint={job ? trans.__('Unless that is said, a job waits for a day') : undefined}
        checked={form.waits}
        onCheck={waits => draft.change({ waits })}
      />
      <Text
        id={id}
        className="jp-GpuFit-formSize"
        disabled={!form.waits}
        value={form.wait}
        aria-label={trans.__('How long to wait')}
        mistake={mistake}
        onWrite={wait => draft.change({ wait })}
      />
      <Mistake id={`${id}-mistake`} text={mistake} />
    </div>
  );
}
