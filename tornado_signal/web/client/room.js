import { Identity, ownInfo, ROOM, random, scopeOf, seal, topicOf, unseal, VERSION } from "./identity.js";
import { advise, loadPart, notLoaded } from "./parts.js";
import { Roster } from "./roster.js";
import { publishHeld, Servers } from "./servers.js";
import {
  backOff,
  Deadline,
  dispatch,
  makePace,
  now,
  onAbort,
  report,
  retry,
  SignalError,
  sleep,
  taken,
  WAIT_S,
  watch,
} from "./timing.js";

/** @import { Channel as PublicChannel, FileOptions, Peer, Progress, RoomOptions, Session } from "../client.d.ts" */
/** @import { Attempts } from "./attempts.js" */
/** @import { Places } from "./places.js" */
/** @import { Cipher } from "./secret.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Beacon, Fields, IceServers, Mailbox, Member, RoomSide, TellRoom } from "./types.d.ts" */

const MAX_MAILS = 250; // valid ones to one beacon; a quarter of the server's limit
const MAX_TEXTS = 750; // to one beacon, with those that are not valid
const MAX_TEXTS_SIZE = 2 ** 18; // UTF-16 code units of them, of up to three bytes; the server takes a mebibyte
const MAX_CHECKS = 8; // signatures that are checked at once
const MAX_NAMESAKES = 10; // that are asked for a sign of life
const ASK_MS = 500; // for which a request for a sign of life waits for the beacon of its sender
const ALIVE_MS = 5000; // for a sign of life, and for which a replaced beacon is still read
const CLOCK_MS = 30_000; // by which this page's clock may differ from the server's
const ROOM_OPTIONS = { channel: "object", me: "", max: "", secret: "string", password: "" };

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
  #roster = new Roster();
  /** @type {Attempts | undefined} */
  #attempts; // once their part has loaded
  #loading;
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
      for (const peer of this.#peers) peer.end(); // so that the others notice at once
    };
    globalThis.addEventListener?.("pagehide", hide, { signal });
    signal.addEventListener(
      "abort",
      watch((_, certain) => {
        if (certain) this.#attempts?.probe();
        this.#test();
      }),
    );
    this.#loading = this.#load(() => import("./attempts.js")).then(({ Attempts }) => {
      this.#attempts = new Attempts(this.#side);
      this.#beginAll();
      return this.#attempts;
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
    for (const peer of this.#peers) peer.media((media) => media.add(stream));
  }

  /** @param {MediaStream} stream */
  removeStream(stream) {
    this.#streams.delete(stream);
    for (const peer of this.#peers) peer.media((media) => media.remove(stream));
  }

  /** How many texts in a room with a password could not be decrypted. */
  get ignored() {
    return this.#cipher?.ignored ?? 0;
  }

  /** All attempts and connections. */
  get #peers() {
    return this.#attempts?.all ?? [];
  }

  /** @returns {RoomSide} */
  get #side() {
    return {
      target: this,
      roster: this.#roster,
      options: this.#options,
      signal: this.#stop.signal,
      streams: this.#streams,
      channels: this.#channels,
      ice: () => this.#ice,
      mayConnect: (member) => this.#mayConnect(member),
      mail: (id, code, fields, signal) => this.#mail(id, code, fields, signal),
      verify: async (peer) => {
        const { verify } = await import("./verification.js").catch(notLoaded);
        return verify(peer, scopeOf(this.#origin, this.#topic), this.id ?? "");
      },
      tell: this.#tell,
      report: (error) => this.#report(error),
      fail: (error) => this.#fail(error),
      use: (member) => this.#useBest(member),
      left: (member) => {
        this.#remove(member);
        this.#assignPlaces();
      },
      ended: () => {
        if (this.#closed && this.#reason) throw this.#reason;
        return this.#closed;
      },
    };
  }

  /**
   * @param {unknown} data
   * @param {Peer<unknown> | string} [to]
   */
  send(data, to) {
    return this.#send(data, to);
  }

  /**
   * Send at once if the part for connections has loaded, since bytes can change later. Before, nobody is connected.
   *
   * @param {Parameters<Attempts["send"]>} message
   * @returns {Promise<void>}
   */
  #send(...message) {
    return this.#attempts
      ? this.#attempts.send(...message)
      : this.#loading.then((attempts) => attempts.send(...message));
  }

  /**
   * @param {string} name
   * @param {RTCDataChannelInit} [init]
   */
  channel(name, init) {
    if (typeof name !== "string" || !name) throw new SignalError("argument-invalid", "A channel has a name");
    const channel = this.#channels.get(name) ?? new Channel((data, to) => this.#send(data, to, name, init));
    this.#channels.set(name, channel);
    return channel;
  }

  /**
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<{ peer: Peer<unknown>, data: unknown }, void, void>}
   */
  async *messages({ signal } = {}) {
    yield* (this.#attempts ?? (await this.#loading)).messages(signal);
  }

  /**
   * @param {Blob & { name?: string }} file
   * @param {FileOptions<Progress> & { to?: Peer<unknown> | string }} [options]
   */
  async sendFile(file, options = {}) {
    await (await this.#loading).sendFile(file, options);
  }

  leave() {
    return (this.#leaving ??= this.#leave());
  }

  async #leave() {
    for (const each of this.#mailboxes) this.#withdraw(each);
    this.#stop.abort();
    await Promise.all([...this.#peers].map((peer) => peer.close()));
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
        advise(({ hintAtOrigin }) => hintAtOrigin(this.#topic, this.#roster.members, signal));
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
      for (const each of [this.#rivals, this.#codes, this.#namesakes]) each.clear();
      this.#unchecked = [];
      this.#roster.clear();
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
    this.#attempts?.probe(); // others may have closed connections while no beacon was listed
    return mailbox;
  }

  /** Replace the beacon if the server takes no more mail to it. Its limits may be lower than the default ones. */
  #test() {
    const mailbox = this.#mailbox;
    if (!mailbox || mailbox.untested < 1 || this.#roster.members.size <= this.peers.size) return;
    mailbox.untested = -1; // with this text
    const replace = (/** @type {{ status: number }} */ { status }) => status < 500 && mailbox.full();
    this.#mail(this.id, mailbox.code, {}).catch(replace);
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
    const member = this.#roster.member(id, info);
    const better = this.#roster.list(member, beacon);
    if (earlier && me && me === this.#options.me && this.#namesakes.size < MAX_NAMESAKES) {
      this.#namesakes.add(beacon);
      this.#ask(id, beacon);
    }
    if (better) this.#use(member, beacon);
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
    return id === this.id ? this.#rivals.get(code) : this.#roster.members.get(id)?.beacons.get(code);
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
    this.#begin(this.#roster.add(member, me));
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
    const { member, beacon } = this.#roster.unlist(code);
    if (beacon && this.#namesakes.delete(beacon)) this.#beginAll();
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
    const best = this.#roster.best(member);
    if (best && best !== member.beacon) this.#use(member, best);
    return best !== undefined;
  }

  /** Find out who has a place in a room with a maximum, and end connections of members without one. */
  #assignPlaces() {
    const places = this.#places;
    if (!places || !this.#settled || this.#stop.signal.aborted) return;
    const members = [...this.#roster.members.values()];
    const { ask, again } = places.assign({ id: this.id ?? "", entry: this.#since }, members);
    for (const { id, beacon } of ask) if (beacon) this.#ask(id, beacon);
    if (again)
      sleep(0, this.#stop.signal, ALIVE_MS).then(
        () => this.#assignPlaces(),
        () => {},
      );
    for (const member of members) {
      if (!places.full && places.has(member)) continue;
      this.#roster.dequeue(member);
      for (const peer of [member.peer, member.open?.peer]) peer?.end();
    }
    if (places.full !== this.full) {
      this.full = places.full;
      this.#tell("full");
    }
    this.#beginAll();
  }

  #beginAll() {
    for (const member of [...this.#roster.members.values()]) this.#begin(member);
  }

  /**
   * Whether a member and this page have places.
   *
   * @param {Member} member
   */
  #mayConnect(member) {
    return this.#settled && !this.#namesakes.size && (!this.#places || (!this.full && this.#places.has(member)));
  }

  /** @param {Member} member */
  #remove(member) {
    this.#begin(this.#roster.remove(member));
  }

  /** @param {Member} [member] */
  #begin(member) {
    this.#attempts?.begin(member);
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
    const { from, code, connection, alive } = mail;
    const beacon = this.#beacon(from, code);
    if (beacon && !beacon.alive) this.#onAlive(from, beacon);
    // Its beacon can be on its way.
    if (alive === "ask" && !this.#reply(from, code))
      sleep(0, this.#stop.signal, ASK_MS).then(
        () => this.#reply(from, code),
        () => {},
      );
    if (from !== this.id && connection) this.#attempts?.take(mail);
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
