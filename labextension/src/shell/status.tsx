/** The item in the status bar: what the person holds, and what is free; a click shows the sidebar. */

import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';
import { statusOf } from '../notebook/words';
import type { IGpuFit } from '../tokens';
import { useSignals } from '../ui/hooks';
import { gpuIcon } from '../ui/icons';
import { Sign } from '../ui/marks';

export class Status extends ReactWidget {
  constructor(
    private readonly gpufit: IGpuFit,
    private readonly open: () => void
  ) {
    super();
    this.addClass('jp-GpuFit-status');
  }

  protected override render(): React.JSX.Element {
    return <Item gpufit={this.gpufit} open={this.open} />;
  }
}

function Item({ gpufit, open }: { gpufit: IGpuFit; open: () => void }): React.JSX.Element | null {
  const { model, settings, trans } = gpufit;
  useSignals(
    model.connectionChanged,
    model.allocationsChanged,
    model.nodesChanged,
    settings.changed
  );
  const { connection, problem, allocations, nodes } = model;
  const status = statusOf(connection, problem, allocations.values(), nodes, trans);
  if (status === null || !settings.values.showStatus) {
    return null;
  }
  const { text, title, wrong } = status;
  return (
    <button
      type="button"
      className="jp-GpuFit-statusItem"
      data-wrong={wrong}
      title={`${title}\n${trans.__('Click to show the sidebar.')}`.trim()}
      onClick={open}
    >
      <gpuIcon.react tag="span" width="16px" height="16px" />
      {text}
      {wrong && (
        <span role="img" aria-label={trans.__('something is wrong')}>
          <Sign mark="alert" />
        </span>
      )}
    </button>
  );
}
