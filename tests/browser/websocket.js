// A client on a bare WebSocket, of a browser or of the package `ws`. Each expression is for one page or program.

globalThis.connect = async (...how) => {
  const socket = new WebSocket(...how);
  const asked = new Map();
  globalThis.events = [];
  globalThis.send = (data) => socket.send(data);
  globalThis.call = (method, params) =>
    new Promise((resolve) => {
      const id = asked.size + 1;
      asked.set(id, resolve);
      send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
  globalThis.ended = new Promise((resolve) => {
    socket.addEventListener("close", ({ code }) => resolve(code));
  });
  socket.addEventListener("message", ({ data }) => {
    const found = JSON.parse(data);
    if (found.method === "event") events.push(found.params);
    else asked.get(found.id)(found);
  });
  await new Promise((resolve, reject) => {
    socket.addEventListener("open", resolve);
    socket.addEventListener("error", () => reject(new Error("no connection")));
  });
  return socket.protocol;
};
