/** What an allocation used of its GPUs, drawn: shown in its card when it is asked for. */

import React, { useEffect, useRef, useState } from 'react';
import { sentenceOf } from '../api';
import type { IGpuFit } from '../tokens';
import { isSeen } from '../ui/seen';
import type { Allocation, UsageSeries } from '../wire';
import { Note } from './cardparts';
import { sentence } from './holding';
import { usesOf, type Point, type Use } from './use';

const AGAIN = 10_000; // ms between two questions, while somebody sees it
const LOOK = 1000; // ms between looks whether somebody does
const [WIDTH, HEIGHT] = [120, 24];

export function UsageOf(props: { gpufit: IGpuFit; allocation: Allocation }): React.JSX.Element {
  const { gpufit, allocation } = props;
  const { model, trans } = gpufit;
  const root = useRef<HTMLDivElement>(null);
  const { series, error } = useSeries(gpufit, allocation, root);
  const uses = series === null ? [] : usesOf(series, model.nodes.get(allocation.node ?? ''), trans);
  const known = series !== null && series.times.length > 0;
  return (
    <div className="jp-GpuFit-usage" ref={root} role="group" aria-label={trans.__('Usage')}>
      {error !== '' && <Note tone="bad" mark="alert" alert text={error} />}
      {series !== null && !known && (
        <div className="jp-GpuFit-fact">
          {allocation.state === 'ended'
            ? trans.__('Nothing was measured.')
            : trans.__('Nothing is measured yet.')}
        </div>
      )}
      {known && (
        <>
          <ul>
            {uses.map(use => (
              <li key={use.uuid}>
                <Lines use={use} />
                <div aria-hidden="true">
                  <div>
                    {use.name}: <span className="jp-mod-memory">{use.memory}</span>
                  </div>
                  <div className="jp-mod-load">{use.load}</div>
                </div>
              </li>
            ))}
          </ul>
          {series.sentence !== '' && <Note tone="quiet" text={sentence(series.sentence)} />}
        </>
      )}
    </div>
  );
}

/** Memory as an area, load as a line. */
function Lines({ use }: { use: Use }): React.JSX.Element {
  return (
    <svg
      className="jp-GpuFit-lines"
      viewBox={`0 -1 ${WIDTH} ${HEIGHT + 2}`}
      width={WIDTH}
      height={HEIGHT + 2}
      role="img"
      aria-label={use.words}
    >
      <title>{use.words}</title>
      {use.memoryLines.map((line, at) => (
        <polygon key={`memory ${at}`} className="jp-mod-memory" points={area(line)} />
      ))}
      {use.loadLines.map((line, at) => (
        <polyline key={`load ${at}`} className="jp-mod-load" points={drawn(line)} />
      ))}
    </svg>
  );
}

function drawn(line: readonly Point[]): string {
  // (A single point is seen as a short line.)
  const points = line.length === 1 ? [[Math.max(0, line[0][0] - 0.02), line[0][1]], ...line] : line;
  return points.map(([x, y]) => `${round(x * WIDTH)},${round((1 - y) * HEIGHT)}`).join(' ');
}

function area(line: readonly Point[]): string {
  const [first, last] = [line[0][0], line[line.length - 1][0]];
  const left = line.length === 1 ? Math.max(0, first - 0.02) : first;
  return `${round(left * WIDTH)},${HEIGHT} ${drawn(line)} ${round(last * WIDTH)},${HEIGHT}`;
}

function round(number: number): number {
  return Math.round(number * 10) / 10;
}

interface Series {
  /** `null`: nobody knows yet. */
  series: UsageSeries | null;
  error: string;
}

/** As it is now, and every few seconds while somebody sees it; once more at the end. */
function useSeries(
  { model }: IGpuFit,
  { id, state }: Allocation,
  root: React.RefObject<HTMLElement | null>
): Series {
  const [known, setKnown] = useState<Series>({ series: null, error: '' });
  const ended = state === 'ended';
  useEffect(() => {
    let gone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const plan = (pause: number): void => {
      timer = setTimeout(() => (isSeen(root.current) ? void look() : plan(LOOK)), pause);
    };
    const look = async (): Promise<void> => {
      let problem = '';
      let series: UsageSeries | null = null;
      try {
        series = await model.api.usage(id);
      } catch (thrown) {
        problem = sentenceOf(thrown);
      }
      if (!gone) {
        setKnown(before => ({ series: series ?? before.series, error: problem }));
        if (!ended || problem !== '') {
          plan(AGAIN);
        }
      }
    };
    void look();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [model, id, ended, root]);
  return known;
}
