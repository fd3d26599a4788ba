/** The bar of one GPU: who has its memory, and under it how busy it is. */

import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { Gpu } from '../wire';
import { segments, type Holdings, type Part } from './bars';
import { gpuSentence } from './describe';
import type { Card } from './rows';

export interface GpuBarProps {
  gpu: Gpu;
  parent: Gpu | null;
  holdings: Holdings;
  trans: TranslationBundle;
}

/** It says all in one sentence, on hover and to screen readers. */
export function GpuBar({ gpu, parent, holdings, trans }: GpuBarProps): React.JSX.Element {
  const mine = holdings.get(gpu.uuid);
  const sentence = gpuSentence(gpu, parent, mine, trans);
  const parts = segments(gpu, mine);
  const broken = gpu.health !== 'ok' || (!gpu.allocatable && gpu.reason !== null);
  return (
    <span
      className={`jp-GpuFit-gpu${broken ? ' jp-mod-broken' : ''}`}
      role="img"
      aria-label={sentence}
      title={sentence}
    >
      <span className={`jp-GpuFit-bar${parts === null ? ' jp-mod-unknown' : ''}`}>
        {parts?.map(({ part, share }) => (
          <span key={part} className={classOf(part)} style={{ flexGrow: share }} />
        ))}
      </span>
      <span className={`jp-GpuFit-busy${gpu.utilization === null ? ' jp-mod-unknown' : ''}`}>
        {gpu.utilization !== null && <span style={{ width: `${gpu.utilization}%` }} />}
      </span>
    </span>
  );
}

export interface CardBarsProps {
  card: Card;
  holdings: Holdings;
  trans: TranslationBundle;
}

/** A card in a row: the bar of its GPU, or those of its MIG instances side by side, as wide as they are large. */
export function CardBars({ card, holdings, trans }: CardBarsProps): React.JSX.Element {
  const { gpu, parts } = card;
  if (gpu !== null && parts.length === 0) {
    return <GpuBar gpu={gpu} parent={null} holdings={holdings} trans={trans} />;
  }
  return (
    <span className={`jp-GpuFit-card${parts.length > 2 ? ' jp-mod-wide' : ''}`}>
      {parts.map(part => (
        <span key={part.uuid} style={{ flexGrow: part.memory_total ?? 1 }}>
          <GpuBar gpu={part} parent={gpu} holdings={holdings} trans={trans} />
        </span>
      ))}
    </span>
  );
}

/** What the parts of a bar mean. */
export function Legend({ trans }: { trans: TranslationBundle }): React.JSX.Element {
  const entries: [Part, string, string][] = [
    ['mine', trans.__('yours'), trans.__('Memory that your allocations hold')],
    ['others', trans.__('others’'), trans.__('Memory that allocations of others hold')],
    ['foreign', trans.__('processes'), trans.__('Memory that processes of no allocation use')],
    ['free', trans.__('free'), trans.__('Memory that can be had')]
  ];
  return (
    <div className="jp-GpuFit-legend">
      {entries.map(([part, name, meaning]) => (
        <span key={part} title={meaning}>
          <span className={classOf(part)} aria-hidden="true" />
          {name}
        </span>
      ))}
      <span title={trans.__('The line under a bar: how busy the GPU is')}>
        <span className="jp-GpuFit-busySample" aria-hidden="true" />
        {trans.__('busy')}
      </span>
    </div>
  );
}

export function classOf(part: Part): string {
  return `jp-GpuFit-part jp-mod-${part}`;
}
