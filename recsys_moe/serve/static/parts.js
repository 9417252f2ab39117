// What the page is made of: elements from answers. Strings become text, never markup.

export const find = (id) => document.getElementById(id);

/** An element of a class, with children; strings become text. */
export function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

/** Put text into an element and show it; hide it when there is none. */
export function say(id, text) {
  find(id).textContent = text;
  find(id).hidden = !text && id !== "status";
}

export function button(text, label, action) {
  const element = make("button", "", text);
  element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", () => action(element));
  return element;
}

export function option(value) {
  const element = make("option", "", String(value));
  element.value = value;
  return element;
}

export const percent = (part) => `${(100 * part).toFixed(1)} %`;
const signed = (value) => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(2)}`;
const times = (lift) => `${lift.toFixed(1)}\u00d7`;
const short = (text) => (text.length > 80 ? `${text.slice(0, 80)}\u2026` : text);
const titleOf = (item) => item.title || `Item ${item.item}`;
const COLOURS = 16; // in page.css; then they come again with stripes

function coloured(tag, name, expert) {
  const element = make(tag, expert < COLOURS ? name : `${name} striped`);
  element.style.setProperty("--expert", `var(--e${expert % COLOURS})`);
  element.setAttribute("aria-hidden", "true");
  return element;
}

/** Columns that the page shows beside a title: few, so that a wide table stays readable. */
export const shownColumns = (model) =>
  model.item_columns.filter((name) => name !== "item" && name !== "title").slice(0, 4);

/** `1977 - Action, Sci-Fi - item 50`; a year that the title has is not said again. */
function about(item) {
  const parts = Object.entries(item.columns).map(([name, value]) => {
    if (value === null || (name === "year" && titleOf(item).includes(value))) return "";
    const text = short(String(value).split("|").join(", "));
    const named = typeof value === "number" && name !== "year";
    return named ? `${name.replaceAll("_", " ")} ${text}` : text;
  });
  if (item.title) parts.push(`item ${item.item}`);
  return parts.filter(Boolean).join(" \u00b7 ");
}

/** An item in one line of a list: title, what it is, and a number where there is one. */
export function lineOf(item, text = "") {
  const rest = make("span", "quiet", about(item));
  const words = make("span", "", make("b", "", titleOf(item)), " ", rest);
  return make("li", "line", words, make("span", "number", text));
}

/** Ends of the bar of a task: the valid labels, or those that training had. */
export const ends = (task) =>
  task.is_numeric ? [task.low ?? task.seen_low, task.high ?? task.seen_high] : [0, 1];

/** One task of one item: its name, its value, a bar, and room for the experts. */
function taskOf(task, value) {
  const text = task.is_probability ? percent(value) : value.toFixed(2);
  const element = make("div", "", make("div", "line", make("span", "", task.name), text));
  element.dataset.task = task.name;
  element.dataset.value = value;
  const [low, high] = ends(task);
  if (low !== null && high !== null && low < high) {
    const fill = make("div", "fill");
    const part = Math.min(1, Math.max(0, (value - low) / (high - low)));
    fill.style.width = `${100 * part}%`;
    element.append(make("div", "track", fill));
  }
  return element;
}

/** A recommended item; `similar` fills what is under it when asked. */
export function itemOf(model, entry, similar) {
  const list = make("ul", "lines");
  const words = make("p", "quiet", "Most similar items, by cosine of the embeddings:");
  const near = make("div", "near", words, list);
  near.hidden = true;
  const label = `Items similar to ${titleOf(entry)}`;
  const ask = button("Similar items", label, () => similar(ask, near));
  ask.classList.add("plain");
  ask.setAttribute("aria-expanded", "false");
  const head = make("div", "line", make("h3", "", titleOf(entry)), ask);
  const ranked = model.tasks.filter((task) => task.name in entry.scores);
  const tasks = ranked.map((task) => taskOf(task, entry.scores[task.name]));
  const because = make("p", "because");
  because.hidden = true;
  const body = make("div", "", head, make("p", "quiet", about(entry)), because, near);
  body.append(make("div", "tasks", ...tasks));
  const element = make("li", "", make("span", "rank", String(entry.rank)), body);
  element.dataset.item = entry.item;
  return element;
}

/** `year 1996`, but `Drama`: a number needs its column's name. */
const wordOf = (column, value) =>
  /^[-.\d]+$/.test(value) ? `${column.replaceAll("_", " ")} ${value}` : short(value);

/** The specialisation of an expert in a few words. */
function specialisation({ traits, items }) {
  const named = traits.slice(0, 2).map(({ column, value }) => wordOf(column, value));
  if (named.length) return named.join(", ");
  if (items.length) return `items like ${short(titleOf(items[0]))}`;
  return "no clear specialisation";
}

/** The contribution of each selected expert. */
export function expertsOf(model, experts) {
  const lines = experts.map(({ expert, contribution }) => {
    const words = `expert ${expert}: ${specialisation(model.experts[expert])}`;
    const name = make("span", "", coloured("span", "dot", expert), words);
    return make("li", "line", name, make("span", "number", signed(contribution)));
  });
  return make("ul", "experts", ...lines);
}

const NAMED = 3; // positives named under a title
const LINES = 6; // attributions under a prediction, those that moved it most

/** The attributions of a prediction to features, the history, the ids. */
export function attributionsOf(attributions) {
  const others = attributions.filter(({ kind }) => kind !== "item").slice(0, LINES);
  const lines = others.map(({ words, contribution }) =>
    make("li", "line", make("span", "", short(words)), make("span", "number", signed(contribution)))
  );
  return make("ul", "experts attributions", ...lines);
}

/** `Because of A (rated 5); B`: history items that raised the score, if any. */
export function becauseOf(attributions) {
  const items = attributions.filter(({ kind, contribution }) => kind === "item" && contribution > 0);
  const named = items.slice(0, NAMED).map(({ title, value, rating }) => {
    const rated = rating === null ? "" : ` (rated ${Number(rating.toFixed(2))})`;
    return `${short(title || `Item ${value}`)}${rated}`;
  });
  return named.length ? `Because of ${named.join("; ")}` : "";
}

/** One expert: its colour, its state, its specialisation. */
export function profileOf(model, profile) {
  const { expert, idle, traits, items } = profile;
  const without = model.tasks.filter((task) => task.spared.includes(expert));
  const tasks = without.map((task) => task.name).join(", ");
  const state = idle ? "idle" : tasks && `rarely for ${tasks}`;
  const head = make("h3", "", coloured("span", "dot", expert), `Expert ${expert}`);
  if (state) head.append(" ", make("span", idle ? "tag warn" : "tag", state));
  const element = make("li", "", head);
  const most = traits.map(
    ({ column, value, lift }) => `${wordOf(column, value)} ${times(lift)}`
  );
  if (most.length) element.append(make("p", "", most.join(", ")));
  const titles = items.map(titleOf).map(short).join("; ");
  if (titles) element.append(make("p", "quiet", `such as ${titles}`));
  if (!most.length && !titles) element.append(make("p", "", specialisation(profile)));
  return element;
}

const MEANINGS = {
  auc: "0.5 is random, 1 is perfect",
  bce: "log loss; lower is better",
  ece: "calibration error; lower is better",
  ece_calibrated: "the same after calibration",
  rmse: "root mean squared error; lower is better",
  mae: "mean absolute error; lower is better",
  mse: "mean squared error; lower is better",
  d2: "share of the deviance explained; 0 is the mean, 1 is perfect",
  deviance: "error in proportion to the mean; lower is better",
  concordance: "pairs in the right order; 0.5 is random, 1 is perfect",
  pairwise: "loss of pairs of a positive and a negative; lower is better",
  macro_auc: "mean over the classes; 0.5 is random, 1 is perfect",
  accuracy: "share of rows whose likeliest class or level is right",
  log_loss: "lower is better",
};
const SHORT = /^(auc|bce|ece|mse|rmse|mae|d2)$/;

/** Values of a metric without a model: `; baseline: popularity 0.627`. */
function baseline(baselines, key) {
  const known = Object.entries(baselines).filter(([, one]) => typeof one[key] === "number");
  const words = known.map(([name, one]) => `${name.replaceAll("_", " ")} ${one[key].toFixed(3)}`);
  return words.length ? `; baseline: ${words.join(", ")}` : "";
}

/** The metrics of one task. */
export function metricsOf(name, metrics, baselines = {}) {
  const tiles = Object.entries(MEANINGS)
    .filter(([key]) => typeof metrics[key] === "number")
    .map(([key, meaning]) => {
      const words = key.split("_").map((word) => (SHORT.test(word) ? word.toUpperCase() : word));
      const label = words.join(" ");
      const value = make("dd", "value", metrics[key].toFixed(3));
      const text = `${meaning}${baseline(baselines, key)}`;
      return make("div", "", make("dt", "", label), value, make("dd", "quiet", text));
    });
  const rows = `${(metrics.rows ?? 0).toLocaleString("en")} labelled rows`;
  const head = make("div", "line", make("h3", "", name), make("span", "quiet", rows));
  return make("div", "panel", head, make("dl", "tiles", ...tiles));
}

/** Bars of the load of every expert for one task. */
export function loadOf(name, { load, experts_per_example: chosen }) {
  const top = Math.max(...load);
  const bars = load.map((part, expert) => {
    const fill = coloured("div", "", expert);
    fill.style.height = top ? `${(100 * part) / top}%` : "0";
    const number = make("b", "", make("span", "hidden", "Expert "), String(expert));
    const text = make("div", "", number, make("span", "hidden", ": "), make("br"), percent(part));
    return make("li", "", make("div", "bar", fill), text);
  });
  const facts = `${chosen.toFixed(1)} of ${load.length} experts per example`;
  const head = make("div", "line", make("h3", "", name), make("span", "quiet", facts));
  return make("div", "panel task-load", head, make("ul", "bars", ...bars));
}
