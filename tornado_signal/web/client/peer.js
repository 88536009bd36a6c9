/* One connection to another member of a room. */

import { Messages, send } from "./data.js";
import { dispatch, SignalError } from "./errors.js";
import { Files, sendFile } from "./files.js";
import { Media } from "./media.js";
import { iceFailure, isDescribed, Negotiation, newConnection } from "./negotiation.js";
import { doubt, now, PAIR_MS } from "./timing.js";

/** @import { Attempts } from "./attempts.js" */
/** @import { EventFields, FileOptions, Mail, Member, Peer as PublicPeer, PeerEvents } from "./types.d.ts" */

const RECONNECT_MS = 15_000; // of an interruption, after which another connection is made
const CHANNEL = "tornado-signal-channel"; // the protocol of the channels of `room.channel`
const MAX_CHANNELS = 100; // that the other side opens

/** @implements {PublicPeer} */
class Peer extends EventTarget {
  #contact;
  /** @type {MediaStream[]} */ streams = []; // sent by the other side

  /** @param {Contact} contact @param {Member} member */
  constructor(contact, { id, name, info }) {
    super();
    this.#contact = contact;
    this.id = id;
    this.name = name;
    this.info = info;
    this.peerConnection = contact.peerConnection;
    this.channel = contact.channel;
  }

