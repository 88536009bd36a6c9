// The demo page. It uses the same module as applications.

import { room, SignalClient, SignalError } from "../client.js";
import { Chat, MAX_TEXT } from "./chat.js";
import { check } from "./check.js";
import { $, make, Tile } from "./tile.js";
import { renderSVG } from "./vendor/uqr.js";

const NEARBY = "nearby-"; // the prefix of the rooms of networks, which other networks cannot guess
const LOOK_MS = 3000; // between two polls of the other rooms
const MAX_NAME = 32; // characters; longer names are cut off
const MAX_NAMES = 3; // in the status line
const LOOPBACK = /^(localhost|.*\.localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);
const MEDIA = {
  camera: () => navigator.mediaDevices.getUserMedia({ video: true }),
  microphone: () => navigator.mediaDevices.getUserMedia({ audio: true }),
  screen: () => navigator.mediaDevices.getDisplayMedia({ video: true }),
};

// How another page does it.
const CODE = `<script type="module">
  import { room } from "${new URL("../client.js", import.meta.url)}";
  const lobby = room("lobby");
  const show = (text) => document.body.append(text, document.createElement("br"));
  lobby.addEventListener("join", ({ peer }) => {
    show("somebody is here");
    lobby.send("Hello", peer);
  });
  lobby.addEventListener("message", ({ data }) => show(data));
</script>
`;

const api = new SignalClient(new URL("..", import.meta.url));
let here; // the room
let chat;
let own; // this page's tile
let away = false; // whether the last request to the server failed
let looking = new AbortController();
const tiles = new Map(); // by peer
const opening = new Set(); // the ids of the buttons whose streams are being opened
const sent = new Map(); // streams by the id of the button

const topic = () => $("topic").value.trim() || "lobby";
const title = () => (topic().startsWith(NEARBY) ? $("nearby").textContent : topic());
const name = () => $("name").value.trim() || "Guest";
const message = $("message");

/** Return a name as one line of limited length. */
function shorten(text) {
  const characters = [...text.replace(/\s+/g, " ").trim()];
  return characters.length > MAX_NAME ? `${characters.slice(0, MAX_NAME - 1).join("")}…` : characters.join("");
}

/** Return the name of a peer that this page shows. If somebody else has that name, a part of the id is added. */
function nameOf(peer) {
  const shown = shorten(peer.info) || "Guest";
  const others = [...(here?.peers.values() ?? [])].filter((other) => other !== peer).map(({ info }) => shorten(info));
  return [shorten(name()), ...others].includes(shown) ? `${shown} (${peer.id.slice(1, 5)})` : shown;
}

function complain(text, where = "problem") {
  $(where).textContent = text;
  $(where).hidden = !text;
}

// Error texts.

const UNREACHABLE = "The server cannot be reached, or does not allow this page's origin. This page keeps trying.";
const EXPLANATIONS = {
  "server-unreachable": UNREACHABLE,
  timeout: UNREACHABLE,
  "server-busy": "The server is busy. This page tries again in a moment.",
  "origin-not-allowed": "The server does not allow this page's origin (--allowed-origins).",
};

const explain = (error) => EXPLANATIONS[error.code] ?? `${error.message}.`;

function trouble(error) {
  away = error instanceof SignalError || ["TypeError", "TimeoutError"].includes(error.name);
  complain(explain(error));
}

function unable() {
  if (!globalThis.RTCPeerConnection) return "This browser has no WebRTC, so it cannot connect to others.";
  if (!isSecureContext) {
    return (
      "Over plain HTTP a page at this address gets no camera, and the browser does not send its origin to the server. " +
      "Open this page over HTTPS, or on the server's own machine as http://localhost."
    );
  }
  return "";
}

// In the room.

function enter() {
  try {
    here = room(topic(), { info: name() });
  } catch (error) {
    return complain(explain(error));
  }
  keep("inside", topic());
  chat = new Chat(here, nameOf);
  own = new Tile(shorten(name()), { muted: true });
  const on = (event, act) => here.addEventListener(event, act);
  on("listed", refresh);
  on("join", ({ peer }) => {
    complain("");
    const tile = new Tile(nameOf(peer));
    tiles.set(peer, tile);
    tile.follow(peer.peerConnection);
    refresh();
  });
  on("leave", ({ peer }) => {
    tiles.get(peer).remove();
    tiles.delete(peer);
    refresh();
  });
  on("stream", ({ peer, stream }) => tiles.get(peer).show(stream));
  on("streamend", ({ peer, stream }) => tiles.get(peer).hide(stream));
  on("error", ({ error }) => trouble(error));
  on("close", left);
  present(true);
  refresh();
  message.focus({ preventScroll: true });
}

async function leave() {
  keep("inside", "");
  await here?.leave();
}

