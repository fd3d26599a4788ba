/**
 * The page follows its sessions at once when the server points them at another kernel, and not only when it looks next
 * (every ten seconds): whoever attached or detached the notebook, here, in a cell, in another window.
 *
 *     an attachment changes ─→ the page asks for its sessions ─→ each notebook connects to the kernel its session has
 *
 * Nothing else is right: `changeKernel` of a session context PATCHes the session, on which the server shuts down the
 * kernel that it had.
 */

import type { Session } from '@jupyterlab/services';
import type { GpuFitModel } from '../model';
import type { Attachment } from '../wire';

const LOOKS = 3;

/** Lives as long as its page. */
export class Follower {
  constructor(
    model: GpuFitModel,
    private readonly sessions: Session.IManager
  ) {
    model.attachmentChanged.connect((_, attachment) => this.expect(attachment));
    sessions.runningChanged.connect(() => this.check());
    // A page that nobody sees does not look at its sessions.
    document.addEventListener('visibilitychange', () => void this.follow());
  }

  /** Resolves once the page's sessions are as the server has them. Never raises. */
  async follow(): Promise<void> {
    await (this.following ??= this.catchUp().finally(() => (this.following = null)));
  }

  private expect(attachment: Attachment): void {
    this.expected.set(attachment.session, attachment.kernel_id);
    this.looks = LOOKS;
    void this.follow();
  }

  /** An answer that was on its way for long may have brought back what was before. */
  private check(): void {
    if (this.following === null) {
      this.looks = LOOKS;
      void this.follow();
    }
  }

  private async catchUp(): Promise<void> {
    // More than once: a question that was on its way already is not asked again, and is answered with what was before.
    while (this.isBehind && this.looks > 0 && !document.hidden) {
      this.looks -= 1;
      try {
        await this.sessions.refreshRunning();
      } catch {
        return; // the server does not answer; once it does, the page looks by itself
      }
    }
    if (this.looks === 0) {
      this.expected.clear(); // somebody chose another kernel meanwhile: what the server says holds
    }
  }

  private get isBehind(): boolean {
    return behind(this.expected, this.sessions.running()).length > 0;
  }

  /** By session: the kernel that it has, as far as attachments tell. */
  private readonly expected = new Map<string, string>();
  private looks = LOOKS;
  private following: Promise<void> | null = null;
}

/** The sessions that have another kernel than expected. Those that are gone are not behind. */
export function behind(
  expected: ReadonlyMap<string, string>,
  running: Iterable<Session.IModel>
): string[] {
  return [...running]
    .filter(({ id, kernel }) => expected.has(id) && expected.get(id) !== kernel?.id)
    .map(({ id }) => id);
}
