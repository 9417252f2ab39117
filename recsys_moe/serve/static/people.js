// Whom to recommend to: a known user by id, or a new user by features and history; and the context.
import { find, make, option } from "./parts.js";

/** The user by id; null if the field is empty. */
export function known() {
  const user = find("user").value.trim();
  return user ? { user, name: `user ${user}`, isNew: false } : null;
}

/** `50, 172=5` -> { 50: null, 172: 5 }, as `--history` reads it; a list where nothing is rated. */
function historyOf(text) {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  const pairs = parts.map((part) => {
    const [, item, rating] = part.match(/^(.+)=([-+]?[\d.]+(?:e[-+]?\d+)?)$/i) ?? [];
    return item ? [item.trim(), Number(rating)] : [part, null];
  });
  if (pairs.every(([, rating]) => rating === null)) return parts;
  return Object.fromEntries(pairs.reverse()); // of duplicate items the first counts
}

/** The fields that are filled in, by name. */
function filledOf(id) {
  const fields = [...find(id).querySelectorAll("input")].filter((field) => field.value.trim());
  return Object.fromEntries(fields.map((field) => [field.name, field.value.trim()]));
}

/** The context, for requests; nothing if all fields are empty. */
export function contextOf() {
  const context = filledOf("context");
  return Object.keys(context).length ? { context } : {};
}

/** The new user; null if all fields are empty. */
export function newUser() {
  const features = filledOf("traits");
  const history = historyOf(find("history").value);
  if (!Object.keys(features).length && !Object.keys(history).length) return null;
  return { user: { features, history }, name: "new user", isNew: true };
}

function fieldOf(prefix, { name, kind, values }, place) {
  const label = make("label", "", name.replaceAll("_", " "));
  const field = make("input");
  Object.assign(field, { id: `${prefix}-${place}`, name, maxLength: 512, autocomplete: "off" });
  field.inputMode = kind === "numeric" ? "decimal" : "text";
  if (kind === "time") field.placeholder = "2026-01-31 13:05 (UTC)";
  label.htmlFor = field.id;
  const list = make("datalist", "", ...values.map(option));
  list.id = `${field.id}-values`;
  field.setAttribute("list", list.id);
  return make("div", "", label, field, list);
}

/** The fields of a new user and of the context that this model knows; none for a model of ids. */
export function showFields(model) {
  const fields = (prefix, features) => features.map((one, place) => fieldOf(prefix, one, place));
  find("traits").replaceChildren(...fields("trait", model.user_features));
  find("context").replaceChildren(...fields("context", model.context_features));
  find("context").hidden = !model.context_features.length;
  find("history-field").hidden = !model.knows_histories;
  find("cold_user").hidden = !model.knows_histories && !model.user_features.length;
}

/** A sentence about what the model ignored of a new user; empty if it used all. */
export function leftOut(unused) {
  const parts = Object.entries(unused?.categories ?? {}).map(
    ([name, values]) => `${name} ${values.join(", ")}`
  );
  const items = unused?.items ?? [];
  if (items.length) parts.push(`items ${items.slice(0, 5).join(", ")}`);
  if (items.length > 5) parts[parts.length - 1] += ` and ${items.length - 5} more`;
  return parts.length ? `Unknown in training and ignored: ${parts.join("; ")}.` : "";
}
