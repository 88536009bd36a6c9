import assert from "node:assert/strict";
import { test } from "node:test";
import { Roster } from "../../../tornado_signal/web/client/roster.js";

const roster = (...ids) => {
  const made = new Roster();
  for (const id of ids) made.add(made.member(id, "info"), "Alice");
  return made;
};
const of = (made, id) => made.members.get(id);
const BEACON = { code: "a", info: "info", at: 5, since: 5, createdAt: 5, seenMs: 0 };

for (const [why, others, better] of [
  ["a silent one is used last", { silent: true, since: 9 }, false],
  ["the page that entered last counts", { since: 6, at: 1 }, true],
  ["its last beacon counts", { at: 6 }, true],
  ["of equal beacons the later one is a copy", { createdAt: 6 }, false],
]) {
  test(`the beacon of a member that is used: ${why}`, () => {
    const made = roster();
    const member = made.member("one", "info");
    assert.equal(made.list(member, BEACON), true);
    member.beacon = BEACON;
    const other = { ...BEACON, code: "b", ...others };
    assert.equal(made.list(member, other), better);
    assert.equal(made.best(member), better ? other : BEACON);
    assert.deepEqual(made.unlist("b"), { member, beacon: other });
    assert.equal(made.best(member), BEACON);
    assert.deepEqual(made.unlist("b"), { member: undefined, beacon: undefined });
  });
}

test("a name belongs to the first member with it, and then to the next one", () => {
  const made = roster("one", "two", "three");
  const conflicting = () => [...made.members.values()].filter((each) => made.conflicts(each, "me")).map(({ id }) => id);
  assert.deepEqual(conflicting(), ["two", "three"]);
  assert.equal(made.add(of(made, "one"), "me"), of(made, "two"));
  assert.deepEqual(conflicting(), ["three", "one"]);
  assert.equal(made.remove(of(made, "two")), of(made, "three"));
  assert.deepEqual(conflicting(), ["one"]);
  assert.equal(made.remove(made.member("stranger", "info")), undefined);
});

test("the least tried member is next, and those that are tried the same number of times in any order", () => {
  const made = roster("one", "two", "three");
  of(made, "three").tries = 1;
  const orders = new Set();
  for (let round = 0; round < 100; round += 1) {
    for (const member of made.members.values()) made.enqueue(member);
    const order = [];
    for (let next = made.next; next; next = made.next) {
      order.push(next.id);
      made.dequeue(next);
    }
    orders.add(order.join(" "));
  }
  assert.deepEqual([...orders].sort(), ["one two three", "two one three"]);
  made.enqueue(of(made, "one"));
  made.remove(of(made, "one"));
  assert.equal(made.next, undefined);
});

test("before a new listing only members with an attempt stay, without their beacons", () => {
  const made = roster("one", "two");
  for (const id of ["one", "two"]) made.list(of(made, id), { ...BEACON, code: id });
  Object.assign(of(made, "two"), { peer: {}, code: "two" });
  made.enqueue(of(made, "two"));
  made.clear();
  assert.deepEqual([...made.members.keys()], ["two"]);
  assert.deepEqual([of(made, "two").code, made.best(of(made, "two")), made.next], [undefined, undefined, undefined]);
});
