/** How high each section of the sidebar is: pure, so that it can be tested without a browser. */

export interface Section {
  /** Whether it is open; a collapsed one has its title only. */
  open: boolean;
  /** What it needs for what is in it now, or what the person gave it. `null`: it takes what is left. */
  wants: number | null;
  /** Below this it is of no use. */
  least: number;
}

/**
 * The heights of the sections in `available` pixels. Where there is too little, all that have more than their `least`
 * give in proportion; what is left over goes to the section that takes it, else to the last open one.
 */
export function heights(available: number, sections: readonly Section[]): number[] {
  const wanted = sections.map(({ open, wants, least }) => (open ? Math.max(wants ?? 0, least) : 0));
  const left = available - sum(wanted);
  if (left < 0) {
    const spare = sections.map(({ open, least }, index) => (open ? wanted[index] - least : 0));
    const share = Math.min(1, -left / Math.max(1, sum(spare)));
    return wanted.map((height, index) => height - spare[index] * share);
  }
  const taking = sections.findIndex(({ open, wants }) => open && wants === null);
  const taker = taking >= 0 ? taking : sections.map(({ open }) => open).lastIndexOf(true);
  return wanted.map((height, index) => (index === taker ? height + left : height));
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
