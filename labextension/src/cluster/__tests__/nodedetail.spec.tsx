import { nullTranslator } from '@jupyterlab/translation';
import { cleanup, render, screen, within } from '@testing-library/react';
import React from 'react';
import { node } from '../../__tests__/server';
import { GiB } from '../../format';
import type { Node } from '../../wire';
import { Examination } from '../examining';
import { NodeDetail } from '../nodedetail';

afterEach(cleanup);

function show(one: Node): void {
  const unasked = (): Promise<never> => Promise.reject(new Error('nobody asks'));
  const examination = new Examination({ examine: unasked, diagnosis: unasked }, one.name);
  const trans = nullTranslator.load('');
  render(<NodeDetail node={one} holdings={new Map()} examination={examination} trans={trans} />);
}

test('a node has its models, as far as they are known', () => {
  const models = [
    { name: 'bert', size: null, modified: null },
    { name: 'llama-7b', size: 13 * GiB, modified: 1_700_000_000 }
  ];
  show(node('n1', { models }));
  const rows = within(screen.getByRole('table', { name: '2 models' })).getAllByRole('row');
  expect(rows.map(row => row.textContent)).toEqual(['bertsize unknown', 'llama-7b13 GiB']);
  expect(rows[1].title).toBe('of 2023-11-14 22:13:20 UTC');
});

test('a node tells what its machine has left, where that is known', () => {
  const facts = (): [string, string][] =>
    screen
      .getAllByRole('term')
      .map((term, at) => [
        term.textContent ?? '',
        screen.getAllByRole('definition')[at].textContent ?? ''
      ]);
  show(node('n1', { cpus: 8, cpus_free: 2, ram: 64 * GiB, ram_free: 24 * GiB }));
  expect(facts().slice(1, 3)).toEqual([
    ['CPUs', '2 of 8 free'],
    ['RAM', '24 GiB of 64 GiB free']
  ]);
  cleanup();
  show(node('n1'));
  expect(facts().map(([name]) => name)).toEqual(['GPUs', 'Driver', 'CUDA', 'Kernels run']);
});

test('a node of whose models nothing is known says nothing of them', () => {
  show(node('n1'));
  expect(screen.queryByRole('table')).toBeNull();
});
