// Checks the manifest of an exported model, before a page allocates memory or indexes arrays by it.
export const FORMAT = 1; // of manifests that this file reads
const MAX_BUFFER = 256 << 20;
/** Copies of each state: a step reads one, and writes the other. */
export const STATES = 2;
/** Arrays of inputs, kinds of bindings, and bytes of numbers, by their names in the manifest. */
export const USAGE = { "uint32": Uint32Array, "float32": Float32Array };
export const ACCESS = { uniform: "uniform", read: "read-only-storage", read_write: "storage" };
export const WIDTHS = { float32: 4, float16: 2 };
export const product = (shape) => shape.reduce((a, b) => a * b, 1);

/** What is wrong with an exported model, in one sentence. */
export class ExportError extends Error {}

/** Throws an error of one sentence unless the condition is true. */
export function need(condition, sentence) {
  if (!condition) throw new ExportError(sentence);
}

/** Whether a value is a whole number within bounds. */
export const whole = (number, least, most) => Number.isSafeInteger(number) && number >= least && number <= most;

const isText = (value) => typeof value === "string";
const isFlag = (value) => typeof value === "boolean";
const isId = (value) => whole(value, 0, 2 ** 24);
const listOf = (fits) => (value) => Array.isArray(value) && value.every(fits);
const orNone = (fits) => (value) => value === undefined || value === null || fits(value);
const isPair = (first, second) => (value) => Array.isArray(value) && value.length === 2 && first(value[0]) && second(value[1]);
const formOf = (fields) => (value) => value !== null && typeof value === "object" && Object.entries(fields).every(([name, fits]) => fits(value[name]));

const [areTexts, areIds] = [listOf(isText), listOf(isId)];
const isTokenizer = formOf({
  kind: isText, pieces: areTexts, tokens: areTexts, special: listOf(isPair(isId, isText)), always: areIds, before: areIds, after: areIds, stops: areIds,
  strip: isFlag, clean: isFlag, absorb: areIds, absorbBefore: areIds, patterns: orNone(areTexts), merges: orNone(listOf(isPair(isId, isId))),
  scores: orNone(listOf(Number.isFinite)), bytes: orNone(areIds), prefix: orNone(isFlag), whole: orNone(isFlag), spaces: orNone(isFlag),
});
const areEdits = listOf((value) => areTexts(value) && value.length === 3);
const FORM = {
  start: isText, answer: isText, question: isText, ending: isText, opening: isText, system: orNone(isText), first: orNone(isText),
  edits: formOf({ system: areEdits, user: areEdits, assistant: areEdits }), late: isFlag, begun: isText, due: isText,
};
const isChange = (value) => value === undefined || formOf(Object.fromEntries(Object.keys(value).map((name) => [name, FORM[name]])))(value);
const isChat = formOf({
  ...FORM, think: formOf({ true: isChange, false: isChange }), thoughts: areTexts, wraps: areTexts,
  shown: listOf(Number.isInteger), stops: areIds, ends: areTexts, thoughtEnds: areTexts, template: isText,
});

/** Refuses a manifest of another version, and one whose sizes do not fit together, before anything is allocated. */
export function checkManifest(manifest) {
  try {
    check(manifest);
  } catch (error) {
    if (error instanceof ExportError) throw error;
    throw new ExportError("The manifest lacks parts; export the model again.");
  }
}

function check(manifest) {
  need(manifest?.kind === "rwkv-gpu export", "This is not a model that rwkv-gpu exported.");
  need(manifest.format === FORMAT, `The model was exported in format ${manifest.format}, but this page reads format ${FORMAT}; export it again.`);
  const wrong = "The sizes in the manifest do not fit together; export the model again.";
  const { buffers, shards, variants, shaders, texts } = manifest;
  need([buffers, shards, variants, shaders, texts, manifest.states, manifest.caches].every(Array.isArray), wrong);
  need(variants.length && variants.every(({ plans, features, wgsl }) => [plans, features, wgsl].every(Array.isArray) && plans[0]?.rows === 1), wrong);
  need(texts.every(isText) && shaders.every(({ source }) => source.every((number) => whole(number, 0, texts.length - 1))), wrong);
  need(shaders.every(({ bindings }) => bindings.every(([, access]) => Object.hasOwn(ACCESS, access))), wrong);
  need(isTokenizer(manifest.tokenizer) && orNone(isChat)(manifest.chat), "The tokenizer or the chat format in the manifest is damaged; export the model again.");
  need(whole(manifest.model?.vocabulary, 1, 2 ** 24) && whole(manifest.model.context, 0, 2 ** 31), wrong);
  let data = 0;
  for (const one of buffers) {
    need(whole(one.bytes, 4, MAX_BUFFER) && one.bytes % 4 === 0, wrong);
    if (one.data === undefined) continue;
    need(one.data === data, wrong);
    data += one.bytes;
  }
  for (const one of shards) need(whole(one.bytes, 1, MAX_BUFFER) && /^[\w.-]+$/.test(one.file) && /^[0-9a-f]{64}$/.test(one.sha256), wrong);
  need(shards.reduce((sum, one) => sum + one.bytes, 0) === data, wrong);
  const inside = (number, offset, bytes) => {
    need(whole(number, 0, buffers.length - 1) && whole(offset, 0, MAX_BUFFER) && whole(bytes, 1, MAX_BUFFER), wrong);
    need(offset + bytes <= buffers[number].bytes, wrong);
  };
  for (const plan of variants.flatMap(({ plans }) => plans)) {
    need(whole(plan.rows, 1, 65536), wrong);
    inside(plan.step.buffer, 0, plan.step.bytes);
    for (const { offset, shape, type } of Object.values(plan.step.inputs)) {
      need(Object.hasOwn(USAGE, type), wrong);
      inside(plan.step.buffer, offset, 4 * product(shape));
    }
    for (const name of ["chosen", "logits"]) inside(plan.outputs[name].buffer, plan.outputs[name].offset, plan.outputs[name].row);
    need(plan.outputs.chosen.row >= 16, wrong);
    for (const [shader, grid, bound] of plan.dispatches) {
      need(whole(shader, 0, shaders.length - 1) && grid.every((size) => whole(size, 1, 65535)), wrong);
      for (const [, buffer, offset, bytes] of bound) inside(buffer, offset, bytes);
    }
  }
  for (const { buffer, shape } of manifest.states) inside(buffer, 0, STATES * 4 * product(shape));
  for (const { buffer, shape, type } of manifest.caches) inside(buffer, 0, manifest.model.context * product(shape) * WIDTHS[type]);
}