function left() {
  for (const id of sent.keys()) stop(id);
  chat.close();
  own.remove();
  here = undefined;
  complain("", "media-problem");
  complain("", "say-problem");
  present(false);
  refresh();
  $("enter").focus();
}

function present(inside) {
  document.body.classList.toggle("inside", inside);
  $("title").textContent = inside ? title() : "";
  $("title").hidden = $("room").hidden = $("leave").hidden = !inside;
  for (const id of ["start", "entry", "own-page", "diagnose"]) $(id).hidden = inside;
}

/** Update the names, which depend on who is here, and the status line. */
function refresh() {
  const names = [];
  for (const [peer, tile] of tiles) names.push((tile.name = nameOf(peer)));
  const text = () => {
    if (!here) return "You are not in a room.";
    const who = names.length > MAX_NAMES ? `${names.length} people` : names.join(", ");
    if (!here.listed) return who ? `Connected with ${who}. New pages cannot find this one yet.` : "Entering …";
    return who ? `Connected with ${who}.` : "No other page is here yet.";
  };
  $("alone").hidden = !here?.listed || names.length > 0;
  $("status").textContent = text();
  $("status").title = names.join(", ");
}

function say() {
  const text = message.value;
  const tooLong = text.length > MAX_TEXT;
  const lengths = [text.length, MAX_TEXT].map((length) => length.toLocaleString("en"));
  complain(tooLong ? `Not sent: ${lengths[0]} of at most ${lengths[1]} characters.` : "", "say-problem");
  if (!tooLong) {
    chat.say(text);
    message.value = "";
  }
  message.focus();
}

/** Send files that are dropped onto the chat. Elsewhere the browser would open them instead of the page. */
function drop(event) {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  const over = here && $("chat").contains(event.target) && event.type !== "dragleave";
  $("chat").classList.toggle("drop", over && event.type === "dragover");
  event.dataTransfer.dropEffect = over ? "copy" : "none";
  if (over && event.type === "drop") send(event.dataTransfer.files);
}

function send(files) {
  for (const file of files) chat.send(file);
}

// Camera, microphone and screen.

async function press(id) {
  complain("", "media-problem");
  if (opening.has(id)) return; // a disabled button would lose the focus
  if (sent.has(id)) return stop(id);
  const entered = here;
  opening.add(id);
  try {
    const stream = await MEDIA[id]();
    if (here !== entered) {
      for (const track of stream.getTracks()) track.stop(); // the room was left in the meantime
      return;
    }
    sent.set(id, stream);
    for (const track of stream.getTracks()) track.addEventListener("ended", () => stop(id)); // by the browser
    here.addStream(stream);
    own.show(stream);
    $(id).ariaPressed = "true";
  } catch (error) {
    if (here === entered) complain(refusal($(id).textContent, error), "media-problem");
  } finally {
    opening.delete(id);
  }
}

function refusal(what, { name: kind, message }) {
  if (kind === "NotFoundError") return `${what} not found.`;
  if (kind === "NotAllowedError") return `${what} not allowed. The browser's settings for this page can change that.`;
  if (kind === "NotReadableError") return `${what} not readable. Another program may be using it.`;
  if (kind === "TypeError") return `${what} not supported by this browser.`;
  return `${what} not available: ${message}.`;
}

function stop(id) {
  const stream = sent.get(id);
  if (!stream) return;
  sent.delete(id);
  here.removeStream(stream);
  own.hide(stream);
  for (const track of stream.getTracks()) track.stop();
  $(id).ariaPressed = "false";
}

// Which rooms there are.

