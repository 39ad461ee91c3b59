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
  let isGone = false;
  const update = ({ order, changed, gone }) => {
    if (gone) {
      isGone = true;
      source.close();
      return (status.textContent = "this run was deleted");
    }
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
  const silence = 30000; // milliseconds; a server that lives says so every ten seconds
  let source = null;
  let heard = Date.now();
  let tried = heard;
  const hear = (text) => {
    heard = Date.now();
    status.textContent = text;
  };
  const listen = () => {
    source?.close();
    source = null;
    tried = Date.now();
    if (document.hidden) return; // a browser opens few connections to one server
    const shown = fragments().map((fragment) => `${fragment.id}:${fragment.dataset.digest}`).join(",");
    source = new EventSource(`${status.dataset.stream}?shown=${encodeURIComponent(shown)}`);
    source.addEventListener("alive", () => hear("up to date"));
    source.onmessage = (event) => {
      hear("up to date");
      update(JSON.parse(event.data));
    };
    source.onerror = () => {
      const closed = source.readyState === EventSource.CLOSED; // it was refused: another server, or no such run
      status.textContent = closed ? "not live: open the URL that esper printed" : "no connection: trying again";
    };
  };
  // A server that was stopped keeps its connections open: only the silence tells. It is tried again for ever.
  setInterval(() => {
    const now = Date.now();
    if (isGone || document.hidden || now - Math.max(heard, tried) < silence) return;
    listen();
    status.textContent = `no word from the server for ${Math.round((now - heard) / 1000)} s: trying again`;
  }, 1000);
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", () => source?.close());
  listen();
})();
