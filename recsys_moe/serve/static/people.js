// Whom to recommend to: a known user by id, or a new user by features and history.
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

/** The new user; null if all fields are empty. */
export function newUser() {
  const fields = [...find("traits").querySelectorAll("input")];
  const filled = fields.filter((field) => field.value.trim());
  const features = Object.fromEntries(filled.map((field) => [field.name, field.value.trim()]));
  const history = historyOf(find("history").value);
  if (!filled.length && !Object.keys(history).length) return null;
  return { user: { features, history }, name: "new user", isNew: true };
}

function traitOf({ name, kind, values }, place) {
  const label = make("label", "", name.replaceAll("_", " "));
  const field = make("input");
  Object.assign(field, { id: `trait-${place}`, name, maxLength: 512, autocomplete: "off" });
  field.inputMode = kind === "numeric" ? "decimal" : "text";
  label.htmlFor = field.id;
  const list = make("datalist", "", ...values.map(option));
  list.id = `${field.id}-values`;
  field.setAttribute("list", list.id);
  return make("div", "", label, field, list);
}

/** The fields of a new user that this model knows; none for a model of ids. */
export function showFields(model) {
  find("traits").replaceChildren(...model.user_features.map(traitOf));
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
