// The dashboard: asks the server once a second, while somebody looks, and draws what it says.
import { $, api, el } from "./common.js";

const POLL_MS = 1000;
const KEPT_MS = 120_000;
const history = new Map(); // model -> [{at, output, limit, running, waiting}]

const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`);

function seconds(value) {
  if (value < 0.01) return `${(1000 * value).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

function span(value) {
  const [days, hours, minutes] = [value / 86400, (value / 3600) % 24, (value / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(value)} s`;
}

const set = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

// ---- charts and lists

function path(points, top, close) {
  const spots = points.map(([x, y]) => `${x.toFixed(2)},${(40 - (38 * y) / top).toFixed(2)}`);
  if (!spots.length) return "";
  return close ? `M${points[0][0]},40L${spots.join("L")}L${points.at(-1)[0]},40Z` : `M${spots.join("L")}`;
}

/** lines: lists of [x, y] with x from 0 to 100; the first one is filled. limit: a dashed height. */
function chart(id, lines, top, limit) {
  const make = (name, kind, properties) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    element.setAttribute("class", kind);
    for (const [key, value] of Object.entries(properties)) element.setAttribute(key, value);
    return element;
  };
  const parts = [make("path", "area", { d: path(lines[0], top, true) })];
  lines.forEach((line, index) => parts.push(make("path", index ? "second" : "line", { d: path(line, top) })));
  const y = limit ? 40 - (38 * limit) / top : -1;
  if (y >= 0) parts.push(make("line", "limit", { x1: 0, x2: 100, y1: y, y2: y }));
  $(id).replaceChildren(...parts);
}

/** parts: [label, share of the bar, what to say, colour]. */
function bar(id, parts) {
  const pieces = parts.map(([, share, , colour]) => {
    const piece = el("i", { className: colour });
    piece.style.width = `${100 * share}%`;
    return piece;
  });
  $(`${id}-bar`).replaceChildren(...pieces);
  $(`${id}-list`).replaceChildren(...parts.flatMap(([label, , told, colour]) => [
    el("i", { className: colour }), el("dt", {}, label), el("dd", {}, told)]));
}

const list = (id, rows) => $(id).replaceChildren(
  ...rows.map(([label, told]) => el("div", {}, el("dt", {}, label), el("dd", {}, told))));

// ---- one model

function remember(model) {
  const now = Date.now();
  const kept = (history.get(model.model) ?? []).filter(({ at }) => now - at < KEPT_MS);
  kept.push({
    at: now, output: model.output_tok_s ?? 0, limit: model.limit_tok_s, running: model.running, waiting: model.waiting,
  });
  history.set(model.model, kept);
}

function drawCharts(model) {
  const kept = history.get(model.model);
  const line = (name) => kept.map((each) => [100 - (100 * (Date.now() - each.at)) / KEPT_MS, each[name]]);
  const most = (...names) => Math.max(...kept.flatMap((each) => names.map((name) => each[name] ?? 0)));
  const fastest = most("output", "limit") || 1;
  chart("output-chart", [line("output")], fastest, model.limit_tok_s);
  set("output-top", `top ${whole(fastest)} tok/s`);
  const longest = most("running", "waiting") || 1;
  chart("requests-chart", [line("running"), line("waiting")], longest);
  set("requests-top", `top ${longest}`);
}

function drawSpeed(model) {
  set("output", model.output_tok_s === null ? "–" : model.output_tok_s.toFixed(model.output_tok_s < 99.5 ? 1 : 0));
  const limit = model.limit_tok_s === null ? "" : `the memory limit is ${whole(model.limit_tok_s)} tok/s for what runs`;
  const reached = model.limit_fraction === null ? "" : `steps run at ${percent(model.limit_fraction)} of the memory limit`;
  set("limit", model.running && reached ? `${reached} (${whole(model.limit_tok_s)} tok/s)` : limit);
  set("running", whole(model.running));
  set("waiting", whole(model.waiting));
  set("places", `${model.max_num_seqs} can run together`);
}

function drawCache(model) {
  const { used, cached, free, tokens, pinned, loading } = model.pages;
  const all = used + cached + free || 1;
  set("pages", percent(used / all));
  const notes = [`${whole(used + cached + free)} pages of ${tokens} tokens`];
  if (used) notes.push(`${percent(model.slot_utilization)} of the used room is filled`);
  if (pinned) notes.push(`${whole(pinned)} pinned`);
  if (loading) notes.push(`${whole(loading)} on their way from disk`);
  set("slots", notes.join("; "));
  bar("pages", [["used by requests", used / all, whole(used), "c0"],
    ["cached for the next", cached / all, whole(cached), "c1"], ["free", free / all, whole(free), "c3"]]);
  set("hits", model.queried_tokens ? percent(model.hit_tokens / model.queried_tokens) : "–");
  set("hit-tokens", `${whole(model.hit_tokens)} of ${whole(model.queried_tokens)} tokens since the start`);
  const about = {
    off: "caching is off", short: "rest shorter than a page", logprobs: "prompt_logprobs asked for", salt: "other cache_salt",
    adapter: "other adapter", evicted: "was evicted", differs: "prompt differs", new: "never seen",
  };
  list("misses", Object.entries(model.misses).map(([why, count]) => [`not found: ${about[why] ?? why}`, whole(count)]));
}

function drawTimes(model) {
  const rows = [
    ["first token", model.latency.first_token], ["between tokens", model.latency.inter_token],
    ["in the queue", model.latency.queue], ["whole answer", model.latency.end_to_end],
  ];
  $("latency").replaceChildren(...rows.map(([label, ranks]) => el("tr", {}, el("th", { scope: "row" }, label),
    ...["p50", "p90", "p99"].map((rank) => el("td", {}, ranks ? seconds(ranks[rank]) : "–")))));
  const shares = model.step_shares;
  set("model-share", shares ? percent(shares.run) : "–");
  set("steps", `${whole(model.steps)} steps since the start; shares of the last seconds`);
  bar("steps", [["model", "run"], ["sampling", "sample"], ["scheduling", "schedule"], ["results", "commit"]].map(
    ([label, name], index) => [label, shares?.[name] ?? 0, shares ? percent(shares[name]) : "–", `c${index}`]));
}

function drawTotals(model) {
  const ends = Object.entries(model.finished).map(([why, count]) => [`ended: ${why}`, whole(count)]);
  list("totals", [
    ["tokens generated", whole(model.generated_tokens)], ["prompt tokens", whole(model.prompt_tokens)],
    ["preemptions", whole(model.preemptions)], ["of them swapped", whole(model.swaps)],
    ["refused: queue full", whole(model.refused)], ...ends,
  ]);
}

// ---- all of it

function draw(stats) {
  const names = stats.models.map(({ model }) => model);
  const chosen = $("model").value || names[0];
  if ([...$("model").options].map(({ value }) => value).join() !== names.join()) {
    $("model").replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    $("model").value = names.includes(chosen) ? chosen : names[0];
  }
  const { counts, ...now } = stats.models.find((each) => each.model === $("model").value);
  const told = [`octavo ${stats.version}`, `up ${span(stats.uptime_s)}`, `model ${now.state}`,
    `${stats.http_active} HTTP ${stats.http_active === 1 ? "request" : "requests"} under way`];
  if (stats.problem) told.push(stats.problem);
  set("state", told.join(" · "));
  stats.models.forEach(remember);
  for (const step of [drawSpeed, drawCharts, drawCache, drawTimes, drawTotals]) step({ ...now, ...counts });
}

async function poll() {
  try {
    draw(await (await api("dashboard/stats")).json());
    $("problem").hidden = true;
  } catch (error) {
    $("problem").hidden = false;
    set("problem", error instanceof TypeError ? "The server cannot be reached; trying again." : `${error.message}.`);
  }
}

async function run() {
  for (;;) {
    if (document.visibilityState === "visible") await poll();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

$("model").addEventListener("change", poll);
run();
