/* Names at random. */

export const random = (parts = 8) =>
  Array.from(crypto.getRandomValues(new Uint32Array(parts)), (part) => part.toString(36)).join("-");

let made; // when it is needed: not every Node can
export const ownInfo = () => (made ??= random());