  /** @type {PublicPeer<unknown>["send"]} */
  send(data) {
    return send(data, () => [this.#open]);
  }

  /** @type {PublicPeer<unknown>["sendFile"]} */
  async sendFile(file, options = {}) {
    return sendFile(this.#open.files, file, options, {});
  }

  verification() {
    return this.#contact.room.verify(this);
  }

  get #open() {
    if (this.channel.readyState !== "open") throw new SignalError("peer-left", "The peer has left");
    return this.#contact;
  }
}

/** One connection to another member of a room, from the attempt to its end. */
export class Contact {
  #attempts;
  #negotiation;
  #joined = false;
  #interrupted = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  #stop = new AbortController();
  #mail = new AbortController(); // aborted when messages can go over the data channel again
  /** @type {Media | undefined} */ #media; // once there is a stream
  /** @type {Map<string, Messages>} */ #channels = new Map(); // that this side has opened, by name
  #incoming = 0; // those that the other side has opened
  late = false; // whether it ends when another attempt needs its place
  /** @type {number | undefined} */ connectedMs; // for some seconds from then on it does not end for another one
  beganMs = now();

  /**
   * @param {Attempts} attempts @param {Member} member @param {unknown} connection the name of the connection
   * @param {boolean} leads
   */
  constructor(attempts, member, connection, leads) {
    const { room } = attempts;
    const { options } = room;
    this.#attempts = attempts;
    this.room = room;
    this.member = member;
    this.connection = connection;
    this.leads = leads;
    this.tries = member.tries;
    let { iceServers } = room.ice();
    this.peerConnection = newConnection(iceServers, options);
    this.channel = this.peerConnection.createDataChannel("room", { ...options.channel, negotiated: true, id: 0 });
    this.peer = new Peer(this, member);
    this.messages = this.#messages(this.channel);
    this.files = new Files(this.peerConnection, this.#stop.signal, (offer) => {
      this.#join();
      offer(room.target, { peer: this.peer });
    });
    const contact = this;
    this.#negotiation = new Negotiation(this.peerConnection, 1, {
      signal: this.#stop.signal,
      leads,
      begins: leads,
      refused: () => {
        if (this.#joined) this.end(); // then the room makes another attempt
      },
      get direct() {
        return contact.#joined && !contact.#interrupted;
      },
      get listed() {
        return member.code;
      },
      renew: () => {
        if (iceServers === room.ice().iceServers) return; // it has them
        iceServers = room.ice().iceServers;
        try {
          this.peerConnection.setConfiguration({ iceServers, ...options.rtc });
        } catch {
          // Some implementations cannot, and use the earlier ones.
        }
      },
      send: (mail) => attempts.post(this, mail, this.#mail.signal),
    });
    this.#listen();
    try {
      options.prepare?.(this.peerConnection);
    } catch (error) {
      this.#stop.abort();
      this.peerConnection.close();
      throw error;
    }
    for (const stream of room.streams) this.media((media) => media.add(stream));
    this.#wait();
  }

  #listen() {
    const { peerConnection: connection, channel } = this;
    const options = { signal: this.#stop.signal };
    const send = (/** @type {RTCPeerConnectionIceEvent} */ { candidate }) =>
      candidate && this.#negotiation.add(candidate);
    connection.addEventListener("icecandidate", send, options);
    const take = (/** @type {RTCTrackEvent} */ { streams: [stream] }) =>
      stream && this.media((media) => media.take(stream, () => this.#joined));
    connection.addEventListener("track", take, options);
    connection.addEventListener("connectionstatechange", () => this.#onState(), options);
    const open = async () => {
      await connection.getStats().catch(() => {}); // as for a Link
      this.#join();
    };
    channel.addEventListener("open", open);
    this.#receive(channel, this.messages, (received) => this.tell("message", received));
    const named = (/** @type {RTCDataChannelEvent} */ event) => {
      const { channel } = event;
      if (channel.protocol !== CHANNEL) return;
      event.stopImmediatePropagation?.(); // as for files
      if ((this.#incoming += 1) > MAX_CHANNELS) return channel.close();
      channel.addEventListener("close", () => (this.#incoming -= 1));
      this.#receive(channel, this.#messages(channel), (received) => {
        const target = this.room.channels.get(channel.label);
        if (target) dispatch(target, "message", { peer: this.peer, ...received });
      });
    };
    connection.addEventListener("datachannel", named);
    channel.addEventListener("close", () => this.end());
    const online = () => this.#interrupted && this.#reconnect(RECONNECT_MS);
    globalThis.addEventListener?.("online", online, options);
  }

  /** @param {RTCDataChannel} channel */
  #messages(channel) {
    const slow = (/** @type {SignalError} */ error) => this.room.report(Object.assign(error, { peer: this.peer }));
    return new Messages(this.peerConnection, channel, this.#stop.signal, slow);
  }

  /**
   * @param {RTCDataChannel} channel @param {Messages} messages
   * @param {(received: { data: unknown, size: number }) => void} use
   */
  #receive(channel, messages, use) {
    channel.addEventListener("message", ({ data }) => {
      if (this.#stop.signal.aborted) return;
      this.#join();
      const received = messages.take(data);
      if (received) use(received);
    });
  }

  /** @param {string} name @param {RTCDataChannelInit} [init] */
  named(name, init) {
    const known = this.#channels.get(name);
    if (known) return { messages: known, peer: this.peer };
    const messages = this.#messages(this.peerConnection.createDataChannel(name, { ...init, protocol: CHANNEL }));
    this.#channels.set(name, messages);
    return { messages, peer: this.peer };
  }

  /** @template {keyof PeerEvents} Name @param {Name} name @param {EventFields<PeerEvents[Name]>} fields */
  tell(name, fields) {
    dispatch(this.peer, name, fields);
    this.room.tell(name, /** @type {any} */ ({ peer: this.peer, ...fields }));
  }

  /** Give up if the other side sends nothing for a while. The side that leads gives up earlier and then tries again. */
  #wait() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    // More time with each attempt, since the device may be slow.
    const ms = this.leads ? PAIR_MS * Math.min(4, this.tries) : 2 * RECONNECT_MS;
    this.#timer = setTimeout(() => this.giveUp(), ms);
  }

  #join() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#joined = true;
    this.#attempts.joined(this);
    for (const stream of this.peer.streams) this.tell("stream", { stream });
    this.post();
  }

  #onState() {
    const { connectionState } = this.peerConnection;
    if (connectionState === "disconnected") doubt();
    if (connectionState === "connected") {
      this.connectedMs ??= now();
      if (this.#joined) clearTimeout(this.#timer);
      this.#wait();
      if (!this.#interrupted) return;
      this.#interrupted = false;
      this.#mail.abort();
      this.#mail = new AbortController();
      this.post();
    } else if (connectionState === "failed" && !this.#joined) {
      this.giveUp();
    } else if (["disconnected", "failed"].includes(connectionState) && this.#joined && !this.#interrupted) {
      this.#interrupted = true;
      this.check();
      if (this.#interrupted) this.#reconnect(RECONNECT_MS);
    }
  }

  /**
   * Restart ICE, after longer and longer pauses: a browser is slow to notice another network.
   * @param {number} leftMs
   */
  #reconnect(leftMs, pauseMs = leftMs / 15) {
    clearTimeout(this.#timer);
    if (leftMs <= 0) return this.end();
    if (this.leads) this.#negotiation.restart();
    this.#timer = setTimeout(() => this.#reconnect(leftMs - pauseMs, 1.2 * pauseMs), pauseMs);
  }

  /** End it if it is not connected and the server does not list the other member. */
  check() {
    if (!this.member.code && this.peerConnection.connectionState !== "connected") this.end();
  }

  post() {
    this.#negotiation.post();
  }

  /** @param {Mail} mail */
  take(mail) {
    this.#wait();
    this.#negotiation.take(mail);
  }

  /** Call something with the media of this connection, unless it is closed. @param {(media: Media) => void} use */
  media(use) {
    try {
      if (!this.#stop.signal.aborted) use((this.#media ??= new Media(this)));
    } catch (error) {
      this.room.report(error);
    }
  }

  /** End an attempt; if the other side has sent a description, report that it cannot be reached. */
  giveUp() {
    if (!this.#joined && isDescribed(this.peerConnection)) {
      const { name, info } = this.member;
      this.#attempts.unreachable(this, iceFailure(name ?? info, this.peerConnection));
    }
    this.end();
  }

  end() {
    if (this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.#mail.abort();
    this.#interrupted = false;
    this.peerConnection.close();
    this.#attempts.ended(this, this.#joined);
  }

  /** Send what still must be sent, then end. */
  async close() {
    if (this.#joined) await this.messages.close();
    this.end();
  }
}
