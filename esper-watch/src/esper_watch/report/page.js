// Shows what a mark of a drawing stands for: where a pointer rests, and where the arrow keys lead.
(() => {
  const told = document.getElementById("told");
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
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.(".mark");
    if (mark) show(mark, event.clientX, event.clientY);
    else if (!here) told.hidden = true;
  });
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
    leave();
    here = marks[next];
    here.classList.add("here");
    here.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = here.getBoundingClientRect();
    show(here, box.left + box.width / 2, box.top + box.height / 2);
  });
  document.addEventListener("focusout", leave);
})();
