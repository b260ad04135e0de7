// Which controls the page has shown, and which of them somebody has used: `controls.seen` and `controls.used`, by name.
{
  const KINDS = "button, input:not([type=file]):not([disabled]), textarea, select, summary, #messages a";
  const own = (node) => node.id || node.name || (node.getAttribute("aria-label") ?? node.closest("label")?.querySelector("span")?.firstChild?.textContent ?? node.textContent);
  const where = (node) => node.closest("dialog") ? "dialog" : node.closest(".block") ? "code" : node.closest("article") ? "message" : node.closest("#list") ? "list" : node.closest("#notice") ? "notice" : "page";
  const nameOf = (node) => {
    if (node.matches("#list .entry > button:first-child")) return "list: conversation";
    if (node.matches("summary")) return `message: ${node.parentNode.className}`;
    if (node.matches("a")) return "message: link";
    return `${where(node)}: ${own(node).trim().replace(/^(Menu of|Remove|Passage|Load|Unload|Cancel|Delete|Show) .*/, "$1 …").replace(/^(Copied|Not copied)$/, "Copy").replace(/^Theme: .*/, "theme")}`;
  };
  const look = (root) => {
    if (root.nodeType !== 1) return;
    for (const node of [root, ...root.querySelectorAll("*")]) if (node.matches(KINDS)) controls.seen.add(nameOf(node));
  };
  new MutationObserver((changes) => changes.forEach((change) => change.addedNodes.forEach(look))).observe(document, { childList: true, subtree: true });
  for (const type of ["pointerdown", "keydown", "input", "change"]) {
    addEventListener(type, ({ target }) => {
      const node = target.closest?.(KINDS);
      if (node) controls.used.add(nameOf(node));
    }, true);
  }
  // What a page has collected goes on in the next one of its tab.
  const [seen, used] = JSON.parse(sessionStorage.getItem("controls") ?? "[[], []]");
  window.controls = { seen: new Set(seen), used: new Set(used) };
  addEventListener("pagehide", () => sessionStorage.setItem("controls", JSON.stringify([[...controls.seen], [...controls.used]])));
  addEventListener("securitypolicyviolation", (event) => window.reportViolation?.(`${event.violatedDirective} ${event.blockedURI}`));
}
