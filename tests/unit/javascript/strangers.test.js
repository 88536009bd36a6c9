/* Rooms in which strangers list beacons and send mail: junk, copies, and fields of every type. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { heed, Messages } from "../../../tornado_signal/web/client/data.js";
import { refused } from "../../../tornado_signal/web/client/errors.js";
import { receiveFile } from "../../../tornado_signal/web/client/files.js";
import { Identity, scopeOf, seal, VERSION } from "../../../tornado_signal/web/client/identity.js";
import { named } from "../../../tornado_signal/web/client/named.js";
import { Negotiation } from "../../../tornado_signal/web/client/negotiation.js";
import { SessionLink } from "../../../tornado_signal/web/client/session.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";
import { read } from "../../../tornado_signal/web/client/text.js";
import { enter, FakeServer, LinkedConnection, leave } from "./fake_server.js";

const TOPIC = "room~test";
const SCOPE = scopeOf("", TOPIC);
const NOTHING = "a value that is not there";
const VALUES = [
  NOTHING,
  null,
  true,
  false,
  0,
  -1,
  1.5,
  2 ** 60,
  "",
  "text",
  "1",
  [],
  [[]],
  {},
  { toString: 0, valueOf: 0 },
];
const DEEP = `${"[".repeat(20_000)}${"]".repeat(20_000)}`;

/** Return JSON texts of `value` in which each place in turn has each value, and none of its own. */
function variants(value) {
  const texts = [];
  const mark = "the place of a value";
  function at(inner, wrap) {
    texts.push(wrap(mark));
    if (typeof inner !== "object" || !inner) return;
    for (const key of Object.keys(inner)) {
      at(inner[key], (part) =>
        wrap(Array.isArray(inner) ? Object.assign([...inner], { [key]: part }) : { ...inner, [key]: part }),
      );
    }
  }
  at(value, (part) => part);
  const json = [
    ...VALUES.map((each) => JSON.stringify(each === NOTHING ? undefined : each)),
    "1e999",
    '{"__proto__": 1}',
    DEEP,
  ];
  return texts.flatMap((each) =>
    json.map((text) => JSON.stringify(each).replace(JSON.stringify(mark), text ?? "null")),
  );
}

let server;
beforeEach(() => (server = new FakeServer()));

