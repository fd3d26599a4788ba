import {
  formatClock,
  formatDuration,
  formatMoment,
  formatSize,
  parseDuration,
  parseSize
} from '../format';

/** What both languages must make of it: `[what, result]` or `[what, null, sentence]`. */
type Read = [string | number, number | null, string?];
type Written = [number | null, string];

const table = jest.requireActual<{
  sizes: { read: Read[]; written: Written[] };
  durations: { read: Read[]; written: Written[] };
  moments: Written[];
  clocks: Written[];
}>('../../../tests/labextension/spellings.json');

function answer(parse: (what: string | number) => number, what: string | number): unknown[] {
  try {
    return [what, parse(what)];
  } catch (error) {
    return [what, null, (error as Error).message];
  }
}

test.each(table.sizes.read)('the size %j', (...row) => {
  expect(answer(parseSize, row[0])).toEqual(row);
});

test.each(table.durations.read)('the duration %j', (...row) => {
  expect(answer(parseDuration, row[0])).toEqual(row);
});

test.each([
  ...table.sizes.written.map(row => [formatSize, ...row] as const),
  ...table.durations.written.map(row => [formatDuration, ...row] as const),
  ...table.moments.map(row => [formatMoment, ...row] as const),
  ...table.clocks.map(row => [formatClock, ...row] as const)
])('%p of %j', (format, value, text) => {
  expect(format(value)).toBe(text);
});

test('what is no number is no size, duration or moment', () => {
  expect([formatSize(NaN), formatDuration(NaN), formatMoment(NaN), formatClock(Infinity)]).toEqual(
    Array(4).fill('?')
  );
  expect(() => parseSize(NaN)).toThrow('NaN is not a size of memory');
  expect(() => parseDuration(NaN)).toThrow('NaN is not a possible duration');
  expect([formatMoment(null), formatClock(null)]).toEqual(['?', '?']);
});
