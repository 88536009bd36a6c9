// The conversation on the demo page: messages to all, and files with their progress.

import { Talk } from "./talk.js";
import { $, make } from "./tile.js";

// A character takes up to six bytes as JSON, and every browser accepts messages of 64 KiB.
export const MAX_TEXT = 10_000;

function size(bytes) {
  if (bytes < 1000) return bytes === 1 ? "1 byte" : `${bytes} bytes`;
  return bytes < 999_500 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

const label = ({ name, size: bytes }) => `${name} (${size(bytes)})`;

/** Append a line to the conversation, and scroll to it unless an earlier part is being read. */
function line(text, className = "") {
  const item = make("li", text, { className });
  const follow = atEnd;
  $("lines").append(item);
  if (follow) toEnd();
  return item;
}

let atEnd = true; // whether the end of the conversation is visible

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
}

$("log").addEventListener("scroll", ({ target }) => {
  atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
});
// A phone's keyboard makes the conversation smaller.
new ResizeObserver(() => atEnd && toEnd()).observe($("log"));

/** Append a line with a progress bar. */
function bar(text, max, className) {
  const item = line("", className);
  const progress = make("progress", "", { max: max || 1, value: 0 });
  const label = make("label", text);
  label.append(progress);
  item.append(label);
  return { item, progress };
}

export class Chat {
  #talks = new Map(); // by peer
  #nameOf;

  /** `nameOf` returns the name of a peer that is shown. */
  constructor(nameOf) {
    this.#nameOf = nameOf;
    $("lines").replaceChildren();
    atEnd = true;
  }

  join(peer) {
    const talk = new Talk(peer.channel);
    const bars = new Map(); // by file
    const from = () => this.#nameOf(peer);
    talk.addEventListener("text", ({ text }) => line(`${from()}: ${text}`));
    talk.addEventListener("refused", ({ reason }) => line(`${from()}: ${reason}.`, "bad"));
    talk.addEventListener("receiving", ({ file }) => {
      if (!bars.has(file)) bars.set(file, bar(`${from()}: receiving ${label(file)}`, file.size));
      bars.get(file).progress.value = file.done;
    });
    talk.addEventListener("received", ({ file, blob }) => {
      const href = URL.createObjectURL(blob);
      bars
        .get(file)
        .item.replaceChildren(`${from()}: `, make("a", `Save ${label(file)}`, { href, download: file.name }));
    });
    talk.addEventListener("broken", ({ file, reason }) => {
      bars.get(file).item.replaceChildren(`${from()}: ${label(file)} did not come: ${reason}.`);
      bars.get(file).item.className = "bad";
    });
    this.#talks.set(peer, talk);
    line(`${from()} is here.`, "note");
  }

  leave(peer) {
    this.#talks.get(peer).end();
    this.#talks.delete(peer);
    line(`${this.#nameOf(peer)} has left.`, "note");
  }

  take(peer, data) {
    this.#talks.get(peer).take(data);
  }

  say(text) {
    line(`me: ${text}`, "mine");
    for (const [peer, talk] of this.#talks) {
      try {
        talk.say(text);
      } catch {
        line(`The message did not get to ${this.#nameOf(peer)}: the connection is being closed.`, "bad");
      }
    }
    if (!this.#talks.size) line("No other page is here to read it.", "note");
  }

  /** Send a file to all that are here. */
  async send(file) {
    const talks = [...this.#talks];
    if (!talks.length) return line(`${file.name} was not sent: no other page is here.`, "bad");
    const { item, progress } = bar(`me: sending ${label(file)}`, file.size * talks.length, "mine");
    const done = new Map();
    const sent = await Promise.all(
      talks.map(async ([peer, talk]) => {
        const advance = (bytes) => {
          done.set(peer, bytes);
          progress.value = [...done.values()].reduce((sum, each) => sum + each, 0);
        };
        try {
          await talk.send(file, advance);
          return true;
        } catch (error) {
          line(`${file.name} did not get to ${this.#nameOf(peer)}: ${error.message}.`, "bad");
          return false;
        }
      }),
    );
    if (sent.includes(true)) item.replaceChildren(`me: sent ${label(file)}`);
    else item.remove();
  }
}
