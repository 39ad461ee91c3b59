// Shows what a mark of a drawing stands for: where a pointer rests, where a finger taps, and where the arrow keys lead.
(() => {
  const tooltip = document.getElementById("tooltip");
  const finger = 20; // pixels by which a finger may miss a mark
  const of = (mark) => mark.querySelector("title")?.textContent ?? "";
  let current = null;
  let pointer = null; // where it rests, while what it rests on is shown
  const show = (mark, x, y) => {
    tooltip.textContent = of(mark);
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    tooltip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tooltip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 8) : y + 16}px`;
  };
  const leave = () => {
    current?.classList.remove("here");
    current = pointer = null;
    tooltip.hidden = true;
  };
  const go = (mark) => {
    leave();
    current = mark;
    current.classList.add("here");
  };
  const showCurrent = () => {
    const box = current.getBoundingClientRect();
    show(current, box.left + box.width / 2, box.top + box.height / 2);
  };
  const isSeen = ({ top, bottom, left, right }) => bottom > 0 && top < innerHeight && right > 0 && left < innerWidth;
  const touched = (event) => {
    const target = event.target.closest?.(".mark");
    if (target) return target;
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
    pointer = mark && { mark, x: event.clientX, y: event.clientY };
    if (mark) show(mark, event.clientX, event.clientY);
    else if (!current) tooltip.hidden = true;
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
    const at = marks.indexOf(current);
    const next = at < 0 ? 0 : (at + step[event.key] + marks.length) % marks.length;
    go(marks[next]);
    current.scrollIntoView({ block: "nearest", inline: "nearest" });
    showCurrent();
  });
  // What a tooltip is about scrolls away below it. One of the keys goes with its mark while that is seen.
  const follow = () => {
    if (pointer && document.elementFromPoint(pointer.x, pointer.y)?.closest(".mark") === pointer.mark) return;
    if (current && isSeen(current.getBoundingClientRect())) showCurrent();
    else leave();
  };
  addEventListener("scroll", follow, { capture: true, passive: true });
  document.addEventListener("focusout", (event) => {
    if (!current || !event.target.contains?.(current)) return; // a finger's mark may be in the drawing that is entered
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
    const sizes = seen.map(({ target }) => [target, target.scrollWidth > target.clientWidth]);
    // A hint changes the size that is observed: shown at once, it would be seen in the same frame, and so on.
    requestAnimationFrame(() => {
      for (const [target, cut] of sizes)
        if (target.isConnected) hint(target, cut);
        else watch.unobserve(target);
    });
  });
  const observe = (part) => {
    for (const scroller of part.querySelectorAll(".scroll")) watch.observe(scroller);
  };
  observe(document);
  document.addEventListener("esper:replaced", (event) => observe(event.target)); // by live.js
  // The slider: shows networks as they were in another step. #step=N in the address leads to one.
  const parsed = (element, name) => JSON.parse(element.dataset[name]);
  const showLane = (lane, step) => {
    const [, stage, alpha, name, state, text, bar] = parsed(lane, "frames").filter(([start]) => start <= step).at(-1);
    lane.setAttribute("class", stage ? `lane mark stage-${stage}` : "lane gone");
    lane.querySelector("title").textContent = text || "empty";
    const joint = lane.querySelector("path");
    joint.setAttribute("class", alpha ? "joint" : "joint apart");
    joint.setAttribute("stroke-width", 1.5 + alpha / 20);
    const [first, second] = lane.querySelectorAll("text");
    first.textContent = name;
    second.textContent = state;
    lane.querySelector(".bar").setAttribute("width", bar);
  };
  const courseAt = (caption, step) => {
    if (!step) return "before training";
    const [course, every] = [parsed(caption, "course"), Number(caption.dataset.every)];
    return course[Math.max(0, Math.floor(step / every) - 1)] ?? "ended";
  };
  const slider = () => document.querySelector(".moment input");
  const showStep = () => {
    const input = slider();
    if (!input) return;
    const step = Number(input.value);
    const section = input.closest("section");
    input.nextElementSibling.textContent = `${step} of ${input.max}`;
    for (const lane of section.querySelectorAll("[data-frames]")) showLane(lane, step);
    for (const ring of section.querySelectorAll("[data-slot]")) {
      const lanes = [...ring.closest("svg").querySelectorAll(".lane.stage-fossilised")];
      ring.classList.toggle("empty", !lanes.some((lane) => lane.dataset.lane === ring.dataset.slot));
    }
    for (const caption of section.querySelectorAll("[data-course]"))
      caption.textContent = courseAt(caption, step);
  };
  let playing = 0;
  const play = (on) => {
    clearInterval(playing);
    playing = 0;
    const button = document.querySelector(".moment button");
    if (button) button.textContent = on ? "❚❚ Pause" : "▶ Play";
    if (!on) return;
    if (slider().value === slider().max) slider().value = 0;
    const pause = Math.max(80, Math.min(400, 12000 / Number(slider().max)));
    playing = setInterval(() => {
      const input = slider();
      if (!input || input.value === input.max) return play(false);
      input.value = Number(input.value) + 1;
      showStep();
    }, pause);
  };
  document.addEventListener("input", (event) => event.target === slider() && showStep());
  document.addEventListener("change", (event) => {
    if (event.target === slider()) window.history.replaceState(null, "", `#step=${slider().value}`);
  });
  document.addEventListener("click", (event) => event.target.closest?.(".moment button") && play(!playing));
  const prepare = () => {
    const group = document.querySelector(".moment");
    if (group) group.hidden = false;
    if (playing) play(true);
  };
  const lead = () => {
    const step = /^#step=(\d+)$/.exec(location.hash)?.[1];
    if (step === undefined || !slider()) return;
    play(false);
    leave();
    slider().value = step;
    showStep();
    slider().closest("section").scrollIntoView();
  };
  // How long ago a time was, which tells whether a run is stuck.
  const age = () => {
    for (const time of document.querySelectorAll("time")) {
      const seconds = Math.max(0, Math.round((Date.now() - Date.parse(time.dateTime)) / 1000));
      const text = seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
      time.textContent = `${text} ago, ${time.dateTime}`;
    }
  };
  setInterval(age, 1000);
  age();
  document.addEventListener("esper:replaced", age);
  prepare();
  lead();
  addEventListener("hashchange", lead);
  document.addEventListener("esper:replaced", prepare);
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
  });
})();
