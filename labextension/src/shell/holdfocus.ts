/**
 * The keyboard stays where it was put, until the person moves it.
 *
 * The palette gives the notebook its focus back, however many messages and promises after a command is done: no delay is
 * right for that. But it does so by itself, and a person moves the focus by a key or a press.
 */

import { DisposableDelegate, type IDisposable } from '@lumino/disposable';

/**
 * Put the focus into `node`; again when it has not been rendered yet, and when what is in the main area now takes it.
 * Called by the sidebar. What comes into the main area later, and a dialog, may have it.
 */
export function holdFocus(node: HTMLElement, put: () => void): IDisposable {
  const before = [...document.querySelectorAll('.jp-MainAreaWidget:not(.lm-mod-hidden)')];
  const isIn = (): boolean => node.contains(document.activeElement);
  const ended = new AbortController();
  const rendered = new MutationObserver(() => {
    if (!isIn()) {
      put();
    }
    if (isIn()) {
      rendered.disconnect();
    }
  });
  const held = new DisposableDelegate(() => {
    ended.abort();
    rendered.disconnect();
  });
  const listen = (type: string, listener: (event: Event) => void): void =>
    document.addEventListener(type, listener, { capture: true, signal: ended.signal });
  listen('focusin', ({ target }) => {
    if (before.some(widget => widget.contains(target as Node))) {
      put();
    }
  });
  listen('keydown', () => held.dispose());
  listen('pointerdown', () => held.dispose());
  put();
  if (!isIn()) {
    rendered.observe(node, { childList: true, subtree: true });
  }
  return held;
}
