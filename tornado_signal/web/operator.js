/* The page of the admin listener: shows the lines of /status and performs actions. See docs/operator-page.md. */

const INTERVAL_S = 2;
const KEPT = (15 * 60) / INTERVAL_S + 1; // messages for the charts
const LEAST_MS = 60_000; // the time of a chart at first
const RETRY_MS = 3000;
const TOKEN = "tornado-signal admin token"; // its name in the storage of the tab
const ROWS = 20; // of a table with several servers
const LOG_ROWS = 100;

/** @param {string} id */
const find = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const summary = find("summary");
const chooser = /** @type {HTMLSelectElement} */ (find("chosen"));
const all = /** @type {HTMLInputElement} */ (find("all"));
const token = () => sessionStorage.getItem(TOKEN);

/**
 * @typedef {{ time: string, level: string, logger: string, message: string }} Line
 * @typedef {{ bounds: number[], counts: number[] }} Histogram
 * @typedef {Record<string, number> & {
 *   wake_up_seconds: Histogram, loop_lag_seconds: Histogram, redis_seconds: Histogram | null,
 * }} Figures
 * @typedef {{ requests: number, refused: number, failed: number }} Counts
 * @typedef {Counts & { client: string, origin: string, minute: Counts }} Recent
 * @typedef {{ watchers: number, held_offers: number, websockets: Record<string, number> }} Use
 * @typedef {{ address: string, connections: number, waiting: number, held_offers: number,
 *   used: Record<string, number> }} Address
 * @typedef {{
 *   id: string, server: string, worker: number, version: string, state: string, started_s: number, figures: Figures,
 *   refusals: [number, string, number, number][], clients: Recent[], recent_origins: Recent[],
 *   refused_origins?: Recent[], addresses: Address[], blocks: [string, number][],
 *   origins: (Use & { origin: string })[], topics: (Use & { origin: string, topic: string })[] | null,
 *   settings: Record<string, { value: string, source: string | null }>,
 *   log: Line[],
 * }} Process
 * @typedef {{
 *   origins: { origin: string, unanswered_sessions: number, topics: number }[],
 *   topics: { origin: string, topic: string, unanswered_sessions: number }[] | null,
 * }} Stored
 * @typedef {{ time: number, processes: Process[], missing: string[], store: Stored | null, log: Line[] }} Message
 * @typedef {{ time: number, figures: Map<string, Figures> }} Sample
 */

// Figures

/** @typedef {"wake_up_seconds" | "loop_lag_seconds" | "redis_seconds"} HistogramName */

/**
 * Return the values that were observed between two samples by range, and the bounds of the ranges.
 *
 * @param {HistogramName} name
 * @param {Figures[]} now
 * @param {Figures[]} before
 */
function observed(name, now, before) {
  const bounds = now[0][name]?.bounds ?? [];
  const counts = [...bounds, 0].map((_, at) =>
    now.reduce(
      (sum, figures, index) => sum + (figures[name]?.counts[at] ?? 0) - (before[index][name]?.counts[at] ?? 0),
      0,
    ),
  );
  return { bounds, counts, total: counts.reduce((sum, count) => sum + count, 0) };
}

/**
 * Return the upper bound below which a share of the values was observed between two samples, in milliseconds.
 *
 * @param {HistogramName} name
 * @param {number} share
 */
const within = (name, share) => (/** @type {Figures[]} */ now, /** @type {Figures[]} */ before) => {
  const { bounds, counts, total } = observed(name, now, before);
  let below = 0;
  const place = counts.findIndex((count) => (below += count) >= share * total);
  return total > 0 ? 1000 * (bounds[place] ?? Number.NaN) : Number.NaN;
};

/**
 * Return the sum of all processes.
 *
 * @param {string} name
 */
const sum = (name) => (/** @type {Figures[]} */ now) => now.reduce((total, figures) => total + figures[name], 0);

/**
 * Return a number of the store, which all processes share.
 *
 * @param {string} name
 */
