// The page: what is shown follows from `data`, which may grow while a run is watched, and from `state`, which the reader
// sets. Every `draw...` function can be called again at any time.

const byId = (id) => document.getElementById(id);
const state = { panel: 0, hidden: new Set(), smoothing: 1, clock: "rounds", seeds: false, bands: true, scheme: null, seed: null, client: 0, score: null };
let data = JSON.parse(byId("data").textContent);

function decode(text, Type) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer);
}

function unpack(document) {
  for (const group of document.panels.flatMap((panel) => panel.groups)) {
    for (const name of ["mean", "low", "high", "participation", "finalReturns"]) group[name] = decode(group[name], Float32Array);
    for (const name in group.clocks) group.clocks[name] = decode(group.clocks[name], Float32Array);
    for (const run of group.runs) unpackRun(run);
  }
  return document;
}

function unpackRun(run) {
  const { low, high, steps } = run.returns;
  run.mean = decode(run.mean, Float32Array);
  run.returns = Float32Array.from(decode(steps, Uint16Array), (step) => (step === 65535 ? NaN : low + ((high - low) * step) / 65534));
  run.counts = decode(run.counts, Uint16Array);
  run.candidates = decode(run.candidates, Uint16Array);
  run.selected = decode(run.selected, Uint8Array);
  for (const name in run.scores) run.scores[name] = decode(run.scores[name], Float32Array);
  // Where each client of each round stands among the candidates; -1 for the others.
  run.place = new Int32Array((run.rounds + 1) * run.numClients).fill(-1);
  let next = 0;
  run.counts.forEach((count, round) => { for (let i = 0; i < count; i++, next++) run.place[round * run.numClients + run.candidates[next]] = next; });
}

const panel = () => data.panels[Math.min(state.panel, data.panels.length - 1)];
const shown = () => panel().groups.filter((group) => !state.hidden.has(group.label));
const colourOf = (label) => `var(--c${data.labels.indexOf(label) % 8})`;
const dashOf = (label) => DASHES[data.labels.indexOf(label) % DASHES.length];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const titleCase = (text) => text.charAt(0).toUpperCase() + text.slice(1).replaceAll("_", " ");

function chosenRun() {
  const groups = panel().groups, group = groups.find((one) => one.label === state.scheme) ?? groups.at(groups.length > 1 ? 1 : 0);
  return { group, run: group.runs.find((one) => one.seed === state.seed) ?? group.runs[0] };
}

function drawHeader() {
  const runs = data.panels.flatMap((one) => one.groups.flatMap((group) => group.runs));
  const done = runs.reduce((sum, run) => sum + run.rounds, 0), total = runs.reduce((sum, run) => sum + run.totalRounds, 0);
  const open = runs.filter((run) => run.rounds < run.totalRounds).length;
  const worlds = [...new Set(data.panels.map((one) => `${one.world} (${one.level})`))].join(", ");
  byId("summary").replaceChildren(runs.length ? `${plural(runs.length, "run")} on ${worlds}, started ${data.started.replace("T", " ").slice(0, 16)} UTC. ` : "Waiting for the first round. ",
    ...(open ? [data.live ? `${open} under way: ` : `${open} of them stopped early: `, element("progress", { max: total, value: done }), ` ${done} of ${total} rounds.`] : []));
  byId("made").textContent = `Made by fedpohcs ${data.version}. Clients count from 1. Round 0 is the evaluation before training.`;
}

function setOptions(select, values, chosen) {
  if ([...select.options].map((option) => option.value).join("\n") !== values.map(String).join("\n")) select.replaceChildren(...values.map((value) => element("option", { value }, String(value).replaceAll("_", " "))));
  select.value = chosen;
}

