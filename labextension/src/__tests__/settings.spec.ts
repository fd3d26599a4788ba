import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';
import { DEFAULTS, Settings } from '../settings';

const SCHEMA = jest.requireActual<{
  properties: Record<string, { default: unknown; title: string; description: string }>;
}>('../../schema/plugin.json');

/** A registry whose settings are changed by a test. */
class Registry {
  composite: object = {};
  readonly changed = new Signal<this, void>(this);

  load(): Promise<this> {
    return Promise.resolve(this);
  }

  set(composite: object): void {
    this.composite = composite;
    this.changed.emit();
  }
}

test('the schema has the same defaults, and says what each setting is', () => {
  const properties = Object.entries(SCHEMA.properties);
  expect(Object.fromEntries(properties.map(([name, one]) => [name, one.default]))).toEqual(
    DEFAULTS
  );
  for (const [, { title, description }] of properties) {
    expect(title && description).toMatch(/\.$/);
  }
});

test('the defaults hold until the registry says otherwise, and a change is told at once', async () => {
  const settings = new Settings();
  const registry = new Registry();
  expect(settings.values).toEqual(DEFAULTS);
  registry.composite = { requestGpus: 4, fromALaterVersion: true };
  await settings.follow(registry as unknown as ISettingRegistry, 'plugin');
  expect(settings.values).toEqual({ ...DEFAULTS, requestGpus: 4 });

  const seen: unknown[] = [];
  settings.changed.connect((_, values) => void seen.push(values.showChip));
  registry.set({ showChip: false });
  expect(seen).toEqual([false]);
  expect(settings.values).toEqual({ ...DEFAULTS, showChip: false });
});
