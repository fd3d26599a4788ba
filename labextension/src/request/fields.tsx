/** The fields of the request form, one component for each kind. They show what the form says, and tell what is typed. */

import { addIcon, LabIcon } from '@jupyterlab/ui-components';
import React, { useId } from 'react';

export interface FieldProps {
  label: string;
  /** What is written. */
  value: string;
  onWrite: (text: string) => void;
  /** What is wrong with it; empty: nothing. */
  mistake?: string;
  placeholder?: string;
  /** What the person may want to know. */
  hint?: string;
  /** What can be written, for example. */
  suggestions?: readonly string[];
}

/** What is wrong with a field: it is read out with the field, and is as long as it has to be. */
export function Mistake({ id, text }: { id: string; text: string }): React.JSX.Element | null {
  return text === '' ? null : (
    <div id={id} className="jp-GpuFit-error">
      {text}
    </div>
  );
}

export interface TextProps extends Omit<
  React.InputHTMLAttributes<HTMLInputElement>,
  'onChange' | 'size'
> {
  id: string;
  /** Shown by the `Mistake` whose id is `<id>-mistake`. */
  mistake: string;
  onWrite: (text: string) => void;
}

/** Where one writes: nothing completes or corrects it. */
export function Text({ mistake, onWrite, className = '', ...rest }: TextProps): React.JSX.Element {
  return (
    <input
      type="text"
      autoComplete="off"
      spellCheck={false}
      className={`jp-mod-styled ${className}`.trim()}
      aria-invalid={mistake !== ''}
      aria-describedby={mistake === '' ? undefined : `${rest.id}-mistake`}
      onChange={event => onWrite(event.target.value)}
      {...rest}
    />
  );
}

/** A line of text with its label. */
export function TextField(props: FieldProps): React.JSX.Element {
  const { label, value, onWrite, mistake = '', placeholder, hint, suggestions = [] } = props;
  const id = useId();
  return (
    <div className="jp-GpuFit-formField">
      <label htmlFor={id} title={hint}>
        {label}
      </label>
      <Text
        id={id}
        value={value}
        placeholder={placeholder}
        title={hint}
        list={suggestions.length > 0 ? `${id}-list` : undefined}
        mistake={mistake}
        onWrite={onWrite}
      />
      {suggestions.length > 0 && (
        <datalist id={`${id}-list`}>
          {suggestions.map(suggestion => (
            <option key={suggestion} value={suggestion} />
          ))}
        </datalist>
      )}
      <Mistake id={`${id}-mistake`} text={mistake} />
    </div>
  );
}

export interface StepperProps {
  label: string;
  value: string;
  /** The number that it is; `null`: none. */
  number: number | null;
  most: number;
  less: string;
  more: string;
  onWrite: (text: string) => void;
  mistake?: string;
}

/** A whole number from 1 on, with a button for one less and one for one more; the arrow keys do the same. */
export function Stepper(props: StepperProps): React.JSX.Element {
  const { label, value, number, most, onWrite, mistake = '' } = props;
  const id = useId();
  // (At an end the button does nothing, and keeps the focus: a disabled one would lose it.)
  const step = (by: number): void => {
    onWrite(String(Math.min(Math.max((number ?? 1) + by, 1), most)));
  };
  return (
    <div className="jp-GpuFit-formField">
      <label htmlFor={id}>{label}</label>
      <div className="jp-GpuFit-formStepper">
        <button
          type="button"
          className="jp-GpuFit-formStep"
          aria-label={props.less}
          title={props.less}
          aria-disabled={number !== null && number <= 1}
          onClick={() => step(-1)}
        >
          <minusIcon.react tag="span" />
        </button>
        <Text
          id={id}
          inputMode="numeric"
          role="spinbutton"
          value={value}
          aria-valuemin={1}
          aria-valuemax={most}
          aria-valuenow={number ?? undefined}
          mistake={mistake}
          onWrite={onWrite}
          onKeyDown={event => {
            const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
            if (by !== undefined) {
              event.preventDefault();
              step(by);
            }
          }}
        />
        <button
          type="button"
          className="jp-GpuFit-formStep"
          aria-label={props.more}
          title={props.more}
          aria-disabled={number !== null && number >= most}
          onClick={() => step(1)}
        >
          <addIcon.react tag="span" />
        </button>
      </div>
      <Mistake id={`${id}-mistake`} text={mistake} />
    </div>
  );
}

export interface CheckProps {
  label: string;
  checked: boolean;
  onCheck: (checked: boolean) => void;
  hint?: string;
}

export function Check({ label, checked, onCheck, hint }: CheckProps): React.JSX.Element {
  return (
    <label className="jp-GpuFit-formCheck" title={hint}>
      <input
        type="checkbox"
        className="jp-mod-styled"
        checked={checked}
        onChange={event => onCheck(event.target.checked)}
      />
      <span>{label}</span>
    </label>
  );
}

const minusIcon = new LabIcon({
  name: 'jupyter-gpufit:minus',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3" fill="#616161" d="M5 11h14v2H5z"/>
</svg>`
});