const shared = (name) => (/** @type {Figures[]} */ now) =>
  Math.max(...now.map((figures) => figures[name] ?? Number.NaN));

/**
 * Return the increase per second. A process that has restarted counts from 0.
 *
 * @param {string} name
 */
const rate = (name) => (/** @type {Figures[]} */ now, /** @type {Figures[]} */ before, /** @type {number} */ seconds) =>
  now.reduce((total, figures, index) => total + Math.max(0, figures[name] - before[index][name]), 0) / seconds;

/** @typedef {(now: Figures[], before: Figures[], seconds: number) => number} Value */
/** @type {{ name: string, unit: string, value: Value, redis?: boolean }[]} */
const FIGURES = [
  { name: "Requests", unit: "/s", value: rate("requests_total") },
  { name: "Pairs", unit: "/s", value: rate("answered_total") },
  { name: "Refused requests", unit: "/s", value: rate("refusals_total") },
  { name: "Errors (5xx)", unit: "/s", value: rate("failed_total") },
  { name: "Internal errors", unit: "/s", value: rate("defects_total") },
  {
    name: "Redis calls",
    unit: "/s",
    value: (now, before, seconds) => observed("redis_seconds", now, before).total / seconds,
    redis: true,
  },
  { name: "Redis calls, 99 % within", unit: " ms", value: within("redis_seconds", 0.99), redis: true },
  { name: "Failed calls of Redis", unit: "/s", value: rate("redis_failed_total"), redis: true },
  { name: "Waiting requests", unit: "", value: sum("waiting_requests") },
  { name: "Connections", unit: "", value: sum("connections") },
  { name: "WebSockets", unit: "", value: sum("websockets") },
  { name: "Unanswered sessions", unit: "", value: shared("unanswered_sessions") },
  { name: "Held offers", unit: "", value: sum("held_offers") },
  { name: "Wake-up time, half within", unit: " ms", value: within("wake_up_seconds", 0.5) },
  { name: "Wake-up time, 99 % within", unit: " ms", value: within("wake_up_seconds", 0.99) },
  { name: "Loop lag, 99 % within", unit: " ms", value: within("loop_lag_seconds", 0.99) },
  { name: "CPU", unit: " %", value: (...samples) => 100 * rate("cpu_seconds_total")(...samples) },
  { name: "Memory", unit: " MiB", value: (now) => sum("memory_bytes")(now) / 2 ** 20 },
  { name: "Store", unit: " MiB", value: (now) => shared("store_bytes")(now) / 2 ** 20 },
];

/** @param {number} value */
function short(value) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en", value < 100 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 });
}

// Elements

/**
 * @param {string} name
 * @param {Record<string, string>} attributes
 * @param {...(Node | string)} children
 */
