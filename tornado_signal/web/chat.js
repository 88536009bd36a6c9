// The conversation on the demo page: messages to all, and files with their progress.

import { $, make } from "./tile.js";

export const MAX_TEXT = 10_000; // characters, which every browser accepts
const MAX_FILE = 512 * 1024 * 1024; // bytes, which a browser may keep in memory
const MAX_OFFERED = 10; // files of one member that wait for a click
const MAX_LINES = 500; // older ones are removed, with their files
const LINK = /https?:\/\/[^\s<>"]*[^\s<>"'.,:;!?)\]]/g;

function size(bytes) {
  if (bytes < 1000) return bytes === 1 ? "1 byte" : `${bytes} bytes`;
  return bytes < 999_500 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

const label = ({ name, size: bytes }) => `${name} (${size(bytes)})`;

/** Append a line to the conversation, and scroll to it unless an earlier part is being read. `who` has said it. */
function line(content, className = "", who = "") {
  const item = make("li", "", { className });
  if (who && who !== speaker) item.dataset.who = who;
  speaker = who;
  item.append(...[content].flat());
  const follow = atEnd;
  $("lines").append(item);
  if ($("lines").childElementCount > MAX_LINES) release($("lines").firstElementChild);
  if (follow) toEnd();
  return item;
}

/** Remove a line. Its file, if it has one, takes no memory then. */
function release(item) {
  const { href } = item.querySelector("a[download]") ?? {};
  if (href) URL.revokeObjectURL(href);
  item.dispatchEvent(new Event("released"));
  item.remove();
}

/** Return a text as parts in which addresses of pages are links. */
function linked(text) {
  const parts = [];
  let end = 0;
  for (const { 0: href, index } of text.matchAll(LINK)) {
    parts.push(text.slice(end, index), make("a", href, { href, target: "_blank", rel: "noopener noreferrer" }));
    end = index + href.length;
  }
  return [...parts, text.slice(end)];
}

let speaker = ""; // the name over the last run of lines
let atEnd = true; // whether the end of the conversation is visible

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
}

$("log").addEventListener("scroll", ({ target }) => {
  atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
});
// A phone's keyboard makes the conversation smaller.
new ResizeObserver(() => atEnd && toEnd()).observe($("log"));

/** Show a text and a progress bar in a line, and return the bar. */
function bar(item, text, max) {
  const progress = make("progress", "", { max: max || 1, value: 0 });
  const label = make("label", text);
  label.append(progress);
  item.replaceChildren(label);
  return progress;
}

/** Why a file did not arrive. */
function reason({ code }) {
  if (code === "file-refused") return "it was refused";
  if (code === "file-cancelled") return "it was cancelled, or can no longer be read";
  if (code === "file-interrupted") return "the connection ended";
  return code === "file-unreadable" ? "the browser can no longer read it" : "it could not be sent";
}

/** Return the JSON of a message; a note if it is nested too deeply for the browser. */
function json(data) {
  try {
    return JSON.stringify(data);
  } catch {
    return "(unreadable)";
  }
}

/** Return the text to show for a message of any program: its beginning, if it is long. */
function text(data) {
  if (data instanceof ArrayBuffer) return `(${size(data.byteLength)})`;
  const shown = typeof data === "string" ? data : json(data);
  if (shown.length <= MAX_TEXT) return shown;
  return `${shown.slice(0, MAX_TEXT)}… (${shown.length.toLocaleString("en")} characters)`;
}

export class Chat {
  #room;
  #nameOf;
  #offered = new Map(); // how many files wait for a click, by peer

  /** `nameOf` returns the name of a peer that is shown. `count` is called for each message. */
  constructor(room, nameOf, count) {
    this.#room = room;
    this.#nameOf = nameOf;
    $("lines").replaceChildren();
    atEnd = true;
    speaker = "";
    const on = (event, act) => room.addEventListener(event, act);
    on("join", ({ peer }) => line(`${nameOf(peer)} is here.`, "note"));
    on("leave", ({ peer }) => line(`${nameOf(peer)} has left.`, "note"));
    on("message", ({ peer, data }) => {
      line(linked(text(data)), "", nameOf(peer));
      count();
    });
    on("file", ({ peer, file }) => this.#receive(peer, file));
  }

  /** Remove the files, which would take memory. */
  close() {
    for (const part of $("lines").querySelectorAll("a[download], button:first-of-type")) release(part.parentElement);
  }

  /** Ask whether to receive a file. */
  async #receive(peer, file) {
    const from = this.#nameOf(peer);
    const offered = this.#offered.get(peer) ?? 0;
    if (file.size > MAX_FILE || offered >= MAX_OFFERED) {
      file.cancel();
      const reason = offered >= MAX_OFFERED ? "was refused: others wait already" : "is too large for this page";
      return line(`${label(file)} ${reason}.`, "bad", from);
    }
    this.#offered.set(peer, offered + 1);
    const [receive, refuse] = ["Receive", "Refuse"].map((text) => make("button", text, { type: "button" }));
    const item = line([`${label(file)} `, receive, refuse], "", from);
    item.addEventListener("released", () => file.cancel());
    const accepted = await new Promise((resolve) => {
      receive.onclick = () => resolve(true);
      refuse.onclick = () => resolve(false);
      file.addEventListener("close", () => resolve(true)); // the reason is its error
    });
    this.#offered.set(peer, this.#offered.get(peer) - 1);
    if (accepted) return this.#save(file, item);
    file.cancel();
    item.replaceChildren(`${label(file)} was refused.`);
  }

  async #save(file, item) {
    const progress = bar(item, `receiving ${label(file)}`, file.size);
    file.addEventListener("progress", () => (progress.value = file.received));
    try {
      const received = await file.accept();
      if (!item.isConnected) return;
      const href = URL.createObjectURL(received);
      item.replaceChildren(make("a", `Save ${label(file)}`, { href, download: file.name }));
    } catch (error) {
      item.replaceChildren(`${label(file)} did not arrive: ${reason(error)}.`);
      item.className = "bad";
    }
  }

  async say(message) {
    line(linked(message), "mine");
    if (!this.#room.peers.size) line("No other page is here to read it.", "note");
    try {
      await this.#room.send(message);
    } catch (error) {
      line(`Not sent: ${error.message}.`, "bad");
    }
  }

  /** Send a file to all that are here. */
  async send(file) {
    const peers = this.#room.peers.size;
    if (!peers) return line(`${file.name} was not sent: no other page is here.`, "bad");
    const item = line("", "mine");
    const progress = bar(item, `sending ${label(file)}`, file.size * peers);
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
    if (failures.length < peers) item.replaceChildren(`sent ${label(file)}`);
    else item.remove();
  }
}
