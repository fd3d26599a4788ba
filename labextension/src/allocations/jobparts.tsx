/** What a card shows of a job: what runs, how far it is, where its outputs are. */

import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { localOf } from '../rooted';
import { Button } from '../ui/button';
import type { Allocation } from '../wire';
import { Note } from './cardparts';
import { messageOf, standing } from './holding';
import { envWords, jobFacts, jobWords } from './jobs';
import type { Ways } from './pressing';

interface Props {
  allocation: Allocation;
  trans: TranslationBundle;
}

export function JobLines({ allocation, trans }: Props): React.JSX.Element | null {
  const { job, request } = allocation;
  if (job === null) {
    return null;
  }
  const facts = [...jobFacts(allocation, trans), envWords(job, trans)].filter(Boolean);
  const words = jobWords(job);
  const folder = request.folder === undefined ? '' : trans.__('in %1', request.folder);
  return (
    <>
      <code className="jp-GpuFit-job" title={[words, folder].filter(Boolean).join('\n')}>
        {words}
      </code>
      {facts.length > 0 && <div className="jp-GpuFit-fact">{facts.join(' · ')}</div>}
    </>
  );
}

/** What the server says of an allocation, with where the outputs of a job are, once they are there. */
export function Message({
  allocation,
  open,
  trans
}: Props & { open: Ways['openFolder'] }): React.JSX.Element {
  const { outputs } = allocation;
  const message = messageOf(allocation);
  const tone = standing(allocation, trans).tone === 'bad' ? 'bad' : 'quiet';
  const local = outputs === null ? null : localOf(outputs);
  const ways = outputs !== null && (
    <>
      {open !== undefined && local !== null && (
        <Button
          kind="link"
          action="outputs"
          label={trans.__('Open')}
          title={trans.__('Show its outputs in the file browser')}
          onPress={() => open(local)}
        />
      )}
      <Button
        kind="link"
        action="copy path"
        label={trans.__('Copy path')}
        title={trans.__('Copy the path of its outputs')}
        onPress={() => Clipboard.copyToSystem(outputs)}
      />
    </>
  );
  const isSaid = outputs !== null && message.includes(outputs);
  return (
    <>
      {message !== '' && (
        <Note tone={tone} text={message}>
          {isSaid && ways}
        </Note>
      )}
      {outputs !== null && !isSaid && (
        <Note tone="quiet" text={trans.__('Outputs: %1', outputs)}>
          {ways}
        </Note>
      )}
    </>
  );
}
