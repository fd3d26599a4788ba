/**
 * Sizes, durations and moments, to and from people: the spellings and sentences of `jupyter_gpufit/memory.py` and
 * `durations.py` (`tests/labextension/spellings.json` holds both to it). What cannot be read raises an `Error` whose
 * message is the sentence to show.
 */

export const GiB = 2 ** 30;

const EXPONENTS: Partial<Record<string, bigint>> = { '': 0n, k: 1n, m: 2n, g: 3n, t: 4n };
const LARGEST = 2n ** 60n;
const LONGEST_TEXT = 64;
// Python's `\s` of ASCII, which is less than JavaScript's.
const SIZE =
  /^[ \t-\r]*(?:(\d+)(?:\.(\d*))?|\.(\d+))[ \t-\r]*(?:([kmgt])(ib|i|b)?|(b))?[ \t-\r]*$/i;
const BELOW_ZERO = /^\s*-\s*[\p{Nd}.]/u;

/** Bytes meant by `'16GiB'`, `'16G'`, `'16 GB'`, `'0.5g'`, `'1024B'` or a whole number of bytes. */
export function parseSize(value: string | number): number {
  const size = typeof value === 'number' ? wholeBytes(value) : bytesOf(value);
  if (size < 0n || size > LARGEST) {
    throw new Error(`${quoted(value)} is not a possible size of memory; write it like '16GiB'`);
  }
  return Number(size);
}

function wholeBytes(value: number): bigint {
  if (!Number.isInteger(value)) {
    throw new Error(
      `${quoted(value)} is not a size of memory; write it like '16GiB', or as an int of bytes`
    );
  }
  return BigInt(value);
}

function bytesOf(text: string): bigint {
  if (Array.from(text).length > LONGEST_TEXT) {
    throw new Error(`${shortened(text)} is not a size of memory; write it like '16GiB'`);
  }
  const match = SIZE.exec(text);
  if (match === null) {
    throw new Error(
      BELOW_ZERO.test(text)
        ? `${quoted(text)} is negative; write a size of memory like '16GiB'`
        : `${quoted(text)} is not a size of memory; write it like '16GiB', '16G' or '500MB'`
    );
  }
  const [, whole = '', tail, bare, unit, suffix, plain] = match as (string | undefined)[];
  const decimals = tail ?? bare ?? '';
  // A fraction of whole numbers, not a float: '0.1GB' is exactly 100,000,000 bytes.
  const number = BigInt(whole + decimals);
  const scale = 10n ** BigInt(decimals.length);
  if (unit === undefined && plain === undefined && number !== 0n) {
    const spelled = text.trim();
    throw new Error(
      `${quoted(text)} has no unit; write '${spelled}${likely(Number(number) / Number(scale))}'`
    );
  }
  const base = suffix?.toLowerCase() === 'b' ? 1000n : 1024n;
  return (number * base ** (EXPONENTS[unit?.toLowerCase() ?? ''] ?? 0n)) / scale;
}

/** The unit that somebody who wrote a number alone can have meant. */
function likely(number: number): string {
  return number < 1024 ? 'GiB' : number >= 2 ** 20 ? 'B' : 'MiB';
}

/** Bytes for people, in binary units and at most one decimal, rounded down: `'11.2 GiB'`, `'?'` if unknown. */
export function formatSize(size: number | null): string {
  if (size === null || !Number.isFinite(size)) {
    return '?';
  }
  const sign = size < 0 ? '-' : '';
  const bytes = BigInt(Math.trunc(Math.abs(size)));
  for (const [unit, exponent] of [
    ['TiB', 4n],
    ['GiB', 3n],
    ['MiB', 2n],
    ['KiB', 1n]
  ] as const) {
    const tenths = Number((bytes * 10n) / 1024n ** exponent);
    if (tenths >= 10) {
      const whole = Math.floor(tenths / 10);
      const tenth = tenths % 10;
      return `${sign}${whole}${tenth > 0 && whole < 1000 ? `.${tenth}` : ''} ${unit}`;
    }
  }
  return `${bytes === 0n ? '' : sign}${bytes.toString()} B`;
}

const SECONDS: Partial<Record<string, number>> = {
  ms: 0.001,
  s: 1,
  m: 60,
  h: 3600,
  d: 86400,
  w: 604800
};
const PART = /(\d+(?:\.\d+)?)[ \t-\r]*(ms|s|m|h|d|w)[ \t-\r]*/iy;
const LONGEST = 10 * 366 * 86400;
const HINT = "write it like '90s', '10m', '2h' or '1d12h'";

