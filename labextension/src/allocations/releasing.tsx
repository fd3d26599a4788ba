/** The one question before a release: whether what it ends may be lost. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import React from 'react';
import type { IGpuFit } from '../tokens';
import type { Allocation } from '../wire';
import { notebooksOf } from './holding';
import { losses } from './options';

/**
 * Whether these may be released. It asks only where something would be lost, and the person has not switched it off.
 * Called by cards and commands.
 */
export async function confirmRelease(
  { model, settings, trans }: Pick<IGpuFit, 'model' | 'settings' | 'trans'>,
  allocations: readonly Allocation[]
): Promise<boolean> {
  const lossy = allocations
    .map(one => ({ one, lost: losses(one, notebooksOf(one.id, model.attachments), trans) }))
    .filter(({ lost }) => lost.length > 0);
  const first = lossy.at(0);
  if (first === undefined || !settings.values.confirmRelease) {
    return true;
  }
  const single = allocations.length === 1;
  const stops = single && first.one.job !== null;
  const body = single ? (
    <ul className="jp-GpuFit-losses">
      {first.lost.map(text => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  ) : (
    <dl className="jp-GpuFit-losses">
      {lossy.map(({ one, lost }) => (
        <React.Fragment key={one.id}>
          <dt>{one.name}</dt>
          {lost.map(text => (
            <dd key={text}>{text}</dd>
          ))}
        </React.Fragment>
      ))}
    </dl>
  );
  const result = await showDialog({
    title: single
      ? stops
        ? trans.__('Stop "%1"?', first.one.name)
        : trans.__('Release "%1"?', first.one.name)
      : trans._n('Release %1 allocation?', 'Release %1 allocations?', allocations.length),
    body,
    buttons: [
      Dialog.cancelButton({
        label: stops ? trans.__('Let It Run') : single ? trans.__('Keep It') : trans.__('Keep Them')
      }),
      Dialog.warnButton({
        label: stops ? trans.__('Stop') : single ? trans.__('Release') : trans.__('Release All')
      })
    ]
  });
  return result.button.accept;
}