function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** @param {string} name @param {Record<string, string>} attributes */
function draws(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/**
 * @typedef {{ card: HTMLElement, value: HTMLElement, most: HTMLElement, from: HTMLElement, to: HTMLElement,
 *   line: Element, marks: Element }} Chart
 */
/** @type {Map<string, Chart>} */
const charts = new Map();
for (const { name } of FIGURES) {
  const [value, most, from, to] = ["strong", "span", "time", "time"].map((kind) => make(kind));
  const drawing = draws("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  const [marks, line] = [draws("g"), draws("polyline")];
  drawing.append(marks, line);
  const times = make("div", { class: "scale" }, from, to);
  const card = make("li", {}, name, value, make("div", { class: "scale" }, most), drawing, times);
  find("figures").append(card);
  charts.set(name, { card, value, most, from, to, line, marks });
}

/** @param {number} time */
const clock = (time) => new Date(time).toTimeString().slice(0, 8);

/**
 * Draw a chart with its largest value, the times of its ends, and the marks.
 *
 * @param {string} name
 * @param {{ time: number, value: number }[]} points
 * @param {string} unit
 */
function draw(name, points, unit) {
  const { value, most, from, to, line, marks: drawn } = /** @type {Chart} */ (charts.get(name));
  const last = points.at(-1)?.value ?? Number.NaN;
  value.textContent = Number.isFinite(last) ? short(last) + unit : "–";
  const finite = points.filter((point) => Number.isFinite(point.value));
  const largest = Math.max(...finite.map((point) => point.value), 0);
  const end = samples.at(-1)?.time ?? 0;
  const begin = Math.min(samples[0]?.time ?? 0, end - LEAST_MS);
  const across = (/** @type {number} */ time) => (1000 * (time - begin)) / (end - begin);
  most.textContent = `highest ${short(largest)}${unit}`;
  from.textContent = clock(begin);
  to.textContent = clock(end);
  const places = finite.map((point) => `${across(point.time).toFixed(1)},${100 - (96 * point.value) / (largest || 1)}`);
  line.setAttribute("points", places.join(" "));
  drawn.replaceChildren(
    ...marks.map(({ time }) => {
      const x = across(time).toFixed(1);
      return draws("line", { x1: x, x2: x, y1: "0", y2: "100" });
    }),
  );
}

/** @type {Map<string, string>} */
const shown = new Map(); // the content of each table

/**
 * Fill a table, unless it shows the same. Columns whose heading begins with # have numbers.
 *
 * @param {string} id
 * @param {string[]} headings
 * @param {(string | number | Node)[][]} rows
 * @param {string} empty
 */
function fill(id, headings, rows, empty) {
  const table = find(id);
  const label = (/** @type {unknown} */ cell) => (cell instanceof Element ? cell.outerHTML : cell);
  const content = JSON.stringify([headings, rows.map((row) => row.map(label))]);
  if (shown.get(id) === content) return;
  shown.set(id, content);
  const focused = table.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
  const kind = (/** @type {number} */ column) => (headings[column].startsWith("#") ? { class: "number" } : {});
  const head = headings.map((text, column) => make("th", { scope: "col", ...kind(column) }, text.replace("#", "")));
  const body = rows.map((row) => {
    const cells = row.map((cell, column) => make("td", kind(column), typeof cell === "number" ? short(cell) : cell));
    return make("tr", {}, ...cells);
  });
  const none = make("tr", {}, make("td", { colspan: String(headings.length), class: "quiet" }, empty));
  const rest = body.length ? body : [none];
  table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rest));
  if (focused) [...table.querySelectorAll("button")].find((button) => button.ariaLabel === focused)?.focus();
}

/** @param {number} seconds */
function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86_400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

// Actions

/**
 * Return a button that performs an action.
 *
 * @param {string} text
 * @param {string} label
 * @param {string} name
 * @param {Record<string, unknown>} fields
 */
function button(text, label, name, fields) {
  const made = make("button", { type: "button", "aria-label": label }, text);
  made.addEventListener("click", () => act(name, fields, `${label}?`));
  return made;
}

/** @param {(string | number | Node)[]} cells */
const withActions = (...cells) => (token() ? cells : []);

