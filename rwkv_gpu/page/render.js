// Messages on the screen. Each has a view that is updated in place, so that nothing flickers while text streams.
class MarkdownView {
  constructor(finish = () => {}) {
    this.finish = finish; // changes a rendered piece
    this.node = el("div", { class: "markdown" });
    this.sources = [];
  }

  // Renders the pieces that have changed: while text streams in, the last one.
  show(text) {
    const sources = pieces(text);
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same++;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const source of sources.slice(same)) {
      const piece = el("div", {}, markdown(source));
      this.finish(piece);
      this.node.append(piece);
    }
    this.sources = sources;
  }
}

// Calls `draw` at most once per frame, and less often if drawing is slow.
class Drawing {
  constructor(draw) {
    this.draw = draw;
    this.waiting = false;
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      const began = performance.now();
      this.draw();
      const took = performance.now() - began;
      if (took < 6) this.waiting = false;
      else setTimeout(() => ((this.waiting = false), this.again && ((this.again = false), this.soon())), Math.min(1000, 4 * took));
    });
  }

  // Draws at the next chance, even if a draw is already due.
  later() {
    if (this.waiting) this.again = true;
    this.soon();
  }
}

const number = (value) => Math.round(value).toLocaleString();

function statsText(stats) {
  if (!stats) return "";
  const parts = [];
  if (stats.speed) parts.push(`${stats.speed.toFixed(1)} tokens/s`);
  parts.push(`${number(stats.completion)} tokens`);
  if (stats.cached) parts.push(`${number(stats.cached)} of ${number(stats.prompt)} prompt tokens reused`);
  return parts.join(" · ");
}

// A file of a message. Its text may be long, and is drawn when it is opened.
function fileView(file) {
  const details = el("details", { class: "file" }, el("summary", {}, `${file.name} (${number(file.text.length)} characters${file.inPassages ? ", in passages" : ""})`));
  details.addEventListener("toggle", () => details.querySelector("pre") ?? details.append(el("pre", {}, file.text)));
  return details;
}

class MessageView {
  constructor(node, actions, running) {
    this.actions = actions;
    this.message = node;
    this.text = this.answerView();
    this.thought = new MarkdownView();
    this.who = el("div", { class: "who" }, node.role === "user" ? "You" : "Model");
    this.body = el("div", { class: "body" });
    this.bar = el("div", { class: "bar" });
    this.node = el("article", { class: node.role, "data-id": node.id, "aria-label": node.role === "user" ? "Your message" : "Answer" }, this.who, this.body, this.bar);
    this.drawing = new Drawing(() => this.draw());
    this.update(node, running);
  }

  answerView() {
    return new MarkdownView((piece) => {
      const passages = this.actions.passages(this.message); // chosen before the answer begins
      if (passages.length) linkCitations(piece, passages);
    });
  }

  update(node, running) {
    Object.assign(this, { message: node, running });
    if (this.editing) return;
    this.draw();
    this.bar.replaceChildren(...this.buttons());
  }

  stream(node) {
    this.message = node;
    this.running = true;
    this.drawing.later();
  }

  draw() {
    const node = this.message;
    if (node.role === "user") {
      this.body.replaceChildren(...(node.images ?? []).map(imageView), ...(node.attachments ?? []).map(fileView), el("div", { class: "plain", dir: "auto" }, node.content));
      return;
    }
    if (!this.parts) {
      this.parts = { thought: null, tools: el("div"), failed: el("div", { class: "failed", hidden: true }), hint: el("div", { class: "hint" }) };
      this.body.append(this.text.node, this.parts.tools, this.parts.failed, this.parts.hint);
    }
    this.drawThought(node);
    this.text.show(node.content);
    if (this.toolsShown !== node.tools || this.toolsRan !== this.running) {
      [this.toolsShown, this.toolsRan] = [node.tools, this.running];
      this.parts.tools.replaceChildren(...(node.tools ?? []).map((tool, n) => this.toolView(tool, n)));
    }
    this.parts.failed.hidden = !node.error;
    this.parts.failed.textContent = node.error ?? "";
    this.drawHint(node);
    this.drawSources();
    this.actions.drawn();
  }

  // A call of a tool: its arguments, and its result or the question whether it may run.
  toolView(tool, n) {
    const { actions, message } = this;
    const button = (label, agreed) => el("button", { type: "button", class: agreed ? "primary" : "", onclick: () => actions.runTool(message, n, agreed) }, label);
    const server = actions.serverOf(tool);
    const parts = [el("summary", {}, `Tool called: ${tool.name}${server ? ` (${server})` : ""}`), codeElement(tool.arguments, "json")];
    if (tool.result !== undefined) parts.push(el("pre", { class: tool.failed ? "result failed" : "result", tabindex: "0", "aria-label": `Result of ${tool.name}` }, tool.result));
    else if (actions.toolRuns(message, n)) parts.push(el("div", { class: "hint" }, "The tool runs …"));
    else if (!this.running && server) parts.push(el("div", { class: "actions", role: "group", "aria-label": `May ${tool.name} run?` }, button("Do not run", false), button("Run", true)));
    return el("details", { class: "tool", open: true }, parts);
  }