/** Seconds meant by `'90s'`, `'10m'`, `'2h'`, `'1d12h'`, or a number of seconds. */
export function parseDuration(value: string | number): number {
  const seconds = typeof value === 'number' ? value : secondsOf(value);
  if (!(seconds > 0 && seconds <= LONGEST)) {
    throw new Error(`${quoted(value)} is not a possible duration; ${HINT}`); // NaN, too
  }
  return seconds;
}

function secondsOf(value: string): number {
  if (Array.from(value).length > LONGEST_TEXT) {
    throw new Error(`${shortened(value)} is not a duration; ${HINT}`);
  }
  const text = value.trim();
  if (text.startsWith('-') && part(text.slice(1).trimStart(), 0) !== null) {
    throw new Error(`${quoted(value)} is negative; ${HINT}`);
  }
  let seconds = 0;
  let at = 0;
  for (let match = part(text, at); match !== null; match = part(text, at)) {
    seconds += match.seconds;
    at = match.end;
  }
  if (text === '' || at !== text.length) {
    throw new Error(`${quoted(value)} is not a duration; ${HINT}`);
  }
  return seconds;
}

function part(text: string, at: number): { seconds: number; end: number } | null {
  PART.lastIndex = at;
  const match = PART.exec(text);
  if (match === null) {
    return null;
  }
  const [, number = '', unit = ''] = match;
  return { seconds: Number(number) * (SECONDS[unit.toLowerCase()] ?? NaN), end: PART.lastIndex };
}

/** Seconds for people, in their two largest units: `'1 h 12 m'`, `'45 s'`, `'?'` if unknown. */
export function formatDuration(seconds: number | null): string {
  if (seconds === null || !Number.isFinite(seconds)) {
    return '?';
  }
  let left = rounded(Math.abs(seconds));
  const sign = seconds < 0 && left > 0 ? '-' : '';
  const parts: string[] = [];
  let units = 0;
  for (const [unit, size] of [
    ['d', 86400],
    ['h', 3600],
    ['m', 60],
    ['s', 1]
  ] as const) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0) {
      parts.push(`${count} ${unit}`);
    }
    units += count > 0 || units > 0 ? 1 : 0;
    if (units === 2) {
      break;
    }
  }
  return sign + (parts.join(' ') || '0 s');
}

/** To the nearest, and halves to the even one, as Python does. */
function rounded(number: number): number {
  const below = Math.floor(number);
  return number - below === 0.5 ? below + (below % 2) : Math.round(number);
}

/** Unix time for people, wherever they are: `'2026-03-01 09:30:12 UTC'`, `'?'` if unknown. */
export function formatMoment(moment: number | null): string {
  const [day, clock] = utc(moment);
  return day === '' ? '?' : `${day} ${clock} UTC`;
}

/** Unix time for people, where the day is plain: `'09:30 UTC'`, `'?'` if unknown. */
export function formatClock(moment: number | null): string {
  const [day, clock] = utc(moment);
  return day === '' ? '?' : `${clock.slice(0, 5)} UTC`;
}

function utc(moment: number | null): [string, string] {
  const date = new Date(moment === null ? NaN : Math.floor(moment) * 1000);
  if (Number.isNaN(date.getTime())) {
    return ['', ''];
  }
  const [day = '', clock = ''] = date.toISOString().split('T');
  return [day, clock.slice(0, 8)];
}

function shortened(text: string): string {
  return `${quoted(Array.from(text).slice(0, 20).join(''))}…`;
}

/** As Python writes it in a sentence. */
function quoted(value: string | number): string {
  if (typeof value === 'number') {
    return String(value);
  }
  const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
  const named: Partial<Record<string, string>> = {
    '\n': '\\n',
    '\r': '\\r',
    '\t': '\\t',
    '\\': '\\\\',
    [quote]: `\\${quote}`
  };
  const escaped = Array.from(value, char => {
    const code = char.charCodeAt(0);
    const hex = `\\x${code.toString(16).padStart(2, '0')}`;
    return named[char] ?? (code < 32 || code === 127 ? hex : char);
  });
  return quote + escaped.join('') + quote;
}
