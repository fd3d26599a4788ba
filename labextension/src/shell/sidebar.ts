/** The sidebar: what the person holds, a request, and the cluster. */

import type { IStateDB } from '@jupyterlab/statedb';
import type { TranslationBundle } from '@jupyterlab/translation';
import { SidePanel } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { AccordionPanel, Panel, type Widget } from '@lumino/widgets';
import { AllocationsSection } from '../allocations/allocations';
import { ClusterSection } from '../cluster/cluster';
import { RequestSection } from '../request/form';
import type { IGpuFit } from '../tokens';
import { gpuIcon } from '../ui/icons';
import { heights, type Section } from './fitting';
import { holdFocus } from './holdfocus';

const STATE = 'jupyter-gpufit:sidebar'; // the heights that the person gave to sections
const FOCUSABLE = 'input:enabled, select:enabled, button:enabled, [tabindex="0"]';
const TITLE = 32; // px, of a section's title

export class Sidebar extends SidePanel {
  readonly allocations: AllocationsSection;
  readonly request: RequestSection;
  readonly cluster: ClusterSection;

  constructor(
    gpufit: IGpuFit,
    private readonly state: IStateDB | null
  ) {
    super();
    const panel = (this.panel = accordionOf(this));
    this.trans = gpufit.trans;
    this.id = 'jp-gpufit-sidebar';
    this.addClass('jp-GpuFit-sidebar');
    this.title.icon = gpuIcon;
    this.title.caption = gpufit.trans.__('GPUs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', gpufit.trans.__('GPUs'));

    this.allocations = new AllocationsSection(gpufit);
    this.request = new RequestSection(gpufit);
    this.cluster = new ClusterSection(gpufit);
    this.sections = [
      // (Enough for a whole card: *Release* is in its last line.)
      { widget: this.allocations, least: 220, takes: false },
      { widget: this.request, least: 120, takes: false },
      { widget: this.cluster, least: 120, takes: true }
    ];
    for (const { widget, takes } of this.sections) {
      this.addWidget(this.framed(widget, takes));
    }
    panel.expansionToggled.connect(() => this.fitSections());
    panel.handleMoved.connect(() => this.keepHeights());
    panel.node.addEventListener('dblclick', event => this.onDoubleClick(event));
    this.restoreHeights().catch(notKept);
  }

  /** Open one of the sections, and bring it into view. */
  reveal(section: Widget): void {
    const index = this.sections.findIndex(({ widget }) => widget === section);
    this.panel.expand(index);
  }

  /** Put the keyboard into a section (named as the property is), at an allocation; into the first one by default. */
  enter(section?: string, allocation?: string): void {
    if (section === undefined) {
      this.panel.titles[0]?.focus();
      return;
    }
    const widget = this.named(section);
    this.reveal(widget);
    const row = allocation
      ? widget.node.querySelector(`[data-allocation="${CSS.escape(allocation)}"]`)
      : null;
    row?.scrollIntoView({ block: 'nearest' });
    (row ?? widget.node).querySelector<HTMLElement>(FOCUSABLE)?.focus();
  }

  /** Where the keyboard goes once the sidebar is activated. */
  target(section?: string, allocation?: string): void {
    if (section !== undefined) {
      this.named(section); // it is said at once that there is none
    }
    this.aim = [section, allocation];
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    const aim = this.aim;
    this.aim = null;
    if (aim !== null || !this.node.contains(document.activeElement)) {
      this.held?.dispose();
      this.held = holdFocus(this.node, () => this.enter(...(aim ?? [])));
    }
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // What a section needs is known only once it is rendered, and changes as it does.
    this.observer = new ResizeObserver(() => this.fitSections());
    this.sections
      .filter(({ takes }) => !takes)
      .forEach(({ widget }) => this.observer?.observe(widget.node));
  }

  protected override onBeforeDetach(message: Message): void {
    this.held?.dispose();
    this.observer?.disconnect();
    super.onBeforeDetach(message);
  }

  protected override onResize(message: Widget.ResizeMessage): void {
    super.onResize(message);
    this.fitSections();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.fitSections();
  }