function drawControls() {
  const names = data.panels.map((one) => `${one.world}, ${one.level}`);
  setOptions(byId("level"), names, names[state.panel]);
  byId("level-box").hidden = names.length < 2;
  const known = (name) => panel().groups.some((group) => Number.isFinite(group.clocks[name].at(-1)));
  setOptions(byId("clock"), data.clocks.filter(known), state.clock);
  byId("smoothing-value").textContent = plural(state.smoothing, "round");
  const focused = document.activeElement?.dataset?.label;
  byId("schemes").replaceChildren(byId("schemes").querySelector("legend"), ...panel().groups.map((group) => {
    const swatch = element("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, element("path", { d: "M0 5H26", stroke: colourOf(group.label), "stroke-width": 3, "stroke-dasharray": dashOf(group.label) }));
    const open = group.runs.find((run) => run.rounds < run.totalRounds);
    const note = open ? `${open.rounds}/${open.totalRounds}` : plural(group.runs.length, "seed");
    return element("button", { type: "button", class: "chip", "aria-pressed": !state.hidden.has(group.label), "data-label": group.label }, swatch, group.label, element("small", {}, note));
  }));
  [...byId("schemes").children].find((chip) => focused && chip.dataset.label === focused)?.focus();
}

function drawCurves() {
  const figure = byId("fig-curves"), groups = shown().map((group) => ({ ...group, xs: group.clocks[state.clock] })).filter((group) => Number.isFinite(group.xs.at(-1)));
  if (!groups.length) return figure.replaceChildren(element("p", { class: "empty" }, "No scheme to show: switch one on, or choose another axis."));
  const lines = groups.map((group) => ({ group, mean: smooth(group.mean, state.smoothing), low: smooth(group.low, state.smoothing), high: smooth(group.high, state.smoothing) }));
  const [low, high] = extent(lines.map((line) => line.mean)), [bottom, top] = extent(lines.flatMap((line) => (state.bands ? [line.mean, line.low, line.high] : [line.mean])));
  const room = 0.15 * (high - low) || 1; // bands of very few seeds shall not flatten the curves
  const longest = groups.reduce((one, other) => (other.xs.at(-1) > one.xs.at(-1) ? other : one)).xs;
  const view = frame(figure, { height: Math.max(300, Math.min(440, figure.clientWidth * 0.5)), x: { domain: [0, longest.at(-1) || 1], label: state.clock === "rounds" ? "round" : state.clock, whole: state.clock === "rounds" },
    y: { domain: padded([Math.max(bottom, low - room), Math.min(top, high + room)], 0.02), label: "mean return over all clients" }, description: `Mean return over all clients against ${state.clock}, for ${groups.map((group) => group.label).join(", ")}` });
  for (const { group, low, high } of state.bands ? lines : []) view.plot.append(element("path", { d: bandPath(group.xs, low, high, view), fill: colourOf(group.label), opacity: 0.16 }));
  for (const { group } of state.seeds ? lines : []) for (const run of group.runs) view.plot.append(element("path", { class: "seed", d: linePath(group.xs, smooth(run.mean.slice(0, group.xs.length), state.smoothing), view), fill: "none", stroke: colourOf(group.label), "stroke-width": 0.8, opacity: 0.6 }));
  for (const { group, mean } of lines) view.plot.append(element("path", { class: "curve", d: linePath(group.xs, mean, view), fill: "none", stroke: colourOf(group.label), "stroke-width": 2.2, "stroke-dasharray": dashOf(group.label), "stroke-linejoin": "round" }));
  const nearest = (xs, x) => { let best = 0; xs.forEach((value, i) => { if (Math.abs(view.sx(value) - x) < Math.abs(view.sx(xs[best]) - x)) best = i; }); return best; };
  figure.append(element("figcaption", {}, `Mean over clients and seeds${state.bands ? "; bands are 95 % bootstrap intervals over seeds" : ""}${state.smoothing > 1 ? `; each point is the mean of the last ${state.smoothing} rounds` : ""}.`));
  explore(figure, view, { columns: longest.length, start: [longest.length - 1, 0], locate: (x) => [nearest(longest, x), 0], mark: (column) => ({ x: view.sx(longest[column]) }),
    readout: (column) => [element("b", {}, `${state.clock === "rounds" ? "round " + column : format(longest[column]) + " " + state.clock}: `),
      lines.map(({ group, mean, low, high }) => { const i = nearest(group.xs, view.sx(longest[column])); return `${group.label} ${format(mean[i])}${Number.isFinite(low[i]) ? ` [${format(low[i])}, ${format(high[i])}]` : ""}`; }).join(" · ")] });
}

function drawStatistics() {
  const { intervals, tables } = panel(), groups = shown();
  const names = groups.length ? Object.keys(intervals[groups[0].label]).filter((name) => groups.some((group) => intervals[group.label][name][0] !== null)) : [];
  byId("forests").replaceChildren(...names.map(() => element("figure")));
  names.forEach((name, index) => drawForest(byId("forests").children[index], name, groups.map((group) => ({ label: group.label, values: intervals[group.label][name] }))));
  byId("tables").replaceChildren(...tables.map((table, index) => {
    const rows = table.rows.map(([name, ...cells]) => element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))));
    const made = element("table", {}, element("thead", {}, element("tr", {}, ...table.headers.map((cell) => element("th", { scope: "col" }, cell)))), element("tbody", {}, ...rows));
    const open = byId("tables").children[index]?.open;
    return element("details", open ? { open: "" } : {}, element("summary", {}, titleCase(table.title)), element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title }, made), element("p", { class: "note" }, table.note));
  }));
}

