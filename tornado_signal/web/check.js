// The check of the demo page: which servers this browser reaches. `tornado-signal-client check-ice` uses the same words.

import { SignalClient } from "../client.js";
import { $, make } from "./tile.js";

const LIMIT_MS = 15_000; // Firefox reports a silent STUN server after 11 s
const CHECKING = "Checking …";
const NO_SERVERS = "the server has no ICE servers; set --stun-servers or --turn-servers on the server";
const NO_TURN = "the server has no TURN server; peers behind strict firewalls need one";
const NO_NETWORK = "none; check the network and the browser's settings for WebRTC";
const NO_STREAM = "an event stream does not deliver; check that each proxy forwards responses without buffering";
const NO_STUN = "no response; check the name, the port and the firewall (UDP)";
const NO_VERDICT = "no public address; only a newer browser reports whether the server responds";
const NO_RELAY = "no relay; check the name, the port, the firewall and the secret of both servers";
const NO_PASSAGE = "it allocates addresses, but relays nothing between them; check its relay ports and peer rules";

let probes = []; // of the current check
let results = []; // in the order of the page

/** Return what `begin` passes to its argument, or undefined after the time limit. */
const limited = (begin) => Promise.race([new Promise(begin), new Promise((end) => setTimeout(end, LIMIT_MS))]);

/** A connection for a check, and the errors of its ICE servers. */
class Probe {
  errors = new Set();

  constructor(iceServers, iceTransportPolicy) {
    this.connection = new RTCPeerConnection({ iceServers, iceTransportPolicy });
    this.channel = this.connection.createDataChannel("check", { negotiated: true, id: 0 });
    this.connection.addEventListener("icecandidateerror", ({ errorCode, errorText }) => {
      this.errors.add(`error ${errorCode}: ${errorText}`.replace(/[:. ]+$/, ""));
    });
    probes.push(this);
  }

  /** Gather candidates until there is one of a type, or to the end, within the time limit. Return its address. */
  async gather(type) {
    const found = limited((end) => {
      this.connection.onicecandidate = ({ candidate }) => candidate?.type === type && end(candidate);
      this.connection.onicegatheringstatechange = ({ target }) => target.iceGatheringState === "complete" && end();
    });
    await this.connection.setLocalDescription();
    const candidate = await found;
    return candidate && `${candidate.address}:${candidate.port}`;
  }

  failure(text) {
    return new Error([text, ...this.errors].join("; "));
  }
}

/** Publish an offer over HTTP, and receive it from a stream, as pages do. */
async function checkSignaling(api) {
  const topic = `check-${crypto.randomUUID()}`;
  const signal = AbortSignal.timeout(LIMIT_MS);
  const { code } = await api.offer(topic, { info: "check", offer: "check", ttl: 2 * LIMIT_MS, signal });
  try {
    for await (const { type, data } of api.events(topic, { signal })) {
      if (type === "session" && data.code === code) return { detail: "an offer is published and streamed" };
    }
  } catch (error) {
    throw signal.aborted ? new Error(NO_STREAM) : error;
  } finally {
    await api.withdraw(code, "offerer").catch(() => {}); // it expires soon
  }
}

async function checkSocket(url) {
  const socket = new WebSocket(`${url.replace(/^http/, "ws")}/ws`);
  const opened = await limited((end) => {
    socket.onopen = () => end(true);
    socket.onerror = () => end(false);
  });
  socket.close();
  if (!opened) throw new Error("it does not open, so requests use HTTP; check that each proxy forwards WebSockets");
}

async function checkStun(server) {
  const probe = new Probe([server]);
  const address = await probe.gather("srflx");
  if (address) return { detail: "public address", address };
  const { iceGatheringState, localDescription } = probe.connection;
  if (!localDescription.sdp.includes("a=candidate")) throw probe.failure(NO_NETWORK);
  // Browsers omit an address that equals the device's own. Without a response there is an error, or no end. Firefox
  // reports no errors before version 150.
  if (iceGatheringState !== "complete" || probe.errors.size) throw probe.failure(NO_STUN);
  if (!("onicecandidateerror" in probe.connection)) return { value: "not checked", detail: NO_VERDICT };
  return { detail: "the server sees the own address of this device, so there is no NAT" };
}

/** Send a message from one relayed address of a TURN server to another one. */
async function checkTurn(server) {
  const [offerer, answerer] = [new Probe([server], "relay"), new Probe([server], "relay")];
  const address = await offerer.gather("relay");
  if (!address) throw offerer.failure(NO_RELAY);
  await answerer.connection.setRemoteDescription(offerer.connection.localDescription);
  await answerer.gather("relay");
  await offerer.connection.setRemoteDescription(answerer.connection.localDescription);
  const passed = await limited((end) => {
    offerer.channel.onopen = () => offerer.channel.send("through the relay");
    answerer.channel.onmessage = () => end(true);
  });
  if (!passed) throw offerer.failure(NO_PASSAGE);
  return { detail: "a message passed the relay", address };
}

/** Show the result of a check when it is known. */
async function show(name, work) {
  const item = $("results").appendChild(make("li", `${name}: ${CHECKING}`));
  const result = { name, value: "ok", detail: "" };
  results.push(result);
  try {
    Object.assign(result, await work());
  } catch (error) {
    Object.assign(result, { value: "failed", detail: error.message });
  }
  const { value, detail, address } = result;
  const text = address ? `${detail}: ${address}` : detail;
  item.replaceChildren(make("h2", name), make("strong", value, { className: value }), make("p", text));
}

async function checkIce(api) {
  let iceServers = [];
  await show("ICE servers", async () => {
    ({ iceServers } = await api.iceServers());
    if (!iceServers.length) throw new Error(NO_SERVERS);
    return { detail: `${iceServers.flatMap(({ urls }) => urls).length} configured` };
  });
  const single = iceServers.flatMap((server) => [server.urls].flat().map((urls) => ({ ...server, urls })));
  const isTurn = ({ urls }) => urls.startsWith("turn");
  const checks = single.map((server) => show(server.urls, () => (isTurn(server) ? checkTurn : checkStun)(server)));
  if (!single.some(isTurn)) checks.push(show("TURN", () => ({ value: "not checked", detail: NO_TURN })));
  await Promise.all(checks);
}

/** Check everything, and show the results and a text for a bug report, without credentials and addresses. */
export async function check({ url }) {
  const api = new SignalClient(url, { socket: false });
  if ($("verdict").textContent === CHECKING) return;
  [results, probes] = [[], []];
  $("results").replaceChildren();
  $("report").textContent = "";
  $("verdict").textContent = CHECKING;
  await Promise.all([
    show("WebSocket", () => checkSocket(url)),
    show("HTTP", async () => ({ detail: `tornado-signal ${(await api.version()).version}` })),
    show("Signaling", () => checkSignaling(api)),
    checkIce(api),
  ]);
  for (const { connection } of probes) connection.close();
  const failed = results.filter(({ value }) => value === "failed").map(({ name }) => name);
  $("verdict").textContent = failed.length ? `These do not work: ${failed.join(", ")}` : "Everything works.";
  $("report").textContent = [
    `Origin: ${location.origin}`,
    `Browser: ${navigator.userAgent}`,
    ...results.map(({ name, value, detail }) => `${name}: ${value}${detail && `, ${detail}`}`),
  ].join("\n");
}
