// What the page says: to screen readers always, to everyone for a moment, and while something takes long.

import { el } from "../../shared/dom";

const STAYS = 3000; // milliseconds

export class Messages {
  readonly live = el("div", { class: "unseen", role: "status" });
  readonly notice = el("div", { class: "busy notice", hidden: true });
  readonly busy = el("div", { class: "busy", hidden: true, text: "Arranging …", role: "status" });
  private ends = 0;

  say(text: string, isSeen: boolean): void {
    this.live.textContent = text;
    if (!isSeen) return;
    this.notice.textContent = text;
    this.notice.hidden = false;
    window.clearTimeout(this.ends);
    this.ends = window.setTimeout(() => (this.notice.hidden = true), STAYS);
  }
}
