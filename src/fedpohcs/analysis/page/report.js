// The page: what is shown follows from `data`, which may grow while a run is watched, and from `state`, which the
// reader sets. Every `draw...` function can be called again at any time.

const byId = (id) => document.getElementById(id);
const state = {
  panel: 0,
  hidden: new Set(),
  smoothing: 1,
  clock: "rounds",
  seeds: false,
  bands: true,
  whole: false,
  scheme: null,
  seed: null,
  client: 0,
  score: null,
};
let data = JSON.parse(byId("data").textContent);

function decode(text, Type) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer);
}

function unpack(document) {
  for (const group of document.panels.flatMap((panel) => panel.groups)) {
    for (const name of ["mean", "low", "high", "participation", "finalReturns"])
      group[name] = decode(group[name], Float32Array);
    for (const name in group.clocks) group.clocks[name] = decode(group.clocks[name], Float32Array);
    for (const run of group.runs) unpackRun(run);
  }
  for (const gain of document.panels.flatMap((panel) => panel.gains)) gain.values = decode(gain.values, Float32Array);
  return document;
}

function unpackRun(run) {
  const { low, high, steps } = run.returns;
  run.mean = decode(run.mean, Float32Array);
  run.returns = Float32Array.from(decode(steps, Uint16Array), (step) =>
    step === 65535 ? NaN : low + ((high - low) * step) / 65534,
  );
  run.counts = decode(run.counts, Uint16Array);
  run.candidates = decode(run.candidates, Uint16Array);
  run.selected = decode(run.selected, Uint8Array);
  for (const name in run.scores) run.scores[name] = decode(run.scores[name], Float32Array);
  // Where each client of each round stands among the candidates; -1 for the others.
  run.place = new Int32Array((run.rounds + 1) * run.numClients).fill(-1);
  let next = 0;
  run.counts.forEach((count, round) => {
    for (let i = 0; i < count; i++, next++) run.place[round * run.numClients + run.candidates[next]] = next;
  });
}

const panel = () => data.panels[Math.min(state.panel, data.panels.length - 1)];
const shown = () => panel().groups.filter((group) => !state.hidden.has(group.label));
const colourOf = (label) => `var(--c${data.labels.indexOf(label) % 8})`;
const dashOf = (label) => DASHES[data.labels.indexOf(label) % DASHES.length];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const titleCase = (text) => text.charAt(0).toUpperCase() + text.slice(1).replaceAll("_", " ");

function chosenRun() {
  const { groups, summary } = panel(),
    best = groups.find((one) => one.label === summary.best),
    group = groups.find((one) => one.label === state.scheme) ?? best,
    seed = state.seed ?? (group === best ? summary.seed : null);
  return { group, run: group.runs.find((one) => one.seed === seed) ?? group.runs[0] };
}

function drawHeader() {
  const runs = data.panels.flatMap((one) => one.groups.flatMap((group) => group.runs));
  const done = runs.reduce((sum, run) => sum + run.rounds, 0),
    total = runs.reduce((sum, run) => sum + run.totalRounds, 0);
  const open = runs.filter((run) => run.rounds < run.totalRounds).length;
  const worlds = [...new Set(data.panels.map((one) => `${one.world} (${one.level})`))].join(", ");
  byId("summary").replaceChildren(
    runs.length
      ? `${plural(runs.length, "run")} on ${worlds}${data.started ? `, started ${data.started.replace("T", " ").slice(0, 16)} UTC` : ""}. `
      : "Waiting for the first round. ",
    ...(open
      ? [
          data.live ? `${open} under way: ` : `${open} of them stopped early: `,
          element("progress", { max: total, value: done }),
          ` ${done} of ${total} rounds.`,
        ]
      : []),
    ...runs
      .filter((run) => run.rounds < run.totalRounds && run.answered < run.numClients)
      .map((run) => ` ${run.answered} of ${run.numClients} clients answered the latest evaluation (seed ${run.seed}).`),
  );
  byId("made").textContent =
    `Made by fedpohcs ${data.version}. Client ids count from 0. Round 0 is the evaluation before training.`;
}