  /** A section with its title; one that takes what is left scrolls by itself, the others are scrolled here. */
  private framed(section: Widget, takes: boolean): Panel {
    const frame = new Panel();
    frame.addClass('jp-GpuFit-section');
    frame.toggleClass('jp-mod-fill', takes);
    const label = (): void => {
      // The accordion makes a new title then, which has to keep the focus that the former one had.
      const index = this.panel.widgets.indexOf(frame);
      const focused = index >= 0 && this.panel.titles[index] === document.activeElement;
      frame.title.label = section.title.label;
      frame.title.caption = section.title.caption;
      if (focused) {
        this.panel.titles[index].focus();
      }
    };
    section.title.changed.connect(label);
    label();
    frame.addWidget(section);
    return frame;
  }

  private named(section: string): Widget {
    const { allocations, request, cluster } = this;
    const named = new Map<string, Widget>(Object.entries({ allocations, request, cluster }));
    const widget = named.get(section);
    if (widget === undefined) {
      const there = [...named.keys()].join(', ');
      throw new Error(
        this.trans.__('There is no section "%1" in the sidebar; there is %2.', section, there)
      );
    }
    return widget;
  }

  private fitSections(): void {
    const { panel } = this;
    const available = panel.node.clientHeight - TITLE * this.sections.length;
    if (!this.isVisible || available <= 0) {
      return;
    }
    const sections = this.sections.map(({ widget, least, takes }, index): Section => {
      const open = !panel.widgets[index].isHidden;
      const wants = takes ? null : (this.given.get(widget) ?? widget.node.offsetHeight);
      return { open, wants, least: takes ? least : Math.min(least, wants ?? least) };
    });
    this.fitted = heights(available, sections);
    panel.setRelativeSizes(this.fitted);
  }

  /** The person moved a handle: those are the heights from now on, whatever comes into the sections. */
  private keepHeights(): void {
    this.panel.widgets.forEach((panel, index) => {
      const section = this.sections[index];
      const height = panel.node.offsetHeight;
      const moved = Math.abs(height - (this.fitted[index] ?? 0)) > 1;
      if (!section.takes && !panel.isHidden && moved) {
        this.given.set(section.widget, height);
      }
    });
    this.saveHeights();
  }

  /** A double click on a handle gives the sections beside it what they need, again. */
  private onDoubleClick(event: MouseEvent): void {
    const index = this.panel.handles.indexOf(event.target as HTMLDivElement);
    if (index >= 0) {
      this.sections.slice(index, index + 2).forEach(({ widget }) => this.given.delete(widget));
      this.fitSections();
      this.saveHeights();
    }
  }

  private saveHeights(): void {
    const heights = this.sections.map(({ widget }) => this.given.get(widget) ?? null);
    this.state?.save(STATE, heights).catch(notKept);
  }

  private async restoreHeights(): Promise<void> {
    const saved = await this.state?.fetch(STATE);
    if (Array.isArray(saved)) {
      this.sections.forEach(({ widget }, index) => {
        const height: unknown = saved[index];
        if (typeof height === 'number') {
          this.given.set(widget, height);
        }
      });
      this.fitSections();
    }
  }

  private readonly panel: AccordionPanel;
  private readonly trans: TranslationBundle;
  private readonly sections: { widget: Widget; least: number; takes: boolean }[];
  private readonly given = new Map<Widget, number>();
  private held: IDisposable | null = null;
  private aim: [section?: string, allocation?: string] | null = null;
  private fitted: number[] = [];
  private observer: ResizeObserver | null = null;
}

/** A side panel's own content. (JupyterLab 4.2 does not export the layout that one of ours would need.) */
function accordionOf({ content }: SidePanel): AccordionPanel {
  if (content instanceof AccordionPanel) {
    return content;
  }
  throw new TypeError('The content of a side panel is no accordion.');
}

/** Without them each section is as high as what is in it. */
function notKept(error: unknown): void {
  console.warn('The heights of the sections are not kept.', error);
}