/** @param {Record<string, unknown>} result */
const phrase = (result) =>
  Object.entries(result)
    .filter(([name]) => name !== "process")
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`)
    .join(", ");

/**
 * Ask a question, and return whether the response is yes. Each question has a dialog of its own, because the `close` event
 * of an earlier one can be late.
 *
 * @param {string} text
 */
async function confirmed(text) {
  const dialog = /** @type {HTMLDialogElement} */ (make("dialog", { "aria-label": text }));
  const no = make("button", { value: "", autofocus: "" }, "Cancel");
  dialog.append(
    make("form", { method: "dialog" }, make("p", {}, text), make("button", { value: "yes" }, "Yes"), " ", no),
  );
  document.body.append(dialog);
  const closed = new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  dialog.showModal();
  await closed;
  dialog.remove();
  return dialog.returnValue === "yes";
}

/**
 * Ask, perform an action, and show its result.
 *
 * @param {string} name
 * @param {Record<string, unknown>} fields
 * @param {string} text
 */
async function act(name, fields, text) {
  if (!(await confirmed(text))) return;
  const outcome = find("outcome");
  outcome.hidden = false;
  outcome.className = "";
  outcome.textContent = "In progress.";
  const body = JSON.stringify(fields);
  try {
    const response = await fetch(`actions/${name}`, { method: "POST", headers: authorization(), body });
    const { results, missing, error, reason } = await response.json();
    if (!response.ok) throw new Error(error ?? reason);
    const lines = results.map(
      (/** @type {Record<string, unknown>} */ result) => `${result.process}: ${phrase(result)}`,
    );
    for (const process of missing) lines.push(`${process} did not respond`);
    outcome.className = missing.length ? "bad" : "";
    outcome.textContent = `${text.replace("?", "")}: ${lines.join("; ")}`;
  } catch (error) {
    outcome.className = "bad";
    outcome.textContent = `${text.replace("?", "")} failed: ${error instanceof Error ? error.message : error}`;
  }
}

/** @returns {Record<string, string>} */
const authorization = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

find("block").addEventListener("submit", (event) => {
  event.preventDefault();
  const fields = new FormData(/** @type {HTMLFormElement} */ (event.target));
  const address = String(fields.get("address")).trim();
  act("block", { address, seconds: Number(fields.get("seconds")) }, `Block ${address}?`);
});
find("disconnect").addEventListener("submit", (event) => {
  event.preventDefault();
  const entries = [...new FormData(/** @type {HTMLFormElement} */ (event.target))];
  const fields = Object.fromEntries(
    entries.map(([name, value]) => [name, String(value).trim()]).filter(([, value]) => value),
  );
  act("disconnect", fields, `Disconnect the clients of ${Object.values(fields).join(", ")}?`);
});
find("log-level").addEventListener("submit", (event) => {
  event.preventDefault();
  const level = new FormData(/** @type {HTMLFormElement} */ (event.target)).get("level");
  act("log-level", { level }, `Change the log level of this server to ${level}?`);
});
find("compact").addEventListener("click", () => act("compact", {}, "Compact the store?"));
find("drain").addEventListener("click", () => act("drain", {}, "Drain and stop this server?"));

// Messages

/** @type {Sample[]} */
const samples = [];
/** @type {Map<string, Process>} */
const known = new Map(); // the latest of what the stream does not repeat
/** @type {Message | undefined} */
let latest;

/** @type {{ time: number, text: string }[]} */
const marks = []; // what happened while the charts were drawn
/** @type {Map<string, string>} */
const running = new Map(); // the processes of the latest message by id, with their names
let lastAction = "";

/**
 * Mark what has happened since the last message: processes that have started or ended, failovers, and actions.
 *
 * @param {Message} message
 * @param {Sample | undefined} before
 */
function mark(message, before) {
  const { time, processes } = message;
  const actions = [...message.log, ...processes.flatMap(({ log }) => log)]
    .filter(({ message }) => message.startsWith("operator at "))
    .sort((a, b) => a.time.localeCompare(b.time));
  if (before) {
    for (const process of processes) {
      if (!running.has(process.id)) {
        marks.push({ time, text: `${nameOf(process)} has started, version ${process.version.slice(0, 12)}` });
      }
      const failovers = (/** @type {Sample} */ sample) => sample.figures.get(process.id)?.redis_failovers_total ?? 0;
      const number = (process.figures.redis_failovers_total ?? 0) - failovers(before);
      if (running.has(process.id) && number > 0) marks.push({ time, text: `${nameOf(process)}: failover of Redis` });
    }
    for (const [id, name] of running) {
      if (!processes.some((process) => process.id === id)) marks.push({ time, text: `${name} has ended` });
    }
    for (const each of actions) {
      if (each.time > lastAction) marks.push({ time: Date.parse(each.time), text: each.message });
    }
  }
  lastAction = actions.at(-1)?.time ?? lastAction;
  running.clear();
  for (const process of processes) running.set(process.id, nameOf(process));
}

/** @param {Process} process */
const nameOf = ({ server, worker }) => (worker ? `${server}/${worker}` : server);

/** @param {Message} message */
function receive(message) {
  message.processes = message.processes.map((process) => ({ ...known.get(process.id), ...process }));
  known.clear();
  for (const process of message.processes) known.set(process.id, process);
  mark(message, samples.at(-1));
  samples.push({ time: message.time, figures: new Map(message.processes.map(({ id, figures }) => [id, figures])) });
  if (samples.length > KEPT) samples.shift();
  while (marks.length && (marks[0].time < samples[0].time || marks.length > LOG_ROWS)) marks.shift();
  latest = message;
  show(message);
}

/** Offer all processes, each server, and each worker. @param {Process[]} processes */
function offerChoices(processes) {
  const servers = [...new Set(processes.map(({ server }) => server))];
  const options = servers.flatMap((server) => {
    const names = processes.filter((process) => process.server === server).map(nameOf);
    return [...new Set([server, ...names])];
  });
  if (options.length > 1) options.unshift("all");
  find("chooser").hidden = options.length < 2;
  if (options.join() === [...chooser.options].map(({ value }) => value).join()) return;
  const chosen = chooser.value;
  chooser.replaceChildren(...options.map((value) => make("option", { value }, value)));
  chooser.value = options.includes(chosen) ? chosen : options[0];
}

/** Draw all charts. @param {Set<string>} ids */
function drawAll(ids) {
  /** @type {Map<string, { time: number, value: number }[]>} */
  const points = new Map(FIGURES.map(({ name }) => [name, []]));
  let redis = false;
  samples.slice(1).forEach(({ time, figures }, index) => {
    const before = samples[index];
    const both = [...ids].filter((id) => figures.has(id) && before.figures.has(id));
    if (!both.length) return;
    const [newer, older] = [figures, before.figures].map((each) =>
      both.map((id) => /** @type {Figures} */ (each.get(id))),
    );
    redis ||= newer.some((each) => each.redis_seconds);
    const seconds = (time - before.time) / 1000;
    for (const { name, value } of FIGURES) points.get(name)?.push({ time, value: value(newer, older, seconds) });
  });
  for (const figure of FIGURES) {
    draw(figure.name, points.get(figure.name) ?? [], figure.unit);
    /** @type {Chart} */ (charts.get(figure.name)).card.hidden = Boolean(figure.redis) && !redis;
  }
  const rows = marks.map(({ time, text }) => [clock(time), text]).reverse();
  fill("marks", ["Time", "Event"], rows, "Nothing since the page was opened.");
}

const PROTOCOLS = {
  "/ws": "/ws",
  "/peerjs": "PeerJS",
  "/y-webrtc": "y-webrtc",
  "/tracker": "trackers",
  "/nostr": "Nostr",
};

/**
 * Add the use of several processes, by a key.
 *
 * @template {Use} T
 * @param {T[]} uses
 * @param {(use: T) => string} key
 */
function addUp(uses, key) {
  /** @type {Map<string, T>} */
  const sums = new Map();
  for (const use of uses) {
    const earlier = sums.get(key(use));
    const websockets = { ...earlier?.websockets };
    for (const [path, count] of Object.entries(use.websockets)) websockets[path] = (websockets[path] ?? 0) + count;
    sums.set(key(use), {
      ...use,
      watchers: use.watchers + (earlier?.watchers ?? 0),
      held_offers: use.held_offers + (earlier?.held_offers ?? 0),
      websockets,
    });
  }
  return sums;
}

const NO_USE = { watchers: 0, held_offers: 0, websockets: {} };

/** @param {Use} use */
const useCells = ({ watchers, held_offers, websockets }) => [
  watchers,
  held_offers,
  ...Object.keys(PROTOCOLS).map((path) => /** @type {Record<string, number>} */ (websockets)[path] ?? 0),
];
const USE_HEADINGS = ["#Watchers", "#Held offers", ...Object.values(PROTOCOLS).map((name) => `#${name}`)];

