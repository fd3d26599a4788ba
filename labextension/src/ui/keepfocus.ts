/**
 * Focus stays where the person is while a list changes under them.
 *
 * When the button that had it goes away, the nearest thing to it gets it: the same button of that item, else the item;
 * likewise of the item that took its place, if that is gone; else what is left. Items carry `data-item`, their buttons `data-action`.
 */

import { useLayoutEffect, useRef, type FocusEventHandler, type RefObject } from 'react';

interface Place {
  item: string | null;
  action: string | null;
  /** Of the item, in the list. */
  index: number;
}

/** Handlers for the element that has all of it; `rest`: what gets the focus when no item is left. */
export function useKeptFocus(
  root: RefObject<HTMLElement | null>,
  rest: string
): { onFocus: FocusEventHandler; onBlur: FocusEventHandler } {
  const place = useRef<Place | null>(null);

  // React tells nobody that it removed what had the focus; and not each removal renders the whole list.
  useLayoutEffect(() => {
    const { current } = root;
    if (current === null) {
      return;
    }
    const observer = new MutationObserver(() => {
      if (place.current !== null && document.activeElement === document.body) {
        const found = nearest(current, place.current, rest);
        place.current = null;
        found?.focus();
      }
    });
    observer.observe(current, { childList: true, subtree: true });
    return () => observer.disconnect();
  }, [root, rest]);

  return {
    onFocus: event => {
      const target = event.target as HTMLElement;
      const item = target.closest<HTMLElement>('[data-item]');
      const items = root.current === null ? [] : all(root.current);
      place.current = {
        item: item?.dataset.item ?? null,
        action: target.dataset.action ?? null,
        index: item === null ? -1 : items.indexOf(item)
      };
    },
    // (A window that loses the focus keeps its active element: it gets it back.)
    onBlur: event => {
      if (event.relatedTarget !== null || document.activeElement !== event.target) {
        place.current = null;
      }
    }
  };
}

function nearest(
  root: HTMLElement,
  { item, action, index }: Place,
  rest: string
): HTMLElement | null {
  const items = all(root);
  const same = items.find(one => one.dataset.item === item);
  const next = items.at(Math.min(Math.max(index, 0), items.length - 1));
  const near = item === null ? undefined : (same ?? next);
  const buttons = [...(near ?? root).querySelectorAll<HTMLElement>('[data-action]')];
  return (
    buttons.find(button => button.dataset.action === action) ??
    near ??
    root.querySelector<HTMLElement>(rest)
  );
}

function all(root: HTMLElement): HTMLElement[] {
  return [...root.querySelectorAll<HTMLElement>('[data-item]')];
}
