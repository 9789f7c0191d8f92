// The sections that compare schemes.

const AXES = {
  rounds: "round",
  "million training steps": "environment steps of training (millions)",
  minutes: "time without evaluation (minutes)",
  megabytes: "messages without evaluation (megabytes)",
  "simulated hours": "simulated time (hours)",
};

// One paragraph per world and level; the title shows that one below.
function drawSummary() {
  const focused = document.activeElement?.dataset?.panel;
  byId("findings").replaceChildren(
    ...data.panels.map((one, index) => {
      const name = `${one.world}, ${one.level}`,
        chosen = one === panel(),
        title = element("button", { type: "button", "data-panel": index, "aria-pressed": chosen }, name);
      return element(
        "div",
        { class: "finding" },
        element("h3", {}, data.panels.length > 1 ? title : name),
        ...one.summary.sentences.map((sentence) => element("p", {}, sentence)),
      );
    }),
  );
  if (focused) byId("findings").querySelector(`[data-panel="${focused}"]`)?.focus();
}

function drawCurves() {
  const figure = byId("fig-curves"),
    clock = state.clock;
  const lines = shown()
    .map((group) => ({
      group,
      xs: group.clocks[clock],
      mean: smooth(group.mean, state.smoothing),
      low: smooth(group.low, state.smoothing),
      high: smooth(group.high, state.smoothing),
    }))
    .filter((line) => Number.isFinite(line.xs.at(-1)));
  if (!lines.length)
    return figure.replaceChildren(
      element("p", { class: "empty" }, "No scheme to show: switch one on, or choose another axis."),
    );
  const longest = lines.reduce((one, other) => (other.xs.at(-1) > one.xs.at(-1) ? other : one)).xs;
  const view = frame(figure, {
    height: Math.max(300, Math.min(440, figure.clientWidth * 0.5)),
    x: { domain: [0, longest.at(-1) || 1], label: AXES[clock] ?? clock, whole: clock === "rounds" },
    y: { domain: curveRange(lines), label: `mean return over ${panel().averagedOver}` },
    description: `Mean return over ${panel().averagedOver} against ${clock}, for ${lines.map((line) => line.group.label).join(", ")}`,
  });
  drawLines(view, lines);
  figure.append(element("figcaption", {}, curveCaption()));
  const nearest = (xs, x) => {
    let best = 0;
    xs.forEach((value, i) => {
      if (Math.abs(view.sx(value) - x) < Math.abs(view.sx(xs[best]) - x)) best = i;
    });
    return best;
  };
  const value = ({ group, xs, mean, low, high }, x) => {
    const i = nearest(xs, x),
      limits = Number.isFinite(low[i]) ? ` [${format(low[i])}, ${format(high[i])}]` : "";
    return `${group.label} ${format(mean[i])}${limits}`;
  };
  explore(figure, view, {
    columns: longest.length,
    start: [longest.length - 1, 0],
    locate: (x) => [nearest(longest, x), 0],
    mark: (column) => ({ x: view.sx(longest[column]) }),
    readout: (column) => {
      const where = clock === "rounds" ? `round ${column}` : `${format(longest[column])} ${clock}`;
      return [element("b", {}, `${where}: `), lines.map((line) => value(line, view.sx(longest[column]))).join(" · ")];
    },
  });
}

// The means without the dive of the first rounds, and as much of the bands as leaves half of the height to the means;
// or all of both.
function curveRange(lines) {
  const means = lines.map((line) => line.mean);
  const [low, high] = robustRange(
    means.flatMap((mean) => [...mean]),
    state.whole ? 0 : 0.05,
  );
  const [bottom, top] = extent(state.bands ? lines.flatMap((line) => [line.mean, line.low, line.high]) : means);
  const room = state.whole ? Infinity : 0.5 * (high - low) || 1;
  return padded([Math.max(bottom, low - room), Math.min(top, high + room)], 0.02);
}

