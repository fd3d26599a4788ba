import { Signal } from '@lumino/signaling';
import { act, cleanup, render } from '@testing-library/react';
import React, { useLayoutEffect } from 'react';
import { useClock, useSignals } from '../hooks';

afterEach(cleanup);

class Counter {
  value = 0;
  readonly changed = new Signal<this, void>(this);
  readonly other = new Signal<this, void>(this);

  add(): void {
    this.value += 1;
    this.changed.emit();
  }
}

function View(props: { counter: Counter; before?: () => void }): React.JSX.Element {
  const { counter, before } = props;
  useLayoutEffect(() => before?.(), [before]);
  useSignals(counter.changed, counter.other);
  return <p>{counter.value}</p>;
}

test('a view follows, and lets go', () => {
  const counter = new Counter();
  const { container, unmount } = render(<View counter={counter} />);
  act(() => counter.add());
  expect(container.textContent).toBe('1');
  act(() => {
    counter.value = 7;
    counter.other.emit();
  });
  expect(container.textContent).toBe('7');
  unmount();
  counter.add();
  expect(container.textContent).toBe('');
});

test('what happens between a render and its subscription is not missed', () => {
  const counter = new Counter();
  let once = (): void => {
    once = () => undefined;
    counter.add();
  };
  const before = (): void => once();
  const { container } = render(<View counter={counter} before={before} />);
  expect(container.textContent).toBe('1');
});

test('another model, other signals', () => {
  const [one, other] = [new Counter(), new Counter()];
  const { container, rerender } = render(<View counter={one} />);
  rerender(<View counter={other} />);
  act(() => other.add());
  expect(container.textContent).toBe('1');
  act(() => one.add());
  act(() => one.add());
  expect(container.textContent).toBe('1');
});

test('many changes at once are drawn once', () => {
  const counter = new Counter();
  const drawn = jest.fn();
  function Drawn(): null {
    useSignals(counter.changed);
    drawn(counter.value);
    return null;
  }
  render(<Drawn />);
  act(() => {
    for (let each = 0; each < 100; each++) {
      counter.add();
    }
  });
  expect(drawn.mock.calls.at(-1)).toEqual([100]);
  expect(drawn.mock.calls.length).toBeLessThan(5);
});

test('a clock ticks while it is there', () => {
  jest.useFakeTimers();
  const drawn = jest.fn();
  function Clock(): null {
    useClock(1000);
    drawn();
    return null;
  }
  const { unmount } = render(<Clock />);
  for (let each = 0; each < 3; each++) {
    act(() => {
      jest.advanceTimersByTime(1000);
    });
  }
  expect(drawn).toHaveBeenCalledTimes(4);
  unmount();
  expect(jest.getTimerCount()).toBe(0);
  jest.useRealTimers();
});
