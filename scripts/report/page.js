"use strict";
// Reads values, zooms, hides runs and changes the theme. The charts are there without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [first, last] = data.steps;
  let view = [first, last];

  // As in scales.py.
  const text = (value) => {
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
    for (const [factor, divisor, letter] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (size >= factor) return Number((value / divisor).toPrecision(3)) + letter;
    return size >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  };
  const ticks = (low, high, count = 5) => {
    const rough = (high - low) / count;
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((digit) => power * digit >= rough * 0.8);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n++) found.push(n * step);
    return found;
  };
  const axis = (low, high, flat) => {
    if (high - low <= flat) {
      let reach = 2 * Math.max(-low, high);
      if (reach <= 2 * flat) reach = 1e3 * flat || 1;
      [low, high] = [low >= 0 ? 0 : -reach, high < -flat ? 0 : reach];
    }
    const room = (high - low) * 0.06;
    return [(low >= 0 && low < (high - low) * 0.35 ? 0 : low) - room, high + room];
  };

  const element = (name, attributes, content) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  };
  const padded = (share) => data.PAD + share * (1 - 2 * data.PAD);
  const place = (step) =>
    data.LEFT + (view[1] > view[0] ? padded((step - view[0]) / (view[1] - view[0])) : 0.5) * data.INNER_WIDTH;
  const inView = (step) => step >= view[0] && step <= view[1];

  function redraw(figure, panel) {
    const values = panel.curves.flatMap((curve) => [
      ...curve.values.filter((_, n) => inView(curve.steps[n])),
      ...curve.held.filter((point) => inView(point[0])).flatMap((point) => point.slice(1).filter((v) => v !== null)),
    ]);
    let [low, high] = panel.axis;
    if (values.length && (view[0] !== first || view[1] !== last))
      [low, high] = axis(values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b)), panel.flat);
    const y = (value) => ((panel.axis[1] - value) / (panel.axis[1] - panel.axis[0])) * data.SIZE;
    const x = (step) => padded((step - first) / (last - first)) * data.SIZE;
    const width = last > first ? (x(view[1]) - x(view[0])) / (1 - 2 * data.PAD) : data.SIZE;
    const left = last > first ? x(view[0]) - data.PAD * width : 0;
    figure.querySelector(".plot").setAttribute("viewBox", [left, y(high), width, y(low) - y(high)].join(" "));
    figure.querySelector(".events").setAttribute("viewBox", [left, 0, width, data.INNER_HEIGHT + 6].join(" "));
    figure.querySelector(".y").replaceChildren(...ticks(low, high).flatMap((tick) => {
      const at = data.TOP + ((high - tick) / (high - low)) * data.INNER_HEIGHT;
      return [
        element("path", { d: `M${data.LEFT} ${at}h${data.INNER_WIDTH}` }),
        element("text", { x: data.LEFT - 5, y: at + 3.5 }, text(tick)),
      ];
    }));
    const whole = view[1] > view[0] ? ticks(view[0], view[1]).filter(Number.isInteger) : [view[0]];
    const below = data.TOP + data.INNER_HEIGHT + 16;
    figure.querySelector(".x").replaceChildren(
      ...whole.map((tick) => element("text", { x: place(tick), y: below }, text(tick))));
    for (const mark of figure.querySelectorAll("text.mark")) {
      const step = Number(mark.dataset.step);
      mark.setAttribute("x", place(step));
      mark.style.visibility = inView(step) ? "" : "hidden";
    }
  }

  const figures = [...document.querySelectorAll("[data-panel]")];
  const range = document.querySelector(".range");
  function zoom(from, to) {
    view = [Math.max(first, Math.min(from, to)), Math.min(last, Math.max(from, to))];
    if (view[1] - view[0] < 1) view = [first, last];
    range.from.value = view[0];
    range.to.value = view[1];
    for (const figure of figures) redraw(figure, data.panels[figure.dataset.panel]);
  }
  range.addEventListener("change", () => zoom(Number(range.from.value), Number(range.to.value)));
  range.addEventListener("submit", (event) => event.preventDefault());
  range.addEventListener("reset", (event) => { event.preventDefault(); zoom(first, last); });

  // The step below the pointer, and what each run has nearest to it.
  const stepAt = (chart, event) => {
    const box = chart.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * data.WIDTH - data.LEFT) / data.INNER_WIDTH;
    return view[0] + Math.max(0, Math.min(1, (share - data.PAD) / (1 - 2 * data.PAD))) * (view[1] - view[0]);
  };
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle; else high = middle;
    }
    return step - steps[low] <= steps[high] - step ? low : high;
  };
  function read(figure, panel, step) {
    const all = panel.curves.flatMap((curve) => (curve.steps.length ? curve.steps : curve.held.map((p) => p[0])));
    all.sort((a, b) => a - b);
    const at = all[nearest(all, step)];
    const label = document.createElement("b");
    label.textContent = `step ${at}`;
    const shown = [label];
    for (const curve of panel.curves) {
      const n = curve.steps.length ? nearest(curve.steps, at) : -1;
      const held = curve.held.find((point) => point[0] === at);
      const parts = [];
      if (n >= 0 && curve.steps[n] === at) parts.push(text(curve.values[n]));
      if (held) parts.push(`held-out ${text(held[1])}` + (held[2] === null ? "" : ` [${text(held[2])}, ${text(held[3])}]`));
      if (!parts.length) continue;
      const entry = document.createElement("span");
      entry.className = `r${curve.run % 8}${curve.run >= 8 ? " again" : ""}`;
      entry.append(document.createElement("i"), parts.join("; "));
      shown.push(entry);
    }
    figure.querySelector(".readout").replaceChildren(...shown);
    const cursor = figure.querySelector(".cursor");
    cursor.setAttribute("d", `M${place(at)} ${data.TOP}v${data.INNER_HEIGHT}`);
    cursor.style.visibility = inView(at) ? "visible" : "hidden";
  }

  for (const figure of figures) {
    const chart = figure.querySelector(".chart"), panel = data.panels[figure.dataset.panel];
    const usual = [...figure.querySelector(".readout").childNodes];
    const brush = figure.querySelector(".brush");
    let begin = null;
    const select = (event) => {
      const sides = [place(begin), place(stepAt(chart, event))].sort((a, b) => a - b);
      brush.setAttribute("x", sides[0]);
      brush.setAttribute("width", sides[1] - sides[0]);
      return sides[1] - sides[0] > 8;
    };
    chart.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) {
        begin = stepAt(chart, event);
        chart.setPointerCapture(event.pointerId);
      }
      read(figure, panel, stepAt(chart, event));
    });
    chart.addEventListener("pointermove", (event) => {
      if (begin !== null) select(event);
      read(figure, panel, stepAt(chart, event));
    });
    chart.addEventListener("pointerup", (event) => {
      if (begin === null) return;
      const from = begin, wide = select(event);
      begin = null;
      brush.setAttribute("width", 0);
      if (wide) zoom(Math.round(from), Math.round(stepAt(chart, event)));
    });
    chart.addEventListener("pointercancel", () => { begin = null; brush.setAttribute("width", 0); });
    chart.addEventListener("pointerleave", () => {
      figure.querySelector(".readout").replaceChildren(...usual);
      figure.querySelector(".cursor").style.visibility = "hidden";
    });
    chart.addEventListener("dblclick", () => zoom(first, last));
  }

  for (const button of document.querySelectorAll(".legend button"))
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", shown);
      const run = Number(button.dataset.run);
      data.panels.forEach((panel, n) => panel.curves.forEach((curve, position) => {
        if (curve.run !== run) return;
        const figure = figures.find((one) => Number(one.dataset.panel) === n);
        figure.querySelectorAll(".plot > g")[position].style.display = shown ? "" : "none";
      }));
    });

  document.querySelector(".theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
