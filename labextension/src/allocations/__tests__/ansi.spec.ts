import { plain, runs } from '../ansi';

const ESC = '\x1b';

describe('runs', () => {
  it('gives colours the classes that JupyterLab has for them', () => {
    expect(runs(`a ${ESC}[31mred${ESC}[0m b ${ESC}[1;92mgood${ESC}[22m!${ESC}[39m.`)).toEqual([
      { text: 'a ', style: '' },
      { text: 'red', style: 'ansi-red-fg' },
      { text: ' b ', style: '' },
      { text: 'good', style: 'ansi-green-intense-fg ansi-bold' },
      { text: '!', style: 'ansi-green-intense-fg' },
      { text: '.', style: '' }
    ]);
  });

  it('knows the first of 256 colours, and shows what it has no class for as any text', () => {
    expect(
      runs(`${ESC}[38;5;4mblue${ESC}[38;5;200mpink${ESC}[48;2;1;31;3mtrue${ESC}[4mline`)
    ).toEqual([
      { text: 'blue', style: 'ansi-blue-fg' },
      { text: 'pink', style: '' },
      { text: 'true', style: '' },
      { text: 'line', style: 'ansi-underline' }
    ]);
  });
});

describe('plain', () => {
  it('has of a line that was rewritten what was written last', () => {
    expect(plain('start\n10 %\r50 %\r100 %\r\ndone\r\n')).toBe('start\n100 %\ndone\n');
    expect(plain('1 of 2\r2 of 2\r')).toBe('2 of 2');
  });

  it('leaves out what a terminal would do', () => {
    expect(plain(`${ESC}]0;title\x07${ESC}[2K${ESC}[?25lhere\x07${ESC}(B`)).toBe('here');
  });

  it('keeps anything else, and takes no time for it', () => {
    const long = 'ä→日本 <b>&amp;</b>\t|'.repeat(100_000);
    expect(plain(`${long}\n`)).toBe(`${long}\n`);
  });
});

test('of a long log the end is coloured, and all of it is there', () => {
  const lines = 20_000;
  const log = '\x1b[31mred\x1b[0m and more\n'.repeat(lines);
  const found = runs(log);
  expect(found.length).toBeLessThan(lines);
  expect(found.at(-2)).toEqual({ text: 'red', style: 'ansi-red-fg' });
  expect(found.map(run => run.text).join('')).toBe('red and more\n'.repeat(lines));
});
