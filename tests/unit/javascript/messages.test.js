/* Messages in parts, over a channel that is not connected. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { heed, Messages, send } from "../../../tornado_signal/web/client/data.js";

class Channel extends EventTarget {
  ordered = true;
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
    await send(new Uint8Array(3_000_000), [messages]);
    assert.equal(channel.sent.length, count);
  }
});

test("nothing is split for a client that does not announce it", () => {
  for (const joins of [undefined, null, 0, -1]) {
    const { channel, messages } = make(joins);
    assert.throws(() => send("x".repeat(300_000), [messages]), { code: "message-too-large" });
    send("x".repeat(200_000), [messages]);
    assert.deepEqual(
      channel.sent.map(({ length }) => length),
      [200_000],
    );
  }
});

test("a member that announces a tiny limit does not silence the others", () => {
  for (const joins of [undefined, 1, 1e9]) {
    const [tiny, other] = [make(joins, 1), make(joins)];
    send("x".repeat(16_384), [tiny.messages, other.messages]);
    assert.equal(tiny.channel.sent.length, 0);
    assert.equal(other.channel.sent.length, 1);
  }
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
