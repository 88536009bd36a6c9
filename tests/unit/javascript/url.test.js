import assert from "node:assert/strict";
import { test } from "node:test";
import { room } from "../../../tornado_signal/web/client/room.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";

// As in a bundle, the module does not come from a server here.
test("a bundle without `url` is an error that says so", () => {
  const expected = { code: "invalid-url", message: /^A bundle does not know its server: set `url`/ };
  assert.throws(() => new SignalClient(), expected);
  assert.throws(() => room("lobby"), expected);
});
