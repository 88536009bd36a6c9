import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Messages } from "../../../tornado_signal/web/client/data.js";
import { refused, unreachable } from "../../../tornado_signal/web/client/errors.js";
import { join } from "../../../tornado_signal/web/client/publish.js";
import { room } from "../../../tornado_signal/web/client/room.js";
import { PAIR_MS } from "../../../tornado_signal/web/client/timing.js";
import { enter, FakeServer, LinkedConnection, leave as leaveAll, next, PAGE } from "./fake_server.js";

let server;
beforeEach(() => (server = new FakeServer()));

async function assertConnected(alice, bob) {
  const joined = await Promise.all([next(alice, "join"), next(bob, "join")]);
  assert.deepEqual(
    joined.map(({ peer }) => peer.info),
    ["bob", "alice"],
  );
  const received = next(bob, "message");
  alice.send("hello");
  const { data, peer } = await received;
  assert.deepEqual([data, peer.info], ["hello", "alice"]);
}

async function leave(...rooms) {
  await leaveAll(...rooms);
  for (const { failures } of rooms) assert.deepEqual(failures, []);
}

test("two members are connected, and one that leaves is reported", async () => {
  const [alice, bob] = [enter("alice"), enter("bob")];
  await assertConnected(alice, bob);
  const left = next(bob, "leave");
  await alice.leave();
  assert.equal((await left).peer.info, "alice");
  assert.equal(bob.peers.size, 0);
  await leave(bob);
  assert.equal(server.sessions.size, 0);
});

test("a room and the offers under its topic are separate", async () => {
  const alice = enter("alice");
  await alice.ready;
  const steps = [];
  const onstep = (...step) => steps.push(step);
  const options = { ...PAGE, wait: false, onstep };
  assert.equal(await join("test", options), null);
  assert.deepEqual(steps, [["peers", 0]]);
  await leave(alice);
});

test("ICE restarts repeatedly after an interruption, then another connection is made", async () => {
  let restarts = 0;
  class Interrupted extends LinkedConnection {
    restartIce() {
      restarts += 1;
    }
  }
  const rooms = ["alice", "bob"].map((info) => enter(info, { RTCPeerConnection: Interrupted }));
  await assertConnected(...rooms);
  const left = rooms.map((each) => next(each, "leave"));
  const beganMs = Date.now();
  for (const { peers } of rooms) {
    const [{ peerConnection }] = peers.values();
    peerConnection.connectionState = "disconnected";
    peerConnection.dispatchEvent(new Event("connectionstatechange"));
  }
  await Promise.race([...left, new Promise((resolve) => setTimeout(resolve, 60_000))]);
  assert.ok(restarts > 5);
  assert.ok(Date.now() - beganMs < 20_000); // the last pause is long
  await assertConnected(...rooms);
  await leave(...rooms);
});

test("what changes during an interruption without the server arrives after it", { timeout: 5000 }, async () => {
  class Interrupted extends LinkedConnection {
    restartIce() {}
  }
  const rooms = ["alice", "bob"].map((info) => enter(info, { RTCPeerConnection: Interrupted }));
  await assertConnected(...rooms);
  const [one, other] = rooms.map(({ peers }) => [...peers.values()][0].peerConnection);
  const taken = [];
  const { setRemoteDescription } = other;
  other.setRemoteDescription = (description) => {
    taken.push(description.type);
    return setRemoteDescription.call(other, description);
  };
  const change = (state) => {
    one.connectionState = state;
    one.dispatchEvent(new Event("connectionstatechange"));
  };
  server.candidates = () => {
    throw unreachable("https://server");
  };
  change("disconnected");
  one.need(); // as for a stream
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.deepEqual(taken, []);
  change("connected");
  while (!taken.length) await new Promise(setImmediate);
  assert.deepEqual([taken, ...rooms.map(({ peers }) => peers.size)], [["offer"], 1, 1]);
  await leaveAll(...rooms);
});