function drawForest(figure, name, rows) {
  const known = rows.filter((row) => row.values[0] !== null);
  const view = frame(figure, { title: titleCase(name), height: 46 + 20 * rows.length, left: 128, right: 16, description: `${name}: ${known.map((row) => `${row.label} ${format(row.values[0])}`).join(", ")}`,
    x: { domain: padded(extent(known.map((row) => row.values.filter((value) => value !== null))), 0.08), label: "", ticks: 4 }, y: { domain: [0, 1], ticks: 0 } });
  rows.forEach((row, index) => {
    const y = 18 + 20 * index, [mean, low, high] = row.values, colour = colourOf(row.label);
    view.svg.append(element("text", { class: "name", x: 122, y: y + 4, "text-anchor": "end" }, row.label.length > 19 ? `${row.label.slice(0, 18)}…` : row.label, element("title", {}, row.label)));
    if (mean === null) return;
    if (low !== null) view.svg.append(element("path", { d: `M${view.sx(low)} ${y}H${view.sx(high)}M${view.sx(low)} ${y - 4}v8M${view.sx(high)} ${y - 4}v8`, stroke: colour, "stroke-width": 1.6 }));
    view.svg.append(element("circle", { cx: view.sx(mean), cy: y, r: 4.5, fill: colour }, element("title", {}, `${row.label}: ${format(mean)}${low === null ? "" : ` [${format(low)}, ${format(high)}]`}`)));
  });
}

// Above, what the policy reached on each client; below, how often the client trained.
function drawParticipation() {
  const groups = shown(), figures = groups.map(() => element("figure"));
  byId("participation").replaceChildren(...figures);
  const returns = padded(extent(groups.map((group) => group.finalReturns)), 0.08), most = Math.max(...groups.flatMap((group) => [...group.participation]), 1e-9) * 1.05;
  groups.forEach((group, index) => {
    const figure = figures[index], clients = group.finalReturns.length, height = 250, split = 0.58;
    const view = frame(figure, { title: group.label, height, x: { domain: [0.4, clients + 0.6], label: "client", whole: true }, y: { domain: [0, 1], ticks: 0 }, description: `${group.label}: selections and final return of every client` });
    const { left, top, width, height: tall } = view.inner, middle = top + tall * split;
    const upper = (value) => middle - 8 - ((value - returns[0]) / (returns[1] - returns[0])) * (tall * split - 8), lower = (value) => top + tall - (value / most) * (tall * (1 - split) - 6);
    const axis = (domain, scale, count) => ticks(domain, count).forEach((tick) => view.svg.append(element("line", { class: "grid-line", x1: left, x2: left + width, y1: scale(tick), y2: scale(tick) }), element("text", { x: left - 6, y: scale(tick) + 4, "text-anchor": "end" }, format(tick))));
    axis(returns, upper, 4);
    axis([0, most], lower, 2);
    view.svg.append(element("text", { transform: `translate(13 ${top + (tall * split) / 2}) rotate(-90)`, "text-anchor": "middle" }, "final return"), element("text", { transform: `translate(13 ${middle + (tall * (1 - split)) / 2}) rotate(-90)`, "text-anchor": "middle" }, "selections"));
    const unit = width / clients, points = element("g");
    for (let client = 0; client < clients; client++) {
      const x = view.sx(client + 1), share = group.participation[client];
      view.svg.append(element("rect", { class: "bar", x: x - unit * 0.4, width: unit * 0.8, y: lower(share), height: Math.max(0, top + tall - lower(share)), fill: colourOf(group.label), opacity: 0.75 }));
      if (Number.isFinite(group.finalReturns[client])) points.append(element("circle", { cx: x, cy: upper(group.finalReturns[client]), r: Math.min(3.2, Math.max(1.6, unit * 0.4)), fill: colourOf(group.label) }));
    }
    view.svg.append(points);
    explore(figure, view, { columns: clients, start: [0, 0], locate: (x) => [Math.floor((x - left) / unit), 0], mark: (column) => ({ x: view.sx(column + 1) }), onPick: (client) => update({ client, scheme: group.label }),
      readout: (client) => `client ${client + 1}: return ${format(group.finalReturns[client])}, ${format(group.participation[client])} selections a round` });
  });
  byId("participation").append(element("figcaption", {}, `Dots: mean return of the last ${data.lastRounds} rounds, averaged over seeds. Bars: selections of the client a round. All panels share their scales.`));
}

