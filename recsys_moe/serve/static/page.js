// The page asks the service as any client would and shows text as text: no markup from data, ever.
"use strict";

const find = (id) => document.getElementById(id);
let key = ""; // in memory only
let model = null; // what /model said
let asked = 0; // answers to older questions are dropped

/** An element of a class, with children; strings become text. */
function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

/** Put text into an element and show it; hide it when there is none. */
function say(id, text) {
  find(id).textContent = text;
  find(id).hidden = !text && id !== "status";
}

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
    throw new Refused(0, "the service does not answer");
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, answer.error ?? `status ${response.status}`);
  return answer;
}

/** Show what went wrong; where the key is missing or wrong, ask for it. */
function failed(error) {
  say("status", "");
  if (error.status === 401) {
    say("error", key ? "The service does not accept this API key." : "");
    key = "";
    find("key-form").hidden = false;
    find("key").focus();
  } else {
    say("error", `Not answered: ${error.message}.`);
  }
}

const percent = (part) => `${(100 * part).toFixed(1)} %`;
const signed = (value) => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(2)}`;
const hue = (expert) => String(Math.round(expert * 137.508) % 360); // neighbours differ most

function coloured(tag, name, expert) {
  const element = make(tag, name);
  element.style.setProperty("--hue", hue(expert));
  element.setAttribute("aria-hidden", "true");
  return element;
}

// -- the form

function option(value) {
  const element = make("option", "", String(value));
  element.value = value;
  return element;
}

function pick(user) {
  const button = make("button", "", String(user));
  button.type = "button";
  button.setAttribute("aria-label", `Recommend to user ${user}`);
  button.addEventListener("click", () => {
    find("user").value = user;
    recommend();
  });
  return button;
}

function showModel() {
  const { data, users, items, settings } = model;
  const sizes = `${users.toLocaleString("en")} users, ${items.toLocaleString("en")} items`;
  const experts = `${settings.num_experts} experts, router ${settings.router.name}`;
  find("facts").textContent = `${data}: ${sizes}; ${experts}; model ${model.model}`;
  const counts = [5, 10, 20, 50].filter((count) => count <= model.limits.max_k);
  find("k").replaceChildren(...(counts.length ? counts : [model.limits.max_k]).map(option));
  if (counts.includes(10)) find("k").value = 10;
  find("score").replaceChildren(...model.score_names.map(option));
  const binary = model.tasks.find((task) => task.kind === "binary");
  find("score").value = (binary ?? model.tasks[0]).name;
  find("picks").replaceChildren(...model.example_users.map(pick));
  find("together").hidden = model.rows_are_independent;
  find("ask").hidden = false;
  showLoad();
}

/** Another model took over: its tasks and limits may differ. Keep what was chosen where it is there. */
async function showNewModel() {
  const chosen = ["k", "score"].map((id) => [find(id), find(id).value]);
  model = await call("model");
  showModel();
  for (const [list, value] of chosen) {
    if ([...list.options].some((entry) => entry.value === value)) list.value = value;
  }
}

function showLoad() {
  const split = Object.values(model.metrics).find((metrics) => metrics?.routing);
  const tasks = Object.entries(split?.routing ?? {}).filter(([, routing]) => routing.load);
  find("load-tasks").replaceChildren(...tasks.map(([name, routing]) => loadOf(name, routing)));
  find("load").hidden = !tasks.length;
}

function loadOf(name, { load, experts_per_example: chosen }) {
  const top = Math.max(...load);
  const bars = load.map((part, expert) => {
    const fill = coloured("div", "", expert);
    fill.style.height = top ? `${(100 * part) / top}%` : "0";
    const number = make("b", "", make("span", "hidden", "Expert "), String(expert));
    const text = make("div", "", number, make("span", "hidden", ": "), make("br"), percent(part));
    return make("li", "", make("div", "bar", fill), text);
  });
  const idle = load.filter((part) => part === 0).length;
  const facts = `${chosen.toFixed(1)} experts per example, ${idle} of ${load.length} idle`;
  const head = make("div", "line", make("h3", "", name), make("span", "quiet", facts));
  return make("div", "task-load", head, make("ul", "bars", ...bars));
}

// -- the answer

/** One task of one item: its name, its value, a bar, and room for the experts. */
function taskOf(task, value) {
  const binary = task.kind === "binary";
  const text = binary ? percent(value) : value.toFixed(2);
  const low = binary ? 0 : task.low;
  const high = binary ? 1 : task.high;
  const element = make("div", "", make("div", "line", make("span", "", task.name), text));
  element.dataset.task = task.name;
  element.dataset.value = value;
  if (low !== null && high !== null) {
    const fill = make("div", "fill");
    const part = Math.min(1, Math.max(0, (value - low) / (high - low)));
    fill.style.width = `${100 * part}%`;
    element.append(make("div", "track", fill));
  }
  return element;
}

function itemOf(entry) {
  const title = make("h3", "", entry.title || `Item ${entry.item}`);
  const body = make("div", "", title);
  if (entry.title) body.append(make("p", "quiet", `item ${entry.item}`));
  const tasks = model.tasks.map((task) => taskOf(task, entry.scores[task.name]));
  body.append(make("div", "tasks", ...tasks));
  const element = make("li", "", make("span", "rank", String(entry.rank)), body);
  element.dataset.item = entry.item;
  return element;
}

function expertsOf(experts) {
  const parts = experts.map((expert) => {
    const part = coloured("div", "", expert.expert);
    part.style.flexGrow = Math.max(expert.share, 0.01);
    return part;
  });
  const names = experts.map((expert) => {
    const text = `expert ${expert.expert} ${percent(expert.share)} ${signed(expert.contribution)}`;
    return make("li", "", coloured("span", "dot", expert.expert), text);
  });
  const shares = make("div", "shares", ...parts);
  return [shares, make("ul", "experts", ...names)];
}

/** Fill in who spoke for each item, as many pairs at a time as the service allows. */
async function explain(user, entries, rows, number) {
  const most = model.limits.max_explain;
  for (let start = 0; start < entries.length; start += most) {
    const items = entries.slice(start, start + most).map((entry) => entry.item);
    const { pairs } = await call("explain", { users: items.map(() => user), items });
    if (number !== asked) return;
    pairs.forEach((pair, place) => {
      for (const element of rows[start + place].querySelectorAll("[data-task]")) {
        element.append(...expertsOf(pair.tasks[element.dataset.task].experts));
      }
    });
  }
}

async function recommend() {
  const user = find("user").value.trim();
  if (!user) return find("user").focus();
  const number = ++asked;
  const body = { users: [user], k: Number(find("k").value), score: find("score").value };
  say("error", "");
  say("status", "Asking \u2026");
  try {
    const answer = await call("recommend", { ...body, exclude_seen: find("seen").checked });
    if (number !== asked) return;
    if (answer.model !== model.model) await showNewModel();
    if (number !== asked) return;
    const [ranking] = answer.rankings;
    const rows = showRanking(user, ranking);
    await explain(user, ranking.items, rows, number);
    if (number === asked) say("status", `${rows.length} recommendations for user ${user}`);
  } catch (error) {
    if (number === asked) failed(error);
  }
}

function showRanking(user, ranking) {
  const nobody = `User ${user} was not in training: these are for nobody in particular.`;
  say("nobody", ranking.unseen_user ? nobody : "");
  const rows = ranking.items.map(itemOf);
  find("results-title").textContent = rows.length ? `For user ${user}` : "Nothing is left to show";
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

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = find("key").value.trim();
  start();
});
find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  recommend();
});
start();
