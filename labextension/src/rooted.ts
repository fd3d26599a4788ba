/** Paths of the server's machine, as the file browser has them. */

import { PageConfig } from '@jupyterlab/coreutils';

/** The person's home, which the server writes as `~`. */
const HOME = '(?:/root|/(?:home|Users)/[^/]+)';

/** An absolute path below the server's root directory, relative to that; `null`: it is elsewhere, or nobody knows. */
export function localOf(path: string, root = PageConfig.getOption('serverRoot')): string | null {
  const plain = root.replace(/\/+$/, '');
  const start = plain.startsWith('~') ? HOME + literally(plain.slice(1)) : literally(plain);
  const found = new RegExp(`^${start}(?:/+(.*))?$`).exec(path);
  return root === '' || found === null ? null : (found.at(1) ?? '');
}

function literally(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
