// Shows what a mark of a drawing stands for: where a pointer rests, where a finger taps, and where the arrow keys lead.
(() => {
  const told = document.getElementById("told");
  const finger = 20; // pixels by which a finger may miss a mark
  const of = (mark) => mark.querySelector("title")?.textContent ?? "";
  let here = null;
  const show = (mark, x, y) => {
    told.textContent = of(mark);
    told.hidden = false;
    const box = told.getBoundingClientRect();
    told.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    told.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 8) : y + 16}px`;
  };
  const leave = () => {
    here?.classList.remove("here");
    here = null;
    told.hidden = true;
  };
  const go = (mark) => {
    leave();
    here = mark;
    here.classList.add("here");
  };
  const touched = (event) => {
    const own = event.target.closest?.(".mark");
    if (own) return own;
    let [nearest, least] = [null, finger];
    for (const mark of event.target.closest?.("figure svg")?.querySelectorAll(".mark") ?? []) {
      const box = mark.getBoundingClientRect();
      const across = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const down = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const away = Math.hypot(across, down);
      if (away < least) [nearest, least] = [mark, away];
    }
    return nearest;
  };
  document.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return; // a finger that moves scrolls the page
    const mark = event.target.closest?.(".mark");
    if (mark) show(mark, event.clientX, event.clientY);
    else if (!here) told.hidden = true;
  });
  document.addEventListener("pointerup", (event) => {
    if (event.pointerType === "mouse") return; // it rests there, and was told already
    const mark = touched(event);
    if (!mark) return leave();
    go(mark);
    show(mark, event.clientX, event.clientY);
  });
  document.addEventListener("pointercancel", leave);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    const svg = event.target.closest?.("svg");
    if (event.key === "Escape") return leave();
    if (!svg || !(event.key in step)) return;
    const marks = [...svg.querySelectorAll(".mark")];
    if (!marks.length) return;
    event.preventDefault();
    const at = marks.indexOf(here);
    const next = at < 0 ? 0 : (at + step[event.key] + marks.length) % marks.length;
    go(marks[next]);
    here.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = here.getBoundingClientRect();
    show(here, box.left + box.width / 2, box.top + box.height / 2);
  });
  document.addEventListener("focusout", (event) => {
    if (!here || !event.target.contains?.(here)) return; // a finger's mark may be in the drawing that is entered
    leave();
  });
  const hint = (target, cut) => {
    target.classList.toggle("cut", cut);
    const part = target.closest("section").querySelector("h2").textContent;
    const named = { tabindex: "0", role: "region", "aria-label": `${part}: wider than the screen, scrolls sideways` };
    for (const [name, value] of Object.entries(named))
      if (cut) target.setAttribute(name, value);
      else target.removeAttribute(name);
  };
  const watch = new ResizeObserver((seen) => {
    const found = seen.map(({ target }) => [target, target.scrollWidth > target.clientWidth]);
    // A hint changes the size that is observed: shown at once, it would be seen in the same frame, and so on.
    requestAnimationFrame(() => {
      for (const [target, cut] of found)
        if (target.isConnected) hint(target, cut);
        else watch.unobserve(target);
    });
  });
  const observe = (part) => {
    for (const one of part.querySelectorAll(".scroll")) watch.observe(one);
  };
  observe(document);
  document.addEventListener("esper:replaced", (event) => observe(event.target)); // by live.js
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
  });
})();
