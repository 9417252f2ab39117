// The page asks the service as any client would.
import {
  becauseOf, button, ends, expertsOf, find, itemOf, lineOf, loadOf, metricsOf, option, profileOf,
  attributionsOf, say, shownColumns,
} from "./parts.js";
import { contextOf, known, leftOut, newUser, showFields } from "./people.js";

let key = ""; // in memory only
let model = null; // what /model said
let asked = 0; // answers to older questions are dropped
let last = null; // whom the last question was about
const where = []; // conditions on the items
const SEEN = 20; // positives shown of a user
const SIMILAR = 5; // similar items shown
const ATTRIBUTIONS = 6; // features, and history items, requested

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The JSON answer to a request; paths are relative, so a proxy may add a prefix. */
async function call(path, body) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, cache: "no-store", credentials: "omit" };
  if (body) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const response = await fetch(path, options).catch(() => {
    throw new Refused(0, "the service does not respond");
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, answer.error ?? `status ${response.status}`);
  return answer;
}

/** Show what went wrong; where the key is missing or wrong, ask for it. */
function failed(error) {
  say("status", "");
  if (error.status === 401) {
    say("error", key ? "The API key is wrong." : "");
    key = "";
    find("key-form").hidden = false;
    find("key").focus();
  } else {
    say("error", `Error: ${error.message}.`);
  }
}

// -- the form and what the model is

function pick(user) {
  return button(String(user), `Recommend to user ${user}`, () => {
    find("user").value = user;
    recommend(known());
  });
}

function showModel() {
  const { data, users, items, settings } = model;
  const sizes = `${users.toLocaleString("en")} users, ${items.toLocaleString("en")} items`;
  const experts = settings.router
    ? `${settings.num_experts} experts, router ${settings.router.name}` : settings.name;
  find("facts").textContent = `${data}: ${sizes}; ${experts}; model ${model.model}`;
  const counts = [5, 10, 20, 50].filter((count) => count <= model.limits.max_k);
  find("k").replaceChildren(...(counts.length ? counts : [model.limits.max_k]).map(option));
  if (counts.includes(10)) find("k").value = 10;
  find("score").replaceChildren(...model.score_names.map(option));
  const first = model.tasks.find((task) => task.has_positives);
  find("score").value = (first ?? model.tasks[0]).name;
  find("picks").replaceChildren(...model.example_users.map(pick));
  find("column").replaceChildren(...model.item_filters.map((filter) => option(filter.name)));
  const genres = model.item_filters.find((filter) => filter.values.length);
  if (genres) find("column").value = genres.name;
  showOperators();
  find("together").hidden = model.rows_are_independent;
  find("ranges").textContent = ranges();
  find("why").hidden = model.no_attributions !== null;
  find("asking").hidden = false;
  showFields(model);
  showFigures();
}

const plain = (value) => String(Number(value.toPrecision(4)));

/** What the bars of values in a unit mean. */
function ranges() {
  const words = model.tasks.flatMap((task) => {
    const [low, high] = ends(task);
    if (!task.is_numeric || low === null || high === null) return [];
    const why = task.low === null || task.high === null ? ", the range of its training labels" : "";
    return `The bar of ${task.name} spans ${plain(low)} to ${plain(high)}${why}.`;
  });
  return words.join(" ");
}

/** Another model took over, its tasks and limits may differ: keep what was chosen where it is. */
async function showNewModel() {
  const chosen = ["k", "score"].map((id) => [find(id), find(id).value]);
  model = await call("model");
  showModel();
  for (const [list, value] of chosen) {
    if ([...list.options].some((entry) => entry.value === value)) list.value = value;
  }
}

/** Metrics, the specialisation of experts, and their load. */
function showFigures() {
  const split = Object.values(model.metrics).find((metrics) => metrics?.tasks);
  const tasks = Object.entries(split?.tasks ?? {});
  const panels = tasks.map(([name, one]) => metricsOf(name, one, split.baselines?.[name]));
  find("metric-tasks").replaceChildren(...panels);
  find("quality").hidden = !tasks.length;
  const loads = Object.entries(split?.routing ?? {}).filter(([, routing]) => routing.load);
  find("load-tasks").replaceChildren(...loads.map(([name, routing]) => loadOf(name, routing)));
  find("load").hidden = !loads.length;
  const idle = model.experts.filter((expert) => expert.idle).map((expert) => expert.expert);
  const found = idle.length ? `Idle: ${idle.join(", ")}` : "No expert is idle";
  find("idle").textContent = loads.length ? `${found} (${model.idle_rule}).` : "";
  find("profiles").replaceChildren(...model.experts.map((one) => profileOf(model, one)));
}

// -- filters

const filterOf = () => model.item_filters.find((filter) => filter.name === find("column").value);

function showOperators() {
  const { operators, values, kind } = filterOf();
  find("operator").replaceChildren(...operators.map(option));
  find("values").replaceChildren(...values.map(option));
  find("value").inputMode = kind === "number" ? "decimal" : "text";
  find("value").value = "";
}