function drawLines(view, lines) {
  const path = (line, attributes) =>
    view.plot.append(element("path", { fill: "none", stroke: colourOf(line.group.label), ...attributes }));
  if (state.bands)
    for (const line of lines)
      path(line, {
        class: "band",
        d: bandPath(line.xs, line.low, line.high, view),
        fill: colourOf(line.group.label),
        stroke: "none",
        opacity: 0.16,
      });
  if (state.seeds) {
    for (const line of lines) {
      for (const run of line.group.runs) {
        const returns = smooth(run.mean.slice(0, line.xs.length), state.smoothing);
        path(line, { class: "seed", d: linePath(line.xs, returns, view), "stroke-width": 0.8, opacity: 0.6 });
      }
    }
  }
  for (const line of lines) {
    path(line, {
      class: "curve",
      d: linePath(line.xs, line.mean, view),
      "stroke-width": 2.2,
      "stroke-dasharray": dashOf(line.group.label),
      "stroke-linejoin": "round",
    });
    if (line.mean.length === 1)
      view.plot.append(
        element("circle", {
          cx: view.sx(line.xs[0]),
          cy: view.sy(line.mean[0]),
          r: 4,
          fill: colourOf(line.group.label),
        }),
      );
  }
}

function curveCaption() {
  const several = shown().some((group) => group.runs.length > 1);
  return [
    "A return is the sum of the rewards of an episode. ",
    `Mean over clients and seeds${several && state.bands ? "; bands are 95 % bootstrap intervals over seeds" : ""}.`,
    state.smoothing > 1 ? ` Each point is the mean of the last ${state.smoothing} rounds.` : "",
    state.whole ? "" : " Up to 5 % of the points, and the ends of wide bands, may lie outside the frame; “whole range” shows them.",
  ].join("");
}

function drawStatistics() {
  const { intervals, tables } = panel(),
    groups = shown();
  const names = groups.length
    ? Object.keys(intervals[groups[0].label]).filter((name) =>
        groups.some((group) => intervals[group.label][name][0] !== null),
      )
    : [];
  byId("forests").replaceChildren(...names.map(() => element("figure")));
  names.forEach((name, index) =>
    drawForest(
      byId("forests").children[index],
      name,
      groups.map((group) => ({ label: group.label, values: intervals[group.label][name] })),
    ),
  );
  byId("tables").replaceChildren(
    ...tables.map((table, index) => {
      const rows = table.rows.map(([name, ...cells]) =>
        element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))),
      );
      const made = element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ...table.headers.map((cell) => element("th", { scope: "col" }, cell)))),
        element("tbody", {}, ...rows),
      );
      const open = byId("tables").children[index]?.open ?? index === 0;
      return element(
        "details",
        open ? { open: "" } : {},
        element("summary", {}, titleCase(table.title)),
        element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title }, made),
        element("p", { class: "note" }, table.note),
      );
    }),
  );
}

function drawForest(figure, name, rows) {
  const known = rows.filter((row) => row.values[0] !== null);
  const view = frame(figure, {
    title: titleCase(name),
    height: 56 + 20 * rows.length,
    left: 140,
    right: 16,
    description: `${name}: ${known.map((row) => `${row.label} ${format(row.values[0])}`).join(", ")}`,
    x: {
      domain: padded(extent(known.map((row) => row.values.filter((value) => value !== null))), 0.08),
      label: name.startsWith("number of clients") ? "clients" : "return",
      ticks: 4,
    },
    y: { domain: [0, 1], ticks: 0 },
  });
  rows.forEach((row, index) => {
    const y = 18 + 20 * index,
      [mean, low, high] = row.values,
      colour = colourOf(row.label);
    view.svg.append(
      element(
        "text",
        { class: "name", x: 132, y: y + 4, "text-anchor": "end" },
        row.label.length > 19 ? `${row.label.slice(0, 18)}…` : row.label,
        element("title", {}, row.label),
      ),
    );
    if (mean === null) return;
    if (low !== null)
      view.svg.append(
        element("path", {
          d: `M${view.sx(low)} ${y}H${view.sx(high)}M${view.sx(low)} ${y - 4}v8M${view.sx(high)} ${y - 4}v8`,
          stroke: colour,
          "stroke-width": 1.6,
        }),
      );
    view.svg.append(
      element(
        "circle",
        { cx: view.sx(mean), cy: y, r: 4.5, fill: colour },
        element(
          "title",
          {},
          `${row.label}: ${format(mean)}${low === null ? "" : ` [${format(low)}, ${format(high)}]`}`,
        ),
      ),
    );
  });
}