test("an offer that a connection cannot use makes another connection", async () => {
  const [alice, bob] = [enter("alice"), enter("bob")];
  await assertConnected(alice, bob);
  const [one, other] = [alice, bob].map(({ peers }) => [...peers.values()][0].peerConnection);
  one.setRemoteDescription = () => Promise.reject(new Error("no"));
  const again = [alice, bob].flatMap((each) => [next(each, "leave"), next(each, "join")]);
  other.need();
  await Promise.all(again);
  assert.notEqual([...alice.peers.values()][0].peerConnection, one);
  await leave(alice, bob);
});

test("ten members that enter together are connected at the first attempt", async () => {
  const beganMs = performance.now();
  const members = Array.from({ length: 10 }, (_, number) => enter(`${number}`));
  const all = (member) =>
    new Promise((resolve) => member.addEventListener("join", () => member.peers.size === 9 && resolve()));
  await Promise.all(members.map(all));
  assert.ok(performance.now() - beganMs < PAIR_MS);
  await leave(...members);
});

test("`ready` and `closed` follow the room, and reject with what closes it", async () => {
  const [alice, stop] = [enter("alice"), new AbortController()];
  await alice.ready;
  assert.equal(alice.listed, true);
  await Promise.all([alice.leave(), alice.closed]);
  const stopped = room("test", { ...PAGE, signal: stop.signal });
  stop.abort(new Error("enough"));
  const left = room("test", PAGE);
  left.leave();
  const refusedRoom = room("test", { ...PAGE, password: "" });
  refusedRoom.addEventListener("error", ({ error }) => error);
  await assert.rejects(stopped.ready, { message: "enough" });
  await assert.rejects(left.ready, { code: "room-left" });
  await assert.rejects(refusedRoom.ready, { code: "password-invalid" });
  await assert.rejects(refusedRoom.messages().next(), { code: "password-invalid" });
  await Promise.all([stopped, left, refusedRoom].map(({ closed }) => closed));
  await leave(alice);
});

test("messages are also events of the peer, an iteration, and those of a channel", async () => {
  const [alice, bob] = [enter("alice"), enter("bob")];
  const read = bob.messages();
  const first = read.next();
  await assertConnected(alice, bob);
  assert.deepEqual((await first).value.data, "hello");
  const [[peer], [other]] = [alice.peers, bob.peers].map((peers) => [...peers.values()]);
  assert.deepEqual(Object.getOwnPropertyNames(Object.getPrototypeOf(peer)).sort(), [
    "constructor",
    "send",
    "sendFile",
    "verification",
  ]);
  const heard = next(other, "message");
  await peer.send({ x: 1 });
  assert.deepEqual((await heard).data, { x: 1 });
  const { value } = await read.next();
  assert.deepEqual([value.data, value.peer === other], [{ x: 1 }, true]);
  const [cursor, cursorOfBob] = [alice, bob].map((each) => each.channel("cursor", { ordered: false }));
  assert.equal(alice.channel("cursor"), cursor);
  const moved = next(cursorOfBob, "message");
  await cursor.send([1, 2]);
  const event = await moved;
  assert.deepEqual([event.data, event.peer === other], [[1, 2], true]);
  await alice.channel("unknown to bob").send("nothing happens");
  const stop = new AbortController();
  const stopped = bob.messages({ signal: stop.signal }).next();
  stop.abort(new Error("enough"));
  await assert.rejects(stopped, { message: "enough" });
  await leave(alice, bob);
  assert.deepEqual(await read.next(), { value: undefined, done: true });
  await assert.rejects(peer.send("late"), { code: "peer-left" });
  await assert.rejects(peer.sendFile(new Blob()), { code: "peer-left" });
});

test("a member is in the room from the first part of a message on, and only the channels of others are read", async (context) => {
  const channels = [];
  class Slow extends LinkedConnection {
    createDataChannel(...parameters) {
      channels.push(super.createDataChannel(...parameters));
      return channels.at(-1);
    }
    getStats() {
      return new Promise(() => {}); // its `open` is not seen
    }
  }
  const [alice, bob] = [enter("alice"), enter("bob", { RTCPeerConnection: Slow })];
  const { peer } = await next(alice, "join");
  assert.equal(bob.peers.size, 0);
  peer.channel.send('\u001e\u001e{"size":5,"text":false}');
  assert.equal(bob.peers.size, 1);
  await bob.channel("cursor").send("hello");
  const own = channels.find(({ label }) => label === "cursor");
  const take = context.mock.method(Messages.prototype, "take");
  own.twin.send('\u001e\u001e{"size":5,"text":false}');
  assert.equal(take.mock.callCount(), 0);
  const [peerOfBob] = bob.peers.values();
  peerOfBob.addEventListener("message", () => assert.fail("It has left"));
  await leave(alice, bob);
  peer.channel.send("late");
});

