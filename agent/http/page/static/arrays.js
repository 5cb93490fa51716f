// Reads NumPy's files: .npy, and .npz, which is a zip of them. Arrays are {name, shape, numbers}.

const TYPES = { f4: Float32Array, f8: Float64Array, f2: Uint16Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array,
  u8: BigUint64Array, i1: Int8Array, i2: Int16Array, i4: Int32Array, i8: BigInt64Array, b1: Uint8Array };

import { fromHalf } from "./tensors.js";

export async function readArrays(file) {
  const buffer = await file.arrayBuffer();
  const stem = file.name.replace(/\.np[yz]$/, "");
  if (file.name.endsWith(".npz")) {
    return Promise.all((await members(buffer)).map(one => readArray(one.name.replace(/\.npy$/, ""), one.data)));
  }
  return [readArray(stem, buffer)];
}

function readArray(name, buffer) {
  const bytes = new Uint8Array(buffer);
  if (String.fromCharCode(...bytes.slice(1, 6)) !== "NUMPY") throw new Error(`${name} is no .npy file`);
  const wide = bytes[6] > 1, view = new DataView(buffer);
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const start = (wide ? 12 : 10) + length;
  const head = new TextDecoder("latin1").decode(bytes.slice(wide ? 12 : 10, start));
  const kind = /'descr':\s*'([<>|=])(\w+)'/.exec(head), extents = /'shape':\s*\(([^)]*)\)/.exec(head);
  if (!kind || !extents || !TYPES[kind[2]] || kind[1] === ">") throw new Error(`${name} holds a type that the page cannot read: ${head.trim()}`);
  if (/'fortran_order':\s*True/.test(head)) throw new Error(`${name} is in Fortran order; save numpy.ascontiguousarray(x)`);
  const shape = extents[1].split(",").map(text => text.trim()).filter(Boolean).map(Number);
  const data = new TYPES[kind[2]](buffer.slice(start));
  return { name, shape, numbers: kind[2] === "f2" ? Array.from(data, fromHalf) : data };
}

// The files of a zip, by its central directory.
async function members(buffer) {
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw new Error("this is no .npz file");
  const found = [];
  let at = view.getUint32(end + 16, true);
  for (let n = view.getUint16(end + 10, true); n > 0; n--) {
    const [method, packed, name] = [view.getUint16(at + 10, true), view.getUint32(at + 20, true), view.getUint16(at + 28, true)];
    const place = view.getUint32(at + 42, true);
    const start = place + 30 + view.getUint16(place + 26, true) + view.getUint16(place + 28, true);
    const part = buffer.slice(start, start + packed);
    found.push({ name: new TextDecoder().decode(new Uint8Array(buffer, at + 46, name)), data: method ? await inflate(part) : part });
    at += 46 + name + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return found;
}

const inflate = part => new Response(new Blob([part]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
