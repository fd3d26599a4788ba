// What jsdom does not have, and JupyterLab's packages look for as they are loaded.
globalThis.DragEvent ??= class DragEvent extends MouseEvent {};
window.matchMedia ??= () => ({
  matches: false,
  addListener: () => undefined,
  addEventListener: () => undefined
});
for (const name of ['IntersectionObserver', 'ResizeObserver']) {
  window[name] ??= class {
    observe() {}
    unobserve() {}
    disconnect() {}
  };
}
