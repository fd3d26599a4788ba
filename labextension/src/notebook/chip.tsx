/** The chip in a notebook's toolbar: what it runs on, with a menu of what can be done about it. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { ReactWidget, caretDownEmptyThinIcon } from '@jupyterlab/ui-components';
import React, { useRef, useState } from 'react';
import type { IGpuFit } from '../tokens';
import { useClock, useSignals } from '../ui/hooks';
import { gpuIcon } from '../ui/icons';
import { Sign } from '../ui/marks';
import { chipMenu } from './chipmenu';
import { fitting, useRoom } from './room';
import { chipOf } from './words';

const FRAME = 62; // px: all of the chip but its text, see chip.css
const WIDEST = 400; // px: of the text

export interface ChipWays {
  /** Execute one of our commands; it says itself what went wrong. */
  execute: (command: string, args: Record<string, string | boolean>) => void;
  /** Show the sidebar at one of its sections, or at an allocation. */
  open: (section: string, allocation?: string) => void;
}

export class Chip extends ReactWidget {
  constructor(
    private readonly gpufit: IGpuFit,
    private readonly panel: NotebookPanel,
    private readonly ways: ChipWays
  ) {
    super();
    this.addClass('jp-GpuFit-chip');
  }

  protected override render(): React.JSX.Element {
    const { gpufit, panel, ways, node } = this;
    return <Content gpufit={gpufit} panel={panel} ways={ways} node={node} />;
  }
}

interface Props {
  gpufit: IGpuFit;
  panel: NotebookPanel;
  ways: ChipWays;
  /** That of the widget. */
  node: HTMLElement;
}

function Content({ gpufit, panel, ways, node }: Props): React.JSX.Element | null {
  const { model, actions, settings, trans } = gpufit;
  const context = panel.sessionContext;
  useSignals(
    model.connectionChanged,
    model.allocationsChanged,
    model.attachmentsChanged,
    model.nodesChanged,
    settings.changed,
    context.sessionChanged,
    context.kernelChanged
  );
  const button = useRef<HTMLButtonElement>(null);
  const [open, setOpen] = useState(false);
  const room = useRoom(panel, node);
  const allocation = actions.allocationOf(panel);
  const left = allocation?.expires == null ? Infinity : allocation.expires - model.now();
  useClock(left < 180 ? 1000 : 15_000);
  if (model.connection === 'missing' || !settings.values.showChip) {
    return null;
  }
  const chip = chipOf(allocation, actions.attachmentOf(panel), model.nodes, model.now(), trans);
  const text = fitting(chip.texts, Math.min(room - FRAME, WIDEST), node);
  const problem = model.connection === 'connected' ? '' : model.problem;
  const title = [chip.title, problem].filter(Boolean).join('\n');
  const show = (byKeyboard: boolean): void => {
    const { current } = button;
    if (current !== null) {
      const menu = chipMenu(gpufit, panel, ways);
      menu.aboutToClose.connect(() => {
        setOpen(false);
        current.focus();
        current.focus(); // the first time, a toolbar gives the focus to that of its items that had it last
      });
      setOpen(true);
      const { left: x, bottom: y } = current.getBoundingClientRect();
      menu.open(x, y);
      if (byKeyboard) {
        menu.activateNextItem();
      }
    }
  };
  return (
    <button
      ref={button}
      type="button"
      className="jp-GpuFit-chipButton"
      data-tone={chip.tone}
      data-stale={problem !== ''}
      title={title}
      aria-label={[text, title].filter(Boolean).join('. ')}
      aria-haspopup="menu"
      aria-expanded={open}
      onClick={event => show(event.detail === 0)}
      onKeyDown={event => {
        if (event.key === 'ArrowDown') {
          event.preventDefault();
          show(true);
        }
      }}
    >
      {chip.tone === 'warn' ? (
        <Sign mark="alert" />
      ) : (
        <gpuIcon.react tag="span" className="jp-GpuFit-chipIcon" width="16px" height="16px" />
      )}
      {text === '' ? null : <span className="jp-GpuFit-chipText">{text}</span>}
      <caretDownEmptyThinIcon.react tag="span" className="jp-GpuFit-chipCaret" />
    </button>
  );
}
