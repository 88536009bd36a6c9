/* The members of a room: their beacons, their names, and the order of attempts. Nothing here waits or sends. */

/** @import { Beacon, Member } from "./types.d.ts" */

/**
 * Whether a beacon is used instead of another one of the same member. A silent one is used last. The page that entered
 * last counts, and its last beacon. Of equal beacons, the later one is a copy that a stranger has made.
 * @param {Beacon} one @param {Beacon} [other]
 */
const supersedes = (one, other) =>
  !other ||
  (Number(other.silent ?? false) - Number(one.silent ?? false) ||
    one.since - other.since ||
    one.at - other.at ||
    other.createdAt - one.createdAt) > 0;

export class Roster {
  /** @type {Map<string, Member>} */ members = new Map(); // by id
  /** @type {Member[][]} */ #queues = [[], [], [], [], []]; // members that wait for an attempt, by their tries
  /** @type {Map<string, Member>} */ #byBeacon = new Map(); // by the codes of their beacons
  /** @type {Map<string | undefined, Set<Member>>} */
  #byName = new Map(); // the members that use a name, which belongs to the first one

  /** Remove all beacons, before they are listed again, and the members without an attempt or a connection. */
  clear() {
    this.#byBeacon.clear();
    for (const member of this.members.values()) {
      member.code = member.beacon = undefined;
      member.beacons.clear();
      this.dequeue(member);
      if (!member.peer) this.remove(member);
    }
  }

  /** A known or new member. @param {string} id @param {string} info @param {string} [name] @returns {Member} */
  member(id, info, name) {
    return this.members.get(id) ?? { id, info, name, tries: 0, beacons: new Map() };
  }

  /** Add or rename a member. Returns the next owner of its old name. @param {Member} member @param {string} [name] */
  add(member, name) {
    if (this.members.get(member.id) === member && member.name === name) return undefined;
    const owner = this.remove(member);
    this.members.set(member.id, Object.assign(member, { name }));
    this.#byName.set(name, (this.#byName.get(name) ?? new Set()).add(member));
    return owner;
  }

  /** Remove a member. Returns the next owner of its name. @param {Member} member @returns {Member | undefined} */
  remove(member) {
    this.dequeue(member);
    if (this.members.get(member.id) !== member) return undefined;
    this.members.delete(member.id);
    const others = this.#byName.get(member.name);
    others?.delete(member);
    const [owner] = others ?? [];
    if (!owner) this.#byName.delete(member.name);
    return owner;
  }

  /** Whether this page or an earlier member has the name of a member. @param {Member} member @param {string} [me] */
  conflicts({ id, name }, me) {
    const [owner] = this.#byName.get(name) ?? [];
    return name && (name === me || (owner ?? { id }).id !== id);
  }

  /** Add a beacon. Returns whether it is better than the used one. @param {Member} member @param {Beacon} beacon */
  list(member, beacon) {
    member.beacons.set(beacon.code, beacon);
    this.#byBeacon.set(beacon.code, member);
    return supersedes(beacon, member.beacon);
  }

  /** Remove a beacon. Returns it and its member, if they are known. @param {string} code */
  unlist(code) {
    const member = this.#byBeacon.get(code);
    const beacon = member?.beacons.get(code);
    this.#byBeacon.delete(code);
    member?.beacons.delete(code);
    return { member, beacon };
  }

  /**
   * Queue a member for an attempt, after those that were tried less often. Its right to connect is not checked again:
   * code that ends this right calls `dequeue`.
   * @param {Member} member
   */
  enqueue(member) {
    this.dequeue(member);
    member.waiting = this.#queues[Math.min(4, member.tries)];
    member.place = member.waiting.push(member) - 1;
  }

  /** @param {Member} member */
  dequeue(member) {
    const { waiting, place } = member;
    const last = waiting?.pop();
    if (waiting && last && last !== member) Object.assign((waiting[/** @type {number} */ (place)] = last), { place });
    member.waiting = undefined;
  }

  /** Return the member whose attempt is next: of the least tried ones, any. @returns {Member | undefined} */
  get next() {
    const waiting = this.#queues.find(({ length }) => length) ?? [];
    return waiting[Math.floor(Math.random() * waiting.length)];
  }

  /** @param {Member} member */
  best({ beacons }) {
    /** @type {Beacon | undefined} */ let best;
    for (const beacon of beacons.values()) if (supersedes(beacon, best)) best = beacon;
    return best;
  }
}
