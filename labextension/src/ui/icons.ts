/** Our own icons, which the theme colours. */

import { LabIcon } from '@jupyterlab/ui-components';

/** A graphics card: bracket, board with a fan, connector. */
export const gpuIcon = new LabIcon({
  name: 'jupyter-gpufit:gpu',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" fill-rule="evenodd" d="M1.5 4H4v16.5H2.2V5.8h-.7z
    M5 6h16.5c.6 0 1 .4 1 1v9c0 .6-.4 1-1 1H5z
    M16 7.4a4.1 4.1 0 1 0 0 8.2 4.1 4.1 0 0 0 0-8.2z M16 10a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3z
    M7 9v1.6h3.5V9z M7 12.4V14h3.5v-1.6z
    M6.5 18H9v2.2H6.5z M10 18h5v2.2h-5z"/>
</svg>`
});

/** Something is not as it should be: a triangle. */
export const warningIcon = new LabIcon({
  name: 'jupyter-gpufit:warning',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon-warn0" fill="#b26a00" fill-rule="evenodd" d="M12 3 1.8 21h20.4z
    M11 9.5h2v6h-2z M11 17h2v2h-2z"/>
</svg>`
});

/** It cannot be had: a circle with a bar. */
export const unusableIcon = new LabIcon({
  name: 'jupyter-gpufit:unusable',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3" fill="#616161" fill-rule="evenodd" d="M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z
    M6.5 10.9h11v2.2h-11z"/>
</svg>`
});

/** Nobody has looked: an empty circle. */
export const notCheckedIcon = new LabIcon({
  name: 'jupyter-gpufit:not-checked',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3" fill="#616161" fill-rule="evenodd" d="M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16z
    M12 6.2a5.8 5.8 0 1 1 0 11.6 5.8 5.8 0 0 1 0-11.6z"/>
</svg>`
});
