/* Attempts to connect to the members of a room, and what goes over the connections. A room loads this file when it begins. */

import { send, toEach } from "./data.js";
import { SignalError, taken } from "./errors.js";
import { checkFile, sendFile } from "./files.js";
import { isProven, random } from "./identity.js";
import { Contact } from "./peer.js";
import { later, now, onAbort, PAIR_MS, PAUSE_MS, retry, STAGGER_MS } from "./timing.js";

/** @import { Membership } from "./room.js" */
/** @import { FileOptions, Mail, Member, Peer, Progress, Records } from "./types.d.ts" */

const MAX_ATTEMPTS = 50; // that a room begins at once, and others begin: a page may have 500 connections
const MAX_TRIES = 8; // with a member that replace each other at once
const MAX_UNREAD = 2 ** 24; // bytes of the messages that an iteration has not read

export class Attempts {
  #roster;
  // The peers that have not joined: first those that the other side leads, then those that this side leads.
  /** @type {Set<Contact>[]} */ #attempts = [new Set(), new Set()];
  #peerCount = 0; // the number of peers created so far
  // biome-ignore lint/correctness/noUnusedPrivateClassMembers: kept in a field so that bundlers do not drop the allocation
  #garbage = 0;
  /** @type {Promise<void> | undefined} */ #replying; // that a connection is closed
  #paused = false; // because a connection could not be created

  /** @param {Membership} room */
  constructor(room) {
    this.room = room;
    this.#roster = room.roster;
  }

