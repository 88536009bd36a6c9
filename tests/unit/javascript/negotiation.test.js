import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { announce } from "../../../tornado_signal/web/client/data.js";
import { Negotiation } from "../../../tornado_signal/web/client/negotiation.js";
import { FakeConnection } from "./fake_rtc.js";

const stop = new AbortController();

beforeEach(() => mock.timers.enable({ apis: ["setTimeout"] }));
afterEach(() => mock.timers.reset());

/** Let everything happen that waits for no timer. */
const settled = async () => {
  for (let turn = 0; turn < 50; turn += 1) await null;
};

/** One side, whose mail goes to `deliver(mail, side)`. */
function side(name, { leads, deliver = () => true }) {
  const connection = new FakeConnection(name);
  const mails = [];
  const way = {
    signal: AbortSignal.any([stop.signal]), // one for each connection
    leads,
    begins: true,
    direct: false,
    listed: true,
    send: async (mail) => {
      mails.push(structuredClone(mail));
      return deliver(structuredClone(mail));
    },
  };
  const negotiation = new Negotiation(connection, 1, way);
  return { connection, negotiation, mails, way };
}

/** Two sides whose mail reaches the other one. */
function pair() {
  const sides = [];
  const to = (place) => (mail) => {
    sides[place].negotiation.take(mail);
    return true;
  };
  sides.push(side("first", { leads: true, deliver: to(1) }), side("second", { leads: false, deliver: to(0) }));
  return sides;
}

function assertAgreed(offerer, answerer) {
  assert.equal(offerer.connection.signalingState, "stable");
  assert.equal(answerer.connection.signalingState, "stable");
  assert.deepEqual(announce(offerer.connection.localDescription), answerer.connection.remoteDescription);
  assert.deepEqual(announce(answerer.connection.localDescription), offerer.connection.remoteDescription);
}

test("either side may offer again", async () => {
  const [first, second] = pair();
  first.connection.need();
  await settled();
  second.connection.need();
  await settled();
  assertAgreed(second, first);
  first.connection.need();
  await settled();
  assertAgreed(first, second);
});

test("an offer that comes twice is answered once", async () => {
  const [first, second] = pair();
  first.connection.need();
  await settled();
  const answers = second.mails.length;
  second.negotiation.take(first.mails[0]);
  await settled();
  assert.equal(second.mails.length, answers);
  assertAgreed(first, second);
});

test("an answer to an earlier offer is ignored", async () => {
  const { connection, negotiation } = side("first", { leads: true });
  connection.need();
  await settled();
  negotiation.take({ description: { type: "answer", sdp: "of another offer" }, of: 7 });
  await settled();
  assert.equal(connection.signalingState, "have-local-offer");
});

test("mail that was delivered and failed is sent again, with what was found meanwhile", async () => {
  let failures = 2;
  const other = side("second", { leads: false });
  const first = side("first", {
    leads: true,
    deliver: async (mail) => {
      other.negotiation.take(mail);
      if (failures-- > 0) throw new TypeError("The response was lost");
      return true;
    },
  });
  first.connection.need();
  first.negotiation.add("early");
  await settled();
  first.negotiation.add("late");
  for (let turn = 0; turn < 3; turn += 1) {
    mock.timers.tick(2000);
    await settled();
  }
  const last = first.mails.at(-1);
  assert.deepEqual([last.description.type, last.of, last.candidates], ["offer", 1, ["early", "late"]]);
  assert.equal(first.mails.length, 3);
  assert.deepEqual(new Set(other.connection.candidates), new Set(["early", "late"]));
});

test("candidates wait until the other side is listed", async () => {
  const { negotiation, mails, way } = side("first", { leads: true });
  way.listed = false;
  negotiation.add("one");
  await settled();
  assert.equal(mails.length, 0);
  way.listed = true;
  negotiation.add("two");
  await settled();
  assert.deepEqual(mails, [{ candidates: ["one", "two"] }]);
});

test("over an open channel nothing goes by mail", async () => {
  const { connection, negotiation, mails, way } = side("first", { leads: true });
  way.direct = true;
  connection.channel.open();
  connection.need();
  await settled();
  assert.equal(mails.length, 0);
  assert.equal(connection.channel.sent[0].description.type, "offer");
  connection.channel.receive({ description: { type: "answer", sdp: "answer" }, of: 1 });
  await settled();
  assert.equal(connection.signalingState, "stable");
  const { send, sent } = connection.channel;
  for (const [change, number] of [
    [() => connection.need(), 2],
    [() => negotiation.add("found"), 3],
  ]) {
    connection.channel.send = () => {
      connection.channel.send = send;
      throw new DOMException("full", "OperationError");
    };
    change();
    await settled();
    assert.equal(sent.length, number - 1);
    mock.timers.tick(2000);
    await settled();
    assert.equal(sent.length, number);
  }
  assert.deepEqual([sent[1].description.type, sent[1].of, sent[2].candidates], ["offer", 2, ["found"]]);
});

test("mail that takes no descriptions leaves them to the channel", async () => {
  const { connection, negotiation, mails, way } = side("first", { leads: true });
  way.candidatesOnly = true;
  connection.need();
  for (let count = 0; count < 102; count += 1) negotiation.add(count);
  await settled();
  assert.deepEqual(
    mails.map(({ candidates, ...others }) => [candidates.length, others]),
    [1, 100, 1].map((count) => [count, {}]),
  );
  way.direct = true;
  connection.channel.open();
  assert.equal(connection.channel.sent[0].description.type, "offer");
});

test("candidates that arrive before the description are used after it", async () => {
  const [first, second] = pair();
  second.negotiation.take({ candidates: ["early"] });
  await settled();
  assert.deepEqual(second.connection.candidates, []);
  first.connection.need();
  await settled();
  assert.deepEqual(second.connection.candidates, ["early"]);
});

test("an offer that comes again while this side offers is no answer", async () => {
  const [first, second] = pair();
  first.connection.need();
  await settled();
  second.way.listed = false; // its offer is on its way
  second.connection.need();
  await settled();
  second.negotiation.take(first.mails[0]);
  await settled();
  assert.equal(second.connection.signalingState, "have-local-offer");
});