test("an error without a listener is written to the console, with its code and where it is described", async (context) => {
  const written = [];
  for (const name of ["error", "warn"])
    context.mock.method(console, name, (text, error) => written.push([name, text, error.code]));
  server.offer = () => {
    server.offer = FakeServer.prototype.offer;
    throw unreachable("https://server");
  };
  const silent = room("test", PAGE);
  await silent.ready;
  await silent.leave();
  const refusedRoom = room("test", { ...PAGE, password: "" });
  await refusedRoom.closed;
  const read = room("test", { ...PAGE, password: "" });
  read.addEventListener("error", ({ error }) => error);
  await read.closed;
  const where = "(docs/browser-client.md#errors)";
  assert.deepEqual(written, [
    ["warn", `tornado-signal: server-unreachable ${where}`, "server-unreachable"],
    ["error", `tornado-signal: password-invalid ${where}`, "password-invalid"],
  ]);
});

test("mail that is lost is sent again", async () => {
  const { candidates } = server;
  const errors = [unreachable("https://server"), refused(503, "later")];
  server.candidates = (...parameters) => {
    const error = errors.shift();
    if (error) throw error;
    return candidates.apply(server, parameters);
  };
  const [alice, bob] = [enter("alice"), enter("bob")];
  await assertConnected(alice, bob);
  assert.equal(errors.length, 0);
  await leave(alice, bob);
});

test("mail whose response is lost connects once", async () => {
  const { candidates } = server;
  let losses = 2;
  server.candidates = (...parameters) => {
    candidates.apply(server, parameters);
    if (losses-- > 0) throw unreachable("https://server");
  };
  const [alice, bob] = [enter("alice"), enter("bob")];
  await assertConnected(alice, bob);
  assert.deepEqual([alice.peers.size, bob.peers.size], [1, 1]);
  await leave(alice, bob);
});

test("simultaneous offers of two members end with that of the leading one", { timeout: 20_000 }, async () => {
  const [alice, bob] = [enter("alice"), enter("bob")];
  await assertConnected(alice, bob);
  const members = [alice, bob].sort((one, other) => (one.id < other.id ? -1 : 1));
  const [leading, following] = members.map(({ peers }) => [...peers.values()][0].peerConnection);
  const used = [];
  for (const connection of [leading, following]) {
    const { setLocalDescription, setRemoteDescription } = connection;
    connection.setLocalDescription = async () => {
      await setLocalDescription.call(connection);
      used.push([connection, connection.localDescription.type]);
    };
    connection.setRemoteDescription = async (description) => {
      await setRemoteDescription.call(connection, description);
      used.push([connection, `remote ${description.type}`]);
    };
    connection.need();
  }
  const steps = (connection) => used.filter(([user]) => user === connection).map(([, type]) => type);
  while (!steps(leading).includes("remote answer")) await new Promise(setImmediate);
  assert.deepEqual(steps(leading), ["offer", "remote answer"]);
  assert.deepEqual(steps(following), ["offer", "remote offer", "answer"]);
  assert.deepEqual([leading.signalingState, following.signalingState], ["stable", "stable"]);
  const received = next(alice, "message");
  bob.send("after");
  assert.equal((await received).data, "after");
  await leave(alice, bob);
});

test("a password that is missing or empty opens no room", async () => {
  for (const password of [undefined, null, "", 7]) {
    const refused = room("test", { ...PAGE, password });
    const [{ error }] = await Promise.all([next(refused, "error"), next(refused, "close")]);
    assert.equal(error.code, "password-invalid");
  }
  assert.equal(server.sessions.size, 0);
});
