// The check of the demo page: which servers this browser reaches. `tornado-signal-client check-ice` uses the same words.

import { SignalClient } from "../client.js";
import { $, make } from "./tile.js";

const LIMIT_MS = 15_000; // Firefox reports a silent STUN server after 11 s
const TYPES = { host: "host", srflx: "server-reflexive", relay: "relay" };
const NO_SERVERS = "the server has no ICE servers; set --stun-servers or --turn-servers on the server";
const NO_TURN = "the server has no TURN server; peers behind strict firewalls need one";
const NO_NETWORK = "none; check the network and the browser's settings for WebRTC";
const NO_OFFER = "published offers are not listed; the proxy changes Host or scheme (see the server's log)";
const NO_STREAM = "an event stream does not deliver; check that each proxy forwards responses without buffering";
const NEEDS_TOKEN = "the server requires a token";
const NO_SOCKET = "it does not open, so requests use HTTP; check that each proxy forwards WebSockets";
const NO_STUN = "no response; check the name, the port and the firewall (UDP)";
const NO_VERDICT = "no public address; only a newer browser reports whether the server responds";
const NO_RELAY = "no relay; check the name, the port, the firewall and the secret of both servers";
const NO_PASSAGE = "it allocates addresses, but relays nothing between them; check its relay ports and peer rules";

const timeout = () => new Promise((resolve) => setTimeout(resolve, LIMIT_MS));

/** A connection for a check: its candidates, and the errors of its ICE servers. */
class Probe {
  candidates = [];
  errors = new Set();

  constructor(iceServers, iceTransportPolicy = "all") {
    this.connection = new RTCPeerConnection({ iceServers, iceTransportPolicy });
    const on = (event, act) => this.connection.addEventListener(event, act);
    on("icecandidateerror", ({ errorCode, errorText }) => {
      const text = errorText.replace(/\.$/, "");
      this.errors.add(text ? `error ${errorCode}: ${text}` : `error ${errorCode}`);
    });
    this.complete = new Promise((resolve) => {
      on("icegatheringstatechange", () => this.connection.iceGatheringState === "complete" && resolve(true));
    });
    this.reflexive = new Promise((resolve) => {
      on("icecandidate", ({ candidate }) => {
        if (!candidate?.candidate) return;
        this.candidates.push(candidate);
        if (candidate.type === "srflx") resolve(true);
      });
    });
  }

  /** Return the address of the first candidate of a type. */
  address(type) {
    const first = this.candidates.find((candidate) => candidate.type === type);
    return first && `${first.address}:${first.port}`;
  }

  failure(text) {
    return new Error([text, ...this.errors].join("; "));
  }
}

async function version(url) {
  const { version } = await new SignalClient(url, { socket: false }).version();
  return { detail: `tornado-signal ${version}` };
}

