"use strict";
// Zoom with the wheel, pan by dragging, dim all lines but one. The pictures are complete without this.
(() => {
  for (const svg of document.querySelectorAll("svg.timeline")) {
    const left = +svg.dataset.left, width = +svg.dataset.right - left;
    const start = +svg.dataset.start, end = +svg.dataset.end;
    let from = start, to = end;
    const groups = svg.querySelectorAll(".spans");
    const axis = svg.querySelector(".axis");
    const bottom = axis.querySelector("line") ? +axis.querySelector("line").getAttribute("y2") : 0;
    const top = axis.querySelector("line") ? +axis.querySelector("line").getAttribute("y1") : 0;
    const make = (name, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const key in attributes) made.setAttribute(key, attributes[key]);
      return made;
    };
    const draw = () => {
      const zoom = (end - start) / (to - from);
      const shift = -(from - start) / (end - start) * width * zoom;
      for (const g of groups) g.setAttribute("transform", `matrix(${zoom} 0 0 1 ${shift} 0)`);
      axis.replaceChildren();
      const raw = (to - from) * 110 / width, power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
      for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) {
        const x = left + (i * step - from) / (to - from) * width;
        axis.append(make("line", { class: "s-grid", x1: x, x2: x, y1: top, y2: bottom }));
        const text = make("text", { class: "f-ink tick", x, y: bottom + 13, "text-anchor": "middle" });
        text.textContent = String(+(i * step).toPrecision(10));
        axis.append(text);
      }
    };
    const at = (event) => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      return Math.min(1, Math.max(0, (x - left) / width));
    };
    const show = (a, b) => {
      const length = Math.min(end - start, Math.max(b - a, (end - start) / 2000));
      from = Math.min(Math.max(a, start), end - length);
      to = from + length;
      draw();
    };
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && event.deltaY > 0 && to - from >= end - start) return; // the page scrolls on
      event.preventDefault();
      const share = at(event), centre = from + share * (to - from), length = (to - from) * Math.exp(event.deltaY * 0.002);
      show(centre - share * length, centre + (1 - share) * length);
    }, { passive: false });
    let held = null;
    svg.addEventListener("pointerdown", (event) => { held = { x: at(event), from, to }; });
    svg.addEventListener("pointermove", (event) => {
      if (!held || !event.buttons) { held = null; return; }
      const moved = (at(event) - held.x) * (held.to - held.from);
      show(held.from - moved, held.to - moved);
    });
    svg.addEventListener("dblclick", () => show(start, end));
    svg.addEventListener("cake-reset", () => show(start, end));
  }
  const tools = document.querySelector(".tools");
  if (!tools) return;
  tools.hidden = false;
  const choice = tools.querySelector("select");
  choice.addEventListener("change", () => {
    for (const rect of document.querySelectorAll(".spans rect")) rect.classList.toggle("off", choice.value !== "" && rect.dataset.l !== choice.value);
  });
  tools.querySelector("button").addEventListener("click", () => {
    choice.value = "";
    choice.dispatchEvent(new Event("change"));
    for (const svg of document.querySelectorAll("svg.timeline")) svg.dispatchEvent(new Event("cake-reset"));
  });
})();
