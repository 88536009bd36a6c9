import { Identity, isProven, ownInfo, ROOM, random, scopeOf, seal, topicOf, unseal, VERSION } from "./identity.js";
import { publishHeld, Servers } from "./servers.js";
import {
  advise,
  backOff,
  Deadline,
  dispatch,
  loadPart,
  makePace,
  notLoaded,
  now,
  onAbort,
  PAIR_MS,
  PAUSE_MS,
  report,
  retry,
  SignalError,
  STAGGER_MS,
  sleep,
  taken,
  WAIT_S,
  watch,
} from "./timing.js";

/** @import { Channel as PublicChannel, FileOptions, Peer, Progress, RoomOptions, Session } from "../client.d.ts" */
/** @import { Messages } from "./data.js" */
/** @import { Contact } from "./peer.js" */
/** @import { Places } from "./places.js" */
/** @import { Cipher } from "./secret.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Attempt, Beacon, Fields, IceServers, Mailbox, Member, TellRoom } from "./types.d.ts" */

/** @typedef {typeof import("./peer.js")} Connections */

const MAX_MAILS = 250; // valid ones to one beacon; a quarter of the server's limit
const MAX_TEXTS = 750; // to one beacon, with those that are not valid
const MAX_TEXTS_SIZE = 2 ** 18; // UTF-16 code units of them, of up to three bytes; the server takes a mebibyte
const MAX_CHECKS = 8; // signatures that are checked at once
const MAX_NAMESAKES = 10; // that are asked for a sign of life
const ASK_MS = 500; // for which a request for a sign of life waits for the beacon of its sender
const ALIVE_MS = 5000; // for a sign of life, and for which a replaced beacon is still read
const CLOCK_MS = 30_000; // by which this page's clock may differ from the server's
const MAX_ATTEMPTS = 50; // that a room begins at once, and others begin: a page may have 500 connections
const ROOM_OPTIONS = { channel: "object", me: "", max: "", secret: "string", password: "" };
const MAX_TRIES = 8; // with a member that replace each other at once
const MAX_UNREAD = 2 ** 24; // bytes of the messages that an iteration has not read

/**
 * Whether a beacon is used instead of another one of the same member. A silent one is used last. The page that entered
 * last counts, and its last beacon. Of equal beacons, the later one is a copy that a stranger has made.
 *
 * @param {Beacon} one
 * @param {Beacon} [other]
 */
const supersedes = (one, other) =>
  !other ||
  (Number(other.silent ?? false) - Number(one.silent ?? false) ||
    one.since - other.since ||
    one.at - other.at ||
    other.createdAt - one.createdAt) > 0;

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
    if (waiting && last && last !== member) Object.assign((waiting[/** @type {number} */ (place)] = last), { place });
    member.waiting = undefined;
  }

  /** @returns {Member | undefined} */
  get next() {
    const waiting = this.#byTries.find(({ length }) => length) ?? [];
    return waiting[Math.floor(Math.random() * waiting.length)];
  }
}

/** @implements {PublicChannel} */
class Channel extends EventTarget {
  /** @param {PublicChannel["send"]} send */
  constructor(send) {
    super();
    this.send = send;
  }
}

/**
 * Everybody under a topic, connected to everybody. docs/room-protocol.md describes beacons, mail, signs of life and places.
 */
