// Code in colours: comments, strings, numbers, keywords and calls, as one pattern for each kind of language.
const WORDS = {
  c: "auto break case char const continue default do double else enum extern float for goto if inline int long register return short signed sizeof static struct switch typedef union unsigned void volatile while bool class constexpr delete explicit friend namespace new noexcept nullptr operator private protected public template this throw try catch typename using virtual true false override final include define ifdef ifndef endif",
  js: "async await break case catch class const continue debugger default delete do else export extends finally for from function get if implements import in instanceof interface let new null of private protected public readonly return set static super switch this throw try type typeof undefined var void while with yield true false enum as",
  java: "abstract assert boolean break byte case catch char class const continue default do double else enum extends final finally float for if implements import instanceof int interface long native new null package private protected public record return sealed short static super switch synchronized this throw throws transient try var void volatile while true false fun val when object override data string using namespace foreach in out ref async await get set internal let guard func init protocol struct extension where defer nil self",
  go: "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var nil true false",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  py: "and as assert async await break class continue def del elif else except finally for from global if import in is lambda match case nonlocal not or pass raise return try while with yield None True False self",
  sh: "if then else elif fi for while until do done case esac function in select return exit export local readonly set unset echo cd sudo",
  ruby: "alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require",
  sql: "select from where and or not insert into values update set delete create table drop alter add column primary key foreign references index view join left right inner outer on group by order having limit offset union all distinct as in is null like between case when then else end exists with",
  lua: "and break do else elseif end false for function goto if in local nil not or repeat return then true until while",
  wgsl: "alias break case const const_assert continue continuing default discard else enable fn for if let loop override return struct switch true false var while array f16 f32 i32 u32 bool vec2f vec3f vec4f vec2u vec3u vec4u storage uniform workgroup read write read_write",
  plain: "true false null yes no on off",
};
const SLASHES = "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)";
const HASH = "#[^\\n]*";
const STRINGS = "\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?";
const KINDS = {
  c: [SLASHES, STRINGS, "c"], js: [SLASHES, `${STRINGS}|\`(?:\\\\.|[^\`\\\\])*\`?`, "js"], java: [SLASHES, STRINGS, "java"],
  go: [SLASHES, `${STRINGS}|\`[^\`]*\`?`, "go"], rust: [SLASHES, "\"(?:\\\\.|[^\"\\\\])*\"?|'(?:\\\\.|[^'\\\\\\n])'", "rust"],
  py: [HASH, `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|${STRINGS}`, "py"], sh: ["(?<![\\w$])#[^\\n]*", STRINGS, "sh"],
  ruby: [HASH, STRINGS, "ruby"], sql: ["--[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)", STRINGS, "sql"],
  lua: ["--[^\\n]*", STRINGS, "lua"], wgsl: [SLASHES, "(?!)", "wgsl"], data: [HASH, STRINGS, "plain"], json: ["(?!)", STRINGS, "plain"],
  css: ["/\\*[\\s\\S]*?(?:\\*/|$)", STRINGS, "plain"], html: ["<!--[\\s\\S]*?(?:-->|$)", STRINGS, "plain"],
};
const LANGUAGES = {
  c: "c cpp c++ h hpp cc cuda glsl hlsl metal objc", js: "js javascript ts typescript jsx tsx mjs", java: "java kotlin kt cs csharp c# swift scala dart php",
  go: "go golang", rust: "rust rs", py: "py python python3 ipython", sh: "sh bash shell zsh console powershell ps1 dockerfile makefile make",
  ruby: "ruby rb", sql: "sql", lua: "lua haskell hs", wgsl: "wgsl", data: "yaml yml toml ini conf r julia perl elixir nix", json: "json jsonl json5",
  css: "css scss less", html: "html xml svg vue",
};
const KIND_OF = named(Object.fromEntries(Object.entries(LANGUAGES).flatMap(([kind, names]) => names.split(" ").map((name) => [name, kind]))));
const LONGEST_COLOURED = 60000; // characters
const patterns = {};

function patternOf(kind) {
  if (!patterns[kind]) {
    const [comments, strings, words] = KINDS[kind];
    const flags = kind === "sql" ? "gi" : "g";
    const keywords = WORDS[words].split(" ").join("|");
    patterns[kind] = new RegExp(`(${comments})|(${strings})|(\\b(?:${keywords})\\b)|(\\b\\d[\\w.]*)|(\\b[A-Za-z_]\\w*(?=\\())`, flags);
  }
  return patterns[kind];
}

function highlighted(code, language) {
  const kind = KIND_OF[language.toLowerCase()];
  if (!kind || code.length > LONGEST_COLOURED) return [code];
  const parts = [];
  let at = 0;
  for (const found of code.matchAll(patternOf(kind))) {
    const which = found.slice(1).findIndex((group) => group !== undefined);
    if (!found[0]) continue;
    parts.push(code.slice(at, found.index), el("span", { class: "csknf"[which] }, found[0]));
    at = found.index + found[0].length;
  }
  parts.push(code.slice(at));
  return parts;
}
