/** How much room a notebook's toolbar leaves to its chip. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { useCallback, useSyncExternalStore } from 'react';

const SPARE = 16; // px: what the toolbar counts beside its items, and fractions of pixels
const OPENER = 32; // px: the button that shows what has no place in the toolbar

/**
 * The pixels that no other item of the toolbar needs, always as it is now. `own`: the chip's element.
 *
 * JupyterLab measures the items one frame after their toolbar has changed, and puts those into a menu for which there is
 * no place. By then the chip has to be as small as it gets; React renders at once what is subscribed to like this.
 */
export function useRoom({ toolbar }: NotebookPanel, own: HTMLElement): number {
  const bar = toolbar.node;
  const subscribe = useCallback(
    (again: () => void) => {
      const sizes = new ResizeObserver(again);
      const watch = (): void => {
        sizes.disconnect();
        [bar, ...othersIn(bar, own)].forEach(element => sizes.observe(element));
      };
      const items = new MutationObserver(watch);
      items.observe(bar, { childList: true });
      watch();
      return () => {
        items.disconnect();
        sizes.disconnect();
      };
    },
    [bar, own]
  );
  return useSyncExternalStore(subscribe, () => roomIn(bar, own));
}

/** (Negative: the notebook is behind another one, or is not there yet.) */
function roomIn(bar: HTMLElement, own: HTMLElement): number {
  const widths = othersIn(bar, own).map(item =>
    item.classList.contains('jp-Toolbar-responsive-opener')
      ? item.clientWidth && OPENER
      : item.clientWidth
  );
  return bar.clientWidth - SPARE - widths.reduce((sum, width) => sum + width, 0);
}

/** All items but the chip, and the space between those on the left and those on the right. */
function othersIn(bar: HTMLElement, own: HTMLElement): HTMLElement[] {
  const items = [...bar.children] as HTMLElement[];
  return items.filter(item => item !== own && !item.classList.contains('jp-Toolbar-spacer'));
}

/** The first of these that needs no more than so many pixels, in the font of that element; empty: none. */
export function fitting(texts: readonly string[], room: number, element: Element | null): string {
  const context = element && document.createElement('canvas').getContext('2d');
  if (!context) {
    return '';
  }
  const { fontStyle, fontWeight, fontSize, fontFamily } = getComputedStyle(element);
  context.font = [fontStyle, fontWeight, fontSize, fontFamily].join(' ');
  return texts.find(text => context.measureText(text).width <= room) ?? '';
}
