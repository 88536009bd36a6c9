// The conversation on the demo page: what is said to all, and files with how far they have come.

import { Talk } from "./talk.js";
import { $, make } from "./tile.js";

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);
const label = ({ name, size: bytes }) => `${name} (${size(bytes)})`;

/** A line of the conversation, which goes to its end unless it is being read further up. */
function line(text, className = "") {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const item = make("li", text, { className });
  log.append(item);
  if (atEnd) log.scrollTop = log.scrollHeight;
  return item;
}

/** A line with a bar. */
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

  join(peer) {
    const talk = new Talk(peer.channel);
    const bars = new Map(); // by file
    const from = peer.info;
    talk.addEventListener("text", ({ text }) => line(`${from}: ${text}`));
    talk.addEventListener("refused", ({ reason }) => line(`${from}: ${reason}.`, "bad"));
    talk.addEventListener("receiving", ({ file }) => {
      if (!bars.has(file)) bars.set(file, bar(`${from}: receiving ${label(file)}`, file.size));
      bars.get(file).progress.value = file.done;
    });
    talk.addEventListener("received", ({ file, blob }) => {
      const href = URL.createObjectURL(blob);
      bars.get(file).item.replaceChildren(`${from}: `, make("a", `Save ${label(file)}`, { href, download: file.name }));
    });
    talk.addEventListener("broken", ({ file, reason }) => {
      bars.get(file).item.replaceChildren(`${from}: ${label(file)} did not come: ${reason}.`);
      bars.get(file).item.className = "bad";
    });
    this.#talks.set(peer, talk);
    line(`${from} is here.`, "note");
  }

  leave(peer) {
    this.#talks.get(peer).end();
    this.#talks.delete(peer);
    line(`${peer.info} has left.`, "note");
  }

  take(peer, data) {
    this.#talks.get(peer).take(data);
  }

  say(text) {
    for (const talk of this.#talks.values()) talk.say(text);
    line(text, "mine");
    if (!this.#talks.size) line("No other page is here to read it.", "note");
  }

  /** Send a file to all that are here. */
  async send(file) {
    const talks = [...this.#talks];
    if (!talks.length) return line(`${file.name} was not sent: no other page is here.`, "bad");
    const { item, progress } = bar(`Sending ${label(file)}`, file.size * talks.length, "mine");
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
          line(`${file.name} did not get to ${peer.info}: ${error.message}.`, "bad");
          return false;
        }
      }),
    );
    if (sent.includes(true)) item.replaceChildren(`Sent ${label(file)}`);
    else item.remove();
  }
}