/** @param {Process[]} processes @param {Stored | null} store */
function showOrigins(processes, store) {
  const used = addUp(
    processes.flatMap(({ origins }) => origins),
    ({ origin }) => origin,
  );
  const stored = new Map((store?.origins ?? []).map((entry) => [entry.origin, entry]));
  const rows = [...new Set([...stored.keys(), ...used.keys()])]
    .slice(0, ROWS)
    .map((origin) => [
      origin,
      ...withActions(button("Disconnect", `Disconnect ${origin}`, "disconnect", { origin })),
      stored.get(origin)?.unanswered_sessions ?? 0,
      stored.get(origin)?.topics ?? 0,
      ...useCells(used.get(origin) ?? NO_USE),
    ]);
  const headings = ["Origin", ...withActions("Action"), "#Unanswered", "#Topics", ...USE_HEADINGS];
  fill("origins", /** @type {string[]} */ (headings), rows, "No origin has sessions or connections.");

  const topics = processes[0].topics;
  find("topics-hidden").hidden = topics !== null;
  find("topics-region").hidden = topics === null;
  if (topics === null) return;
  const key = (/** @type {{ origin: string, topic: string }} */ entry) => JSON.stringify([entry.origin, entry.topic]);
  const usedTopics = addUp(
    processes.flatMap(({ topics }) => topics ?? []),
    key,
  );
  const storedTopics = new Map((store?.topics ?? []).map((entry) => [key(entry), entry.unanswered_sessions]));
  const topicRows = [...new Set([...storedTopics.keys(), ...usedTopics.keys()])].slice(0, ROWS).map((place) => {
    const [origin, topic] = JSON.parse(place);
    const buttons = make(
      "span",
      {},
      button("Disconnect", `Disconnect the clients of ${topic}`, "disconnect", { origin, topic }),
      " ",
      button("Withdraw", `Withdraw the sessions of ${topic}`, "withdraw", { origin, topic }),
    );
    const cells = useCells(usedTopics.get(place) ?? NO_USE);
    return [topic, ...withActions(buttons), origin, storedTopics.get(place) ?? 0, ...cells];
  });
  const topicHeadings = [
    "Topic, room, id or hash",
    ...withActions("Actions"),
    "Origin",
    "#Unanswered",
    ...USE_HEADINGS,
  ];
  fill("topics", /** @type {string[]} */ (topicHeadings), topicRows, "No topic has sessions or watchers.");
}

