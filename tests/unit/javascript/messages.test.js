/* Messages in parts, over a channel that is not connected. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { heed, Messages, send } from "../../../tornado_signal/web/client/data.js";

class Channel extends EventTarget {
  ordered = true;
  readyState = "open";
  bufferedAmount = 0;
  sent = [];

  send(data) {
    this.sent.push(data);
    this.onsent?.();
  }
}

function make(joins, maxMessageSize = 262_144) {
  const connection = { sctp: { maxMessageSize } };
  heed(connection, { joins });
  const over = new AbortController();
  const channel = new Channel();
  return { channel, over, messages: new Messages(connection, channel, over.signal) };
}

test("the end of a connection completes the sending, also while data is read", { timeout: 60_000 }, async () => {
  for (const count of [1, 5, 17, 18]) {
    const { channel, over, messages } = make(1e9);
    channel.onsent = () => {
      if (channel.sent.length !== count) return;
      channel.bufferedAmount = 2_000_000;
      over.abort();
    };
    await send(new Uint8Array(3_000_000), () => [{ messages }]);
    assert.equal(channel.sent.length, count);
  }
});

test("nothing is split for a client that does not announce it", async () => {
  for (const joins of [undefined, null, 0, -1]) {
    const { channel, messages } = make(joins);
    await assert.rejects(
      send("x".repeat(300_000), () => [{ messages }]),
      { code: "message-too-large" },
    );
    send("x".repeat(200_000), () => [{ messages }]);
    assert.deepEqual(
      channel.sent.map(({ length }) => length),
      [200_000],
    );
  }
});

test("a message of more than 64 MiB is an error of the sender", async () => {
  const { channel, messages } = make(2 ** 26);
  const most = 2 ** 26;
  const large = [new ArrayBuffer(most + 1), new Blob([new Uint8Array(most + 1)]), "\u00e4".repeat(most / 2 + 1)];
  for (const data of [...large, "x".repeat(most + 1), { text: "x".repeat(most) }]) {
    await assert.rejects(
      send(data, () => [{ messages }]),
      { code: "message-too-large" },
    );
  }
  assert.deepEqual(channel.sent, []);
});

test("a member that announces a tiny limit does not silence the others", () => {
  for (const joins of [undefined, 1, 1e9]) {
    const [tiny, other] = [make(joins, 1), make(joins)];
    send("x".repeat(16_384), () => [tiny, other]);
    assert.equal(tiny.channel.sent.length, 0);
    assert.equal(other.channel.sent.length, 1);
  }
});

test("empty messages, which Firefox counts as -1 byte, hold nothing up", async () => {
  for (const joins of [0, 1e9]) {
    const { channel, messages } = make(joins);
    for (const empty of ["", new Uint8Array()]) await send(empty, () => [{ messages }]);
    assert.ok(channel.sent.every(({ length }) => Boolean(length) === Boolean(joins)));
    assert.deepEqual(
      channel.sent.map((each) => messages.take(each.buffer ?? each).data),
      ["", new ArrayBuffer()],
    );
    channel.bufferedAmount = 2 ** 32 - 2;
    send("x", () => [{ messages }]);
    assert.equal(channel.sent.at(-1), "x");
  }
});

const receivers = [];
afterEach(() => {
  for (const { over } of receivers.splice(0)) over.abort();
});

/** A recipient that takes `rate` bytes each time the event loop is idle. */
function receiver(id, rate) {
  const made = make(1e9);
  const { channel } = made;
  receivers.push(made);
  channel.onsent = () => {
    channel.bufferedAmount += channel.sent.at(-1).length ?? channel.sent.at(-1).byteLength;
  };
  const drain = () => {
    if (made.over.signal.aborted) return;
    const before = channel.bufferedAmount;
    channel.bufferedAmount = Math.max(0, before - rate);
    const { bufferedAmountLowThreshold: low } = channel;
    if (before > low && channel.bufferedAmount <= low) channel.dispatchEvent(new Event("bufferedamountlow"));
    setImmediate(drain);
  };
  drain();
  return Object.assign(made, { peer: { id } });
}

test("who waits for `send` never has more than about 1 MiB in the buffer", { timeout: 60_000 }, async () => {
  const { channel, messages } = receiver("a", 300_000);
  let most = 0;
  for (let count = 0; count < 2000; count += 1) {
    await send("x".repeat(16_384), () => [{ messages }]);
    most = Math.max(most, channel.bufferedAmount);
  }
  assert.equal(channel.sent.length, 2000);
  assert.ok(most <= 2 ** 20 + 16_384, String(most));
});

test("a peer that takes nothing delays no other, and is an error of its own after 64 MiB", {
  timeout: 60_000,
}, async () => {
  const [healthy, full] = [receiver("healthy", 8_000_000), receiver("full", 0)];
  const reported = [];
  full.messages = new Messages({ sctp: { maxMessageSize: 262_144 } }, full.channel, full.over.signal, (error) =>
    reported.push(error),
  );
  const sent = [];
  const text = "x".repeat(65_536);
  for (let count = 0; count < 1200; count += 1) {
    sent.push(send(text, () => [healthy, full], "message-incomplete"));
    await new Promise(setImmediate);
  }
  const late = sent.slice(-100);
  for (const each of late) {
    const error = await each.catch((error) => error);
    assert.deepEqual(
      [error.code, error.retryable, error.errors.map(({ code, peer }) => [code, peer.id])],
      ["message-incomplete", false, [["peer-slow", "full"]]],
    );
  }
  assert.deepEqual(
    reported.map(({ code }) => code),
    ["peer-slow"],
  );
  assert.equal(healthy.channel.sent.length, 1200);
  await assert.rejects(
    send(text, () => [full]),
    { code: "peer-slow", retryable: true },
  );
  full.over.abort(); // what waits is lost with the connection
  await sent[500];
  await send({ x: 1 }, () => [healthy]);
});

test("messages that wait arrive in order, with their content at the call", { timeout: 60_000 }, async () => {
  const { channel, messages } = receiver("a", 500_000);
  const bytes = new Uint8Array(200_000).fill(1);
  const values = [bytes, "x".repeat(200_000), bytes, new Blob(["blob"]), { json: true }];
  const sent = Array.from({ length: 30 }, (_, place) => send(values[place % 5], () => [{ messages }]));
  bytes.fill(2);
  await Promise.all(sent);
  const kinds = channel.sent.map((each) => (typeof each === "string" ? each.slice(0, 3) : `${each.byteLength}`));
  assert.deepEqual(kinds.slice(-5), ["200000", "xxx", "200000", "4", '\u001e{"']);
  assert.ok(channel.sent.slice(-5).every((each) => typeof each === "string" || new Uint8Array(each)[0] !== 2));
});

test("closing waits while data is received, at most a minute", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const cases = { 0: 2, 10: 12, 1000: 60 };
  for (const [bytes, limit] of Object.entries(cases)) {
    const { channel, messages } = make();
    channel.close = () => {};
    channel.bufferedAmount = Number(bytes);
    let closing = true;
    messages.close().then(() => (closing = false));
    let seconds = 0;
    for (; closing; seconds += 1) {
      context.mock.timers.tick(1000);
      channel.bufferedAmount = Math.max(0, channel.bufferedAmount - 1);
      await new Promise(setImmediate);
    }
    assert.equal(seconds, limit);
  }
});
