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
    const open = parts(element, "details").map((one) => one.open);
    const places = parts(element, scrolled).map((one) => [one.scrollLeft, one.scrollTop]);
    const key = (one) => [one.id, one.name, one.type === "checkbox" ? one.value : ""].join(" ");
    const fields = new Map(parts(element, "input, select").map((one) => [key(one), one]));
    const focused = parts(element, focusable).indexOf(document.activeElement);
    const id = document.activeElement.id;
    return () => {
      parts(element, "details").forEach((one, at) => (one.open = open[at] ?? one.open));
      parts(element, scrolled).forEach((one, at) => places[at] && one.scrollTo(...places[at]));
      for (const one of parts(element, "input, select")) {
        const before = fields.get(key(one));
        if (!before) continue;
        const atEnd = one.type === "range" && before.value === before.max;
        one.checked = before.checked;
        if (!atEnd) one.value = before.value;
        one.dispatchEvent(new Event("input", { bubbles: true }));
      }
      element.dispatchEvent(new CustomEvent("esper:replaced", { bubbles: true })); // for report.js
      if (focused >= 0) (document.getElementById(id) ?? parts(element, focusable)[focused])?.focus({ preventScroll: true });
    };
  };
  const update = ({ order, changed, gone }) => {
    if (gone) {
      source.close();
      return (status.textContent = "this run was deleted");
    }
    for (const one of fragments()) if (!order.includes(one.id)) one.remove();
    let previous = null;
    for (const id of order) {
      let element = fragments().find((one) => one.id === id);
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
    status.textContent = "up to date";
  };
  let source = null;
  const listen = () => {
    source?.close();
    source = null;
    if (document.hidden) return; // a browser opens few connections to one server
    const shown = fragments().map((one) => `${one.id}:${one.dataset.digest}`).join(",");
    source = new EventSource(`${status.dataset.stream}?shown=${encodeURIComponent(shown)}`);
    source.onopen = () => (status.textContent = "up to date");
    source.onmessage = (event) => update(JSON.parse(event.data));
    source.onerror = () => {
      const closed = source.readyState === EventSource.CLOSED; // it was refused: another server, or no such run
      status.textContent = closed ? "not live: open the URL that esper printed" : "no connection: trying again";
    };
  };
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", () => source?.close());
  listen();
})();