async function until(reached, boundMs = 20_000) {
  for (const endMs = Date.now() + boundMs; !(await reached()); ) {
    assert.ok(Date.now() < endMs, `not in time: ${reached}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
const others = ({ peers }) =>
  [...peers.values()]
    .map(({ info }) => info)
    .sort()
    .join();
const list = (offer, info = "stranger") => server.offer(TOPIC, { info, offer }).code;
const beaconOf = (info) => server.listed(TOPIC).find((each) => each.info === info);
/** A beacon's fields, as if it had just been made. */
const beacon = (id, fields) => ({ v: VERSION, id, at: 1, now: Date.now(), ...fields });

test("beacons and mail with any value at any place stop nothing", async () => {
  const alice = enter("alice");
  await until(() => beaconOf("alice"));
  const candidate = { candidate: "c", sdpMid: "0", sdpMLineIndex: 0, usernameFragment: "u" };
  const description = { type: "offer", sdp: "x", joins: 1 };
  const mail = {
    from: "plain",
    info: "i",
    code: "c",
    connection: "1",
    alive: "ask",
    description,
    of: 1,
    candidates: [candidate],
  };
  for (const text of variants(beacon("plain", { since: 1, me: "m", info: "i" }))) list(text);
  const texts = variants(mail);
  const { code } = beaconOf("alice");
  for (let at = 0; at < texts.length; at += 100) server.candidates(code, "answerer", texts.slice(at, at + 100));
  const bob = enter("bob");
  await until(() => others(bob) === "alice" && others(alice) === "bob");
  assert.deepEqual([...alice.failures, ...bob.failures], []);
  await leave(alice, bob);
});

test("messages of a peer with any value at any place throw nothing and are typed", async () => {
  const negotiation = { description: { type: "offer", sdp: "x", joins: 1 }, of: 1, candidates: [{ candidate: "c" }] };
  const connection = new LinkedConnection();
  const signal = new AbortController().signal;
  const taken = new Negotiation(connection, 1, { signal, leads: false, direct: false });
  const stopped = { channel: new EventTarget(), files: { over: signal } };
  Object.assign(stopped.channel, { readyState: "open", close() {}, send() {} });
  for (const text of variants(negotiation)) {
    taken.take(read(text, "negotiation"));
    const { description, of, candidates } = read(text, "negotiation") ?? {};
    for (const each of [description?.sdp, description?.type]) assert.ok(["string", "undefined"].includes(typeof each));
    assert.ok(of == null || Number.isFinite(of));
    assert.ok(candidates == null || candidates.every(({ candidate }) => typeof candidate === "string"));
  }
  const messages = new Messages(connection, Object.assign(new EventTarget(), { ordered: true }), signal);
  for (const text of variants({ size: 3, text: true })) {
    messages.take(`\x1e\x1e${text}`);
    messages.take(new ArrayBuffer(1));
    messages.take(`\x1e${text}`);
  }
  const file = { name: "a", type: "text/plain", size: 1 };
  const news = variants({ accept: true, received: true, cancel: "refused" });
  for (const [header, text] of [
    ...variants(file).map((each) => [each, "{}"]),
    ...news.map((each) => [JSON.stringify(file), each]),
  ]) {
    receiveFile(stopped.channel, stopped.files.over, (offer) => offer(new EventTarget(), {}));
    for (const data of [header, text]) stopped.channel.onmessage({ data });
  }
  for (const binary of [new ArrayBuffer(2), new Blob()]) assert.equal(read(binary, "negotiation"), undefined);
});

test("candidates and answers of a session with any value at any place only fail its link", async () => {
  for (const text of variants({ type: "answer", sdp: "x", joins: 1, info: "i" })) {
    const client = new SignalClient("https://server");
    client.poll = async () => ({
      answer: text,
      answerCandidates: variants({ candidate: "c" }).slice(0, 5),
      cursor: "1",
    });
    const options = { RTCPeerConnection: LinkedConnection };
    const link = new SessionLink(
      client,
      "offerer",
      { iceServers: [], until: 0 },
      options,
      new AbortController().signal,
    );
    await link.peerConnection.setLocalDescription(await link.describe());
    assert.equal(await link.news(), true);
    assert.ok(["undefined", "string"].includes(typeof link.info));
    link.fail(new Error("done"));
  }
  assert.throws(() => heed(new LinkedConnection(), undefined), SyntaxError);
});

test("a header of a message in parts takes no memory for the size that it claims", () => {
  const kept = Array.from({ length: 5000 }, () => {
    const messages = new Messages(
      {},
      Object.assign(new EventTarget(), { ordered: true }),
      new AbortController().signal,
    );
    messages.take('\x1e\x1e{"size": 67108864, "text": false}');
    messages.take(new ArrayBuffer(10));
    return messages;
  });
  assert.ok(process.memoryUsage().arrayBuffers < 64 * 2 ** 20);
  assert.equal(kept.length, 5000);
});

test("a message in parts of any size is joined", () => {
  const messages = new Messages({}, Object.assign(new EventTarget(), { ordered: true }), new AbortController().signal);
  for (const sizes of [[], [1], [65_536, 65_536, 5], Array(100).fill(1), [3, 65_536, 1]]) {
    const size = sizes.reduce((sum, each) => sum + each, 0);
    let received = messages.take(`\x1e\x1e{"size": ${size}, "text": false}`);
    sizes.forEach((each, place) => {
      assert.equal(received, undefined);
      received = messages.take(new Uint8Array(each).fill(place + 1).buffer);
    });
    const expected = sizes.flatMap((each, place) => Array(each).fill(place + 1));
    assert.deepEqual([...new Uint8Array(received.data)], expected);
  }
});

test("junk mail replaces a beacon before it is full, and the new one is listed before the old one goes", async () => {
  const alice = enter("alice");
  await until(() => beaconOf("alice"));
  const first = beaconOf("alice").code;
  const valid = JSON.stringify({ from: "plain", info: "i", code: "c" });
  server.candidates(first, "answerer", Array(400).fill("junk"));
  server.candidates(first, "answerer", Array(240).fill(valid));
  await new Promise((resolve) => setTimeout(resolve, 1000));
  assert.equal(beaconOf("alice").code, first); // neither 250 valid ones, nor near the limit of the server
  let most = 0;
  const events = server.events(TOPIC, {});
  const count = async () => {
    for await (const each of events) most = Math.max(most, server.listed(TOPIC).length, Number(each.type === "x"));
  };
  count();
  server.candidates(first, "answerer", Array(10).fill(valid));
  await until(() => beaconOf("alice").code !== first);
  await until(() => most === 2);
  // Mail to the old one is still read.
  const bob = Identity.ofPage("bob");
  const { sessions } = server;
  const id = bob.id;
  const own = list(await seal(bob, SCOPE, beacon(id)), "bob");
  await until(async () => {
    server.candidates(first, "answerer", [
      await seal(bob, SCOPE, { from: id, info: "bob", code: own, alive: "ask" }, alice.id, first),
    ]);
    return sessions.get(own).answerCandidates.length;
  }, 4000);
  assert.equal(sessions.get(own).answerCandidates.length > 0, true);
  await until(() => !sessions.has(first));
  const { code } = beaconOf("alice");
  server.candidates(code, "answerer", Array(800).fill("junk"));
  await until(() => beaconOf("alice").code !== code);
  const third = beaconOf("alice").code;
  server.candidates(third, "answerer", ["x".repeat(2 ** 19)]);
  await until(() => beaconOf("alice").code !== third);
  assert.deepEqual(alice.failures, []);
  await leave(alice);
});

/** Return members with secrets of which the first one leads. */
async function pairOfSecrets() {
  const secrets = ["of one", "of another"];
  const members = await Promise.all(secrets.map(async (secret) => ({ secret, id: (await named(secret)).id })));
  return members.sort((one, other) => (one.id < other.id ? -1 : 1)).map(({ secret }) => secret);
}

test("a room obeys a lower limit of its server", async () => {
  const { candidates } = server;
  server.candidates = (...parameters) => {
    if (server.sessions.get(parameters[0])?.answerCandidates.length >= 16) throw refused(429, "full", 300_000);
    candidates.apply(server, parameters);
  };
  const [leads, follows] = await pairOfSecrets();
  const follower = enter("follower", { secret: follows });
  await until(() => beaconOf("follower"));
  server.candidates(beaconOf("follower").code, "answerer", Array(16).fill("junk"));
  const leader = enter("leader", { secret: leads });
  await until(() => others(leader) === "follower", 40_000);
  assert.deepEqual([...leader.failures, ...follower.failures], []);
  await leave(leader, follower);
});

test("the beacons of a new and an old member are verified before hundreds of wrongly signed ones", async (context) => {
  const { verify } = SubtleCrypto.prototype;
  const checked = []; // what was signed
  let [running, most] = [0, 0];
  context.after(() => Object.assign(SubtleCrypto.prototype, { verify }));
  SubtleCrypto.prototype.verify = async function (...parameters) {
    checked.push(new TextDecoder().decode(parameters[3]));
    most = Math.max(most, (running += 1));
    try {
      return await verify.apply(this, parameters);
    } finally {
      running -= 1;
    }
  };
  const old = enter("old");
  await until(() => beaconOf("old"));
  const stranger = `$${"A".repeat(43)}`;
  for (let at = 0; at < 300; at += 1) list("A".repeat(86) + JSON.stringify(beacon(stranger, { at })));
  const { offer } = server;
  let before = 0;
  server.offer = (...parameters) => {
    before = checked.length;
    return offer.apply(server, parameters);
  };
  const fresh = enter("fresh");
  await until(() => others(old) === "fresh" && others(fresh) === "old");
  const place = ({ id }) => checked.slice(before).findIndex((text) => text.includes(`"id":"${id}"`));
  assert.ok(before < 250, `${before} before the new one is listed: the old member has others to check`);
  for (const each of [old, fresh]) assert.ok(place(each) < 50, `${place(each)} before ${each === old ? "old" : "new"}`);
  assert.ok(most < 25 && checked.length < 650, `${most} at once, ${checked.length} of 600 for two members`);
  await leave(old, fresh);
});

test("a copy of a beacon replaces no page, and a page with the same secret does", async () => {
  const secret = "of both";
  const { id } = await named(secret);
  const older = enter("older", { secret });
  await until(() => beaconOf("older"));
  // A malicious server had this signed, with an entry that is in the future here.
  for (const since of [Date.now() + 50_000, 2 ** 52])
    list(await seal(await named(secret), SCOPE, beacon(id, { at: 2, since })));
  await until(() => server.listed(TOPIC).some(({ answerCandidates }) => answerCandidates.length === 2), 15_000);
  await new Promise((resolve) => setTimeout(resolve, 6000)); // until the copy is silent
  assert.deepEqual(older.failures, []);
  const [bob, carol] = [enter("bob"), enter("carol")]; // one of them may lead, and send mail to the copy first
  await until(() => others(older) === "bob,carol", 30_000);
  const newer = enter("newer", { secret });
  await until(() => older.failures.length);
  assert.deepEqual([older.failures, newer.failures], [["replaced"], []]);
  await leave(older, newer, bob, carol);
});

test("a name is taken only by a member that gives a sign of life", async () => {
  const ada = enter("ada", { me: "Ada", secret: "of Ada" });
  await until(() => beaconOf("ada"));
  const other = enter("other");
  await until(() => others(other) === "ada");
  const eve = enter("eve", { me: "Ada", secret: "of Eve" });
  await until(() => eve.failures.length);
  assert.deepEqual([eve.failures, eve.peers.size], [["name-taken"], 0]);
  const { offer } = beaconOf("ada");
  await ada.leave();
  list(offer); // a copy
  const next = enter("next", { me: "Ada", secret: "of another Ada" });
  await new Promise((resolve) => setTimeout(resolve, 11_000)); // until the copy is silent
  assert.deepEqual([next.failures, other.failures], [[], []]);
  await leave(other, next);
});

test("copies and dead members keep no place, and connected members keep theirs", async () => {
  const early = await named("of an early member");
  const since = Date.now() - 10_000;
  const dead = await seal(early, SCOPE, beacon(early.id, { since }));
  const [alice, bob] = [enter("alice", { max: 2 }), enter("bob", { max: 2 })];
  await until(() => others(alice) === "bob" && others(bob) === "alice");
  list(dead);
  const carol = enter("carol", { max: 2 });
  await until(() => carol.full);
  await new Promise((resolve) => setTimeout(resolve, 3000));
  assert.deepEqual([others(alice), others(bob), alice.full, bob.full], ["bob", "alice", false, false]);
  await bob.leave();
  await until(() => others(alice) === "carol" && others(carol) === "alice", 40_000); // the copy is silent
  // A member that returns with an earlier entry takes its place.
  const dora = enter("dora", { max: 2 });
  await until(() => dora.full);
  assert.deepEqual(
    [alice, carol, dora].flatMap(({ failures }) => failures),
    [],
  );
  await leave(alice, carol, dora);
});

test("the first members to enter have the places, and one that enters again is the last", async () => {
  const rooms = new Map();
  let most = 0;
  const come = async (info) => {
    const entered = enter(info, { max: 2 });
    entered.addEventListener("join", () => (most = Math.max(most, entered.peers.size)));
    rooms.set(info, entered);
    await until(() => beaconOf(info));
  };
  const settled = async (order) => {
    for (const [place, info] of [...order].entries()) {
      const expected = place < 2 ? order[1 - place] : "";
      await until(() => others(rooms.get(info)) === expected && rooms.get(info).full === place > 1);
    }
  };
  for (const info of "abcde") await come(info);
  await settled("abcde");
  await rooms.get("b").leave();
  await come("b");
  await settled("acdeb");
  const before = server.listed(TOPIC).map(({ code }) => code);
  for (const code of before) server.answer(code, "x"); // each member publishes another beacon, which changes no place
  await until(() => server.listed(TOPIC).length === 5);
  await settled("acdeb");
  await rooms.get("a").leave();
  await settled("cdeb");
  assert.equal(most, 1);
  assert.deepEqual(
    [...rooms.values()].flatMap(({ failures }) => failures),
    [],
  );
  await leave(...rooms.values());
});

test("a late attempt that is connected is not ended for one with a dead member", async () => {
  class Slow extends LinkedConnection {
    // The channel is open here three seconds after it is open on the other side.
    getStats = () => new Promise((resolve) => setTimeout(resolve, 3000));
  }
  const [leads, follows] = await pairOfSecrets();
  const [leader, follower] = [
    enter("leader", { secret: leads, RTCPeerConnection: Slow }),
    enter("follower", { secret: follows }),
  ];
  const seen = [];
  for (const name of ["join", "leave"]) follower.addEventListener(name, ({ peer }) => seen.push([name, peer.info]));
  await until(() => seen.length);
  for (let at = 0; at < 60; at += 1) list(JSON.stringify(beacon(`~${at}`)), "dead");
  await until(() => others(leader) === "follower");
  assert.deepEqual(seen, [["join", "leader"]]);
  await leave(leader, follower);
});

test("hundreds of dead members, and mail in their names, make few connections and delay no member", async () => {
  let [there, most, made, members] = [0, 0, 0, 0];
  class Counted extends LinkedConnection {
    #open = true;
    constructor(...options) {
      super(...options);
      made += 1;
      most = Math.max(most, (there += 1));
    }
    close() {
      there -= Number(this.#open);
      this.#open = false;
      super.close();
    }
  }
  const [leads, follows] = await pairOfSecrets();
  const dead = Array.from({ length: 260 }, (_, at) => `~${at}`); // which every member leads
  for (const id of dead) list(JSON.stringify(beacon(id)), "dead");
  const follower = enter("follower", { secret: follows, RTCPeerConnection: Counted });
  await until(() => there >= 50);
  const mail = { info: "i", code: "c", connection: "c", of: 1, description: { type: "offer", sdp: "x" } };
  const { code } = beaconOf("follower");
  const strangers = Array.from({ length: 240 }, (_, at) => `!${at}`); // which lead
  for (const from of strangers) server.candidates(code, "answerer", [JSON.stringify({ ...mail, from })]);
  await until(() => there >= 100);
  const before = made;
  const iterator = Object.getPrototypeOf(new Map().values());
  const { next } = iterator;
  iterator.next = function () {
    const result = next.call(this);
    members += Number(result.value?.beacons instanceof Map);
    return result;
  };
  const leader = enter("leader", { secret: leads });
  await until(() => others(leader) === "follower" && others(follower) === "leader", 60_000);
  iterator.next = next;
  assert.ok(most <= 110, `${most} connections`); // 50 that a member leads, 50 that others lead, and those that end
  // Some for each attempt. All members would be tens of thousands.
  assert.ok(members / (made - before) < 50, `looked at ${members} members for ${made - before} attempts`);
  assert.deepEqual([...leader.failures, ...follower.failures], []);
  await leave(leader, follower);
});

test("one attempt that fails is no error", async () => {
  let first;
  class Deaf extends LinkedConnection {
    setRemoteDescription(description) {
      first ??= this;
      return this === first ? new Promise(() => {}) : super.setRemoteDescription(description); // the answer
    }
  }
  const [leads, follows] = await pairOfSecrets();
  const [leader, follower] = [
    enter("leader", { secret: leads, RTCPeerConnection: Deaf }),
    enter("follower", { secret: follows }),
  ];
  await until(() => others(leader) === "follower" && others(follower) === "leader", 60_000);
  assert.ok(first.connectionState === "closed");
  assert.deepEqual([...leader.failures, ...follower.failures], []);
  await leave(leader, follower);
});

for (const offMs of [-600_000, 600_000]) {
  test(`a page whose clock is wrong by ${offMs} ms is met`, async () => {
    const { now } = Date;
    const { offer } = server;
    server.offer = (...parameters) => {
      const made = offer.apply(server, parameters);
      server.sessions.get(made.code).createdAt += offMs; // the server's clock is right
      return made;
    };
    const [alice, bob] = [enter("alice"), enter("bob")];
    await until(() => others(alice) === "bob" && others(bob) === "alice");
    await until(() => {
      const { offer, createdAt } = beaconOf("alice");
      return Math.abs(JSON.parse(offer.slice(86)).now - createdAt) < 30_000;
    });
    assert.equal(Date.now, now);
    assert.deepEqual([...alice.failures, ...bob.failures], []);
    await leave(alice, bob);
  });
}

test("leaving twice resolves when all is closed, and nothing is reported after that", async () => {
  const [alice, bob] = [enter("alice"), enter("bob")];
  await until(() => others(alice) === "bob" && others(bob) === "alice");
  const seen = [];
  for (const name of ["close", "error", "listed", "leave"]) alice.addEventListener(name, () => seen.push(name));
  server.leave = () => assert.fail("offline");
  const first = alice.leave();
  assert.equal(alice.leave(), first);
  await first;
  assert.equal(seen.at(-1), "close");
  await leave(bob);
});

test("a browser with too many connections is asked again, and other failures close the room", async () => {
  let failures = 2;
  class Limited extends LinkedConnection {
    constructor() {
      super();
      if (failures-- > 0) throw new DOMException("Cannot create so many PeerConnections", "UnknownError");
    }
  }
  const [alice, bob] = [enter("alice", { RTCPeerConnection: Limited }), enter("bob", { RTCPeerConnection: Limited })];
  await until(() => others(alice) === "bob" && others(bob) === "alice");
  await leave(alice, bob);
  class Broken {
    constructor() {
      throw new TypeError("rtc is wrong");
    }
  }
  function prepare() {
    throw new TypeError("no camera");
  }
  for (const [options, failure] of [
    [{ RTCPeerConnection: Broken }, "rtc-failed"],
    [{ prepare }, "TypeError: no camera"],
  ]) {
    const rooms = [enter("a", options), enter("b", options)];
    await until(() => rooms.some(({ failures }) => String(failures) === failure));
    await Promise.any(rooms.map(({ closed }) => closed));
    await leave(...rooms);
  }
});
