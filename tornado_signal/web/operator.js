/* The page of the admin listener: shows /status and performs actions. See docs/operator-page.md. */

const INTERVAL_MS = 2000;
const RETRY_MS = 3000;
const HOUR_MS = 3_600_000;
const RATE_MS = 10_000; // the time over which rates are measured
const TOKEN = "tornado-signal admin token"; // its name in the storage of the tab
const ROWS = 20;
const CLIENTS = 8;
const WARNINGS = 5;
const PROTOCOLS = {
  "/ws": "/ws",
  "/peerjs": "PeerJS",
  "/y-webrtc": "y-webrtc",
  "/tracker": "trackers",
  "/nostr": "Nostr",
  "/rxdb": "RxDB",
  "/matchbox/{room}": "matchbox",
  "/godot": "Godot",
};
const LIMITS = ["connections", "waiting", "held", "requests", "sessions", "bytes"];
const FAILING = ["store", "missing", "defects", "failed"]; // rules of the verdict; the others are of `strained`

const find = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem(TOKEN);
const authorization = () => (token() ? { Authorization: `Bearer ${token()}` } : {});
const nameOf = ({ server, worker }) => (worker ? `${server}/${worker}` : server);
const time = (ms, length = 5) => new Date(ms).toTimeString().slice(0, length);
const total = (numbers) => numbers.reduce((sum, number) => sum + (number ?? 0), 0);
const percent = (share) => `${Math.round(100 * share)} %`;

function short(value) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en", value < 100 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 });
}

const size = (bytes) => (bytes < 2 ** 20 ? `${short(bytes / 2 ** 10)} KiB` : `${short(bytes / 2 ** 20)} MiB`);

function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86_400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

// Elements

