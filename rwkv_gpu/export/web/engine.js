// Replays the recorded plans of an exported model on WebGPU: one sequence, its state, and its sampled tokens.
export const FORMAT = 1; // of manifests that this file reads
const HEADER = 256; // bytes of each of the two headers of a step
const DRAW_WORDS = 16;
const FROM_SLOT = 0x80000000; // an id: the token that was sampled last
const FLAG = { SKIP: 1, GREEDY: 2, CUT: 16, BIASED: 32 };
const PAGE = 64; // positions of a page of keys and values
const AHEAD = 4; // decode steps in flight
const MOST_BUFFER = 256 << 20;
const USAGE = { "uint32": Uint32Array, "float32": Float32Array };

/** What is wrong with an exported model, in one sentence. */
export class ExportError extends Error {}

function need(condition, sentence) {
  if (!condition) throw new ExportError(sentence);
}

const whole = (number, least, most) => Number.isSafeInteger(number) && number >= least && number <= most;

/** Refuses a manifest of another version, and one whose sizes do not fit together, before anything is allocated. */
export function checkManifest(manifest) {
  need(manifest?.kind === "rwkv-gpu export", "This is no model that rwkv-gpu exported.");
  need(manifest.format === FORMAT, `The model was exported in format ${manifest.format}, but this page reads format ${FORMAT}; export it again.`);
  const wrong = "The sizes in the manifest do not fit together; export the model again.";
  const { buffers, shards, plans, shaders } = manifest;
  need([buffers, shards, plans, shaders, manifest.states, manifest.caches].every(Array.isArray) && plans.length, wrong);
  let data = 0;
  for (const one of buffers) {
    need(whole(one.bytes, 4, MOST_BUFFER) && one.bytes % 4 === 0, wrong);
    if (one.data === undefined) continue;
    need(one.data === data, wrong);
    data += one.bytes;
  }
  for (const one of shards) need(whole(one.bytes, 1, MOST_BUFFER) && /^[\w.-]+$/.test(one.file) && /^[0-9a-f]{64}$/.test(one.sha256), wrong);
  need(shards.reduce((sum, one) => sum + one.bytes, 0) === data, wrong);
  const inside = (number, offset, bytes) => {
    need(whole(number, 0, buffers.length - 1) && whole(offset, 0, MOST_BUFFER) && whole(bytes, 1, MOST_BUFFER), wrong);
    need(offset + bytes <= buffers[number].bytes, wrong);
  };
  for (const plan of plans) {
    need(whole(plan.rows, 1, 65536), wrong);
    inside(plan.step.buffer, 0, plan.step.bytes);
    for (const { offset, shape, type } of Object.values(plan.step.inputs)) {
      need(Object.hasOwn(USAGE, type), wrong);
      inside(plan.step.buffer, offset, 4 * shape.reduce((a, b) => a * b, 1));
    }
    for (const { buffer, offset, row } of Object.values(plan.outputs)) inside(buffer, offset, row);
    for (const [shader, grid, bound] of plan.dispatches) {
      need(whole(shader, 0, shaders.length - 1) && grid.every((size) => whole(size, 1, 65535)), wrong);
      for (const [, buffer, offset, bytes] of bound) inside(buffer, offset, bytes);
    }
  }
  for (const { buffer, shape } of manifest.states) inside(buffer, 0, 4 * shape.reduce((a, b) => a * b, 1));
}

/** Opens a device with WebGPU's default limits, or says what is missing. */
export async function openDevice(manifest) {
  need(globalThis.navigator?.gpu, "This browser has no WebGPU here; use a current Chrome, Edge, Safari or Firefox, and a page from https or localhost.");
  const missing = manifest.needs.wgsl.filter((name) => !navigator.gpu.wgslLanguageFeatures?.has(name));
  need(!missing.length, `This browser's WebGPU lacks ${missing.join(", ")}; use a newer browser.`);
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  need(adapter, "This browser finds no GPU; switch on hardware acceleration in its settings.");
  return adapter.requestDevice();
}

/** A model on a device. `shard(index)` returns the bytes of a shard, checked; `progress(done, total)` follows them. */
export class Engine {
  #device;
  #manifest;
  #buffers;
  #pipelines;
  #groups = new Map();
  #counter = 0;
  #reading;
  length = 0; // tokens of the sequence so far

