/* One connection to another member of a room. */

import { CLOSE_MS } from "./link.js";
import { Negotiation, newConnection } from "./negotiation.js";

const RECONNECT_MS = 15_000; // of an interruption, after which another connection is made

/** One connection to another member of a room, from the attempt to its end; what a room gives as a peer. */
export class Peer {
  #link; // what the room has for it
  #negotiation;
  #joined = false;
  #interrupted = false;
  #timer;
  #stop = new AbortController();
  #mail = new AbortController(); // aborted when what is to be sent can go over the data channel again
  #sent = new Map(); // by the track: its transceiver
  #unused = []; // transceivers that have sent and can again, which `addTrack` leaves: descriptions would grow for ever
  streams = []; // that the other side sends

  constructor({ id, name, info }, link, streams, options) {
    Object.assign(this, { id, name, info });
    this.#link = link;
    const { signal } = this.#stop;
    const connection = (this.peerConnection = newConnection(link.iceServers, options));
    this.channel = connection.createDataChannel("room", { ...options.channel, negotiated: true, id: 0 });
    this.channel.binaryType = "arraybuffer";
    const peer = this;
    this.#negotiation = new Negotiation(connection, 1, {
      signal,
      leads: link.leads,
      begins: link.leads,
      refused: () => this.#joined && this.end(), // and another attempt is made
      get direct() {
        return peer.#joined && !peer.#interrupted;
      },
      get listed() {
        return link.listed;
      },
      send: (mail) => link.send(mail, this.#mail.signal),
    });
    const on = (target, name, act) => target.addEventListener?.(name, act, { signal });
    on(connection, "icecandidate", ({ candidate }) => candidate && this.#negotiation.add(candidate));
    on(connection, "track", ({ streams: [stream] }) => stream && this.#onTrack(stream));
    on(connection, "connectionstatechange", () => this.#changed());
    on(this.channel, "open", async () => {
      await connection.getStats().catch(() => {}); // as for a Link
      this.#join();
    });
    on(this.channel, "message", ({ data }) => {
      this.#join();
      link.tell("message", { peer: this, data });
    });
    on(this.channel, "close", () => this.end());
    on(globalThis, "online", () => {
      if (this.#interrupted) this.#again(RECONNECT_MS);
    });
    for (const stream of streams) this.add(stream);
    this.#wait();
  }

  /** Give up when the other side says nothing for a while; the one that leads first, and then tries again. */
  #wait() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.giveUp(), this.#link.leads ? this.#link.ms : 2 * RECONNECT_MS);
  }

  #join() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#joined = true;
    this.#link.joined(this);
    for (const stream of this.streams) this.#link.tell("stream", { peer: this, stream });
    this.post();
  }

  #changed() {
    const { connectionState } = this.peerConnection;
    if (connectionState === "connected") {
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
      if (this.#interrupted) this.#again(RECONNECT_MS);
    }
  }

  /** Look for another way, and again after longer and longer pauses: a browser is slow to notice another network. */
  #again(leftMs, pauseMs = leftMs / 15) {
    clearTimeout(this.#timer);
    if (leftMs <= 0) return this.end();
    if (this.#link.leads) this.#negotiation.restart();
    this.#timer = setTimeout(() => this.#again(leftMs - pauseMs, 1.2 * pauseMs), pauseMs);
  }

  /** End it if there is neither a connection nor, on the server, the other member. */
  check() {
    if (!this.#link.listed && this.peerConnection.connectionState !== "connected") this.end();
  }

  post() {
    this.#negotiation.post();
  }

  /** Take mail. */
  take(mail) {
    this.#wait();
    this.#negotiation.take(mail);
  }

  #onTrack(stream) {
    if (this.streams.includes(stream)) return;
    this.streams.push(stream);
    stream.addEventListener("removetrack", () => {
      if (stream.getTracks().length || !this.streams.includes(stream)) return;
      this.streams.splice(this.streams.indexOf(stream), 1);
      if (this.#joined) this.#link.tell("streamend", { peer: this, stream });
    });
    if (this.#joined) this.#link.tell("stream", { peer: this, stream });
  }

  /** Send the tracks of a stream which are not sent yet. */
  add(stream) {
    const connection = this.peerConnection;
    const sent = connection.getSenders().map(({ track }) => track);
    for (const track of stream.getTracks()) {
      if (sent.includes(track) || this.#sent.has(track)) continue;
      const at = this.#unused.findIndex(({ receiver }) => receiver.track.kind === track.kind);
      if (at < 0) {
        const sender = connection.addTrack(track, stream);
        const made = connection.getTransceivers().find((each) => each.sender === sender);
        this.#sent.set(track, made);
      } else {
        const [kept] = this.#unused.splice(at, 1);
        kept.sender.setStreams?.(stream);
        kept.sender.replaceTrack(track).catch(() => {}); // it has ended
        kept.direction = kept.direction === "inactive" ? "sendonly" : "sendrecv";
        this.#sent.set(track, kept);
      }
    }
  }

  remove(stream) {
    for (const track of stream.getTracks()) {
      const kept = this.#sent.get(track);
      if (!this.#sent.delete(track)) continue;
      kept.sender.replaceTrack(null).catch(() => {});
      kept.direction = kept.direction === "sendonly" ? "inactive" : "recvonly";
      this.#unused.push(kept);
    }
  }

  /** End an attempt; that the other side is there, but cannot be reached, is told. */
  giveUp() {
    if (!this.#joined && this.peerConnection.remoteDescription) this.#link.unreachable();
    this.end();
  }

  end() {
    if (this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.#mail.abort();
    this.#interrupted = false;
    this.peerConnection.close();
    this.#link.ended(this, this.#joined);
  }

  /** Send what is still to be sent, then end. */
  async close() {
    if (this.#joined) {
      await new Promise((resolve) => {
        this.channel.addEventListener("close", resolve);
        setTimeout(resolve, CLOSE_MS);
        this.channel.close();
      });
    }
    this.end();
  }
}
