/* Keys of the curve P-256 (FIPS 186-4). WebCrypto returns no public key at once, and none for a given private key. */

const P = 2n ** 256n - 2n ** 224n + 2n ** 192n + 2n ** 96n - 1n;
const ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;
const BASE_X = 0x6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296n;
const B = 0x5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604bn;

/**
 * @param {bigint} base
 * @param {bigint} exponent
 * @param {bigint} modulus
 */
export function power(base, exponent, modulus) {
  let result = 1n;
  for (let left = exponent, square = base; left; left >>= 1n, square = square ** 2n % modulus) {
    if (left & 1n) result = (result * square) % modulus;
  }
  return result;
}

/**
 * Return the even y of the point with this x.
 *
 * @param {bigint} x
 */
export function yOf(x) {
  const y = power((x ** 3n - 3n * x + B) % P, (P + 1n) / 4n, P);
  return y & 1n ? P - y : y;
}

/**
 * Return a private key whose public key has an even y, and the x of the public key.
 *
 * @param {bigint} number
 */
export function keyPair(number) {
  const privateKey = (number % (ORDER - 1n)) + 1n;
  const baseY = yOf(BASE_X);
  // Jacobian coordinates, because a division takes as long as hundreds of multiplications.
  let [x, y, z] = [BASE_X, baseY, 1n];
  for (const bit of privateKey.toString(2).slice(1)) {
    const square = y ** 2n % P;
    const product = (4n * x * square) % P;
    const slope = (3n * (x - z ** 2n) * (x + z ** 2n)) % P;
    z = (2n * y * z) % P;
    x = (slope ** 2n - 2n * product) % P;
    y = (slope * (product - x) - 8n * square ** 2n) % P;
    if (bit === "0") continue;
    const width = (BASE_X * z ** 2n - x) % P;
    const height = (baseY * z ** 3n - y) % P;
    const step = (x * width ** 2n) % P;
    const cube = width ** 3n % P;
    z = (z * width) % P;
    x = (height ** 2n - cube - 2n * step) % P;
    y = (height * (step - x) - y * cube) % P;
  }
  const inverse = power(z, P - 2n, P);
  const affine = (/** @type {bigint} */ value) => ((value % P) + P) % P;
  // The even one of the two points with BASE_X is the negative of the base point.
  const odd = affine(y * inverse ** 3n) & 1n;
  return { x: affine(x * inverse ** 2n), privateKey: odd ? privateKey : ORDER - privateKey };
}
