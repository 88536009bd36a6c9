/** A server in memory, and connections to peers in this process: as much of both as pairing and rooms use. */

import { refused } from "../../../tornado_signal/web/client/errors.js";
import { room } from "../../../tornado_signal/web/client/room.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";
import { onAbort } from "../../../tornado_signal/web/client/timing.js";
import "./virtual_time.js";
import { FakeChannel, FakeConnection } from "./fake_rtc.js";

const connections = new Map(); // by the name in their descriptions

class LinkedChannel extends FakeChannel {
  bufferedAmount = 0;

  dispatchEvent(event) {
    this[`on${event.type}`]?.(event);
    return super.dispatchEvent(event);
  }

  send(data) {
    this.twin.dispatchEvent(new MessageEvent("message", { data }));
  }

  close() {
    for (const each of [this, this.twin]) {
      if (!each || each.readyState === "closed") continue;
      each.readyState = "closed";
      queueMicrotask(() => each.dispatchEvent(new Event("close")));
    }
  }
}

/** Connected as soon as each side has the description of the other one and a candidate. */
export class LinkedConnection extends FakeConnection {
  connectionState = "new";
  #name = `peer-${connections.size}.`;
  #channels = [];

  constructor() {
    super();
    connections.set(this.#name, this);
  }

  createDataChannel(label, { negotiated, id, protocol } = {}) {
    const channel = Object.assign(new LinkedChannel(), { label, negotiated, id, protocol });
    if (!this.#channels.length) queueMicrotask(() => this.need());
    this.#channels.push(channel);
    if (this.connectionState === "connected") queueMicrotask(() => this.#connect());
    return channel;
  }

  async createOffer() {
    return { type: "offer", sdp: this.#name };
  }

  async createAnswer() {
    return { type: "answer", sdp: this.#name };
  }

  async setLocalDescription() {
    await super.setLocalDescription();
    this.localDescription.sdp = this.#name;
    const candidate = { candidate: `of ${this.#name}` };
    setTimeout(() => this.dispatchEvent(Object.assign(new Event("icecandidate"), { candidate })));
    this.#connect();
  }

  async setRemoteDescription(description) {
    await super.setRemoteDescription(description);
    this.#connect();
  }

  async addIceCandidate(candidate) {
    await super.addIceCandidate(candidate);
    this.#connect();
  }

  async getStats() {}

  #connect() {
    const other = connections.get(this.remoteDescription?.sdp);
    const mutual = other?.remoteDescription?.sdp === this.#name;
    if (!this.candidates.length || !other?.candidates.length) return;
    if (!mutual || this.signalingState !== "stable" || other.signalingState !== "stable") return;
    for (const each of [this, other]) each.#change("connected");
    for (const channel of [...this.#channels, ...other.#channels]) {
      if (channel.twin) continue;
      const [from, to] = this.#channels.includes(channel) ? [this, other] : [other, this];
      const twin = to.#channels.find(({ negotiated, id }) => negotiated && channel.negotiated && id === channel.id);
      to.#open(
        channel,
        twin ?? Object.assign(new LinkedChannel(), { label: channel.label, protocol: channel.protocol }),
        from,
      );
    }
  }

  #open(channel, twin) {
    Object.assign(channel, { twin });
    Object.assign(twin, { twin: channel });
    if (!channel.negotiated) this.dispatchEvent(Object.assign(new Event("datachannel"), { channel: twin }));
    channel.open();
    twin.open();
  }

  #change(state) {
    if (["closed", state].includes(this.connectionState)) return;
    this.connectionState = state;
    this.dispatchEvent(new Event("connectionstatechange"));
  }

  close() {
    this.connectionState = "closed";
    for (const channel of this.#channels) channel.close();
  }
}

/** The options of pages of the fake server. */
export const PAGE = { url: "https://server", RTCPeerConnection: LinkedConnection };

/** Wait for an event. */
export const next = (target, name) => new Promise((resolve) => target.addEventListener(name, resolve, { once: true }));

/** Make a page enter the room of a test. `failures` are the codes of its errors, or the errors themselves. */
export function enter(info, options = {}) {
  const entered = room("test", { ...PAGE, info, ...options });
  entered.failures = [];
  entered.addEventListener("error", ({ error }) => entered.failures.push(error.code ?? error));
  return entered;
}

export const leave = (...rooms) => Promise.all(rooms.map((each) => each.leave()));

/** Makes all clients use it, without a network. */
export class FakeServer {
  sessions = new Map(); // by code
  #count = 0;
  #waiting = new Set();

  constructor() {
    const call =
      (name) =>
      async (...parameters) =>
        structuredClone(await this[name](...parameters));
    for (const name of ["open", "iceServers", "report", "offer", "answer", "candidates", "poll"]) {
      SignalClient.prototype[name] = call(name);
    }
    SignalClient.prototype.sessions = call("listing");
    SignalClient.prototype.hold = async () => {};
    SignalClient.prototype.candidate = (code, side, text) => call("candidates")(code, side, [text]);
    SignalClient.prototype.leave = (code) => this.remove(code);
    SignalClient.prototype.events = (topic, options) => this.events(topic, options);
  }

  open() {}

  iceServers() {
    return { iceServers: [], expiresAt: Infinity };
  }

  report() {}

  /** Resolve with what `look` returns as soon as there is something. */
  #until(look, signal) {
    return new Promise((resolve, reject) => {
      const attempt = () => {
        try {
          signal?.throwIfAborted();
          const result = look();
          if (result === undefined) return;
          resolve(result);
        } catch (error) {
          reject(error);
        }
        this.#waiting.delete(attempt);
      };
      this.#waiting.add(attempt);
      if (signal) onAbort(signal, attempt);
      attempt();
    });
  }

  #changed() {
    for (const attempt of [...this.#waiting]) attempt();
  }

  #get(code) {
    const session = this.sessions.get(code);
    if (!session) throw refused(404, "Session not found");
    return session;
  }

  listed(topic) {
    return [...this.sessions.values()].filter((each) => each.topic === topic && !each.answer).reverse();
  }

  listing(topic, { since, wait = 0, signal }) {
    const untilMs = Date.now() + wait * 1000;
    setTimeout(() => this.#changed(), wait * 1000 + 1).unref();
    return this.#until(() => {
      const sessions = this.listed(topic);
      const cursor = JSON.stringify(sessions.map(({ code }) => code));
      return cursor === since && Date.now() < untilMs ? undefined : { sessions, cursor };
    }, signal);
  }

  offer(topic, { info, offer }) {
    const code = `code-${(this.#count += 1)}`;
    const createdAt = Date.now() + this.#count;
    this.sessions.set(code, { code, topic, info, offer, createdAt, offerCandidates: [], answerCandidates: [] });
    this.#changed();
    return { code };
  }

  answer(code, answer) {
    const session = this.#get(code);
    if (session.answer) throw refused(409, "Session has an answer");
    session.answer = answer;
    this.#changed();
  }

  candidates(code, side, candidates) {
    this.#get(code)[side === "offerer" ? "offerCandidates" : "answerCandidates"].push(...candidates);
    this.#changed();
  }

  poll(code, side, { since = "0", signal }) {
    return this.#until(() => {
      const { answer, answerCandidates, offerCandidates } = this.#get(code);
      const list = side === "offerer" ? answerCandidates : offerCandidates;
      const cursor = `${list.length + (side === "offerer" && answer ? 0.5 : 0)}`;
      const candidates = list.slice(Math.floor(Number(since)));
      if (cursor === since) return undefined;
      return side === "offerer"
        ? { answer, answerCandidates: candidates, cursor }
        : { offerCandidates: candidates, cursor };
    }, signal);
  }

  remove(code) {
    this.sessions.delete(code);
    this.#changed();
  }

  async *events(topic, { signal }) {
    const seen = new Set();
    for (;;) {
      yield await this.#until(() => {
        const sessions = this.listed(topic);
        const gone = [...seen].find((code) => !sessions.some((each) => each.code === code));
        if (gone) {
          seen.delete(gone);
          return { type: "gone", data: { code: gone } };
        }
        const session = sessions.findLast(({ code }) => !seen.has(code)); // in the order of their creation
        if (!session) return undefined;
        seen.add(session.code);
        return { type: "session", data: session };
      }, signal);
    }
  }
}
