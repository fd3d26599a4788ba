/** The focus stays in the sidebar until the person moves it. */

import { holdFocus } from '../holdfocus';

let [sidebar, notebook, dialog]: HTMLElement[] = [];
let field: HTMLInputElement;

beforeEach(() => {
  document.body.innerHTML = `
    <div id="notebook" class="jp-MainAreaWidget"><input></div>
    <div id="dialog"><input></div>
    <div id="sidebar"><input></div>`;
  [sidebar, notebook, dialog] = ['sidebar', 'notebook', 'dialog'].map(
    id => document.getElementById(id) as HTMLElement
  );
  field = sidebar.querySelector('input') as HTMLInputElement;
});

const inputIn = (node: HTMLElement): HTMLInputElement =>
  node.querySelector('input') as HTMLInputElement;

test('what takes it by itself does not get it, however often', () => {
  holdFocus(sidebar, () => field.focus());
  expect(document.activeElement).toBe(field);
  for (let times = 0; times < 3; times += 1) {
    inputIn(notebook).focus();
    expect(document.activeElement).toBe(field);
  }
});

test.each(['keydown', 'pointerdown'])('after a %s the person has it where they want', event => {
  holdFocus(sidebar, () => field.focus());
  field.dispatchEvent(new Event(event, { bubbles: true }));
  inputIn(notebook).focus();
  expect(document.activeElement).toBe(inputIn(notebook));
});

test('a dialog and a new notebook may have it', () => {
  holdFocus(sidebar, () => field.focus());
  inputIn(dialog).focus();
  expect(document.activeElement).toBe(inputIn(dialog));
  const other = notebook.cloneNode(true) as HTMLElement;
  document.body.append(other);
  inputIn(other).focus();
  expect(document.activeElement).toBe(inputIn(other));
});

test('what is not rendered yet gets it once it is', async () => {
  field.remove();
  holdFocus(sidebar, () => sidebar.querySelector('input')?.focus());
  expect(document.activeElement).toBe(document.body);
  sidebar.append(field);
  await Promise.resolve();
  expect(document.activeElement).toBe(field);
});
