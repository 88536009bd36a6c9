// The demo page. It uses the same module as applications.

import { room, SignalClient, SignalError } from "../client.js";
import { Chat } from "./chat.js";
import { $, make, Tile } from "./tile.js";
import { renderSVG } from "./vendor/uqr.js";

const LOOK_MS = 3000; // between two looks at the other rooms
const ROOM = "room/"; // what the topic of a room begins with on the server
const MEDIA = {
  camera: ["the camera", () => navigator.mediaDevices.getUserMedia({ video: true })],
  microphone: ["the microphone", () => navigator.mediaDevices.getUserMedia({ audio: true })],
  screen: ["the screen", () => navigator.mediaDevices.getDisplayMedia({ video: true })],
};

const api = new SignalClient(new URL("..", import.meta.url));
let here; // the room
let chat;
let own; // this page's tile
let away = false; // whether the server could not do what it was asked last
let looking = new AbortController();
const sent = new Map(); // streams by the id of the button

const topic = () => $("topic").value.trim() || "lobby";
const name = () => $("name").value.trim() || "Guest";

function complain(text, where = "problem") {
  $(where).textContent = text;
  $(where).hidden = !text;
}

// Error texts for people.

function explain(error) {
  if (error instanceof SignalError) {
    if (error.status === 429) return "The server says that there were too many requests. It goes on in a moment.";
    if (error.status === 503) return "The server cannot serve any page just now. It is asked again in a moment.";
    if (error.status === 403) return "The server does not let this page in (--allowed-origins).";
    return `The server refused: ${error.message}.`;
  }
  if (["TypeError", "TimeoutError"].includes(error.name)) {
    return "The server cannot be reached, or does not let this page in. It is asked again and again.";
  }
  return `${error.message}. If this goes on, a TURN server that relays for both may help (--turn-servers).`;
}

function trouble(error) {
  away = error instanceof SignalError || ["TypeError", "TimeoutError"].includes(error.name);
  complain(explain(error));
}

function unable() {
  if (!globalThis.RTCPeerConnection) return "This browser has no WebRTC, so it cannot connect to others.";
  if (!isSecureContext) {
    return (
      "Over plain HTTP a browser does not say which page asks, and then the server cannot answer. " +
      "Open this page over HTTPS, or on the server's own machine as http://localhost."
    );
  }
  return "";
}

// In the room.

function enter() {
  const tiles = new Map(); // by peer
  here = room(topic(), { info: name() });
  chat = new Chat();
  own = new Tile(`${name()} (you)`, { muted: true });
  $("log").replaceChildren();
  const on = (event, act) => here.addEventListener(event, act);
  on("listed", status);
  on("join", ({ peer }) => {
    complain("");
    $("invitation").open = false;
    const tile = new Tile(peer.info);
    tiles.set(peer, tile);
    tile.follow(peer.peerConnection);
    chat.join(peer);
    status();
  });
  on("leave", ({ peer }) => {
    tiles.get(peer).remove();
    tiles.delete(peer);
    chat.leave(peer);
    status();
  });
  on("message", ({ peer, data }) => chat.take(peer, data));
  on("stream", ({ peer, stream }) => tiles.get(peer).show(stream));
  on("streamend", ({ peer, stream }) => tiles.get(peer).hide(stream));
  on("error", ({ error }) => trouble(error));
  on("close", left);
  present(true);
  status();
  $("say").querySelector("input").focus({ preventScroll: true });
}

function left() {
  for (const id of sent.keys()) stop(id);
  own.remove();
  here = undefined;
  present(false);
  status();
}

function present(inside) {
  document.body.classList.toggle("inside", inside);
  $("room").hidden = $("leave").hidden = !inside;
  $("entry").hidden = inside;
  if (!inside) $("invitation").open = true;
}

function status() {
  const text = () => {
    if (!here) return "You are not in a room.";
    const where = `in “${topic()}” as ${name()}`;
    if (!here.listed) return `Entering “${topic()}” …`;
    const names = [...here.peers.values()].map(({ info }) => info);
    if (!names.length) return `You are listed ${where}. No other page is here yet.`;
    return `You are listed ${where}, and connected with ${names.join(", ")}.`;
  };
  $("status").textContent = text();
}

// Camera, microphone and screen.

async function press(id) {
  complain("", "media-problem");
  if (sent.has(id)) return stop(id);
  const [what, open] = MEDIA[id];
  const entered = here;
  $(id).disabled = true;
  try {
    const stream = await open();
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
    complain(refusal(what, error), "media-problem");
  } finally {
    $(id).disabled = false;
  }
}

function refusal(what, { name: kind, message }) {
  if (kind === "NotAllowedError") return `The browser does not let this page use ${what}.`;
  if (kind === "NotFoundError") return `The browser finds nothing to use as ${what}.`;
  return `The browser cannot use ${what}: ${message}.`;
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
      const { topics } = await api.topics({ limit: 50, signal });
      const rooms = topics
        .filter((each) => each.topic.startsWith(ROOM))
        .map((each) => ({ value: each.topic.slice(ROOM.length), count: each.count }));
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

/** Enter another room, if this page is in one. */
async function go(value) {
  const inside = here;
  await inside?.leave();
  $("topic").value = value;
  changed();
  if (inside) enter();
}

function changed() {
  const link = new URL(location.href);
  link.hash = new URLSearchParams({ topic: topic() });
  history.replaceState(null, "", link);
  $("link").textContent = $("link").href = link.href;
  const fits = [...link.href].length <= 256;
  $("qr").hidden = !fits;
  const draw = () => renderSVG(link.href, { ecc: "M", border: 4 }); // the margin that readers need
  if (fits) $("qr").src = `data:image/svg+xml,${encodeURIComponent(draw())}`;
  try {
    sessionStorage.setItem("name", $("name").value.trim());
  } catch {
    // Not everywhere may a page keep something.
  }
}

function begin() {
  let kept;
  try {
    kept = sessionStorage.getItem("name");
  } catch {
    kept = null;
  }
  const linked = () => new URLSearchParams(location.hash.slice(1)).get("topic") || "lobby";
  $("name").value = kept || `Guest ${Math.floor(1000 + Math.random() * 9000)}`;
  $("topic").value = linked();
  $("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    complain("");
    changed();
    enter();
  });
  $("name").addEventListener("change", changed);
  $("topic").addEventListener("change", changed);
  $("leave").addEventListener("click", () => here.leave());
  $("say").addEventListener("submit", (event) => {
    event.preventDefault();
    const input = $("say").querySelector("input");
    chat.say(input.value);
    input.value = "";
  });
  $("files").addEventListener("change", ({ target }) => {
    for (const file of target.files) chat.send(file);
    target.value = "";
  });
  for (const id of Object.keys(MEDIA)) $(id).addEventListener("click", () => press(id));
  addEventListener("hashchange", () => linked() !== topic() && go(linked()));
  document.addEventListener("visibilitychange", look);
  $("copy").addEventListener("click", () =>
    navigator.clipboard.writeText($("link").href).then(
      () => ($("copy").textContent = "Copied"),
      () => ($("copy").textContent = "The browser does not let this page copy"),
    ),
  );
  const reason = unable();
  if (reason) {
    complain(reason);
    for (const button of document.querySelectorAll("button")) button.disabled = true;
  } else {
    changed();
    look();
  }
}

begin();
