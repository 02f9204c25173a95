// From logits to the next token, in the order and with the random numbers of heedful.decode.sampling.
import type { Sampling } from "./types";

/** Probabilities (whole vocabulary) after each rule; a rule that was not asked for repeats the one before. */
export interface Chain {
  p: Float64Array; // at temperature 1
  heated: Float64Array;
  topK: Float64Array;
  topP: Float64Array;
  final: Float64Array; // after min-p
  entropy: number; // of the final probabilities, in bits
  kept: number; // tokens that may still be drawn
}

export function softmax(logits: ArrayLike<number>): Float64Array {
  let top = -Infinity;
  for (let i = 0; i < logits.length; i++) if (logits[i] > top) top = logits[i];
  const out = new Float64Array(logits.length);
  let sum = 0;
  for (let i = 0; i < logits.length; i++) sum += out[i] = Math.exp(logits[i] - top);
  for (let i = 0; i < logits.length; i++) out[i] /= sum;
  return out;
}

/** Numbers from the greatest to the smallest. */
function descending(values: Float32Array): Float32Array {
  return Float32Array.from(values).sort().reverse();
}

/** Below `least` nothing is drawn. */
function cut(logits: Float32Array, least: number): Float32Array {
  return logits.map((z) => (z < least ? -Infinity : z));
}

/** The smallest set of likeliest tokens whose probability reaches p, with those as likely as the last. */
function nucleus(logits: Float32Array, p: number): Float32Array {
  const chances = softmax(logits);
  const order = [...logits.keys()].filter((i) => logits[i] > -Infinity).sort((a, b) => logits[b] - logits[a]);
  let reached = 0;
  for (const i of order) {
    reached += chances[i];
    if (reached >= p) return cut(logits, logits[i]);
  }
  return logits;
}

export function chain(logits: Float32Array, sampling: Sampling): Chain {
  const p = softmax(logits);
  if (sampling.temperature === 0) {
    let best = 0;
    for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
    const one = new Float64Array(logits.length);
    one[best] = 1;
    return { p, heated: one, topK: one, topP: one, final: one, entropy: 0, kept: 1 };
  }
  let z = sampling.temperature === 1 ? logits : logits.map((v) => v / sampling.temperature);
  const heated = z === logits ? p : softmax(z);
  let topK = heated;
  if (sampling.topK !== null && sampling.topK < z.length) {
    z = cut(z, descending(z)[Math.max(sampling.topK, 1) - 1]);
    topK = softmax(z);
  }
  let topP = topK;
  if (sampling.topP !== null && sampling.topP < 1) {
    z = nucleus(z, sampling.topP);
    topP = softmax(z);
  }
  let final = topP;
  if (sampling.minP) {
    const least = sampling.minP * topP.reduce((a, b) => Math.max(a, b), 0);
    z = z.map((v, i) => (topP[i] < least ? -Infinity : v));
    final = softmax(z);
  }
  let entropy = 0;
  let kept = 0;
  for (const share of final) {
    if (share > 0) entropy -= share * Math.log2(share);
    if (share > 0) kept++;
  }
  return { p, heated, topK, topP, final, entropy, kept };
}

/** The first token whose cumulated probability exceeds u. */
export function draw(final: Float64Array, u: number): number {
  let sum = 0;
  for (const share of final) sum += share;
  const goal = u * sum;
  let below = 0;
  for (let i = 0; i < final.length; i++) {
    below += final[i];
    if (below > goal) return i;
  }
  return final.length - 1;
}

// The random numbers: numpy's SeedSequence gives the seed of a Mersenne Twister, as torch's generator is one.

function words(seed: number): number[] {
  const out = [];
  let rest = BigInt.asUintN(64, BigInt(Math.trunc(seed)));
  do {
    out.push(Number(rest & 0xffffffffn));
    rest >>= 32n;
  } while (rest > 0n);
  return out;
}

/** SeedSequence(entropy).generate_state: O'Neill's seed_seq, a pool of four words that are mixed. */
function state(entropy: number[], count: number): Uint32Array {
  let constant = 0x43b0d7e5;
  const hash = (value: number) => {
    value ^= constant;
    constant = Math.imul(constant, 0x931e8875);
    value = Math.imul(value, constant);
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x: number, y: number) => {
    const mixed = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) | 0;
    return (mixed ^ (mixed >>> 16)) >>> 0;
  };
  const pool = [0, 1, 2, 3].map((i) => hash(entropy[i] ?? 0));
  for (let from = 0; from < 4; from++)
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  for (const more of entropy.slice(4)) for (let to = 0; to < 4; to++) pool[to] = mix(pool[to], hash(more));
  const out = new Uint32Array(count);
  constant = 0x8b51f9dd;
  for (let i = 0; i < count; i++) {
    let value = pool[i % 4] ^ constant;
    constant = Math.imul(constant, 0x58f38ded);
    value = Math.imul(value, constant);
    out[i] = value ^ (value >>> 16);
  }
  return out;
}

/** Words of the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998). */
function* twister(seed: number): Generator<number> {
  const mt = new Uint32Array(624);
  mt[0] = seed;
  for (let i = 1; i < 624; i++) mt[i] = Math.imul(1812433253, mt[i - 1] ^ (mt[i - 1] >>> 30)) + i;
  for (;;) {
    for (let k = 0; k < 624; k++) {
      const y = (mt[k] & 0x80000000) | (mt[(k + 1) % 624] & 0x7fffffff);
      mt[k] = mt[(k + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    for (let k = 0; k < 624; k++) {
      let y = mt[k];
      y ^= y >>> 11;
      y ^= (y << 7) & 0x9d2c5680;
      y ^= (y << 15) & 0xefc60000;
      yield (y ^ (y >>> 18)) >>> 0;
    }
  }
}

/** The number in [0, 1) that decides the t-th token of row `row` for a seed, as in Python. */
export function uniform(seed: number, t = 0, row = 0, sample = 0): number {
  const [low, high] = state([...words(seed), ...words(row), ...words(sample)], 2);
  const stream = twister(((low >>> 1) | (high << 31)) >>> 0);
  for (let i = 0; i < 2 * t; i++) stream.next();
  const first = stream.next().value as number;
  const second = stream.next().value as number;
  return ((first & 0x1fffff) * 2 ** 32 + second) * 2 ** -53;
}
