/* Everybody under a topic, connected to everybody. */

import { send } from "./data.js";
import {
  Identity,
  isName,
  isProven,
  MAX_NAME,
  ownInfo,
  ownSecret,
  ROOM,
  random,
  scopeOf,
  seal,
  topicOf,
  unseal,
  VERSION,
} from "./identity.js";
import { Peer } from "./peer.js";
import { MAX_PEERS, publishHeld, Servers } from "./servers.js";
import {
  backOff,
  Deadline,
  dispatch,
  iceFailure,
  makePace,
  notLoaded,
  PAIR_MS,
  PAUSE_MS,
  PeerError,
  retry,
  STAGGER_MS,
  sleep,
  taken,
  WAIT_S,
} from "./timing.js";

/** @import { FileOptions, Peer as PublicPeer, Progress, RoomOptions, Session } from "../client.d.ts" */
/** @import { Cipher } from "./secret.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Attempt, Beacon, Fields, Mail, Member, TellRoom } from "./types.d.ts" */

const MAX_MAILS = 250; // to one beacon; a quarter of the server's limit
const MAX_ATTEMPTS = 50; // that a room begins at once, and others begin: a page may have 500 connections
const HINT_MS = 10_000; // alone in a room of a loopback origin

/**
 * Whether a beacon is used instead of another one of the same member. The page that entered last counts, and its last
 * beacon. Of equal beacons, the later one is a copy that a stranger has made.
 *
 * @param {Beacon} one
 * @param {Beacon} [other]
 */
const supersedes = (one, other) =>
  !other || (one.since - other.since || one.at - other.at || other.createdAt - one.createdAt) > 0;

/**
 * The order in which members get the places of a room, for sorting.
 *
 * @param {{ id: string, entry?: number }} one
 * @param {{ id: string, entry?: number }} other
 */
const compareEntries = ({ id, entry = Infinity }, other) =>
  entry - (other.entry ?? Infinity) || (id < other.id ? -1 : Number(id > other.id));

/** Members that wait for an attempt: the least tried first, in random order. */
class Queue {
  /** @type {Member[][]} */
  #byTries = Array.from({ length: 5 }, () => []);

  /** @param {Member} member */
  add(member) {
    this.delete(member);
    member.waiting = this.#byTries[Math.min(4, member.tries)];
    member.place = member.waiting.push(member) - 1;
  }

  /** @param {Member} member */
  delete(member) {
    const { waiting, place } = member;
    const last = waiting?.pop();
    if (waiting && last && last !== member) Object.assign((waiting[Number(place)] = last), { place });
    member.waiting = undefined;
  }

  /** @returns {Member | undefined} */
  get next() {
    const waiting = this.#byTries.find(({ length }) => length) ?? [];
    return waiting[Math.floor(Math.random() * waiting.length)];
  }
}

/**
 * Everybody under a topic, connected to everybody: events `listed`, `full`, `join`, `leave`, `message`, `stream`,
 * `streamend`, `error` and `close`.
 *
 * A member has an id and, while it is in the room, a session under the topic: its beacon. Nobody answers a beacon. Its
 * `offer` is `{id, at, since, me}`, its `info` the member's. Its candidates are the mail to the member:
 *
 *   {from, me, info, code, connection, description, of, candidates}
 *
 * `from`, `me`, `info` and `code` are the sender's id, name, info and beacon. `connection` names the attempt that the
 * mail belongs to. The others are described at `Negotiation`, which uses a data channel when there is one. Of two
 * members, the one with the smaller id leads: it begins.
 *
 * Offer and mail are JSON. A member has a secret, and an id that is made from it (`Identity`). It signs both, together
 * with the topic and the id of the recipient of the mail; its signature stands before the JSON. On a page over plain
 * HTTP, which cannot sign, a member without a name has a random id.
 */
