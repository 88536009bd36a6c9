// The demo page. It uses the same module as applications.

import { room, SignalClient, SignalError } from "../client.js";
import { Chat, MAX_TEXT } from "./chat.js";
import { check } from "./check.js";
import { $, make, Tile } from "./tile.js";
import { renderSVG } from "./vendor/uqr.js";

const NEARBY = "nearby-"; // the prefix of the rooms of networks, which other networks cannot guess
const LOOK_MS = 3000; // between two polls of the other rooms
const MAX_NAME = 32; // characters; longer names are cut off
const ALONE_MS = 10_000; // without anybody, until the page says what may be wrong
const NUMBERS = ["", "", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"];
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
let wasInside = false; // whether the room of the address has been left
let unread = 0; // messages in the title
let explaining; // the timer of the text for those who are alone
const tiles = new Map(); // by peer
const opening = new Set(); // the ids of the buttons whose streams are being opened
const sent = new Map(); // streams by the id of the button

const topic = () => $("topic").value.trim();
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
  if (!topic()) $("topic").value = randomName();
  changed();
  complain("");
  try {
    here = room(topic(), { info: name() });
  } catch (error) {
    return complain(explain(error));
  }
  keep("inside", topic());
  chat = new Chat(here, nameOf, count);
  own = new Tile(shorten(name()), $("own"));
  const on = (event, act) => here.addEventListener(event, act);
  on("listed", refresh);
  on("join", ({ peer }) => {
    complain("");
    const tile = new Tile(nameOf(peer), $("tiles"), peer);
    tiles.set(peer, tile);
    tile.follow(peer.peerConnection, refresh);
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
  wasInside = true;
  complain("", "media-problem");
  complain("", "say-problem");
  refresh();
  present(false);
  $("enter").focus();
}

function present(inside) {
  document.body.classList.toggle("inside", inside);
  $("title").textContent = inside ? title() : "";
  $("room").hidden = !inside;
  $("start").hidden = inside || location.hash === "#check";
  count(0);
  showCard();
}

/** Count the messages that a hidden tab has received, in its title. */
function count(more = 1) {
  unread = more && document.hidden ? unread + more : 0;
  document.title = `${unread ? `(${unread}) ` : ""}${here ? title() : "tornado-signal: try it"}`;
}

/** Update what depends on who is here: names, the places of tiles, the status line, and the invitation. */
function refresh() {
  const names = [];
  for (const [peer, tile] of tiles) names.push((tile.name = nameOf(peer)));
  const number = Math.max(1, names.length);
  const columns = number < 2 ? 1 : number < 5 ? 2 : number < 10 ? 3 : 4;
  $("tiles").style.setProperty("--columns", columns);
  $("tiles").style.setProperty("--rows", Math.ceil(number / columns));
  const relayed = [...tiles.values()].filter(({ kind }) => kind === "Relayed").length;
  const way = relayed ? `, ${relayed} relayed` : names.length ? ", direct" : "";
  const who = here?.listed
    ? `${names.length + 1} here${way}`
    : `${names.length + 1} here. Others cannot find this page yet.`;
  $("status").textContent = !names.length && !here?.listed ? "Entering …" : who;
  $("status").title = names.join(", ");
  const alone = Boolean(here?.listed) && !names.length;
  const modal = $("invitation").matches(":modal");
  if (!here) $("invitation").close();
  else if (!modal) $("invitation").toggleAttribute("open", alone);
  clearTimeout(explaining);
  $("alone").hidden = true;
  if (alone) explaining = setTimeout(() => ($("alone").hidden = false), ALONE_MS);
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
  $("chat").classList.toggle("drop", over && event.type !== "drop");
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
      const rooms = listed.rooms.filter(({ name }) => !name.startsWith(NEARBY));
      const rows = rooms.map(({ name, members }) => {
        const item = make("li");
        item.append(make("button", `${name} (${members})`, { type: "button", onclick: () => go(name) }));
        return item;
      });
      if (!$("elsewhere").contains(document.activeElement)) $("elsewhere").replaceChildren(...rows);
      $("open").textContent = `Open rooms (${rooms.length})`;
      if (!here && linked()) {
        const named = await api.rooms({ prefix: topic(), limit: 1, signal });
        showCard(named.rooms.find(({ name }) => name === topic())?.members ?? 0);
      }
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
  count(0);
  if (!document.hidden) watchRooms(looking.signal);
}

/** Enter a room that was chosen. */
async function go(value) {
  await leave();
  $("topic").value = value;
  enter();
}

/** Show the card of the start: an invitation if the address names a room. */
function showCard(members) {
  const invited = Boolean(linked());
  document.body.classList.toggle("inviting", invited);
  document.body.classList.toggle("left", wasInside);
  $("invited").hidden = !invited;
  $("fresh").hidden = !invited;
  const there = members === 1 ? "One person is there." : `${NUMBERS[members] ?? members} people are there.`;
  const people = members === undefined ? "" : members ? there : "Nobody is there yet.";
  const begin = wasInside ? "You have left " : "You are invited to ";
  $("invited").replaceChildren(begin, make("strong", title()), ". ", people);
  $("enter").textContent = invited ? "Join" : $("named").hidden ? "Start a room" : "Enter";
}

/** Forget the room of the address. `named`: whether to ask for the name of another one. */
function forget(named) {
  history.replaceState(null, "", location.pathname + location.search);
  $("topic").value = "";
  $("named").hidden = !named;
  $("topic").required = named;
  $("by-name").ariaExpanded = String(named);
  showCard();
  $(named ? "topic" : "name").focus();
}

function howToOpen(withCode) {
  if (!LOOPBACK) return `${withCode ? "Scan this, or open" : "Open"} the link, and press Join:`;
  return (
    `A phone cannot open this page, because ${location.hostname} is this device itself. ` +
    "For other devices, serve it over HTTPS under a name that they can reach. " +
    "In a second window of this device, open the link, and press Join:"
  );
}

function changed() {
  keep("name", $("name").value.trim());
  if (!topic()) return;
  const link = new URL(location.href);
  link.hash = new URLSearchParams({ topic: topic() });
  history.replaceState(null, "", link);
  $("link").textContent = $("link").href = link.href;
  const fits = [...link.href].length <= 256 && !LOOPBACK;
  $("qr").hidden = !fits;
  const draw = () => renderSVG(link.href, { ecc: "M", border: 4 }); // the margin that readers need
  if (fits) $("qr").src = `data:image/svg+xml,${encodeURIComponent(draw())}`;
  $("how").textContent = howToOpen(fits);
}

const linked = () => new URLSearchParams(location.hash.slice(1)).get("topic") ?? "";

/** Show what the address names: the check, or a room. */
async function route() {
  const checking = location.hash === "#check";
  const checked = !$("check").hidden;
  const inside = here;
  if (checking || linked() !== topic()) await leave();
  $("check").hidden = !checking;
  $("start").hidden = checking || Boolean(here);
  if (checking) {
    $("back").hash = topic() && new URLSearchParams({ topic: topic() });
    $("check-title").focus();
    runCheck();
    return;
  }
  if (linked() !== topic()) {
    $("topic").value = linked();
    wasInside = false;
    if (inside) enter();
  }
  showCard();
  if (!here && (checked || linked())) $("enter").focus();
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

function randomName() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => (byte % 32).toString(32)).join("");
}

/** Enter the room of this device's network. */
async function enterNearby() {
  complain("");
  try {
    const { topic } = await api.nearby();
    if (here) return;
    $("topic").value = topic;
    enter();
  } catch (error) {
    complain(
      error.code === "not-found" ? "This server does not show which devices are in one network." : explain(error),
    );
  }
}

function begin() {
  $("name").value = kept("name") || `Guest ${Math.floor(1000 + Math.random() * 9000)}`;
  $("topic").value = linked();
  const origins = LOOPBACK ? " “localhost” and “127.0.0.1” are two different origins." : "";
  $("alone").textContent = `The origin of this page is ${location.origin}. Others need the same one.${origins}`;
  $("code").textContent = CODE;
  listen();
  showCard();
  const reason = unable();
  // Until now a click would have submitted the form.
  for (const id of ["enter", "nearby", "by-name"]) $(id).disabled = Boolean(reason);
  if (reason) {
    complain(reason);
  } else {
    look();
    api.version().then(
      ({ version }) => ($("version").textContent = `Version ${version.slice(0, 12)}`),
      () => {},
    );
  }
  if (location.hash === "#check") route();
  else if (!reason && topic() && kept("inside") === topic())
    enter(); // after a reload
  else if (linked()) $("name").select();
}

function listen() {
  const on = (id, event, act) => $(id).addEventListener(event, act);
  on("entry", "submit", (event) => {
    event.preventDefault();
    enter();
  });
  on("name", "change", changed);
  on("fresh", "click", () => forget(false));
  on("by-name", "click", () => forget($("named").hidden));
  on("open", "click", () => {
    $("open").ariaExpanded = String($("elsewhere").hidden);
    $("elsewhere").hidden = !$("elsewhere").hidden;
  });
  on("nearby", "click", enterNearby);
  on("leave", "click", leave);
  on("say", "submit", (event) => {
    event.preventDefault();
    say();
  });
  on("attach", "click", () => $("files").click());
  on("files", "change", ({ target }) => {
    if (here) send(target.files);
    target.value = "";
  });
  // A new line below the pointer is entered, and accepts files only if its "dragenter" does.
  for (const type of ["dragenter", "dragover", "dragleave", "drop"]) addEventListener(type, drop);
  for (const id of Object.keys(MEDIA)) on(id, "click", () => press(id));
  addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
    if (key.toLowerCase() !== "f" || ctrlKey || metaKey || altKey || target.matches("input, textarea")) return;
    const seen = [...tiles.values()];
    (seen.find((tile) => tile.pointed) ?? seen[0])?.enlarge();
  });
  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", look);
  on("again", "click", runCheck);
  on("copy-report", "click", () => copy($("copy-report"), $("report").value));
  on("invite", "click", () => {
    $("invitation").removeAttribute("open");
    $("invitation").showModal();
  });
  on("close", "click", () => $("invitation").close());
  on("invitation", "close", () => here && refresh());
  on("copy-code", "click", () => copy($("copy-code"), CODE));
  on("copy", "click", () => copy($("copy"), $("link").href));
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
