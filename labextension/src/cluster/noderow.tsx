/** A node as a row: name, models, what is free, how it is, and a bar for each GPU; and its details, if asked for. */

import { caretDownIcon, caretRightIcon } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { unusableIcon, warningIcon } from '../ui/icons';
import type { Node } from '../wire';
import type { Holdings } from './bars';
import type { ClusterState } from './clusterstate';
import { healthOf, idleLine, memoryLine, modelsLine } from './describe';
import { CardBars } from './gpubar';
import { NodeDetail } from './nodedetail';
import { factsOf } from './rows';
import { silenceOf } from './silence';

export interface NodeRowProps {
  node: Node;
  /** What is mine of its GPUs. */
  holdings: Holdings;
  isExpanded: boolean;
  /** Whether Tab comes here: one row of the list has it. */
  isActive: boolean;
  state: ClusterState;
  trans: TranslationBundle;
}

/** Rendered again only when one of these is another one; with 1,000 nodes that matters. */
export const NodeRow = React.memo(function NodeRow(props: NodeRowProps): React.JSX.Element {
  const { node, holdings, isExpanded, isActive, state, trans } = props;
  const { cards, gpus, idle } = factsOf(node);
  const health = healthOf(node, silenceOf(node), trans);
  const Caret = isExpanded ? caretDownIcon : caretRightIcon;
  const toggle = (): void => {
    state.activate(node.name);
    state.expand(node.name, !isExpanded);
  };
  const usable = node.reason === null;
  const name = [
    node.name,
    usable ? trans.__('%1 of %2 GPUs free', idle, gpus) : idleLine(node, trans),
    ...(usable ? [trans.__('%1 of memory free', memoryLine(node, trans))] : []),
    modelsLine(node, trans)
  ];
  return (
    <div
      className={`jp-GpuFit-node jp-mod-${health.level}`}
      onFocus={() => state.activate(node.name)}
    >
      {/* A click anywhere on the row; the keyboard and screen readers have the button in it. */}
      <div className="jp-GpuFit-nodeHead" onClick={toggle}>
        <button
          type="button"
          className="jp-GpuFit-nodeButton"
          aria-expanded={isExpanded}
          aria-label={name.join(', ')}
          tabIndex={isActive ? 0 : -1}
        >
          <Caret.react tag="span" className="jp-GpuFit-icon" />
          <span className="jp-GpuFit-nodeName" title={node.name}>
            {node.name}
          </span>
        </button>
        <span className="jp-GpuFit-idle" aria-hidden="true">
          {idleLine(node, trans)}
        </span>
        <span className="jp-GpuFit-models" aria-hidden="true" title={modelsLine(node, trans)}>
          {modelsLine(node, trans)}
        </span>
        {usable && (
          <span className="jp-GpuFit-memory" aria-hidden="true">
            {memoryLine(node, trans)}
          </span>
        )}
        {cards.length > 0 && (
          <div className="jp-GpuFit-bars">
            {cards.map(card => (
              <CardBars key={card.uuid} card={card} holdings={holdings} trans={trans} />
            ))}
          </div>
        )}
        {health.level !== 'ok' && (
          <div className="jp-GpuFit-health" title={health.sentence}>
            <HealthIcon level={health.level} />
            <span>{health.brief}</span>
          </div>
        )}
      </div>
      {isExpanded && (
        <NodeDetail
          node={node}
          holdings={holdings}
          examination={state.examination(node.name)}
          trans={trans}
        />
      )}
    </div>
  );
});

export function HealthIcon({ level }: { level: 'warning' | 'error' }): React.JSX.Element {
  const Icon = level === 'error' ? unusableIcon : warningIcon;
  return <Icon.react tag="span" className={`jp-GpuFit-icon jp-mod-${level}`} />;
}
