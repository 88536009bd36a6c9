// A client of nostr-tools. It publishes its name, and prints what its peer publishes, and how the relay refuses.

import { fetchRelayInformation } from "nostr-tools/nip11";
import { finalizeEvent, generateSecretKey } from "nostr-tools/pure";
import { Relay } from "nostr-tools/relay";

const [url, name] = process.argv.slice(2);
const key = generateSecretKey();
const relay = await Relay.connect(url);
let count = 0; // nostr-tools forgets one of two equal events that wait for their OK at the same time
const publish = (kind = 20001) => {
  count += 1;
  const tags = [
    ["x", "Node.js"],
    ["count", `${count}`],
  ];
  const event = { kind, created_at: Math.floor(Date.now() / 1000), tags, content: name };
  return relay.publish(finalizeEvent(event, key));
};

let met = false;
await new Promise((resolve) => {
  const onevent = async ({ content }) => {
    if (content === name || met) return;
    met = true;
    console.log(content);
    await publish(); // the peer may have subscribed after the first event
    await publish(1).catch(({ message }) => console.log(message));
    const { supported_nips } = await fetchRelayInformation(url);
    console.log(supported_nips.join());
  };
  relay.subscribe([{ kinds: [20001], "#x": ["Node.js"] }], { onevent, oneose: resolve });
});
await publish();
