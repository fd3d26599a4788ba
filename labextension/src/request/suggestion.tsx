/** What the same notebook used the last time, and a button that asks for as much. Nothing is changed without a press. */

import React from 'react';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import { suggestionOf } from './suggesting';

interface Props {
  gpufit: IGpuFit;
  /** Path of the notebook that the request is for; `null`: none. */
  notebook: string | null;
  /** Its button is gone then, with the focus. */
  onTaken: () => void;
}

export function Suggested({ gpufit, notebook, onTaken }: Props): React.JSX.Element | null {
  const { draft, past, trans } = gpufit;
  useSignals(past.changed);
  const last = notebook === null ? null : past.lastOf(notebook);
  const suggestion = suggestionOf(last, draft.form, trans);
  if (suggestion === null) {
    return null;
  }
  const { text, label, memory } = suggestion;
  return (
    <div className="jp-GpuFit-formSuggestion">
      <span>{text}</span>
      <Button
        label={label}
        onPress={() => {
          draft.change({ memory, each: false, sizes: [] });
          onTaken();
        }}
      />
    </div>
  );
}
