/** A button of the sidebar: with words, small, busy while it works. */

import React from 'react';

export interface ButtonProps {
  label: string;
  /** More about it, on hover. */
  title?: string | undefined;
  /** For who finds it again after the list has changed (`keepfocus.ts`), and for tests. */
  action?: string | undefined;
  /** `main`: the thing to do; `plain`: one more; `link`: without a frame. */
  kind?: 'main' | 'plain' | 'link';
  /** It is at work. */
  busy?: boolean;
  /** Something else is at work. It keeps the focus: a disabled button would lose it. */
  off?: boolean;
  /** Of one that shows something below it: whether it does. */
  expanded?: boolean | undefined;
  submit?: boolean;
  onPress?: (() => void) | undefined;
}

export function Button(props: ButtonProps): React.JSX.Element {
  const { label, title, action, kind = 'plain', busy = false, off = false } = props;
  return (
    <button
      type={props.submit === true ? 'submit' : 'button'}
      className={`jp-GpuFit-button jp-mod-${kind}`}
      title={title}
      data-action={action}
      aria-busy={busy}
      aria-disabled={busy || off}
      aria-expanded={props.expanded}
      onClick={event => {
        if (busy || off) {
          event.preventDefault();
        } else {
          props.onPress?.();
        }
      }}
    >
      {label}
    </button>
  );
}
