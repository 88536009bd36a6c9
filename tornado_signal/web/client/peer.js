/* One connection to another member of a room. */

import { Messages, send } from "./data.js";
import { dispatch, SignalError } from "./errors.js";
import { sendersOf, sendFile } from "./files.js";
import { Link } from "./link.js";
import { Media } from "./media.js";
import { iceFailure, isDescribed } from "./negotiation.js";
import { now, PAIR_MS } from "./timing.js";

/** @import { Attempts } from "./attempts.js" */
/** @import { Offer } from "./files.js" */
/** @import { EventFields, Mail, Member, Peer as PublicPeer, PeerEvents, Received } from "./types.d.ts" */

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

export class Contact extends Link {
  #attempts;
  #interrupted = false;
  #mail = new AbortController(); // aborted when messages can go over the data channel again
  /** @type {Media | undefined} */ #media; // once there is a stream
  /** @type {Map<string, Messages>} */ #channels = new Map(); // that this side has opened, by name
  #incoming = 0; // those that the other side has opened
  late = false; // whether it ends when another attempt needs its place
  /** @type {number | undefined} */ connectedMs; // for some seconds from then on it does not end for another one

  /** @param {Attempts} attempts @param {Member} member @param {unknown} name @param {boolean} leads */
  constructor(attempts, member, name, leads) {
    const { room } = attempts;
    super(room.ice(), room.options, 1, leads, leads);
    this.#attempts = attempts;
    this.room = room;
    this.member = member;
    this.connection = name;
    this.tries = member.tries;
    const { peerConnection: connection, signal } = this;
    const channel = connection.createDataChannel("room", { ...room.options.channel, negotiated: true, id: 0 });
    this.channel = channel;
    this.peer = new Peer(this, member);
    const open = () => this.settle().then(() => this.#join());
    channel.addEventListener("open", open);
    this.messages = this.#receive(channel, (received) => this.tell("message", received));
    channel.addEventListener("close", () => this.end());
    connection.addEventListener("datachannel", (event) => this.#onChannel(event));
    const take = (/** @type {RTCTrackEvent} */ { streams: [stream] }) =>
      stream && this.media((media) => media.take(stream));
    connection.addEventListener("track", take, { signal });
    const online = () => this.#interrupted && this.#reconnect(RECONNECT_MS);
    globalThis.addEventListener?.("online", online, { signal });
    this.prepare();
    for (const stream of room.streams) this.media((media) => media.add(stream));
    this.#wait();
  }

  get direct() {
    return this.isOpen && !this.#interrupted;
  }

  get listed() {
    return this.member.code;
  }

  /** @param {Mail} mail */
  send(mail) {
    return this.#attempts.post(this, mail, this.#mail.signal);
  }

  /** End it because of an offer that it cannot use. Then the room makes another attempt. */
  refuse() {
    if (this.isOpen) this.end();
  }

  /** Use the current ICE servers. */
  renew() {
    const ice = this.room.ice();
    if (this.ice === ice) return;
    this.ice = ice;
    try {
      this.peerConnection.setConfiguration({ iceServers: ice.iceServers, ...this.options.rtc });
    } catch {
      // Some implementations cannot, and use the earlier ones.
    }
  }

  /** @param {Offer} offer */
  receive(offer) {
    this.#join();
    offer(this.room.target, { peer: this.peer });
  }

  /** @param {RTCDataChannelEvent} event */
  #onChannel(event) {
    const { channel } = event;
    if (channel.protocol !== CHANNEL) return;
    event.stopImmediatePropagation?.(); // as for files
    if ((this.#incoming += 1) > MAX_CHANNELS) return channel.close();
    channel.addEventListener("close", () => (this.#incoming -= 1));
    this.#receive(channel, (received) => {
      const target = this.room.channels.get(channel.label);
      if (target) dispatch(target, "message", { peer: this.peer, ...received });
    });
  }

  /** @param {Error} error */
  #slow = (error) => this.room.report(Object.assign(error, { peer: this.peer }));

  /** @param {RTCDataChannel} channel @param {(received: Received) => void} use */
  #receive(channel, use) {
    channel.addEventListener("message", () => this.#join()); // also by the first part of a message
    return this.listen(channel, (received) => this.signal.aborted || use(received), this.#slow);
  }

  /** @param {string} name @param {RTCDataChannelInit} [init] */
  named(name, init) {
    const messages = this.#channels.get(name) ?? this.#open(name, init);
    this.#channels.set(name, messages);
    return { messages, peer: this.peer };
  }

  /** Open a channel, at once or when it cannot get lost. @param {string} name @param {RTCDataChannelInit} [init] */
  #open(name, init) {
    const { peerConnection: connection, signal } = this;
    const senders = sendersOf(connection);
    const open = () => connection.createDataChannel(name, { ...init, protocol: CHANNEL });
    if (senders.areDrained) return new Messages(connection, open(), signal, this.#slow);
    const later = Object.assign(new EventTarget(), { ordered: true, ...init, readyState: "connecting", close() {} });
    const messages = new Messages(connection, /** @type {any} */ (later), signal, this.#slow);
    const fail = (/** @type {Error} */ error) => signal.aborted || this.#slow(error);
    senders.open(open, signal).then((channel) => messages.use(channel), fail);
    return messages;
  }

  /** @template {keyof PeerEvents} Name @param {Name} name @param {EventFields<PeerEvents[Name]>} fields */
  tell(name, fields) {
    dispatch(this.peer, name, fields);
    this.room.tell(name, /** @type {any} */ ({ peer: this.peer, ...fields }));
  }

  /** Give up if the other side sends nothing for a while. The side that leads gives up earlier and then tries again. */
  #wait() {
    if (this.isOpen) return;
    // More time with each attempt, since the device may be slow.
    this.limit(this.leads ? PAIR_MS * Math.min(4, this.tries) : 2 * RECONNECT_MS, () => this.giveUp());
  }

  #join() {
    if (this.isOpen || this.signal.aborted) return;
    this.limit();
    this.isOpen = true;
    this.#attempts.joined(this);
    for (const stream of this.peer.streams) this.tell("stream", { stream });
    this.negotiation.post();
  }

  /** @param {RTCPeerConnectionState} state */
  changed(state) {
    if (state === "connected") {
      this.connectedMs ??= now();
      if (this.isOpen) this.limit();
      else this.#wait();
      if (!this.#interrupted) return;
      this.#interrupted = false;
      this.#mail.abort();
      this.#mail = new AbortController();
      this.negotiation.post();
    } else if (state === "failed" && !this.isOpen) {
      this.giveUp();
    } else if (["disconnected", "failed"].includes(state) && this.isOpen && !this.#interrupted) {
      this.#interrupted = true;
      this.check();
      if (!this.signal.aborted) this.#reconnect(RECONNECT_MS);
    }
  }

  /** Restart ICE repeatedly: a browser is slow to notice another network. @param {number} leftMs */
  #reconnect(leftMs, pauseMs = leftMs / 15) {
    if (leftMs <= 0) return this.end();
    if (this.leads) this.negotiation.restart();
    this.limit(pauseMs, () => this.#reconnect(leftMs - pauseMs, 1.2 * pauseMs));
  }

  /** End it if it is not connected and the server does not list the other member. */
  check() {
    if (!this.member.code && this.peerConnection.connectionState !== "connected") this.end();
  }

  /** @param {Mail} mail */
  take(mail) {
    this.#wait();
    this.negotiation.take(mail);
  }

  /** Call something with the media of this connection, unless it is closed. @param {(media: Media) => void} use */
  media(use) {
    try {
      if (!this.signal.aborted) use((this.#media ??= new Media(this)));
    } catch (error) {
      this.room.report(error);
    }
  }

  /** End an attempt; if the other side has sent a description, report that it cannot be reached. */
  giveUp() {
    if (!this.isOpen && isDescribed(this.peerConnection)) {
      const { name, info, open } = this.member;
      this.report(false);
      // The first time, the device may be slow.
      if (this.tries > 1 && !open) this.room.report(iceFailure(name ?? info, this.peerConnection));
    }
    this.end();
  }

  end() {
    if (this.signal.aborted) return;
    this.stop();
    this.#mail.abort();
    this.#attempts.ended(this);
  }

  /** Send what still must be sent, then end. */
  async close() {
    if (this.isOpen) await this.messages.close();
    this.end();
  }
}