/** @param {string} address */
const addressButtons = (address) =>
  make(
    "span",
    {},
    button("Disconnect", `Disconnect ${address}`, "disconnect", { address }),
    " ",
    button("Block", `Block ${address} for an hour`, "block", { address, seconds: 3600 }),
  );

/**
 * Show who has sent requests in the last minutes, also without a connection now.
 *
 * @param {string} id
 * @param {string} heading
 * @param {Recent[]} entries
 * @param {(entry: Recent) => string} key
 * @param {(name: string) => Node | string} actions
 */
function showRecent(id, heading, entries, key, actions) {
  /** @type {Map<string, number[]>} */
  const sums = new Map();
  for (const entry of entries) {
    const counts = [entry.minute, entry].flatMap(({ requests, refused, failed }) => [requests, refused, failed]);
    const earlier = sums.get(key(entry));
    sums.set(key(entry), earlier ? counts.map((count, at) => count + earlier[at]) : counts);
  }
  const rows = [...sums]
    .sort(([, a], [, b]) => b[0] - a[0] || b[3] - a[3])
    .slice(0, ROWS)
    .map(([name, counts]) => [name || "none", ...withActions(actions(name)), ...counts]);
  const numbers = ["requests", "refused", "failed"];
  const columns = [...numbers.map((name) => `#1 min: ${name}`), ...numbers.map((name) => `#5 min: ${name}`)];
  const headings = [heading, ...withActions("Actions"), ...columns];
  fill(id, /** @type {string[]} */ (headings), rows, "No requests in the last minutes.");
}

