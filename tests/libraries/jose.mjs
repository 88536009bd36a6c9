// A key of each algorithm, and a token for each of them, made by jose.

import { exportSPKI, generateKeyPair, SignJWT } from "jose";

const sign = (key, alg, kid) =>
  new SignJWT({ topics: ["lobby"], actions: ["list"] })
    .setProtectedHeader({ alg, kid })
    .setSubject("alice")
    .setIssuedAt()
    .setExpirationTime("10m")
    .sign(key);

const secret = "a secret for jose, of more than thirty-two bytes";
const made = [["jose-hs.secret", secret, await sign(new TextEncoder().encode(secret), "HS256", "jose-hs")]];
for (const alg of ["EdDSA", "ES256", "RS256"]) {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  made.push([`jose-${alg}.pem`, await exportSPKI(publicKey), await sign(privateKey, alg, `jose-${alg}`)]);
}
console.log(JSON.stringify(made));