async function watchRooms(signal) {
  while (!signal.aborted) {
    try {
      const listed = await api.rooms({ limit: 50, signal });
      const rooms = listed.rooms
        .filter(({ name }) => !name.startsWith(NEARBY))
        .map(({ name, members }) => ({ value: name, count: members }));
      const others = rooms.filter(({ value }) => !here || value !== topic());
      const rows = others.map(({ value, count }) => {
        const item = make("li");
        const onclick = () => go(value);
        item.append(make("button", `${value} (${count})`, { type: "button", onclick }));
        return item;
      });
      if (!$("elsewhere").contains(document.activeElement)) $("elsewhere").replaceChildren(...rows);
      $("nowhere").hidden = others.length > 0;
      $("topics").replaceChildren(...rooms.map(({ value }) => make("option", "", { value })));
      if (away) complain("");
      away = false;
    } catch (error) {
      if (signal.aborted) return;
      trouble(error);
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

/** Look as long as the page is looked at. */
function look() {
  looking.abort();
  looking = new AbortController();
  if (!document.hidden) watchRooms(looking.signal);
}

/** Enter another room if this page is in one. Otherwise a press of Enter does that. */
async function go(value) {
  const inside = here;
  await leave();
  $("topic").value = value;
  changed();
  if (inside) enter();
  else $("enter").focus();
}

function howToOpen(withCode) {
  if (!LOOPBACK) return `${withCode ? "Scan this, or open" : "Open"} the link, and press Enter:`;
  return (
    `A phone cannot open this page, because ${location.hostname} is this device itself. ` +
    "For other devices, serve it over HTTPS under a name that they can reach. " +
    "In a second window of this device, open the link, and press Enter:"
  );
}

function changed() {
  const link = new URL(location.href);
  link.hash = new URLSearchParams({ topic: topic() });
  history.replaceState(null, "", link);
  $("link").textContent = $("link").href = link.href;
  const fits = [...link.href].length <= 256 && !LOOPBACK;
  $("qr").hidden = !fits;
  const draw = () => renderSVG(link.href, { ecc: "M", border: 4 }); // the margin that readers need
  if (fits) $("qr").src = `data:image/svg+xml,${encodeURIComponent(draw())}`;
  $("how").textContent = howToOpen(fits);
  keep("name", $("name").value.trim());
}

const linked = () => new URLSearchParams(location.hash.slice(1)).get("topic") || topic();

/** Show what the address names: the check, or a room. */
async function route() {
  const checking = location.hash === "#check";
  const checked = !$("check").hidden;
  if (checking) await leave();
  $("rooms").hidden = checking;
  $("check").hidden = !checking;
  if (checking) {
    $("back").hash = new URLSearchParams({ topic: topic() });
    $("check-title").focus();
    runCheck();
  } else if (linked() !== topic()) {
    await go(linked());
  } else {
    changed();
  }
  if (checked && !checking) $("enter").focus();
}

async function runCheck() {
  if ($("again").ariaDisabled === "true") return; // a disabled button would lose the focus
  $("again").ariaDisabled = "true";
  await check(api);
  $("again").ariaDisabled = "false";
}

// A reload of the page keeps these values, unless the storage is blocked.

function keep(key, value) {
  try {
    sessionStorage.setItem(key, value);
  } catch {}
}

function kept(key) {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Enter a room that has no members yet, and show how others get there. */
function makeRoom() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  $("topic").value = [...bytes].map((byte) => (byte % 32).toString(32)).join("");
  changed();
  enter();
  $("invitation").showModal();
}

/** Enter the room of this device's network. */
async function enterNearby() {
  complain("");
  try {
    const { topic } = await api.nearby();
    if (here) return;
    $("topic").value = topic;
    changed();
    enter();
  } catch (error) {
    complain(
      error.code === "not-found" ? "This server does not show which devices are in one network." : explain(error),
    );
  }
}

function begin() {
  $("name").value = kept("name") || `Guest ${Math.floor(1000 + Math.random() * 9000)}`;
  $("topic").value = linked(); // "lobby" without one
  const origins = LOOPBACK ? " “localhost” and “127.0.0.1” are two different origins." : "";
  $("alone").textContent = `The origin of this page is ${location.origin}. Others need the same one.${origins}`;
  $("code").textContent = CODE;
  listen();
  const reason = unable();
  const invited = location.hash.startsWith("#topic=");
  // Until now a click would have submitted the form to the server.
  for (const button of document.querySelectorAll("#start button, #entry button, #bar button"))
    button.disabled = Boolean(reason);
  if (reason) {
    complain(reason);
  } else {
    if (location.hash !== "#check") changed();
    look();
  }
  if (location.hash === "#check") route();
  else if (!reason && kept("inside") === topic())
    enter(); // after a reload
  else if (invited) $("enter").focus();
}

function listen() {
  $("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    complain("");
    changed();
    enter();
  });
  $("name").addEventListener("change", changed);
  $("topic").addEventListener("change", changed);
  $("make").addEventListener("click", makeRoom);
  $("nearby").addEventListener("click", enterNearby);
  $("leave").addEventListener("click", leave);
  $("say").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", ({ target }) => {
    if (here) send(target.files);
    target.value = "";
  });
  for (const type of ["dragover", "dragleave", "drop"]) addEventListener(type, drop);
  for (const id of Object.keys(MEDIA)) $(id).addEventListener("click", () => press(id));
  addEventListener("hashchange", route);
  $("again").addEventListener("click", runCheck);
  $("copy-report").addEventListener("click", () => copy($("copy-report"), $("report").value));
  document.addEventListener("visibilitychange", look);
  $("invite").addEventListener("click", () => $("invitation").showModal());
  $("close").addEventListener("click", () => $("invitation").close());
  $("copy-code").addEventListener("click", () => copy($("copy-code"), CODE));
  $("copy").addEventListener("click", () => copy($("copy"), $("link").href));
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not let this page copy";
  }
}

begin();