const LIMITS = ["connections", "waiting", "held", "requests", "sessions", "bytes"];

/** @param {Process[]} processes */
function showAddresses(processes) {
  const several = processes.length > 1;
  const entries = processes.flatMap((process) => process.addresses.map((address) => ({ process, ...address })));
  entries.sort((a, b) => b.connections - a.connections);
  const rows = entries
    .slice(0, ROWS)
    .map(({ process, address, connections, waiting, held_offers, used }) => [
      address,
      ...withActions(addressButtons(address)),
      ...(several ? [nameOf(process)] : []),
      ...[connections, waiting, held_offers],
      ...LIMITS.map((name) => (name in used ? `${Math.round(100 * used[name])} %` : "no limit")),
    ]);
  const used = LIMITS.map((name) => `#${name} used`);
  const counts = ["#Connections", "#Waiting", "#Held offers"];
  const headings = ["Address", ...withActions("Actions"), ...(several ? ["Server"] : []), ...counts, ...used];
  fill("addresses", /** @type {string[]} */ (headings), rows, "No address has a connection.");
}

/** @param {Process[]} processes @param {number} time */
function showServers(processes, time) {
  find("servers-section").hidden = processes.length < 2;
  const rows = processes.map((process) => [
    nameOf(process),
    process.state,
    process.version.slice(0, 12),
    duration(time / 1000 - process.started_s),
    process.figures.connections,
    process.figures.waiting_requests,
    process.figures.held_offers,
    process.figures.memory_bytes / 2 ** 20,
    process.figures.store_available ? "available" : "not available",
  ]);
  const numbers = ["#Connections", "#Waiting", "#Held offers", "#Memory (MiB)"];
  fill("servers", ["Process", "State", "Version", "Running for", ...numbers, "Store"], rows, "");
}

