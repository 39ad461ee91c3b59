// Replaces the fragments of a page that changed. Open details, fields, scrolled parts and the focus stay as they were.
(() => {
  const status = document.getElementById("connection");
  const main = document.querySelector("main");
  const header = document.querySelector("header");
  const fragments = () => [header, ...main.children];
  const parts = (root, selector) => [...root.querySelectorAll(selector)];
  const focusable = "a, button, input, select, summary, [tabindex]";
  const scrolled = ".scroll, .stacked, pre";
  const keep = (element) => {
    const open = parts(element, "details").map((details) => details.open);
    const places = parts(element, scrolled).map((area) => [area.scrollLeft, area.scrollTop]);
    const key = (field) => [field.id, field.name, field.type === "checkbox" ? field.value : ""].join(" ");
    const fields = new Map(parts(element, "input, select").map((field) => [key(field), field]));
    const focused = parts(element, focusable).indexOf(document.activeElement);
    const id = document.activeElement.id;
    return () => {
      parts(element, "details").forEach((details, at) => (details.open = open[at] ?? details.open));
      parts(element, scrolled).forEach((area, at) => places[at] && area.scrollTo(...places[at]));
      for (const field of parts(element, "input, select")) {
        const before = fields.get(key(field));
        if (!before) continue;
        const atEnd = field.type === "range" && before.value === before.max;
        field.checked = before.checked;
        if (!atEnd) field.value = before.value;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }
      element.dispatchEvent(new CustomEvent("esper:replaced", { bubbles: true })); // for report.js
      if (focused >= 0) (document.getElementById(id) ?? parts(element, focusable)[focused])?.focus({ preventScroll: true });
    };
  };
  const update = ({ order, changed }) => {
    for (const fragment of fragments()) if (!order.includes(fragment.id)) fragment.remove();
    let previous = null;
    for (const id of order) {
      let element = fragments().find((fragment) => fragment.id === id);
      if (!element) element = Object.assign(document.createElement("section"), { id });
      if (element !== header && main.children[previous ? [...main.children].indexOf(previous) + 1 : 0] !== element)
        previous ? previous.after(element) : main.prepend(element);
      if (element !== header) previous = element;
      if (!changed[id] || changed[id].digest === element.dataset.digest) continue;
      const restore = keep(element);
      element.innerHTML = changed[id].html;
      element.dataset.digest = changed[id].digest;
      restore();
    }
  };
  let answered = Date.now();
  const look = async () => {
    const shown = fragments().map((fragment) => `${fragment.id}:${fragment.dataset.digest}`).join(",");
    const answer = await fetch(`/changes?shown=${encodeURIComponent(shown)}`, { signal: AbortSignal.timeout(20000) });
    if (!answer.ok) return "not live: open the URL that esper printed";
    const changes = await answer.json();
    if (changes.gone) return "this run was deleted";
    if (changes.order) update(changes);
    answered = Date.now();
    return "up to date";
  };
  const repeat = async () => {
    const asked = Date.now();
    try {
      if (!document.hidden) status.textContent = await look();
    } catch {
      status.textContent = `no word from the server for ${Math.round((Date.now() - answered) / 1000)} s: trying again`;
    }
    // After an answer that took long there is a long pause: the processor is for the run.
    setTimeout(repeat, Math.max(1000, 4 * (answered - asked)));
  };
  repeat();
})();