  // The passages that were chosen for the question.
  drawSources() {
    const passages = this.actions.sources(this.message);
    if (this.parts.sources || !passages.length) return;
    this.parts.sources = el("div", { class: "sources", role: "group", "aria-label": "Sources" }, "Sources: ", passages.map((one) => citation(one, `[${one.number}] ${placeOf(one)}`)));
    this.body.append(this.parts.sources);
  }

  drawThought(node) {
    if (!node.thinking) return;
    if (!this.parts.thought) {
      this.summary = el("summary");
      this.parts.thought = el("details", { class: "thought" }, this.summary, this.thought.node);
      this.body.prepend(this.parts.thought);
    }
    const inside = this.running && !node.content;
    this.summary.textContent = inside ? "Thinking …" : `Thought for ${Math.max(1, Math.round(node.thinkingSeconds ?? 0))} s`;
    this.thought.show(node.thinking);
  }

  drawHint(node) {
    const { hint } = this.parts;
    const progress = this.running && !node.content && !node.thinking ? node.progress : null;
    if (progress?.total) {
      const speed = progress.seconds > 0.3 ? progress.processed / progress.seconds : 0;
      const left = speed ? Math.ceil((progress.total - progress.done) / speed) : 0;
      const rest = speed ? `, ${number(speed)} tokens/s${left ? `, ${left} s left` : ""}` : "";
      hint.replaceChildren(el("progress", { max: progress.total, value: progress.done, "aria-label": "Prompt read" }), ` reading the prompt: ${number(progress.done)} of ${number(progress.total)} tokens${rest}`);
    } else if (this.running && !node.content && !node.thinking) hint.textContent = node.waiting ?? "…";
    else if (!this.running && node.finish === "length") hint.textContent = "The answer was cut off at its limit of tokens.";
    else if (!this.running && node.finish === "stopped") hint.textContent = "Stopped.";
    else hint.textContent = this.running && node.waiting ? node.waiting : "";
  }

  buttons() {
    const { message, actions, running } = this;
    const button = (label, act, more = {}) => el("button", { type: "button", class: "quiet", onclick: act, ...more }, label);
    const { siblings, place } = actions.versions(message);
    const versions = siblings.length > 1
      ? [
          button("‹", () => actions.show(siblings[place - 1]), { disabled: place === 0, "aria-label": "Previous version" }),
          el("span", { class: "stats" }, `${place + 1}/${siblings.length}`),
          button("›", () => actions.show(siblings[place + 1]), { disabled: place === siblings.length - 1, "aria-label": "Next version" }),
        ]
      : [];
    if (running) return versions;
    const copy = button("Copy", () => copied(copy, message.content));
    const own = message.role === "user";
    return [
      ...versions, copy,
      button("Edit", () => this.edit()),
      !own && button("Regenerate", () => actions.regenerate(message)),
      !own && message.content && !message.thinking && button("Continue", () => actions.goOn(message)),
      button("Delete", () => actions.remove(message)),
      el("span", { class: "stats" }, statsText(message.stats)),
    ].filter(Boolean);
  }

  edit() {
    const { message, actions } = this;
    this.editing = true;
    const area = el("textarea", { dir: "auto", "aria-label": "Edit the message" });
    area.value = message.content;
    const done = () => {
      this.restore();
      [...this.bar.children].find((one) => labelOf(one) === "Edit")?.focus();
    };
    const save = () => {
      this.restore();
      if (area.value.trim() && area.value !== message.content) actions.edited(message, area.value);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
      else return;
      event.stopPropagation();
      event.preventDefault();
    });
    this.bar.replaceChildren(
      el("button", { type: "button", class: "primary", onclick: save }, message.role === "user" ? "Send again" : "Save"),
      el("button", { type: "button", onclick: done }, "Cancel"),
    );
    this.body.replaceChildren(area);
    area.style.height = `${Math.min(500, area.scrollHeight + 8)}px`;
    area.focus();
  }

  restore() {
    this.editing = false;
    this.parts = this.toolsShown = null;
    this.text = this.answerView();
    this.thought = new MarkdownView();
    this.body.replaceChildren();
    this.update(this.message, this.running);
  }
}
