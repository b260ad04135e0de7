// Replays the recorded plans of an exported model on WebGPU: one sequence, its state, and its sampled tokens.
import { ACCESS, checkManifest, ExportError, need, product, STATES, USAGE, whole, WIDTHS } from "./manifest.js";

const HEADER = 256; // bytes of each of the two headers of a step
const DRAW_WORDS = 16;
const FROM_SLOT = 0x80000000; // as an id: the token that was sampled last
const FLAG = { SKIP: 1, GREEDY: 2, CUT: 16, BIASED: 32 };
const PAGE = 64; // positions of a page of keys and values
const AHEAD = 4; // decode steps in flight
const RESTART = 1000; // milliseconds

/** The first variant of the plans that a device, or an adapter, can run; undefined if there is none. */
export function variantOf({ variants }, { features, info, adapterInfo }) {
  const lanes = (info ?? adapterInfo)?.subgroupMinSize ?? 0;
  const extensions = navigator.gpu.wgslLanguageFeatures;
  return variants.find((one) => one.subgroup <= lanes && one.features.every((name) => features.has(name)) && one.wgsl.every((name) => extensions?.has(name)));
}

/** Opens a device with WebGPU's default limits and the features that help, or throws an error that names what is missing. */
export async function openDevice(manifest) {
  need(globalThis.navigator?.gpu, "This browser has no WebGPU here; use a current Chrome, Edge, Safari or Firefox, and a page from https or localhost.");
  const find = () => navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  // A browser whose GPU process has just crashed finds no adapter until it has started another.
  const adapter = (await find()) ?? (await new Promise((done) => setTimeout(() => done(find()), RESTART)));
  need(adapter, "This browser finds no GPU; switch on hardware acceleration in its settings.");
  const variant = variantOf(manifest, adapter);
  need(variant, `This browser's WebGPU lacks ${manifest.variants.at(-1).wgsl.concat(manifest.variants.at(-1).features).join(", ")}; use a newer browser.`);
  const most = Math.max(...manifest.buffers.map(({ bytes }) => bytes));
  need(most <= adapter.limits.maxBufferSize, `The model needs a buffer of ${most} bytes, but this GPU allows ${adapter.limits.maxBufferSize}; export it with a smaller context.`);
  const refused = ({ message }) => need(false, `The browser opens no device on this GPU (${message}); restart the browser.`);
  return adapter.requestDevice({ requiredFeatures: variant.features }).catch(refused);
}

/** A model on a device. `shard(index)` returns the bytes of a shard, checked; `progress(done, total)` is called with the bytes so far. */
export class Engine {
  #device;
  #manifest;
  #plans; // of the variant for this device
  #buffers; // those that its plans use
  #pipelines = new Map(); // promises by number of the shader
  #groups = new Map();
  #counter = 0;
  #newest = 0; // the number of the state that the last step wrote
  #reading;
  #awaited = new Set(); // what makes promises fail when the GPU is lost
  gone = null; // why the device cannot be used any more
  length = 0; // tokens of the sequence so far

  static async open(manifest, shard, { device = null, progress = () => {} } = {}) {
    checkManifest(manifest);
    const engine = new Engine();
    engine.#manifest = manifest;
    engine.#device = device ?? (await openDevice(manifest));
    engine.variant = variantOf(manifest, engine.#device);
    engine.#plans = engine.variant.plans;
    const gone = (sentence) => {
      engine.gone ??= new ExportError(sentence);
      for (const fail of engine.#awaited) fail(engine.gone);
    };
    engine.#device.lost.then(({ message, reason }) => gone(`The browser lost the GPU (${message.replace(/\.$/, "") || reason}); ask again to reload the model.`));
    engine.#device.addEventListener("uncapturederror", ({ error }) => gone(`The browser refuses a step of the model: ${error.message.split("\n")[0]}`));
    await engine.#load(shard, progress).catch((error) => {
      engine.close();
      throw error;
    });
    return engine;
  }

  async #load(shard, progress) {
    this.#device.pushErrorScope("out-of-memory");
    this.#device.pushErrorScope("validation");
    this.#allocate();
    const compiled = this.#bound(this.#plans[0]); // the others compile while a user types
    compiled.catch(() => {}); // reported below, after the download, which the next attempt needs as well
    await this.#fill(shard, progress);
    await compiled;
    const invalid = await this.#alive(this.#device.popErrorScope());
    const full = await this.#alive(this.#device.popErrorScope());
    need(!full, "The model does not fit in the memory of this GPU; take a smaller model or quantisation.");
    need(!invalid, `The browser refuses the model's plans: ${invalid?.message}`);
    for (const plan of this.#plans) this.#bound(plan).catch(() => {}); // the first step reports the error
  }

