// A picture as the tensor that a model takes: resized, in its order of axes, with its values scaled.

import { tensor } from "./tensors.js";

export const SCALES = {
  imagenet: { label: "values as ImageNet's mean and deviation", mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] },
  unit: { label: "values 0 to 1", mean: [0, 0, 0], deviation: [1, 1, 1] },
  signed: { label: "values −1 to 1", mean: [0.5, 0.5, 0.5], deviation: [0.5, 0.5, 0.5] },
  bytes: { label: "values 0 to 255", mean: [0, 0, 0], deviation: [1 / 255, 1 / 255, 1 / 255] },
};

const DEFAULT = 224, MOST = 1024, MULTIPLE = 32;

// How the model takes a picture: {input, channels, first: whether channels come before rows, height, width}; null if it does not.
export function pictureInput(inputs) {
  for (const input of inputs) {
    if (input.shape.length !== 4) continue;
    const [, one, two, three] = input.shape;
    if (one === 3 || one === 1) return { input, channels: one, first: true, height: two, width: three };
    if (three === 3 || three === 1) return { input, channels: three, first: false, height: one, width: two };
  }
  return null;
}

export async function pictureTensor(file, wanted, scale) {
  const bitmap = await createImageBitmap(file);
  const height = wanted.height > 0 ? wanted.height : fit(bitmap.height), width = wanted.width > 0 ? wanted.width : fit(bitmap.width);
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  // The middle of the picture, as large as its shape allows.
  const zoom = Math.max(width / bitmap.width, height / bitmap.height);
  const [across, down] = [width / zoom, height / zoom];
  context.drawImage(bitmap, (bitmap.width - across) / 2, (bitmap.height - down) / 2, across, down, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  const { mean, deviation } = wanted.input.datatype.startsWith("FP") ? SCALES[scale] : SCALES.bytes;
  const { channels, first } = wanted, numbers = new Float32Array(width * height * channels);
  for (let n = 0; n < width * height; n++) {
    for (let c = 0; c < channels; c++) {
      const level = channels === 3 ? pixels[4 * n + c]
        : 0.299 * pixels[4 * n] + 0.587 * pixels[4 * n + 1] + 0.114 * pixels[4 * n + 2];
      numbers[first ? c * width * height + n : n * channels + c] = (level / 255 - mean[c]) / deviation[c];
    }
  }
  const shape = first ? [1, channels, height, width] : [1, height, width, channels];
  return tensor(wanted.input.name, wanted.input.datatype, shape, numbers);
}

const fit = size => Math.min(MOST, Math.max(MULTIPLE, MULTIPLE * Math.round(size / MULTIPLE))) || DEFAULT;
