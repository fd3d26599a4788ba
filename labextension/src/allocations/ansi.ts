/**
 * What a terminal would show of a log: colours as spans with the classes that JupyterLab has for them
 * (`ansi-red-fg`, under `.jp-RenderedText pre`), a line that was rewritten as it was in the end.
 */

export interface Run {
  text: string;
  /** Class names; empty: as any text. */
  style: string;
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];
// Sequences of a terminal: those that end in `m` are about colours, what others do (move, clear, title) is not for a log.
// eslint-disable-next-line no-control-regex
const SEQUENCE = /\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f]/g;

// Characters at the end that are shown in their colours: with those of a whole log of megabytes a page stands still.
const COLOURED = 200_000;

/** The text in runs of one look each. */
export function runs(log: string): Run[] {
  const found: Run[] = [];
  const whole = settled(log);
  const end = whole.length > COLOURED ? whole.lastIndexOf('\n', whole.length - COLOURED) + 1 : 0;
  if (end > 0) {
    const early = whole.slice(0, end).replace(SEQUENCE, '').replace(UNSEEN, '');
    found.push({ text: early, style: '' });
  }
  const text = whole.slice(end);
  let look: Look = {};
  let at = 0;
  const add = (end: number): void => {
    const piece = text.slice(at, end).replace(UNSEEN, '');
    if (piece !== '') {
      found.push({ text: piece, style: classes(look) });
    }
  };
  for (const match of text.matchAll(SEQUENCE)) {
    add(match.index);
    at = match.index + match[0].length;
    if (match[2] === 'm') {
      look = changed(look, match[1]);
    }
  }
  add(text.length);
  return found;
}

/** The text alone, for the clipboard. */
export function plain(log: string): string {
  return runs(log)
    .map(run => run.text)
    .join('');
}

/** Of each line what was written last: a progress bar writes over itself. */
function settled(log: string): string {
  const last = (line: string): string => {
    const written = line.replace(/\r+$/, '');
    return written.slice(written.lastIndexOf('\r') + 1);
  };
  return log.includes('\r') ? log.split('\n').map(last).join('\n') : log;
}

interface Look {
  fg?: string | undefined;
  bg?: string | undefined;
  bold?: boolean;
  underline?: boolean;
}

function changed(before: Look, codes: string): Look {
  let look = before;
  const numbers = codes.split(/[;:]/).map(Number);
  for (let index = 0; index < numbers.length; index += 1) {
    const code = numbers[index] ?? 0;
    if (code === 0) {
      look = {};
    } else if (code === 1 || code === 22) {
      look = { ...look, bold: code === 1 };
    } else if (code === 4 || code === 24) {
      look = { ...look, underline: code === 4 };
    } else if (code === 38 || code === 48) {
      const colour = numbers[index + 1] === 5 ? NAMES[numbers[index + 2] ?? -1] : undefined;
      look = { ...look, [code === 38 ? 'fg' : 'bg']: colour }; // of 256 and more there are no classes
      index += numbers[index + 1] === 5 ? 2 : 4;
    } else {
      look = { ...look, ...coloured(code) };
    }
  }
  return look;
}

function coloured(code: number): Look {
  const name = NAMES[code % 10];
  switch (Math.floor(code / 10)) {
    case 3:
      return { fg: name };
    case 4:
      return { bg: name };
    case 9:
      return { fg: name && `${name}-intense` };
    case 10:
      return { bg: name && `${name}-intense` };
    default:
      return {};
  }
}

function classes({ fg, bg, bold, underline }: Look): string {
  const names = [
    fg === undefined ? '' : `ansi-${fg}-fg`,
    bg === undefined ? '' : `ansi-${bg}-bg`,
    bold === true ? 'ansi-bold' : '',
    underline === true ? 'ansi-underline' : ''
  ];
  return names.filter(Boolean).join(' ');
}
