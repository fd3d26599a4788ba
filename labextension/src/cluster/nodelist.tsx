/** The nodes (there is at least one), as many rows of them as are seen: with 1,000 nodes there are still only a few dozen in the page. */

import { defaultRangeExtractor, useVirtualizer, type Range } from '@tanstack/react-virtual';
import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useCallback, useLayoutEffect, useRef } from 'react';
import type { Node } from '../wire';
import { heldOn, type Holdings } from './bars';
import type { ClusterState } from './clusterstate';
import { NodeRow } from './noderow';
import { factsOf } from './rows';

export interface NodeListProps {
  nodes: readonly Node[];
  /** By node. */
  holdings: ReadonlyMap<string, Holdings>;
  state: ClusterState;
  /** '/' in the list: to the filter. */
  onFind: () => void;
  /** Whether somebody points at the list. */
  onHeld: (held: boolean) => void;
  trans: TranslationBundle;
}

const OVERSCAN = 4; // rows above and below what is seen
const PER_LINE = 8; // bars, as the style has it
const [HEAD, LINE, HEALTH] = [42, 14, 20]; // px, about; each row is measured once it is there

export function NodeList(props: NodeListProps): React.JSX.Element {
  const { nodes, holdings, state, onFind, onHeld, trans } = props;
  const scrolled = useRef<HTMLDivElement>(null);
  const active = Math.max(
    0,
    nodes.findIndex(node => node.name === state.active)
  );
  const heightOf = (index: number): number => {
    const node = nodes[index];
    const { cards, faulty } = factsOf(node);
    const ailing = node.reason !== null || faulty.length > 0;
    return HEAD + LINE * Math.ceil(cards.length / PER_LINE) + (ailing ? HEALTH : 0);
  };
  // The row that the keyboard is at stays, wherever the list is scrolled to: focus is not lost.
  const extract = useCallback(
    (range: Range): number[] => {
      const seen = defaultRangeExtractor(range);
      return active < range.count && !seen.includes(active)
        ? [...seen, active].sort((one, other) => one - other)
        : seen;
    },
    [active]
  );
  const virtual = useVirtualizer({
    count: nodes.length,
    getScrollElement: () => scrolled.current,
    getItemKey: useCallback((index: number) => nodes[index].name, [nodes]),
    estimateSize: heightOf,
    rangeExtractor: extract,
    overscan: OVERSCAN
  });

  useLayoutEffect(() => {
    const { sought } = state;
    const index = nodes.findIndex(node => node.name === sought?.node);
    if (sought !== null && index >= 0) {
      virtual.scrollToIndex(index, { align: sought.align });
      const row = rowOf(scrolled.current, sought.node);
      if (row) {
        state.found();
        row.focus({ preventScroll: true });
      }
    }
  });
  const go = (index: number): void =>
    state.seek(nodes[Math.max(0, Math.min(index, nodes.length - 1))].name);

  const onKeyDown = (event: React.KeyboardEvent<HTMLDivElement>): void => {
    const target = event.target as HTMLElement;
    const { name } = nodes[active];
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) {
      return;
    }
    if (!target.classList.contains('jp-GpuFit-nodeButton')) {
      if (event.key === 'Escape') {
        go(active); // out of the details
        event.stopPropagation();
      }
      return;
    }
    const actions: Partial<Record<string, () => void>> = {
      ArrowDown: () => go(active + 1),
      ArrowUp: () => go(active - 1),
      Home: () => go(0),
      End: () => go(nodes.length - 1),
      ArrowRight: () => state.expand(name, true),
      ArrowLeft: () => state.expand(name, false),
      '/': onFind
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      event.stopPropagation();
      action();
    }
  };

  return (
    <div
      className="jp-GpuFit-nodes"
      ref={scrolled}
      onKeyDown={onKeyDown}
      onPointerEnter={() => onHeld(true)}
      onPointerLeave={() => onHeld(false)}
    >
      <div
        role="list"
        aria-label={trans.__('Nodes')}
        className="jp-GpuFit-nodeList"
        style={{ height: virtual.getTotalSize() }}
      >
        {virtual.getVirtualItems().map(({ index, key, start }) => {
          const node = nodes[index];
          return (
            <div
              key={key}
              role="listitem"
              aria-setsize={nodes.length}
              aria-posinset={index + 1}
              className="jp-GpuFit-nodeItem"
              data-node={node.name}
              data-index={index}
              ref={virtual.measureElement}
              style={{ transform: `translateY(${start}px)` }}
            >
              <NodeRow
                node={node}
                holdings={heldOn(node.name, holdings)}
                isExpanded={state.expanded.has(node.name)}
                isActive={index === active}
                state={state}
                trans={trans}
              />
            </div>
          );
        })}
      </div>
    </div>
  );
}

function rowOf(list: HTMLElement | null, name: string): HTMLElement | null | undefined {
  return list?.querySelector<HTMLElement>(
    `[data-node="${CSS.escape(name)}"] .jp-GpuFit-nodeButton`
  );
}
