/** Above the nodes: words to look for, the order, and further criteria behind a button. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { HTMLSelect, InputGroup, filterIcon } from '@jupyterlab/ui-components';
import React, { useEffect, useId, useState } from 'react';
import { formatSize, parseSize } from '../format';
import type { ClusterState } from './clusterstate';
import { isFiltering, narrowing, type SortKey } from './rows';

export interface ClusterFilterProps {
  state: ClusterState;
  sort: SortKey;
  models: readonly string[];
  /** How many nodes are left, of how many. */
  left: [number, number];
  input: React.RefObject<HTMLInputElement>;
  trans: TranslationBundle;
}

export function ClusterFilter({
  state,
  sort,
  models,
  left,
  input,
  trans
}: ClusterFilterProps): React.JSX.Element {
  const id = useId();
  const { filter, isFilterOpen } = state;
  const criteria = narrowing(filter);
  const orders: [SortKey, string][] = [
    ['name', trans.__('Name')],
    ['free', trans.__('Free memory')],
    ['idle', trans.__('Free GPUs')],
    ['model', trans.__('Model')]
  ];
  const label =
    criteria === 0
      ? trans.__('More filters')
      : trans._n('More filters (%1 set)', 'More filters (%1 set)', criteria);
  return (
    <div className="jp-GpuFit-filter" role="search" aria-label={trans.__('Filter nodes')}>
      <div className="jp-GpuFit-filterLine">
        <InputGroup
          className="jp-GpuFit-filterText"
          inputRef={input}
          type="text"
          placeholder={trans.__('Filter nodes')}
          title={trans.__('Words in their name, model or labels')}
          aria-label={trans.__('Filter nodes by name, model or label')}
          rightIcon="ui-components:search"
          value={filter.text}
          onChange={event => state.narrow({ text: event.target.value })}
          onKeyDown={event => {
            if (event.key === 'Escape' && filter.text !== '') {
              state.narrow({ text: '' });
              event.stopPropagation();
            }
          }}
        />
        <HTMLSelect
          className="jp-GpuFit-sort"
          aria-label={trans.__('Sort nodes by')}
          title={trans.__('Sort nodes by')}
          value={sort}
          options={orders.map(([value, name]) => ({ value, label: name }))}
          onChange={event => state.sortBy(event.target.value as SortKey)}
        />
        <button
          type="button"
          className={`jp-GpuFit-iconButton jp-GpuFit-filterButton${criteria > 0 ? ' jp-mod-set' : ''}`}
          aria-expanded={isFilterOpen}
          aria-controls={id}
          aria-label={label}
          title={label}
          onClick={() => state.openFilter(!isFilterOpen)}
        >
          <filterIcon.react tag="span" />
          {criteria > 0 && <span aria-hidden="true">{criteria}</span>}
        </button>
      </div>
      {isFilterOpen && (
        <div className="jp-GpuFit-criteria" id={id}>
          <label>
            <span>{trans.__('Model')}</span>
            <HTMLSelect
              value={filter.model}
              options={[
                { value: '', label: trans.__('any') },
                ...[...new Set([...models, ...(filter.model ? [filter.model] : [])])]
              ]}
              onChange={event => state.narrow({ model: event.target.value })}
            />
          </label>
          <LeastMemory state={state} trans={trans} />
          <Choice
            checked={filter.usable}
            text={trans.__('usable only')}
            title={trans.__('Only nodes on which something can be placed now')}
            onChange={usable => state.narrow({ usable })}
          />
          <Choice
            checked={filter.fits}
            text={trans.__('fits my request')}
            title={trans.__('Only nodes on which the request that is written above fits now')}
            onChange={fits => state.narrow({ fits })}
          />
        </div>
      )}
      <div className="jp-GpuFit-left" role="status">
        {isFiltering(filter) && trans.__('%1 of %2 nodes', ...left)}
      </div>
    </div>
  );
}

/** The least free memory of one GPU: taken as soon as what is written can be read. */
function LeastMemory({
  state,
  trans
}: {
  state: ClusterState;
  trans: TranslationBundle;
}): React.JSX.Element {
  const id = useId();
  const { memory } = state.filter;
  const [text, setText] = useState(memory > 0 ? formatSize(memory) : '');
  const [problem, setProblem] = useState('');
  useEffect(() => {
    if (memory === 0) {
      setText(''); // somebody has cleared the filter
      setProblem('');
    }
  }, [memory]);
  const write = (written: string): void => {
    setText(written);
    try {
      state.narrow({ memory: written.trim() === '' ? 0 : parseSize(written) });
      setProblem('');
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <label>
      <span>{trans.__('Free on a GPU')}</span>
      <input
        className="jp-mod-styled"
        type="text"
        size={7}
        placeholder="16GiB"
        value={text}
        aria-invalid={problem !== ''}
        aria-describedby={problem === '' ? undefined : id}
        title={trans.__('The least memory that one GPU of the node has free')}
        onChange={event => write(event.target.value)}
      />
      {problem !== '' && (
        <span className="jp-GpuFit-error" id={id} role="status">
          {problem}
        </span>
      )}
    </label>
  );
}

interface ChoiceProps {
  checked: boolean;
  text: string;
  title: string;
  onChange: (checked: boolean) => void;
}

function Choice({ checked, text, title, onChange }: ChoiceProps): React.JSX.Element {
  return (
    <label className="jp-GpuFit-choice" title={title}>
      <input type="checkbox" checked={checked} onChange={event => onChange(event.target.checked)} />
      <span>{text}</span>
    </label>
  );
}
