// The Markdown that models write most, into elements. Everything is set as text, so nothing in it can become markup.
import { el } from "./common.js";

/** Show text in a container. Blocks that have not changed since the last call stay as they are. */
export function render(container, text) {
  const found = blocks(text);
  found.forEach((block, index) => {
    const old = container.children[index];
    const mark = JSON.stringify(block);
    if (old?.mark === mark) return;
    const made = element(block);
    made.mark = mark;
    if (old) old.replaceWith(made);
    else container.append(made);
  });
  while (container.children.length > found.length) container.lastChild.remove();
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const STARTS = [
  ["head", /^#{1,6} +(.*)$/],
  ["rule", /^ {0,3}(?:-{3,}|\*{3,}|_{3,}) *$/],
  ["quote", /^> ?(.*)$/],
  ["bullet", /^ *[-*+] +(.*)$/],
  ["number", /^ *(\d{1,9})[.)] +(.*)$/],
];

/** Lines into blocks: {kind, lines, ...}. */
function blocks(text) {
  const result = [];
  let open = null; // a block that further lines may belong to
  let fence = "";
  for (const line of text.split("\n")) {
    if (fence) {
      if (line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "")) [fence, open] = ["", null];
      else open.lines.push(line);
      continue;
    }
    const code = FENCE.exec(line);
    if (code) {
      fence = code[1];
      result.push((open = { kind: "code", language: code[2], lines: [] }));
      continue;
    }
    if (!line.trim()) {
      if (open?.kind !== "bullet" && open?.kind !== "number") open = null;
      continue;
    }
    open = take(result, open, line);
  }
  return result;
}

function take(result, open, line) {
  for (const [kind, pattern] of STARTS) {
    const match = pattern.exec(line);
    if (!match) continue;
    const content = match[match.length - 1] ?? "";
    if (open?.kind === kind && kind !== "head" && kind !== "rule") {
      open.lines.push(content);
      return open;
    }
    const block = { kind, lines: [content], first: kind === "number" ? Number(match[1]) : 1 };
    result.push(block);
    return kind === "head" || kind === "rule" ? null : block;
  }
  if (open?.kind === "text" || (open && /^ {2,}\S/.test(line))) {
    if (open.kind === "text") open.lines.push(line);
    else open.lines[open.lines.length - 1] += `\n${line.trim()}`;
    return open;
  }
  const block = { kind: "text", lines: [line] };
  result.push(block);
  return block;
}

function element({ kind, lines, language, first }) {
  const joined = lines.join("\n");
  if (kind === "code") return codeBlock(joined, language);
  if (kind === "rule") return el("hr");
  if (kind === "bullet") return el("ul", {}, ...lines.map((line) => el("li", {}, ...inline(line))));
  if (kind === "number") return el("ol", { start: first }, ...lines.map((line) => el("li", {}, ...inline(line))));
  return el({ head: "h3", quote: "blockquote", text: "p" }[kind], {}, ...inline(joined));
}

function codeBlock(text, language) {
  const copy = el("button", { type: "button", className: "quiet" }, "Copy");
  copy.addEventListener("click", () => copyText(text, copy));
  return el("div", { className: "code" }, el("div", {}, el("span", {}, language), copy),
    el("pre", { tabIndex: 0 }, el("code", {}, text)));
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

const MARKS = [["**", "strong"], ["*", "em"]]; // not __: names like __init__ are commoner than bold text

/** Code, bold and italics of a line. A marker that has no end is not looked for again: long lines stay cheap. */
function inline(text) {
  const nodes = [];
  const unmatched = new Set();
  let plain = "";
  let at = 0;
  const flush = (node) => { nodes.push(plain, node); plain = ""; };
  while (at < text.length) {
    const mark = text[at] === "`" ? ticks(text, at) : MARKS.find(([each]) => text.startsWith(each, at))?.[0];
    const from = at + (mark?.length ?? 1);
    const opens = mark && !unmatched.has(mark) && /\S/.test(text[from] ?? " ");
    const end = opens ? text.indexOf(mark, from + 1) : -1;
    if (end > 0 && (mark[0] === "`" || text[end - 1] !== " ")) {
      const inner = text.slice(from, end);
      if (mark[0] === "`") flush(el("code", {}, inner));
      else flush(el(MARKS.find(([each]) => each === mark)[1], {}, ...(inner.includes("`") ? inline(inner) : [inner])));
      at = end + mark.length;
    } else {
      if (opens && end < 0) unmatched.add(mark);
      plain += text.slice(at, from);
      at = from;
    }
  }
  nodes.push(plain);
  return nodes;
}

function ticks(text, at) {
  let end = at;
  while (text[end] === "`") end += 1;
  return text.slice(at, end);
}