  #allocate() {
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    const { states, caches, sampler } = this.#manifest;
    const used = new Set([sampler.sampled, sampler.counts, ...[...states, ...caches].map(({ buffer }) => buffer)]);
    for (const { step, outputs, dispatches } of this.#plans) {
      for (const { buffer } of [step, ...Object.values(outputs)]) used.add(buffer);
      for (const [, , bound] of dispatches) for (const [, buffer] of bound) used.add(buffer);
    }
    this.#buffers = this.#manifest.buffers.map(({ bytes, uniform }, number) =>
      used.has(number) && this.#device.createBuffer({ size: bytes, usage: STORAGE | COPY_SRC | COPY_DST | (uniform ? UNIFORM : 0) }));
    this.#reading = Array.from({ length: AHEAD + 1 }, () => this.#device.createBuffer({ size: 16, usage: MAP_READ | COPY_DST }));
  }

  // Writes the shards to the buffers, whose data follow each other in the order of the manifest.
  async #fill(shard, progress) {
    const { buffers, shards } = this.#manifest;
    const total = shards.reduce((sum, one) => sum + one.bytes, 0);
    let start = 0;
    for (let index = 0; index < shards.length; index++) {
      const bytes = await shard(index);
      const end = start + bytes.length;
      buffers.forEach(({ data, bytes: size }, number) => {
        if (data === undefined || !this.#buffers[number] || data + size <= start || data >= end) return;
        const [first, last] = [Math.max(data, start), Math.min(data + size, end)];
        this.#device.queue.writeBuffer(this.#buffers[number], first - data, bytes, first - start, last - first);
      });
      start = end;
      progress(start, total);
    }
  }

  // The pipeline of a shader and its layout, compiled once, in parallel with others.
  #pipeline(number) {
    if (!this.#pipelines.has(number)) this.#pipelines.set(number, this.#compile(this.#manifest.shaders[number]));
    return this.#pipelines.get(number);
  }

  async #compile({ name, source, bindings }) {
    const entries = bindings.map(([binding, access]) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: ACCESS[access] } }));
    const layout = this.#device.createBindGroupLayout({ entries });
    const pipeline = await this.#alive(this.#device.createComputePipelineAsync({
      label: name,
      layout: this.#device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module: this.#device.createShaderModule({ label: name, code: source.map((number) => this.#manifest.texts[number]).join("") }), entryPoint: "main" },
    }));
    return { pipeline, layout };
  }

  /** Tokens of a sequence at most; null without a limit. */
  get context() {
    return this.#manifest.caches.length ? this.#manifest.model.context : null;
  }

  // The dispatches of a plan with their pipelines and bind groups, made once.
  #bound(plan) {
    if (!this.#groups.has(plan)) this.#groups.set(plan, this.#bind(plan));
    return this.#groups.get(plan);
  }

  async #bind(plan) {
    return Promise.all(plan.dispatches.map(async ([shader, grid, bound]) => {
      const { pipeline, layout } = await this.#pipeline(shader);
      const entries = bound.map(([binding, buffer, offset, size]) => ({ binding, resource: { buffer: this.#buffers[buffer], offset, size } }));
      return [pipeline, grid, this.#device.createBindGroup({ layout, entries })];
    }));
  }

  // The header and inputs of a step whose rows are the next tokens.
  #fillStep(plan, ids, draw) {
    const data = new ArrayBuffer(plan.step.bytes);
    const [words, rows] = [new Uint32Array(data), ids.length];
    words.set([rows, 1, 1, plan.rows, this.length + rows, this.length + rows]);
    words.set([1, 1, 1, plan.rows], HEADER / 4);
    const place = (name, values) => {
      const input = plan.step.inputs[name];
      if (input) new USAGE[input.type](data, input.offset).set(values);
    };
    const positions = Array.from(ids, (_, row) => this.length + row);
    place("ids", ids);
    place("segments", [0, rows, this.length, this.#newest, 1 - this.#newest]); // then zeros: it saves no other state
    place("row_segment", []);
    place("output_rows", [rows - 1]);
    place("slots", [0]);
    place("lengths", [this.length + rows, this.length + rows]);
    for (const name of Object.keys(plan.step.inputs)) {
      if (name === "pages") place(name, Array.from({ length: Math.ceil((this.length + rows) / PAGE) }, (_, page) => page));
      if (name === "places") place(name, positions.flatMap((at) => [at, at]));
    }
    place("draws", draw);
    return data;
  }

  // Queues a step of the next tokens.
  async #step(ids, params, number) {
    if (this.gone) throw this.gone;
    need(this.context === null || this.length + ids.length <= this.context, `The conversation is longer than the context of ${this.context} tokens; begin a new one.`);
    const plan = this.#plans.find(({ rows }) => rows >= ids.length);
    const dispatches = await this.#bound(plan);
    const draw = this.#draw(params, number);
    this.#device.queue.writeBuffer(this.#buffers[plan.step.buffer], 0, this.#fillStep(plan, ids, draw));
    this.#newest = 1 - this.#newest;
    const encoder = this.#device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const [pipeline, grid, group] of dispatches) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...grid);
    }
    pass.end();
    const landing = this.#reading[this.#counter++ % this.#reading.length];
    const { buffer, offset } = plan.outputs.chosen;
    encoder.copyBufferToBuffer(this.#buffers[buffer], offset, landing, 0, 16);
    this.#device.queue.submit([encoder.finish()]);
    this.length += ids.length;
    const mapped = landing.mapAsync(GPUMapMode.READ);
    mapped.catch(() => {}); // #land reports the error
    return { plan, landing, mapped };
  }

  async #land({ landing, mapped }) {
    await this.#alive(mapped);
    const [token, , reason] = new Uint32Array(landing.getMappedRange().slice(0));
    landing.unmap();
    need(reason === 0 || reason === 3, "The model computed numbers that are not finite.");
    return token;
  }

  // Waits for a promise of the device, but not after the GPU is lost: some promises would never settle then, and others hide the reason.
  async #alive(promise) {
    let fail;
    const lost = new Promise((_, failed) => { fail = failed; });
    this.#awaited.add(fail);
    if (this.gone) fail(this.gone);
    try {
      return await Promise.race([lost, promise.catch((error) => new Promise((_, failed) => setTimeout(failed, 1000, error)))]);
    } finally {
      this.#awaited.delete(fail);
    }
  }

  // A row of the input `draws`.
  #draw(params, number) {
    const { temperature = 1, topK = 0, topP = 1, minP = 0, seed = 0n } = params ?? {};
    const row = new ArrayBuffer(4 * DRAW_WORDS);
    const [words, floats] = [new Uint32Array(row), new Float32Array(row)];
    const cut = topK > 0 || topP < 1 || minP > 0;
    words[1] = params === null ? FLAG.SKIP : (temperature === 0 ? FLAG.GREEDY : cut ? FLAG.CUT : 0) | (this.#manifest.sampler.biased ? FLAG.BIASED : 0);
    words[2] = Number(BigInt(seed) & 0xffffffffn);
    words[3] = Number(BigInt(seed) >> 32n);
    words[4] = number;
    words[5] = this.length;
    floats[6] = temperature > 0 ? Math.min(1 / temperature, 1e30) : 1e30;
    words[7] = topK || 0xffffffff;
    floats[8] = topP;
    floats[9] = minP > 0 ? Math.log(minP) : -3.4e38;
    floats[10] = 1;
    return words;
  }

  /** Feeds tokens, and samples the next if `params` are given; `number` counts earlier draws of the answer. `progress` receives the number of tokens so far. */
  async feed(ids, params = null, number = 0, signal = null, progress = () => {}) {
    need(ids.length > 0, "There are no tokens to read.");
    const most = Math.max(...this.#plans.map(({ rows }) => rows));
    for (let at = 0; ; at += most) {
      const piece = ids.slice(at, at + most);
      progress(at);
      const last = at + most >= ids.length;
      signal?.throwIfAborted();
      const token = await this.#land((this.last = await this.#step(piece, last ? params : null, number)));
      if (last) return token;
    }
  }

  /** Yields the tokens after `ids`; several steps are in flight. The reader stops by ending the loop. */
  async *generate(ids, params, most = Infinity) {
    let token = await this.feed(ids, params, 0);
    const flight = [];
    let number = 1;
    const room = () => this.context === null || this.length < this.context;
    try {
      for (let count = 1; ; count++) {
        // Steps that run ahead read a token that is still being sampled.
        while (flight.length < AHEAD && number < most && room()) flight.push(await this.#step([FROM_SLOT], params, number++));
        yield token;
        if (!flight.length) return;
        token = await this.#land(flight.shift());
      }
    } finally {
      for (const step of flight) await this.#land(step).catch(() => {});
    }
  }

  /** The logits of the last step. */
  async logits() {
    const { buffer, offset, row } = this.last.plan.outputs.logits;
    return new Float32Array(await this.#read(buffer, offset, row));
  }

  async #read(buffer, offset, bytes) {
    const landing = this.#device.createBuffer({ size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.#buffers[buffer], offset, landing, 0, bytes);
    this.#device.queue.submit([encoder.finish()]);
    await this.#alive(landing.mapAsync(GPUMapMode.READ));
    const data = landing.getMappedRange().slice(0);
    landing.destroy();
    return data;
  }

  // The arrays of a state of some tokens: name, buffer, where it begins, type and shape.
  #arrays(length) {
    const { states, caches } = this.#manifest;
    return [
      ...states.map(({ name, buffer, shape }) => ({ name, buffer, at: this.#newest * 4 * product(shape), type: "float32", shape })),
      ...caches.map(({ name, buffer, type, shape }) => ({ name, buffer, at: 0, type, shape: [length, ...shape] })),
    ];
  }

  /** The state after the last token, by name: `{ type, shape, bytes }` of recurrent states, and of keys and values. */
  async saveState() {
    const arrays = {};
    if (!this.length) return arrays;
    for (const { name, buffer, at, type, shape } of this.#arrays(this.length)) {
      const size = product(shape) * WIDTHS[type];
      arrays[name] = { type, shape, bytes: new Uint8Array(await this.#read(buffer, at, padded(size)), 0, size) };
    }
    return arrays;
  }

  /** Continues from a state after `length` tokens. Layers with a window may lack positions before it. */
  loadState(length, arrays) {
    const wrong = "The state does not have the sizes of this model.";
    need(whole(length, 1, this.context ?? 2 ** 31), wrong);
    const rows = this.#arrays(length);
    need(Object.keys(arrays).length === rows.length, wrong);
    const writes = rows.map(({ name, buffer, at, type, shape }) => {
      const given = arrays[name];
      const found = type === "float32" && given?.type === "float16" ? widened(given) : given;
      need(found?.type === type && found.shape.length === shape.length, wrong);
      const missing = name in this.#windows ? shape[0] - found.shape[0] : 0;
      need(missing === 0 || (missing > 0 && found.shape[0] >= this.#windows[name] - 1), wrong);
      need(found.shape.every((size, axis) => size === shape[axis] - (axis ? 0 : missing)), wrong);
      const start = missing * product(shape.slice(1)) * WIDTHS[type];
      need(found.bytes.length + start === product(shape) * WIDTHS[type] && start % 4 === 0, wrong);
      const data = new Uint8Array(padded(found.bytes.length));
      data.set(found.bytes);
      return [buffer, at + start, data];
    });
    for (const [buffer, start, data] of writes) this.#device.queue.writeBuffer(this.#buffers[buffer], start, data);
    this.length = length;
  }

  get #windows() {
    return Object.fromEntries(this.#manifest.caches.filter(({ window }) => window).map(({ name, window }) => [name, window]));
  }

  /** Whether `rewind` can go back: keys and values can, recurrent states cannot. */
  get rewinds() {
    return !this.#manifest.states.length;
  }

  /** Forgets the tokens after the first `length`. */
  rewind(length) {
    need((this.rewinds || length === 0 || length === this.length) && length <= this.length, "A recurrent state cannot go back.");
    this.length = length;
  }

  /** Begins a new sequence. */
  reset() {
    this.length = 0;
  }

  /** Frees the memory of the GPU. */
  close() {
    this.#device.destroy();
  }
}

// Converts the bits of a float32 to those of a float16; rounds to the nearest, and ties to even.
function halfOf(bits) {
  const exponent = ((bits >>> 23) & 255) - 112;
  if (exponent < -11) return (bits >>> 16) & 0x8000;
  const shift = exponent > 0 ? 13 : 14 - exponent;
  const digits = exponent > 0 ? (Math.min(exponent, 31) << 23) | (bits & 0x7fffff) : 0x800000 | (bits & 0x7fffff);
  const half = digits >>> shift;
  const rest = digits - half * 2 ** shift;
  const up = rest > 2 ** (shift - 1) || (rest === 2 ** (shift - 1) && half & 1);
  return ((bits >>> 16) & 0x8000) | Math.min(half + (up ? 1 : 0), 0x7c00);
}

function numberOf(half) {
  const [exponent, digits] = [(half >> 10) & 31, half & 1023];
  const size = exponent === 0 ? digits * 2 ** -24 : exponent === 31 ? (digits ? NaN : Infinity) : (1024 + digits) * 2 ** (exponent - 25);
  return half & 0x8000 ? -size : size;
}

/** An array in float16 as one in float32. */
export function widened({ shape, bytes }) {
  const halves = new Uint16Array(bytes.slice().buffer);
  return { type: "float32", shape, bytes: new Uint8Array(Float32Array.from(halves, numberOf).buffer) };
}

/** An array in float32 as one in float16; the same array if a number is beyond its range. */
export function halved(array) {
  const halves = Uint16Array.from(new Uint32Array(array.bytes.slice().buffer), halfOf);
  if (array.type !== "float32" || halves.some((half) => (half & 0x7c00) === 0x7c00)) return array;
  return { type: "float16", shape: array.shape, bytes: new Uint8Array(halves.buffer) };
}

const padded = (bytes) => Math.ceil(bytes / 4) * 4;