function drawInside() {
  const { group, run } = chosenRun(), rounds = [...Array(run.rounds + 1).keys()], clients = run.numClients;
  const client = Math.min(state.client, clients - 1), scores = Object.keys(run.scores), score = scores.includes(state.score) ? state.score : scores[0];
  setOptions(byId("run-scheme"), panel().groups.map((one) => one.label), group.label);
  setOptions(byId("run-seed"), group.runs.map((one) => one.seed), run.seed);
  setOptions(byId("run-score"), scores, score);
  byId("score-box").hidden = !scores.length;
  byId("run-client").max = clients;
  if (document.activeElement !== byId("run-client")) byId("run-client").value = client + 1;
  const place = (round, one) => run.place[round * clients + one], back = (round, one) => run.returns[round * clients + one];
  const pick = (column, row) => update({ client: row });
  const solid = (text) => { const probe = element("i", { style: `color:${text}` }); document.body.append(probe); const rgb = getComputedStyle(probe).color.match(/\d+/g).slice(0, 3).map(Number); probe.remove(); return rgb; };
  const [faint, strong] = [solid("var(--line)"), solid(colourOf(group.label))];
  const role = (round, one) => (place(round, one) < 0 ? 0 : 1 + run.selected[place(round, one)]);
  const swatch = (colour, text) => element("span", {}, element("i", { style: `background:${colour}` }), text);
  heatMap(byId("fig-selection"), { title: "Selection", rounds, clients, marked: client, value: role, colour: (kind) => [null, faint, strong][kind], onPick: pick,
    key: element("div", { class: "key" }, swatch("var(--line)", "candidate"), swatch(colourOf(group.label), "selected")), description: `Who was selected in which round by ${group.label}, seed ${run.seed}`,
    caption: "Who was asked, and who trained.", readout: (round, one) => `round ${round}, client ${one + 1}: ${["not a candidate", "candidate, not selected", "selected"][role(round, one)]}` });
  const [low, high] = robustRange(run.returns);
  heatMap(byId("fig-returns"), { title: "Return of every client", rounds, clients, marked: client, value: back, colour: (value) => (Number.isFinite(value) ? cividis((value - low) / (high - low || 1)) : null), onPick: pick,
    key: colourBar(low, high, "mean return; the lowest 5 % share the darkest colour"), description: `Mean return of every client after every round, ${group.label}, seed ${run.seed}`,
    caption: "Mean return of the global policy on each client, after each round.", readout: (round, one) => `round ${round}, client ${one + 1}: return ${format(back(round, one))}` });
  drawScores(run, { rounds, clients, client, score, place, pick, group });
  drawClient(run, { rounds, clients, client, back, place, group });
}

