/** The small dialog in which a command asks what is to be requested; all wishes are in the sidebar's form. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import type { Then } from '../actions';
import { EMPTY, read, type Form, type Mistakes } from '../request/asking';
import type { Request } from '../wire';

type Asked = Pick<Form, 'gpus' | 'memory' | 'time'>;

/** What the person wants, asked until it can be understood. `null`: nothing, after all. */
export async function askRequest(
  initial: Asked,
  hasNotebook: boolean,
  trans: TranslationBundle
): Promise<{ request: Request; then: Then } | null> {
  const thens: { label: string; then: Then }[] = [
    { label: trans.__('Only Request'), then: 'nothing' },
    { label: trans.__('New Notebook'), then: 'new' }
  ];
  if (hasNotebook) {
    thens.push({ label: trans.__('Attach This Notebook'), then: 'attach' });
  }
  let asked = initial;
  let mistakes: Mistakes = {};
  for (;;) {
    const { button, value } = await showDialog({
      title: trans.__('Request GPUs'),
      body: new RequestBody(asked, mistakes, trans),
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        ...thens.map(({ label, then }) => Dialog.okButton({ label, actions: [then] }))
      ],
      focusNodeSelector: 'input[aria-invalid="true"], input'
    });
    if (!button.accept || value === null) {
      return null;
    }
    asked = value;
    const reading = read({ ...EMPTY, ...asked }, trans);
    mistakes = reading.mistakes;
    if (reading.request !== null) {
      const then = thens.find(one => button.actions.includes(one.then))?.then ?? 'nothing';
      return { request: reading.request, then };
    }
  }
}

class RequestBody extends Widget implements Dialog.IBodyWidget<Asked> {
  constructor(asked: Asked, mistakes: Mistakes, trans: TranslationBundle) {
    super();
    this.addClass('jp-GpuFit-requestBody');
    this.inputs = {
      gpus: this.field(trans.__('GPUs'), asked.gpus, mistakes.gpus),
      memory: this.field(trans.__('Memory per GPU, such as 16GiB'), asked.memory, mistakes.memory),
      time: this.field(trans.__('Time limit, such as 2h'), asked.time, mistakes.time)
    };
  }

  getValue(): Asked {
    const { gpus, memory, time } = this.inputs;
    return { gpus: gpus.value, memory: memory.value, time: time.value };
  }

  private field(text: string, value: string, mistake = ''): HTMLInputElement {
    const label = document.createElement('label');
    label.append(text);
    const input = document.createElement('input');
    input.className = 'jp-mod-styled';
    input.value = value;
    input.addEventListener('focus', () => input.select()); // so that typing replaces it
    label.append(input);
    this.node.append(label);
    if (mistake) {
      const wrong = document.createElement('span');
      wrong.className = 'jp-GpuFit-error';
      wrong.id = `jp-gpufit-mistake-${this.node.childElementCount}`;
      wrong.textContent = mistake;
      input.setAttribute('aria-invalid', 'true');
      input.setAttribute('aria-describedby', wrong.id);
      this.node.append(wrong);
    }
    return input;
  }

  private readonly inputs: Record<keyof Asked, HTMLInputElement>;
}