/** Publish an offer over HTTP, find it in the listing, and receive it from a stream, as pages do. */
async function signal(url) {
  const api = new SignalClient(url, { socket: false });
  const topic = `check-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
  const signal = AbortSignal.timeout(LIMIT_MS);
  let code;
  try {
    ({ code } = await api.offer(topic, { info: "check", offer: "check", ttl: 2 * LIMIT_MS, signal }));
    const { sessions } = await api.sessions(topic, { signal });
    if (!sessions.some((session) => session.code === code)) throw new Error(NO_OFFER);
    try {
      for await (const { type, data } of api.events(topic, { signal })) {
        if (type === "session" && data.code === code) return { detail: "an offer is published, listed and streamed" };
      }
    } catch (error) {
      throw signal.aborted ? new Error(NO_STREAM) : error;
    }
  } catch (error) {
    if (error.status === 401 || error.status === 403) return { result: "not checked", detail: NEEDS_TOKEN };
    throw error;
  } finally {
    if (code) await api.withdraw(code, "offerer").catch(() => {}); // it expires soon
  }
}

async function openSocket(url) {
  const socket = new WebSocket(`${url.replace(/^http/, "ws")}/ws`);
  const opened = new Promise((resolve) => {
    socket.onopen = () => resolve(true);
    socket.onerror = () => resolve(false);
  });
  const open = await Promise.race([opened, timeout()]);
  socket.close();
  if (!open) throw new Error(NO_SOCKET);
}

async function gatherCandidates(iceServers) {
  const probe = new Probe(iceServers);
  try {
    probe.connection.createDataChannel("check");
    await probe.connection.setLocalDescription();
    await Promise.race([probe.complete, timeout()]);
    if (!probe.candidates.length) throw probe.failure(NO_NETWORK);
    const count = (type) => probe.candidates.filter((candidate) => candidate.type === type).length;
    const counts = Object.entries(TYPES).map(([type, name]) => `${count(type)} ${name}`);
    return { detail: counts.join(", ") };
  } finally {
    probe.connection.close();
  }
}

async function checkStun(server) {
  const probe = new Probe([server]);
  try {
    probe.connection.createDataChannel("check");
    await probe.connection.setLocalDescription();
    const responded = await Promise.race([probe.reflexive, probe.complete, timeout()]);
    const address = probe.address("srflx");
    if (address) return { detail: "public address", address };
    // Browsers omit an address that equals the device's own. Without a response there is an error, or no end. Firefox
    // reports no errors before version 150.
    if (!responded || probe.errors.size || !probe.candidates.length) throw probe.failure(NO_STUN);
    if (!("onicecandidateerror" in probe.connection)) return { result: "not checked", detail: NO_VERDICT };
    return { detail: "the server sees the own address of this device, so there is no NAT" };
  } finally {
    probe.connection.close();
  }
}

/** Send a message from one relayed address of a TURN server to another one. */
async function checkTurn(server) {
  const [first, second] = [1, 2].map(() => new Probe([server], "relay"));
  const [offerer, answerer] = [first.connection, second.connection];
  try {
    for (const [from, to] of [
      [offerer, answerer],
      [answerer, offerer],
    ]) {
      from.addEventListener("icecandidate", ({ candidate }) => candidate && to.addIceCandidate(candidate));
    }
    const channel = offerer.createDataChannel("check");
    channel.onopen = () => channel.send("through the relay");
    const passed = new Promise((resolve) => {
      answerer.ondatachannel = ({ channel }) => {
        channel.onmessage = () => resolve(true);
      };
    });
    await offerer.setLocalDescription();
    await answerer.setRemoteDescription(offerer.localDescription);
    await answerer.setLocalDescription();
    await offerer.setRemoteDescription(answerer.localDescription);
    const gathered = Promise.all([first.complete, second.complete]);
    const refused = gathered.then(() => first.candidates.length && timeout()); // ends at once without candidates
    const success = await Promise.race([passed, refused, timeout()]);
    const address = first.address("relay");
    if (!address) throw first.failure(NO_RELAY);
    if (!success) throw first.failure(NO_PASSAGE);
    return { detail: "a message passed the relay", address };
  } finally {
    offerer.close();
    answerer.close();
  }
}

/** Show a result, and replace it when it is known. */
async function show(results, name, work) {
  const result = { name, result: "checking", detail: "" };
  results.push(result);
  const item = make("li");
  $("results").append(item);
  const draw = () => {
    const { detail, address, ms } = result;
    const text = address ? `${detail}: ${address}` : detail;
    const value = make("strong", result.result, { className: result.result.replace(" ", "-") });
    const time = ms === undefined ? "" : `, ${ms} ms`;
    item.replaceChildren(make("h2", name), value, time, make("p", text, { className: "quiet" }));
  };
  draw();
  const begin = performance.now();
  try {
    Object.assign(result, { result: "ok" }, await work());
  } catch (error) {
    Object.assign(result, { result: "failed", detail: error.message });
  }
  if (result.result !== "not checked") result.ms = Math.round(performance.now() - begin);
  draw();
}

async function checkIce(results, api) {
  let iceServers;
  await show(results, "ICE servers", async () => {
    ({ iceServers } = await api.iceServers());
    if (!iceServers.length) throw new Error(NO_SERVERS);
    return { detail: `${iceServers.flatMap(({ urls }) => urls).length} configured` };
  });
  if (!iceServers) return;
  const single = iceServers.flatMap((server) => [server.urls].flat().map((urls) => ({ ...server, urls })));
  const isTurn = ({ urls }) => urls.startsWith("turn");
  const checks = single.map((server) =>
    show(results, server.urls, () => (isTurn(server) ? checkTurn(server) : checkStun(server))),
  );
  checks.push(show(results, "Candidates", () => gatherCandidates(iceServers)));
  if (iceServers.length && !single.some(isTurn)) {
    checks.push(show(results, "TURN", () => ({ result: "not checked", detail: NO_TURN })));
  }
  await Promise.all(checks);
}

/** Return a text for a bug report, without credentials and addresses of this device. */
function report(results) {
  const lines = results.map(({ name, result, detail, ms }) => {
    const time = ms === undefined ? "" : `${ms} ms`;
    return `${name}: ${[result, time, detail].filter(Boolean).join(", ")}`;
  });
  return [
    `Origin: ${location.origin}`,
    `Secure context: ${isSecureContext ? "yes" : "no"}`,
    `Browser: ${navigator.userAgent}`,
    `Time: ${new Date().toISOString()}`,
    ...lines,
  ].join("\n");
}

/** Check everything, and show the results and the text for a bug report. */
export async function check(api) {
  const results = [];
  $("results").replaceChildren();
  $("report").value = "";
  $("verdict").textContent = "Checking …";
  const socket = show(results, "WebSocket", () => openSocket(api.url));
  const http = show(results, "HTTP", () => version(api.url));
  const signaling = show(results, "Signaling", () => signal(api.url));
  await Promise.all([http, signaling, socket, checkIce(results, api)]);
  const failed = results.filter(({ result }) => result === "failed").map(({ name }) => name);
  $("verdict").textContent = failed.length ? `These do not work: ${failed.join(", ")}` : "Everything works.";
  $("report").value = report(results);
}
