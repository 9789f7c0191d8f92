// The sections about one run and one client of it.

const SCORE_NAMES = {
  selection_metric: "selection metric Δ",
  learning_potential: "learning potential ‖DA‖",
  heterogeneity: "heterogeneity κ̂",
  gradient_norm: "gradient norm",
  loss: "loss (minus the return)",
};

function drawInside() {
  const { group, run } = chosenRun(),
    rounds = [...Array(run.rounds + 1).keys()],
    clients = run.numClients;
  const client = Math.min(state.client, clients - 1),
    scores = Object.keys(run.scores),
    score = scores.includes(state.score) ? state.score : scores[0];
  setOptions(
    byId("run-scheme"),
    panel().groups.map((one) => one.label),
    group.label,
  );
  setOptions(
    byId("run-seed"),
    group.runs.map((one) => one.seed),
    run.seed,
  );
  setOptions(byId("run-score"), scores, score);
  byId("score-box").hidden = !scores.length;
  byId("run-client").max = clients - 1;
  if (document.activeElement !== byId("run-client")) byId("run-client").value = client;
  const place = (round, one) => run.place[round * clients + one],
    back = (round, one) => run.returns[round * clients + one];
  const pick = (column, row) => update({ client: row });
  drawSelection(run, { rounds, clients, client, place, pick, group });
  drawReturns(run, { rounds, clients, client, back, pick, group });
  drawScores(run, { rounds, clients, client, score, place, pick, group });
  drawClient(run, { rounds, clients, client, back, place, group });
}

function drawSelection(run, { rounds, clients, client, place, pick, group }) {
  const [faint, strong] = [channels("var(--line)"), channels(colourOf(group.label))];
  const role = (round, one) => (place(round, one) < 0 ? 0 : 1 + run.selected[place(round, one)]);
  const swatch = (colour, text) => element("span", {}, element("i", { style: `background:${colour}` }), text);
  heatMap(byId("fig-selection"), {
    title: "Selection",
    rounds,
    clients,
    marked: client,
    value: role,
    colour: (kind) => [null, faint, strong][kind],
    onPick: pick,
    key: element(
      "div",
      { class: "key" },
      swatch("var(--line)", "candidate"),
      swatch(colourOf(group.label), "selected"),
    ),
    description: `Clients that ${group.label} selected in each round, seed ${run.seed}`,
    caption: "Candidates of each round, and the clients among them that trained.",
    readout: (round, one) =>
      `round ${round}, client ${one}: ${["not a candidate", "candidate, not selected", "selected"][role(round, one)]}`,
  });
}

// The red, green and blue of a colour of the style sheet.
function channels(colour) {
  const probe = element("i", { style: `color:${colour}` });
  document.body.append(probe);
  const rgb = getComputedStyle(probe).color.match(/\d+/g).slice(0, 3).map(Number);
  probe.remove();
  return rgb;
}

function drawReturns(run, { rounds, clients, client, back, pick, group }) {
  const [low, high] = robustRange(run.returns);
  heatMap(byId("fig-returns"), {
    title: "Return of every client",
    rounds,
    clients,
    marked: client,
    value: back,
    colour: (value) => (Number.isFinite(value) ? cividis((value - low) / (high - low || 1)) : null),
    onPick: pick,
    key: colourBar(low, high, "mean return; the lowest 5 % share the darkest colour"),
    description: `Mean return of every client after every round, ${group.label}, seed ${run.seed}`,
    caption: "Mean return of the global policy on each client, after each round.",
    readout: (round, one) => `round ${round}, client ${one}: return ${format(back(round, one))}`,
  });
}

