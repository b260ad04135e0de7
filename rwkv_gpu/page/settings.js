// Settings of a chat, defaults for new chats, and presets. Defaults and presets are stored in this browser.
const SETTINGS = [
  ["temperature", "Temperature", "0 is greedy: always the most likely token. Higher is more varied.", { min: 0, max: 5, step: 0.05 }],
  ["top_p", "Top-p", "Nucleus sampling: the most likely tokens whose probabilities sum to this. 1 turns it off.", { min: 0, max: 1, step: 0.01 }],
  ["top_k", "Top-k", "Sample from this many of the most likely tokens. 0 turns it off.", { min: 0, step: 1 }],
  ["min_p", "Min-p", "Minimum probability, relative to the most likely token. 0 turns it off.", { min: 0, max: 1, step: 0.01 }],
  ["repetition_penalty", "Repetition penalty", "Above 1, tokens seen before become less likely.", { min: 0.1, max: 10, step: 0.01 }],
  ["presence_penalty", "Presence penalty", "Subtracted once from the logit of a token seen before.", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", "Above 0, tokens become less likely each time they occur.", { min: -2, max: 2, step: 0.1 }],
  ["max_tokens", "Maximum tokens", "The longest answer, in tokens.", { min: 1, step: 1 }],
  ["seed", "Seed", "The same number gives the same answer again.", { min: 0, step: 1 }],
];

const choice = (name, options, value) => {
  const select = el("select", { name }, options.map(([key, label]) => el("option", { value: key }, label)));
  select.value = value ?? "";
  return select;
};

// The stored value of a name, or this default. Another version of the page may have written it.
function readStored(name, value) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? value;
  } catch {
    return value;
  }
}

// The system message and settings of an object that may come from anywhere.
function checkedStart(given) {
  try {
    return { system: asText(given?.system), settings: checkedSettings(asObject(given?.settings)) };
  } catch {
    return { system: "", settings: {} }; // the schema is not JSON
  }
}

const defaults = () => checkedStart(readStored("defaults"));
const presets = () => listOf(readStored("presets"), (one) => ({ name: asText(one?.name), ...checkedStart(one) })).filter((one) => one.name);
const storePresets = (list) => localStorage.setItem("presets", JSON.stringify(list));

// The fields of the dialog: `show` fills them in, `read` returns their values.
function settingsFields(canThink) {
  const system = el("textarea", { rows: 3, dir: "auto" });
  const schema = el("textarea", { rows: 4, spellcheck: "false", placeholder: '{"type": "object", "properties": {…}}' });
  const thinking = choice("thinking", [["", "Default of the model"], ["on", "Think first"], ["off", "Do not think"]]);
  const documents = choice("documents", [["", "Passages that match the question"], ["whole", "The whole text"]]);
  const tools = choice("tools", [["", "Tools of the server; you confirm each call"], ["off", "None"]]);
  const offered = SETTINGS.filter(([name]) => supports(name));
  const inputs = offered.map(([name, , , limits]) => el("input", { type: "number", name, placeholder: "default", ...limits }));
  const nodes = [
    field("System message", "Instructions that come before the conversation.", system, () => (system.value = "")),
    canThink && field("Thinking", "Whether the model reasons before it answers.", thinking),
    offered.map(([, label, help], n) => field(label, help, inputs[n], () => (inputs[n].value = ""))),
    supports("schema") && field("JSON schema", "Answers are JSON that matches this schema.", schema, () => (schema.value = "")),
    state.tools.length > 0 && field("Tools", "What the model may call.", tools),
    field("Long documents", "What the model reads of long attached files.", documents, () => (documents.value = "")),
  ];
  const show = (one) => {
    system.value = one.system;
    schema.value = one.settings.schema ?? "";
    thinking.value = one.settings.thinking ?? "";
    documents.value = one.settings.documents ?? "";
    tools.value = one.settings.tools ?? "";
    for (const input of inputs) input.value = one.settings[input.name] ?? "";
  };
  const read = () => {
    const settings = { schema: schema.value.trim() || undefined, thinking: thinking.value || undefined, documents: documents.value || undefined, tools: tools.value || undefined };
    try {
      if (settings.schema) JSON.parse(settings.schema);
    } catch (error) {
      throw new Error(`The JSON schema cannot be read: ${error.message}`);
    }
    for (const input of inputs) if (input.value !== "") settings[input.name] = Number(input.value);
    return { system: system.value, settings };
  };
  return { nodes: nodes.flat(), show, read };
}

function settingsDialog(conversation, canThink, saved) {
  const { nodes, show, read } = settingsFields(canThink);
  show(conversation);
  const problem = el("div", { class: "failed", role: "alert", hidden: true });
  const told = el("span", { role: "status" });
  const reading = (use) => {
    problem.hidden = true;
    try {
      return use(read());
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
      return null;
    }
  };
  const button = (label, act, more = {}) => el("button", { type: "button", onclick: act, ...more }, label);
  const form = el("form", { method: "dialog" }, presetRow(show, reading), nodes, problem, told,
    el("div", { class: "actions" },
      button("Reset all", () => show({ system: "", settings: {} }), { class: "left" }),
      button("Use for new chats", () => reading((now) => (localStorage.setItem("defaults", JSON.stringify(now)), (told.textContent = "New chats start with these settings.")))),
      button("Cancel", () => dialog.close()),
      el("button", { class: "primary" }, "Save")));
  form.addEventListener("submit", (event) => {
    if (reading((now) => Object.assign(conversation, now))) saved();
    else event.preventDefault();
  });
  const dialog = openDialog("Settings of this chat", form);
}

// Chooses, stores and deletes presets.
function presetRow(show, reading) {
  const select = el("select", { name: "preset", "aria-label": "Preset" });
  const remove = el("button", { type: "button", onclick: () => (storePresets(presets().filter((one) => one.name !== select.value)), draw("")) }, "Delete preset");
  const draw = (value) => {
    select.replaceChildren(el("option", { value: "" }, "Choose a preset"), ...presets().map(({ name }) => el("option", { value: name }, name)));
    select.value = value;
    remove.disabled = !value;
  };
  select.addEventListener("change", () => {
    const found = presets().find((one) => one.name === select.value);
    if (found) show(found);
    remove.disabled = !found;
  });
  const store = () => reading(async (now) => {
    const name = await askText("Name of the preset", select.value);
    if (!name) return;
    storePresets([...presets().filter((one) => one.name !== name), { name, ...now }].sort((a, b) => a.name.localeCompare(b.name)));
    draw(name);
  });
  draw("");
  return el("div", { class: "presets" }, select, el("button", { type: "button", onclick: store }, "Save as preset"), remove);
}