function setOptions(select, values, chosen) {
  if ([...select.options].map((option) => option.value).join("\n") !== values.map(String).join("\n"))
    select.replaceChildren(...values.map((value) => element("option", { value }, String(value).replaceAll("_", " "))));
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
  byId("schemes").replaceChildren(
    byId("schemes").querySelector("legend"),
    ...panel().groups.map((group) => {
      const swatch = element(
        "svg",
        { viewBox: "0 0 26 10", "aria-hidden": "true" },
        element("path", {
          d: "M0 5H26",
          stroke: colourOf(group.label),
          "stroke-width": 3,
          "stroke-dasharray": dashOf(group.label),
        }),
      );
      const open = group.runs.find((run) => run.rounds < run.totalRounds);
      const note = open ? `${open.rounds}/${open.totalRounds}` : plural(group.runs.length, "seed");
      return element(
        "button",
        { type: "button", class: "chip", "aria-pressed": !state.hidden.has(group.label), "data-label": group.label },
        swatch,
        group.label,
        element("small", {}, note),
      );
    }),
  );
  [...byId("schemes").children].find((chip) => focused && chip.dataset.label === focused)?.focus();
}

function draw() {
  drawHeader();
  for (const part of document.querySelectorAll("#findings, #controls, main")) part.hidden = !data.panels.length;
  if (data.panels.length)
    for (const part of [drawSummary, drawControls, drawCurves, drawStatistics, drawParticipation, drawGains, drawInside, drawCost, drawConfigs])
      part();
}

function update(changes) {
  Object.assign(state, changes);
  draw();
}

function listen() {
  const on = (id, event, change) => byId(id).addEventListener(event, () => update(change(byId(id))));
  on("level", "change", (select) => ({ panel: select.selectedIndex, scheme: null, seed: null }));
  on("clock", "change", (select) => ({ clock: select.value }));
  on("smoothing", "input", (range) => ({ smoothing: Number(range.value) }));
  on("seeds", "change", (box) => ({ seeds: box.checked }));
  on("whole", "change", (box) => ({ whole: box.checked }));
  on("bands", "change", (box) => ({ bands: box.checked }));
  on("run-scheme", "change", (select) => ({ scheme: select.value }));
  on("run-seed", "change", (select) => ({ seed: Number(select.value) }));
  on("run-score", "change", (select) => ({ score: select.value }));
  on("run-client", "input", (input) => ({ client: Math.max(0, parseInt(input.value, 10) || 0) }));
  byId("findings").addEventListener("click", (event) => {
    const index = event.target.closest("button")?.dataset.panel;
    if (index !== undefined) update({ panel: Number(index), scheme: null, seed: null });
  });
  byId("schemes").addEventListener("click", (event) => {
    const label = event.target.closest(".chip")?.dataset.label;
    if (label)
      update({
        hidden: new Set(
          state.hidden.has(label) ? [...state.hidden].filter((one) => one !== label) : [...state.hidden, label],
        ),
      });
  });
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () =>
    document.querySelectorAll("#tables details").forEach((one) => {
      one.open = true;
    }),
  );
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth !== width) {
      width = document.body.clientWidth;
      draw();
    }
  }).observe(document.body);
}

// While a run is watched: ask again and again, but spend no more than a tenth of the time on asking.
async function follow() {
  let tag = "",
    wait = 1000;
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
      byId("summary").append(
        byId("summary").textContent.includes("no answer") ? "" : " There is no answer from fedpohcs watch.",
      );
    }
    wait = Math.min(60_000, Math.max(1000, 10 * (performance.now() - start)));
  }
}

unpack(data);
listen();
draw();
if (data.live) follow();
