import { ClusterState } from '../clusterstate';
import { NO_FILTER, isFiltering, narrowing } from '../rows';

const unasked = (): Promise<never> => Promise.reject(new Error('nobody asks in this test'));
const fresh = (): ClusterState => new ClusterState({ examine: unasked, diagnosis: unasked });

test('a node that is revealed is not filtered away: it is unfolded, sought, and found once', () => {
  const state = fresh();
  state.narrow({ text: 'other', usable: true });
  state.expand('brook', true);
  state.reveal('atlas');
  expect(state.filter).toEqual(NO_FILTER);
  expect([...state.expanded]).toEqual(['brook', 'atlas']);
  expect([state.active, state.sought]).toEqual(['atlas', { node: 'atlas', align: 'start' }]);
  state.found();
  expect(state.sought).toBeNull();
});

test('what does not change tells nobody', () => {
  const state = fresh();
  let told = 0;
  state.changed.connect(() => void told++);
  state.activate('atlas');
  state.activate('atlas');
  state.expand('atlas', true);
  const { expanded } = state;
  state.expand('atlas', true);
  expect([told, state.expanded === expanded]).toEqual([2, true]);
  state.expand('atlas', false);
  expect([told, state.expanded.size, expanded.size]).toEqual([3, 0, 1]);
});

test('the examination of a node outlives its row', () => {
  const state = fresh();
  expect(state.examination('atlas')).toBe(state.examination('atlas'));
  expect(state.examination('atlas')).not.toBe(state.examination('brook'));
});

test('how much is filtered', () => {
  const state = fresh();
  state.narrow({ text: '  ' });
  expect([isFiltering(state.filter), narrowing(state.filter)]).toEqual([false, 0]);
  state.narrow({ memory: 1, fits: true });
  expect([isFiltering(state.filter), narrowing(state.filter)]).toEqual([true, 2]);
  state.narrow({ text: 'a', memory: 0, fits: false });
  expect([isFiltering(state.filter), narrowing(state.filter)]).toEqual([true, 0]);
});