class Room extends EventTarget {
  /** @type {string | undefined} */
  id;
  listed = false;
  full = false;
  /** @type {Map<string, Peer>} */
  peers = new Map();
  /** @type {Map<string, Member>} */
  #members = new Map(); // by id
  /** @type {Map<string, Member>} */
  #byBeacon = new Map(); // the members by the codes of their beacons
  /** @type {Map<string | undefined, Set<Member>>} */
  #byName = new Map(); // the members that use a name, which belongs to the first one
  #queue = new Queue();
  // By the peers that have not joined. There is one map for each value of `leads`, so that no check has to filter.
  /** @type {Record<string, Map<Peer, Attempt>>} */
  #attempts = { true: new Map(), false: new Map() };
  #peerCount = 0; // the number of peers created so far
  // biome-ignore lint/correctness/noUnusedPrivateClassMembers: kept in a field so that bundlers do not drop the allocation
  #garbage = 0;
  #hinted = false;
  #paused = false; // because a connection could not be created
  /** @type {Set<MediaStream>} */
  #streams = new Set();
  #topic;
  #origin;
  #options;
  /** @type {Identity | undefined} */
  #identity;
  /** @type {Cipher | undefined} */
  #cipher; // of a room with a password
  #secret = random(); // of the beacon
  #at = 0; // when the beacon was created
  #since = 0; // when this page entered, by the server's clock; 0 if it does not know that yet
  #sinceSent = false; // whether the beacon contains it
  #rival = -1; // when another page with the same secret entered; 0 if that is unknown, -1 if there is none
  #offers = new Set(); // of this page's beacons
  #settle = () => {}; // called when all members that entered before are known
  #settled = false;
  /** @type {{ id: string, entry?: number } | undefined} */
  #last; // the member with the last place, if there are as many members as places
  /** @type {RTCIceServer[]} */
  #iceServers = [];
  /** @type {SignalClient | undefined} */
  #client;
  /** @type {string | undefined} */
  #code; // of the beacon
  #stop = new AbortController();

