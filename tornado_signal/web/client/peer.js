/* One connection to another member of a room. */

import { Files, Messages } from "./data.js";
import { isDescribed, Negotiation, newConnection } from "./negotiation.js";
import { doubt, notLoaded, now } from "./timing.js";

/** @import { Peer as PublicPeer, RoomOptions } from "../client.d.ts" */
/** @import { Attempt, Mail, Member } from "./types.d.ts" */

const RECONNECT_MS = 15_000; // of an interruption, after which another connection is made

/**
 * One connection to another member of a room, from the attempt to its end; the `peer` of a room's events.
 *
 * @implements {PublicPeer}
 */
export class Peer {
  #member;
  #callbacks; // of the room
  #negotiation;
  #joined = false;
  #interrupted = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #stop = new AbortController();
  #mail = new AbortController(); // aborted when messages can go over the data channel again
  /** @type {Map<MediaStreamTrack, RTCRtpTransceiver>} */
  #transceivers = new Map(); // by the track that is sent
  /** @type {RTCRtpTransceiver[]} */
  #unused = []; // transceivers that can be used again. `addTrack` does not, so descriptions would grow without limit
  /** @type {MediaStream[]} */
  streams = []; // sent by the other side

  /**
   * @param {Member} member
   * @param {Attempt} callbacks
   * @param {Iterable<MediaStream>} streams
   * @param {RoomOptions} options
   */
  constructor(member, callbacks, streams, options) {
    this.id = member.id;
    this.name = member.name;
    this.info = member.info;
    this.#member = member;
    this.#callbacks = callbacks;
    this.peerConnection = newConnection(callbacks.iceServers, options);
    this.channel = this.peerConnection.createDataChannel("room", { ...options.channel, negotiated: true, id: 0 });
    this.channel.binaryType = "arraybuffer";
    this.messages = new Messages(this.peerConnection, this.channel, this.#stop.signal);
    this.files = new Files(this.peerConnection, this.#stop.signal, (offer) => {
      this.#join();
      callbacks.offered(this, offer);
    });
    const peer = this;
    const { leads } = callbacks;
    this.#negotiation = new Negotiation(this.peerConnection, 1, {
      signal: this.#stop.signal,
      leads,
      begins: leads,
      refused: () => {
        if (this.#joined) this.end(); // then the room makes another attempt
      },
      get direct() {
        return peer.#joined && !peer.#interrupted;
      },
      get listed() {
        return member.code;
      },
      send: (mail) => callbacks.send(mail, this.#mail.signal),
    });
    this.#listen();
    try {
      options.prepare?.(this.peerConnection);
      for (const stream of streams) this.add(stream);
    } catch (error) {
      this.#stop.abort();
      this.peerConnection.close();
      throw error;
    }
    this.#wait();
  }

  #listen() {
    const { peerConnection: connection, channel } = this;
    const options = { signal: this.#stop.signal };
    const send = (/** @type {RTCPeerConnectionIceEvent} */ { candidate }) =>
      candidate && this.#negotiation.add(candidate);
    connection.addEventListener("icecandidate", send, options);
    connection.addEventListener("track", ({ streams: [stream] }) => stream && this.#onTrack(stream), options);
    connection.addEventListener("connectionstatechange", () => this.#onState(), options);
    const open = async () => {
      await connection.getStats().catch(() => {}); // as for a Link
      this.#join();
    };
    channel.addEventListener("open", open);
    const message = (/** @type {MessageEvent} */ { data }) => {
      this.#join();
      const received = this.messages.take(data);
      if (received) this.#callbacks.tell("message", { peer: this, ...received });
    };
    channel.addEventListener("message", message, options);
    channel.addEventListener("close", () => this.end());
    const online = () => this.#interrupted && this.#reconnect(RECONNECT_MS);
    globalThis.addEventListener?.("online", online, options);
  }

  /** Give up if the other side sends nothing for a while. The side that leads gives up earlier and then tries again. */
  #wait() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.giveUp(), this.#callbacks.leads ? this.#callbacks.ms : 2 * RECONNECT_MS);
  }

  #join() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#joined = true;
    this.#callbacks.joined(this);
    for (const stream of this.streams) this.#callbacks.tell("stream", { peer: this, stream });
    this.post();
  }

