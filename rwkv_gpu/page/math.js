// Converts TeX, as models write it, to MathML. Unknown commands stay as written.
const LETTERS = "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ emptyset ∅ varnothing ∅ imath ı top ⊤ bot ⊥ angle ∠ degree °";
const OPERATORS = "pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖ wedge ∧ land ∧ vee ∨ lor ∨ neg ¬ lnot ¬ forall ∀ exists ∃ to → rightarrow → leftarrow ← Rightarrow ⇒ Leftarrow ⇐ leftrightarrow ↔ Leftrightarrow ⇔ iff ⇔ implies ⟹ mapsto ↦ longrightarrow ⟶ uparrow ↑ downarrow ↓ oplus ⊕ otimes ⊗ odot ⊙ perp ⊥ parallel ∥ mid ∣ ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ prime ′ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ vert | Vert ‖ colon : therefore ∴ because ∵";
const BIG = "sum ∑ prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ lim lim max max min min sup sup inf inf limsup limsup liminf liminf argmax argmax argmin argmin";
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker gcd deg arg hom Pr mod bmod".split(" "));
const ACCENTS = named({ hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", tilde: "~", widetilde: "~", dot: "˙", ddot: "¨", overbrace: "⏞", underline: "_", underbrace: "⏟" });
const SPACES = named({ ",": ".17em", ":": ".22em", ";": ".28em", "!": "-.17em", " ": ".28em", quad: "1em", qquad: "2em" });
// Where the capitals of a font begin in Unicode; some letters have older code points elsewhere.
const FONTS = named({ mathbf: 0x1d400, boldsymbol: 0x1d400, bm: 0x1d400, mathbb: 0x1d538, mathcal: 0x1d49c, mathscr: 0x1d49c, mathfrak: 0x1d504 });
const ELSEWHERE = { 0x1d538: "CℂHℍNℕPℙQℚRℝZℤ", 0x1d49c: "BℬEℰFℱHℋIℐLℒMℳRℛ", 0x1d504: "CℭHℌIℑRℜZℨ" };
const PLAIN = new Set(["mathrm", "text", "textrm", "textbf", "textit", "operatorname", "mathsf", "mathtt", "mbox"]);
const STYLES = new Set(["displaystyle", "textstyle", "limits", "nolimits", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "nonumber", "notag", "hline"]);
const pairs = (text) => named(Object.fromEntries(text.split(" ").reduce((all, word, n, words) => (n % 2 ? all : [...all, [word, words[n + 1]]]), [])));
const LETTER = pairs(LETTERS);
const OPERATOR = pairs(OPERATORS);
const BIGS = pairs(BIG);
const DEEPEST = 60;
const LONGEST_FORMULA = 4000; // tokens; a row takes browsers quadratic time

const m = (tag, attributes, ...children) => elementOf(MATHML, tag, attributes, ...children);
const row = (nodes) => (nodes.length === 1 ? nodes[0] : m("mrow", {}, nodes));

function mathml(tex, display) {
  const reader = { tokens: tex.match(/\\[A-Za-z]+\*?|\\[^A-Za-z]|\d+(?:\.\d+)?|\s+|[^]/gu) ?? [], at: 0, depth: 0 };
  if (reader.tokens.length > LONGEST_FORMULA) return m("math", {}, m("mtext", {}, tex));
  const nodes = [];
  while (reader.at < reader.tokens.length) for (const node of [...sequence(reader, () => false), ...stray(reader)]) nodes.push(node);
  return m("math", display ? { display: "block" } : {}, row(nodes));
}

function stray(reader) {
  return reader.at < reader.tokens.length ? [m("mtext", {}, reader.tokens[reader.at++])] : [];
}

// Parses nodes until a token ends them, and leaves that token unread.
function sequence(reader, ends) {
  const nodes = [];
  while (reader.at < reader.tokens.length) {
    const token = reader.tokens[reader.at];
    if (ends(token) || ["}", "&", "\\\\", "\\end", "\\right"].includes(token)) break;
    if (!token.trim()) reader.at++;
    else if (token === "^" || token === "_") nodes.push(scripts(reader, nodes.pop() ?? m("mrow", {})));
    else nodes.push(...atom(reader));
  }
  return nodes;
}

function scripts(reader, base) {
  const found = {};
  while (["^", "_"].includes(reader.tokens[reader.at]) && !(reader.tokens[reader.at] in found)) {
    const which = reader.tokens[reader.at++];
    found[which] = argument(reader);
  }
  const over = base.getAttribute("data-limits");
  const both = "^" in found && "_" in found;
  const tag = both ? (over ? "munderover" : "msubsup") : "_" in found ? (over ? "munder" : "msub") : over ? "mover" : "msup";
  return m(tag, {}, base, found._, found["^"]);
}

// The argument of a command or script: a group, or one token.
function argument(reader) {
  while (reader.tokens[reader.at]?.trim() === "") reader.at++;
  if (reader.at >= reader.tokens.length) return m("mrow", {});
  return row(atom(reader));
}

function words(reader) {
  while (reader.tokens[reader.at]?.trim() === "") reader.at++;
  if (reader.tokens[reader.at] !== "{") return reader.tokens[reader.at++] ?? "";
  let depth = 0;
  let text = "";
  for (; reader.at < reader.tokens.length; reader.at++) {
    const token = reader.tokens[reader.at];
    if (token === "}" && --depth === 0) break;
    if (token === "{" && depth++ === 0) continue;
    text += token.startsWith("\\") && token.length === 2 ? token[1] : token;
  }
  reader.at++;
  return text;
}

function atom(reader) {
  if (reader.depth > DEEPEST) return stray(reader);
  reader.depth++;
  const nodes = atomOf(reader, reader.tokens[reader.at++]);
  reader.depth--;
  return nodes;
}

function atomOf(reader, token) {
  if (token === "{") {
    const inner = sequence(reader, () => false);
    if (reader.tokens[reader.at] === "}") reader.at++;
    return [m("mrow", {}, inner)];
  }
  if (/^\d/.test(token)) return [m("mn", {}, token)];
  if (/^\p{L}$/u.test(token)) return [m("mi", {}, token)];
  if (!token.startsWith("\\")) return [m("mo", token === "|" ? { stretchy: "false" } : {}, token === "-" ? "−" : token === "'" ? "′" : token)];
  const name = token.slice(1).replace("*", "");
  if (name in SPACES) return [m("mspace", { width: SPACES[name] })];
  if (STYLES.has(name)) return [];
  if (name === "label") return words(reader), [];
  if (name === "tag") return [m("mspace", { width: "2em" }), m("mtext", {}, `(${words(reader)})`)];
  if (name in LETTER) return [m("mi", {}, LETTER[name])];
  if (name in OPERATOR) return [m("mo", {}, OPERATOR[name])];
  if (name in BIGS) return [m("mo", /[∫∬∭∮]/.test(BIGS[name]) ? {} : { "data-limits": "1", movablelimits: "true" }, BIGS[name])];
  if (FUNCTIONS.has(name)) return [m("mi", {}, name), m("mo", { lspace: "0", rspace: ".1em" }, "\u2061")];
  if (["frac", "dfrac", "tfrac", "cfrac"].includes(name)) return [m("mfrac", {}, argument(reader), argument(reader))];
  if (name === "binom") return [m("mo", {}, "("), m("mfrac", { linethickness: "0" }, argument(reader), argument(reader)), m("mo", {}, ")")];
  if (name === "sqrt") return [root(reader)];
  if (PLAIN.has(name)) return [m("mtext", {}, words(reader))];
  if (name in FONTS) return [m("mi", {}, inFont(words(reader), FONTS[name]))];
  if (name in ACCENTS) return [m(name.startsWith("under") ? "munder" : "mover", { accent: "true" }, argument(reader), m("mo", {}, ACCENTS[name]))];
  if (name === "left") return [fenced(reader)];
  if (name === "begin") return environment(reader);
  if (name.length === 1) return [m("mo", {}, name)];
  return [m("mtext", {}, token)];
}

function inFont(text, first) {
  return [...text].map((letter) => {
    const at = ELSEWHERE[first]?.indexOf(letter) ?? -1;
    if (at >= 0) return ELSEWHERE[first][at + 1];
    if (/[A-Z]/.test(letter)) return String.fromCodePoint(first + letter.charCodeAt(0) - 65);
    return /[a-z]/.test(letter) && first === FONTS.mathbf ? String.fromCodePoint(first + 26 + letter.charCodeAt(0) - 97) : letter;
  }).join("");
}

function root(reader) {
  while (reader.tokens[reader.at]?.trim() === "") reader.at++;
  if (reader.tokens[reader.at] !== "[") return m("msqrt", {}, argument(reader));
  reader.at++;
  const degree = row(sequence(reader, (token) => token === "]"));
  reader.at++;
  return m("mroot", {}, argument(reader), degree);
}

function fence(reader) {
  while (reader.tokens[reader.at]?.trim() === "") reader.at++;
  const token = reader.tokens[reader.at++] ?? ".";
  const name = token.replace(/^\\/, "");
  return token === "." ? m("mrow", {}) : m("mo", { stretchy: "true" }, OPERATOR[name] ?? name);
}

function fenced(reader) {
  const open = fence(reader);
  const inner = sequence(reader, () => false);
  if (reader.tokens[reader.at] !== "\\right") return m("mrow", {}, open, inner);
  reader.at++;
  return m("mrow", {}, open, inner, fence(reader));
}

// Columns are aligned by classes: MathML in browsers has no attribute for that.
function columnSide(name, columns, place) {
  if (/align|split/.test(name)) return place % 2 ? "left" : "right";
  if (/cases/.test(name)) return "left";
  return { l: "left", r: "right" }[columns[place]];
}

// The additional space after a row, as in \\[4pt].
function skipLength(reader) {
  const found = reader.tokens.slice(reader.at, reader.at + 12).join("").match(/^\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]/);
  for (let left = found?.[0].length ?? 0; left > 0; reader.at++) left -= reader.tokens[reader.at].length;
}

const BRACKETS = named({ pmatrix: "()", bmatrix: "[]", vmatrix: "||", Vmatrix: "‖‖", Bmatrix: "{}", cases: "{", dcases: "{" });

function environment(reader) {
  const name = words(reader).replace("*", "");
  const columns = ["array", "alignat"].includes(name) && reader.tokens[reader.at] === "{" ? words(reader).replace(/[^lcr]/g, "") : "";
  const rows = [[]];
  while (reader.at < reader.tokens.length) {
    const place = rows.at(-1).length;
    rows.at(-1).push(m("mtd", { class: columnSide(name, columns, place) }, sequence(reader, () => false)));
    const token = reader.tokens[reader.at++];
    if (token === "\\\\") {
      rows.push([]);
      skipLength(reader);
    } else if (token !== "&") break;
  }
  if (rows.length > 1 && rows.at(-1).every((cell) => !cell.childNodes.length)) rows.pop(); // after a last \\
  words(reader); // skips the name after \end
  const aligned = /align|split|gather|equation/.test(name);
  const table = m("mtable", aligned ? { class: "aligned", displaystyle: "true" } : {}, rows.map((cells) => m("mtr", {}, cells)));
  const [open, close] = [...(BRACKETS[name] ?? "")];
  return [m("mrow", {}, open && m("mo", { stretchy: "true" }, open), table, close && m("mo", { stretchy: "true" }, close))];
}
