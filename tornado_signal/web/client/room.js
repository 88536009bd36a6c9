import { dispatch, report, SignalError } from "./errors.js";
import { Identity, ROOM, random, topicOf } from "./identity.js";
import { ALIVE_MS, Mailboxes } from "./mailbox.js";
import { advise, loadPart, notLoaded } from "./parts.js";
import { Roster } from "./roster.js";
import { Servers } from "./servers.js";
import { backOff, Deadline, deferred, later, now, onAbort, sleep, watch } from "./timing.js";

/** @import { Channel as PublicChannel, Peer, Room as PublicRoom, RoomOptions, Session } from "../client.d.ts" */
/** @import { Attempts } from "./attempts.js" */
/** @import { Places } from "./places.js" */
/** @import { Cipher } from "./secret.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Beacon, EventFields, IceServers, Member, Records, RoomEvents } from "./types.d.ts" */

const MAX_CHECKS = 8; // signatures that are checked at once
const MAX_NAMESAKES = 10; // that are asked for a sign of life
const ASK_MS = 500; // for which a request for a sign of life waits for the beacon of its sender
const ROOM_OPTIONS = { channel: "object", me: "", max: "", secret: "string", password: "" };

/** Everybody under a topic, connected to everybody (docs/room-protocol.md). */
class Room extends EventTarget {
  /** @type {string | undefined} */ id;
  listed = false;
  full = false;
  dropped = 0; // messages that no iteration of `messages` has kept
  /** @type {Map<string, Peer<unknown>>} */ peers = new Map();
  #member;

  /** @param {string} topic @param {RoomOptions} options */
  constructor(topic, options) {
    super();
    this.#member = new Membership(this, topic, options);
    this.ready = this.#member.ready.promise;
    this.closed = this.#member.end.promise;
  }