function drawScores(run, { rounds, clients, client, score, place, pick, group }) {
  const figure = byId("fig-scores"),
    chart = byId("fig-client-score");
  if (!score) {
    chart.replaceChildren();
    return figure.replaceChildren(
      element("h3", {}, "Scores"),
      element(
        "p",
        { class: "empty" },
        run.rounds ? `${group.label} scores no candidates.` : "No round has been trained yet.",
      ),
    );
  }
  const values = run.scores[score],
    name = SCORE_NAMES[score] ?? score.replaceAll("_", " "),
    [low, high] = robustRange(values, 0.02, 0.02);
  const scored = (round, one) => (place(round, one) < 0 ? NaN : values[place(round, one)]);
  heatMap(figure, {
    title: titleCase(name),
    rounds,
    clients,
    marked: client,
    value: scored,
    colour: (value) => (Number.isFinite(value) ? cividis((value - low) / (high - low || 1)) : null),
    onPick: pick,
    key: colourBar(low, high, `${name}; 2 % of the values lie beyond either end`),
    description: `${name} of every candidate in every round, ${group.label}, seed ${run.seed}`,
    caption: "Empty where the client was no candidate.",
    readout: (round, one) =>
      `round ${round}, client ${one}: ${Number.isFinite(scored(round, one)) ? format(scored(round, one)) : "not a candidate"}`,
  });
  const asked = rounds.filter((round) => place(round, client) >= 0),
    ys = asked.map((round) => scored(round, client));
  const [floor, ceiling] = [
    rounds.map((round) => quantileOfRound(run, values, round, 0)),
    rounds.map((round) => quantileOfRound(run, values, round, 1)),
  ];
  const view = frame(chart, {
    title: `${titleCase(name)} of client ${client}`,
    height: 220,
    x: { domain: [0, run.rounds || 1], label: "round", whole: true },
    y: { domain: padded(extent([floor, ceiling]), 0.05), label: name.split(",")[0] },
    description: `${name} of client ${client} by round`,
  });
  view.plot.append(element("path", { d: bandPath(rounds, floor, ceiling, view), fill: "var(--soft)", opacity: 0.18 }));
  view.plot.append(
    element("path", {
      d: linePath(asked, ys, view),
      fill: "none",
      stroke: colourOf(group.label),
      "stroke-width": 1,
      opacity: 0.6,
    }),
  );
  asked.forEach((round, i) => {
    if (Number.isFinite(ys[i]))
      view.plot.append(
        element("circle", {
          cx: view.sx(round),
          cy: view.sy(ys[i]),
          r: 3.4,
          stroke: colourOf(group.label),
          "stroke-width": 1.3,
          fill: run.selected[place(round, client)] ? colourOf(group.label) : "var(--page)",
        }),
      );
  });
  chart.append(
    element(
      "figcaption",
      {},
      "Dots: rounds in which the client was a candidate; filled where it was selected. The grey band is the range of all candidates.",
    ),
  );
}

function drawClient(run, { rounds, clients, client, back, group }) {
  const figure = byId("fig-client"),
    own = rounds.map((round) => back(round, client));
  const spread = (share) =>
    rounds.map((round) => {
      const all = [...run.returns.subarray(round * clients, (round + 1) * clients)]
        .filter(Number.isFinite)
        .sort((a, b) => a - b);
      return all[Math.round(share * (all.length - 1))];
    });
  const [low, high] = [spread(0.1), spread(0.9)];
  const view = frame(figure, {
    title: `Return of client ${client}`,
    height: 220,
    x: { domain: [0, run.rounds || 1], label: "round", whole: true },
    y: { domain: padded(extent([own, low, high])), label: "mean return" },
    description: `Mean return of client ${client} by round`,
  });
  view.plot.append(
    element("path", { d: bandPath(rounds, low, high, view), fill: "var(--soft)", opacity: 0.18 }),
    element("path", {
      d: linePath(rounds, own, view),
      fill: "none",
      stroke: colourOf(group.label),
      "stroke-width": 1.8,
    }),
  );
  if (run.rounds === 0)
    view.plot.append(element("circle", { cx: view.sx(0), cy: view.sy(own[0]), r: 4, fill: colourOf(group.label) }));
  figure.append(
    element("figcaption", {}, "Return per round; the grey band is the 10th-90th percentile of clients."),
  );
  explore(figure, view, {
    columns: rounds.length,
    start: [rounds.length - 1, 0],
    locate: (x) => [Math.round(((x - view.inner.left) / view.inner.width) * run.rounds), 0],
    mark: (column) => ({ x: view.sx(column) }),
    readout: (column) => `round ${column}: return ${format(own[column])}`,
  });
}

function quantileOfRound(run, values, round, share) {
  const all = [];
  for (let client = 0; client < run.numClients; client++) {
    const at = run.place[round * run.numClients + client];
    if (at >= 0 && Number.isFinite(values[at])) all.push(values[at]);
  }
  all.sort((a, b) => a - b);
  return all.length ? all[Math.round(share * (all.length - 1))] : NaN;
}
