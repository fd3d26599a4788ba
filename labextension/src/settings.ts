/** The person's settings (schema/plugin.json), typed; they hold as soon as they change. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal, type ISignal } from '@lumino/signaling';

export interface Values {
  /** What the form of a request starts with. */
  requestGpus: number;
  requestMemory: string;
  /** Empty: what the server gives. */
  requestTime: string;
  showChip: boolean;
  showStatus: boolean;
  /** Show warnings about allocations (time runs out, a machine does not answer) as notifications, too. */
  notifyWarnings: boolean;
  confirmRelease: boolean;
  clusterSort: 'name' | 'free' | 'idle' | 'model';
}

export const DEFAULTS: Readonly<Values> = {
  requestGpus: 1,
  requestMemory: '8GiB',
  requestTime: '',
  showChip: true,
  showStatus: true,
  notifyWarnings: true,
  confirmRelease: true,
  clusterSort: 'name'
};

export class Settings {
  /** The defaults until the registry has answered, and where there is none. */
  get values(): Readonly<Values> {
    return this.current;
  }

  get changed(): ISignal<this, Readonly<Values>> {
    return this.signal;
  }

  /** Follow what the registry says. Called by the plugin; raises what the registry raises. */
  async follow(registry: ISettingRegistry, plugin: string): Promise<void> {
    const settings = await registry.load(plugin);
    settings.changed.connect(() => this.take(settings.composite));
    this.take(settings.composite);
  }

  /** The registry has checked them against the schema. */
  private take(composite: object): void {
    const known = Object.entries(composite).filter(([name]) => name in DEFAULTS);
    this.current = { ...DEFAULTS, ...(Object.fromEntries(known) as Partial<Values>) };
    this.signal.emit(this.current);
  }

  private current: Readonly<Values> = DEFAULTS;
  private readonly signal = new Signal<this, Readonly<Values>>(this);
}