  /** @type {PublicRoom<unknown>["addStream"]} */
  addStream(stream) {
    if (typeof stream?.getTracks !== "function") {
      throw new SignalError("argument-invalid", "`addStream` takes a MediaStream: `await` it");
    }
    this.#member.streams.add(stream);
    for (const peer of this.#member.peers) peer.media((media) => media.add(stream));
  }

  /** @type {PublicRoom<unknown>["removeStream"]} */
  removeStream(stream) {
    this.#member.streams.delete(stream);
    for (const peer of this.#member.peers) peer.media((media) => media.remove(stream));
  }

  get ignored() {
    return this.#member.mail.cipher?.ignored ?? 0;
  }

  /** @type {PublicRoom<unknown>["send"]} */
  send(data, to) {
    return this.#member.send(data, to);
  }

  /** @type {PublicRoom<unknown>["channel"]} */
  channel(name, init) {
    if (typeof name !== "string" || !name) throw new SignalError("argument-invalid", "A channel has a name");
    const { channels } = this.#member;
    /** @type {PublicChannel["send"]} */ const send = (data, to) => this.#member.send(data, to, name, init);
    const channel = channels.get(name) ?? Object.assign(new EventTarget(), { send });
    channels.set(name, channel);
    return channel;
  }

  /** @type {PublicRoom<unknown>["messages"]} */
  async *messages({ signal } = {}) {
    yield* (this.#member.attempts ?? (await this.#member.loading)).messages(signal);
  }

  /** @type {PublicRoom<unknown>["sendFile"]} */
  async sendFile(file, options = {}) {
    await (await this.#member.loading).sendFile(file, options);
  }

  leave() {
    return this.#member.leave();
  }
}

/** The room as its mail and its attempts know it, and who is in it. */
export class Membership {
  ready = deferred();
  end = deferred();
  /** @type {unknown} */ #reason; // why it closes, unless the page has called `leave`
  /** @type {Map<string, PublicChannel>} */ channels = new Map(); // by name
  roster = new Roster();
  /** @type {Attempts | undefined} */ attempts; // once their part has loaded
  /** @type {Set<MediaStream>} */ streams = new Set();
  /** @type {Map<string, Beacon>} */
  #rivals = new Map(); // beacons with the same id that this page has not made, by their codes
  #codes = new Set(); // of the listed sessions
  /** @type {{ session: Session, earlier: boolean }[]} */
  #unchecked = []; // of these, those whose signature still must be checked
  #checks = 0; // that are running
  /** @type {Set<Beacon>} */ #namesakes = new Set(); // beacons with this page's name that may give a sign of life
  #settling = deferred(); // until all members that entered before are known
  #settled = false;
  /** @type {Places | undefined} */ #places; // of a room with a maximum
  ice = /** @type {() => IceServers} */ (() => ({})); // of the server that is used, before the first attempt
  #stop = new AbortController();
  signal = this.#stop.signal; // fires when the page leaves
  /** @type {Promise<void> | undefined} */ #leaving;
  #closed = false;

  /** @param {Room} target @param {string} topic @param {RoomOptions} options */
  constructor(target, topic, options) {
    this.target = target;
    this.options = options;
    this.mail = new Mailboxes(options.origin ?? globalThis.origin ?? "", topicOf(ROOM, topic), this);
    if (options.max !== undefined && !(Number.isInteger(options.max) && options.max > 0)) {
      throw new SignalError("max-invalid", "`max` is a number of members, at least 1");
    }
    const { signal } = this;
    const servers = new Servers(options, signal, (error) => this.report(error), ROOM_OPTIONS);
    if (!options.secret && options.me === undefined) {
      this.mail.identity = Identity.ofPage(random());
      target.id = this.mail.identity?.id ?? random(4);
    }
    const hide = () => {
      this.mail.hide();
      for (const peer of this.peers) peer.end(); // so that the others notice at once
    };
    globalThis.addEventListener?.("pagehide", hide, { signal });
    signal.addEventListener(
      "abort",
      watch((_, certain) => {
        if (certain) this.attempts?.probe();
        if (this.roster.members.size > target.peers.size) this.mail.test();
      }),
    );
    this.loading = this.#load(() => import("./attempts.js")).then(({ Attempts }) => {
      this.attempts = new Attempts(this);
      this.#beginAll();
      return this.attempts;
    });
    this.loading.catch(() => {}); // the page has left
    const abort = () => {
      this.#reason = options.signal?.reason;
      this.leave();
    };
    if (options.signal) onAbort(signal, onAbort(options.signal, abort));
    if (options.signal?.aborted) abort();
    else this.#run(servers);
  }

  get peers() {
    return this.attempts?.all ?? [];
  }

  /** Whether the room is closed. Fails if something else than `leave` has closed it. */
  get ended() {
    if (this.#closed && this.#reason) throw this.#reason;
    return this.#closed;
  }

  /** Called with each new beacon. */
  published() {
    this.#setListed(true);
    this.attempts?.probe(); // others may have closed connections while no beacon was listed
  }

  /** @param {Peer<unknown>} peer */
  async verify(peer) {
    const { verify } = await import("./verification.js").catch(notLoaded);
    return verify(peer, this.mail.scope, this.target.id ?? "");
  }

  /**
   * Send at once if the part for connections has loaded, since bytes can change later. Before, nobody is connected.
   * @param {Parameters<Attempts["send"]>} message @returns {Promise<void>}
   */
  send(...message) {
    return this.attempts ? this.attempts.send(...message) : this.loading.then((attempts) => attempts.send(...message));
  }

  leave() {
    return (this.#leaving ??= this.#leave());
  }

  async #leave() {
    this.mail.end();
    this.#stop.abort();
    await Promise.all([...this.peers].map((peer) => peer.close()));
    this.#closed = true;
    dispatch(this.target, "close");
    this.ready.reject(this.#reason ?? new SignalError("room-left", "The page has left the room"));
    this.end.resolve();
  }

  /** Close the room because of an error. @param {unknown} error */
  fail(error) {
    if (this.signal.aborted) return;
    this.#reason = error;
    this.ready.reject(error);
    this.report(error);
    this.leave();
  }

  /** @template T @param {() => Promise<T>} part */
  #load(part) {
    return loadPart(part, this.signal, (error) => this.report(error));
  }

  /** @param {Servers} servers */
  async #run(servers) {
    const { signal } = this;
    const { me, secret, password, max } = this.options;
    const mail = this.mail;
    try {
      if ("password" in this.options) {
        const { Cipher } = await this.#load(() => import("./secret.js"));
        mail.cipher = await Cipher.of(mail.origin, mail.topic, password);
        mail.topic = mail.cipher.topic;
      }
      const named = async () => (await this.#load(() => import("./named.js"))).named(secret, me);
      // A page can listen before anything fails.
      mail.identity = await (secret || me !== undefined ? named() : mail.identity);
      this.target.id = mail.identity?.id ?? this.target.id;
      if (max) this.#places = new (await this.#load(() => import("./places.js"))).Places(max);
      // Name the origin if the room is empty for a while on a loopback address, of which there are several.
      if (/^(localhost|127\.|\[::1)/.test(globalThis.location?.hostname)) {
        advise(({ hintAtOrigin }) => hintAtOrigin(mail.topic, this.roster.members, signal));
      }
      for (;;) {
        await servers.first((client) => this.#attend(client, servers));
        await sleep(backOff(0), signal);
      }
    } catch (error) {
      this.fail(error);
    }
  }

  /** Be in the room at one server. @param {SignalClient} client @param {Servers} servers */
  async #attend(client, servers) {
    const deadline = new Deadline(this.signal);
    const { signal } = deadline;
    try {
      await servers.iceServers(client);
      this.ice = () => /** @type {IceServers} */ (servers.ice.get(client));
      await this.mail.publish(client, signal);
      // The events that follow list the current members.
      for (const each of [this.#rivals, this.#codes, this.#namesakes]) each.clear();
      this.#unchecked = [];
      this.roster.clear();
      const settling = (this.#settling = deferred());
      // In a room with places, or with a name, mail waits until it is known who was there before.
      this.#settled = !this.#places && (!this.options.me || this.mail.since > 0);
      if (this.#settled) settling.resolve();
      const mail = Promise.all([settling.promise, this.loading]).then(() => this.mail.receive(servers, signal));
      await Promise.race([this.#watch(client, signal), mail, servers.preferred(client, signal)]);
    } finally {
      deadline.end();
      this.#setListed(false);
    }
  }

  /** @param {boolean} listed */
  #setListed(listed) {
    if (this.target.listed === listed) return;
    this.target.listed = listed;
    if (listed) this.ready.resolve();
    this.tell("listed");
  }

  /** @param {SignalClient} client @param {AbortSignal} signal */
  async #watch(client, signal) {
    for await (const { type, data } of client.events(this.mail.topic, { signal })) {
      if (type === "gone") {
        this.#gone(data.code);
        this.#assignPlaces();
      } else if (this.mail.see(data)) {
        this.#settleIfChecked();
      } else if (!this.#codes.has(data.code)) {
        this.#codes.add(data.code);
        this.#unchecked.push({ session: data, earlier: !this.mail.since });
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
    if (!this.#settled && this.mail.since && !this.#unchecked.length && !this.#checks) {
      this.#settled = true; // sessions are listed in the order of their creation
      this.#settling.resolve();
      if (!this.#places) this.#beginAll();
    }
    this.#assignPlaces();
  }

  /** Publish when this page entered, if another page has its secret. Ask later pages for a sign of life. */
  askRivals() {
    const { since } = this.mail;
    if (!since) return;
    if (this.#rivals.size) this.mail.publishEntry();
    for (const each of this.#rivals.values()) if (each.since > since) this.#ask(this.target.id, each);
  }

  /** @param {Session} session @param {boolean} earlier whether it was listed before this page's first beacon */
  async #see({ code, offer, createdAt, ...session }, earlier) {
    const fields = await this.mail.unseal(offer, "beacon", { createdAt });
    const info = this.mail.cipher ? fields?.info : session.info;
    if (!fields || typeof info !== "string" || !this.#codes.has(code) || this.signal.aborted) return;
    const { id, me, at, since } = fields;
    /** @type {Beacon} */
    const beacon = { code, info, me, at, since: Math.min(since ?? 0, createdAt), createdAt, seenMs: now() };
    if (id === this.target.id) {
      if (this.mail.identity) this.#rivals.set(code, beacon);
      return this.askRivals();
    }
    const member = this.roster.member(id, info);
    const better = this.roster.list(member, beacon);
    if (earlier && me && me === this.options.me && this.#namesakes.size < MAX_NAMESAKES) {
      this.#namesakes.add(beacon);
      this.#ask(id, beacon);
    }
    if (better) this.#use(member, beacon);
    this.#assignPlaces();
  }

  /** Ask a listed beacon twice for a sign of life. @param {string | undefined} id @param {Beacon} beacon */
  async #ask(id, beacon) {
    if (beacon.asked || beacon.alive) return;
    beacon.asked = true;
    try {
      for (let tries = 0; tries < 2 && !beacon.alive; tries += 1) {
        this.mail.send(id, beacon.code, { alive: "ask" }).catch(() => {});
        await sleep(0, this.signal, ALIVE_MS);
      }
    } catch {
      return; // this page has left
    }
    beacon.silent = !beacon.alive;
    if (this.#namesakes.delete(beacon)) this.#beginAll();
    this.#assignPlaces();
  }

  /** The listed beacon of a member, or of another page with the same secret. @param {string} id @param {string} code */
  #beacon(id, code) {
    return id === this.target.id ? this.#rivals.get(code) : this.roster.members.get(id)?.beacons.get(code);
  }

  /** @param {string} id @param {Beacon} beacon */
  #onAlive(id, beacon) {
    Object.assign(beacon, { alive: true, silent: false });
    if (id === this.target.id && this.mail.since && beacon.since > this.mail.since) {
      this.fail(new SignalError("replaced", "Another member has the same secret"));
    } else if (this.#namesakes.has(beacon)) {
      this.fail(new SignalError("name-taken", `Another member has the name ${beacon.me}`));
    }
    this.#assignPlaces();
  }

  /** Give a sign of life to a listed beacon. Returns whether it is listed. @param {string} id @param {string} code */
  #reply(id, code) {
    const beacon = this.#beacon(id, code);
    const nowMs = now();
    if (beacon && !(nowMs < (beacon.repliedMs ?? 0) + ALIVE_MS)) {
      beacon.repliedMs = nowMs;
      this.mail.send(id, code, { alive: "yes" }).catch(() => {});
    }
    return beacon !== undefined;
  }

  /** @param {Member} member @param {Beacon} beacon */
  #use(member, beacon) {
    const { code, info, me } = beacon;
    const owner = this.roster.add(member, me); // also while the attempts are not loaded
    this.attempts?.begin(owner);
    const entry = beacon.since || beacon.createdAt;
    Object.assign(member, { code, info, beacon, entry, resting: false });
    if (!member.peer) return this.attempts?.begin(member);
    member.peer.peer.info = info;
    member.peer.negotiation.post();
  }

  /** @param {string} code */
  #gone(code) {
    this.#codes.delete(code);
    this.#rivals.delete(code);
    const { member, beacon } = this.roster.unlist(code);
    if (beacon && this.#namesakes.delete(beacon)) this.#beginAll();
    if (!member || (member.beacon ?? member).code !== code) return;
    member.code = member.beacon = undefined;
    if (this.useBest(member)) return;
    const { open, peer } = member;
    open?.check();
    if (peer) peer.check();
    else this.remove(member);
  }

  /** Use the best beacon of a member. Returns whether it has one. @param {Member} member */
  useBest(member) {
    const best = this.roster.best(member);
    if (best && best !== member.beacon) this.#use(member, best);
    return best !== undefined;
  }

  /** Find out who has a place in a room with a maximum, and end connections of members without one. */
  #assignPlaces() {
    const places = this.#places;
    if (!places || !this.#settled || this.signal.aborted) return;
    const members = [...this.roster.members.values()];
    const { ask, again } = places.assign({ id: this.target.id ?? "", entry: this.mail.since }, members);
    for (const { id, beacon } of ask) if (beacon) this.#ask(id, beacon);
    if (again) later(ALIVE_MS, this.signal, () => this.#assignPlaces());
    for (const member of members) {
      if (!places.full && places.has(member)) continue;
      this.roster.dequeue(member);
      for (const peer of [member.peer, member.open]) peer?.end();
    }
    if (places.full !== this.target.full) {
      this.target.full = places.full;
      this.tell("full");
    }
    this.#beginAll();
  }

  #beginAll() {
    for (const member of [...this.roster.members.values()]) this.attempts?.begin(member);
  }

  /** Whether an attempt may begin: both have places, and no other member used the name first. @param {Member} member */
  mayConnect(member) {
    if (this.roster.conflicts(member, this.options.me)) return false;
    return this.#settled && !this.#namesakes.size && (!this.#places || (!this.target.full && this.#places.has(member)));
  }

  /** @param {Member} member */
  remove(member) {
    const owner = this.roster.remove(member);
    this.attempts?.begin(owner);
    this.#assignPlaces();
  }

  /** Take valid mail to one of this page's beacons. Returns whether it counts. @param {Records["mail"]} mail */
  take(mail) {
    if (this.signal.aborted) return false;
    const { from, code, connection, alive } = mail;
    const beacon = this.#beacon(from, code);
    if (beacon && !beacon.alive) this.#onAlive(from, beacon);
    // Its beacon can be on its way.
    if (alive === "ask" && !this.#reply(from, code)) later(ASK_MS, this.signal, () => this.#reply(from, code));
    if (from !== this.target.id && connection) this.attempts?.take(mail);
    return true;
  }

  /** @param {unknown} error */
  report(error) {
    if (!this.#closed) report(this.target, /** @type {Error} */ (error));
  }

  /** @template {keyof RoomEvents} Name @param {Name} name @param {EventFields<RoomEvents[Name]>} [fields] */
  tell(name, fields) {
    if (!this.#closed) dispatch(this.target, name, fields);
  }
}

/** @param {string} topic @param {RoomOptions} options */
export const room = (topic, options = {}) => new Room(topic, options);

/** @param {RoomOptions} [options] */
export async function nearby(options = {}) {
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, () => {}, ROOM_OPTIONS);
  const { topic } = await servers.first((client) => client.nearby({ signal }));
  return room(topic, options);
}
