// A client of NDK. It publishes its name, and prints what its peer publishes, and how the relay refuses.

import NDK, { NDKEvent, NDKPrivateKeySigner } from "@nostr-dev-kit/ndk";

const [url, name] = process.argv.slice(2);
const signer = NDKPrivateKeySigner.generate();
const ndk = new NDK({ explicitRelayUrls: [url], signer, enableOutboxModel: false });
await ndk.connect();
let count = 0; // equal events have one id
const publish = (kind = 20001) => {
  count += 1;
  const tags = [
    ["x", "Node.js"],
    ["count", `${count}`],
  ];
  return new NDKEvent(ndk, { kind, content: name, tags }).publish();
};

let met = false;
await new Promise((resolve) => {
  const subscription = ndk.subscribe({ kinds: [20001], "#x": ["Node.js"] }, { closeOnEose: false });
  subscription.on("eose", resolve);
  subscription.on("event", async ({ content }) => {
    if (content === name || met) return;
    met = true;
    console.log(content);
    await publish(); // the peer may have subscribed after the first event
    await publish(1).catch(({ relayErrors }) => console.log(relayErrors.split("Error: ")[1]));
  });
});
await publish();