  /** All attempts and connections. */
  get all() {
    const members = [...this.#roster.members.values()];
    return new Set(members.flatMap(({ peer, open }) => [peer ?? [], open ?? []].flat()));
  }

  /** The connections to `to`, or to all peers. Fails if it is somebody else. @param {Peer<unknown> | string} [to] */
  #recipients(to) {
    const isOpen = (/** @type {Member} */ { open }) => (open?.channel.readyState === "open" ? open : []);
    const all = [...this.#roster.members.values()].flatMap(isOpen);
    if (to === undefined) return all;
    const found = all.filter(({ peer }) => peer.id === (Object(to).id ?? to));
    if (!found.length) throw new SignalError("peer-left", "`to` is not a peer in the room");
    return found;
  }

  /**
   * Send a message, over the channel with a name if there is one.
   * @param {unknown} data @param {Peer<unknown> | string} [to] @param {string} [name]
   * @param {RTCDataChannelInit} [init]
   */
  send(data, to, name, init) {
    const choose = () => this.#recipients(to).map((each) => (name ? each.named(name, init) : each));
    return send(data, choose, to === undefined && "message-incomplete");
  }

  /** @param {Blob & { name?: string }} file @param {FileOptions<Progress> & { to?: Peer<unknown> | string }} options */
  async sendFile(file, { to, ...options }) {
    const recipients = this.#recipients(to);
    checkFile(file, options);
    const task = (/** @type {Contact} */ { files, peer }) => sendFile(files, file, options, { peer });
    await toEach(recipients, task, to === undefined && "file-incomplete").catch((error) => {
      options.signal?.throwIfAborted();
      throw error;
    });
  }

  /** @param {AbortSignal} [signal] @returns {AsyncGenerator<{ peer: Peer<unknown>, data: unknown }, void, void>} */
  async *messages(signal) {
    const { target } = this.room;
    /** @type {{ peer: Peer<unknown>, data: unknown, size: number }[]} */ const unread = [];
    let sum = 0;
    let wake = () => {};
    const awake = () => wake();
    const keep = (/** @type {any} */ { peer, data, size }) => {
      if (sum + size > MAX_UNREAD && sum) return (target.dropped += 1);
      sum += size;
      unread.push({ peer, data, size });
      awake();
    };
    target.addEventListener("message", keep);
    target.addEventListener("close", awake);
    const forget = signal && onAbort(signal, awake);
    try {
      for (;;) {
        signal?.throwIfAborted();
        const next = unread.shift();
        if (next) {
          sum -= next.size;
          yield { peer: next.peer, data: next.data };
        } else if (this.room.ended) return;
        else await new Promise((resolve) => (wake = () => resolve(0)));
      }
    } finally {
      forget?.();
      target.removeEventListener("message", keep);
      target.removeEventListener("close", awake);
    }
  }

  /** Ask whether the open connections that this side leads exist on the other side. */
  probe() {
    for (const { open } of this.#roster.members.values()) if (open?.leads) this.post(open, { of: 2 }, this.room.signal);
  }

  /** @param {Member} member */
  #leads({ id }) {
    return (this.room.target.id ?? "") < id;
  }

  /** @param {Records["mail"]} mail */
  take(mail) {
    const { from, me, info, code, connection } = mail;
    const member = this.#roster.member(from, info, me);
    const first = !this.#leads(member) && mail.description?.type === "offer" && mail.of === 1;
    const waits = member.peer && this.#attempts[0].has(member.peer) && !member.peer.late;
    const known = [member.connection, member.open?.connection].includes(connection);
    // Anybody can send mail with an id that is not proven, so that an open connection stays.
    const stays = !isProven(from) && member.open?.peerConnection.connectionState === "connected";
    // The other side has ended the current attempt, for example while this page slept. Floods must wait until it is late.
    const replaces = !known && !stays && (!waits || member.tries < MAX_TRIES);
    if (first && replaces && this.room.mayConnect(member) && this.#admits(false)) {
      member.code ??= code;
      this.#connect(member, connection);
      if (member.peer) this.begin(this.#roster.add(member, member.name));
    }
    const isOpen = member.open?.connection === connection;
    const peer = isOpen ? member.open : member.connection === connection && member.peer;
    if (mail.closed) {
      if (isOpen && peer === member.peer && this.#leads(member) && this.#admits(true)) this.#connect(member, random(4));
    } else if (peer) peer.take(mail);
    else if (/** @type {number} */ (mail.of) > 1)
      this.#replying ??= this.room.mail
        .send(from, code, { connection, closed: true })
        .catch(() => {})
        .then(() => void (this.#replying = undefined));
  }

  /** Queue a member if it needs an attempt, and begin attempts. @param {Member} [member] */
  begin(member) {
    const due = member && this.#leads(member) && member.code && !member.peer && !member.resting;
    if (due && this.room.mayConnect(member)) this.#roster.enqueue(member);
    while (!this.room.signal.aborted && this.#roster.next && this.#admits(true)) {
      const { next } = this.#roster; // if `admits` has ended an attempt, that may have begun another one
      if (next) this.#connect(next, random(4));
    }
  }

  /** Whether another attempt may begin. Ends one that is late if it needs its place. @param {boolean} leads */
  #admits(leads) {
    const attempts = this.#attempts[Number(leads)];
    if (this.#paused) return false;
    // One that has just connected may be open on the other side, which would report that this page leaves.
    /** @param {Contact} attempt */
    const ends = ({ late, connectedMs = -PAIR_MS }) => late && connectedMs + PAIR_MS <= now();
    if (attempts.size >= MAX_ATTEMPTS) [...attempts].find(ends)?.end();
    return attempts.size < MAX_ATTEMPTS;
  }

  /**
   * Begin an attempt in place of the current one. An open connection stays until the new one is open.
   * @param {Member} member @param {unknown} connection
   */
  #connect(member, connection) {
    this.#roster.dequeue(member);
    const previous = member.peer;
    const tries = (member.tries += 1);
    try {
      member.peer = new Contact(this, member, connection, this.#leads(member));
    } catch (error) {
      // The first one never works, unless the browser has too many connections.
      if (!this.#peerCount && Object(/** @type {Error} */ (error).cause).name !== "UnknownError")
        return this.room.fail(error);
      this.room.report(error);
      this.#free();
      this.#paused = true;
      this.#later(PAUSE_MS, () => (this.#paused = false), member);
      return;
    }
    if ((this.#peerCount += 1) % MAX_ATTEMPTS === 0) this.#free();
    const contact = member.peer;
    this.#attempts[Number(contact.leads)].add(contact);
    this.#later(STAGGER_MS * Math.min(4, tries), () => (contact.late = true));
    member.connection = connection;
    if (previous?.late && this.#attempts[0].has(previous)) previous.giveUp();
    else if (previous !== member.open) previous?.end();
  }

  /** @param {Contact} contact that is open */
  joined(contact) {
    const { member } = contact;
    member.tries = 0;
    this.#attempts[Number(contact.leads)].delete(contact);
    contact.report(true);
    member.open?.end();
    member.open = contact;
    this.room.target.peers.set(member.id, contact.peer);
    this.room.tell("join", { peer: contact.peer });
    this.begin();
  }

  /** Make Chromium free closed connections, which count for its limit of 500. It does so after large allocations. */
  #free() {
    try {
      this.#garbage = new ArrayBuffer(2 ** 24).byteLength;
    } catch {
      // Chromium also frees connections when memory is low.
    }
  }

  /** Change something, then begin attempts. @param {number} ms @param {() => void} change @param {Member} [member] */
  #later(ms, change, member) {
    later(ms, this.room.signal, () => {
      change();
      this.begin(member);
    });
  }

  /** @param {Contact} contact */
  ended(contact) {
    const { member, isOpen } = contact;
    this.#attempts[Number(contact.leads)].delete(contact);
    if (isOpen) {
      member.open = undefined;
      this.room.target.peers.delete(member.id);
      this.room.tell("leave", { peer: contact.peer });
    }
    if (member.peer !== contact) return;
    member.peer = member.open;
    if (member.peer) {
      Object.assign(member, { connection: member.peer.connection, tries: 0 });
      member.peer.peer.info = member.info;
      return this.begin();
    }
    if (!member.code || !member.beacon) {
      this.room.remove(member);
      return this.begin();
    }
    // An attempt without a sign of life may have gone to a copy.
    if (!isOpen && !member.beacon.alive) member.beacon.silent = member.beacons.size > 1;
    this.room.useBest(member);
    member.resting = true;
    this.#later(PAUSE_MS * (0.5 + Math.random()), () => (member.resting = false), member);
  }

  /**
   * Send mail about a connection. Returns false if it has to be sent again when the member has another beacon.
   * @param {Contact} contact @param {Mail} mail @param {AbortSignal} signal
   */
  async post({ member, connection }, mail, signal) {
    const { id, code } = member;
    if (!code) return false;
    const fields = { connection, ...mail };
    try {
      // A full beacon is replaced soon.
      const send = async () => member.code === code && ((await this.room.mail.send(id, code, fields, signal)) ?? true);
      return Boolean(await retry(send, signal));
    } catch (error) {
      if (signal.aborted) return false;
      if (taken(error)) {
        if (member.code === code) member.code = undefined; // it may get another beacon soon
        return false;
      }
      this.room.report(error);
    }
    return true;
  }
}
