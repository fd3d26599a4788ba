/** How much memory on each GPU: a slider and a text that say the same; or a text for each GPU. */

import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useId } from 'react';
import { formatSize, parseSize } from '../format';
import { canDiffer, sizesOf, sizeText, stepOf, stepsTo, type Form, type Mistakes } from './asking';
import { Check, Mistake, Text } from './fields';

export interface MemoryFieldProps {
  form: Form;
  /** How many GPUs are asked; `null`: that is not clear. */
  gpus: number | null;
  /** Bytes of the cluster's largest GPU; `null`: unknown. */
  largest: number | null;
  mistakes: Mistakes;
  onChange: (change: Partial<Form>) => void;
  trans: TranslationBundle;
}

export function MemoryField(props: MemoryFieldProps): React.JSX.Element {
  const { form, gpus, onChange, trans } = props;
  const several = canDiffer(gpus);
  return (
    <div className="jp-GpuFit-formMemory">
      {several && form.each ? <Each {...props} gpus={gpus} /> : <ForAll {...props} />}
      {several && (
        <Check
          label={trans.__('One size for each GPU')}
          checked={form.each}
          onCheck={each => onChange(each ? { each, sizes: sizesOf(form, gpus) } : { each })}
        />
      )}
    </div>
  );
}

function ForAll({ form, largest, mistakes, onChange, trans }: MemoryFieldProps): React.JSX.Element {
  const id = useId();
  const steps = stepsTo(largest);
  const size = sizeOf(form.memory);
  const mistake = mistakes.memory ?? '';
  const label = trans.__('Memory per GPU');
  return (
    <div className="jp-GpuFit-formField">
      <label htmlFor={id}>{label}</label>
      <Text
        id={id}
        value={form.memory}
        placeholder={trans.__('any')}
        mistake={mistake}
        onWrite={memory => onChange({ memory })}
      />
      <Mistake id={`${id}-mistake`} text={mistake} />
      <input
        type="range"
        className="jp-GpuFit-formSlider"
        min={0}
        max={steps.length - 1}
        value={stepOf(size ?? 0, steps)}
        aria-label={trans.__('Memory per GPU, slider')}
        aria-valuetext={size ? formatSize(size) : trans.__('any')}
        onChange={event => {
          const step = steps[Number(event.target.value)] ?? 0;
          onChange({ memory: step > 0 ? sizeText(step) : '' });
        }}
      />
    </div>
  );
}

function Each(props: MemoryFieldProps & { gpus: number }): React.JSX.Element {
  const { form, gpus, mistakes, onChange, trans } = props;
  const id = useId();
  const sizes = sizesOf(form, gpus);
  return (
    <fieldset className="jp-GpuFit-formEach">
      <legend>{trans.__('Memory of each GPU')}</legend>
      <div className="jp-GpuFit-formSizes">
        {sizes.map((size, at) => {
          const mistake = mistakes[`size-${at}`] ?? '';
          const field = `${id}-${at}`;
          return (
            <div key={at} className="jp-GpuFit-formSizeOf">
              <label htmlFor={field}>{trans.__('%1.', at + 1)}</label>
              <Text
                id={field}
                className="jp-GpuFit-formSize"
                value={size}
                placeholder={trans.__('any')}
                aria-label={trans.__('Memory of GPU %1', at + 1)}
                mistake={mistake}
                onWrite={text =>
                  onChange({ sizes: sizes.map((one, other) => (other === at ? text : one)) })
                }
              />
              <Mistake id={`${field}-mistake`} text={mistake} />
            </div>
          );
        })}
      </div>
    </fieldset>
  );
}

/** Bytes; `null`: it is no size (yet). */
function sizeOf(text: string): number | null {
  try {
    return text.trim() === '' ? 0 : parseSize(text);
  } catch {
    return null;
  }
}
