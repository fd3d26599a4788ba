/** One allocation: what it is, what it does, what can be done with it. */

import { PathExt } from '@jupyterlab/coreutils';
import React, { useEffect, useId, useState } from 'react';
import type { IGpuFit } from '../tokens';
import { Button, type ButtonProps } from '../ui/button';
import { useClock, useReconnected } from '../ui/hooks';
import { Sign } from '../ui/marks';
import { useWork, type Work } from '../ui/work';
import type { Allocation, Queued } from '../wire';
import { Extend, Note, Notebooks, Progress, Queue, Times, Unreachable } from './cardparts';
import {
  actionsOf,
  doing,
  gpuWords,
  messageOf,
  notebooksOf,
  sentence,
  standing,
  waiting,
  type Action
} from './holding';
import { Logs } from './logs';
import { confirmRelease } from './releasing';

const MAIN: Action[] = ['attach', 'new', 'again'];
const MORE: Action[] = ['logs', 'extend', 'copy', 'cancel', 'release', 'dismiss'];
const COPIED = 2000; // ms in which a button says that it has worked

/** Ways to what is elsewhere on the page; a shell may not have them. */
export interface Ways {
  openNotebook?: (path: string) => void;
  openRequest?: () => void;
  /** Without it, logs are shown in the card. */
  openLogs?: (allocationId: string) => void;
}

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
  const [open, setOpen] = useState<'extend' | 'logs' | null>(null);
  const label = useId();
  useEffect(() => {
    if (asked !== null) {
      setOpen('logs');
    }
  }, [asked]);
  const { word, tone, mark } = standing(allocation, trans);
  const progress = doing(allocation, trans);
  const message = messageOf(allocation);
  const attachments = notebooksOf(id, model.attachments);
  const current = gpufit.actions.notebook;
  const here = current !== null && gpufit.actions.allocationOf(current)?.id === id;
  const path = current?.context.path ?? null;
  const own = here && !attachments.some(one => one.path === path) ? path : null;
  const actions = actionsOf(allocation, { notebook: path, here, attached: attachments.length > 0 });

  const press = (action: Action): void => {
    if (action === 'extend' || (action === 'logs' && ways.openLogs === undefined)) {
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
    inPlace: ways.openLogs === undefined,
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
      {message !== '' && <Note tone={tone === 'bad' ? 'bad' : 'quiet'} text={message} />}
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
  inPlace: boolean;
  notebook: string | null;
  press: (action: Action) => void;
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
  const opens = action === 'extend' || (action === 'logs' && props.inPlace);
  return (
    <Button
      {...words}
      label={done ? props.gpufit.trans.__('Copied') : words.label}
      action={action}
      busy={work.busy === action}
      off={work.busy !== null}
      expanded={opens ? props.open === action : undefined}
      onPress={() => {
        setDone(action === 'copy');
        press(action);
      }}
    />
  );
}

function wordsOf(props: ActProps): Pick<ButtonProps, 'label' | 'title' | 'kind'> {
  const { action, gpufit, allocation, notebook } = props;
  const { trans } = gpufit;
  const { name } = allocation;
  const file = PathExt.basename(notebook ?? '');
  switch (action) {
    case 'attach':
      return { kind: 'main', label: trans.__('Attach %1', file), title: attachTitle(props, file) };
    case 'detach':
      return {
        kind: 'link',
        label: trans.__('Detach'),
        title: trans.__('Give the notebooks their own kernels back. "%1" goes on.', name)
      };
    case 'new':
      return {
        label: trans.__('New notebook'),
        title: trans.__('Open a new notebook that runs on "%1"', name)
      };
    case 'again':
      return { label: trans.__('Ask again'), title: trans.__('Ask once more for the same') };
    case 'logs':
      return { kind: 'link', label: trans.__('Logs'), title: trans.__('What "%1" prints', name) };
    case 'extend':
      return {
        kind: 'link',
        label: trans.__('Extend'),
        title: trans.__('Give "%1" more time', name)
      };
    case 'copy':
      return {
        kind: 'link',
        label: trans.__('Copy line'),
        title: trans.__('Copy the %gpufit line that asks for the same, for a notebook')
      };
    case 'cancel':
      return { kind: 'link', label: trans.__('Cancel'), title: trans.__('Take the request back') };
    case 'release':
      return {
        kind: 'link',
        label: trans.__('Release'),
        title: trans.__('End "%1" and give its GPUs back', name)
      };
    case 'dismiss':
      return {
        kind: 'link',
        label: trans.__('Dismiss'),
        title: trans.__('Do not show it any more')
      };
  }
}

function attachTitle({ gpufit, allocation }: ActProps, file: string): string {
  const { actions, trans } = gpufit;
  const now = actions.notebook === null ? null : actions.allocationOf(actions.notebook);
  const first =
    allocation.state === 'running'
      ? trans.__('Run %1 on these GPUs.', file)
      : trans.__('Run %1 on these GPUs as soon as they are there.', file);
  const then =
    now === null
      ? trans.__('Its own kernel is kept, with its variables.')
      : trans.__('It leaves "%1", which goes on.', now.name);
  return `${first} ${then}`;
}

async function does(
  action: Action,
  gpufit: IGpuFit,
  allocation: Allocation,
  ways: Ways
): Promise<void> {
  const { actions, model } = gpufit;
  const { id } = allocation;
  switch (action) {
    case 'attach':
      await actions.attach(id);
      break;
    case 'detach':
      await actions.detach(id);
      break;
    case 'new':
      await actions.newNotebook(id);
      break;
    case 'again':
      await actions.request({ gpus: 1, memory: 0, ...allocation.request }, 'nothing');
      model.dismiss(id);
      break;
    case 'logs':
      ways.openLogs?.(id);
      break;
    case 'copy':
      actions.copyLine(id);
      break;
    case 'cancel':
      await actions.release(id);
      break;
    case 'release':
      if (await confirmRelease(gpufit, [allocation])) {
        await actions.release(id);
      }
      break;
    case 'dismiss':
      model.dismiss(id);
      break;
    case 'extend':
      break; // asked in place
  }
}
