/** What the doctor finds of a node: checks as they come, and the command that mends what is wrong. */

import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { checkIcon, copyIcon, errorIcon } from '@jupyterlab/ui-components';
import React, { useState } from 'react';
import { Button } from '../ui/button';
import { useSignals } from '../ui/hooks';
import { notCheckedIcon } from '../ui/icons';
import type { Diagnosis, Node } from '../wire';
import { findings, tally, type Examination, type Finding } from './examining';

export interface DoctorProps {
  examination: Examination;
  node: Node;
  trans: TranslationBundle;
}

export function Doctor({ examination, node, trans }: DoctorProps): React.JSX.Element {
  useSignals(examination.changed);
  const { diagnosis, problem, isRunning } = examination;
  return (
    <section className="jp-GpuFit-doctor" aria-label={trans.__('Examination of %1', node.name)}>
      <div className="jp-GpuFit-doctorButtons">
        <Button
          label={trans.__('Examine')}
          title={trans.__('Check reporter, engine, image and ports of this node')}
          action="examine"
          busy={isRunning && diagnosis?.deep !== true}
          off={isRunning}
          onPress={() => void examination.start(false)}
        />
        <Button
          label={trans.__('Also start a kernel on one idle GPU')}
          title={trans.__(
            'Examine, and start a kernel on one idle GPU of this node for some seconds'
          )}
          action="examine-deep"
          busy={isRunning && diagnosis?.deep === true}
          off={isRunning}
          onPress={() => void examination.start(true)}
        />
      </div>
      {diagnosis && (
        <ul className="jp-GpuFit-checks">
          {findings(diagnosis.checks).map(finding => (
            <FindingLine key={finding.checks.join(' ')} finding={finding} trans={trans} />
          ))}
        </ul>
      )}
      <p className="jp-GpuFit-doctorState" role="status">
        {diagnosis && (problem === '' ? stateOf(diagnosis, trans) : '')}
      </p>
      {problem !== '' && (
        <p className="jp-GpuFit-error" role="alert">
          {problem}
        </p>
      )}
    </section>
  );
}

function stateOf(diagnosis: Diagnosis, trans: TranslationBundle): string {
  const { right, wrong, 'not-checked': unchecked } = tally(diagnosis.checks);
  if (!diagnosis.done) {
    return trans.__('Examining… %1 done so far', diagnosis.checks.length);
  }
  const parts = [
    wrong === 0 ? trans.__('Nothing is wrong') : trans.__('%1 wrong', wrong),
    trans.__('%1 right', right),
    ...(unchecked > 0 ? [trans.__('%1 not checked', unchecked)] : [])
  ];
  return `${parts.join(', ')}.`;
}

interface FindingLineProps {
  finding: Finding;
  trans: TranslationBundle;
}

function FindingLine({ finding, trans }: FindingLineProps): React.JSX.Element {
  const { checks, verdict, message, fix } = finding;
  const [Icon, outcome] = {
    right: [checkIcon, trans.__('right')] as const,
    wrong: [errorIcon, trans.__('wrong')] as const,
    'not-checked': [notCheckedIcon, trans.__('not checked')] as const
  }[verdict];
  return (
    <li className={`jp-GpuFit-check jp-mod-${verdict}`}>
      <Icon.react tag="span" className="jp-GpuFit-icon" aria-hidden="true" />
      <div>
        <strong>{checks.join(', ')}</strong> <span className="jp-GpuFit-verdict">{outcome}</span>
        <div>{message}</div>
        {fix !== '' && <Fix command={fix} trans={trans} />}
      </div>
    </li>
  );
}

function Fix({ command, trans }: { command: string; trans: TranslationBundle }): React.JSX.Element {
  const [copied, setCopied] = useState(false);
  const label = copied ? trans.__('Copied') : trans.__('Copy');
  return (
    <div className="jp-GpuFit-fix">
      <code>{command}</code>
      <button
        type="button"
        className="jp-GpuFit-iconButton"
        title={label}
        aria-label={trans.__('%1: %2', label, command)}
        onBlur={() => setCopied(false)}
        onClick={() => {
          Clipboard.copyToSystem(command);
          setCopied(true);
        }}
      >
        {copied ? <checkIcon.react tag="span" /> : <copyIcon.react tag="span" />}
      </button>
    </div>
  );
}
