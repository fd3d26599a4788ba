/** What a person has chosen to see of the cluster: it outlives rows that come and go. */

import { Signal, type ISignal } from '@lumino/signaling';
import type { Api } from '../api';
import { Examination } from './examining';
import { NO_FILTER, type Filter, type SortKey } from './rows';

export interface Sought {
  node: string;
  /** Where in the list it is to be; `auto`: anywhere in sight. */
  align: 'auto' | 'start';
}

export class ClusterState {
  constructor(private readonly api: Pick<Api, 'examine' | 'diagnosis'>) {}

  get filter(): Filter {
    return this.state.filter;
  }

  /** `null`: as the settings say. */
  get sort(): SortKey | null {
    return this.state.sort;
  }

  /** Whether the criteria beside the text are shown. */
  get isFilterOpen(): boolean {
    return this.state.isFilterOpen;
  }

  /** Names of the nodes whose details are shown. */
  get expanded(): ReadonlySet<string> {
    return this.state.expanded;
  }

  /** The node that the keyboard is at. */
  get active(): string | null {
    return this.state.active;
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  /** The node that is to be scrolled to and focused, as soon as its row is there. */
  get sought(): Sought | null {
    return this.seeking;
  }

  /** It is there now. */
  found(): void {
    this.seeking = null;
  }

  narrow(change: Partial<Filter>): void {
    this.set({ filter: { ...this.state.filter, ...change } });
  }

  clearFilter(): void {
    this.set({ filter: NO_FILTER });
  }

  sortBy(sort: SortKey): void {
    this.set({ sort });
  }

  openFilter(isFilterOpen: boolean): void {
    this.set({ isFilterOpen });
  }

  activate(active: string): void {
    if (active !== this.state.active) {
      this.set({ active });
    }
  }

  /** Move the focus to a node. */
  seek(node: string, align: Sought['align'] = 'auto'): void {
    this.seeking = { node, align };
    this.set({ active: node });
  }

  expand(node: string, whether: boolean): void {
    if (whether !== this.state.expanded.has(node)) {
      const expanded = new Set(this.state.expanded);
      if (whether) {
        expanded.add(node);
      } else {
        expanded.delete(node);
      }
      this.set({ expanded });
    }
  }

  /** Show a node and its details, whatever the filter is. */
  reveal(node: string): void {
    const expanded = new Set(this.state.expanded).add(node);
    this.seeking = { node, align: 'start' };
    this.set({ filter: NO_FILTER, expanded, active: node });
  }

  examination(node: string): Examination {
    let examination = this.examinations.get(node);
    if (examination === undefined) {
      examination = new Examination(this.api, node);
      this.examinations.set(node, examination);
    }
    return examination;
  }

  dispose(): void {
    this.examinations.forEach(examination => examination.dispose());
    Signal.clearData(this);
  }

  private set(change: Partial<ClusterState['state']>): void {
    this.state = { ...this.state, ...change };
    this.signal.emit();
  }

  private state = {
    filter: NO_FILTER,
    sort: null as SortKey | null,
    isFilterOpen: false,
    expanded: new Set<string>() as ReadonlySet<string>,
    active: null as string | null
  };
  private readonly examinations = new Map<string, Examination>();
  private seeking: Sought | null = null;
  private readonly signal = new Signal<this, void>(this);
}