/** @param {Message} message */
function show(message) {
  offerChoices(message.processes);
  const chosen = message.processes.filter(
    (process) => chooser.value === "all" || [nameOf(process), process.server].includes(chooser.value),
  );
  const missing = find("missing");
  missing.hidden = !message.missing.length;
  missing.textContent = `No response from: ${message.missing.join(", ")}`;
  if (!chosen.length) {
    summary.textContent = "No process responds.";
    return;
  }
  find("no-actions").hidden = token() !== null;
  find("actions").hidden = token() === null;
  drawAll(new Set(chosen.map(({ id }) => id)));

  const [{ version, settings }] = chosen;
  const conditions = [...new Set(chosen.map(({ state }) => state))].join(", ");
  const available = chosen.every(({ figures }) => figures.store_available);
  const up = duration(message.time / 1000 - Math.min(...chosen.map(({ started_s }) => started_s)));
  summary.className = available ? "" : "bad";
  summary.textContent = `${conditions} for ${up}, version ${version.slice(0, 12)}${available ? "" : ", the store is not available"}`;

  showServers(message.processes, message.time);
  showOrigins(chosen, message.store);
  showAddresses(chosen);

  const clients = chosen.flatMap(({ clients }) => clients);
  const isAddress = /^[0-9A-Fa-f:./]+$/; // others are a Unix socket, or merged clients
  const clientButtons = (/** @type {string} */ name) => (isAddress.test(name) ? addressButtons(name) : "");
  showRecent("clients", "Client or network", clients, ({ client }) => client, clientButtons);
  const origins = chosen.flatMap(({ recent_origins }) => recent_origins);
  const originButton = (/** @type {string} */ origin) =>
    origin ? button("Disconnect", `Disconnect all of ${origin}`, "disconnect", { origin }) : "";
  showRecent("requests", "Origin", origins, ({ origin }) => origin, originButton);

  /** @type {Map<string, number[]>} */
  const reasons = new Map();
  for (const [status, reason, count, minute] of chosen.flatMap(({ refusals }) => refusals)) {
    const key = `${status}\n${reason}`;
    const [before, minuteBefore] = reasons.get(key) ?? [0, 0];
    reasons.set(key, [before + count, minuteBefore + minute]);
  }
  const refused = [...reasons]
    .sort(([, a], [, b]) => b[1] - a[1] || b[0] - a[0])
    .map(([key, [count, minute]]) => [...key.split("\n"), minute, count]);
  fill("refusals", ["Status", "Reason", "#Last minute", "#Since the start"], refused, "None.");

  const strangers = chosen.flatMap(({ refused_origins }) => refused_origins ?? []);
  find("refused-origins-section").hidden = !strangers.length;
  showRecent(
    "refused-origins",
    "Origin",
    strangers,
    ({ origin }) => origin,
    () => "",
  );

  const blocks = new Map(chosen.flatMap(({ blocks }) => blocks));
  const blockRows = [...blocks].map(([address, until]) => [
    address,
    new Date(until).toISOString().slice(0, 16).replace("T", " "),
    button("Unblock", `Unblock ${address}`, "unblock", { address }),
  ]);
  fill("blocks", ["Blocked", "Until (UTC)", "Action"], blockRows, "No address is blocked.");

  const log = chosen.flatMap((process) => process.log.map((line) => ({ ...line, process: nameOf(process) })));
  log.push(...message.log.map((line) => ({ ...line, process: "supervisor" })));
  log.sort((a, b) => b.time.localeCompare(a.time));
  const entries = log
    .slice(0, LOG_ROWS)
    .map(({ time, process, level, message }) => [
      ...[time.slice(0, 19).replace("T", " "), ...(chosen.length > 1 ? [process] : [])],
      ...[level, message],
    ]);
  const source = chosen.length > 1 ? ["Server"] : [];
  fill("log", ["Time (UTC)", ...source, "Level", "Message"], entries, "None since the start.");

  const listed = Object.entries(settings).filter(([, { source }]) => all.checked || source);
  const values = listed.map(([name, { value, source }]) => [
    `--${name.replaceAll("_", "-")}`,
    value,
    source ?? "default",
  ]);
  fill("settings", ["Setting", "Value", "From"], values, "All settings have their default.");
}

const showAgain = () => latest && show(latest);
chooser.addEventListener("change", showAgain);
all.addEventListener("change", showAgain);

// Stream

/** Read the stream and show each line, until it ends. */
async function follow() {
  const presented = token();
  const response = await fetch(`status?interval=${INTERVAL_S}`, { headers: authorization() });
  const denied = response.status === 401;
  find("access").hidden = !denied;
  if (denied) {
    summary.textContent = presented ? "This is not the admin token." : "This server asks for its admin token.";
    sessionStorage.removeItem(TOKEN);
    find("state").hidden = true;
    await new Promise((resolve) => find("access").addEventListener("submit", resolve, { once: true }));
    return;
  }
  if (response.status === 403) {
    summary.textContent = "Only this machine has access. For others, set --admin-token-file.";
    return;
  }
  if (!response.ok || !response.body) throw new Error(String(response.status));
  find("state").hidden = false;
  known.clear();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) receive(JSON.parse(line));
  }
}

find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = /** @type {HTMLInputElement} */ (find("token"));
  sessionStorage.setItem(TOKEN, field.value.trim());
  field.value = "";
});

for (;;) {
  const began = Date.now();
  try {
    await follow();
  } catch {
    summary.className = "bad";
    summary.textContent = "The server does not respond. This page tries again.";
  }
  if (find("access").hidden) await new Promise((resolve) => setTimeout(resolve, RETRY_MS - (Date.now() - began)));
}