function make(name, attributes = {}, ...children) {
  const drawn = ["svg", "line", "polyline", "title"].includes(name);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const shown = new Map(); // the content of each table

/** Fill a table, unless it shows the same. Columns whose heading begins with # have numbers. */
function fill(id, headings, rows, empty, most = -1) {
  const content = JSON.stringify([headings, most, rows.map((row) => row.map((cell) => cell.outerHTML ?? cell))]);
  if (shown.get(id) === content) return;
  shown.set(id, content);
  const table = find(id);
  const focused = table.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  const kind = (column) => (headings[column].startsWith("#") ? { class: "number" } : {});
  const head = headings.map((text, column) => make("th", { scope: "col", ...kind(column) }, text.replace("#", "")));
  const body = rows.map((row, at) => {
    const cells = row.map((cell, column) => make("td", kind(column), typeof cell === "number" ? short(cell) : cell));
    return make("tr", at === most ? { class: "most" } : {}, ...cells);
  });
  if (!body.length) body.push(make("tr", {}, make("td", { colspan: headings.length, class: "quiet" }, empty)));
  table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  if (focused) [...table.querySelectorAll("button")].find((button) => button.ariaLabel === focused)?.focus();
}

for (const title of ["Origins", "Topics", "Servers", "Addresses", "Log", "Settings"]) {
  const id = title.toLowerCase();
  const table = make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": title }, make("table", { id }));
  find("folds").append(
    make("details", {}, make("summary", {}, title, " ", make("span", { id: `${id}-number` })), table),
  );
}
const all = make("input", { id: "all", type: "checkbox" });
find("settings").before(make("label", {}, all, " Also those with their default"));

/** Fill the table of a folded part, with its number. */
function fold(id, headings, rows, empty) {
  find(`${id}-number`).textContent = rows.length;
  fill(id, headings, rows, empty);
}

// Actions

/** Return a button that performs an action. Without a token there are none. */
function button(text, label, name, fields) {
  const made = make("button", { type: "button", "aria-label": label }, text);
  made.addEventListener("click", () => act(name, fields, `${label}?`));
  return made;
}
const buttons = (...made) => (token() ? [make("span", {}, ...made)] : []);
const ifActing = (...headings) => (token() ? headings : []);

/** Ask a question. Each has a dialog of its own, because the `close` event of an earlier one can be late. */
async function confirmed(text) {
  const dialog = make("dialog", { "aria-label": text });
  const [yes, no] = [make("button", { value: "yes" }, "Yes"), make("button", { value: "", autofocus: "" }, "Cancel")];
  dialog.append(make("form", { method: "dialog" }, make("p", {}, text), yes, " ", no));
  document.body.append(dialog);
  const closed = new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  dialog.showModal();
  await closed;
  dialog.remove();
  return dialog.returnValue === "yes";
}

/** Ask, perform an action, and show its result. */
async function act(name, fields, text) {
  if (!(await confirmed(text))) return;
  const say = (said, bad) =>
    Object.assign(find("outcome"), { hidden: false, textContent: said, className: bad ? "bad" : "" });
  say("In progress.");
  try {
    const request = { method: "POST", headers: authorization(), body: JSON.stringify(fields) };
    const response = await fetch(`actions/${name}`, request);
    const { results, missing, error, reason } = await response.json();
    if (!response.ok) throw new Error(error ?? reason);
    const lines = results.map(({ process, ...result }) => {
      const values = Object.entries(result).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`);
      return `${process}: ${values.join(", ")}`;
    });
    for (const process of missing) lines.push(`${process} did not respond`);
    say(`${text.replace("?", "")}: ${lines.join("; ")}`, missing.length);
  } catch (error) {
    say(`${text.replace("?", "")} failed: ${error.message}`, true);
  }
}

/** Return what the text of the field is, and its value. */
function recognize(text) {
  if (/^https?:\/\//.test(text)) return ["origin", text.replace(/\/$/, "")];
  if (/^sub:./.test(text)) return ["subject", text.slice(4)];
  if (/^[\da-f:.]+(\/\d+)?$/i.test(text) && /[.:]/.test(text))
    return [text.includes("/") ? "network" : "address", text];
  return [text ? "code" : "", text];
}
const ACTIONS = { address: "block disconnect", network: "block disconnect", code: "disconnect withdraw", "": "" };

find("about").addEventListener("input", () => {
  const [kind] = recognize(find("about").value.trim());
  find("kind").textContent =
    kind &&
    `is ${{ code: "a session code", subject: "a subject of tokens" }[kind] ?? `an ${kind}`.replace("an n", "a n")}`;
  for (const each of find("target").querySelectorAll("button")) {
    each.hidden = !(ACTIONS[kind] ?? "disconnect").includes(each.value);
  }
  find("of").hidden = kind !== "code";
  find("for").hidden = !["address", "network"].includes(kind);
});
find("target").addEventListener("submit", (event) => {
  event.preventDefault();
  const [kind, value] = recognize(find("about").value.trim());
  const name = event.submitter.value;
  const fields = { [kind === "network" ? "address" : kind]: value };
  if (kind === "code") fields.origin = find("origin").value.trim();
  if (name === "block") fields.seconds = Number(find("seconds").value);
  act(name, fields, `${event.submitter.textContent} ${value}?`);
});
find("log-level").addEventListener("submit", (event) => {
  event.preventDefault();
  act("log-level", { level: find("level").value }, `Change the log level of this server to ${find("level").value}?`);
});
find("drain").addEventListener("click", () => act("drain", {}, "Drain and stop this server?"));

// Messages

const known = new Map(); // the latest state of each process
let recent = []; // the messages of the last seconds
let points = []; // of the last hour, as objects
const events = []; // what happened while the page was open
const chooser = find("chosen");

function receive(message) {
  const before = recent.at(-1);
  for (const process of message.processes) {
    const failovers = process.figures.redis_failovers_total - known.get(process.id)?.figures.redis_failovers_total;
    if (failovers > 0) events.push({ time: message.time, text: `${nameOf(process)}: failover of Redis` });
  }
  for (const process of before?.processes ?? []) {
    const gone = !message.processes.some(({ id }) => id === process.id);
    if (gone) events.push(startOf(process), { time: message.time, text: `${nameOf(process)} has ended` });
  }
  while (events.length > ROWS) events.shift();
  known.clear();
  for (const process of message.processes) known.set(process.id, process);
  if (message.history) {
    const { columns, points: values } = message.history;
    points = values.map((point) => Object.fromEntries(columns.map((name, at) => [name, point[at]])));
  }
  recent = [...recent.filter((each) => each.time >= message.time - RATE_MS), message];
  show();
}

/** Return the increase per second of the chosen processes. A process that has restarted counts from 0. */
function rate(name, column, chosen) {
  const [old, now] = [recent[0], recent.at(-1)];
  const last = points.at(-2) ?? points.at(-1);
  if (old === now) return last ? (1000 * last[column]) / RATE_MS : 0;
  const earlier = new Map(old.processes.map(({ id, figures }) => [id, figures[name]]));
  const more = chosen.map(({ id, figures }) => Math.max(0, figures[name] - (earlier.get(id) ?? figures[name])));
  return total(more) / ((now.time - old.time) / 1000);
}

const startOf = (process) => {
  return {
    time: 1000 * process.started_s,
    text: `${nameOf(process)} has started, version ${process.version.slice(0, 12)}`,
  };
};

/** Return the events of the last hour, the latest first: starts and ends of processes, failovers, and actions. */
function listEvents({ processes, log, time: now }) {
  const acted = [...log, ...processes.flatMap(({ log }) => log)]
    .filter(({ message }) => message.startsWith("operator at "))
    .map(({ time, message }) => ({ time: Date.parse(time), text: message }));
  return [...events, ...processes.map(startOf), ...acted]
    .filter((each) => each.time > now - HOUR_MS)
    .sort((a, b) => b.time - a.time);
}

// The band and the answers

function showBand({ verdict, processes, missing, time: now }, chosen) {
  const { level, since, causes } = verdict;
  const word = level[0].toUpperCase() + level.slice(1);
  find("band").className = level;
  find("word").textContent = since ? `${word} since ${time(since)} (${duration((now - since) / 1000)})` : word;
  document.title = `${word}: tornado-signal`;
  const last = points.findLastIndex(({ troubles }) => troubles.length);
  const first = points.findLastIndex(({ troubles }, at) => at < last && !troubles.length) + 1;
  const failing = points[last]?.troubles.some((name) => FAILING.includes(name));
  const earlier = `${failing ? "Failing" : "Strained"} from ${time(points[first]?.time)} to ${time(points[last]?.time + RATE_MS)}.`;
  const calm = last < 0 ? "No trouble in the last 60 minutes." : earlier;
  const text = causes.map(({ text }) => text[0].toUpperCase() + text.slice(1)).join(". ");
  find("cause").textContent = text ? `${text}.` : calm;
  const up = chosen.length
    ? `${chosen[0].state} for ${duration(now / 1000 - Math.min(...chosen.map((each) => each.started_s)))}`
    : "";
  const parts = [up, chosen.length ? `version ${chosen[0].version.slice(0, 12)}` : ""];
  const count = processes.length + missing.length;
  if (count > 1) parts.push(`servers ${processes.length} of ${count}`);
  find("facts").textContent = [...parts, ...networkOf(chosen)].filter(Boolean).join(" · ");
}

/** Return what clients have reported of their connections, and which TURN provider fails. */
function networkOf(chosen) {
  const reports = chosen.map(({ reported }) => reported).filter(Boolean);
  const sum = (name) => reports.reduce((total, each) => total + each[name], 0);
  const [connected, unconnected, relayed] = ["connected", "unconnected", "relayed"].map(sum);
  const all = connected + unconnected;
  const share = (number) => `${Math.round((100 * number) / all)} %`;
  const times = reports.map(({ median_s }) => median_s).filter((each) => each != null);
  const median = times.length ? `, median ${Math.max(...times)} s` : "";
  const failing = chosen.find(({ turn_provider }) => turn_provider?.problem)?.turn_provider;
  return [
    all && `${share(connected)} of ${all.toLocaleString("en")} connections, ${share(relayed)} by relay${median}`,
    failing && `TURN provider ${failing.name} fails: ${failing.problem}`,
  ];
}

/** Draw the values of the last hour on a scale from 0 to `top`, with a threshold and the events. */
function draw(values, top, limit, marks) {
  const end = recent.at(-1).time;
  const across = (time) => (360 * (1 - (end - time) / HOUR_MS)).toFixed(1);
  const up = (value) => (40 - 40 * Math.min(1, value / top)).toFixed(1);
  const drawn = make("svg", { viewBox: "0 0 360 40", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const { time, text } of marks) {
    const x = across(time);
    drawn.append(make("line", { class: "event", x1: x, x2: x, y1: 32, y2: 40 }, make("title", {}, text)));
  }
  if (limit) drawn.append(make("line", { class: "limit", x1: 0, x2: 360, y1: up(limit), y2: up(limit) }));
  const places = points
    .filter(({ time }) => time > end - HOUR_MS)
    .map((point) => `${across(point.time)},${up(values(point) ?? 0)}`);
  drawn.append(make("polyline", { points: places.join(" ") }));
  return drawn;
}

function showAnswers(chosen, store, marks) {
  const highest = (column) => Math.max(...points.slice(-2).map((point) => 1000 * (point[column] ?? Number.NaN)));
  const busiest = Math.max(1, ...points.map(({ requests }) => requests / 10));
  const top = 10 ** Math.ceil(Math.log10(busiest));
  const share = ({ requests, refused }) => refused / Math.max(requests, refused, 1);
  const card = (title, values, drawn, text) => {
    const scale = make("div", { class: "scale" }, make("span", {}, text), "60 min");
    return make("li", {}, make("h2", {}, title), make("p", {}, ...values), drawn, scale);
  };
  const traffic = [rate("requests_total", "requests", chosen), rate("answered_total", "pairs", chosen)];
  const trouble = [rate("refusals_total", "refused", chosen), rate("failed_total", "failed", chosen)];
  const [requests, refused] = [draw(({ requests }) => requests / 10, top, 0, marks), draw(share, 0.2, 0.05, marks)];
  const lag = draw(({ lag_s }) => lag_s, 0.2, 0.1, marks);
  const cards = [
    ["Traffic", traffic, ["requests/s", "pairs/s"], requests, `0 to ${short(top)} requests/s`],
    ["Trouble", trouble, ["refused/s", "failed/s"], refused, "refused: 0 to 20 %"],
    ["Speed, 99 % within", [highest("wake_up_s"), highest("lag_s")], ["ms wake-up", "ms lag"], lag, "lag: 0 to 200 ms"],
  ].map(([title, numbers, units, drawn, text]) => {
    const values = numbers.map((number, at) => make("span", {}, make("strong", {}, short(number)), ` ${units[at]}`));
    return card(title, values, drawn, text);
  });
  const { max_sessions_per_origin: most } = chosen[0].settings;
  const sessions = Math.max(0, ...chosen.map(({ figures }) => figures.unanswered_sessions ?? 0));
  const room = [["sessions", short(sessions), store?.origins[0]?.unanswered_sessions ?? 0, Number(most.value)]];
  const add = (name, at) => total(chosen.map(({ room }) => room?.[name]?.[at]));
  room.push(["connections", short(add("connections", 0)), add("connections", 0), add("connections", 1)]);
  room.push([
    "memory",
    size(total(chosen.map(({ figures }) => figures.memory_bytes))),
    add("unread data", 0),
    add("unread data", 1),
  ]);
  room.push(["store", size(chosen[0].figures.store_bytes), add("store", 0), add("store", 1)]);
  const rows = room.map(([name, text, used, most]) => {
    const filled = make("i");
    filled.style.width = `${100 * Math.min(1, used / (most || 1))}%`;
    const bar = make("span", { class: "bar", title: `${percent(used / (most || 1))} of the limit` }, filled);
    return make("div", {}, make("strong", {}, text), ` ${name}`, most ? bar : "");
  });
  cards.push(
    card(
      "Room",
      rows,
      draw(({ used }) => used, 1, 0.8, marks),
      "most used limit: 0 to 100 %",
    ),
  );
  find("answers").replaceChildren(...cards);
}

// The tables

/** Add up numbers of a list of several processes, by a key of its entries. */
function addUp(processes, list, key, numbers) {
  const sums = new Map();
  for (const entry of processes.flatMap((process) => process[list] ?? [])) {
    const before = sums.get(key(entry));
    sums.set(key(entry), before ? numbers(entry).map((number, at) => number + before[at]) : numbers(entry));
  }
  return sums;
}
const counts = ({ requests, refused, failed }) => [requests, refused, failed];
const useOf = ({ watchers, held_offers, websockets }) =>
  [watchers, held_offers].concat(Object.keys(PROTOCOLS).map((path) => websockets[path] ?? 0));
const USE = ["#Watchers", "#Held offers", ...Object.values(PROTOCOLS).map((name) => `#${name}`)];
const NO_USE = USE.map(() => 0);
const originOf = ({ origin }) => origin;
const placeOf = ({ origin, topic }) => JSON.stringify([origin, topic]);
const isAddress = /^[0-9A-Fa-f:./]+$/; // others are a Unix socket, or merged clients
function ofAddress(address) {
  const block = button("Block", `Block ${address} for an hour`, "block", { address, seconds: 3600 });
  return buttons(block, button("Disconnect", `Disconnect ${address}`, "disconnect", { address }));
}

function showWhy(chosen, lines) {
  const reasons = addUp(
    chosen,
    "refusals",
    ([status, reason]) => `${reason}\n${status}`,
    (row) => [row[4] ?? 0, row[2]],
  );
  const rows = [...reasons].sort(([, a], [, b]) => b[0] - a[0] || b[1] - a[1]).slice(0, CLIENTS);
  const cells = rows.map(([key, numbers]) => [...key.replace(/^Origin\n/, "no Origin\n").split("\n"), ...numbers]);
  fill("refusals", ["Refused for", "Status", "#5 min", "#All"], cells, "Nothing was refused.");
  const strangers = [...addUp(chosen, "refused_origins", originOf, counts)];
  const names = strangers.slice(0, 3).map(([origin, [requests]]) => `${origin} (${short(requests)})`);
  find("strangers").textContent = names.length ? `Refused origins: ${names.join(", ")}` : "";
  const warnings = lines.slice(0, WARNINGS).map(({ time: at, message }) => {
    return make("li", { title: message }, make("time", {}, time(Date.parse(at))), ` ${message}`);
  });
  find("warnings").replaceChildren(...(warnings.length ? warnings : [make("li", {}, "None.")]));
}

function showWho(chosen) {
  const clients = addUp(chosen, "clients", ({ client }) => client, counts);
  const limits = new Map();
  for (const { address, used } of chosen.flatMap(({ addresses }) => addresses)) {
    limits.set(address, Math.max(limits.get(address) ?? 0, ...Object.values(used)));
  }
  const harm = ([, [, refused, failed]]) => refused + failed;
  const rows = [...clients].sort((a, b) => harm(b) - harm(a) || b[1][0] - a[1][0]).slice(0, CLIENTS);
  const alone = [...clients].filter(([name]) => !/\/(24|48)$/.test(name)); // networks repeat them
  const most = rows.findIndex((row) => harm(row) > total(alone.map(harm)) / 2);
  const cells = rows.map(([name, [requests, refused, failed]]) => {
    const numbers = [refused, failed, requests, limits.has(name) ? percent(limits.get(name)) : "–"];
    return [name, ...(isAddress.test(name) ? ofAddress(name) : ifActing("")), ...numbers];
  });
  const heads = ["Client or network", ...ifActing("Actions"), "#Refused", "#Failed", "#Requests", "#Of its limit"];
  fill("clients", heads, cells, "No requests in the last minutes.", most);
}

function showUse(chosen, store) {
  const used = addUp(chosen, "origins", originOf, useOf);
  const asked = addUp(chosen, "recent_origins", originOf, counts);
  const stored = new Map((store?.origins ?? []).map((row) => [row.origin, [row.unanswered_sessions, row.topics]]));
  const origins = [...new Set([...stored.keys(), ...used.keys(), ...asked.keys()])].slice(0, ROWS).map((origin) => {
    const end = origin ? [button("Disconnect", `Disconnect all of ${origin}`, "disconnect", { origin })] : [];
    const cells = [stored.get(origin) ?? [0, 0], asked.get(origin) ?? [0, 0, 0], used.get(origin) ?? NO_USE];
    return [origin || "none", ...buttons(...end), ...cells.flat()];
  });
  const numbers = ["#Unanswered", "#Topics", "#Requests", "#Refused", "#Failed", ...USE];
  fold("origins", ["Origin", ...ifActing("Action"), ...numbers], origins, "No origin has sessions or connections.");
  find("known").replaceChildren(...origins.map(([value]) => make("option", { value })));

  const usedTopics = addUp(chosen, "topics", placeOf, useOf);
  const storedTopics = new Map((store?.topics ?? []).map((entry) => [placeOf(entry), entry.unanswered_sessions]));
  const topics = [...new Set([...storedTopics.keys(), ...usedTopics.keys()])].slice(0, ROWS).map((place) => {
    const [origin, topic] = JSON.parse(place);
    const disconnect = button("Disconnect", `Disconnect the clients of ${topic}`, "disconnect", { origin, topic });
    const withdraw = button("Withdraw", `Withdraw the sessions of ${topic}`, "withdraw", { origin, topic });
    const cells = [storedTopics.get(place) ?? 0, ...(usedTopics.get(place) ?? NO_USE)];
    return [topic, ...buttons(disconnect, withdraw), origin, ...cells];
  });
  const heads = ["Topic, room, id or hash", ...ifActing("Actions"), "Origin", "#Unanswered", ...USE];
  const hidden = "Topics can be private. The setting --admin-topics shows them.";
  fold("topics", heads, topics, chosen[0].topics ? "No topic has sessions or watchers." : hidden);
}

function showProcesses({ processes, time: now }, chosen) {
  const rows = processes.map((process) => {
    const { connections, waiting_requests, held_offers, memory_bytes, cpu_seconds_total, store_available } =
      process.figures;
    const first = [
      nameOf(process),
      process.state,
      process.version.slice(0, 12),
      duration(now / 1000 - process.started_s),
    ];
    const numbers = [connections, waiting_requests, held_offers, memory_bytes / 2 ** 20, cpu_seconds_total];
    return [...first, ...numbers, store_available ? "available" : "not available"];
  });
  const numbers = ["#Connections", "#Waiting", "#Held offers", "#Memory (MiB)", "#CPU (s)"];
  fold("servers", ["Process", "State", "Version", "Running for", ...numbers, "Store"], rows, "");
  const addresses = chosen.flatMap((process) => process.addresses.map((each) => ({ process, ...each })));
  addresses.sort((a, b) => b.connections - a.connections);
  const cells = addresses.slice(0, ROWS).map(({ process, address, connections, waiting, held_offers, used }) => {
    const shares = LIMITS.map((name) => (name in used ? percent(used[name]) : "no limit"));
    return [address, ...ofAddress(address), nameOf(process), connections, waiting, held_offers, ...shares];
  });
  const limits = ["#Connections", "#Waiting", "#Held offers", ...LIMITS.map((name) => `#${name} used`)];
  fold("addresses", ["Address", ...ifActing("Actions"), "Server", ...limits], cells, "No address has a connection.");
  const blocks = new Map(chosen.flatMap(({ blocks }) => blocks));
  const blocked = [...blocks].map(([address, until]) => {
    const unblock = button("Unblock", `Unblock ${address}`, "unblock", { address });
    return [address, `${new Date(until).toLocaleDateString()} ${time(until)}`, ...buttons(unblock)];
  });
  fill("blocks", ["Blocked", "Until", "Action"], blocked, "No address is blocked.");
}

function show() {
  const message = recent.at(-1);
  const { processes, store, log } = message;
  const servers = processes.map(({ server }) => server);
  const options = [...new Set(["all", ...servers, ...processes.map(nameOf)])];
  find("chooser").hidden = options.length < 3;
  if (options.join() !== [...chooser.options].map(({ value }) => value).join()) {
    const before = chooser.value;
    chooser.replaceChildren(...options.map((value) => make("option", { value }, value)));
    chooser.value = options.includes(before) ? before : "all";
  }
  const chosen = processes.filter((each) => ["all", nameOf(each), each.server].includes(chooser.value));
  showBand(message, chosen);
  if (!chosen.length) return;
  find("no-actions").hidden = token() !== null;
  find("actions").hidden = token() === null;
  const marks = listEvents(message);
  const lines = chosen.flatMap((each) => each.log.map((line) => ({ ...line, from: nameOf(each) })));
  lines.push(...log.map((line) => ({ ...line, from: "supervisor" })));
  lines.sort((a, b) => b.time.localeCompare(a.time));
  showAnswers(chosen, store, marks);
  showWhy(chosen, lines);
  showWho(chosen);
  showUse(chosen, store);
  showProcesses(message, chosen);
  const row = (at, ...cells) => [`${new Date(at).toLocaleDateString("sv")} ${time(at, 8)}`, ...cells];
  const entries = lines.filter(({ message }) => !message.startsWith("operator at "));
  const rows = entries.map(({ time, from, level, message }) => row(Date.parse(time), from, level, message));
  rows.push(...marks.map(({ time, text }) => row(time, "", "event", text)));
  rows.sort(([a], [b]) => b.localeCompare(a));
  fold("log", ["Time", "Server", "Level", "Message"], rows, "None since the start.");
  const listed = Object.entries(chosen[0].settings).filter(([, { source }]) => all.checked || source);
  const values = listed.map(([name, { value, source }]) => [
    `--${name.replaceAll("_", "-")}`,
    value,
    source ?? "default",
  ]);
  fold("settings", ["Setting", "Value", "From"], values, "All settings have their default.");
}
chooser.addEventListener("change", show);
all.addEventListener("change", show);

// Requests

function tell(word, cause) {
  find("band").className = word === "No access" ? "" : "failing";
  find("word").textContent = word;
  find("cause").textContent = cause;
  find("facts").textContent = "";
}

let historyAt = Number.NEGATIVE_INFINITY; // when the figures of the last hour were received

/** Request the state and show it. */
async function refresh() {
  const now = performance.now();
  const due = now - historyAt >= RATE_MS;
  const response = await fetch(due ? "status?history=1" : "status", { headers: authorization() });
  find("access").hidden = response.status !== 401;
  if (response.status === 401) {
    tell("No access", token() ? "This is not the admin token." : "This server asks for its admin token.");
    sessionStorage.removeItem(TOKEN);
    find("state").hidden = true;
    await new Promise((resolve) => find("access").addEventListener("submit", resolve, { once: true }));
    return;
  }
  if (response.status === 403)
    return tell("No access", "Only this machine has access. For others, set --admin-token-file.");
  if (!response.ok) throw new Error(String(response.status));
  find("state").hidden = false;
  receive(await response.json());
  if (due) historyAt = now;
}

find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, find("token").value.trim());
  find("token").value = "";
});

for (;;) {
  const began = Date.now();
  let pause = INTERVAL_MS;
  try {
    await refresh();
  } catch {
    tell("No response", "The server does not respond. This page tries again.");
    pause = RETRY_MS;
  }
  if (find("access").hidden) await new Promise((resolve) => setTimeout(resolve, pause - (Date.now() - began)));
}
