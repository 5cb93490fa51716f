// Tensors as the Open Inference Protocol v2 sends them in binary: {name, datatype, shape, data}, data a typed array (of
// strings for BYTES).

const ARRAYS = { BOOL: Uint8Array, UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array,
  INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array, FP16: Uint16Array, BF16: Uint16Array,
  FP32: Float32Array, FP64: Float64Array };
const BIG = new Set(["INT64", "UINT64"]);

export const count = shape => shape.reduce((product, extent) => product * extent, 1);

// The numbers as a tensor of this datatype.
export function tensor(name, datatype, shape, numbers) {
  if (!ARRAYS[datatype]) throw new Error(`the page cannot make a tensor of ${datatype}`);
  if (datatype === "BF16") throw new Error("the page cannot make a tensor of BF16");
  const data = new ARRAYS[datatype](numbers.length);
  for (let n = 0; n < numbers.length; n++) {
    const value = numbers[n];
    data[n] = BIG.has(datatype) ? BigInt(typeof value === "bigint" ? value : Math.round(Number(value)))
      : datatype === "FP16" ? toHalf(Number(value)) : Number(value);
  }
  return { name, datatype, shape, data };
}

// The body of a request, and the length of its head in JSON.
export function encode(tensors) {
  const inputs = tensors.map(one => ({ name: one.name, datatype: one.datatype, shape: one.shape,
    parameters: { binary_data_size: one.data.byteLength } }));
  const head = new TextEncoder().encode(JSON.stringify({ inputs, parameters: { binary_data_output: true } }));
  const blob = new Blob([head, ...tensors.map(one => one.data)]);
  return { blob, length: head.length };
}

// The tensors in an answer.
export async function decode(response) {
  const buffer = await response.arrayBuffer();
  const length = Number(response.headers.get("Inference-Header-Content-Length") || buffer.byteLength);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, length)));
  let at = length;
  const outputs = head.outputs.map(one => {
    const size = (one.parameters || {}).binary_data_size;
    if (size === undefined) return { ...one, data: one.data.flat(Infinity) };
    const part = buffer.slice(at, at += size);
    return { name: one.name, datatype: one.datatype, shape: one.shape,
      data: one.datatype === "BYTES" ? strings(part) : new ARRAYS[one.datatype](part) };
  });
  return { outputs, parameters: head.parameters || {} };
}

function strings(buffer) {
  const view = new DataView(buffer), found = [];
  for (let at = 0; at < buffer.byteLength;) {
    const length = view.getUint32(at, true);
    found.push(new TextDecoder().decode(new Uint8Array(buffer, at + 4, length)));
    at += 4 + length;
  }
  return found;
}

// A tensor's value as a number, or as a text if it is one.
export function value(one, n) {
  if (one.datatype === "FP16") return fromHalf(one.data[n]);
  if (one.datatype === "BF16") return new Float32Array(new Uint32Array([one.data[n] << 16]).buffer)[0];
  if (one.datatype === "BOOL") return Boolean(one.data[n]);
  return typeof one.data[n] === "bigint" ? Number(one.data[n]) : one.data[n];
}

export function toHalf(number) {
  const [bits] = new Uint32Array(new Float32Array([number]).buffer);
  const sign = bits >>> 16 & 0x8000, exponent = (bits >>> 23 & 0xff) - 112, rest = bits & 0x7fffff;
  if ((bits >>> 23 & 0xff) === 0xff) return sign | 0x7c00 | (rest ? 0x200 : 0);
  if (exponent >= 31) return sign | 0x7c00;
  if (exponent <= 0) return exponent < -10 ? sign : sign | ((rest | 0x800000) >>> 14 - exponent);
  return sign | exponent << 10 | rest >>> 13;
}

export function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1, exponent = half >>> 10 & 0x1f, rest = half & 0x3ff;
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + rest / 1024) : sign * 2 ** -14 * (rest / 1024);
}