  /**
   * @param {string} topic
   * @param {RoomOptions} options
   */
  constructor(topic, options) {
    super();
    this.#topic = topicOf(ROOM, topic);
    this.#options = options;
    this.#origin = options.origin ?? globalThis.origin ?? "";
    if (options.max !== undefined && !(Number.isInteger(options.max) && options.max > 0)) {
      throw new PeerError("max-invalid", "`max` is the number of members, at least 1");
    }
    if (!options.secret) {
      this.#identity = Identity.ofPage(options.me === undefined ? random() : ownSecret());
      this.id = this.#identity?.id ?? random(4);
    }
    const { signal } = this.#stop;
    const hide = () => {
      this.#withdraw();
      for (const peer of this.#all) peer.end(); // so that the others notice at once
    };
    globalThis.addEventListener?.("pagehide", hide, { signal });
    options.signal?.addEventListener("abort", () => this.leave(), { signal });
    if (options.signal?.aborted) this.leave();
    else this.#run(new Servers(options, signal, (error) => this.#tell("error", { error })));
  }

  /**
   * Send a stream to all, now and later.
   *
   * @param {MediaStream} stream
   */
  addStream(stream) {
    this.#streams.add(stream);
    for (const peer of this.#all) peer.add(stream);
  }

  /** @param {MediaStream} stream */
  removeStream(stream) {
    this.#streams.delete(stream);
    for (const peer of this.#all) peer.remove(stream);
  }

  /** How many texts in a room with a password could not be decrypted. */
  get ignored() {
    return this.#cipher?.ignored ?? 0;
  }

  /** All attempts and connections. */
  get #all() {
    return new Set([...this.peers.values(), ...[...this.#members.values()].flatMap(({ peer }) => peer ?? [])]);
  }

  /**
   * The open peers that `to` names; all if it is undefined.
   *
   * @param {PublicPeer | string} [to]
   */
  #recipients(to) {
    const peers = to === undefined ? [...this.peers.values()] : [this.peers.get(typeof to === "string" ? to : to.id)];
    return peers.filter((peer) => peer !== undefined).filter(({ channel }) => channel.readyState === "open");
  }

  /**
   * Send to one peer (or its id), or to all.
   *
   * @param {unknown} data
   * @param {PublicPeer | string} [to]
   */
  send(data, to) {
    return send(
      data,
      this.#recipients(to).map(({ messages }) => messages),
    );
  }

  /**
   * Send a file to one peer (or its id), or to all.
   *
   * @param {Blob & { name?: string }} file
   * @param {FileOptions<Progress> & { to?: PublicPeer | string }} [options]
   */
  async sendFile(file, { to, ...options } = {}) {
    const peers = this.#recipients(to);
    if (to !== undefined && !peers.length) throw new PeerError("peer-left", "The peer is not in the room");
    /** @type {Error[]} */
    const errors = [];
    const fail = (/** @type {PublicPeer} */ peer) => (/** @type {Error} */ error) =>
      errors.push(Object.assign(error, { peer }));
    await Promise.all(peers.map((peer) => peer.files.send(file, options, { peer }).catch(fail(peer))));
    options.signal?.throwIfAborted();
    if (to !== undefined && errors.length) throw errors[0];
    const error = new AggregateError(errors, "Not all peers received the file");
    if (errors.length) throw Object.assign(error, { code: "file-incomplete" });
  }

  async leave() {
    if (this.#stop.signal.aborted) return;
    this.#withdraw();
    this.#stop.abort();
    await Promise.all([...this.#all].map((peer) => peer.close()));
    this.#tell("close");
  }

  /** @param {Servers} servers */
  async #run(servers) {
    const { signal } = this.#stop;
    const { me, secret, password } = this.#options;
    try {
      if (password !== undefined) {
        const { Cipher } = await import("./secret.js").catch(notLoaded);
        this.#cipher = await Cipher.of(this.#origin, this.#topic, password);
        this.#topic = this.#cipher.topic;
      }
      const named = () => import("./named.js").then((part) => part.named(secret ?? ""), notLoaded);
      this.#identity = await (secret || (me && !this.#identity) ? named() : this.#identity);
      this.id = this.#identity?.id ?? this.id;
      if (me !== undefined && !isName(me))
        throw new PeerError("name-invalid", `A name has one to ${MAX_NAME} characters`);
      if (me) await servers.first((client) => this.#checkName(client, me));
      for (;;) {
        await servers.first((client) => this.#attend(client, servers));
        await sleep(backOff(0), signal);
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#tell("error", { error: /** @type {Error} */ (error) });
      this.leave();
    }
  }

  /**
   * Fail if another member has the name.
   *
   * @param {SignalClient} client
   * @param {string} me
   */
  async #checkName(client, me) {
    const { sessions } = await client.sessions(this.#topic, { limit: MAX_PEERS, signal: this.#stop.signal });
    for (const { offer, createdAt } of sessions) {
      const beacon = await this.#unseal(offer, "beacon", { createdAt });
      if (beacon && beacon.id !== this.id && beacon.me === me)
        throw new PeerError("name-taken", `Another member has the name ${me}`);
    }
  }

  /**
   * Be in the room with one beacon, until another is needed.
   *
   * @param {SignalClient} client
   * @param {Servers} servers
   */
  async #attend(client, servers) {
    const { signal } = this.#stop;
    const { me, info = ownInfo() } = this.#options;
    this.#iceServers = (await servers.iceServers(client)).iceServers;
    this.#at = Math.max(Date.now(), this.#at + 1); // also after the clock was set back
    this.#sinceSent = this.#since > 0;
    const beacon = { v: VERSION, id: this.id, at: this.#at, now: Date.now(), since: this.#since || undefined, me };
    const offer = await this.#seal(this.#cipher ? { ...beacon, info } : beacon);
    this.#offers.add(offer);
    const fields = { info: this.#cipher ? "-" : info, offer, secret: this.#secret };
    const { code, keep } = await publishHeld(client, this.#topic, fields);
    this.#withdraw();
    this.#client = client;
    this.#code = code;
    if (signal.aborted) this.#withdraw();
    else this.#setListed(true);
    this.#hint();
    const deadline = new Deadline(signal);
    // The events that follow list the current members.
    this.#byBeacon.clear();
    this.#queue = new Queue();
    for (const member of this.#members.values()) {
      member.code = member.beacon = undefined;
      member.beacons.clear();
    }
    for (const member of this.#members.values()) if (!member.peer) this.#remove(member);
    try {
      const preferred = servers.preferred(client, deadline.signal);
      // In a room with places, mail waits until it is known who has one.
      this.#settled = false;
      const settled = new Promise((/** @type {(value?: undefined) => void} */ resolve) => (this.#settle = resolve));
      if (!this.#options.max) this.#settle();
      const mail = settled.then(() => this.#receive(client, code, deadline, servers, keep));
      await Promise.race([this.#watch(client, deadline), mail, preferred]);
    } finally {
      deadline.end();
      this.#setListed(false);
    }
  }

  /** Name the origin if the room is empty for a while on a loopback address, of which there are several. */
  #hint() {
    const { hostname = "", origin } = globalThis.location ?? {};
    if (this.#hinted || !/^(localhost|127\.|\[::1)/.test(hostname)) return;
    this.#hinted = true;
    const log = () => {
      if (this.#members.size) return;
      console.info(`No other page of ${origin} is in ${this.#topic}. localhost and 127.0.0.1 are different origins.`);
    };
    sleep(0, this.#stop.signal, HINT_MS).then(log, () => {});
  }

  /** @param {boolean} listed */
  #setListed(listed) {
    this.listed = listed;
    this.#tell("listed");
  }

  /**
   * Follow the beacons of all members until this one's must be replaced.
   *
   * @param {SignalClient} client
   * @param {Deadline} deadline
   */
  async #watch(client, { signal }) {
    for await (const { type, data } of client.events(this.#topic, { signal })) {
      if (type === "session") await this.#see(data);
      else this.#gone(data.code);
      this.#assignPlaces();
      if (this.#rival < 0 || !this.#since) continue;
      if (this.#rival > this.#since) {
        throw new PeerError("replaced", "Another page is in this room with the same secret");
      }
      if (!this.#sinceSent) return; // the next beacon says when this page entered
    }
  }

  /**
   * Receive the mail to this member's beacon until the beacon's session is nearly full.
   *
   * @param {SignalClient} client
   * @param {string} code
   * @param {Deadline} deadline
   * @param {Servers} servers
   * @param {() => Promise<void>} keep
   */
  async #receive(client, code, { signal }, servers, keep) {
    const own = { secret: this.#secret, signal };
    const pace = makePace();
    /** @type {string | undefined} */
    let since;
    const poll = async () => {
      await pace(signal);
      await keep();
      return client.poll(code, "offerer", { wait: WAIT_S, since, ...own });
    };
    try {
      for (let count = 0; count < MAX_MAILS; ) {
        const { answer, answerCandidates = [], cursor } = await retry(poll, signal, servers.tries);
        for (const each of answerCandidates) await this.#take(each);
        if (answer) return; // an answered beacon is no longer listed
        since = cursor;
        count += answerCandidates.length;
        this.#iceServers = (await servers.iceServers(client)).iceServers;
      }
    } catch (error) {
      if (!taken(error)) throw error;
    }
  }

  #withdraw() {
    if (this.#code) this.#client?.leave(this.#code, "offerer", { secret: this.#secret });
    this.#code = undefined;
  }

  /** @param {Session} session */
  async #see({ code, offer, createdAt, ...session }) {
    const fields = await this.#unseal(offer, "beacon", { createdAt });
    const info = this.#cipher ? fields?.info : session.info;
    if (!fields || typeof info !== "string") return;
    const { id, me, at } = fields;
    const since = fields.since ?? 0;
    if (code === this.#code) {
      this.#since ||= createdAt;
      this.#settled = true; // sessions are listed in the order of their creation
      this.#settle();
    } else if (id === this.id && this.#identity && !this.#offers.has(offer)) this.#rival = Math.max(this.#rival, since);
    if (id === this.id || this.#stop.signal.aborted) return;
    const member = this.#member(id, info);
    const beacon = { code, info, me, at, since, createdAt };
    member.beacons.set(code, beacon);
    this.#byBeacon.set(code, member);
    if (supersedes(beacon, member.beacon)) this.#use(member, beacon);
  }

  /**
   * @param {Member} member
   * @param {Beacon} beacon
   */
  #use(member, beacon) {
    const { code, info, me } = beacon;
    this.#add(member, me);
    const entry = beacon.since || beacon.createdAt;
    Object.assign(member, { code, info, beacon, entry, resting: false });
    if (!member.peer) return this.#begin(member);
    member.peer.info = info;
    member.peer.post();
  }

  /** @param {string} code */
  #gone(code) {
    const member = this.#byBeacon.get(code);
    this.#byBeacon.delete(code);
    member?.beacons.delete(code);
    if (!member || (member.beacon ?? member).code !== code) return;
    member.code = member.beacon = undefined;
    /** @type {Beacon | undefined} */
    let next;
    for (const beacon of member.beacons.values()) if (supersedes(beacon, next)) next = beacon;
    if (next) return this.#use(member, next);
    const { open, peer } = member;
    open?.peer.check();
    if (peer) peer.check();
    else this.#remove(member);
  }

  /** Find out who has a place in a room with a maximum, and end connections of members without one. */
  #assignPlaces() {
    const { max } = this.#options;
    if (!max || !this.#settled || this.#stop.signal.aborted) return;
    const own = { id: this.id ?? "", entry: this.#since };
    const members = [...this.#members.values()];
    this.#last = [own, ...members].sort(compareEntries)[max - 1];
    const full = !this.#hasPlace(own);
    for (const member of members) {
      if (!full && this.#hasPlace(member)) continue;
      this.#queue.delete(member);
      for (const peer of [member.peer, member.open?.peer]) peer?.end();
    }
    if (full !== this.full) {
      this.full = full;
      this.#tell("full");
    }
    for (const member of members) if (member === this.#members.get(member.id)) this.#begin(member);
  }

  /** @param {{ id: string, entry?: number }} member */
  #hasPlace(member) {
    return !this.#last || compareEntries(member, this.#last) <= 0;
  }

  /**
   * Whether a member and this page have places.
   *
   * @param {Member} member
   */
  #mayConnect(member) {
    return !this.#options.max || (this.#settled && !this.full && this.#hasPlace(member));
  }

  /**
   * Return the member with an id, or a new one that is not added yet.
   *
   * @param {string} id
   * @param {string} info
   * @param {string} [name]
   * @returns {Member}
   */
  #member(id, info, name) {
    return this.#members.get(id) ?? { id, info, name, tries: 0, beacons: new Map() };
  }

  /**
   * Add a member, or rename it.
   *
   * @param {Member} member
   * @param {string} [name]
   */
  #add(member, name) {
    if (this.#members.get(member.id) === member && member.name === name) return;
    this.#remove(member);
    this.#members.set(member.id, Object.assign(member, { name }));
    this.#byName.set(name, (this.#byName.get(name) ?? new Set()).add(member));
  }

  /** @param {Member} member */
  #remove(member) {
    this.#queue.delete(member);
    if (this.#members.get(member.id) !== member) return;
    this.#members.delete(member.id);
    const others = this.#byName.get(member.name);
    others?.delete(member);
    const [owner] = others ?? [];
    if (owner) this.#begin(owner);
    else this.#byName.delete(member.name);
  }

  /**
   * Whether a member uses a name that another one used first.
   *
   * @param {Member} member
   */
  #nameConflicts({ id, name }) {
    const [owner] = this.#byName.get(name) ?? [];
    return name && (name === this.#options.me || (owner ?? { id }).id !== id);
  }

  /**
   * Whether this side leads in attempts with a member.
   *
   * @param {Member} member
   */
  #leads({ id }) {
    return (this.id ?? "") < id;
  }

  /** @param {string} text */
  async #take(text) {
    const mail = await this.#unseal(text, "mail", { to: this.id, code: this.#code });
    if (!mail || mail.from === this.id || this.#stop.signal.aborted) return;
    const { from, me, info, code, connection } = mail;
    const member = this.#member(from, info, me);
    const first = !this.#leads(member) && mail.description?.type === "offer" && mail.of === 1;
    // It replaces the current attempt only if that is late.
    const attempt = member.peer && this.#attempts.false.get(member.peer);
    const known = [member.connection, member.open?.connection].includes(connection);
    // Anybody can send mail with an id that is not proven, so that an open connection stays.
    const stays = !isProven(from) && member.open?.peer.peerConnection.connectionState === "connected";
    const replaces = !known && !stays && attempt?.late !== false;
    if (first && replaces && this.#mayConnect(member) && !this.#nameConflicts(member) && this.#admits(false)) {
      member.code ??= code;
      this.#connect(member, connection);
      if (member.peer) this.#add(member, member.name);
    }
    const peer = member.open?.connection === connection ? member.open?.peer : member.peer;
    if (known || member.connection === connection) peer?.take(mail);
  }

  /**
   * Queue a member if it needs an attempt, and begin attempts.
   *
   * @param {Member} [member]
   */
  #begin(member) {
    const due = member && this.#leads(member) && member.code && !member.peer && !member.resting;
    if (due && this.#mayConnect(member) && !this.#nameConflicts(member)) this.#queue.add(member);
    while (!this.#stop.signal.aborted && this.#queue.next && this.#admits(true)) {
      const { next } = this.#queue; // if `admits` has ended an attempt, that may have begun another one
      if (next) this.#connect(next, random(4));
    }
  }

  /**
   * Whether another attempt may begin. Any number of members can be listed, so an attempt that is late ends for it.
   *
   * @param {boolean} leads
   */
  #admits(leads) {
    const attempts = this.#attempts[`${leads}`];
    if (this.#paused) return false;
    if (attempts.size >= MAX_ATTEMPTS) [...attempts].find(([, { late }]) => late)?.[0].end();
    return attempts.size < MAX_ATTEMPTS;
  }

  /**
   * Begin an attempt, which replaces the current one. An open connection stays until the new one is open.
   *
   * @param {Member} member
   * @param {unknown} connection
   */
  #connect(member, connection) {
    this.#queue.delete(member);
    const previous = member.peer;
    const tries = (member.tries += 1);
    const times = Math.min(4, tries); // more time with each attempt, since the device may be slow
    const callbacks = this.#callbacks(member, connection, PAIR_MS * times, tries);
    try {
      member.peer = new Peer(member, callbacks, this.#streams, this.#options);
    } catch (error) {
      if (!this.#peerCount) throw error; // it never works
      this.#tell("error", { error: /** @type {Error} */ (error) });
      this.#free();
      this.#paused = true;
      this.#later(PAUSE_MS, () => (this.#paused = false), member);
      return;
    }
    if ((this.#peerCount += 1) % MAX_ATTEMPTS === 0) this.#free();
    this.#attempts[`${callbacks.leads}`].set(member.peer, callbacks);
    this.#later(STAGGER_MS * times, () => (callbacks.late = true));
    member.connection = connection;
    if (previous !== member.open?.peer) previous?.giveUp();
  }

  /**
   * @param {Member} member
   * @param {unknown} connection
   * @param {number} ms
   * @param {number} tries
   * @returns {Attempt}
   */
  #callbacks(member, connection, ms, tries) {
    const leads = this.#leads(member);
    return {
      leads,
      ms,
      late: false,
      iceServers: this.#iceServers,
      send: (mail, signal) => this.#send(member, { connection, ...mail }, signal),
      tell: this.#tell,
      offered: (peer, offer) => offer(this, { peer }),
      joined: (peer) => {
        member.tries = 0;
        this.#attempts[`${leads}`].delete(peer);
        member.open?.peer.end();
        member.open = { peer, connection };
        this.peers.set(member.id, peer);
        this.#tell("join", { peer });
        this.#begin();
      },
      unreachable: () => {
        const error = iceFailure(member.name ?? member.info);
        if (tries > 1 && !member.open) this.#tell("error", { error }); // the first time, the device may be slow
      },
      ended: (peer, joined) => this.#ended(member, peer, joined),
    };
  }

  /** Make Chromium free closed connections, which count for its limit of 500. It does so after large allocations. */
  #free() {
    try {
      this.#garbage = new ArrayBuffer(2 ** 24).byteLength;
    } catch {
      // Chromium also frees connections when memory is low.
    }
  }

  /**
   * Change something after a delay, and then begin attempts.
   *
   * @param {number} ms
   * @param {() => void} change
   * @param {Member} [member]
   */
  #later(ms, change, member) {
    const begin = () => {
      change();
      this.#begin(member);
    };
    sleep(0, this.#stop.signal, ms).then(begin, () => {});
  }

  /**
   * @param {Member} member
   * @param {Peer} peer
   * @param {boolean} joined
   */
  #ended(member, peer, joined) {
    this.#attempts[`${this.#leads(member)}`].delete(peer);
    if (joined) {
      member.open = undefined;
      this.peers.delete(member.id);
      this.#tell("leave", { peer });
    }
    if (member.peer !== peer) return;
    Object.assign(member, { peer: undefined }, member.open && { ...member.open, tries: 0 });
    if (member.peer) {
      member.peer.info = member.info;
      return this.#begin();
    }
    if (!member.code || !member.beacon) {
      this.#remove(member);
      this.#assignPlaces();
      return this.#begin();
    }
    member.resting = true;
    this.#later(PAUSE_MS * (0.5 + Math.random()), () => (member.resting = false), member);
  }

  /**
   * Send mail to a member. Returns false if it has to be sent again when the member has another beacon.
   *
   * @param {Member} member
   * @param {Fields} mail
   * @param {AbortSignal} signal
   */
  async #send(member, mail, signal) {
    const { id, code } = member;
    if (!code) return false;
    const { me, info = ownInfo() } = this.#options;
    const fields = { from: this.id, me, info, code: this.#code, ...mail };
    const text = await this.#seal(fields, id, code);
    try {
      await retry(async () => this.#client?.candidate(code, "answerer", text, { signal }), signal);
    } catch (error) {
      if (signal.aborted) return false;
      if (taken(error)) {
        if (member.code === code) member.code = undefined; // it may get another beacon soon
        return false;
      }
      this.#tell("error", { error: /** @type {Error} */ (error) });
    }
    return true;
  }

  /**
   * Encode what is sent to a member, whose beacon has a code, or to all.
   *
   * @param {Fields} fields
   * @param {string} [to]
   * @param {string} [code]
   */
  async #seal(fields, to, code) {
    const text = await seal(this.#identity, scopeOf(this.#origin, this.#topic), fields, to, code);
    return this.#cipher ? this.#cipher.seal(text, code) : text;
  }

  /**
   * Decode what a member has sent to this member, whose beacon has a code, or to all.
   *
   * @template {"beacon" | "mail"} Kind
   * @param {string} text
   * @param {Kind} kind
   * @param {{ to?: string, code?: string, createdAt?: number }} fields
   */
  async #unseal(text, kind, { to, code, createdAt }) {
    const plain = this.#cipher ? await this.#cipher.unseal(text, code) : text;
    return unseal(scopeOf(this.#origin, this.#topic), plain, kind, to, code, createdAt);
  }

  /** @type {TellRoom} */
  #tell = (name, fields) => {
    dispatch(this, name, fields);
  };
}

/**
 * Be in a room: everybody who calls this with the same topic is connected to everybody else.
 *
 * @param {string} topic
 * @param {RoomOptions} options
 */
export const room = (topic, options = {}) => new Room(topic, options);

/**
 * Be in the room of all devices in the same network.
 *
 * @param {RoomOptions} options
 */
room.nearby = async (options = {}) => (await import("./nearby.js").catch(notLoaded)).nearby(options);
