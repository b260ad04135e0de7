// Dialogs: settings of a conversation, the key, and the menu of a conversation.
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

function openDialog(title, ...content) {
  const dialog = el("dialog", { "aria-label": title, onclose: () => dialog.remove() }, el("h2", {}, title), ...content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function field(label, help, input, reset) {
  const button = reset && el("button", { type: "button", class: "quiet", onclick: reset, "aria-label": `Reset ${label}` }, "Reset");
  return el("label", {}, el("span", {}, label, button), help && el("small", {}, help), input);
}

function settingsDialog(conversation, canThink, saved) {
  const { settings } = conversation;
  const system = el("textarea", { rows: 3, dir: "auto" });
  system.value = conversation.system;
  const schema = el("textarea", { rows: 4, spellcheck: "false", placeholder: '{"type": "object", "properties": {…}}' });
  schema.value = settings.schema ?? "";
  const thinking = el("select", {}, [["", "As the model does by itself"], ["on", "Think first"], ["off", "Do not think"]].map(([value, label]) => el("option", { value }, label)));
  thinking.value = settings.thinking ?? "";
  const documents = el("select", { name: "documents" }, [["", "Passages that match the question"], ["whole", "The whole text"]].map(([value, label]) => el("option", { value }, label)));
  documents.value = settings.documents ?? "";
  const inputs = SETTINGS.map(([name, , , limits]) => el("input", { type: "number", name, placeholder: "default", value: settings[name], ...limits }));
  const problem = el("div", { class: "failed", role: "alert", hidden: true });
  const form = el("form", { method: "dialog" },
    field("System message", "Instructions that come before the conversation.", system, () => (system.value = "")),
    canThink && field("Thinking", "Whether the model reasons before it answers.", thinking),
    SETTINGS.map(([, label, help], n) => field(label, help, inputs[n], () => (inputs[n].value = ""))),
    field("JSON schema", "Answers are JSON that matches this schema.", schema, () => (schema.value = "")),
    field("Long documents", "What the model reads of attached files that are long.", documents, () => (documents.value = "")),
    problem,
    el("div", { class: "actions" },
      el("button", { type: "button", class: "left", onclick: () => (form.reset(), [system, schema, ...inputs].forEach((input) => (input.value = "")), (thinking.value = documents.value = "")) }, "Reset all"),
      el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      el("button", { class: "primary" }, "Save")),
  );
  form.addEventListener("submit", (event) => {
    try {
      if (schema.value.trim()) JSON.parse(schema.value);
    } catch (error) {
      event.preventDefault();
      problem.hidden = false;
      problem.textContent = `The JSON schema cannot be read: ${error.message}`;
      return;
    }
    conversation.system = system.value;
    conversation.settings = { schema: schema.value.trim() || undefined, thinking: thinking.value || undefined, documents: documents.value || undefined };
    for (const input of inputs) if (input.value !== "") conversation.settings[input.name] = Number(input.value);
    saved();
  });
  const dialog = openDialog("Settings of this chat", form);
}

// Asks for the server's key; it stays in this tab until it is closed.
function keyDialog() {
  return new Promise((resolve) => {
    const input = el("input", { type: "password", autocomplete: "off", required: true });
    const form = el("form", { method: "dialog" }, field("API key", "This server was started with a key. It stays in this tab until you close it.", input),
      el("div", { class: "actions" }, el("button", { class: "primary" }, "Use it")));
    form.addEventListener("submit", () => sessionStorage.setItem("key", input.value.trim()));
    openDialog("This server asks for a key", form).addEventListener("close", () => resolve(Boolean(getKey())));
  });
}

function menuDialog(title, entries) {
  const dialog = openDialog(title, el("div", { class: "menu" }, entries.map(([label, act]) => el("button", { type: "button", onclick: () => (dialog.close(), act()) }, label)), el("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
}

function askText(title, value) {
  return new Promise((resolve) => {
    let given = null;
    const input = el("input", { type: "text", dir: "auto", "aria-label": title });
    input.value = value;
    const form = el("form", { method: "dialog" }, el("p", {}, input), el("div", { class: "actions" }, el("button", { class: "primary" }, "Save")));
    form.addEventListener("submit", () => (given = input.value.trim()));
    openDialog(title, form).addEventListener("close", () => resolve(given));
    input.select();
  });
}

function confirmed(title, label) {
  return new Promise((resolve) => {
    let yes = false;
    const dialog = openDialog(title, el("div", { class: "actions" },
      el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      el("button", { type: "button", class: "primary", onclick: () => ((yes = true), dialog.close()) }, label)));
    dialog.addEventListener("close", () => resolve(yes));
  });
}
