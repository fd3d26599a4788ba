/** Saves what is open and changed, before something else reads the file. */

import type { JupyterFrontEnd } from '@jupyterlab/application';

/** A document of the main area, as far as it matters here. */
interface Open {
  context?: { path: string; model: { dirty: boolean }; save: () => Promise<void> };
}

/** Saves the file at a path, if it is open in this page and has been changed. Raises what saving raises. */
export function savingOf(app: JupyterFrontEnd): (path: string) => Promise<void> {
  return async path => {
    const { contents } = app.serviceManager;
    const open = [...app.shell.widgets('main')] as unknown as Open[];
    // (It may be open twice, as a notebook and as a text, and changed in one of them.)
    const changed = open.find(
      ({ context }) => context?.model.dirty && contents.localPath(context.path) === path
    );
    await changed?.context?.save();
  };
}
