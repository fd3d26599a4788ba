/** How old what is known of a node is. Who looks at it first says from when that is counted. */

import type { Node } from '../wire';

const seen = new WeakMap<Node, number>();

/** Seconds since the last report of a node: what the server said, and the time that has passed since it did. */
export function silenceOf(node: Node): number | null {
  const now = Date.now() / 1000;
  const since = seen.get(node) ?? now;
  seen.set(node, since);
  return node.age === null ? null : node.age + now - since;
}