function drawScores(run, { rounds, clients, client, score, place, pick, group }) {
  const figure = byId("fig-scores"), chart = byId("fig-client-score");
  if (!score) { chart.replaceChildren(); return figure.replaceChildren(element("h3", {}, "Scores"), element("p", { class: "empty" }, run.rounds ? `${group.label} scores no candidates.` : "No round has been trained yet.")); }
  const values = run.scores[score], name = SCORE_NAMES[score] ?? score.replaceAll("_", " "), [low, high] = robustRange(values);
  const scored = (round, one) => (place(round, one) < 0 ? NaN : values[place(round, one)]);
  heatMap(figure, { title: titleCase(name), rounds, clients, marked: client, value: scored, colour: (value) => (Number.isFinite(value) ? cividis((value - low) / (high - low || 1)) : null), onPick: pick,
    key: colourBar(low, high, name), description: `${name} of every candidate in every round, ${group.label}, seed ${run.seed}`, caption: "Empty where the client was no candidate.",
    readout: (round, one) => `round ${round}, client ${one + 1}: ${Number.isFinite(scored(round, one)) ? format(scored(round, one)) : "not a candidate"}` });
  const asked = rounds.filter((round) => place(round, client) >= 0), ys = asked.map((round) => scored(round, client));
  const [floor, ceiling] = [rounds.map((round) => quantileOfRound(run, values, round, 0)), rounds.map((round) => quantileOfRound(run, values, round, 1))];
  const view = frame(chart, { title: `${titleCase(name)} of client ${client + 1}`, height: 220, x: { domain: [0, run.rounds || 1], label: "round", whole: true }, y: { domain: padded(extent([floor, ceiling]), 0.05), label: name.split(",")[0] }, description: `${name} of client ${client + 1} by round` });
  view.plot.append(element("path", { d: bandPath(rounds, floor, ceiling, view), fill: "var(--soft)", opacity: 0.18 }));
  view.plot.append(element("path", { d: linePath(asked, ys, view), fill: "none", stroke: colourOf(group.label), "stroke-width": 1, opacity: 0.6 }));
  asked.forEach((round, i) => { if (Number.isFinite(ys[i])) view.plot.append(element("circle", { cx: view.sx(round), cy: view.sy(ys[i]), r: 3.4, stroke: colourOf(group.label), "stroke-width": 1.3, fill: run.selected[place(round, client)] ? colourOf(group.label) : "var(--page)" })); });
  chart.append(element("figcaption", {}, "Dots: rounds in which it was a candidate; filled where it was selected. Grey: from the lowest to the highest candidate."));
}

function drawClient(run, { rounds, clients, client, back, group }) {
  const figure = byId("fig-client"), own = rounds.map((round) => back(round, client));
  const spread = (share) => rounds.map((round) => { const all = [...run.returns.subarray(round * clients, (round + 1) * clients)].filter(Number.isFinite).sort((a, b) => a - b); return all[Math.round(share * (all.length - 1))]; });
  const [low, high] = [spread(0.1), spread(0.9)];
  const view = frame(figure, { title: `Return of client ${client + 1}`, height: 220, x: { domain: [0, run.rounds || 1], label: "round", whole: true }, y: { domain: padded(extent([own, low, high])), label: "mean return" }, description: `Mean return of client ${client + 1} by round` });
  view.plot.append(element("path", { d: bandPath(rounds, low, high, view), fill: "var(--soft)", opacity: 0.18 }), element("path", { d: linePath(rounds, own, view), fill: "none", stroke: colourOf(group.label), "stroke-width": 1.8 }));
  if (run.rounds === 0) view.plot.append(element("circle", { cx: view.sx(0), cy: view.sy(own[0]), r: 4, fill: colourOf(group.label) }));
  figure.append(element("figcaption", {}, "Grey: from the tenth to the ninetieth of a hundred clients in order of their return."));
  explore(figure, view, { columns: rounds.length, start: [rounds.length - 1, 0], locate: (x) => [Math.round(((x - view.inner.left) / view.inner.width) * run.rounds), 0], mark: (column) => ({ x: view.sx(column) }), readout: (column) => `round ${column}: return ${format(own[column])}` });
}

const SCORE_NAMES = { selection_metric: "selection metric Δ", learning_potential: "learning potential ‖DA‖", heterogeneity: "heterogeneity κ̂", gradient_norm: "gradient norm", loss: "loss (minus the return)" };

function quantileOfRound(run, values, round, share) {
  const all = [];
  for (let client = 0; client < run.numClients; client++) { const at = run.place[round * run.numClients + client]; if (at >= 0 && Number.isFinite(values[at])) all.push(values[at]); }
  all.sort((a, b) => a - b);
  return all.length ? all[Math.round(share * (all.length - 1))] : NaN;
}

function robustRange(values) {
  const known = Float32Array.from(values).filter(Number.isFinite).sort();
  return known.length ? [known[Math.floor(0.05 * known.length)], known.at(-1)] : [0, 1];
}

function drawCost() {
  const groups = shown();
  if (!groups.length || !panel().groups.some((group) => group.runs.some((run) => run.rounds > 0))) {
    byId("fig-bytes").replaceChildren();
    return byId("fig-seconds").replaceChildren(element("p", { class: "empty" }, groups.length ? "No round has been trained yet." : "No scheme to show: switch one on."));
  }
  stackedBars(byId("fig-seconds"), { title: "Time", unit: "seconds a round", rows: groups.map((group) => ({ name: group.label, parts: group.seconds })), description: "Median seconds of each phase of a round", caption: "Median over all rounds and seeds, on the machine that made the runs. Compiling is in the first rounds." });
  const known = (parts) => Object.fromEntries(Object.entries(parts).map(([phase, value]) => [phase, value === null ? null : value / 1e6]));
  stackedBars(byId("fig-bytes"), { title: "Communication", unit: "megabytes a round", description: "Median megabytes of each phase of a round", caption: "Content of the messages to and from all clients, median over rounds and seeds. Evaluation sends the policy to every client for this report alone.",
    rows: groups.map((group) => ({ name: group.label, parts: known(group.bytes), note: Object.values(group.bytes).includes(null) ? "in part not recorded" : undefined })) });
}

