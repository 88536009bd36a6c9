// A client of P2PT. It sends its name to its peer, and prints what the peer sends.

import P2PT from "p2pt";

const [url, name] = process.argv.slice(2);
const meeting = new P2PT([url], "Node.js");
meeting.on("peerconnect", (peer) => meeting.send(peer, name));
meeting.on("msg", (_, text) => console.log(text));
meeting.start();
