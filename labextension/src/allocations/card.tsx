/** One allocation: what it is, what it does, what can be done with it. */

import React, { useEffect, useId, useState } from 'react';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { useClock, useReconnected } from '../ui/hooks';
import { Sign } from '../ui/marks';
import { useWork, type Work } from '../ui/work';
import type { Allocation, Queued } from '../wire';
import { Extend, Note, Notebooks, Progress, Queue, Times, Unreachable } from './cardparts';
import { doing, gpuWords, notebooksOf, sentence, standing, waiting } from './holding';
import { JobLines, Message } from './jobparts';
import { Logs } from './logs';
import { actionsOf, type Action } from './options';
import { does, wordsOf, type Ways } from './pressing';
import { UsageOf } from './usage';

const MAIN: Action[] = ['attach', 'new', 'again'];
const MORE: Action[] = ['logs', 'usage', 'extend', 'copy', 'cancel', 'release', 'dismiss'];
const COPIED = 2000; // ms in which a button says that it has worked

export interface CardProps {
  gpufit: IGpuFit;
  allocation: Allocation;
  ways: Ways;
  /** Somebody (a command) has asked for its logs here. */
  asked: object | null;
}

export function Card({ gpufit, allocation, ways, asked }: CardProps): React.JSX.Element {
  const { model, trans } = gpufit;
  const { id, name, node, image, state } = allocation;
  const work = useWork<Action>();
  useReconnected(gpufit.model, work.dismiss);
  const [open, setOpen] = useState<'extend' | 'logs' | 'usage' | null>(null);
  const label = useId();
  useEffect(() => {
    if (asked !== null) {
      setOpen('logs');
    }
  }, [asked]);
  const { word, tone, mark } = standing(allocation, trans);
  const progress = doing(allocation, trans);
  const attachments = notebooksOf(id, model.attachments);
  const current = gpufit.actions.notebook;
  const here = current !== null && gpufit.actions.allocationOf(current)?.id === id;
  const path = current?.context.path ?? null;
  const own = here && !attachments.some(one => one.path === path) ? path : null;
  const actions = actionsOf(allocation, { notebook: path, here, attached: attachments.length > 0 });

  const press = (action: Action): void => {
    if (opensInPlace(action, ways)) {
      setOpen(open === action ? null : action);
    } else {
      void work.run(action, () => does(action, gpufit, allocation, ways));
    }
  };
  const acts = {
    gpufit,
    allocation,
    work,
    open,
    ways,
    notebook: path,
    press
  };
  const warned = allocation.warning !== '' && actions.includes('extend');
  return (
    <li
      className="jp-GpuFit-held"
      data-item={id}
      data-allocation={id}
      data-state={state}
      data-tone={tone}
      tabIndex={-1}
      aria-labelledby={label}
    >
      <div className="jp-GpuFit-head" id={label}>
        <span className="jp-GpuFit-name" title={name}>
          {name}
        </span>
        <span className="jp-GpuFit-state" data-tone={tone}>
          <Sign mark={mark} />
          {word}
        </span>
      </div>
      <div className="jp-GpuFit-what">
        {gpuWords(allocation, model.nodes, trans)}
        {node !== null && <span className="jp-mod-node"> {trans.__('on %1', node)}</span>}
      </div>
      <JobLines allocation={allocation} trans={trans} />
      <Times allocation={allocation} model={model} trans={trans} />
      {image !== null && image !== progress?.detail && (
        <div
          className="jp-GpuFit-fact jp-mod-line jp-mod-image"
          title={trans.__('Image %1', image)}
        >
          {image}
        </div>
      )}
      {progress !== null && <Progress doing={progress} />}
      {allocation.queue !== null && <Place gpufit={gpufit} queue={allocation.queue} />}
      <Unreachable allocation={allocation} model={model} trans={trans} />
      <Message allocation={allocation} open={ways.openFolder} trans={trans} />
      {allocation.warning !== '' && state !== 'ended' && (
        <Note tone="warn" mark="alert" text={sentence(allocation.warning)}>
          {warned && <Act action="extend" {...acts} />}
        </Note>
      )}
      <Notebooks
        attachments={attachments}
        own={own}
        running={state === 'running'}
        open={ways.openNotebook}
        trans={trans}
      >
        {actions.includes('detach') && <Act action="detach" {...acts} />}
      </Notebooks>
      {work.error !== '' && (
        <Note tone="bad" mark="alert" alert text={work.error}>
          <button
            type="button"
            className="jp-GpuFit-button jp-mod-link"
            title={trans.__('Dismiss')}
            aria-label={trans.__('Dismiss this error')}
            onClick={work.dismiss}
          >
            <Sign mark="cross" />
          </button>
        </Note>
      )}
      <div className="jp-GpuFit-actions" role="group" aria-label={trans.__('Actions on %1', name)}>
        {[MAIN, MORE].map(group => (
          <div key={group.join()}>
            {actions
              .filter(action => group.includes(action) && !(action === 'extend' && warned))
              .map(action => (
                <Act key={action} action={action} {...acts} />
              ))}
          </div>
        ))}
      </div>
      {open === 'extend' && actions.includes('extend') && (
        <Extend
          trans={trans}
          extend={time => gpufit.actions.extend(id, time)}
          close={() => setOpen(null)}
        />
      )}
      {open === 'usage' && actions.includes('usage') && (
        <UsageOf gpufit={gpufit} allocation={allocation} />
      )}
      {open === 'logs' && actions.includes('logs') && <Logs gpufit={gpufit} id={id} />}
    </li>
  );
}

/** Its place in the queue, as time passes. */
function Place({ gpufit, queue }: { gpufit: IGpuFit; queue: Queued }): React.JSX.Element {
  useClock(1000);
  return <Queue {...waiting(queue, gpufit.model.now(), gpufit.trans)} />;
}

interface ActProps extends Pick<CardProps, 'gpufit' | 'allocation'> {
  action: Action;
  work: Work<Action>;
  open: Action | null;
  ways: Ways;
  notebook: string | null;
  press: (action: Action) => void;
}

/** Whether it shows something in the card. */
function opensInPlace(action: Action, { openLogs }: Ways): action is 'extend' | 'logs' | 'usage' {
  const places: Action[] =
    openLogs === undefined ? ['extend', 'usage', 'logs'] : ['extend', 'usage'];
  return places.includes(action);
}

/** The button of an action. */
function Act(props: ActProps): React.JSX.Element {
  const { action, work, press } = props;
  const [done, setDone] = useState(false);
  useEffect(() => {
    const timer = done ? setTimeout(() => setDone(false), COPIED) : undefined;
    return () => clearTimeout(timer);
  }, [done]);
  const words = wordsOf(props);
  return (
    <Button
      {...words}
      label={done ? props.gpufit.trans.__('Copied') : words.label}
      action={action}
      busy={work.busy === action}
      off={work.busy !== null}
      expanded={opensInPlace(action, props.ways) ? props.open === action : undefined}
      onPress={() => {
        setDone(action === 'copy');
        press(action);
      }}
    />
  );
}
