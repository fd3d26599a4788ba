/** What the person holds, has asked for, or has just lost: the section *My allocations* of the sidebar. */

import { ReactWidget } from '@jupyterlab/ui-components';
import React, { useEffect, useRef, useState } from 'react';
import { sentenceOf } from '../api';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import { useKeptFocus } from '../ui/keepfocus';
import { useWork } from '../ui/work';
import type { Allocation } from '../wire';
import { Card, type CardProps } from './card';
import { Note } from './cardparts';
import { changes, heldWords } from './holding';
import type { Ways } from './pressing';
import { confirmRelease } from './releasing';

const TOLD = 1000; // ms; changes that come close together are told in one go

export class AllocationsSection extends ReactWidget {
  constructor(private readonly gpufit: IGpuFit) {
    super();
    this.addClass('jp-GpuFit-allocations');
    gpufit.model.allocationsChanged.connect(this.entitle, this);
    this.entitle();
  }

  /** Where its buttons lead, in this shell. Set by the plugin that has it. */
  get ways(): Ways {
    return this.leads;
  }

  set ways(ways: Ways) {
    this.leads = ways;
    this.update();
  }

  /** Show what an allocation printed: in the main area, or in its card. */
  showLogs(id: string): void {
    if (this.leads.openLogs === undefined) {
      this.asked = { id };
      this.update();
    } else {
      this.leads.openLogs(id);
    }
  }

  protected override render(): React.JSX.Element {
    return <Allocations gpufit={this.gpufit} ways={this.leads} asked={this.asked} />;
  }

  /** The number is seen also while the section is closed. */
  private entitle(): void {
    const { model, trans } = this.gpufit;
    const count = [...model.allocations.values()].filter(isHeld).length;
    this.title.label =
      count === 0 ? trans.__('My allocations') : trans.__('My allocations (%1)', count);
  }

  private leads: Ways = {};
  private asked: LogsAsked | null = null;
}

interface Props {
  gpufit: IGpuFit;
  ways: Ways;
}

/** A new one with each time somebody asks for logs in a card. */
interface LogsAsked {
  id: string;
}

export function Allocations({
  gpufit,
  ways,
  asked = null
}: Props & { asked?: LogsAsked | null }): React.JSX.Element {
  const { model, actions, trans } = gpufit;
  useSignals(
    model.allocationsChanged,
    model.attachmentsChanged,
    model.nodesChanged,
    model.connectionChanged,
    actions.notebookChanged
  );
  const root = useRef<HTMLDivElement>(null);
  const handlers = useKeptFocus(root, '[data-action]');
  const latest = [...model.allocations.values()].reverse();
  const held = latest.filter(isHeld);
  const ended = latest.filter(one => !isHeld(one));
  const cardProps = (allocation: Allocation): CardProps => ({
    gpufit,
    allocation,
    ways,
    asked: asked?.id === allocation.id ? asked : null
  });
  return (
    <div className="jp-GpuFit-holding" ref={root} {...handlers}>
      {held.length === 0 && <Empty gpufit={gpufit} ways={ways} />}
      {held.length > 1 && <Header gpufit={gpufit} held={held} />}
      {held.length > 0 && (
        <ul className="jp-GpuFit-cards" aria-label={trans.__('My allocations')}>
          {held.map(one => (
            <Card key={one.id} {...cardProps(one)} />
          ))}
        </ul>
      )}
      {ended.length > 0 && (
        <>
          <div className="jp-GpuFit-cardsHead">
            <span>{trans.__('Ended')}</span>
            {ended.length > 1 && (
              <Button
                kind="link"
                action="dismiss all"
                label={trans.__('Dismiss all')}
                title={trans.__('Do not show those that have ended any more')}
                onPress={() => ended.forEach(one => model.dismiss(one.id))}
              />
            )}
          </div>
          <ul className="jp-GpuFit-cards jp-mod-ended" aria-label={trans.__('Ended')}>
            {ended.map(one => (
              <Card key={one.id} {...cardProps(one)} />
            ))}
          </ul>
        </>
      )}
      <Told gpufit={gpufit} />
    </div>
  );
}

function isHeld(allocation: Allocation): boolean {
  return allocation.state !== 'ended';
}

/** Nothing is held; or nobody knows yet. */
function Empty({ gpufit, ways }: Props): React.JSX.Element {
  const { model, trans } = gpufit;
  if (model.connection !== 'connected') {
    const asks = model.connection === 'connecting' && model.problem === '';
    return (
      <div className="jp-GpuFit-nothing">
        {asks ? trans.__('Asking the server…') : model.problem}
      </div>
    );
  }
  return (
    <div className="jp-GpuFit-nothing">
      <span>{trans.__('You hold no GPUs.')}</span>
      {ways.openRequest !== undefined && (
        <Button action="request" label={trans.__('Request GPUs')} onPress={ways.openRequest} />
      )}
    </div>
  );
}

/** How much is held, and a way to give all of it back. */
function Header({ gpufit, held }: { gpufit: IGpuFit; held: Allocation[] }): React.JSX.Element {
  const { actions, trans } = gpufit;
  const work = useWork<'release all'>();
  const live = held.filter(one => one.state !== 'stopping');
  const releaseAll = async (): Promise<void> => {
    if (!(await confirmRelease(gpufit, live))) {
      return;
    }
    const results = await Promise.allSettled(live.map(one => actions.release(one.id)));
    const problems = results.flatMap(one =>
      one.status === 'rejected' ? [sentenceOf(one.reason)] : []
    );
    if (problems.length > 0) {
      throw new Error([...new Set(problems)].join(' '));
    }
  };
  return (
    <>
      <div className="jp-GpuFit-cardsHead">
        <span>{heldWords(held, trans)}</span>
        {live.length > 1 && (
          <Button
            kind="link"
            action="release all"
            label={trans.__('Release all')}
            title={trans.__('End all of them and give their GPUs back')}
            busy={work.busy !== null}
            onPress={() => void work.run('release all', releaseAll)}
          />
        )}
      </div>
      {work.error !== '' && <Note tone="bad" mark="alert" alert text={work.error} />}
    </>
  );
}

/** What has changed, for who listens. What was there when the page came is not told. */
function Told({ gpufit }: { gpufit: IGpuFit }): React.JSX.Element {
  const { model, trans } = gpufit;
  const [text, setText] = useState('');
  useEffect(() => {
    let before = model.about === null ? null : model.allocations;
    let news: string[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const tell = (): void => {
      timer = undefined;
      setText(news.join(' '));
      news = [];
    };
    const slot = (): void => {
      if (before !== null) {
        news.push(...changes(before, model.allocations, trans));
      }
      before = model.about === null ? null : model.allocations; // (none are known, or none any more)
      if (news.length > 0) {
        timer ??= setTimeout(tell, TOLD);
      }
    };
    model.allocationsChanged.connect(slot);
    return () => {
      model.allocationsChanged.disconnect(slot);
      clearTimeout(timer);
    };
  }, [model, trans]);
  return (
    <div className="jp-GpuFit-unseen" role="status" aria-live="polite">
      {text}
    </div>
  );
}