// Above, what the policy reached on each client; below, how often the client trained.
function drawParticipation() {
  const groups = shown(),
    figures = groups.map(() => element("figure"));
  byId("participation").replaceChildren(...figures);
  const returns = padded(extent(groups.map((group) => group.finalReturns)), 0.08),
    most = Math.max(...groups.flatMap((group) => [...group.participation]), 1e-9) * 1.05;
  groups.forEach((group, index) => {
    const figure = figures[index],
      clients = group.finalReturns.length,
      height = 280,
      split = 0.54;
    const view = frame(figure, {
      title: group.label,
      height,
      x: { domain: [-0.6, clients - 0.4], label: "client id", whole: true },
      y: { domain: [0, 1], ticks: 0 },
      description: `${group.label}: selections and final return of every client`,
    });
    const { left, top, width, height: tall } = view.inner,
      middle = top + tall * split;
    const upper = (value) => middle - 8 - ((value - returns[0]) / (returns[1] - returns[0])) * (tall * split - 8),
      lower = (value) => top + tall - (value / most) * (tall * (1 - split) - 6);
    const axis = (domain, scale, count) =>
      ticks(domain, count).forEach((tick, i, all) =>
        view.svg.append(
          element("line", { class: "grid-line", x1: left, x2: left + width, y1: scale(tick), y2: scale(tick) }),
          element("text", { x: left - 6, y: scale(tick) + 4, "text-anchor": "end" }, tickLabels(all)[i]),
        ),
      );
    axis(returns, upper, 4);
    axis([0, most], lower, 2);
    view.svg.append(
      element(
        "text",
        { transform: `translate(13 ${top + (tall * split) / 2}) rotate(-90)`, "text-anchor": "middle" },
        "final return",
      ),
      element(
        "text",
        { transform: `translate(13 ${middle + (tall * (1 - split)) / 2}) rotate(-90)`, "text-anchor": "middle" },
        "selections / round",
      ),
    );
    const unit = width / clients,
      points = element("g");
    for (let client = 0; client < clients; client++) {
      const x = view.sx(client),
        share = group.participation[client];
      view.svg.append(
        element("rect", {
          class: "bar",
          x: x - unit * 0.4,
          width: unit * 0.8,
          y: lower(share),
          height: Math.max(0, top + tall - lower(share)),
          fill: colourOf(group.label),
          opacity: 0.75,
        }),
      );
      if (Number.isFinite(group.finalReturns[client]))
        points.append(
          element("circle", {
            cx: x,
            cy: upper(group.finalReturns[client]),
            r: Math.min(3.2, Math.max(1.6, unit * 0.4)),
            fill: colourOf(group.label),
          }),
        );
    }
    view.svg.append(points);
    explore(figure, view, {
      columns: clients,
      start: [0, 0],
      locate: (x) => [Math.floor((x - left) / unit), 0],
      mark: (column) => ({ x: view.sx(column) }),
      onPick: (client) => update({ client, scheme: group.label }),
      readout: (client) =>
        `client ${client}: return ${format(group.finalReturns[client])}, ${format(group.participation[client])} selections per round`,
    });
  });
  byId("participation").append(
    element(
      "figcaption",
      {},
      `Dots: mean return of the last ${data.lastRounds} rounds, averaged over seeds. Bars: selections of the client per round. All panels share their scales.`,
    ),
  );
}

// What every client gains over training alone; nothing without runs of `local`.
function drawGains() {
  const figure = byId("fig-gains"),
    gains = panel().gains.filter((gain) => !state.hidden.has(gain.scheme));
  figure.hidden = !gains.length;
  if (!gains.length) return figure.replaceChildren();
  const clients = Array.from(gains[0].values, (_, client) => client);
  const view = frame(figure, {
    title: "Whom federating helps",
    height: 280,
    x: { domain: [-0.6, clients.length - 0.4], label: "client id", whole: true },
    y: { domain: padded(extent([...gains.map((gain) => gain.values), [0]]), 0.08), label: "return minus return alone" },
    description: `Return of every client minus its return alone, for ${gains.map((gain) => gain.label).join(", ")}`,
  });
  const { left, width } = view.inner;
  view.plot.append(
    element("line", { class: "grid-line", x1: left, x2: left + width, y1: view.sy(0), y2: view.sy(0), "stroke-width": 2 }),
  );
  for (const gain of gains)
    view.plot.append(
      element("path", {
        class: "gain",
        d: linePath(clients, gain.values, view),
        fill: "none",
        stroke: colourOf(gain.scheme),
        "stroke-width": 2,
        "stroke-dasharray": gain.label === gain.scheme ? dashOf(gain.scheme) : gain.label.endsWith("after") ? "" : "2 3",
      }),
    );
  figure.append(
    element(
      "figcaption",
      {},
      "Mean over seeds. Above the line a client is better off than alone; below it the client would do better by itself. " +
        gains.map((gain) => `${gain.label}: ${[...gain.values].filter((value) => value > 0).length} of ${clients.length} clients above`).join("; ") +
        ".",
    ),
  );
  explore(figure, view, {
    columns: clients.length,
    start: [0, 0],
    locate: (x) => [Math.floor(((x - left) / width) * clients.length), 0],
    mark: (column) => ({ x: view.sx(column) }),
    readout: (client) =>
      `client ${client}: ${gains.map((gain) => `${gain.label} ${format(gain.values[client])}`).join(" · ")}`,
  });
}