  #onState() {
    const { connectionState } = this.peerConnection;
    if (connectionState === "disconnected") doubt();
    if (connectionState === "connected") {
      this.#callbacks.connectedMs ??= now();
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
   * Restart ICE, and again after longer and longer pauses: a browser is slow to notice another network.
   *
   * @param {number} leftMs
   */
  #reconnect(leftMs, pauseMs = leftMs / 15) {
    clearTimeout(this.#timer);
    if (leftMs <= 0) return this.end();
    if (this.#callbacks.leads) this.#negotiation.restart();
    this.#timer = setTimeout(() => this.#reconnect(leftMs - pauseMs, 1.2 * pauseMs), pauseMs);
  }

  /** End it if it is not connected and the server does not list the other member. */
  check() {
    if (!this.#member.code && this.peerConnection.connectionState !== "connected") this.end();
  }

  /** See `verify`. */
  async verification() {
    const { verify } = await import("./verification.js").catch(notLoaded);
    return verify(this, this.#callbacks);
  }

  post() {
    this.#negotiation.post();
  }

  /** @param {Mail} mail */
  take(mail) {
    this.#wait();
    this.#negotiation.take(mail);
  }

  /** @param {MediaStream} stream */
  #onTrack(stream) {
    if (this.streams.includes(stream)) return;
    this.streams.push(stream);
    stream.addEventListener("removetrack", () => {
      if (stream.getTracks().length || !this.streams.includes(stream)) return;
      this.streams.splice(this.streams.indexOf(stream), 1);
      if (this.#joined) this.#callbacks.tell("streamend", { peer: this, stream });
    });
    if (this.#joined) this.#callbacks.tell("stream", { peer: this, stream });
  }

  /**
   * Send the tracks of a stream that are not sent yet.
   *
   * @param {MediaStream} stream
   */
  add(stream) {
    const connection = this.peerConnection;
    const tracks = connection.getSenders().map(({ track }) => track);
    for (const track of stream.getTracks()) {
      if (tracks.includes(track) || this.#transceivers.has(track)) continue;
      const place = this.#unused.findIndex(({ receiver }) => receiver.track.kind === track.kind);
      if (place < 0) {
        const sender = connection.addTrack(track, stream);
        const transceiver = connection.getTransceivers().find((each) => each.sender === sender);
        if (transceiver) this.#transceivers.set(track, transceiver);
      } else {
        const [transceiver] = this.#unused.splice(place, 1);
        transceiver.sender.setStreams?.(stream);
        transceiver.sender.replaceTrack(track).catch(() => {}); // the transceiver has stopped
        transceiver.direction = transceiver.direction === "inactive" ? "sendonly" : "sendrecv";
        this.#transceivers.set(track, transceiver);
      }
    }
  }

  /** @param {MediaStream} stream */
  remove(stream) {
    for (const track of stream.getTracks()) {
      const transceiver = this.#transceivers.get(track);
      if (!transceiver) continue;
      this.#transceivers.delete(track);
      transceiver.sender.replaceTrack(null).catch(() => {});
      transceiver.direction = transceiver.direction === "sendonly" ? "inactive" : "recvonly";
      this.#unused.push(transceiver);
    }
  }

  /** End an attempt; if the other side has sent a description, report that it cannot be reached. */
  giveUp() {
    if (!this.#joined && isDescribed(this.peerConnection)) this.#callbacks.unreachable();
    this.end();
  }

  end() {
    if (this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.#mail.abort();
    this.#interrupted = false;
    this.peerConnection.close();
    this.#callbacks.ended(this, this.#joined);
  }

  /** Send what still must be sent, then end. */
  async close() {
    if (this.#joined) await this.messages.close();
    this.end();
  }
}