function drawConfigs() {
  const flatten = (values, prefix = "") => Object.entries(values).flatMap(([key, value]) => (value && typeof value === "object" && !Array.isArray(value) ? flatten(value, `${prefix}${key}.`) : [[prefix + key, JSON.stringify(value)]]));
  const groups = panel().groups, flat = groups.map((group) => new Map(flatten({ ...group.config, seed: group.runs.map((run) => run.seed) })));
  const differing = [...flat[0].keys()].filter((key) => flat.some((one) => one.get(key) !== flat[0].get(key)));
  const table = element("table", {}, element("caption", {}, "Settings in which the schemes differ"), element("thead", {}, element("tr", {}, element("th", {}), ...groups.map((group) => element("th", { scope: "col" }, group.label)))),
    element("tbody", {}, ...differing.map((key) => element("tr", {}, element("th", { scope: "row" }, key), ...flat.map((one) => element("td", {}, one.get(key)))))));
  const open = new Set([...byId("configs").querySelectorAll("details[open]")].map((one) => one.dataset.label));
  byId("configs").replaceChildren(...(differing.length ? [element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings in which the schemes differ" }, table)] : []), ...groups.map((group) => element("details", { "data-label": group.label, ...(open.has(group.label) ? { open: "" } : {}) },
    element("summary", {}, `${group.label}: all settings, and where seed ${group.runs[0].seed} was run`), element("pre", { tabindex: 0 }, JSON.stringify({ config: group.config, origin: group.origin }, null, 2)))));
}

function draw() {
  drawHeader();
  for (const part of document.querySelectorAll("#controls, main")) part.hidden = !data.panels.length;
  if (data.panels.length) for (const part of [drawControls, drawCurves, drawStatistics, drawParticipation, drawInside, drawCost, drawConfigs]) part();
}

function update(changes) {
  Object.assign(state, changes);
  draw();
}

function listen() {
  const on = (id, event, change) => byId(id).addEventListener(event, () => update(change(byId(id))));
  on("level", "change", (select) => ({ panel: select.selectedIndex }));
  on("clock", "change", (select) => ({ clock: select.value }));
  on("smoothing", "input", (range) => ({ smoothing: Number(range.value) }));
  on("seeds", "change", (box) => ({ seeds: box.checked }));
  on("bands", "change", (box) => ({ bands: box.checked }));
  on("run-scheme", "change", (select) => ({ scheme: select.value }));
  on("run-seed", "change", (select) => ({ seed: Number(select.value) }));
  on("run-score", "change", (select) => ({ score: select.value }));
  on("run-client", "input", (input) => ({ client: Math.max(0, (parseInt(input.value, 10) || 1) - 1) }));
  byId("schemes").addEventListener("click", (event) => {
    const label = event.target.closest(".chip")?.dataset.label;
    if (label) update({ hidden: new Set(state.hidden.has(label) ? [...state.hidden].filter((one) => one !== label) : [...state.hidden, label]) });
  });
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => document.querySelectorAll("#tables details").forEach((one) => { one.open = true; }));
  let width = document.body.clientWidth;
  new ResizeObserver(() => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; draw(); } }).observe(document.body);
}

// While a run is watched: ask again and again, but spend no more than a tenth of the time on asking.
async function follow() {
  let tag = "", wait = 1000;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    const start = performance.now();
    try {
      const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag");
        data = unpack(await answer.json());
        draw();
      }
      document.body.dataset.connected = "true";
    } catch {
      document.body.dataset.connected = "false";
      byId("summary").append(byId("summary").textContent.includes("no answer") ? "" : " There is no answer from fedpohcs watch.");
    }
    wait = Math.min(60_000, Math.max(1000, 10 * (performance.now() - start)));
  }
}

unpack(data);
listen();
draw();
if (data.live) follow();
