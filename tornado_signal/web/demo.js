// The demo page. It uses the same module as applications.

import { room, SignalClient } from "../client.js";
import { converse, say, send } from "./chat.js";
import { check } from "./check.js";
import { $, make, Tile } from "./tile.js";
import { renderSVG } from "./vendor/uqr.js";

const NEARBY = "nearby-"; // the prefix of the rooms of networks, which other networks cannot guess
const LOOK_MS = 3000; // between two polls of the other rooms
const NUMBERS = ["", "", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"];
const LOOPBACK = /^(localhost|.*\.localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);
const MEDIA = {
  camera: () => navigator.mediaDevices.getUserMedia({ video: true }),
  microphone: () => navigator.mediaDevices.getUserMedia({ audio: true }),
  screen: () => navigator.mediaDevices.getDisplayMedia({ video: true }),
};

// Texts for errors, by code or by name. Those of the module and of the browser explain all others.
const EXPLANATIONS = {
  "not-found": "This server does not show which devices are in one network.",
  "origin-not-allowed": "The server does not allow this page's origin (--allowed-origins).",
  NotFoundError: "not found",
  NotAllowedError: "not allowed. The browser's settings for this page can change that",
  TypeError: "not supported by this browser",
};

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
let topic = ""; // of the room
let kept = {}; // for a reload
let own; // this page's tile
let away = false; // whether the page complains about the server
let unread = 0; // messages in the title
const tiles = new Map(); // by peer
const sent = new Map(); // streams by the id of the button; null while it is being opened

try {
  kept = sessionStorage;
} catch {} // it is blocked

const linked = () => new URLSearchParams(location.hash.slice(1)).get("topic") ?? "";
const titleOf = (topic) => (topic.startsWith(NEARBY) ? $("nearby").textContent : topic);
const shorten = (text) => text.trim().replace(/^(.{31}).{2,}$/su, "$1…") || "Guest";
const name = () => shorten($("name").value);
const nameOf = ({ info }) => shorten(info);

function complain(text) {
  $("problem").textContent = text;
  away = false;
}

function trouble({ code, message, retryable }) {
  complain(EXPLANATIONS[code] ?? `${message}.`);
  away = retryable;
}

/** Return why this page cannot connect to others. */
function unable() {
  if (!globalThis.RTCPeerConnection) return "This browser has no WebRTC, so it cannot connect to others.";
  if (isSecureContext) return "";
  return (
    "Over plain HTTP a page at this address gets no camera, and the browser does not send its origin to the server. " +
    "Open this page over HTTPS, or on the server's own machine as http://localhost."
  );
}

function enter(to) {
  complain("");
  try {
    here = room(to, { info: name() });
  } catch (error) {
    return trouble(error);
  }
  topic = to;
  kept.inside = topic;
  history.replaceState(null, "", `#${new URLSearchParams({ topic })}`);
  converse(here, nameOf, count);
  own = new Tile(`${name()} (me)`, $("own"));
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
    tiles.get(peer).element.remove();
    tiles.delete(peer);
    refresh();
  });
  on("stream", ({ peer, stream }) => tiles.get(peer).show(stream));
  on("streamend", ({ peer, stream }) => tiles.get(peer).hide(stream));
  on("error", ({ error }) => trouble(error));
  on("close", left);
  invite(location.href);
  present();
  refresh();
  $("message").focus({ preventScroll: true });
}

function left() {
  for (const id of sent.keys()) stop(id);
  sent.clear();
  own.element.remove();
  here = undefined;
  $("invitation").close();
  present();
}

/** Put the link to the room into the invitation. Other devices cannot open one of a loopback name. */
function invite(link) {
  $("link").textContent = $("link").href = link;
  $("qr").hidden = link.length > 256 || LOOPBACK;
  if ($("qr").hidden) return;
  const code = renderSVG(link, { ecc: "M", border: 4 }); // the margin that readers need
  $("qr").src = `data:image/svg+xml,${encodeURIComponent(code)}`;
}

/** Update what depends on who is here: the places of tiles, the status line, and the invitation. */
function refresh() {
  if (!here) return;
  const names = [...tiles.values()].map((tile) => tile.name);
  const number = Math.max(1, names.length);
  const columns = Math.min(4, Math.ceil(Math.sqrt(number)));
  $("tiles").style.setProperty("--columns", columns);
  $("tiles").style.setProperty("--rows", Math.ceil(number / columns));
  const relayed = [...tiles.values()].filter(({ kind }) => kind === "Relayed").length;
  const way = relayed ? `, ${relayed} relayed` : names.length ? ", direct" : "";
  $("status").textContent = here.listed ? `${names.length + 1} here${way}` : "Entering …";
  $("status").title = names.join(", ");
  const alone = here.listed && !names.length;
  if (!$("invitation").matches(":modal")) $("invitation").toggleAttribute("open", alone);
}

/** Count the messages that a hidden tab has received, in its title. */
function count(more = 1) {
  unread = more && document.hidden ? unread + more : 0;
  document.title = `${unread ? `(${unread}) ` : ""}${here ? titleOf(topic) : "tornado-signal: try it"}`;
}

/** Send files that are dropped. The browser would open them instead of the page. */
function drop(event) {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  if (event.type === "drop" && here) [...event.dataTransfer.files].forEach(send);
}

