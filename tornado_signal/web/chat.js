// The conversation on the demo page: messages to all, and files with their progress.

import { $, make } from "./tile.js";

const MAX_SHOWN = 10_000; // characters of a message
const MAX_LINES = 500; // older ones are removed, with their files

let room;
let nameOf; // returns the name of a peer that is shown
let speaker; // the name over the last run of lines

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);
const label = (file) => `${file.name} (${size(file.size)})`;

/** Append a line to the conversation. `who` has said it. */
function line(content, className = "", who = "") {
  const item = make("li", "", { className });
  if (who && who !== speaker) item.dataset.who = who;
  speaker = who;
  item.append(...[content].flat());
  $("lines").append(item);
  if ($("lines").childElementCount > MAX_LINES) release($("lines").firstElementChild);
  return item;
}

/** Remove a line. Its file, if it has one, takes no memory then. */
function release(item) {
  item.remove();
  item.onrelease?.();
}

const clear = () => [...$("lines").children].forEach(release);

/** Return the beginning of a message of any program. */
function beginning(data) {
  const text = typeof data === "string" ? data : "(not a text)";
  const more = text.length > MAX_SHOWN ? `… (${text.length.toLocaleString("en")} characters)` : "";
  return text.slice(0, MAX_SHOWN) + more;
}

/** Show a text and a progress bar in a line, and return the bar. */
function bar(item, text, max) {
  const progress = make("progress", "", { ariaLabel: text, max: max || 1, value: 0 });
  item.replaceChildren(text, progress);
  return progress;
}

/** Show the conversation of a room. `count` is called for each message. */
export function converse(joined, namePeer, count) {
  clear(); // files that failed since the last one
  [room, nameOf, speaker] = [joined, namePeer, ""];
  const on = (event, act) => room.addEventListener(event, act);
  on("join", ({ peer }) => line(`${nameOf(peer)} is here.`, "note"));
  on("leave", ({ peer }) => line(`${nameOf(peer)} has left.`, "note"));
  on("message", ({ peer, data }) => {
    line(beginning(data), "", nameOf(peer));
    count();
  });
  on("file", ({ peer, file }) => offer(nameOf(peer), file));
  on("close", clear);
}

/** Ask whether to receive a file. */
function offer(from, file) {
  const [receive, refuse] = ["Receive", "Refuse"].map((text) => make("button", text, { type: "button" }));
  const item = line([`${label(file)} `, receive, refuse], "", from);
  item.onrelease = () => file.cancel();
  refuse.onclick = () => release(item);
  receive.onclick = () => save(file, item);
  file.addEventListener("close", () => receive.isConnected && save(file, item)); // shows its error
}

async function save(file, item) {
  const progress = bar(item, `receiving ${label(file)}`, file.size);
  file.addEventListener("progress", () => (progress.value = file.received));
  try {
    const received = await file.accept();
    if (!item.isConnected) return;
    const href = URL.createObjectURL(received);
    item.onrelease = () => URL.revokeObjectURL(href);
    item.replaceChildren(make("a", `Save ${label(file)}`, { href, download: file.name }));
  } catch (error) {
    item.replaceChildren(`${label(file)} did not arrive. ${error.message}.`);
    item.className = "bad";
  }
}

export async function say(message) {
  line(beginning(message), "mine");
  if (!room.peers.size) line("No other page is here to read it.", "note");
  await room.send(message).catch((error) => line(`Not sent: ${error.message}.`, "bad"));
}

/** Send a file to all that are here. */
export async function send(file) {
  const peers = room.peers.size;
  if (!peers) return line(`${file.name} was not sent: no other page is here.`, "bad");
  const item = line("", "mine");
  const progress = bar(item, `sending ${label(file)}`, file.size);
  const onprogress = ({ loaded }) => (progress.value = Math.max(progress.value, loaded)); // of the fastest
  const failures = (await room.sendFile(file, { onprogress }).catch(({ errors }) => errors)) ?? [];
  for (const error of failures) {
    line(`${file.name} did not get to ${nameOf(error.peer)}. ${error.message}.`, "bad");
  }
  if (failures.length < peers) item.replaceChildren(`sent ${label(file)}`);
  else item.remove();
}
