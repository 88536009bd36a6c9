// The page to try the server: all that it does goes through the module that applications use too.

import { join, publish, SignalClient, SignalError } from "../client.js";
import { $, make, shortName, show } from "./card.js";
import { renderSVG } from "./vendor/uqr.js";

const LOOK_MS = 3000; // between two looks at what cannot be streamed
const STEPS = {
  peers: "looked who is there",
  trying: "chose a peer",
  offer: "described this side",
  published: "was listed",
  answered: "got the answer",
  answer: "described this side",
  accepted: "gave the answer",
  taken: "another one was faster",
  failed: "failed",
  "candidates sent": "sent addresses",
  "candidates received": "got addresses",
  connecting: "began to connect",
  connected: "connected",
  open: "channel open",
};

const api = new SignalClient(new URL("..", import.meta.url));
const tag = Math.random().toString(16).slice(2, 6); // two people may have one name, and then still meet
const steps = new Map(); // of each RTCPeerConnection: [what, when]
let publication;
let looking = new AbortController();

const topic = () => $("topic").value.trim() || "lobby";
const info = () => `${$("name").value.trim() || "somebody"} · ${tag}`;

const say = (text) => ($("status").textContent = text);

function complain(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function present(connection, before = []) {
  const { peerConnection } = connection;
  const done = [...before, ...(steps.get(peerConnection)?.done ?? [])];
  steps.delete(peerConnection);
  show(connection, { name: $("name").value.trim(), steps: done, say, complain });
}

// What goes wrong, in words.

function explain(error) {
  if (error instanceof SignalError) {
    if (error.status === 429) return "The server says that there were too many requests. It goes on in a moment.";
    if (error.status === 503) return "The server cannot serve anybody just now. It is asked again in a moment.";
    if (error.status === 403) return "The server does not let this page in (--allowed-origins).";
    return `The server refused: ${error.message}.`;
  }
  if (["TypeError", "TimeoutError"].includes(error.name)) {
    return "The server cannot be reached, or does not let this page in. It is asked again and again.";
  }
  return `${error.message}. If this goes on, a TURN server that relays for both may help (--turn-servers).`;
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

// Being found.

function listen() {
  const began = performance.now();
  publication = publish(topic(), {
    info: info(),
    onstep(name, detail, connection) {
      if (name === "published") say(`You are listed in “${topic()}”. Others can join you.`);
      // Of an offer that waits, time counts from its answer.
      if (name === "answered") steps.set(connection, { began: performance.now(), done: [] });
      note(connection, name, detail, began);
    },
  });
  publication.addEventListener("connection", ({ connection }) => {
    complain("");
    present(connection);
  });
  publication.addEventListener("error", ({ error }) => complain(explain(error)));
  publication.addEventListener("close", () => {
    say("You are not listed.");
    pressed(false);
  });
  pressed(true);
  say("Being listed …");
}

function pressed(on) {
  $("publish").setAttribute("aria-pressed", on);
  $("publish").textContent = on ? "Stop being found" : "Be found";
}

function note(connection, name, detail, began) {
  if (!connection) return;
  if (!steps.has(connection)) steps.set(connection, { began, done: [] });
  const text = typeof detail === "number" ? `${STEPS[name] ?? name} (${detail})` : (STEPS[name] ?? name);
  const { began: from, done } = steps.get(connection);
  done.push([text, performance.now() - from]);
}

// Joining.

async function call(wanted) {
  const began = performance.now();
  const before = [];
  let reason;
  say(`Joining ${shortName(wanted)} …`);
  complain("");
  const busy = (on) => $("peers").querySelectorAll("button").forEach((button) => (button.disabled = on));
  busy(true);
  try {
    const connection = await join(topic(), {
      info: info(),
      wait: false,
      choose: (sessions) => sessions.sort((a, b) => (b.info === wanted) - (a.info === wanted)),
      onstep(name, detail, link) {
        if (name === "trying" && before.length > 1) say(`Joining ${shortName(detail)} instead …`);
        if (name === "failed") reason = detail;
        if (link) note(link, name, detail, began);
        else before.push([STEPS[name] ?? name, performance.now() - began]);
      },
    });
    if (connection) {
      say(`Connected to ${shortName(connection.info)}.`);
      present(connection, before);
    } else {
      say("Nobody could be joined.");
      const gone = `${shortName(wanted)} is gone, or another one was faster; nobody else is here.`;
      complain(reason ? explain(reason) : gone);
    }
  } catch (error) {
    say("Nobody could be joined.");
    complain(explain(error));
  } finally {
    busy(false);
  }
}

// Who is there.

async function watchPeers(signal) {
  const there = new Map();
  const draw = () => {
    const own = info();
    const others = [...there.values()].filter((session) => session.info !== own);
    $("nobody").hidden = others.length > 0;
    const rows = others.map((session) => {
      const row = make("li", "");
      const button = make("button", "Join", { type: "button", onclick: () => call(session.info) });
      button.setAttribute("aria-label", `Join ${shortName(session.info)}`);
      row.append(make("span", shortName(session.info)), button);
      return row;
    });
    const focused = document.activeElement?.getAttribute("aria-label");
    $("peers").replaceChildren(...rows);
    if (focused) [...$("peers").querySelectorAll("button")].find((each) => each.ariaLabel === focused)?.focus();
  };
  while (!signal.aborted) {
    try {
      there.clear();
      const { sessions } = await api.sessions(topic(), { limit: 100, signal });
      for (const session of sessions) there.set(session.code, session);
      draw();
      for await (const { type, data } of api.events(topic(), { signal })) {
        if (type === "gone") there.delete(data.code);
        else there.set(data.code, data);
        draw();
      }
    } catch (error) {
      if (signal.aborted) return;
      // A server without streams is looked at now and then.
      if (error.status !== 404) complain(explain(error));
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }
}

async function watchTopics(signal) {
  let troubled = false;
  while (!signal.aborted) {
    try {
      const { topics } = await api.topics({ limit: 50, signal });
      const buttons = topics.map((each) => {
        const item = make("li");
        const onclick = () => enter(each.topic);
        item.append(make("button", `${each.topic} (${each.count})`, { type: "button", onclick }));
        return item;
      });
      if (!$("elsewhere").contains(document.activeElement)) $("elsewhere").replaceChildren(...buttons);
      $("topics").replaceChildren(...topics.map(({ topic: value }) => make("option", "", { value })));
      if (troubled) complain("");
      troubled = false;
    } catch (error) {
      if (signal.aborted) return;
      troubled = true;
      complain(explain(error));
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

/** Look at what is there, as long as somebody looks at this page: a browser opens six connections to a server. */
function look() {
  looking.abort();
  looking = new AbortController();
  if (document.hidden) return;
  watchPeers(looking.signal);
  watchTopics(looking.signal);
}

function enter(name) {
  $("topic").value = name;
  changed();
}

function changed() {
  const link = new URL(location.href);
  link.hash = new URLSearchParams({ topic: topic() });
  history.replaceState(null, "", link);
  $("where").textContent = `“${topic()}”`;
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
  if (publication && $("publish").ariaPressed === "true") {
    publication.close();
    listen();
  }
  look();
}

function begin() {
  let kept;
  try {
    kept = sessionStorage.getItem("name");
  } catch {
    kept = null;
  }
  $("name").value = kept || `Guest ${Math.floor(1000 + Math.random() * 9000)}`;
  $("topic").value = new URLSearchParams(location.hash.slice(1)).get("topic") || "lobby";
  $("me").addEventListener("submit", (event) => {
    event.preventDefault();
    if ($("publish").ariaPressed === "true") publication.close();
    else listen();
  });
  $("name").addEventListener("change", changed);
  $("topic").addEventListener("change", changed);
  addEventListener("hashchange", () => enter(new URLSearchParams(location.hash.slice(1)).get("topic") || "lobby"));
  document.addEventListener("visibilitychange", look);
  $("copy").addEventListener("click", () =>
    navigator.clipboard.writeText($("link").href).then(
      () => ($("copy").textContent = "Copied"),
      () => complain("The browser does not let this page copy; the link is beside the button."),
    ),
  );
  const reason = unable();
  if (reason) {
    complain(reason);
    for (const button of document.querySelectorAll("button")) button.disabled = true;
  } else {
    changed();
  }
}

begin();
