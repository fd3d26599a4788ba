/**
 * What is known of the cluster, of the person's allocations and of their notebooks, and how an event changes it: the part
 * of `GpuFitModel` that asks for nothing.
 */

import { Signal } from '@lumino/signaling';
import type { FeedEvent } from './feed';
import type { About, Allocation, Attachment, Node, NodesChange, Warning } from './wire';

const ENDED_KEPT = 256; // ended allocations that are still shown: a whole sweep

/** The answers to the questions after all of it. */
export interface All {
  about: About;
  clock: number;
  cluster: { nodes: Node[]; inventory_error: string | null };
  allocations: Allocation[];
  attachments: Attachment[];
}

export class Known<Owner> {
  about: About | null = null;
  /** Seconds by which the server's clock is ahead. */
  clock = 0;
  inventoryError: string | null = null;
  // (These maps are never changed, but replaced.)
  nodes = new Map<string, Node>();
  allocations = new Map<string, Allocation>();
  attachments = new Map<string, Attachment>();

  /** `owner`: who emits the signals. */
  constructor(owner: Owner) {
    this.signals = {
      nodes: new Signal(owner),
      allocations: new Signal(owner),
      attachments: new Signal(owner),
      dismissed: new Signal(owner),
      attachment: new Signal(owner),
      warned: new Signal(owner)
    };
  }

  readonly signals: {
    nodes: Signal<Owner, void>;
    allocations: Signal<Owner, void>;
    attachments: Signal<Owner, void>;
    dismissed: Signal<Owner, string>;
    attachment: Signal<Owner, Attachment>;
    warned: Signal<Owner, Warning>;
  };

  /** All of it is this now. */
  replace({ about, clock, cluster, allocations, attachments }: All): void {
    this.about = about;
    this.clock = clock;
    this.inventoryError = cluster.inventory_error;
    this.nodes = new Map(cluster.nodes.map(node => [node.name, node]));
    this.allocations = inOrder(allocations);
    this.tellAll(this.replaceAttachments(attachments));
  }

  /** What was known is of a server that is no longer there. */
  forget(): void {
    this.about = null;
    this.inventoryError = null;
    this.nodes = new Map();
    this.allocations = new Map();
    this.tellAll(this.replaceAttachments([]));
  }

  /** Something has changed. */
  learn(event: FeedEvent): void {
    if (event.kind === 'allocation') {
      this.take(event.data as Allocation);
    } else if (event.kind === 'attachment') {
      this.takeAttachment(event.data as Attachment);
    } else if (event.kind === 'nodes') {
      const { changed, removed, inventory_error } = event.data as NodesChange;
      const nodes = new Map(this.nodes);
      // Models that are as they were told before are left out.
      changed.forEach(node =>
        nodes.set(node.name, { models: null, ...nodes.get(node.name), ...node })
      );
      removed.forEach(name => nodes.delete(name));
      this.nodes = nodes;
      if (inventory_error !== undefined) {
        this.inventoryError = inventory_error;
      }
      this.signals.nodes.emit();
    } else if (event.kind === 'warning') {
      this.signals.warned.emit(event.data as Warning);
    }
  }

  /** As it is now, unless something later is known of it. */
  take(allocation: Allocation): void {
    const { allocations, about } = this;
    if (about !== null && allocation.owner !== about.owner) {
      return;
    }
    const known = allocations.get(allocation.id);
    if (known === undefined || known.version <= allocation.version) {
      const others = [...allocations.values()].filter(one => one.id !== allocation.id);
      this.allocations = inOrder([...others, allocation]);
      this.signals.allocations.emit();
    }
  }

  private takeAttachment(attachment: Attachment): void {
    const attachments = new Map(this.attachments);
    const { session, state, allocation } = attachment;
    if (state === 'attached') {
      this.left.set(session, attachment);
    } else if (state === 'detached' && this.left.get(session)?.allocation === allocation) {
      this.left.delete(session);
    }
    const still = this.left.get(session);
    if (state !== 'detached') {
      attachments.set(session, attachment);
    } else if (attachments.get(session)?.allocation === allocation) {
      if (still === undefined) {
        attachments.delete(session);
      } else {
        attachments.set(session, still); // it was to move, and does not after all
      }
    }
    this.attachments = attachments;
    this.signals.attachments.emit();
    this.signals.attachment.emit(attachment);
  }

  /** No longer show one that has ended. */
  dismiss(id: string): void {
    if (this.allocations.get(id)?.state === 'ended') {
      const left = [...this.allocations.values()].filter(one => one.id !== id);
      this.allocations = inOrder(left);
      this.signals.allocations.emit();
      this.signals.dismissed.emit(id);
    }
  }

  /** Show these, too, which ended before this page was there. */
  recall(ended: readonly Allocation[]): void {
    const { allocations } = this;
    const further = ended.filter(one => !allocations.has(one.id));
    if (further.length > 0) {
      this.allocations = inOrder([...allocations.values(), ...further]);
      this.signals.allocations.emit();
    }
  }

  private tellAll(changed: Attachment[]): void {
    this.signals.nodes.emit();
    this.signals.allocations.emit();
    this.signals.attachments.emit();
    changed.forEach(attachment => this.signals.attachment.emit(attachment));
  }

  /** Those that this changes, as they are now. */
  private replaceAttachments(attachments: Attachment[]): Attachment[] {
    const before = this.attachments;
    // One that moves to another allocation waits for that, and is attached to the former until then.
    const waiting = attachments.filter(one => one.state === 'waiting');
    const left = attachments.filter(one => one.state !== 'waiting');
    this.attachments = new Map([...left, ...waiting].map(one => [one.session, one]));
    this.left = new Map(left.map(one => [one.session, one]));
    const gone = [...before.values()].filter(one => !this.attachments.has(one.session));
    return [
      ...gone.map(one => ({ ...one, state: 'detached' as const })),
      ...[...this.attachments.values()].filter(one => !isSame(one, before.get(one.session)))
    ];
  }

  /** By session: what it is attached to, also while it waits for another allocation. */
  private left = new Map<string, Attachment>();
}

/** By id, oldest first; of those that have ended the latest ones only. */
function inOrder(allocations: Allocation[]): Map<string, Allocation> {
  const byAge = [...allocations].sort((one, other) => one.created - other.created);
  const ended = byAge.filter(one => one.state === 'ended');
  const dropped = new Set(ended.slice(0, -ENDED_KEPT));
  return new Map(byAge.filter(one => !dropped.has(one)).map(one => [one.id, one]));
}

function isSame(one: Attachment, other: Attachment | undefined): boolean {
  return (
    one.state === other?.state &&
    one.allocation === other.allocation &&
    one.kernel_id === other.kernel_id &&
    one.path === other.path
  );
}
