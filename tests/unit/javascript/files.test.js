/* Files that another peer sends, over channels that are not connected. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Files, sendersOf, sendFile } from "../../../tornado_signal/web/client/files.js";

class Channel extends EventTarget {
  protocol = "tornado-signal-file";
  readyState = "open";
  sent = [];

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.readyState = "closed";
    this.dispatchEvent(new Event("close"));
  }
}

/** Return a function that opens a channel, receives texts or bytes over it, and returns the channel and its file. */
function connect(use) {
  const connection = new EventTarget();
  const target = new EventTarget();
  let received;
  target.addEventListener("file", ({ file }) => use((received = file)));
  new Files(connection, new AbortController().signal, (offer) => offer(target, {}));
  return (...messages) => {
    received = undefined;
    const channel = new Channel();
    connection.dispatchEvent(Object.assign(new Event("datachannel"), { channel }));
    for (const data of messages) channel.onmessage?.({ data });
    return { channel, file: received };
  };
}

const header = (fields) => JSON.stringify({ name: "a", type: "", size: 10, ...fields });
const accept = (file) => file.accept().catch(() => {});

test("media types that a browser could run are replaced", () => {
  const vectors = JSON.parse(readFileSync(new URL("../../room-vectors.json", import.meta.url), "utf8"))["media types"];
  const open = connect(accept);
  assert.deepEqual(
    vectors.map(([type]) => [type, open(header({ type })).file.type]),
    vectors,
  );
});

test("a peer offers at most a hundred files at once", () => {
  const open = connect(() => {});
  const channels = Array.from({ length: 100 }, () => open(header()).channel);
  assert.equal(open().channel.readyState, "closed");
  channels[0].close();
  assert.ok(open(header()).file);
});

test("nothing is kept of a hostile sender that this side has not accepted", async () => {
  const open = connect(accept);
  const { channel, file } = open(header(), new ArrayBuffer(11));
  assert.deepEqual(channel.sent, [{ accept: true }, { cancel: "cancelled" }]);
  await assert.rejects(file.accept(), { code: "file-cancelled" });
  assert.equal(file.received, 0);
  const waiting = connect(() => {})(header(), new ArrayBuffer(5));
  assert.deepEqual([waiting.channel.sent, waiting.file.received], [[{ cancel: "refused" }], 0]);
  const negative = open(header({ size: -1 }));
  assert.deepEqual([negative.file, negative.channel.readyState], [undefined, "closed"]);
});

test("a file that waits for the buffers of other channels ends with its signal", async () => {
  const [connection, stop] = [{ createDataChannel: () => assert.fail() }, new AbortController()];
  sendersOf(connection).wakes.set({ readyState: "open", bufferedAmount: 1 }, () => {});
  const sent = sendFile({ connection, over: new AbortController().signal }, new Blob(), { signal: stop.signal }, {});
  stop.abort();
  await assert.rejects(sent, { name: "AbortError" });
});