function drawCost() {
  const groups = shown();
  if (!groups.length || !panel().groups.some((group) => group.runs.some((run) => run.rounds > 0))) {
    byId("fig-bytes").replaceChildren();
    return byId("fig-seconds").replaceChildren(
      element(
        "p",
        { class: "empty" },
        groups.length ? "No round has been trained yet." : "No scheme to show: switch one on.",
      ),
    );
  }
  stackedBars(byId("fig-seconds"), {
    title: "Time",
    unit: "seconds per round",
    rows: groups.map((group) => ({ name: group.label, parts: group.seconds })),
    description: "Median seconds of each phase of a round",
    caption: "Median over all rounds and seeds, on the machine that made the runs. Compiling is in the first rounds.",
  });
  drawBytes(groups);
}

function drawBytes(groups) {
  const largest = Math.max(
    ...groups.map((group) => Object.values(group.bytes).reduce((sum, value) => sum + (value ?? 0), 0)),
  );
  if (!largest)
    return byId("fig-bytes").replaceChildren(
      element("h3", {}, "Communication"),
      element("p", { class: "empty" }, "The sizes of messages are not recorded in these runs."),
    );
  const [name, size] = [
    ["megabytes", 1e6],
    ["kilobytes", 1e3],
    ["bytes", 1],
  ].find(([, bytes]) => largest >= bytes || bytes === 1);
  const known = (parts) =>
    Object.fromEntries(Object.entries(parts).map(([phase, value]) => [phase, value === null ? null : value / size]));
  stackedBars(byId("fig-bytes"), {
    title: "Communication",
    unit: `${name} per round`,
    description: `Median ${name} of each phase of a round`,
    caption:
      "Content of the messages to and from all clients, median over rounds and seeds. Evaluation sends the policy to every client for this report alone.",
    rows: groups.map((group) => ({
      name: group.label,
      parts: known(group.bytes),
      note: Object.values(group.bytes).includes(null) ? "in part not recorded" : undefined,
    })),
  });
}

function drawConfigs() {
  const flatten = (values, prefix = "") =>
    Object.entries(values).flatMap(([key, value]) =>
      value && typeof value === "object" && !Array.isArray(value)
        ? flatten(value, `${prefix}${key}.`)
        : [[prefix + key, JSON.stringify(value)]],
    );
  const groups = panel().groups,
    flat = groups.map((group) => new Map(flatten({ ...group.config, seed: group.runs.map((run) => run.seed) })));
  const differing = [...flat[0].keys()].filter((key) => flat.some((one) => one.get(key) !== flat[0].get(key)));
  const table = element(
    "table",
    {},
    element("caption", {}, "Settings in which the schemes differ"),
    element(
      "thead",
      {},
      element("tr", {}, element("th", {}), ...groups.map((group) => element("th", { scope: "col" }, group.label))),
    ),
    element(
      "tbody",
      {},
      ...differing.map((key) =>
        element("tr", {}, element("th", { scope: "row" }, key), ...flat.map((one) => element("td", {}, one.get(key)))),
      ),
    ),
  );
  const open = new Set([...byId("configs").querySelectorAll("details[open]")].map((one) => one.dataset.label));
  byId("configs").replaceChildren(
    ...(differing.length
      ? [
          element(
            "div",
            { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings in which the schemes differ" },
            table,
          ),
        ]
      : []),
    ...groups.map((group) =>
      element(
        "details",
        { "data-label": group.label, ...(open.has(group.label) ? { open: "" } : {}) },
        element("summary", {}, `${group.label}: all settings, and where seed ${group.runs[0].seed} was run`),
        element("pre", { tabindex: 0 }, JSON.stringify({ config: group.config, origin: group.origin }, null, 2)),
      ),
    ),
  );
}
