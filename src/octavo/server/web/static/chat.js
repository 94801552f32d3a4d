// The chat page: one conversation, kept in this tab, answered by /v1/chat/completions.
import { $, api, el, memory } from "./common.js";
import { copyText, render } from "./markdown.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
const SETTINGS = "octavo-settings";
const MODEL = "octavo-model";

const turns = []; // {role, content}, as the API takes them
const fields = $("fields").elements;
let running = null; // AbortController of the answer that is being written

// ---- settings

function loadSettings() {
  let saved = {};
  try { saved = JSON.parse(memory.get(SETTINGS)) ?? {}; } catch { /* somebody else's */ }
  for (const name of ["system", ...NUMBERS]) fields[name].value = saved[name] ?? "";
}

function saveSettings() {
  const filled = ["system", ...NUMBERS].filter((name) => fields[name].value);
  memory.set(SETTINGS, JSON.stringify(Object.fromEntries(filled.map((name) => [name, fields[name].value]))));
}

function showSettings(open) {
  $("settings").hidden = !open;
  $("toggle").setAttribute("aria-expanded", open);
  (open ? fields.system : $("prompt")).focus();
}

function requestBody() {
  const system = fields.system.value.trim();
  const body = {
    model: $("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const name of NUMBERS) if (fields[name].value) body[name] = fields[name].valueAsNumber;
  return body;
}

async function loadModels() {
  const { data } = await (await api("v1/models")).json();
  $("model").replaceChildren(...data.map(({ id }) => el("option", { value: id }, id)));
  const wanted = memory.get(MODEL);
  if (data.some(({ id }) => id === wanted)) $("model").value = wanted;
}

// ---- the conversation on the page

function addTurn(role, label) {
  $("empty").hidden = true;
  const text = el("div", { className: "text" });
  const foot = el("div", { className: "foot" });
  const turn = el("article", { className: `turn ${role}`, "aria-label": label }, text, foot);
  $("log").append(turn);
  return { turn, text, foot };
}

function showError(error) {
  $("log").append(el("p", { className: "error", role: "alert" }, error.message));
  scroll(true);
}

/** Stay at the end, unless the reader has gone up. */
function scroll(force = false) {
  const main = $("main");
  if (force || main.scrollHeight - main.scrollTop - main.clientHeight < 120) main.scrollTop = main.scrollHeight;
}

function footButtons(view, content) {
  const copy = el("button", { type: "button", className: "quiet" }, "Copy");
  copy.addEventListener("click", () => copyText(content, copy));
  const again = el("button", { type: "button", className: "quiet again" }, "Try again");
  again.addEventListener("click", () => {
    turns.pop();
    view.turn.remove();
    answer();
  });
  view.foot.append(copy, again);
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("log").setAttribute("aria-busy", on);
}

// ---- one answer

/** Server-sent events of a response, as objects. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

class Answer {
  constructor() {
    this.started = performance.now();
    this.first = this.last = this.usage = this.reason = null;
    this.content = "";
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    const [choice] = event.choices;
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (!choice?.delta.content) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.content += choice.delta.content;
  }

  stats() {
    const told = [];
    const { first, last, usage } = this;
    if (first !== null) told.push(`first token ${duration(first - this.started)}`);
    const tokens = usage?.completion_tokens ?? 0;
    if (tokens > 1 && last > first) told.push(`${(((tokens - 1) * 1000) / (last - first)).toFixed(1)} tok/s`);
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      told.push(`${tokens} tokens`, `prompt ${usage.prompt_tokens}, ${cached} of it cached`);
    }
    if (this.reason === "length") told.push("cut off: no room for more tokens");
    if (this.reason === "stopped") told.push("stopped");
    return told.map((each) => el("span", {}, each));
  }
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

async function answer() {
  document.querySelectorAll(".again").forEach((button) => button.remove());
  const view = addTurn("assistant", "Answer");
  view.turn.classList.add("busy");
  const control = (running = new AbortController());
  busy(true);
  scroll(true);
  const got = new Answer();
  let drawn = 0;
  const draw = () => { drawn = 0; render(view.text, got.content); scroll(); };
  try {
    const body = JSON.stringify(requestBody());
    const headers = { "content-type": "application/json" };
    const response = await api("v1/chat/completions", { method: "POST", headers, body, signal: control.signal });
    for await (const event of events(response)) {
      got.take(event);
      drawn ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (control.signal.aborted) got.reason = "stopped";
    else showError(error);
  }
  cancelAnimationFrame(drawn);
  finish(view, got, control);
}

/** Nothing more comes of an answer. It may belong to a conversation that has been left. */
function finish(view, got, control) {
  view.turn.classList.remove("busy");
  render(view.text, got.content);
  if (running !== control) return;
  running = null;
  busy(false);
  if (got.content || (got.reason && got.reason !== "stopped")) {
    turns.push({ role: "assistant", content: got.content });
    view.foot.append(...got.stats());
    footButtons(view, got.content);
  } else {
    view.turn.remove();
    const { content } = turns.pop(); // was not answered: give it back to be sent again
    $("prompt").value ||= content;
    $("log").querySelector(".turn:last-of-type").remove();
  }
  scroll();
}

function send() {
  const content = $("prompt").value.trim();
  if (!content || running) return;
  $("log").querySelectorAll(".error").forEach((each) => each.remove());
  turns.push({ role: "user", content });
  addTurn("user", "You").text.textContent = content;
  $("prompt").value = "";
  fit();
  answer();
}

function startOver() {
  running?.abort();
  running = null;
  busy(false);
  turns.length = 0;
  $("log").replaceChildren();
  $("empty").hidden = false;
  $("prompt").focus();
}

/** The message's box grows with it. */
function fit() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

// ---- events

$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("stop").addEventListener("click", () => { running?.abort(); $("prompt").focus(); });
$("new").addEventListener("click", startOver);
$("toggle").addEventListener("click", () => showSettings($("settings").hidden));
$("close").addEventListener("click", () => showSettings(false));
$("model").addEventListener("change", () => memory.set(MODEL, $("model").value));
$("fields").addEventListener("input", saveSettings);
$("fields").addEventListener("submit", (event) => event.preventDefault());
$("fields").addEventListener("reset", () => setTimeout(saveSettings));
$("prompt").addEventListener("input", fit);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
  else if (event.key === "Escape" && !$("settings").hidden) showSettings(false);
  else if (event.altKey && event.code === "KeyN") startOver();
  else if (event.altKey && event.code === "KeyS") showSettings($("settings").hidden);
  else return;
  event.preventDefault();
});

loadSettings();
fit();
loadModels().catch(showError);
