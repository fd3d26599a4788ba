/** The section *Run* of the request form: the job that is to have the GPUs. It shows `gpufit.draft.run`, and changes it. */

import { closeIcon } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useEffect, useId, useRef } from 'react';
import type { IGpuFit } from '../tokens';
import { Button } from '../ui/button';
import { Check, Mistake, Text, TextField } from './fields';
import { kindOf, type Run, type RunField, type RunMistakes } from './run';

interface Props {
  gpufit: IGpuFit;
  run: Run;
  mistakes: RunMistakes;
}

export function RunFields({ gpufit, run, mistakes }: Props): React.JSX.Element {
  const { draft, trans } = gpufit;
  const change = (what: Partial<Run>): void => draft.run.change(what);
  const kind = kindOf(run.what);
  const jobs = draft.run.reading?.jobs ?? 1;
  const text = (name: RunField & keyof Run, label: string, hint: string, placeholder = '') => ({
    label,
    hint,
    placeholder,
    value: run[name],
    mistake: mistakes[name],
    onWrite: (written: string) => change({ [name]: written })
  });
  return (
    <fieldset className="jp-GpuFit-formRun">
      <legend>{trans.__('Run')}</legend>
      <div className="jp-GpuFit-formGrid">
        <TextField
          {...text(
            'what',
            trans.__('What runs'),
            trans.__('A script (.py) or a notebook (.ipynb) of the folder, or a command'),
            'train.py'
          )}
        />
        <TextField
          label={trans.__('Folder')}
          hint={trans.__('It is reached there, or copied there without what .gitignore leaves out')}
          placeholder={trans.__("the server's own")}
          value={run.folder}
          onWrite={folder => change({ folder })}
        />
        {kind === 'script' && (
          <TextField
            {...text(
              'args',
              trans.__('Arguments'),
              trans.__('What follows the script, as in a shell'),
              '--epochs 3'
            )}
          />
        )}
        <TextField
          {...text(
            'retries',
            trans.__('Retries'),
            trans.__('How often it is started again when it fails'),
            '0'
          )}
        />
        <TextField
          {...text(
            'sweep',
            trans.__('Sweep'),
            trans.__('Values to try: one job for each combination'),
            'lr=1e-3,1e-4'
          )}
        />
      </div>
      {jobs > 1 && (
        <p className="jp-GpuFit-formHeld">
          {trans._n('%1 job, with its own GPUs.', '%1 jobs, each with its own GPUs.', jobs)}
        </p>
      )}
      {kind === 'script' && (
        <Check
          label={trans.__('One process for each GPU (torchrun)')}
          checked={run.torchrun}
          onCheck={torchrun => change({ torchrun })}
        />
      )}
      <Variables run={run} mistakes={mistakes} change={change} trans={trans} />
    </fieldset>
  );
}

interface VariablesProps {
  run: Run;
  mistakes: RunMistakes;
  change: (what: Partial<Run>) => void;
  trans: TranslationBundle;
}

/** Further variables of its environment: names and values; values are not shown. */
function Variables({ run, mistakes, change, trans }: VariablesProps): React.JSX.Element {
  const id = useId();
  const { env } = run;
  const write = (at: number, what: { name?: string; value?: string }): void =>
    change({ env: env.map((one, other) => (other === at ? { ...one, ...what } : one)) });
  // Where one is set, its name is written next; where one is removed, the focus is not to be lost with it.
  const root = useRef<HTMLDivElement>(null);
  const before = useRef(env.length);
  useEffect(() => {
    const names = root.current?.querySelectorAll<HTMLInputElement>('input[type="text"]');
    if (env.length > before.current) {
      names?.[env.length - 1]?.focus();
    } else if (env.length < before.current) {
      root.current?.querySelector<HTMLElement>(':scope > button')?.focus();
    }
    before.current = env.length;
  }, [env.length]);
  return (
    <div className="jp-GpuFit-formEnv" ref={root} role="group" aria-label={trans.__('Variables')}>
      {env.map(({ name, value }, at) => {
        const mistake = mistakes[`env-${at}`] ?? '';
        const missing = mistakes[`value-${at}`] ?? '';
        const field = `${id}-${at}`;
        return (
          <div key={at} className="jp-GpuFit-formVariable">
            <Text
              id={field}
              value={name}
              placeholder={trans.__('NAME')}
              aria-label={trans.__('Name of variable %1', at + 1)}
              mistake={mistake}
              onWrite={written => write(at, { name: written })}
            />
            {/* (No password manager is to keep it, or to fill in one of its own.) */}
            <Text
              id={`${field}-value`}
              type="password"
              autoComplete="new-password"
              value={value}
              placeholder={trans.__('value')}
              aria-label={trans.__('Value of variable %1', at + 1)}
              mistake={missing}
              onWrite={written => write(at, { value: written })}
            />
            <button
              type="button"
              className="jp-GpuFit-button jp-mod-link"
              title={trans.__('Without this variable')}
              aria-label={trans.__('Remove variable %1', at + 1)}
              onClick={() => change({ env: env.filter((_, other) => other !== at) })}
            >
              <closeIcon.react tag="span" width="12px" height="12px" />
            </button>
            <Mistake id={`${field}-mistake`} text={mistake} />
            <Mistake id={`${field}-value-mistake`} text={missing} />
          </div>
        );
      })}
      <Button
        kind="link"
        label={env.length === 0 ? trans.__('Set a variable') : trans.__('Set one more variable')}
        title={trans.__('For its environment, such as a key. It is sent, and kept nowhere here.')}
        onPress={() => change({ env: [...env, { name: '', value: '' }] })}
      />
    </div>
  );
}