function showConditions() {
  const chips = where.map((condition, place) =>
    button(`${condition} \u00d7`, `Remove the filter ${condition}`, () => {
      where.splice(place, 1);
      showConditions();
      find("value").focus();
    })
  );
  find("conditions").replaceChildren(...chips);
  find("filter-count").textContent = where.length ? ` (${where.length})` : "";
  const who = last?.isNew ? last : known();
  if (who) recommend(who);
}

function addFilter() {
  const value = find("value").value.trim();
  if (!value) return find("value").focus();
  where.push(`${find("column").value}${find("operator").value}${value}`);
  find("value").value = "";
  showConditions();
}

/** What /recommend is asked, but for the user. */
function question() {
  const only = find("candidates").value.split(",").map((id) => id.trim()).filter(Boolean);
  return {
    k: Number(find("k").value),
    score: find("score").value,
    exclude_seen: find("seen").checked,
    where,
    columns: shownColumns(model),
    ...(only.length ? { candidates: only } : {}),
    ...contextOf(),
  };
}

// -- the answer

/** Fill in the explanation of each item, as many pairs at a time as the service allows. */
async function explain({ user, context }, entries, rows, number) {
  const most = model.limits.max_explain;
  for (let start = 0; start < entries.length; start += most) {
    const items = entries.slice(start, start + most).map((entry) => entry.item);
    const attributions = model.no_attributions === null ? ATTRIBUTIONS : 0;
    const users = items.map(() => user);
    const { pairs } = await call("explain", { users, items, attributions, context });
    if (number !== asked) return;
    pairs.forEach((pair, place) => showAttributions(rows[start + place], pair));
  }
}

/** Under an item: positives that raised its score; under each task, experts and attributions. */
function showAttributions(row, { tasks }) {
  for (const element of row.querySelectorAll("[data-task]")) {
    const { experts, attributions } = tasks[element.dataset.task];
    element.append(expertsOf(model, experts));
    if (attributions.length) element.append(attributionsOf(attributions));
  }
  const ranked = find("score").value.split("*")[0];
  const because = row.querySelector(".because");
  because.textContent = becauseOf(tasks[ranked].attributions);
  because.hidden = !because.textContent;
}

/** Show, or hide again, the items nearest to one. */
async function similar(item, ask, near) {
  const list = near.querySelector("ul");
  if (!list.childElementCount) {
    const body = { item, k: Math.min(SIMILAR, model.limits.max_k), columns: shownColumns(model) };
    try {
      const { items } = await call("similar", body);
      list.replaceChildren(...items.map((one) => lineOf(one, one.scores.cosine.toFixed(2))));
    } catch (error) {
      return failed(error);
    }
  }
  near.hidden = !near.hidden;
  ask.setAttribute("aria-expanded", String(!near.hidden));
}

async function showPositives(user, number) {
  const body = { user, k: Math.min(SEEN, model.limits.max_k), columns: shownColumns(model) };
  const { total, items } = await call("seen", body);
  if (number !== asked) return;
  const many = `${total.toLocaleString("en")} ${total === 1 ? "item" : "items"}`;
  const some = total > items.length ? `; the ${items.length} most popular` : "";
  find("positives-title").textContent = `User ${user} interacted with ${many} in training${some}`;
  find("positives-items").replaceChildren(...items.map((item) => lineOf(item)));
  find("positives").hidden = !total;
}

/** `who`: a user of people.js; null if the field is empty. */
async function recommend(who) {
  if (!who) return find("user").focus();
  last = who;
  const { user, name, isNew } = who;
  const number = ++asked;
  say("error", "");
  say("status", "Loading \u2026");
  try {
    const asking = question();
    const answer = await call("recommend", { users: [user], ...asking });
    if (number !== asked) return;
    if (answer.model !== model.model) await showNewModel();
    if (number !== asked) return;
    const [ranking] = answer.rankings;
    const rows = showRanking(who, ranking);
    find("positives").hidden = true;
    if (!isNew) await showPositives(user, number);
    await explain({ user, context: asking.context ?? {} }, ranking.items, rows, number);
    if (number === asked) say("status", `${rows.length} recommendations for ${name}`);
  } catch (error) {
    if (number === asked) failed(error);
  }
}

function showRanking({ user, name, isNew }, ranking) {
  const unknown = `User ${user} is unknown: these recommendations are non-personalised.`;
  const notices = [!isNew && ranking.unseen_user ? unknown : "", leftOut(ranking.unused)];
  say("notice", notices.filter(Boolean).join(" "));
  const rows = ranking.items.map((entry) =>
    itemOf(model, entry, (ask, near) => similar(entry.item, ask, near))
  );
  find("results-title").textContent = rows.length ? `For ${name}` : "No items left";
  find("items").replaceChildren(...rows);
  find("results").hidden = false;
  return rows;
}

async function start() {
  say("error", "");
  try {
    model = await call("model");
  } catch (error) {
    return failed(error);
  }
  find("key-form").hidden = true;
  find("key").value = "";
  showModel();
  find("user").focus();
}

function onSubmit(id, action) {
  find(id).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

onSubmit("ask", () => recommend(known()));
onSubmit("cold_user", () => (newUser() ? recommend(newUser()) : find("history").focus()));
onSubmit("filter", addFilter);
onSubmit("key-form", () => {
  key = find("key").value.trim();
  start();
});
find("column").addEventListener("change", showOperators);
start();
