// The conversation on the demo page: messages to all, and files with their progress.

import { $, make } from "./tile.js";

export const MAX_TEXT = 10_000; // characters, which every browser accepts
const MAX_FILE = 512 * 1024 * 1024; // bytes that this page receives without asking

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

/** Why a file did not arrive. */
function reason({ code, name }) {
  if (code === "file-refused") return "it was refused";
  if (code === "file-cancelled") return "it was cancelled, or can no longer be read";
  if (code === "file-interrupted") return "the connection ended";
  return name === "NotReadableError" ? "the browser can no longer read it" : "it could not be sent";
}

/** Return the text to show for a message of any program. */
function text(data) {
  if (data instanceof ArrayBuffer) return `(${size(data.byteLength)})`;
  return typeof data === "string" ? data : JSON.stringify(data);
}

export class Chat {
  #room;
  #nameOf;

  /** `nameOf` returns the name of a peer that is shown. */
  constructor(room, nameOf) {
    this.#room = room;
    this.#nameOf = nameOf;
    $("lines").replaceChildren();
    atEnd = true;
    const on = (event, act) => room.addEventListener(event, act);
    on("join", ({ peer }) => line(`${nameOf(peer)} is here.`, "note"));
    on("leave", ({ peer }) => line(`${nameOf(peer)} has left.`, "note"));
    on("message", ({ peer, data }) => line(`${nameOf(peer)}: ${text(data)}`));
    on("file", ({ peer, file }) => this.#receive(peer, file));
  }

  async #receive(peer, file) {
    const from = this.#nameOf(peer);
    if (file.size > MAX_FILE) {
      file.cancel();
      return line(`${from}: ${label(file)} is too large for this page.`, "bad");
    }
    const { item, progress } = bar(`${from}: receiving ${label(file)}`, file.size);
    file.addEventListener("progress", () => (progress.value = file.received));
    try {
      const href = URL.createObjectURL(await file.accept());
      item.replaceChildren(`${from}: `, make("a", `Save ${label(file)}`, { href, download: file.name }));
    } catch (error) {
      item.replaceChildren(`${from}: ${label(file)} did not arrive: ${reason(error)}.`);
      item.className = "bad";
    }
  }

  say(message) {
    line(`me: ${message}`, "mine");
    this.#room.send(message);
    if (!this.#room.peers.size) line("No other page is here to read it.", "note");
  }

  /** Send a file to all that are here. */
  async send(file) {
    const peers = this.#room.peers.size;
    if (!peers) return line(`${file.name} was not sent: no other page is here.`, "bad");
    const { item, progress } = bar(`me: sending ${label(file)}`, file.size * peers, "mine");
    const sent = new Map();
    const onprogress = ({ peer, loaded }) => {
      sent.set(peer, loaded);
      progress.value = [...sent.values()].reduce((sum, bytes) => sum + bytes, 0);
    };
    const failures = await this.#room.sendFile(file, { onprogress }).then(
      () => [],
      ({ errors }) => errors,
    );
    for (const error of failures) {
      line(`${file.name} did not get to ${this.#nameOf(error.peer)}: ${reason(error)}.`, "bad");
    }
    if (failures.length < peers) item.replaceChildren(`me: sent ${label(file)}`);
    else item.remove();
  }
}
