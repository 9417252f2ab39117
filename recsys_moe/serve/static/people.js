// Whom to recommend to: a user by id, or somebody new by what is told of them.
import { find, make, option } from "./parts.js";

/** By id; null where none is typed. */
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
  return Object.fromEntries(pairs.reverse()); // of an item that comes again the first counts
}

/** Somebody new; null where nothing is told. */
export function told() {
  const fields = [...find("traits").querySelectorAll("input")];
  const filled = fields.filter((field) => field.value.trim());
  const features = Object.fromEntries(filled.map((field) => [field.name, field.value.trim()]));
  const history = historyOf(find("history").value);
  if (!filled.length && !Object.keys(history).length) return null;
  return { user: { features, history }, name: "somebody new", isNew: true };
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

/** Fields for what this model can be told of somebody new; none for a model of ids. */
export function showFields(model) {
  find("traits").replaceChildren(...model.user_features.map(traitOf));
  find("watched-before").hidden = !model.knows_histories;
  find("cold_user").hidden = !model.knows_histories && !model.user_features.length;
}

/** What of somebody new the model could not use, in a sentence; empty where it used all. */
export function leftOut(unused) {
  const parts = Object.entries(unused?.categories ?? {}).map(
    ([name, values]) => `${name} ${values.join(", ")}`
  );
  const items = unused?.items ?? [];
  if (items.length) parts.push(`watched ${items.slice(0, 5).join(", ")}`);
  if (items.length > 5) parts[parts.length - 1] += ` and ${items.length - 5} more`;
  return parts.length ? `Training has not seen, and this leaves out: ${parts.join("; ")}.` : "";
}
