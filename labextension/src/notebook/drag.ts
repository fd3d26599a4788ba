/**
 * Drag a row or a card into a notebook: it becomes a cell, where it is dropped. JupyterLab's notebooks take cells of its
 * own MIME type; other places may take the text.
 */

import { MimeData } from '@lumino/coreutils';
import { Drag } from '@lumino/dragdrop';
import { lineOf } from '../line';
import type { IGpuFit } from '../tokens';
import type { Allocation, Request } from '../wire';

const CELLS = 'application/vnd.jupyter.cells';
const FAR = 5; // px until a press is a drag, and no click
// What a press means something else to. (A button that unfolds a row is a part of that row.)
const OWN_USE = 'button:not([aria-expanded]), a, input, select, textarea';

/**
 * From now on, what is in `root` and fits `selector` can be dragged into a notebook, where it is that line (and what makes
 * it work). Called by the plugin.
 */
export function dragFrom(
  root: HTMLElement,
  selector: string,
  line: (element: HTMLElement) => string | null
): void {
  root.addEventListener('pointerdown', event => {
    const target = event.target as HTMLElement;
    const source = target.closest<HTMLElement>(selector);
    const own = target.closest(OWN_USE);
    if (source !== null && event.button === 0 && event.pointerType !== 'touch' && own === null) {
      watch(event, () => line(source));
    }
  });
}

/** The line for an allocation: run again, it comes back to that one as long as it is there. */
export function allocationLine({ request, name, job }: Allocation): string {
  return lineOf({ ...request, name }, job?.env);
}

/** The line that asks for what is in the form, on that node. */
export function nodeLine({ draft }: IGpuFit, node: string): string {
  const asked: Partial<Request> = draft.request ?? { gpus: 1 };
  return lineOf({ ...asked, node });
}

/** A cell in which that line works, whatever ran before. */
export function cellOf(line: string): string {
  return `%load_ext jupyter_gpufit\n${line}`;
}

/** From a press on: as soon as the pointer is far enough from there, drag. */
function watch(press: PointerEvent, line: () => string | null): void {
  const stop = (): void => {
    document.removeEventListener('pointermove', onMove, true);
    document.removeEventListener('pointerup', stop, true);
    document.removeEventListener('pointercancel', stop, true);
  };
  const onMove = (event: PointerEvent): void => {
    const [x, y] = [event.clientX - press.clientX, event.clientY - press.clientY];
    if (Math.hypot(x, y) >= FAR) {
      stop();
      event.preventDefault();
      document.getSelection()?.removeAllRanges();
      const text = line();
      if (text !== null) {
        begin(text, event);
      }
    }
  };
  document.addEventListener('pointermove', onMove, true);
  document.addEventListener('pointerup', stop, true);
  document.addEventListener('pointercancel', stop, true);
}

function begin(line: string, { clientX, clientY }: PointerEvent): void {
  const mimeData = new MimeData();
  const source = cellOf(line);
  mimeData.setData(CELLS, [
    { cell_type: 'code', source, metadata: {}, outputs: [], execution_count: null }
  ]);
  mimeData.setData('text/plain', source);
  const dragImage = document.createElement('div');
  dragImage.className = 'jp-GpuFit-dragImage';
  dragImage.textContent = line;
  const drag = new Drag({ mimeData, dragImage, proposedAction: 'copy', supportedActions: 'copy' });
  void drag.start(clientX, clientY).then(() => drag.dispose());
}
