/** All that is known of a node: each of its GPUs, and the node itself. */

import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { formatMoment, formatSize } from '../format';
import { useClock } from '../ui/hooks';
import type { Gpu, GpuProcess, Node, StoredModel } from '../wire';
import type { Holdings } from './bars';
import { coresLine, gpuName, healthOf, memoryOf, modelsLine, ramLine, usersOf } from './describe';
import { Doctor } from './doctor';
import type { Examination } from './examining';
import { GpuBar } from './gpubar';
import { factsOf, modelOf } from './rows';
import { silenceOf } from './silence';

export interface NodeDetailProps {
  node: Node;
  holdings: Holdings;
  examination: Examination;
  trans: TranslationBundle;
}

export function NodeDetail(props: NodeDetailProps): React.JSX.Element {
  const { node, holdings, examination, trans } = props;
  useClock(5000); // its last report gets older without an event
  const health = healthOf(node, silenceOf(node), trans);
  const [cores, ram] = [coresLine(node, trans), ramLine(node, trans)];
  const labels = Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
  return (
    <div
      className="jp-GpuFit-detail"
      role="group"
      aria-label={trans.__('Details of %1', node.name)}
    >
      {node.reason !== null || !node.reporting ? (
        <p className="jp-GpuFit-sentence">{health.sentence}</p>
      ) : null}
      <ul className="jp-GpuFit-gpuList">
        {factsOf(node).cards.map(({ uuid, gpu, parts }) => (
          <React.Fragment key={uuid}>
            {gpu && (
              <GpuLine
                gpu={gpu}
                parent={null}
                isParent={parts.length > 0}
                node={node}
                holdings={holdings}
                trans={trans}
              />
            )}
            {parts.map(part => (
              <GpuLine
                key={part.uuid}
                gpu={part}
                parent={gpu}
                isParent={false}
                node={node}
                holdings={holdings}
                trans={trans}
              />
            ))}
          </React.Fragment>
        ))}
      </ul>
      <dl className="jp-GpuFit-facts">
        <Fact name={trans.__('GPUs')} value={modelsLine(node, trans)} />
        {cores !== '' && <Fact name={trans.__('CPUs')} value={cores} />}
        {ram !== '' && <Fact name={trans.__('RAM')} value={ram} />}
        <Fact name={trans.__('Driver')} value={node.driver ?? trans.__('unknown')} />
        <Fact name={trans.__('CUDA')} value={node.cuda ?? trans.__('unknown')} />
        <Fact name={trans.__('Kernels run')} value={launcherOf(node, trans)} />
        {labels.length > 0 && <Fact name={trans.__('Labels')} value={labels.join(', ')} />}
      </dl>
      {node.models !== null && <Models models={node.models} trans={trans} />}
      <Doctor examination={examination} node={node} trans={trans} />
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }): React.JSX.Element {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function launcherOf({ launcher }: Node, trans: TranslationBundle): string {
  return launcher === 'docker'
    ? trans.__('in Docker containers')
    : trans.__('as plain processes of this server’s machine');
}

interface ModelsProps {
  models: StoredModel[];
  trans: TranslationBundle;
}

/** What is in its model store. */
function Models({ models, trans }: ModelsProps): React.JSX.Element {
  return (
    <table className="jp-GpuFit-stored">
      <caption>{trans._n('%1 model', '%1 models', models.length)}</caption>
      <tbody>
        {models.map(({ name, size, modified }) => (
          <tr
            key={name}
            title={modified === null ? undefined : trans.__('of %1', formatMoment(modified))}
          >
            <td>{name}</td>
            <td>{size === null ? trans.__('size unknown') : formatSize(size)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface GpuLineProps {
  gpu: Gpu;
  parent: Gpu | null;
  /** Whether it is divided into MIG instances, and is none to be had itself. */
  isParent: boolean;
  node: Node;
  holdings: Holdings;
  trans: TranslationBundle;
}

function GpuLine({
  gpu,
  parent,
  isParent,
  node,
  holdings,
  trans
}: GpuLineProps): React.JSX.Element {
  const use = isParent ? '' : usersOf(gpu, holdings.get(gpu.uuid), trans);
  const about = [use, linksOf(gpu, node, trans)].filter(Boolean).join(' · ');
  return (
    <li className={`jp-GpuFit-gpuLine${gpu.parent === null ? '' : ' jp-mod-part'}`}>
      <div className="jp-GpuFit-gpuTitle" title={`${gpu.model}\n${gpu.uuid}`}>
        <strong>
          {gpu.parent === null ? gpuName(gpu, parent, trans) : (gpu.mig_profile ?? '')}
        </strong>
        {gpu.parent === null && <span>{modelOf(gpu)}</span>}
        {gpu.parent === null && <Vitals gpu={gpu} trans={trans} />}
      </div>
      {!isParent && (
        <div className="jp-GpuFit-gpuMemory">
          <GpuBar gpu={gpu} parent={parent} holdings={holdings} trans={trans} />
          <span>{memoryOf(gpu, trans)}</span>
        </div>
      )}
      {gpu.reason !== null && <div className="jp-GpuFit-gpuReason">{gpu.reason}</div>}
      {about !== '' && <div className="jp-GpuFit-gpuUse">{about}</div>}
      {gpu.processes.length > 0 && <Processes processes={gpu.processes} trans={trans} />}
    </li>
  );
}

/** Utilisation, temperature and power, in columns. */
function Vitals({ gpu, trans }: { gpu: Gpu; trans: TranslationBundle }): React.JSX.Element {
  const values: [string, number | null, string][] = [
    [trans.__('Utilisation'), gpu.utilization, '%'],
    [trans.__('Temperature'), gpu.temperature, '°C'],
    [trans.__('Power'), gpu.power === null ? null : Math.round(gpu.power), 'W']
  ];
  return (
    <span className="jp-GpuFit-vitals">
      {values.map(([name, value, unit]) => {
        const text = value === null ? trans.__('unknown') : `${value} ${unit}`;
        return (
          <span key={unit} title={`${name}: ${text}`} aria-label={`${name}: ${text}`} role="img">
            {value === null ? `? ${unit}` : text}
          </span>
        );
      })}
    </span>
  );
}

interface ProcessesProps {
  processes: GpuProcess[];
  trans: TranslationBundle;
}

function Processes({ processes, trans }: ProcessesProps): React.JSX.Element {
  return (
    <table className="jp-GpuFit-processes" aria-label={trans.__('Processes')}>
      <tbody>
        {processes.map(({ pid, name, memory, container }) => (
          <tr key={pid}>
            <td>{pid}</td>
            <td
              title={
                container === null ? undefined : trans.__('in container %1', container.slice(0, 12))
              }
            >
              {name ?? trans.__('name unknown')}
            </td>
            <td>{memory === null ? trans.__('memory unknown') : formatSize(memory)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Which GPUs it has an NVLink to, and which NUMA node it is at. */
function linksOf(gpu: Gpu, node: Node, trans: TranslationBundle): string {
  const indices = node.gpus
    .filter(({ uuid }) => gpu.links.includes(uuid))
    .map(({ index }) => index);
  return [
    ...(indices.length > 0 ? [trans.__('NVLink to GPU %1', ranges(indices))] : []),
    ...(gpu.numa !== null && gpu.parent === null ? [trans.__('NUMA node %1', gpu.numa)] : [])
  ].join(' · ');
}

/** `0, 2–7`. */
function ranges(indices: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const index of [...indices].sort((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last !== undefined && last[1] === index - 1) {
      last[1] = index;
    } else {
      runs.push([index, index]);
    }
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(', ');
}