class Room extends EventTarget {
  /** @type {string | undefined} */
  id;
  listed = false;
  full = false;
  dropped = 0; // messages that no iteration of `messages` has kept
  /** @type {Map<string, Peer<unknown>>} */
  peers = new Map();
  #resolveReady = () => {};
  #rejectReady = /** @type {(reason: unknown) => void} */ (() => {});
  /** @type {Promise<void>} */
  ready = new Promise((resolve, reject) => {
    this.#resolveReady = resolve;
    this.#rejectReady = reject;
  });
  #resolveClosed = () => {};
  /** @type {Promise<void>} */
  closed = new Promise((resolve) => (this.#resolveClosed = resolve));
  /** @type {unknown} */
  #reason; // why it closes, unless the page has called `leave`
  /** @type {Map<string, Channel>} */
  #channels = new Map(); // by name
  /** @type {Map<string, Member>} */
  #members = new Map(); // by id
  /** @type {Map<string, Member>} */
  #byBeacon = new Map(); // the members by the codes of their beacons
  /** @type {Map<string | undefined, Set<Member>>} */
  #byName = new Map(); // the members that use a name, which belongs to the first one
  /** @type {Connections | undefined} */
  #connections; // the part for them, once it has loaded
  #loading;
  #queue = new Queue();
  // By the peers that have not joined: first those that the other side leads, then those that this side leads.
  /** @type {Map<Contact, Attempt>[]} */
  #attempts = [new Map(), new Map()];
  #peerCount = 0; // the number of peers created so far
  // biome-ignore lint/correctness/noUnusedPrivateClassMembers: kept in a field so that bundlers do not drop the allocation
  #garbage = 0;
  /** @type {Promise<void> | undefined} */
  #replying; // that a connection is closed
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
  #clockMs = 0; // what this page's clock lacks, compared with the server's
  #corrections = 0; // of it, one after another
  #since = 0; // when this page entered, by the server's clock; 0 if it does not know that yet
  #sinceSent = false; // whether the beacon contains it
  /** @type {Map<string, Beacon>} */
  #rivals = new Map(); // beacons with the same id that this page has not made, by their codes
  /** @type {Map<string, number>} */
  #offers = new Map(); // of this page's beacons, and the times in them until they are seen
  /** @type {Set<Mailbox>} */
  #mailboxes = new Set(); // this page's beacons
  /** @type {Mailbox | undefined} */
  #mailbox; // the current one
  #codes = new Set(); // of the listed sessions
  /** @type {{ session: Session, earlier: boolean }[]} */
  #unchecked = []; // of these, those whose signature still must be checked
  #checks = 0; // that are running
  /** @type {Set<Beacon>} */
  #namesakes = new Set(); // beacons with this page's name that may give a sign of life
  #settle = () => {}; // called when all members that entered before are known
  #settled = false;
  /** @type {Places | undefined} */
  #places; // of a room with a maximum
  #ice = /** @type {IceServers} */ ({}); // set before the first attempt
  #stop = new AbortController();
  /** @type {Promise<void> | undefined} */
  #leaving;
  #closed = false;

  /**
   * @param {string} topic
   * @param {RoomOptions} options
   */
  constructor(topic, options) {
    super();
    this.#topic = topicOf(ROOM, topic);
    this.#options = options;
    this.ready.catch(() => {}); // it can reject while nothing waits for it
    this.#origin = options.origin ?? globalThis.origin ?? "";
    if (options.max !== undefined && !(Number.isInteger(options.max) && options.max > 0)) {
      throw new SignalError("max-invalid", "`max` is a number of members, at least 1");
    }
    const { signal } = this.#stop;
    const servers = new Servers(options, signal, (error) => this.#report(error), ROOM_OPTIONS);
    if (!options.secret && options.me === undefined) {
      this.#identity = Identity.ofPage(random());
      this.id = this.#identity?.id ?? random(4);
    }
    const hide = () => {
      for (const { client, code } of this.#mailboxes) client.leave(code, "offerer", { secret: this.#secret });
      for (const peer of this.#all) peer.end(); // so that the others notice at once
    };
    globalThis.addEventListener?.("pagehide", hide, { signal });
    signal.addEventListener(
      "abort",
      watch((_, certain) => {
        if (certain) this.#probe();
        this.#test();
      }),
    );
    this.#loading = this.#load(() => import("./peer.js")).then((part) => {
      this.#connections = part;
      this.#beginAll();
      return part;
    });
    this.#loading.catch(() => {}); // the page has left
    const abort = () => {
      this.#reason = options.signal?.reason;
      this.leave();
    };
    if (options.signal) onAbort(signal, onAbort(options.signal, abort));
    if (options.signal?.aborted) abort();
    else this.#run(servers);
  }

  /**
   * Send a stream to all, now and later.
   *
   * @param {MediaStream} stream
   */
  addStream(stream) {
    if (typeof stream?.getTracks !== "function") {
      throw new SignalError("argument-invalid", "`addStream` takes a MediaStream: `await` it");
    }
    this.#streams.add(stream);
    for (const peer of this.#all) peer.media((media) => media.add(stream));
  }

  /** @param {MediaStream} stream */
  removeStream(stream) {
    this.#streams.delete(stream);
    for (const peer of this.#all) peer.media((media) => media.remove(stream));
  }

  /** How many texts in a room with a password could not be decrypted. */
  get ignored() {
    return this.#cipher?.ignored ?? 0;
  }

  /** All attempts and connections. */
  get #all() {
    return new Set([...this.#members.values()].flatMap(({ peer, open }) => [peer ?? [], open?.peer ?? []].flat()));
  }

  /**
   * The connections to the peers that `to` names; all if it is undefined. Fails if `to` is somebody else.
   *
   * @param {Peer<unknown> | string} [to]
   */
  #recipients(to) {
    const isOpen = (/** @type {Member} */ { open }) => (open?.peer.channel.readyState === "open" ? open.peer : []);
    const all = [...this.#members.values()].flatMap(isOpen);
    if (to === undefined) return all;
    const found = all.filter(({ peer }) => peer.id === (Object(to).id ?? to));
    if (!found.length) throw new SignalError("peer-left", "`to` is not a peer in the room");
    return found;
  }

  /**
   * @param {unknown} data
   * @param {Peer<unknown> | string} [to]
   */
  send(data, to) {
    return this.#sendTo(data, () => this.#recipients(to), to === undefined);
  }

  /**
   * Send at once if the part for connections is loaded, since bytes can change later. Before, nobody is connected.
   *
   * @param {unknown} data
   * @param {() => { messages: Messages, peer: Peer<unknown> }[]} choose
   * @param {boolean} toAll
   * @returns {Promise<void>}
   */
  #sendTo(data, choose, toAll) {
    const run = (/** @type {Connections} */ part) => part.send(data, choose, toAll && "message-incomplete");
    return this.#connections ? run(this.#connections) : this.#loading.then(run);
  }

  /**
   * @param {string} name
   * @param {RTCDataChannelInit} [init]
   */
  channel(name, init) {
    if (typeof name !== "string" || !name) throw new SignalError("argument-invalid", "A channel has a name");
    const channel =
      this.#channels.get(name) ??
      new Channel((data, to) => {
        const recipients = () => this.#recipients(to).map((each) => each.named(name, init));
        return this.#sendTo(data, recipients, to === undefined);
      });
    this.#channels.set(name, channel);
    return channel;
  }

  /**
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<{ peer: Peer<unknown>, data: unknown }, void, void>}
   */
  async *messages({ signal } = {}) {
    /** @type {{ peer: Peer<unknown>, data: unknown, size: number }[]} */
    const unread = [];
    let sum = 0;
    let wake = () => {};
    const awake = () => wake();
    const keep = (/** @type {any} */ { peer, data, size }) => {
      if (sum + size > MAX_UNREAD && sum) return (this.dropped += 1);
      sum += size;
      unread.push({ peer, data, size });
      awake();
    };
    this.addEventListener("message", keep);
    this.addEventListener("close", awake);
    const forget = signal && onAbort(signal, awake);
    try {
      for (;;) {
        signal?.throwIfAborted();
        const next = unread.shift();
        if (next) {
          sum -= next.size;
          yield { peer: next.peer, data: next.data };
        } else if (this.#closed) {
          if (this.#reason) throw this.#reason;
          return;
        } else await new Promise((resolve) => (wake = () => resolve(0)));
      }
    } finally {
      forget?.();
      this.removeEventListener("message", keep);
      this.removeEventListener("close", awake);
    }
  }

  /**
   * @param {Blob & { name?: string }} file
   * @param {FileOptions<Progress> & { to?: Peer<unknown> | string }} [options]
   */
  async sendFile(file, { to, ...options } = {}) {
    const recipients = this.#recipients(to);
    await (await this.#loading).sendFiles(recipients, file, options, to === undefined && "file-incomplete");
  }

  leave() {
    return (this.#leaving ??= this.#leave());
  }

  async #leave() {
    for (const each of this.#mailboxes) this.#withdraw(each);
    this.#stop.abort();
    await Promise.all([...this.#all].map((peer) => peer.close()));
    this.#closed = true;
    dispatch(this, "close");
    this.#rejectReady(this.#reason ?? new SignalError("room-left", "The page has left the room"));
    this.#resolveClosed();
  }

  /** @param {unknown} error */
  #fail(error) {
    if (this.#stop.signal.aborted) return;
    this.#reason = error;
    this.#rejectReady(error);
    this.#report(error);
    this.leave();
  }

  /**
   * @template T
   * @param {() => Promise<T>} part
   */
  #load(part) {
    return loadPart(part, this.#stop.signal, (error) => this.#report(error));
  }

  /** @param {Servers} servers */
  async #run(servers) {
    const { signal } = this.#stop;
    const { me, secret, password, max } = this.#options;
    try {
      if ("password" in this.#options) {
        const { Cipher } = await this.#load(() => import("./secret.js"));
        this.#cipher = await Cipher.of(this.#origin, this.#topic, password);
        this.#topic = this.#cipher.topic;
      }
      const named = async () => (await this.#load(() => import("./named.js"))).named(secret, me);
      // A page can listen before anything fails.
      this.#identity = await (secret || me !== undefined ? named() : this.#identity);
      this.id = this.#identity?.id ?? this.id;
      if (max) this.#places = new (await this.#load(() => import("./places.js"))).Places(max);
      // Name the origin if the room is empty for a while on a loopback address, of which there are several.
      if (/^(localhost|127\.|\[::1)/.test(globalThis.location?.hostname)) {
        advise(({ hintAtOrigin }) => hintAtOrigin(this.#topic, this.#members, signal));
      }
      for (;;) {
        await servers.first((client) => this.#attend(client, servers));
        await sleep(backOff(0), signal);
      }
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * Be in the room at one server.
   *
   * @param {SignalClient} client
   * @param {Servers} servers
   */
  async #attend(client, servers) {
    const deadline = new Deadline(this.#stop.signal);
    const { signal } = deadline;
    try {
      this.#ice = await servers.iceServers(client);
      const mailbox = await this.#publish(client, signal);
      // The events that follow list the current members.
      for (const each of [this.#byBeacon, this.#rivals, this.#codes, this.#namesakes]) each.clear();
      this.#unchecked = [];
      this.#queue = new Queue();
      for (const member of this.#members.values()) {
        member.code = member.beacon = undefined;
        member.beacons.clear();
      }
      for (const member of this.#members.values()) if (!member.peer) this.#remove(member);
      const settled = new Promise((/** @type {(value?: undefined) => void} */ resolve) => (this.#settle = resolve));
      // In a room with places, or with a name, mail waits until it is known who was there before.
      this.#settled = !this.#places && (!this.#options.me || this.#since > 0);
      if (this.#settled) this.#settle();
      const mail = Promise.all([settled, this.#loading]).then(() => this.#receive(mailbox, servers, signal));
      await Promise.race([this.#watch(client, signal), mail, servers.preferred(client, signal)]);
    } finally {
      deadline.end();
      this.#setListed(false);
    }
  }

  /**
   * Publish a beacon, which replaces the others.
   *
   * @param {SignalClient} client
   * @param {AbortSignal} signal
   */
  async #publish(client, signal) {
    const { me, info = ownInfo() } = this.#options;
    this.#at = Math.max(Date.now(), this.#at + 1); // also after the clock was set back
    const serverMs = Date.now() + this.#clockMs;
    this.#sinceSent = this.#since > 0;
    const since = Math.min(this.#since, serverMs) || undefined;
    const beacon = { v: VERSION, id: this.id, at: this.#at, now: serverMs, since, me };
    const offer = await this.#seal(this.#cipher ? { ...beacon, info } : beacon);
    this.#offers.set(offer, serverMs);
    const fields = { info: this.#cipher ? "-" : info, offer, secret: this.#secret };
    const held = await publishHeld(client, this.#topic, fields);
    const replaced = [...this.#mailboxes];
    /** @type {Mailbox} */
    const mailbox = {
      ...held,
      client,
      offer,
      deadline: new Deadline(signal),
      nonces: new Set(),
      full: () => {},
      untested: 0,
    };
    this.#mailboxes.add(mailbox);
    if (signal.aborted) this.#withdraw(mailbox);
    signal.throwIfAborted();
    this.#mailbox = mailbox;
    for (const each of replaced) {
      // Mail to it can be on its way.
      sleep(0, each.deadline.signal, ALIVE_MS)
        .catch(() => {})
        .then(() => this.#withdraw(each));
    }
    this.#setListed(true);
    this.#probe(); // others may have closed connections while no beacon was listed
    return mailbox;
  }

  /** Replace the beacon if the server takes no more mail to it. Its limits may be lower than the default ones. */
  #test() {
    const mailbox = this.#mailbox;
    if (!mailbox || mailbox.untested < 1 || this.#members.size <= this.peers.size) return;
    mailbox.untested = -1; // with this text
    const replace = (/** @type {{ status: number }} */ { status }) => status < 500 && mailbox.full();
    this.#mail(this.id, mailbox.code, {}).catch(replace);
  }

  /** Ask whether the open connections that this side leads exist on the other side. */
  #probe() {
    for (const member of this.#members.values())
      if (member.open && this.#leads(member))
        this.#send(member, { connection: member.open.connection, of: 2 }, this.#stop.signal);
  }

  /** @param {boolean} listed */
  #setListed(listed) {
    if (this.listed === listed) return;
    this.listed = listed;
    if (listed) this.#resolveReady();
    this.#tell("listed");
  }

  /**
   * Follow the beacons of all members.
   *
   * @param {SignalClient} client
   * @param {AbortSignal} signal
   */
  async #watch(client, signal) {
    for await (const { type, data } of client.events(this.#topic, { signal })) {
      if (type === "gone") {
        this.#gone(data.code);
        this.#assignPlaces();
      } else if (this.#offers.has(data.offer)) {
        this.#seeOwn(data);
        this.#settleIfChecked();
      } else if (!this.#codes.has(data.code)) {
        this.#codes.add(data.code);
        this.#unchecked.push({ session: data, earlier: !this.#since });
        if (this.#checks < MAX_CHECKS) this.#check();
      }
    }
  }

  /** Check beacons while there are any, the newest and the oldest in turn. Between them the page can do other work. */
  async #check() {
    this.#checks += 1;
    for (let newest = true; ; newest = !newest) {
      const next = newest ? this.#unchecked.pop() : this.#unchecked.shift();
      if (!next) break;
      await this.#see(next.session, next.earlier).catch(() => {}); // it concerns this beacon only
    }
    this.#checks -= 1;
    this.#settleIfChecked();
  }

  #settleIfChecked() {
    if (!this.#settled && this.#since && !this.#unchecked.length && !this.#checks) {
      this.#settled = true; // sessions are listed in the order of their creation
      this.#settle();
      if (!this.#places) this.#beginAll();
    }
    this.#assignPlaces();
  }

  /**
   * Read the mail to one beacon after another.
   *
   * @param {Mailbox} mailbox
   * @param {Servers} servers
   * @param {AbortSignal} signal
   */
  async #receive(mailbox, servers, signal) {
    for (let current = mailbox; ; ) {
      await new Promise((resolve, reject) => {
        current.full = () => resolve(0);
        this.#read(current, servers).catch(reject);
        this.#askRivals();
      });
      await sleep(backOff(1 + this.#corrections), signal);
      current = await retry(() => this.#publish(current.client, signal), signal, servers.tries);
    }
  }

  /**
   * Read the mail to a beacon until it is withdrawn.
   *
   * @param {Mailbox} mailbox
   * @param {Servers} servers
   */
  async #read(mailbox, servers) {
    const { client, code, keep, deadline } = mailbox;
    const { signal } = deadline;
    const pace = makePace();
    /** @type {string | undefined} */
    let since;
    const poll = async () => {
      await pace(signal);
      await keep();
      return client.poll(code, "offerer", { wait: WAIT_S, since, secret: this.#secret, signal });
    };
    try {
      for (let [count, valid, size] = [0, 0, 0]; ; ) {
        const { answer, answerCandidates = [], cursor } = await retry(poll, signal, servers.tries);
        since = cursor;
        for (const text of answerCandidates) {
          count += 1;
          size += text.length;
          mailbox.untested += 1;
          valid += Number(await this.#take(text, mailbox).catch(() => false)); // it concerns this text only
        }
        if (valid >= MAX_MAILS || count >= MAX_TEXTS || size >= MAX_TEXTS_SIZE) mailbox.full();
        if (answer) break; // an answered beacon is no longer listed
        this.#ice = await servers.iceServers(client);
      }
    } catch (error) {
      if (!signal.aborted && !taken(error)) throw error;
    }
    mailbox.full();
  }

  /** @param {Mailbox} mailbox */
  #withdraw(mailbox) {
    const { client, code, offer, deadline } = mailbox;
    if (!this.#mailboxes.delete(mailbox)) return;
    this.#offers.delete(offer);
    deadline.end();
    client.leave(code, "offerer", { secret: this.#secret });
  }

  /** @param {Session} session */
  #seeOwn({ offer, createdAt }) {
    const serverMs = this.#offers.get(offer);
    if (!serverMs) return;
    this.#offers.set(offer, 0); // a later session with it is a copy
    this.#since ||= createdAt;
    const wrong = Math.abs(createdAt - serverMs) > CLOCK_MS;
    this.#corrections = wrong ? this.#corrections + 1 : 0;
    if (wrong) {
      this.#clockMs += createdAt - serverMs;
      this.#mailbox?.full();
    }
    this.#askRivals();
  }

  /** Publish when this page entered, if another page has its secret. Ask later pages for a sign of life. */
  #askRivals() {
    if (!this.#since) return;
    if (this.#rivals.size && !this.#sinceSent) this.#mailbox?.full();
    for (const each of this.#rivals.values()) if (each.since > this.#since) this.#ask(this.id, each);
  }

  /**
   * @param {Session} session
   * @param {boolean} earlier whether it was listed before this page's first beacon
   */
  async #see({ code, offer, createdAt, ...session }, earlier) {
    const fields = await this.#unseal(offer, "beacon", { createdAt });
    const info = this.#cipher ? fields?.info : session.info;
    if (!fields || typeof info !== "string" || !this.#codes.has(code) || this.#stop.signal.aborted) return;
    const { id, me, at, since } = fields;
    /** @type {Beacon} */
    const beacon = { code, info, me, at, since: Math.min(since ?? 0, createdAt), createdAt, seenMs: now() };
    if (id === this.id) {
      if (this.#identity) this.#rivals.set(code, beacon);
      return this.#askRivals();
    }
    const member = this.#member(id, info);
    member.beacons.set(code, beacon);
    this.#byBeacon.set(code, member);
    if (earlier && me && me === this.#options.me && this.#namesakes.size < MAX_NAMESAKES) {
      this.#namesakes.add(beacon);
      this.#ask(id, beacon);
    }
    if (supersedes(beacon, member.beacon)) this.#use(member, beacon);
    this.#assignPlaces();
  }

  /**
   * Ask a listed beacon twice for a sign of life.
   *
   * @param {string | undefined} id
   * @param {Beacon} beacon
   */
  async #ask(id, beacon) {
    if (beacon.asked || beacon.alive) return;
    beacon.asked = true;
    try {
      for (let tries = 0; tries < 2 && !beacon.alive; tries += 1) {
        this.#mail(id, beacon.code, { alive: "ask" }).catch(() => {});
        await sleep(0, this.#stop.signal, ALIVE_MS);
      }
    } catch {
      return; // this page has left
    }
    beacon.silent = !beacon.alive;
    if (this.#namesakes.delete(beacon)) this.#beginAll();
    this.#assignPlaces();
  }

  /**
   * The listed beacon of a member, or of another page with the same secret.
   *
   * @param {string} id
   * @param {string} code
   */
  #beacon(id, code) {
    return id === this.id ? this.#rivals.get(code) : this.#members.get(id)?.beacons.get(code);
  }

  /**
   * @param {string} id
   * @param {Beacon} beacon
   */
  #onAlive(id, beacon) {
    Object.assign(beacon, { alive: true, silent: false });
    if (id === this.id && this.#since && beacon.since > this.#since) {
      this.#fail(new SignalError("replaced", "Another member has the same secret"));
    } else if (this.#namesakes.has(beacon)) {
      this.#fail(new SignalError("name-taken", `Another member has the name ${beacon.me}`));
    }
    this.#assignPlaces();
  }

  /**
   * Give a sign of life to a listed beacon. Returns whether it is listed.
   *
   * @param {string} id
   * @param {string} code
   */
  #reply(id, code) {
    const beacon = this.#beacon(id, code);
    const nowMs = now();
    if (beacon && !(nowMs < (beacon.repliedMs ?? 0) + ALIVE_MS)) {
      beacon.repliedMs = nowMs;
      this.#mail(id, code, { alive: "yes" }).catch(() => {});
    }
    return beacon !== undefined;
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
    member.peer.peer.info = info;
    member.peer.post();
  }

  /** @param {string} code */
  #gone(code) {
    this.#codes.delete(code);
    this.#rivals.delete(code);
    const member = this.#byBeacon.get(code);
    const namesake = member?.beacons.get(code);
    if (namesake && this.#namesakes.delete(namesake)) this.#beginAll();
    this.#byBeacon.delete(code);
    member?.beacons.delete(code);
    if (!member || (member.beacon ?? member).code !== code) return;
    member.code = member.beacon = undefined;
    if (this.#useBest(member)) return;
    const { open, peer } = member;
    open?.peer.check();
    if (peer) peer.check();
    else this.#remove(member);
  }

  /**
   * Use the best beacon of a member. Returns whether it has one.
   *
   * @param {Member} member
   */
  #useBest(member) {
    /** @type {Beacon | undefined} */
    let best;
    for (const beacon of member.beacons.values()) if (supersedes(beacon, best)) best = beacon;
    if (best && best !== member.beacon) this.#use(member, best);
    return best !== undefined;
  }

  /** Find out who has a place in a room with a maximum, and end connections of members without one. */
  #assignPlaces() {
    const places = this.#places;
    if (!places || !this.#settled || this.#stop.signal.aborted) return;
    const members = [...this.#members.values()];
    const { ask, again } = places.assign({ id: this.id ?? "", entry: this.#since }, members);
    for (const { id, beacon } of ask) if (beacon) this.#ask(id, beacon);
    if (again) this.#later(ALIVE_MS, () => this.#assignPlaces());
    for (const member of members) {
      if (!places.full && places.has(member)) continue;
      this.#queue.delete(member);
      for (const peer of [member.peer, member.open?.peer]) peer?.end();
    }
    if (places.full !== this.full) {
      this.full = places.full;
      this.#tell("full");
    }
    this.#beginAll();
  }

  #beginAll() {
    for (const member of [...this.#members.values()]) this.#begin(member);
  }

  /**
   * Whether a member and this page have places.
   *
   * @param {Member} member
   */
  #mayConnect(member) {
    return (
      this.#connections &&
      this.#settled &&
      !this.#namesakes.size &&
      (!this.#places || (!this.full && this.#places.has(member)))
    );
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

  /**
   * Take mail to one of this page's beacons. Returns whether it is valid.
   *
   * @param {string} text
   * @param {Mailbox} mailbox
   */
  async #take(text, { code: to, nonces }) {
    const mail = await this.#unseal(text, "mail", { to: this.id, code: to, nonces });
    if (!mail || this.#stop.signal.aborted) return false;
    const { from, me, info, code, connection, alive } = mail;
    const beacon = this.#beacon(from, code);
    if (beacon && !beacon.alive) this.#onAlive(from, beacon);
    // Its beacon can be on its way.
    if (alive === "ask" && !this.#reply(from, code)) this.#later(ASK_MS, () => this.#reply(from, code));
    if (from === this.id || !connection) return true;
    const member = this.#member(from, info, me);
    const first = !this.#leads(member) && mail.description?.type === "offer" && mail.of === 1;
    const attempt = member.peer && this.#attempts[0].get(member.peer);
    const known = [member.connection, member.open?.connection].includes(connection);
    // Anybody can send mail with an id that is not proven, so that an open connection stays.
    const stays = !isProven(from) && member.open?.peer.peerConnection.connectionState === "connected";
    // The other side has ended the current attempt, for example while this page slept. Floods must wait until it is late.
    const replaces = !known && !stays && (attempt?.late !== false || member.tries < MAX_TRIES);
    if (first && replaces && this.#mayConnect(member) && !this.#nameConflicts(member) && this.#admits(false)) {
      member.code ??= code;
      this.#connect(member, connection);
      if (member.peer) this.#add(member, member.name);
    }
    const isOpen = member.open?.connection === connection;
    const peer = isOpen ? member.open?.peer : member.connection === connection && member.peer;
    if (mail.closed) {
      if (isOpen && peer === member.peer && this.#leads(member) && this.#admits(true)) this.#connect(member, random(4));
    } else if (peer) peer.take(mail);
    else if (/** @type {number} */ (mail.of) > 1)
      this.#replying ??= this.#mail(from, code, { connection, closed: true })
        .catch(() => {})
        .then(() => void (this.#replying = undefined));
    return true;
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
    const attempts = this.#attempts[Number(leads)];
    if (this.#paused) return false;
    // One that has just connected may be open on the other side, which would report that this page leaves.
    /** @param {Attempt} attempt */
    const ends = ({ late, connectedMs = -PAIR_MS }) => late && connectedMs + PAIR_MS <= now();
    if (attempts.size >= MAX_ATTEMPTS) [...attempts].find(([, each]) => ends(each))?.[0].end();
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
    const { Contact } = /** @type {Connections} */ (this.#connections); // mail is read later
    try {
      member.peer = new Contact(member, callbacks, this.#streams, this.#options);
    } catch (error) {
      // It never works, or the browser has too many connections.
      if (!this.#peerCount && Object(/** @type {Error} */ (error).cause).name !== "UnknownError")
        return this.#fail(error);
      this.#report(error);
      this.#free();
      this.#paused = true;
      this.#later(PAUSE_MS, () => (this.#paused = false), member);
      return;
    }
    if ((this.#peerCount += 1) % MAX_ATTEMPTS === 0) this.#free();
    this.#attempts[Number(callbacks.leads)].set(member.peer, callbacks);
    this.#later(STAGGER_MS * times, () => (callbacks.late = true));
    member.connection = connection;
    if (previous && this.#attempts[0].get(previous)?.late) previous.giveUp();
    else if (previous !== member.open?.peer) previous?.end();
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
    const beganMs = now();
    /** @param {RTCPeerConnection} connection */
    const report = (connection, connected = false) => this.#ice.report(connection, now() - beganMs, connected);
    return {
      leads,
      ms,
      late: false,
      verify: async (peer) => {
        const { verify } = await import("./verification.js").catch(notLoaded);
        return verify(peer, scopeOf(this.#origin, this.#topic), this.id ?? "");
      },
      iceServers: () => this.#ice.iceServers,
      send: (mail, signal) => this.#send(member, { connection, ...mail }, signal),
      tell: this.#tell,
      fail: (error) => this.#report(error),
      heard: (name, received) => dispatch(this.#channels.get(name) ?? new EventTarget(), "message", received),
      offered: (peer, offer) => offer(this, { peer }),
      joined: (contact) => {
        member.tries = 0;
        this.#attempts[Number(leads)].delete(contact);
        report(contact.peerConnection, true);
        member.open?.peer.end();
        member.open = { peer: contact, connection };
        this.peers.set(member.id, contact.peer);
        this.#tell("join", { peer: contact.peer });
        this.#begin();
      },
      unreachable: (connection, error) => {
        report(connection);
        if (tries > 1 && !member.open) this.#report(error); // the first time, the device may be slow
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
   * @param {Contact} peer
   * @param {boolean} joined
   */
  #ended(member, peer, joined) {
    this.#attempts[Number(this.#leads(member))].delete(peer);
    if (joined) {
      member.open = undefined;
      this.peers.delete(member.id);
      this.#tell("leave", { peer: peer.peer });
    }
    if (member.peer !== peer) return;
    Object.assign(member, { peer: undefined }, member.open && { ...member.open, tries: 0 });
    if (member.peer) {
      member.peer.peer.info = member.info;
      return this.#begin();
    }
    if (!member.code || !member.beacon) {
      this.#remove(member);
      this.#assignPlaces();
      return this.#begin();
    }
    // An attempt without a sign of life may have gone to a copy.
    if (!joined && !member.beacon.alive) member.beacon.silent = member.beacons.size > 1;
    this.#useBest(member);
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
    try {
      // A full beacon is replaced soon.
      const send = async () => member.code === code && ((await this.#mail(id, code, mail, signal)) ?? true);
      return Boolean(await retry(send, signal));
    } catch (error) {
      if (signal.aborted) return false;
      if (taken(error)) {
        if (member.code === code) member.code = undefined; // it may get another beacon soon
        return false;
      }
      this.#report(error);
    }
    return true;
  }

  /**
   * @param {string | undefined} id
   * @param {string} code
   * @param {Fields} fields
   */
  async #mail(id, code, fields, signal = this.#stop.signal) {
    const { me, info = ownInfo() } = this.#options;
    const { client, code: own } = /** @type {Mailbox} */ (this.#mailbox); // members are known after it is published
    const text = await this.#seal({ from: this.id, me, info, code: own, ...fields }, id, code);
    return client.candidate(code, "answerer", text, { signal });
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
   * @param {{ to?: string, code?: string, createdAt?: number, nonces?: Set<string> }} fields
   */
  async #unseal(text, kind, { to, code, createdAt, nonces }) {
    const plain = this.#cipher ? await this.#cipher.unseal(text, code, nonces) : text;
    return unseal(scopeOf(this.#origin, this.#topic), plain, kind, to, code, createdAt);
  }

  /** @param {unknown} error */
  #report(error) {
    if (!this.#closed) report(this, /** @type {Error} */ (error));
  }

  /** @type {TellRoom} */
  #tell = (name, fields) => {
    if (!this.#closed) dispatch(this, name, fields);
  };
}

/**
 * @param {string} topic
 * @param {RoomOptions} options
 */
export const room = (topic, options = {}) => new Room(topic, options);

/** @param {RoomOptions} [options] */
export const nearby = async (options = {}) =>
  (await import("./nearby.js").catch(notLoaded)).nearby(options, ROOM_OPTIONS, room);
