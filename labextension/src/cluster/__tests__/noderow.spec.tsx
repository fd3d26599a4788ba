import { nullTranslator } from '@jupyterlab/translation';
import { act, fireEvent, render, screen, within } from '@testing-library/react';
import React from 'react';
import { GiB } from '../../format';
import type { Allocation, Node } from '../../wire';
import { heldOn, holdings } from '../bars';
import { ClusterState } from '../clusterstate';
import { NodeRow } from '../noderow';
import { allocation, divided, gpu, node } from './cluster_nodes';

const trans = nullTranslator.load('');
const unasked = (): Promise<never> => Promise.reject(new Error('nobody asks in this test'));
const state = new ClusterState({ examine: unasked, diagnosis: unasked });

interface ListProps {
  nodes: Node[];
  mine: ReturnType<typeof holdings>;
}

function List({ nodes, mine }: ListProps): React.JSX.Element {
  return (
    <>
      {nodes.map((one, index) => (
        <NodeRow
          key={one.name}
          node={one}
          holdings={heldOn(one.name, mine)}
          isExpanded={state.expanded.has(one.name)}
          isActive={index === 0}
          state={state}
          trans={trans}
        />
      ))}
    </>
  );
}

test('only the rows of what has changed are rendered again', () => {
  const rendered = new Set<string>();
  const seen = (): string[] => {
    const names = [...rendered];
    rendered.clear();
    return names;
  };
  /** A node that tells when it is looked at. */
  const told = (name: string): Node =>
    Object.defineProperty(node(name, [gpu(0), gpu(1)]), 'reporting', {
      get: () => {
        rendered.add(name);
        return true;
      }
    });
  const own = (bytes: number, change: Partial<Allocation> = {}): Allocation =>
    allocation('train', { node: 'n7', gpus: ['GPU-0'], memory: [bytes], ...change });
  const nodes = Array.from({ length: 20 }, (_, index) => told(`n${index}`));
  let mine = holdings([own(GiB)]);
  const { rerender } = render(<List nodes={nodes} mine={mine} />);
  expect(seen()).toHaveLength(20);

  const changed = nodes.map((one, index) => (index % 8 === 3 ? told(one.name) : one));
  rerender(<List nodes={changed} mine={mine} />);
  expect(seen()).toEqual(['n3', 'n11', 'n19']);

  mine = holdings([own(GiB, { version: 9, message: 'it runs' })], mine);
  rerender(<List nodes={changed} mine={mine} />);
  expect(seen()).toEqual([]);

  mine = holdings([own(2 * GiB)], mine);
  rerender(<List nodes={changed} mine={mine} />);
  expect(seen()).toEqual(['n7']);
});

test('a row says it all to who cannot see it', () => {
  const [parent, one, two] = divided(1, {}, { idle: false, memory_free: GiB, memory_foreign: GiB });
  const atlas = node('atlas', [gpu(0, { allocations: ['x'], idle: false }), parent, one, two]);
  const mine = holdings([allocation('train', { gpus: ['GPU-0'], memory: [GiB] })]);
  render(<List nodes={[atlas]} mine={mine} />);
  const button = screen.getByRole('button', { expanded: false });
  expect(button.getAttribute('aria-label')).toBe(
    'atlas, 1 of 3 GPUs free, 91 of 100 GiB of memory free, 2 × A100-80GB 1g.10gb, 1 × A100-80GB'
  );
  const bars = screen.getAllByRole('img').map(bar => bar.getAttribute('aria-label') ?? '');
  expect(bars.map(bar => bar.split(':')[0])).toEqual([
    'GPU 0',
    'GPU 1, MIG instance 0',
    'GPU 1, MIG instance 1'
  ]);
  expect(bars[0]).toContain("held by your allocation 'train'");
  expect(
    screen.getAllByRole('img').every(bar => bar.title === bar.getAttribute('aria-label'))
  ).toBe(true);
});

test('its details, and what nobody knows', () => {
  const processes = [
    { pid: 4711, name: null, memory: null, container: null },
    { pid: 4712, name: 'python', memory: 3 * GiB, container: 'c0ffee' }
  ];
  const unknown = { utilization: null, temperature: null, power: null };
  const atlas = node('atlas', [gpu(0, { ...unknown, processes })], {
    driver: null,
    labels: { room: 'b12' }
  });
  const list = <List nodes={[atlas]} mine={new Map()} />;
  const { rerender } = render(list);
  fireEvent.click(screen.getByRole('button', { name: /^atlas/ }));
  rerender(<List nodes={[atlas]} mine={new Map()} />);
  const detail = within(screen.getByRole('group', { name: 'Details of atlas' }));
  expect(detail.getByRole('table', { name: 'Processes' }).textContent).toBe(
    '4711name unknownmemory unknown4712python3 GiB'
  );
  expect(detail.getByLabelText('Temperature: unknown').textContent).toBe('? °C');
  const facts = detail.getAllByRole('definition').map(fact => fact.textContent);
  expect(facts).toEqual(['1 × A100-80GB', 'unknown', '12.4', 'in Docker containers', 'room=b12']);
  act(() => state.expand('atlas', false));
});

test('the reason of a node is in its row, and in full in its details', () => {
  const gone = node('gone', [], {
    reason: 'unreachable since 09:30 UTC: refused',
    reporting: false,
    age: null
  });
  render(<List nodes={[gone]} mine={new Map()} />);
  expect(screen.getByText('unreachable since 09:30 UTC: refused').parentElement?.title).toBe(
    'Nothing can be placed here now: unreachable since 09:30 UTC: refused. It has not reported yet.'
  );
  expect(screen.getByRole('button').getAttribute('aria-label')).toBe(
    'gone, not usable, no GPU known'
  );
});
