/** Notifications: what a command has done, or why not, where there is no better place to say so. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { sentenceOf } from '../api';

const SHOWN = 140; // characters of a message that JupyterLab shows
const BRIEF = 5000; // ms

/** Something that can be done about a message, as a button below it. */
export interface Way {
  label: string;
  go: () => unknown;
}

export function toastDone(message: string): void {
  Notification.success(message, { autoClose: BRIEF });
}

/** It stays until it is closed. The whole message is a click away where it is too long for a notification. */
export function toastProblem(
  title: string,
  message: string,
  ways: readonly Way[],
  trans: TranslationBundle
): string {
  const whole: Way = {
    label: trans.__('Read All'),
    go: () =>
      showDialog({ title, body: message, buttons: [Dialog.okButton({ label: trans.__('Close') })] })
  };
  const all = message.length > SHOWN ? [whole, ...ways] : ways;
  return Notification.error(message, { autoClose: false, actions: actionsOf(all) });
}

/** Say why something did not work that was done where there is no better place to say so. */
export function toastError(title: string, error: unknown, trans: TranslationBundle): void {
  toastProblem(title, sentenceOf(error), [], trans);
}

export function actionsOf(ways: readonly Way[]): Notification.IAction[] {
  return ways.map(({ label, go }) => ({ label, callback: () => void go() }));
}