  static async open(manifest, shard, { device = null, progress = () => {} } = {}) {
    checkManifest(manifest);
    const engine = new Engine();
    engine.#manifest = manifest;
    engine.#device = device ?? (await openDevice(manifest));
    engine.lost = engine.#device.lost.then((info) => new ExportError(`The GPU was lost (${info.message || info.reason}); load the model again.`));
    engine.#device.pushErrorScope("out-of-memory");
    engine.#device.pushErrorScope("validation");
    engine.#allocate();
    const [, pipelines] = await Promise.all([engine.#fill(shard, progress), engine.#compile()]);
    engine.#pipelines = pipelines;
    const invalid = await engine.#device.popErrorScope();
    const full = await engine.#device.popErrorScope();
    need(!full, "The model does not fit in the memory of this GPU; take a smaller model or quantisation.");
    need(!invalid, `The browser refuses the model's plans: ${invalid?.message}`);
    return engine;
  }

  #allocate() {
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    this.#buffers = this.#manifest.buffers.map(({ bytes, uniform }) =>
      this.#device.createBuffer({ size: bytes, usage: STORAGE | COPY_SRC | COPY_DST | (uniform ? UNIFORM : 0) }));
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
        if (data === undefined || data + size <= start || data >= end) return;
        const [first, last] = [Math.max(data, start), Math.min(data + size, end)];
        this.#device.queue.writeBuffer(this.#buffers[number], first - data, bytes, first - start, last - first);
      });
      start = end;
      progress(start, total);
    }
  }

  #compile() {
    const kinds = { uniform: "uniform", read: "read-only-storage", read_write: "storage" };
    return Promise.all(this.#manifest.shaders.map(async ({ name, source, bindings }) => {
      const entries = bindings.map(([binding, access]) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: kinds[access] } }));
      const layout = this.#device.createBindGroupLayout({ entries });
      const pipeline = await this.#device.createComputePipelineAsync({
        label: name,
        layout: this.#device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module: this.#device.createShaderModule({ label: name, code: source }), entryPoint: "main" },
      });
      return { pipeline, layout };
    }));
  }

  /** Tokens of a sequence at most; null without a limit. */
  get context() {
    return this.#manifest.caches.length ? this.#manifest.model.context : null;
  }

  // The bind groups of a plan, made on its first use.
  #bound(plan) {
    if (!this.#groups.has(plan)) {
      this.#groups.set(plan, plan.dispatches.map(([shader, grid, bound]) => [this.#pipelines[shader].pipeline, grid, this.#device.createBindGroup({
        layout: this.#pipelines[shader].layout,
        entries: bound.map(([binding, buffer, offset, size]) => ({ binding, resource: { buffer: this.#buffers[buffer], offset, size } })),
      })]));
    }
    return this.#groups.get(plan);
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
    place("segments", [0, rows, this.length]); // then zeros: the sequence reads and writes state 0, and saves none
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
  #step(ids, draw) {
    need(this.context === null || this.length + ids.length <= this.context, `The conversation is longer than the context of ${this.context} tokens; begin a new one.`);
    const plan = this.#manifest.plans.find(({ rows }) => rows >= ids.length);
    this.#device.queue.writeBuffer(this.#buffers[plan.step.buffer], 0, this.#fillStep(plan, ids, draw));
    const encoder = this.#device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const [pipeline, grid, group] of this.#bound(plan)) {
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
    return { plan, landing, mapped: landing.mapAsync(GPUMapMode.READ) };
  }

  async #land({ landing, mapped }) {
    await mapped;
    const [token, , reason] = new Uint32Array(landing.getMappedRange().slice(0));
    landing.unmap();
    need(reason === 0 || reason === 3, "The model computed numbers that are not finite.");
    return token;
  }

  // The words of a row of draws.
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

  /** Feeds tokens, and samples the next if `params` are given; `number` counts earlier draws of the answer. */
  async feed(ids, params = null, number = 0) {
    need(ids.length > 0, "There are no tokens to read.");
    const most = Math.max(...this.#manifest.plans.map(({ rows }) => rows));
    for (let at = 0; ; at += most) {
      const piece = ids.slice(at, at + most);
      const last = at + most >= ids.length;
      const token = await this.#land((this.last = this.#step(piece, this.#draw(last ? params : null, number))));
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
        // The steps ahead feed what is still being sampled.
        while (flight.length < AHEAD && number < most && room()) flight.push(this.#step([FROM_SLOT], this.#draw(params, number++)));
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
    await landing.mapAsync(GPUMapMode.READ);
    const data = landing.getMappedRange().slice(0);
    landing.destroy();
    return data;
  }

  /** The state after the last token: its length, and the arrays of recurrent layers and of keys and values. */
  async saveState() {
    const { states, caches } = this.#manifest;
    const arrays = {};
    for (const { name, buffer, shape } of states) arrays[name] = await this.#read(buffer, 0, 4 * shape.reduce((a, b) => a * b, 1));
    for (const { name, buffers, row } of caches) {
      for (const [what, buffer] of buffers.entries()) if (this.length) arrays[`${name}.${what}`] = await this.#read(buffer, 0, padded(this.length * row));
    }
    return { model: this.#manifest.model.digest, length: this.length, arrays };
  }

  /** Continues from a state of this model. */
  loadState({ model, length, arrays }) {
    need(model === this.#manifest.model.digest, "The state belongs to another model.");
    const { states, caches } = this.#manifest;
    const rows = [
      ...states.map(({ name, buffer, shape }) => [name, buffer, 4 * shape.reduce((a, b) => a * b, 1)]),
      ...caches.flatMap(({ name, buffers, row }) => buffers.map((buffer, what) => [`${name}.${what}`, buffer, padded(length * row)])),
    ].filter(([, , bytes]) => bytes);
    need(whole(length, 0, this.context ?? 2 ** 31) && rows.every(([name, , bytes]) => !length || arrays[name]?.byteLength === bytes), "The state does not have the sizes of this model.");
    if (length) for (const [name, buffer] of rows) this.#device.queue.writeBuffer(this.#buffers[buffer], 0, arrays[name]);
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

const padded = (bytes) => Math.ceil(bytes / 4) * 4;
