/** The small signs beside the words of a state. They have the colour of the text that they stand in. */

import React from 'react';

export type Mark = 'clock' | 'ring' | 'dot' | 'alert' | 'check' | 'cross';

const SHAPES: Record<Mark, React.JSX.Element> = {
  clock: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M8 4.5V8l2.4 1.6" />
    </>
  ),
  ring: <path className="jp-GpuFit-ring" d="M8 2a6 6 0 1 1-6 6" />,
  dot: <circle className="jp-mod-filled" cx="8" cy="8" r="4.5" />,
  alert: (
    <>
      <path d="M8 2.2 14.4 13.5H1.6z" />
      <path d="M8 6.6v3.2m0 1.4v.6" />
    </>
  ),
  check: <path d="m3 8.5 3.4 3.4L13 4.8" />,
  cross: <path d="m4 4 8 8m0-8-8 8" />
};

export function Sign({ mark }: { mark: Mark }): React.JSX.Element {
  return (
    <svg className="jp-GpuFit-sign" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
      {SHAPES[mark]}
    </svg>
  );
}