async function press(id) {
  if (sent.has(id)) return stop(id);
  complain("");
  const entered = here;
  sent.set(id, null); // a disabled button would lose the focus
  try {
    const stream = await MEDIA[id]();
    if (here !== entered) return end(stream);
    sent.set(id, stream);
    for (const track of stream.getTracks()) track.onended = () => stop(id); // by the browser
    here.addStream(stream);
    own.show(stream);
    $(id).ariaPressed = "true";
  } catch (error) {
    if (here !== entered) return;
    sent.delete(id);
    complain(`${$(id).textContent} ${EXPLANATIONS[error.name] ?? `not available: ${error.message}`}.`);
  }
}

function stop(id) {
  const stream = sent.get(id);
  if (!stream) return;
  sent.delete(id);
  here.removeStream(stream);
  own.hide(stream);
  end(stream);
  $(id).ariaPressed = "false";
}

function end(stream) {
  for (const track of stream.getTracks()) track.stop();
}

/** Look which rooms there are, as long as the page is looked at. */
async function watchRooms() {
  for (;;) {
    if (!document.hidden) await look(linked()).catch(trouble);
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

async function look(prefix) {
  const listed = await api.rooms({ prefix, limit: 50 });
  if (away) complain("");
  if (here || prefix !== linked()) return;
  if (prefix) return showCard(listed.rooms.find(({ name }) => name === prefix)?.members ?? 0);
  const rooms = listed.rooms.filter(({ name }) => !name.startsWith(NEARBY));
  $("open").textContent = `Open rooms (${rooms.length})`;
  if ($("elsewhere").contains(document.activeElement)) return;
  $("elsewhere").replaceChildren(
    ...rooms.map(({ name, members }) => {
      const item = make("li");
      item.append(make("button", `${name} (${members})`, { type: "button", onclick: () => enter(name) }));
      return item;
    }),
  );
}

/** Show what is looked at: a room, the check, an invitation, or the start. */
function present() {
  document.body.className = here ? "inside" : location.hash === "#check" ? "checking" : linked() && "invited";
  $("title").textContent = titleOf(topic);
  for (const id of ["named", "elsewhere"]) $(id).hidePopover();
  count(0);
  showCard();
}

function showCard(members) {
  const there = members === 1 ? "One person is there." : `${NUMBERS[members] ?? members} people are there.`;
  const people = members === undefined ? "" : members ? there : "Nobody is there yet.";
  $("invited").replaceChildren("You are invited to ", make("strong", titleOf(linked())), ". ", people);
  $("enter").textContent = linked() ? "Join" : "Start a room";
}

/** Go to what the address names. */
async function route(event) {
  const moved = here && linked() !== topic;
  if (moved) await here.leave();
  if (here) return;
  const inside = moved ? linked() : kept.inside; // before a reload
  kept.inside = "";
  complain(unable());
  present();
  if (location.hash === "#check") {
    $("check-title").focus();
    check(api);
  } else if (linked() && linked() === inside) enter(inside);
  else if (linked()) $("name").select();
  else if (event) $("enter").focus();
}

async function copy({ target }) {
  await navigator.clipboard.writeText($(target.value).textContent);
  target.textContent = "Copied";
}

function listen() {
  const on = (id, event, act) => $(id).addEventListener(event, act);
  on("entry", "submit", () => enter(linked() || crypto.randomUUID().slice(-12)));
  on("named", "submit", () => enter($("topic").value.trim()));
  on("name", "change", () => (kept.name = $("name").value));
  on("nearby", "click", () => api.nearby().then(({ topic }) => here || enter(topic), trouble));
  on("leave", "click", () => (location.hash = ""));
  on("say", "submit", () => {
    say($("message").value);
    $("message").value = "";
    $("message").focus();
  });
  on("files", "change", ({ target }) => {
    [...target.files].forEach(send);
    target.value = "";
  });
  // A new line below the pointer is entered, and accepts files only if its "dragenter" does.
  for (const type of ["dragenter", "dragover", "drop"]) addEventListener(type, drop);
  for (const id of Object.keys(MEDIA)) on(id, "click", () => press(id));
  addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
    if (key.toLowerCase() !== "f" || ctrlKey || metaKey || altKey || target.matches("input")) return;
    const find = (selector) => $("tiles").querySelector(selector);
    (find('[aria-pressed="true"]') ?? find(":is(:hover, :focus-within) > .enlarge") ?? find(".enlarge"))?.click();
  });
  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => count(0));
  on("again", "click", () => check(api));
  on("invite", "click", () => {
    $("invitation").removeAttribute("open");
    $("invitation").showModal();
  });
  on("invitation", "close", refresh);
  for (const button of document.querySelectorAll(".copy")) button.onclick = (event) => copy(event).catch(trouble);
}

function begin() {
  $("name").value = kept.name || `Guest ${Math.floor(1000 + Math.random() * 9000)}`;
  const phones = `A phone cannot open this page, because ${location.hostname} is this device itself.`;
  if (LOOPBACK) $("alone").textContent = `${phones} “localhost” and “127.0.0.1” are two different origins.`;
  $("code").textContent = CODE;
  listen();
  route();
  if (unable()) return;
  for (const id of ["enter", "nearby", "by-name"]) $(id).disabled = false;
  watchRooms();
  api.version().then(({ version }) => ($("version").textContent = `Version ${version.slice(0, 12)}`), trouble);
}

begin();
