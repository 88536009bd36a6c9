/** Replicate a database of RxDB, whose exports are `rxdb`, over a URL. It inserts its name, and calls `heard` with others. */
export async function replicate(rxdb, url, name, options, heard) {
  const connectionHandlerCreator = url.endsWith("/nostr")
    ? rxdb.getConnectionHandlerNostr({ relays: [url], ...options })
    : rxdb.getConnectionHandlerSimplePeer({ signalingServerUrl: url, ...options });
  const database = await rxdb.createRxDatabase({ name, storage: rxdb.getRxStorageMemory(), multiInstance: false });
  const schema = {
    version: 0,
    primaryKey: "id",
    type: "object",
    properties: { id: { type: "string", maxLength: 100 } },
  };
  const { names } = await database.addCollections({ names: { schema } });
  names.insert$.subscribe(({ documentId }) => documentId !== name && heard(documentId));
  const replication = await rxdb.replicateWebRTC({
    collection: names,
    topic: "replicated",
    connectionHandlerCreator,
    pull: {},
    push: {},
  });
  replication.error$.subscribe((error) => console.error(error));
  await names.insert({ id: name });
  return names;
}
