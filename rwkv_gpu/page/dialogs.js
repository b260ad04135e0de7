// Dialogs: keys, names, confirmations, and the menu of a conversation.
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

// Asks for the server's key, or for an admin key; it stays in this tab until it is closed.
function keyDialog(name = "key") {
  const admin = name === "admin";
  const help = admin ? "Models are managed with a key of --admin-key-file. It stays in this tab until you close it." : "This server was started with a key. It stays in this tab until you close it.";
  return new Promise((resolve) => {
    let given = false;
    const input = el("input", { type: "password", autocomplete: "off", required: true });
    const form = el("form", { method: "dialog" }, field(admin ? "Admin key" : "API key", help, input),
      el("div", { class: "actions" }, el("button", { class: "primary" }, "Use it")));
    form.addEventListener("submit", () => ((given = true), sessionStorage.setItem(name, input.value.trim())));
    openDialog(admin ? "Managing models needs an admin key" : "This server asks for a key", form).addEventListener("close", () => resolve(admin ? given : Boolean(getKey())));
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
