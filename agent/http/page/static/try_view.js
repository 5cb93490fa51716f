// A place to try a model: drop a picture or arrays, and see the answer; for a language model, talk to it.

import { make } from "./dom.js";
import { ask, get } from "./asking.js";
import { showAnswer } from "./answer_view.js";
import { readArrays } from "./arrays.js";
import { TalkView } from "./talk_view.js";
import { SCALES, pictureInput, pictureTensor } from "./pictures.js";
import { shape } from "./figures.js";
import { count, decode, encode, tensor } from "./tensors.js";

export class TryView {
  constructor(name) {
    this.name = name;
    this.path = `v2/models/${encodeURIComponent(name)}`;
    this.element = make("div", {}, make("p", { class: "soft" }, "asking for its inputs…"));
    this.model = "";
  }

  async update(card) {
    if (card.model_digest === this.model) return;
    this.model = card.model_digest;
    try {
      if (card.talks) {
        this.element.replaceChildren(new TalkView(this.name).element);
        return;
      }
      this.metadata = await get(this.path);
      this.build();
    } catch (error) {
      this.model = "";
      this.element.replaceChildren(make("p", { class: "bad" }, error.message));
    }
  }

  build() {
    const wanted = this.picture = pictureInput(this.metadata.inputs);
    this.file = make("input", { type: "file", hidden: true, multiple: true, accept: "image/*,.npy,.npz,.txt",
      "aria-label": "picture or arrays", onchange: () => this.take([...this.file.files]) });
    this.scale = make("select", { "aria-label": "scale of values", hidden: !(wanted && wanted.input.datatype.startsWith("FP")) },
      ...Object.entries(SCALES).map(([key, one]) => make("option", { value: key }, one.label)));
    this.image = make("div");
    this.answer = make("div", { class: "answer", role: "status" });
    const inputs = this.metadata.inputs.map(one => make("div", {}, make("code", {}, one.name), ` ${one.datatype} ${shape(one.shape)}`));
    const drop = make("div", { class: "drop", ondragover: event => { event.preventDefault(); drop.classList.add("over"); },
      ondragleave: () => drop.classList.remove("over"), ondrop: event => {
        event.preventDefault();
        drop.classList.remove("over");
        this.take([...event.dataTransfer.files]);
      } }, this.image, make("div", {}, wanted ? "Drop a picture here, or a .npy or .npz file" : "Drop .npy files or an .npz file here"),
      make("div", { class: "row" }, make("button", { type: "button", onclick: () => this.file.click() }, "Choose a file…"),
        make("button", { type: "button", onclick: () => this.run(async () => this.random(), null) }, "Random input"), this.scale, this.file),
      make("div", { class: "soft small" }, wanted ? "A .txt file with a line for each class names the classes." : "", ...inputs));
    this.element.replaceChildren(make("div", { class: "try" }, drop, this.answer));
  }

  async take(files) {
    const names = files.find(file => file.name.endsWith(".txt"));
    if (names) this.labels = (await names.text()).split("\n").map(line => line.trim());
    const arrays = files.filter(file => /\.np[yz]$/.test(file.name));
    const picture = files.find(file => !file.name.endsWith(".txt") && !arrays.includes(file));
    if (arrays.length) await this.run(async () => this.match((await Promise.all(arrays.map(readArrays))).flat()), null);
    else if (picture) await this.run(() => this.pictured(picture), picture);
    else if (names) this.answer.replaceChildren(make("p", { class: "soft" }, `${this.labels.length} names of classes are read.`));
  }

  pictured(file) {
    if (!this.picture) throw new Error("no input of this model looks like a picture: give its inputs as .npy or .npz");
    if (this.metadata.inputs.length > 1) throw new Error(`this model has ${this.metadata.inputs.length} inputs: give them as an .npz file`);
    return pictureTensor(file, this.picture, this.scale.value).then(one => [one]);
  }

  // The arrays under the names of the model's inputs; a single array is the single input, whatever its name.
  match(arrays) {
    const inputs = this.metadata.inputs;
    return inputs.map(input => {
      const found = arrays.find(one => one.name === input.name) || (inputs.length === 1 && arrays.length === 1 ? arrays[0] : null);
      if (!found) throw new Error(`the file has no array ${input.name}; it has ${arrays.map(one => one.name).join(", ")}`);
      return tensor(input.name, input.datatype, found.shape, found.numbers);
    });
  }

  random() {
    return this.metadata.inputs.map(input => {
      const extents = input.shape.map(extent => extent < 0 ? 1 : extent);
      const whole = !input.datatype.startsWith("FP");
      return tensor(input.name, input.datatype, extents,
        Array.from({ length: count(extents) }, () => whole ? Math.floor(2 * Math.random()) : Math.random()));
    });
  }

  async run(make_tensors, picture) {
    this.answer.replaceChildren(make("p", { class: "soft" }, "asking…"));
    this.image.replaceChildren();
    if (picture) this.image.append(make("img", { src: URL.createObjectURL(picture), alt: picture.name,
      onload: event => URL.revokeObjectURL(event.target.src) }));
    try {
      const { blob, length } = encode(await make_tensors());
      const began = performance.now();
      const answer = await decode(await ask(`${this.path}/infer`, { method: "POST", body: blob,
        headers: { "Inference-Header-Content-Length": String(length), "Content-Type": "application/octet-stream" } }));
      this.answer.replaceChildren(...showAnswer(answer, (performance.now() - began) / 1e3, this.labels).filter(Boolean));
    } catch (error) {
      this.answer.replaceChildren(make("p", { class: "bad" }, error.message));
    }
  }
}
