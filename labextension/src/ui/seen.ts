/** Whether somebody can see a part of the page: what is asked for again and again is not, where nobody does. */
export function isSeen(node: HTMLElement | null): boolean {
  return (
    node !== null && node.getClientRects().length > 0 && document.visibilityState === 'visible'
  );
}
