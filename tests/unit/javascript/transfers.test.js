/* Files between members of a room: ends in the middle, and other transfers meanwhile. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { enter, FakeServer, leave, next } from "./fake_server.js";

const SIZE = 3_000_000;
let rooms;
let incoming; // the files that bob is offered
let accept; // what bob does with a file
let received; // sizes, or codes of errors

beforeEach(async () => {
  new FakeServer();
  rooms = ["alice", "bob", "carol"].map((info) => enter(info));
  const [, bob] = rooms;
  [incoming, received] = [[], []];
  accept = (file) => file.accept();
  bob.addEventListener("file", async ({ file }) => {
    incoming.push(file);
    await Promise.resolve(accept(file)).then(
      ({ size }) => received.push(size),
      ({ code }) => received.push(code),
    );
  });
  while (rooms.some(({ peers }) => peers.size < 2)) await new Promise(setImmediate);
});

const toBob = ([alice]) => [...alice.peers.values()].find(({ info }) => info === "bob");
const send = (file, options = {}) => rooms[0].sendFile(file, { to: toBob(rooms), ...options });

/** Check what bob has received, and that the connection still carries a file. */
async function assertReceived(code) {
  while (!received.length) await new Promise(setImmediate);
  assert.ok(incoming[0].received < SIZE);
  accept = (file) => file.accept();
  await send(new Blob(["five!"]));
  assert.deepEqual(received, [code, 5]);
  await leave(...rooms);
  assert.deepEqual(
    rooms.flatMap(({ failures }) => failures),
    [],
  );
}

test("a receiver that cancels in the middle is an error at both ends", async () => {
  accept = (file) => {
    file.addEventListener("progress", () => file.received > SIZE / 2 && file.cancel());
    return file.accept();
  };
  await assert.rejects(send(new Blob([new Uint8Array(SIZE)])), { code: "file-cancelled" });
  await assertReceived("file-cancelled");
});

test("a signal ends a transfer in the middle", async () => {
  const stop = new AbortController();
  const onprogress = ({ loaded }) => loaded > SIZE / 2 && stop.abort();
  await assert.rejects(send(new Blob([new Uint8Array(SIZE)]), { onprogress, signal: stop.signal }), {
    name: "AbortError",
  });
  await assertReceived("file-cancelled");
});

test("a file that can no longer be read is an error at both ends", async () => {
  const file = new Blob([new Uint8Array(SIZE)]);
  const { slice } = file;
  const gone = { arrayBuffer: () => Promise.reject(new DOMException("gone", "NotReadableError")) };
  file.slice = (start, end) => (start < SIZE / 2 ? slice.call(file, start, end) : gone);
  await assert.rejects(send(file), { code: "file-unreadable" });
  await assertReceived("file-cancelled");
});

test("a sender that leaves in the middle interrupts its files", async () => {
  const [alice] = rooms;
  const onprogress = ({ loaded }) => loaded > SIZE / 2 && alice.leave();
  await assert.rejects(send(new Blob([new Uint8Array(SIZE)]), { onprogress }));
  while (!received.length) await new Promise(setImmediate);
  assert.deepEqual(received, ["file-interrupted"]);
  await leave(...rooms);
});

test("a file to all reaches the others while a receiver goes away", async () => {
  const [alice, bob, carol] = rooms;
  accept = (file) => {
    const close = () => {
      for (const { peerConnection } of bob.peers.values()) peerConnection.close();
    };
    file.addEventListener("progress", () => file.received > SIZE / 2 && close());
    return file.accept();
  };
  let whole;
  carol.addEventListener("file", ({ file }) => (whole = file.accept()));
  const { code, errors } = await alice.sendFile(new Blob([new Uint8Array(SIZE)])).catch((error) => error);
  assert.deepEqual(
    [code, errors.map((each) => [each.code, each.peer.info])],
    ["file-incomplete", [["file-interrupted", "bob"]]],
  );
  assert.deepEqual([(await whole).size, received], [SIZE, ["file-interrupted"]]);
  await leave(...rooms);
});

test("messages are not delayed by a file, also if nobody accepts it", async () => {
  const [alice, bob] = rooms;
  accept = () => new Promise(() => {});
  const sent = send(new Blob([new Uint8Array(SIZE)]));
  while (!incoming.length) await new Promise(setImmediate);
  const heard = next(bob, "message");
  alice.send("meanwhile");
  assert.equal((await heard).data, "meanwhile");
  incoming[0].cancel();
  await assert.rejects(sent, { code: "file-refused" });
  await leave(...rooms);
});
