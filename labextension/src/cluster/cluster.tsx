/**
 * The sidebar's section that shows the cluster.
 *
 *     model.nodes ─ rows.shown (filter, order) ─→ NodeList ─ those that are seen ─→ NodeRow
 *     model.allocations ─ bars.holdings (what is mine) ─────────────────────────────┘
 */

import { ReactWidget } from '@jupyterlab/ui-components';
import React, { useEffect, useMemo, useRef, useState } from 'react';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import { holdings, type Holdings } from './bars';
import { ClusterFilter } from './clusterfilter';
import { ClusterState } from './clusterstate';
import { Legend } from './gpubar';
import { NodeList } from './nodelist';
import { HealthIcon } from './noderow';
import { modelsOf, shown, totals } from './rows';

export class ClusterSection extends ReactWidget {
  constructor(private readonly gpufit: IGpuFit) {
    super();
    this.state = new ClusterState(gpufit.model.api);
    this.addClass('jp-GpuFit-cluster');
    this.title.label = gpufit.trans.__('Cluster');
  }

  /** Show a node with its details. */
  reveal(node: string): void {
    this.state.reveal(node);
  }

  /** Show a node, and look at what is wrong with it; `deep`: with a kernel on one of its idle GPUs. */
  examine(node: string, deep = false): void {
    this.state.reveal(node);
    void this.state.examination(node).start(deep);
  }

  override dispose(): void {
    super.dispose();
    this.state.dispose();
  }

  protected override render(): React.JSX.Element {
    return <Cluster gpufit={this.gpufit} state={this.state} />;
  }

  private readonly state: ClusterState;
}

interface ClusterProps {
  gpufit: IGpuFit;
  state: ClusterState;
}

export function Cluster({ gpufit, state }: ClusterProps): React.JSX.Element {
  const { model, draft, settings, trans } = gpufit;
  useSignals(
    model.nodesChanged,
    model.allocationsChanged,
    model.connectionChanged,
    state.changed,
    draft.changed,
    settings.changed
  );
  const { filter } = state;
  const sort = state.sort ?? settings.values.clusterSort;
  useEffect(() => {
    const watching = filter.fits ? draft.watch() : null;
    return () => watching?.dispose();
  }, [draft, filter.fits]);

  const mine = useRef<ReadonlyMap<string, Holdings>>(new Map());
  mine.current = holdings(model.allocations.values(), mine.current);

  const fitting = useMemo(
    () => draft.decision && new Set(draft.decision.fitting),
    [draft.decision]
  );
  const [isHeld, setHeld] = useState(false);
  const order = useRef<{ key: string; names: string[] }>({ key: '', names: [] });
  const nodes = useMemo(() => {
    const key = JSON.stringify([filter, sort]);
    const held = isHeld && order.current.key === key ? order.current.names : null;
    const some = shown(model.nodes.values(), filter, sort, fitting, held);
    order.current = { key, names: some.map(node => node.name) };
    return some;
  }, [model.nodes, filter, sort, fitting, isHeld]);

  const input = useRef<HTMLInputElement>(null);
  const isKnown = model.nodes.size > 0 || model.connection === 'connected';
  return (
    <>
      <Connection gpufit={gpufit} />
      {isKnown && (
        <>
          <Summary gpufit={gpufit} />
          {model.nodes.size > 0 && (
            <ClusterFilter
              state={state}
              sort={sort}
              models={state.isFilterOpen ? modelsOf(model.nodes.values()) : []}
              left={[nodes.length, model.nodes.size]}
              input={input}
              trans={trans}
            />
          )}
          {nodes.length > 0 ? (
            <NodeList
              nodes={nodes}
              holdings={mine.current}
              state={state}
              onFind={() => input.current?.focus()}
              onHeld={setHeld}
              trans={trans}
            />
          ) : (
            <Nothing gpufit={gpufit} state={state} />
          )}
          {nodes.length > 0 && <Legend trans={trans} />}
        </>
      )}
    </>
  );
}

/** Why what is shown may not be so, and what to do about it. */
function Connection({ gpufit: { model, trans } }: { gpufit: IGpuFit }): React.JSX.Element | null {
  const { connection, problem } = model;
  if (connection === 'connected') {
    return null;
  }
  if (connection === 'connecting' && problem === '') {
    return (
      <p className="jp-GpuFit-note" role="status">
        {trans.__('Asking for the cluster…')}
      </p>
    );
  }
  return (
    <div className="jp-GpuFit-problem" role="status">
      <HealthIcon level="warning" />
      <div>
        <p>{problem}</p>
        {connection === 'missing' && (
          <p>
            {trans.__('Install it where that server runs, and start the server again:')}{' '}
            <code>pip install jupyter_gpufit</code>
          </p>
        )}
        <Button label={trans.__('Try again')} onPress={() => void model.refresh()} />
      </div>
    </div>
  );
}

/** The cluster in a line, and what is wrong with its inventory. */
function Summary({ gpufit: { model, trans } }: { gpufit: IGpuFit }): React.JSX.Element {
  const all = useMemo(() => totals(model.nodes.values()), [model.nodes]);
  const free = trans._n('%2 of %1 GPU free', '%2 of %1 GPUs free', all.gpus, all.idle);
  const on = trans._n('on %1 node', 'on %1 nodes', all.nodes);
  const without = all.nodes - all.usable;
  return (
    <>
      {model.inventoryError !== null && (
        <div className="jp-GpuFit-problem" role="status">
          <HealthIcon level="warning" />
          <p>{trans.__('The latest gpufit.toml is not in use: %1', model.inventoryError)}</p>
        </div>
      )}
      {all.nodes > 0 && (
        <div className="jp-GpuFit-summary">
          <span>
            <strong>{free}</strong> {on}
          </span>
          <span>{without > 0 && trans.__('%1 not usable', without)}</span>
        </div>
      )}
    </>
  );
}

/** There is nothing to see: why, and a way on. */
function Nothing({ gpufit, state }: ClusterProps): React.JSX.Element {
  const { model, draft, trans } = gpufit;
  if (model.nodes.size === 0 && model.inventoryError !== null) {
    return <></>; // which says it
  }
  if (model.nodes.size === 0) {
    return (
      <p className="jp-GpuFit-note">
        {trans.__('The cluster has no nodes. They are listed in gpufit.toml, as [[node]].')}
      </p>
    );
  }
  const { decision } = draft;
  const why =
    state.filter.fits && decision !== null && decision.fitting.length === 0
      ? decision.summary
      : trans.__('No node matches the filter.');
  return (
    <div className="jp-GpuFit-note">
      <p role="status">{why}</p>
      <Button label={trans.__('Clear the filter')} onPress={() => state.clearFilter()} />
    </div>
  );
}
