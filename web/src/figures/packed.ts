// Arrays as a figure's JSON carries them: base64 of little-endian numbers, compressed where there are many.
import type { Packed } from "./types";

export interface Tensor {
  shape: number[];
  values: Float32Array | Float64Array | Int32Array;
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}

/** Every float16 there is, as float32: 65,536 entries, made once. */
let all: Float32Array | undefined;
function everyHalf(): Float32Array {
  if (all) return all;
  all = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31;
    const part = bits & 1023;
    const size = exponent === 0 ? part * 2 ** -24 : exponent === 31 ? (part ? NaN : Infinity) : (1 + part / 1024) * 2 ** (exponent - 15);
    all[bits] = bits & 0x8000 ? -size : size;
  }
  return all;
}

/** Numbers of two bytes each: low and high byte side by side, or all low ones before all high ones. */
export function halves(bytes: Uint8Array, planes = false): Float32Array {
  const known = everyHalf();
  const count = bytes.length >> 1;
  const out = new Float32Array(count);
  if (planes) for (let i = 0; i < count; i++) out[i] = known[bytes[i] | (bytes[count + i] << 8)];
  else for (let i = 0; i < count; i++) out[i] = known[bytes[2 * i] | (bytes[2 * i + 1] << 8)];
  return out;
}

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The bytes of each number together again, where all first bytes stood before all second ones. */
function woven(bytes: Uint8Array<ArrayBuffer>, size: number): Uint8Array<ArrayBuffer> {
  const count = bytes.length / size;
  const out = new Uint8Array(bytes.length);
  for (let b = 0; b < size; b++) for (let i = 0; i < count; i++) out[i * size + b] = bytes[b * count + i];
  return out;
}

const SIZE = { f16: 2, f32: 4, f64: 8, i32: 4, u8: 1 } as const;

export async function unpack(packed: Packed): Promise<Tensor> {
  let bytes = fromBase64(packed.data);
  if (packed.deflate) bytes = await inflate(bytes);
  const { shape } = packed;
  if (packed.dtype === "f16") return { shape, values: halves(bytes, packed.deflate) };
  if (packed.deflate) bytes = woven(bytes, SIZE[packed.dtype]);
  switch (packed.dtype) {
    case "f32":
      return { shape, values: new Float32Array(bytes.buffer) };
    case "f64":
      return { shape, values: new Float64Array(bytes.buffer) };
    case "i32":
      return { shape, values: new Int32Array(bytes.buffer) };
    case "u8": {
      const scale = packed.scale ?? 1;
      const known = Float32Array.from({ length: 256 }, (_, b) => (b / 255) ** 2 * scale);
      const values = new Float32Array(bytes.length);
      for (let i = 0; i < bytes.length; i++) values[i] = known[bytes[i]];
      return { shape, values };
    }
  }
}

function isPacked(value: unknown): value is Packed {
  return typeof value === "object" && value !== null && "dtype" in value && "shape" in value && "data" in value;
}

/** A tree of JSON with every packed array replaced by its numbers. */
export async function unpackAll(value: unknown): Promise<unknown> {
  if (isPacked(value)) return unpack(value);
  if (Array.isArray(value)) {
    if (typeof value[0] === "string" || typeof value[0] === "number") return value;
    return Promise.all(value.map(unpackAll));
  }
  if (typeof value === "object" && value !== null) {
    const found = await Promise.all(Object.entries(value).map(async ([k, v]) => [k, await unpackAll(v)] as const));
    return Object.fromEntries(found);
  }
  return value;
}
